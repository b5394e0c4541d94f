//! Sets the commit of the build: `MEMWARDEN_COMMIT` where a packager sets it, else the commit that is checked out, else
//! `unknown`.

#[path = "build/commit.rs"]
mod commit;

use std::path::Path;

fn main() -> Result<(), String> {
    println!("cargo::rerun-if-env-changed=MEMWARDEN_COMMIT");
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-changed=build/commit.rs");
    let given = std::env::var_os("MEMWARDEN_COMMIT").unwrap_or_default();
    let commit = match commit::given(&given.to_string_lossy())? {
        Some(given) => Some(given),
        None => {
            let tree = std::env::var_os("CARGO_MANIFEST_DIR").ok_or("cargo sets CARGO_MANIFEST_DIR")?;
            let found = commit::find(Path::new(&tree));
            for path in &found.watched {
                println!("cargo::rerun-if-changed={}", path.display());
            }
            found.commit
        }
    };
    println!("cargo::rustc-env=MEMWARDEN_COMMIT={}", commit.as_deref().unwrap_or("unknown"));
    Ok(())
}
