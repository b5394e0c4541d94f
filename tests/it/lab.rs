//! The commands of the program `memwarden-lab`, which `memwarden` executes, and what happens where it is missing.

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::time::Duration;

use crate::harness::{Daemon, memwarden, program, wait_for};

/// A copy of the program, alone in a folder with this mode.
fn alone(mode: u32) -> (tempfile::TempDir, std::path::PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    std::fs::set_permissions(folder.path(), Permissions::from_mode(mode)).unwrap();
    let copy = folder.path().join("memwarden");
    std::fs::copy(env!("CARGO_BIN_EXE_memwarden"), &copy).unwrap();
    (folder, copy)
}

fn is_installed() -> bool {
    Path::new("/usr/libexec/memwarden/memwarden-lab").exists()
}

#[test]
fn its_commands_are_those_of_memwarden() {
    let text = |args: &[&str]| {
        let done = memwarden(args).output().unwrap();
        let text = |bytes| String::from_utf8(bytes).unwrap();
        (done.status.code(), text(done.stdout) + &text(done.stderr))
    };
    let (code, help) = text(&["--help"]);
    assert!(code == Some(0) && help.contains("\nFiles:\n") && help.contains("\n  replay  "), "{help}");
    for args in [&["replay", "--help"][..], &["help", "replay"]] {
        let (code, help) = text(args);
        assert!(code == Some(0) && help.contains("\nUsage: memwarden replay "), "{help}");
        assert!(help.contains("Example"), "all of it: {help}");
    }
    let (code, message) = text(&["replay", "--limit", "1"]);
    assert!(code == Some(2) && message.contains("'--limit <SIZE>'"), "{message}");
    let (code, message) = text(&["replay", "none\n.csv"]);
    assert!(code == Some(1) && message.starts_with("memwarden: cannot read none\\n.csv: "), "{message}");
    let (code, message) = text(&["repla"]);
    assert!(code == Some(2) && message.contains("'replay'"), "{message}");
}

#[test]
fn programs_of_two_versions_do_not_work_together() {
    let lab = Path::new(env!("CARGO_BIN_EXE_memwarden")).with_file_name("memwarden-lab");
    let done = program(&lab).args(["--release=0.0.9", "replay", "--of-a-later-version"]).output().unwrap();
    let why = String::from_utf8_lossy(&done.stderr);
    assert!(
        why.starts_with("memwarden: memwarden is of version 0.0.9 and memwarden-lab of 0.")
            && !done.status.success(),
        "{why}"
    );
}

#[test]
fn the_program_that_is_missing_is_named() {
    if is_installed() {
        return crate::skip::skip("memwarden-lab is installed on this machine");
    }
    let (folder, memwarden) = alone(0o755);
    let done = program(&memwarden).args(["replay", "a.csv"]).output().unwrap();
    let place = folder.path().canonicalize().unwrap();
    assert_eq!(
        String::from_utf8_lossy(&done.stderr),
        format!(
            "memwarden: the program memwarden-lab is missing: it is neither in {} nor in /usr/libexec/memwarden\n",
            place.display()
        )
    );
    assert_eq!(done.status.code(), Some(1));
    let done = program(&memwarden).arg("--help").output().unwrap();
    assert!(String::from_utf8_lossy(&done.stdout).contains("\n  replay  "), "it is listed all the same");
}

#[test]
fn nothing_is_executed_that_a_user_can_put_beside_the_program() {
    if is_installed() {
        return crate::skip::skip("memwarden-lab is installed on this machine");
    }
    let (folder, memwarden) = alone(0o1777);
    let planted = folder.path().join("memwarden-lab");
    std::fs::write(&planted, "#!/bin/sh\necho planted\n").unwrap();
    std::fs::set_permissions(&planted, Permissions::from_mode(0o755)).unwrap();
    let run = || program(&memwarden).args(["replay", "a.csv"]).output().unwrap();
    let refused = run();
    let why = String::from_utf8_lossy(&refused.stderr);
    assert!(
        refused.stdout.is_empty() && why.contains(", which is sticky or belongs to another user, nor in"),
        "{why}"
    );
    std::fs::set_permissions(folder.path(), Permissions::from_mode(0o755)).unwrap();
    assert_eq!(String::from_utf8_lossy(&run().stdout), "planted\n");
    if rustix::process::geteuid().is_root() {
        // As a user makes the folder again that was removed while the program runs.
        std::os::unix::fs::chown(folder.path(), Some(61_001), None).unwrap();
        assert!(run().stdout.is_empty());
    }
}

#[test]
fn without_it_the_source_of_snapshots_is_unavailable() {
    if is_installed() {
        return crate::skip::skip("memwarden-lab is installed on this machine");
    }
    let (folder, memwarden) = alone(0o755);
    let config = folder.path().join("memwarden.yaml");
    std::fs::write(&config, "sources:\n  snapshots:\n    folders: [{name: sft, path: /tmp}]\n").unwrap();
    let arguments = ["--config.file", config.to_str().unwrap(), "--set", "sources.gpu.enabled=false"];
    let daemon = Daemon::start_by(&["/usr/bin/env"], &memwarden, &arguments);
    wait_for("the state of the source", Duration::from_secs(40), || {
        let text = daemon.metrics();
        text.contains("memwarden_source_status{source=\"snapshots\",status=\"unavailable\"} 1").then_some(())
    });
    let log = daemon.log();
    assert!(log.contains("the program memwarden-lab is missing"), "{log}");
}
