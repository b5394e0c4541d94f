//! Which files of a folder are snapshots, and whose.

use std::collections::BTreeMap;
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::host::user_files::Folder;

/// Entries of a folder beyond these are not looked at.
const ENTRIES: usize = 20_000;
/// Ranks of a folder beyond these are not looked at; a node has at most some dozens.
const RANKS: usize = 256;

/// What tells one state of a file from another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Stamp {
    pub(super) inode: u64,
    pub(super) bytes: u64,
    /// Since 1970.
    pub(super) written: Duration,
}

/// The newest file of each rank; the rank is empty where the name has none.
///
/// # Errors
/// The operating system's, where the folder cannot be listed.
pub(super) fn newest(folder: &Path) -> io::Result<BTreeMap<String, (PathBuf, Stamp)>> {
    let mut found: BTreeMap<String, (PathBuf, Stamp)> = BTreeMap::new();
    let open = Folder::open(folder)?;
    for entry in open.names(ENTRIES)? {
        let Some(name) = entry.to_str() else { continue };
        let Some(stem) = name.strip_suffix(".pickle").or_else(|| name.strip_suffix(".pkl")) else { continue };
        // Of the entry itself: where a link leads is not ours to follow.
        let Ok(meta) = open.entry(&entry) else { continue };
        if !meta.is_file() {
            continue;
        }
        let stamp = Stamp { inode: meta.ino(), bytes: meta.len(), written: written(&meta) };
        let rank = rank(stem).map(str::to_owned).unwrap_or_default();
        if found.len() >= RANKS && !found.contains_key(&rank) {
            continue;
        }
        let newer = found.get(&rank).is_none_or(|(_, known)| known.written < stamp.written);
        if newer {
            found.insert(rank, (folder.join(name), stamp));
        }
    }
    Ok(found)
}

fn written(meta: &std::fs::Metadata) -> Duration {
    let seconds = u64::try_from(meta.mtime()).unwrap_or(0);
    Duration::new(seconds, u32::try_from(meta.mtime_nsec()).unwrap_or(0))
}

/// The number after `rank` in a file's name: `oom_rank-3_snapshot`, `rank3`, `snapshot.rank_12`.
fn rank(stem: &str) -> Option<&str> {
    let after = stem.rsplit_once("rank").map(|(_, after)| after.trim_start_matches(['-', '_', '.', '=']))?;
    let digits = after.bytes().take_while(u8::is_ascii_digit).count();
    (1..=6).contains(&digits).then(|| &after[..digits])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rank_is_found_in_a_name() {
        let cases = [
            ("oom_rank-3_snapshot", Some("3")),
            ("rank12", Some("12")),
            ("snapshot.rank_0", Some("0")),
            ("snapshot", None),
            ("ranked", None),
            ("rank1234567", None),
            ("frank7", Some("7")),
        ];
        for (name, expected) in cases {
            assert_eq!(rank(name), expected, "{name}");
        }
    }

    #[test]
    fn the_newest_of_each_rank_counts_and_links_do_not() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str, seconds: u64| {
            let path = folder.path().join(name);
            let file = std::fs::File::create(&path).unwrap();
            file.set_modified(std::time::UNIX_EPOCH + Duration::from_secs(seconds)).unwrap();
        };
        at("a_rank0.pickle", 100);
        at("b_rank0.pickle", 300);
        at("c_rank0.pickle", 200);
        at("rank1.pkl", 5);
        at("rank2.pickle.tmp", 5);
        std::fs::create_dir(folder.path().join("rank3.pickle")).unwrap();
        std::os::unix::fs::symlink("/etc/passwd", folder.path().join("rank4.pickle")).unwrap();
        let found = newest(folder.path()).unwrap();
        let names: Vec<_> = found
            .iter()
            .map(|(rank, (path, _))| (rank.as_str(), path.file_name().unwrap().to_str().unwrap()))
            .collect();
        assert_eq!(names, [("0", "b_rank0.pickle"), ("1", "rank1.pkl")]);
        assert!(newest(&folder.path().join("none")).is_err());
    }
}
