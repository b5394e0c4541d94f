//! What a build before this one left is read by this one. A folder of `tests/fixtures/state` has the files of one revision.

use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::time::Duration;

use crate::harness::{Daemon, memwarden, wait_for};

const SOON: Duration = Duration::from_secs(60);

/// Copies a folder, for its owner only, as a daemon writes it.
fn copy(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let target = to.join(entry.file_name());
        if entry.file_type().unwrap().is_dir() {
            copy(&entry.path(), &target);
        } else {
            // The state of an earlier boot is not used.
            let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap();
            let text =
                std::fs::read_to_string(entry.path()).unwrap().replace("\"BOOT\"", &format!("{boot:?}"));
            std::fs::write(&target, text).unwrap();
            std::fs::set_permissions(&target, std::fs::Permissions::from_mode(0o600)).unwrap();
        }
    }
    std::fs::set_permissions(to, std::fs::Permissions::from_mode(0o700)).unwrap();
}

#[test]
fn the_files_of_earlier_builds_are_read() {
    let all = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/state");
    let mut seen = 0;
    for earlier in std::fs::read_dir(all).unwrap() {
        let folder = tempfile::tempdir().unwrap();
        copy(&earlier.unwrap().path(), folder.path());
        let file = format!("state.file={}", folder.path().join("state.json").display());
        let daemon = Daemon::start(&["--set", &file]);
        wait_for("the state", SOON, || {
            daemon.log().contains("Going on from the state of an earlier run.").then_some(())
        });
        daemon.wait_frames(2.0);
        for refused in ["beginning anew", "discarded", "damaged", "cannot be read", "Cannot read"] {
            assert!(!daemon.log().contains(refused), "{refused}: {}", daemon.log());
        }
        let incidents = folder.path().join("incidents");
        let listed =
            memwarden(&["incidents", "--format", "json", "--folder"]).arg(&incidents).output().unwrap();
        let listed: serde_json::Value = serde_json::from_slice(&listed.stdout).unwrap();
        let id = listed["incidents"][0]["id"].as_str().unwrap().to_owned();
        let told = memwarden(&["incidents", &id, "--folder"]).arg(&incidents).output().unwrap();
        let text = String::from_utf8(told.stdout).unwrap();
        assert!(told.status.success() && text.contains("Memory of first ran low"), "{text}");
        seen += 1;
    }
    assert!(seen >= 1, "no earlier build");
}
