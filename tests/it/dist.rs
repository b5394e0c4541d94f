//! `deploy/build-dist`, on two small programs: what it removes from them, and what it refuses.

use std::path::{Path, PathBuf};
use std::process::Output;

use crate::harness::{on_path, program};
use crate::skip::skip;

/// A package of the name that the script builds, in a folder whose path must not be in the output.
struct Package {
    _folder: tempfile::TempDir,
    tree: PathBuf,
}

impl Package {
    /// The package, or nothing if the script's tools are not installed.
    fn new(main: &str) -> Option<Self> {
        for tool in ["objcopy", "addr2line", "bash"] {
            if on_path(tool).is_none() {
                skip(&format!("{tool} is not installed"));
                return None;
            }
        }
        let folder = tempfile::tempdir().unwrap();
        let tree = folder.path().canonicalize().unwrap().join("the tree");
        for part in ["src/bin", "deploy"] {
            std::fs::create_dir_all(tree.join(part)).unwrap();
        }
        std::fs::copy(own("deploy/build-dist"), tree.join("deploy/build-dist")).unwrap();
        let profiles = std::fs::read_to_string(own("Cargo.toml")).unwrap();
        let profiles = profiles.split("\n[profile.dist]\n").nth(1).unwrap().split("\n[").next().unwrap();
        let manifest = format!(
            "[package]\nname = \"memwarden\"\nversion = \"0.0.0\"\nedition = \"2024\"\n\n[workspace]\n\n\
             [profile.dist]\n{profiles}\n"
        );
        std::fs::write(tree.join("Cargo.toml"), manifest).unwrap();
        std::fs::write(
            tree.join("Cargo.lock"),
            "version = 4\n\n[[package]]\nname = \"memwarden\"\nversion = \"0.0.0\"\n",
        )
        .unwrap();
        std::fs::write(tree.join("src/main.rs"), main).unwrap();
        std::fs::write(tree.join("src/bin/memwarden-lab.rs"), "fn main() {}\n").unwrap();
        Some(Self { _folder: folder, tree })
    }

    fn build(&self) -> Output {
        let mut script = program(self.tree.join("deploy/build-dist"));
        // The flags of the test run do not apply to the script.
        for variable in ["RUSTFLAGS", "CARGO_ENCODED_RUSTFLAGS", "CFLAGS", "CARGO_TARGET_DIR"] {
            script.env_remove(variable);
        }
        script.output().unwrap()
    }

    fn shipped(&self, name: &str) -> PathBuf {
        self.tree.join("target/shipped").join(name)
    }
}

fn own(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(name)
}

/// Its panic names its source file by an absolute path, as in a dependency.
const PANICS: &str = "\
#[path = \"PLACE/src/inner.rs\"]
mod inner;
fn main() {
    inner::fails(std::env::args().count());
}
";
const INNER: &str = "\
#[inline(never)]
pub fn fails(count: usize) {
    assert_eq!(count, 0, \"it panics\");
}
";

#[test]
fn shipped_programs_contain_no_build_path_and_have_separate_debug_lines() {
    let Some(package) = Package::new("") else { return };
    let place = package.tree.to_str().unwrap();
    std::fs::write(package.tree.join("src/main.rs"), PANICS.replace("PLACE", place)).unwrap();
    std::fs::write(package.tree.join("src/inner.rs"), INNER).unwrap();
    let done = package.build();
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));

    for name in ["memwarden", "memwarden.debug", "memwarden-lab", "memwarden-lab.debug"] {
        let bytes = std::fs::read(package.shipped(name)).unwrap();
        let named = bytes.windows(place.len()).any(|part| part == place.as_bytes());
        assert!(!named, "{name} names {place}");
    }
    // The panic has the location, and the backtrace the lines: the program finds the separate file.
    let ran = program(package.shipped("memwarden")).env("RUST_BACKTRACE", "1").output().unwrap();
    let output = String::from_utf8(ran.stderr).unwrap();
    assert!(output.contains("panicked at memwarden/src/inner.rs:3:5"), "{output}");
    let lines = |text: &str| text.matches("src/inner.rs:3").count();
    assert_eq!(lines(&output), 2, "{output}");
    std::fs::rename(package.shipped("memwarden.debug"), package.shipped("elsewhere")).unwrap();
    let ran = program(package.shipped("memwarden")).env("RUST_BACKTRACE", "1").output().unwrap();
    let output = String::from_utf8(ran.stderr).unwrap();
    assert_eq!(lines(&output), 1, "the lines are in the other file: {output}");
    assert!(output.contains("inner::fails"), "the names are not: {output}");

    // A lookup by address: the address of the symbol is the function's first line.
    let symbols = program("nm").arg(package.shipped("memwarden")).output().unwrap();
    let symbols = String::from_utf8(symbols.stdout).unwrap();
    let address =
        symbols.lines().find(|line| line.contains("inner5fails")).unwrap().split(' ').next().unwrap();
    let found =
        program("addr2line").arg("-e").arg(package.shipped("elsewhere")).arg(address).output().unwrap();
    let found = String::from_utf8(found.stdout).unwrap();
    assert_eq!(found, "memwarden/src/inner.rs:2\n");
}

#[test]
fn a_program_that_names_the_machine_is_refused() {
    let Some(package) = Package::new("fn main() {\n    print!(\"{}\", env!(\"CARGO_MANIFEST_DIR\"));\n}\n")
    else {
        return;
    };
    let done = package.build();
    let output = String::from_utf8_lossy(&done.stderr);
    assert!(!done.status.success(), "{output}");
    let place = package.tree.display();
    assert!(
        output.contains(&format!("target/shipped/memwarden names {place}, a path of this machine")),
        "{output}"
    );
}
