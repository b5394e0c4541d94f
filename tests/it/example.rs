//! The example of the README: a job that leaks in a memory group, with protection and without.

use std::path::Path;

use crate::harness::program;
use crate::skip::skip;

/// Runs the example with a small group; what it printed, or nothing where it cannot be run here.
fn example(name: &str, args: &[&str]) -> Option<String> {
    let name = format!("memwarden-{name}-{}", std::process::id());
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/protect.sh");
    let output = program("bash")
        .arg(script)
        .args(["--name", &name, "--limit-mib", "256", "--seconds", "16"])
        .args(args)
        .env_clear()
        .env("PATH", std::env::var_os("PATH").unwrap_or_default())
        .env("MEMWARDEN", env!("CARGO_BIN_EXE_memwarden"))
        .output()
        .unwrap();
    let folder = Path::new("/run").join(name);
    let log = std::fs::read_to_string(folder.join("memwarden.log")).unwrap_or_default();
    let _ = std::fs::remove_dir_all(folder);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    if output.status.code() == Some(77) {
        skip(said.trim());
        return None;
    }
    assert!(output.status.success(), "{output:?}\n{log}");
    let told = String::from_utf8(output.stdout).unwrap();
    // Seen where the test fails.
    println!("{told}\n{said}\n{log}");
    Some(told)
}

/// The number before the first `: mark` of a line that begins with `step`.
fn step(told: &str, mark: &str) -> Option<u64> {
    let line = told.lines().rfind(|line| line.starts_with("step ") && line.contains(mark))?;
    line["step ".len()..].split(':').next()?.parse().ok()
}

#[test]
fn the_example_saves_ends_and_continues() {
    let Some(told) = example("saves", &[]) else { return };
    let saved = step(&told, ": saved").expect("a checkpoint");
    assert_eq!(step(&told, ": goes on from"), Some(saved), "the second run begins where the first one saved");
    assert!(told.contains("Kills by the kernel in its group: 0"));
    assert!(
        told.contains(
            "ran low; it received a checkpoint request, saved its checkpoint, received SIGTERM and ended."
        ),
        "the incident tells it in a sentence"
    );
    for row in ["SIGUSR1 to pid", "wait for the checkpoint acknowledgement → done", "SIGTERM to pid"] {
        assert!(told.contains(row), "{row}");
    }
    assert_eq!(told.matches("**soft** → **checkpoint**").count(), 1, "each move is told once");
}

#[test]
fn without_protection_the_kernel_kills_the_example() {
    let Some(told) = example("dies", &["--off"]) else { return };
    assert!(told.contains("The job was killed") && told.contains("Kills by the kernel in its group: 1"));
    assert!(told.contains("There is no checkpoint"));
}
