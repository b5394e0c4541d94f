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
fn a_pickle_that_would_call_something_is_refused_by_name() {
    let (code, out, err) = run(&[&fixture("system.pt")]);
    assert_eq!((code, out.as_str()), (1, ""));
    assert!(err.contains("system.pt: data.pkl byte 201: loading it would call posix.system"), "{err}");
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
    assert!(code == 1 && err.contains("no .safetensors, .bin, .pt or .pth file"), "{err}");
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
