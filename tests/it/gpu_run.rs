//! The hardware run: rehearsed from its packed folder, and its recordings replayed.

use std::path::{Path, PathBuf};
use std::time::SystemTime;

use crate::harness::{fake_nvml, program};
use crate::skip::skip;

fn own(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(name)
}

fn newest(folder: &Path) -> SystemTime {
    let files = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().metadata().unwrap());
    files.map(|metadata| metadata.modified().unwrap()).max().unwrap()
}

/// The program of the run; nothing where it is not built, because cargo builds no program of another package for a test.
fn gpu_run() -> Option<PathBuf> {
    let built = Path::new(env!("CARGO_BIN_EXE_memwarden")).with_file_name("gpu-run");
    let made = std::fs::metadata(&built).and_then(|metadata| metadata.modified());
    if made.is_ok_and(|made| made >= newest(&own("tests/gpu/src"))) {
        return Some(built);
    }
    skip("gpu-run is not built or older than its sources (cargo build --workspace)");
    None
}

#[test]
fn the_packed_folder_runs_on_a_bare_machine() {
    let Some(gpu_run) = gpu_run() else { return };
    let folder = tempfile::tempdir().unwrap();
    let pack = folder.path().join("gpu-run");
    let packed = program(own("tests/gpu/pack"))
        .args(["--any-glibc", "--binary", env!("CARGO_BIN_EXE_memwarden"), "--program"])
        .arg(gpu_run)
        .arg(&pack)
        .output()
        .unwrap();
    assert!(packed.status.success(), "{}", String::from_utf8_lossy(&packed.stderr));
    let fakes = fake_nvml().parent().unwrap().to_owned();
    let results = folder.path().join("results");
    let done = program(own("tests/gpu/rehearse"))
        .arg("--pack")
        .arg(&pack)
        .arg("--fakes")
        .arg(fakes)
        .args(["--pace", "0.15"])
        .arg(&results)
        .output()
        .unwrap();
    let output = [done.stdout, done.stderr].concat();
    let output = String::from_utf8_lossy(&output);
    if done.status.code() == Some(77) {
        return skip(&output);
    }
    let summary = std::fs::read_to_string(results.join("summary.md")).unwrap_or_default();
    assert!(done.status.success(), "{output}\n{summary}");
}

/// Each recording of a device, or of the fake, is given again by the fake: what it cannot express is listed beside it.
#[test]
fn recordings_are_replayed_by_the_fake() {
    let Some(gpu_run) = gpu_run() else { return };
    let recordings = own("tests/fixtures/nvml");
    let mut count = 0;
    for entry in std::fs::read_dir(recordings).unwrap() {
        let kept = entry.unwrap().path();
        if !kept.is_dir() {
            continue;
        }
        count += 1;
        let recording = kept.join("recording.json");
        let text = std::fs::read_to_string(&recording).unwrap();
        let of_fake = text.contains("\"origin\":\"fake NVML\"");
        let name = kept.file_name().unwrap().to_string_lossy().into_owned();
        assert_eq!(name.starts_with("fake-"), of_fake, "{name}: a recording of the fake is named so");
        let folder = tempfile::tempdir().unwrap();
        let scenario = program(&gpu_run).arg("scenario").arg(&recording).output().unwrap();
        let file = folder.path().join("scenario.json");
        std::fs::write(&file, scenario.stdout).unwrap();
        let again = folder.path().join("again.json");
        let recorded = program(&gpu_run)
            .arg("record")
            .arg(&again)
            .arg("--nvml")
            .arg(fake_nvml())
            .env("FAKE_NVML_SCENARIO", &file)
            .output()
            .unwrap();
        assert!(recorded.status.success(), "{}", String::from_utf8_lossy(&recorded.stderr));
        let differences = program(&gpu_run).arg("differences").arg(&recording).arg(&again).output().unwrap();
        let known = std::fs::read_to_string(kept.join("not-replayed.txt")).unwrap_or_default();
        assert_eq!(String::from_utf8_lossy(&differences.stdout), known, "{name}");
    }
    assert!(count > 0, "there is no recording");
}
