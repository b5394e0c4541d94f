//! Which files of a folder are snapshots, and whose.

use std::collections::BTreeMap;
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::host::user_files::Folder;
use crate::model::fair;
use crate::model::shortage::Shortage;

/// Entries of a folder beyond these are not looked at.
const ENTRIES: usize = 100_000;
/// Ranks of a folder beyond these are not looked at, of whoever has most; a node has at most some dozens.
const RANKS: usize = 256;

/// What tells one state of a file from another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Stamp {
    pub(super) inode: u64,
    pub(super) bytes: u64,
    /// Since 1970.
    pub(super) written: Duration,
}

/// What there is in a folder.
#[derive(Debug, Default)]
pub(super) struct Listed {
    /// The newest file of each rank; the rank is empty where the name has none.
    pub(super) newest: BTreeMap<String, (PathBuf, Stamp)>,
    /// What there was no room for.
    pub(super) left_out: Vec<Shortage>,
}

/// Looks into a folder.
///
/// # Errors
/// The operating system's, where the folder cannot be listed.
pub(super) fn look(folder: &Path) -> io::Result<Listed> {
    let mut found: BTreeMap<String, (PathBuf, Stamp, u32)> = BTreeMap::new();
    let mut files = BTreeMap::<u32, usize>::new();
    let open = Folder::open(folder)?;
    for (place, entry) in open.names(ENTRIES + 1)?.into_iter().enumerate() {
        if place == ENTRIES {
            let user = files.into_iter().max_by_key(|(_, files)| *files).map(|(user, _)| user);
            let unseen = Shortage { limit: "snapshot_entries", user, left_out: 1, most: ENTRIES as u64 };
            return Ok(divide(found, vec![unseen]));
        }
        let Some(name) = entry.to_str() else { continue };
        let Some(stem) = name.strip_suffix(".pickle").or_else(|| name.strip_suffix(".pkl")) else { continue };
        // Of the entry itself: where a link leads is not ours to follow.
        let Ok(meta) = open.entry(&entry) else { continue };
        if !meta.is_file() {
            continue;
        }
        let stamp = Stamp { inode: meta.ino(), bytes: meta.len(), written: written(&meta) };
        let rank = rank(stem).map(str::to_owned).unwrap_or_default();
        *files.entry(meta.uid()).or_default() += 1;
        let newer = found.get(&rank).is_none_or(|(_, known, _)| known.written < stamp.written);
        if newer {
            found.insert(rank, (folder.join(name), stamp, meta.uid()));
        }
    }
    Ok(divide(found, Vec::new()))
}

/// Leaves each user its share of the ranks.
fn divide(found: BTreeMap<String, (PathBuf, Stamp, u32)>, mut left_out: Vec<Shortage>) -> Listed {
    let owners: Vec<u32> = found.values().map(|(_, _, user)| *user).collect();
    let mut newest = BTreeMap::new();
    for ((rank, (path, stamp, user)), kept) in found.into_iter().zip(fair::divide(&owners, RANKS)) {
        if kept {
            newest.insert(rank, (path, stamp));
        } else {
            let limit = "snapshot_ranks";
            left_out.push(Shortage { limit, user: Some(user), left_out: 1, most: RANKS as u64 });
        }
    }
    Listed { newest, left_out }
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
        let found = look(folder.path()).unwrap().newest;
        let names: Vec<_> = found
            .iter()
            .map(|(rank, (path, _))| (rank.as_str(), path.file_name().unwrap().to_str().unwrap()))
            .collect();
        assert_eq!(names, [("0", "b_rank0.pickle"), ("1", "rank1.pkl")]);
        assert!(look(&folder.path().join("none")).is_err());
    }

    #[test]
    fn one_user_leaves_room_for_anothers_ranks() {
        let stamp = |user: u32| (PathBuf::new(), Stamp { inode: 1, bytes: 1, written: Duration::ZERO }, user);
        let mut found: BTreeMap<_, _> = (0..300).map(|rank| (format!("{rank:04}"), stamp(61_002))).collect();
        found.insert("9999".to_owned(), stamp(61_001));
        let Listed { newest, left_out } = divide(found, Vec::new());
        assert!(newest.contains_key("9999") && newest.len() == RANKS);
        assert_eq!(left_out.len(), 45);
        assert!(left_out.iter().all(|shortage| shortage.user == Some(61_002)));
    }
}
