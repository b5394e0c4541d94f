//! `memwarden params`, run as a user runs it.

use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::harness::memwarden;

fn fixture(name: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/parameters").join(name);
    path.to_str().unwrap().to_owned()
}

/// The exit code, standard output and standard error.
fn run(args: &[&str]) -> (i32, String, String) {
    let mut all = vec!["params"];
    all.extend(args);
    let output = memwarden(&all).output().unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    (output.status.code().unwrap(), text(output.stdout), text(output.stderr))
}

/// The JSON report.
fn report(args: &[&str]) -> Value {
    let (code, out, err) = run(&[&["--format", "json"], args].concat());
    assert_eq!((code, err.as_str()), (0, ""));
    serde_json::from_str(&out).unwrap()
}

/// Writes a safetensors file of vectors of 32-bit floats.
fn write(folder: &Path, name: &str, tensors: &[(&str, &[f32])]) -> PathBuf {
    let (mut header, mut data) = (serde_json::Map::new(), Vec::new());
    for (name, values) in tensors {
        let begin = data.len();
        data.extend(values.iter().flat_map(|value| value.to_le_bytes()));
        let entry = serde_json::json!({
            "dtype": "F32", "shape": [values.len()], "data_offsets": [begin, data.len()],
        });
        header.insert((*name).to_owned(), entry);
    }
    let header = serde_json::to_vec(&header).unwrap();
    let path = folder.join(name);
    std::fs::write(&path, [&(header.len() as u64).to_le_bytes()[..], &header, &data].concat()).unwrap();
    path
}

#[test]
fn checkpoints_of_pytorch_are_read() {
    let found = &report(&[&fixture("training.pt")])["checkpoints"][0]["summary"];
    assert_eq!((&found["tensors"], &found["tied_tensors"]), (&10.into(), &1.into()));
    assert_eq!(found["by_group"][0]["name"], "optimizer");
    assert_eq!(found["trainable"]["from"], "not_told");
    let found = &report(&[&fixture("parameters.pt")])["checkpoints"][0]["summary"];
    assert_eq!(
        (&found["trainable"]["elements"], &found["trainable"]["of_elements"]),
        (&44.into(), &60.into())
    );
    let found = &report(&[&fixture("kinds.pt")])["checkpoints"][0];
    assert_eq!(found["summary"]["values"]["nan_elements"], 3);
    assert_eq!(found["summary"]["values"]["zero_tensors"], 1);
    assert_eq!(found["summary"]["values"]["not_scanned"]["a view with gaps or repetitions"], 1);
    assert_eq!(found["notes"].as_array().unwrap().len(), 1, "the sparse one is not read, and that is said");
}

#[test]
fn scores_of_lightning_are_not_parameters() {
    let found = &report(&[&fixture("lightning.ckpt")])["checkpoints"][0];
    let names: Vec<&str> =
        found["all"].as_array().unwrap().iter().map(|row| row["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["state_dict.fc.weight", "state_dict.fc.bias"]);
    assert_eq!(found["summary"]["values"]["inf_elements"], 0, "kth_value of ModelCheckpoint is infinite");
    let expected = "lightning.ckpt: not parameters, and left out: 1 value of Lightning's callbacks and loops, such as scores";
    assert_eq!(found["notes"], serde_json::json!([expected]));
}

#[test]
fn a_distributed_checkpoint_is_read_from_its_metadata() {
    for path in ["distributed", "distributed/.metadata"] {
        let found = &report(&[&fixture(path)])["checkpoints"][0];
        let rows: Vec<_> = found["all"].as_array().unwrap().iter().collect();
        let row = |row: &Value| format!("{} {} {}", row["name"], row["dtype"], row["shape"]);
        assert_eq!(
            row(rows[0]),
            r#""model.fc1.weight" "F32" [5,4]"#,
            "as a whole, not as the part of a rank"
        );
        assert_eq!(row(rows[1]), r#""model.fc1.bias" "BF16" [5]"#);
        assert_eq!((found["summary"]["bytes"].as_u64(), rows.len()), (Some(90), 2));
        assert_eq!(found["files"].as_array().unwrap().len(), 3);
    }
    let (_, out, _) = run(&[&fixture("distributed")]);
    assert!(out.contains("Values: none were read; NaN, Inf and zeros are not known"), "{out}");
    assert!(out.contains("dcp_to_torch"), "{out}");
    let folder = tempfile::tempdir().unwrap();
    std::fs::copy(fixture("distributed/.metadata"), folder.path().join(".metadata")).unwrap();
    std::fs::write(folder.path().join("__0_0.distcp"), "").unwrap();
    let (code, out, _) = run(&[folder.path().to_str().unwrap()]);
    assert_eq!(code, 2, "{out}");
    assert!(out.contains("files with values that cannot be opened: __1_0.distcp"), "{out}");
    assert!(
        out.contains("files with values that are shorter than the metadata state: __0_0.distcp"),
        "{out}"
    );
}

#[test]
fn a_folder_of_deepspeed_is_read_at_its_newest_step() {
    let all = |path: &str| report(&[&fixture(path)])["checkpoints"][0]["all"].clone();
    let found = all("deepspeed");
    assert_eq!(found, all("deepspeed/global_step1"));
    let names: Vec<&str> =
        found.as_array().unwrap().iter().map(|row| row["name"].as_str().unwrap()).collect();
    assert!(names.contains(&"module.0.weight"), "{names:?}");
    assert!(names.contains(&"optimizer_state_dict.single_partition_of_fp32_groups.0"), "{names:?}");
    let (_, out, _) = run(&[&fixture("deepspeed")]);
    assert!(out.contains("zero_to_fp32.py writes the parameters to one file"), "{out}");
}

#[test]
fn arrays_of_numpy_are_read() {
    let found = &report(&[&fixture("arrays.npz")])["checkpoints"][0];
    let row = |row: &Value| format!("{} {} {} {}", row["name"], row["dtype"], row["shape"], row["nan"]);
    let rows: Vec<String> = found["all"].as_array().unwrap().iter().map(row).collect();
    assert_eq!(
        rows,
        [
            r#""big" "F32" [3] null"#,
            r#""by_columns" "F32" [2,2] 0"#,
            r#""dense/bias" "F16" [2] 1"#,
            r#""dense/kernel" "F64" [2,3] 0"#,
        ]
    );
    let not_scanned = &found["summary"]["values"]["not_scanned"];
    assert_eq!(*not_scanned, serde_json::json!({"written by a big-endian machine": 1}));
    assert_eq!(found["notes"].as_array().unwrap().len(), 1, "of text and objects");
    let found = &report(&[&fixture("compressed.npz")])["checkpoints"][0]["summary"];
    assert_eq!(
        (&found["elements"], &found["values"]["not_scanned"]["compressed"]),
        (&6000.into(), &1.into())
    );
    let found = &report(&[&fixture("array.npy")])["checkpoints"][0]["all"][0];
    assert_eq!(row(found), r#""(array)" "I32" [3] 0"#);
}

#[test]
fn a_pickle_that_would_call_something_is_refused_by_name() {
    let (code, out, err) = run(&[&fixture("system.pt")]);
    assert_eq!((code, out.as_str()), (1, ""));
    assert!(err.contains("system.pt: byte 201 of its pickle: loading it would call posix.system"), "{err}");
    let (code, out, _) = run(&["--any-class", &fixture("system.pt")]);
    assert!(
        code == 0
            && out
                .contains("loading it would call functions that are not known to be harmless: posix.system")
    );
}

#[test]
fn shards_with_their_index_are_one_checkpoint() {
    let folder = tempfile::tempdir().unwrap();
    let bad = [1.0, f32::NAN, f32::INFINITY];
    write(folder.path(), "1.safetensors", &[("model.embed_tokens.weight", &[0.5; 8])]);
    write(folder.path(), "2.safetensors", &[("lm_head.weight", &bad), ("model.norm.bias", &[0.0; 2])]);
    let index = |head: &str| {
        let index = format!(
            r#"{{"metadata":{{"total_size":52}},"weight_map":{{"model.embed_tokens.weight":"1.safetensors",
            "{head}":"2.safetensors","model.norm.bias":"2.safetensors"}}}}"#
        );
        std::fs::write(folder.path().join("model.safetensors.index.json"), index).unwrap();
    };
    index("lm_head.weight");
    let path = folder.path().to_str().unwrap();
    let found = report(&[path]);
    let summary = &found["checkpoints"][0]["summary"];
    assert_eq!((&summary["elements"], &summary["bytes"]), (&13.into(), &52.into()));
    assert_eq!(
        (&summary["values"]["nan_elements"], &summary["values"]["inf_elements"]),
        (&1.into(), &1.into())
    );
    assert_eq!(summary["values"]["zero"][0]["name"], "model.norm.bias");
    assert!(found["checkpoints"][0]["notes"].as_array().unwrap().is_empty());
    index("another");
    let (code, _, err) = run(&[path]);
    assert!(code == 1 && err.contains("tensor \"another\""), "{err}");
}

#[test]
fn two_checkpoints_are_compared() {
    let folder = tempfile::tempdir().unwrap();
    let before = write(folder.path(), "a.safetensors", &[("w", &[1.0, 2.0]), ("x", &[1.0]), ("y", &[1.0])]);
    let after = write(folder.path(), "b.safetensors", &[("w", &[1.0, 2.5]), ("y", &[1.0; 2]), ("z", &[1.0])]);
    let found = report(&["--difference", before.to_str().unwrap(), after.to_str().unwrap()]);
    let found = &found["comparison"];
    assert_eq!((&found["added"][0]["name"], &found["removed"][0]["name"]), (&"z".into(), &"x".into()));
    assert_eq!((&found["changed"][0]["before"]["name"], &found["same"]), (&"y".into(), &1.into()));
    assert_eq!((&found["values"][0]["max_abs"], &found["values"][0]["differing"]), (&0.5.into(), &1.into()));
}

#[test]
fn an_adapter_is_reported_with_its_base() {
    let folder = tempfile::tempdir().unwrap();
    write(folder.path(), "adapter_model.safetensors", &[("q_proj.lora_A.weight", &[1.0; 2])]);
    std::fs::write(folder.path().join("adapter_config.json"), r#"{"peft_type":"LORA","r":2}"#).unwrap();
    let base = tempfile::tempdir().unwrap();
    write(base.path(), "model.safetensors", &[("q_proj.weight", &[1.0; 6])]);
    let path = folder.path().to_str().unwrap();
    let (_, out, _) = run(&[path, "--base", base.path().to_str().unwrap()]);
    assert!(out.contains("Trainable: 2 of 8 parameters (25 %)"), "{out}");
    let (_, out, _) = run(&[path]);
    assert!(out.contains("the share is known with --base"), "{out}");
}

#[test]
fn other_files_are_named() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().to_str().unwrap();
    let (code, _, err) = run(&[path]);
    assert!(code == 1 && err.contains("no .safetensors, .bin, .pt, .pth, .ckpt, .npz or .npy file"), "{err}");
    std::fs::write(folder.path().join("_METADATA"), "{}").unwrap();
    let (code, _, err) = run(&[path]);
    assert!(code == 1 && err.contains("a checkpoint of Orbax is not read; restore it"), "{err}");
    std::fs::write(folder.path().join("__0_0.distcp"), "PK\x03\x04").unwrap();
    std::fs::remove_file(folder.path().join("_METADATA")).unwrap();
    let (code, _, err) = run(&[path]);
    assert!(code == 1 && err.contains("(.distcp) without the file .metadata"), "{err}");
    let part = folder.path().join("__0_0.distcp");
    let (code, _, err) = run(&[part.to_str().unwrap()]);
    assert!(code == 1 && err.contains("give its folder"), "{err}");
    std::fs::write(folder.path().join("model.weights.h5"), b"\x89HDF\r\n\x1a\n").unwrap();
    let (code, _, err) = run(&[folder.path().join("model.weights.h5").to_str().unwrap()]);
    assert!(code == 1 && err.contains("an HDF5 file is not read; load it with its framework"), "{err}");
    let whole = write(folder.path(), "cut.safetensors", &[("w", &[1.0; 9])]);
    let bytes = std::fs::read(&whole).unwrap();
    std::fs::write(&whole, &bytes[..bytes.len() - 1]).unwrap();
    let (code, _, err) = run(&[path]);
    assert!(code == 1 && err.contains("cut.safetensors: tensor \"w\": ends at byte 36"), "{err}");
    let (code, _, err) = run(&["/dev/zero"]);
    assert!(code == 1 && err.contains("not a regular file"), "{err}");
}

#[test]
fn a_report_and_a_picture_are_written() {
    let folder = tempfile::tempdir().unwrap();
    let (json, picture) = (folder.path().join("report.json"), folder.path().join("bars.svg"));
    let (code, _, err) = run(&[
        &fixture("training.pt"),
        "--no-scan",
        "--output",
        json.to_str().unwrap(),
        "--plot",
        picture.to_str().unwrap(),
    ]);
    assert_eq!((code, err.as_str()), (0, ""));
    let report: Value = serde_json::from_str(&std::fs::read_to_string(json).unwrap()).unwrap();
    assert_eq!(report["checkpoints"][0]["all"].as_array().unwrap().len(), 10);
    assert!(report["checkpoints"][0]["summary"].get("values").is_none(), "unknown is absent");
    assert!(std::fs::read_to_string(picture).unwrap().contains("optimizer"));
}
