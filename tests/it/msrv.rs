//! The oldest supported Rust is that of `rust-version`, and dependencies require no newer one.

use serde_json::Value;

use crate::harness::program;

/// The numbers of a version; missing ones are 0.
fn version(text: &str) -> [u32; 3] {
    let mut numbers = [0; 3];
    for (number, part) in numbers.iter_mut().zip(text.split('.')) {
        *number = part.parse().unwrap();
    }
    numbers
}

fn manifest() -> String {
    std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml")).unwrap()
}

#[test]
fn no_dependency_asks_for_a_newer_rust() {
    let args = ["metadata", "--format-version", "1", "--locked", "--offline", "--filter-platform"];
    let target = format!("{}-unknown-linux-gnu", std::env::consts::ARCH);
    let done = program(env!("CARGO"))
        .args(args)
        .arg(target)
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .output()
        .unwrap();
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    let metadata: Value = serde_json::from_slice(&done.stdout).unwrap();
    let packages = metadata["packages"].as_array().unwrap();
    let own = env!("CARGO_PKG_RUST_VERSION");
    let (mut newest, mut newer) = ([0; 3], Vec::new());
    for package in packages.iter().filter(|package| package["source"].is_string()) {
        let Some(asked) = package["rust_version"].as_str() else { continue };
        newest = newest.max(version(asked));
        if version(asked) > version(own) {
            newer.push(format!("{} {} asks for {asked}", package["name"], package["version"]));
        }
    }
    assert!(newer.is_empty(), "rust-version is {own}: {}", newer.join(", "));
    assert_eq!(newest, version(own), "rust-version is higher than any dependency asks for");
}

#[test]
fn clippy_rejects_newer_library_features() {
    let lint = "\nincompatible_msrv = \"deny\"\n";
    assert!(manifest().split("[workspace.lints.clippy]").nth(1).unwrap().contains(lint));
    let clippy = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/clippy.toml")).unwrap();
    assert!(!clippy.contains("msrv"), "clippy would go by that, not by rust-version");
}
