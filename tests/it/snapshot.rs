//! `memwarden snapshot`, run as a user runs it.

use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::harness::{Daemon, memwarden, wait_for};

fn fixture(name: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/snapshots").join(name);
    path.to_str().unwrap().to_owned()
}

/// The exit code, standard output and standard error.
fn run(args: &[&str]) -> (i32, String, String) {
    let mut all = vec!["snapshot"];
    all.extend(args);
    let output = memwarden(&all).output().unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    (output.status.code().unwrap(), text(output.stdout), text(output.stderr))
}

fn folder() -> tempfile::TempDir {
    tempfile::tempdir().unwrap()
}

fn inside(folder: &tempfile::TempDir, name: &str) -> (PathBuf, String) {
    let path = folder.path().join(name);
    let text = path.to_str().unwrap().to_owned();
    (path, text)
}

#[test]
fn a_leak_is_named_with_its_line() {
    let (code, out, err) = run(&[&fixture("leak.pickle")]);
    assert_eq!((code, err.as_str()), (0, ""));
    assert!(out.contains("1 suspected of leaking, over 18 whole optimizer steps"), "{out}");
    assert!(
        out.contains("  leak?   78.1 KiB           20  3.9 KiB per step, in 18 steps  keep_loss train.py:56"),
        "{out}"
    );
}

#[test]
fn fragmentation_and_a_full_device_are_distinguished() {
    let (code, out, _) = run(&["--format", "json", "--request-size", "4MiB", &fixture("fragmented.pickle")]);
    let report: serde_json::Value = serde_json::from_str(&out).unwrap();
    let found = &report["snapshots"][0];
    assert_eq!((code, &report["schema_version"]), (0, &1.into()));
    assert_eq!(found["totals"]["unreleasable_bytes"], 96u64 << 20);
    assert_eq!(found["requests"][0]["fits"], true);
    assert_eq!(found["requests"][1]["origin"], "failed");
    assert_eq!(found["requests"][1]["lost_bytes"], 96u64 << 20);
    assert_eq!(found["advice"][0]["setting"], "expandable_segments:True");
    assert_eq!(found["allocator_settings"]["max_split_size_bytes"], 128u64 << 20);
}

#[test]
fn reports_and_pictures_are_written() {
    let folder = folder();
    for name in ["out.svg", "out.html"] {
        let ((json, json_text), (plot, plot_text)) = (inside(&folder, "report.json"), inside(&folder, name));
        let (code, _, err) = run(&[
            "--output",
            &json_text,
            "--plot",
            &plot_text,
            &fixture("leak.pickle"),
            &fixture("oldest.pickle"),
        ]);
        assert_eq!((code, err.as_str()), (0, ""));
        let report: serde_json::Value = serde_json::from_slice(&std::fs::read(json).unwrap()).unwrap();
        assert_eq!(report["snapshots"].as_array().unwrap().len(), 2);
        let picture = std::fs::read_to_string(plot).unwrap();
        assert!(picture.contains("<svg") && picture.contains("not releasable"), "{name}");
        assert!(!picture.contains("<script"), "{name}");
    }
    let (code, _, err) = run(&["--plot", "out.gif", &fixture("leak.pickle")]);
    assert_eq!(code, 2);
    assert!(err.contains("ends in .svg or .png; of a page, in .html"), "{err}");
}

#[test]
fn two_snapshots_are_compared() {
    let (code, out, _) = run(&["--compare", &fixture("oldest.pickle"), &fixture("leak.pickle")]);
    assert_eq!(code, 0);
    assert!(out.contains("+40.0 MiB") && out.contains("0 B to 78.1 KiB"), "{out}");
    let (code, _, err) = run(&["--compare", &fixture("leak.pickle")]);
    assert_eq!(code, 1);
    assert!(err.contains("--compare takes two files"), "{err}");
}

#[test]
fn unreadable_files_are_errors_and_the_others_are_reported() {
    let (code, out, err) = run(&[&fixture("hostile.pickle"), &fixture("leak.pickle")]);
    assert_eq!(code, 1);
    assert!(err.contains("hostile.pickle: cannot read the pickle: byte 45 (STACK_GLOBAL): refused"), "{err}");
    assert!(out.contains("keep_loss"), "{out}");
    let (code, out, err) = run(&["/nowhere/at.all"]);
    assert_eq!((code, out.as_str()), (1, ""));
    assert!(err.contains("/nowhere/at.all: No such file"), "{err}");
    let (code, _, err) = run(&["--max-memory", "1kB", &fixture("leak.pickle")]);
    assert_eq!(code, 1);
    assert!(err.contains("--max-memory"), "{err}");
}

#[test]
fn a_watched_folder_is_read_as_snapshots_appear() {
    let (folder, limit) = (folder(), Duration::from_secs(40));
    let config = folder.path().join("memwarden.yaml");
    let runs = folder.path().join("runs");
    std::fs::create_dir(&runs).unwrap();
    let text = "sources:\n  snapshots:\n    scan_interval: 1s\n    folders: [{name: sft, path: runs}]\n";
    std::fs::write(&config, text).unwrap();
    let daemon =
        Daemon::start(&["--config.file", config.to_str().unwrap(), "--set", "sources.gpu.enabled=false"]);
    let line = |name: &str| {
        wait_for(name, limit, || {
            let text = daemon.metrics();
            text.lines().find(|line| line.starts_with(name)).map(str::to_owned)
        })
    };

    std::fs::copy(fixture("leak.pickle"), runs.join("rank3.pickle")).unwrap();
    let suspects = line("memwarden_snapshot_leak_suspect_bytes{folder=\"sft\",rank=\"3\"}");
    assert!(suspects.ends_with(" 80000"), "{suspects}");
    line("memwarden_snapshot_reserved_bytes{folder=\"sft\",rank=\"3\",device=\"0\"}");
    line("memwarden_source_status{source=\"snapshots\",status=\"ok\"} 1");

    std::fs::write(runs.join("rank4.pickle"), b"\x80\x04cos\nsystem\n").unwrap();
    line("memwarden_snapshot_errors_total{folder=\"sft\"} 1");
    let reason = wait_for("the reason", limit, || {
        daemon.log().lines().find(|line| line.contains("Cannot read an")).map(str::to_owned)
    });
    assert!(reason.contains("rank4.pickle") && reason.contains("byte 2"), "{reason}");

    std::fs::remove_file(runs.join("rank3.pickle")).unwrap();
    wait_for("the end of the rank", limit, || {
        (!daemon.metrics().contains("memwarden_snapshot_reserved_bytes{")).then_some(())
    });
}
