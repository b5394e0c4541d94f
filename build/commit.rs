//! The commit of a source tree, read from the files of git without git.
//!
//! `build.rs` and the tests include this file: a build script has no tests.

use std::fs;
use std::path::{Path, PathBuf};

/// Maximum length of the commit that a packager may give.
const LONGEST: usize = 64;

/// The commit and the files that determine it.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Found {
    /// The object name in hexadecimal; nothing if the tree is not a checkout.
    pub(crate) commit: Option<String>,
    /// The files and folders that change when another commit is checked out. All of them exist: otherwise Cargo runs
    /// the build script at every build.
    pub(crate) watched: Vec<PathBuf>,
}

/// Finds the commit that is checked out at `tree`.
///
/// A repository in a parent folder of `tree` is ignored: a tree that was unpacked from an archive in another project's
/// checkout is not of that project's commit.
pub(crate) fn find(tree: &Path) -> Found {
    let mut found = Found::default();
    let Some(git) = git_folder(tree) else { return found };
    let head = git.join("HEAD");
    let Some(text) = read(&head) else { return found };
    found.watched.push(head);
    let Some(reference) = text.strip_prefix("ref:").map(str::trim) else {
        found.commit = object_name(&text);
        return found;
    };
    // Branches belong to the repository, not to the worktree (gitrepository-layout(5)).
    let common = read(&git.join("commondir")).map_or_else(|| git.clone(), |folder| git.join(folder));
    let loose = common.join(reference);
    if let Some(text) = read(&loose) {
        found.watched.push(loose);
        found.commit = object_name(&text);
        return found;
    }
    // The next commit makes the loose file, in a folder that need not be there yet.
    found.watched.extend(loose.ancestors().skip(1).find(|folder| folder.is_dir()).map(Path::to_path_buf));
    let packed = common.join("packed-refs");
    if let Some(text) = read(&packed) {
        found.watched.push(packed);
        let mut lines = text.lines().filter_map(|line| line.split_once(' '));
        found.commit = lines.find(|(_, name)| *name == reference).and_then(|(commit, _)| object_name(commit));
    }
    found
}

/// The repository's folder: `.git` itself, or the folder that the file `.git` of a worktree or submodule names.
fn git_folder(tree: &Path) -> Option<PathBuf> {
    let git = tree.join(".git");
    if git.is_dir() {
        return Some(git);
    }
    let text = read(&git)?;
    Some(tree.join(text.strip_prefix("gitdir:")?.trim()))
}

fn read(file: &Path) -> Option<String> {
    fs::read_to_string(file).ok().map(|text| text.trim().to_owned())
}

/// The text, where it is a full object name of SHA-1 or SHA-256.
fn object_name(text: &str) -> Option<String> {
    let whole = matches!(text.len(), 40 | 64) && text.bytes().all(|byte| byte.is_ascii_hexdigit());
    whole.then(|| text.to_ascii_lowercase())
}

/// Checks the commit that a packager gives. It becomes a value of a label and a part of one line.
///
/// # Errors
/// A sentence on the problem.
pub(crate) fn given(text: &str) -> Result<Option<String>, String> {
    let text = text.trim();
    if text.is_empty() {
        return Ok(None);
    }
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_' | b'+' | b'-' | b'/');
    if text.len() > LONGEST || !text.bytes().all(plain) {
        return Err(format!(
            "MEMWARDEN_COMMIT must be at most {LONGEST} letters, digits and `.`, `_`, `+`, `-`, `/`, not {text:?}"
        ));
    }
    Ok(Some(text.to_owned()))
}
