//! Where the program `memwarden-lab` is, which reads files that others wrote, in place of this one.

use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

/// The version of both programs, which are built and installed together.
pub const RELEASE: &str = env!("CARGO_PKG_VERSION");

/// The first argument of the program, which tells it the version of this one.
#[must_use]
pub fn release() -> String {
    format!("--release={RELEASE}")
}

/// Where it can be in place of the folder of this program.
const FOLDER: &str = "/usr/libexec/memwarden";

/// The bit of a folder in which users can create files and not replace those of others, such as `/tmp`.
const STICKY: u32 = 0o1000;

fn is_program(path: &Path) -> bool {
    std::fs::metadata(path).is_ok_and(|file| file.is_file() && file.mode() & 0o111 != 0)
}

/// The path of the program: in the folder of this program's own file, else in `/usr/libexec/memwarden`.
///
/// Nobody can put another program there who could not replace this one too: the folder belongs to root, to the user of this process or
/// to the owner of this program, so that it is not one that a user made in place of a removed one, and it is not sticky.
///
/// # Errors
/// `NotFound` where it is in neither.
pub fn program() -> io::Result<PathBuf> {
    let own = std::env::current_exe()?;
    let beside = own.parent().unwrap_or(&own);
    let owner = std::fs::metadata(&own).map_or(0, |own| own.uid());
    let trusted = [0, rustix::process::geteuid().as_raw(), owner];
    let is_ours = |folder: &Path| {
        std::fs::metadata(folder)
            .is_ok_and(|folder| folder.mode() & STICKY == 0 && trusted.contains(&folder.uid()))
    };
    let folders = [beside, FOLDER.as_ref()].into_iter().filter(|folder| is_ours(folder));
    folders.map(|folder| folder.join("memwarden-lab")).find(|path| is_program(path)).ok_or_else(|| {
        let note = if is_ours(beside) { "" } else { ", which is sticky or belongs to another user," };
        let why = format!(
            "the program memwarden-lab is missing: it is neither in {}{note} nor in {FOLDER}",
            beside.display()
        );
        io::Error::new(io::ErrorKind::NotFound, why)
    })
}
