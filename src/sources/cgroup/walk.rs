//! Finds the cgroups: a walk of the tree that visits a bounded number of folders at each tick.

use std::collections::{BTreeMap, VecDeque};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use super::files::is_gone;
use crate::host::cgroup::{Hierarchy, open, read};
use crate::host::fs;
use crate::host::room::group::number;
use crate::model::source::SourceError;
use crate::model::subordinate::payer;

/// Folders visited at one tick: at about 15 µs each, less than 10 ms.
const PER_TICK: usize = 500;

/// Folders visited in one walk; on a node with more, deeper ones are only counted.
pub const PER_WALK: usize = 20_000;

/// Folders of one unprivileged user visited in one walk.
const PER_USER: usize = PER_WALK / 10;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FoundCgroup {
    pub dir: PathBuf,
    /// Its path from the root, `/` for the root.
    pub path: String,
    /// Its usage, for sorting by size; absent if it could not be read or is not provided for the root.
    pub usage: Option<u64>,
    /// Its user: the owner of the first folder on its path that belongs to a user, or the user in a folder
    /// name; otherwise root.
    pub user: u32,
}

/// A folder that is to be visited.
#[derive(Debug)]
struct Next {
    dir: PathBuf,
    path: String,
    depth: u64,
    /// The user of the parent folder.
    above: u32,
}

/// One walk, breadth first, so that folders near the root are found first.
#[derive(Debug)]
pub struct Walk {
    hierarchy: Hierarchy,
    depth: u64,
    queue: VecDeque<Next>,
    /// Device and owner of the topmost folder.
    root: Option<(u64, u32)>,
    /// Number of folders found, by unprivileged user.
    of_users: BTreeMap<u32, usize>,
    pub found: Vec<FoundCgroup>,
    /// Folders that were left out because of the limits, by user; a lower bound.
    pub unvisited: BTreeMap<u32, u64>,
    /// The first folder or file that could not be read.
    pub error: Option<SourceError>,
}

impl Walk {
    /// A walk of the levels up to `depth` below the root.
    pub fn new(hierarchy: Hierarchy, depth: u64) -> Self {
        let root = Next { dir: hierarchy.root.clone(), path: "/".to_owned(), depth: 0, above: 0 };
        Self {
            hierarchy,
            depth,
            queue: VecDeque::from([root]),
            root: None,
            of_users: BTreeMap::new(),
            found: Vec::new(),
            unvisited: BTreeMap::new(),
            error: None,
        }
    }

    /// Continues for one tick; returns true when the walk is complete.
    pub fn step(&mut self) -> bool {
        for _ in 0..PER_TICK {
            let Some(next) = self.queue.pop_front() else { break };
            self.visit(next);
        }
        self.queue.is_empty()
    }

    fn visit(&mut self, next: Next) {
        let Next { dir, path, depth, above } = next;
        let is_root = depth == 0;
        let metadata = if is_root { std::fs::metadata(&dir) } else { std::fs::symlink_metadata(&dir) };
        let metadata = match metadata {
            Ok(metadata) => metadata,
            Err(error) => return self.note(&dir, &error),
        };
        // Another file system that is mounted inside is not part of this hierarchy.
        let (device, lawful) = *self.root.get_or_insert((metadata.dev(), metadata.uid()));
        if !metadata.is_dir() || device != metadata.dev() {
            return;
        }
        let owner = if metadata.uid() == lawful { 0 } else { payer(metadata.uid()) };
        let user = [above, owner].into_iter().find(|user| *user != 0).or_else(|| named(&path)).unwrap_or(0);
        let usage_file = dir.join(self.hierarchy.version.usage_file());
        let mut text = Vec::new();
        let usage = match open(&usage_file).and_then(|file| read(&file, &mut text)) {
            Ok(()) => number(&text),
            // If the controller is not enabled here, it cannot be enabled below.
            Err(error) if is_gone(&error) && !is_root => return,
            Err(error) => {
                self.note(&usage_file, &error);
                None
            }
        };
        // The link count of a folder includes each folder below it, so a count of two means that there
        // are none; for most cgroups this avoids listing fifty files.
        if depth < self.depth && metadata.nlink() != 2 {
            self.list(&dir, &path, (depth, user));
        }
        self.found.push(FoundCgroup { dir, path, usage, user });
    }

    /// Records the first error; a cgroup that was removed meanwhile is none.
    fn note(&mut self, path: &Path, error: &std::io::Error) {
        if !is_gone(error) {
            self.error.get_or_insert_with(|| fs::failed(path, error));
        }
    }

    fn list(&mut self, dir: &Path, path: &str, (depth, user): (u64, u32)) {
        let entries = match std::fs::read_dir(dir) {
            Ok(entries) => entries,
            Err(error) => return self.note(dir, &error),
        };
        for entry in entries {
            let entry = match entry {
                Ok(entry) => entry,
                Err(error) => return self.note(dir, &error),
            };
            if !entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                continue;
            }
            let of_user = self.of_users.entry(user).or_default();
            let full = self.queue.len() + self.found.len() >= PER_WALK;
            if full || (user != 0 && *of_user >= PER_USER) {
                *self.unvisited.entry(user).or_default() += 1;
                return;
            }
            *of_user += 1;
            let name = entry.file_name();
            let parent = path.strip_suffix('/').unwrap_or(path);
            let path = format!("{parent}/{}", name.to_string_lossy());
            self.queue.push_back(Next { dir: dir.join(&name), path, depth: depth + 1, above: user });
        }
    }
}

/// The user in the name of a manager's folder: Slurm's `uid_1000`, systemd's `user-1000.slice`.
fn named(path: &str) -> Option<u32> {
    let name = path.rsplit('/').next()?;
    let systemd = || name.strip_prefix("user-")?.strip_suffix(".slice");
    name.strip_prefix("uid_").or_else(systemd)?.parse().ok()
}
