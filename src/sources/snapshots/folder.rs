//! Finds the snapshots in a folder, and their users.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::host::user_files::Folder;
use crate::model::fair;
use crate::model::shortage::Shortage;

/// Most entries of a folder that are read.
const ENTRIES: usize = 100_000;
/// Most ranks of a folder; beyond it, ranks of the user with the most are left out. A node has some dozens at most.
const RANKS: usize = 256;

/// Identifies one state of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Stamp {
    pub(super) inode: u64,
    pub(super) bytes: u64,
    /// Modification time since 1970.
    pub(super) written: Duration,
}

/// The newest file of one rank.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Newest {
    pub(super) path: PathBuf,
    pub(super) stamp: Stamp,
    /// The owner of the file.
    pub(super) user: u32,
}

/// Whether a snapshot of a rank that belongs to `user` is accepted. In a folder that several users can write
/// (`shared`), the user must be that of the rank's process or, if no process is known, root or the folder's owner.
/// In a folder that one user can write, it must be that user or root, whatever rank other processes report.
fn is_accepted(process: Option<u32>, (folder, shared): (u32, bool), user: u32) -> bool {
    match process.filter(|_| shared) {
        Some(owner) => user == owner,
        None => user == 0 || user == folder,
    }
}

#[derive(Debug, Default)]
pub(super) struct Listed {
    /// The newest file of each rank; the rank is empty if the file name has none.
    pub(super) newest: BTreeMap<String, Newest>,
    /// Number of snapshots ignored because of their owner.
    pub(super) of_others: u64,
    /// Entries and ranks beyond the limits.
    pub(super) left_out: Vec<Shortage>,
}

/// Lists a folder; `owners` are the users of the ranks' processes, as far as they are known.
pub(super) fn look(folder: &Path, owners: &BTreeMap<String, u32>) -> io::Result<Listed> {
    let mut found: BTreeMap<String, Newest> = BTreeMap::new();
    let mut of_others = 0;
    let mut files = BTreeMap::<u32, usize>::new();
    let open = Folder::open(folder)?;
    let status = open.entry(OsStr::new("."))?;
    // The permissions of an access control list are in the group's bits.
    let rule = (status.uid(), status.mode() & 0o022 != 0);
    for (place, entry) in open.names(ENTRIES + 1)?.into_iter().enumerate() {
        if place == ENTRIES {
            let user = files.into_iter().max_by_key(|(_, files)| *files).map(|(user, _)| user);
            let unseen = Shortage { limit: "snapshot_entries", user, left_out: 1, most: ENTRIES as u64 };
            return Ok(Listed { of_others, ..divide(found, vec![unseen]) });
        }
        let Some(name) = entry.to_str() else { continue };
        let Some(stem) = name.strip_suffix(".pickle").or_else(|| name.strip_suffix(".pkl")) else { continue };
        // Metadata of the entry itself: symbolic links are not followed.
        let Ok(meta) = open.entry(&entry) else { continue };
        if !meta.is_file() {
            continue;
        }
        let stamp = Stamp { inode: meta.ino(), bytes: meta.len(), written: written(&meta) };
        let rank = rank(stem).map(str::to_owned).unwrap_or_default();
        let user = meta.uid();
        *files.entry(user).or_default() += 1;
        if !is_accepted(owners.get(&rank).copied(), rule, user) {
            of_others += 1;
            continue;
        }
        let newer = found.get(&rank).is_none_or(|known| known.stamp.written < stamp.written);
        if newer {
            found.insert(rank, Newest { path: folder.join(name), stamp, user });
        }
    }
    Ok(Listed { of_others, ..divide(found, Vec::new()) })
}

/// Limits the ranks, fairly between users.
fn divide(found: BTreeMap<String, Newest>, mut left_out: Vec<Shortage>) -> Listed {
    let (newest, beyond) = fair::split(found.into_iter().collect(), RANKS, |(_, file)| file.user);
    left_out.extend(beyond.into_iter().map(|(_, file)| {
        let (limit, user) = ("snapshot_ranks", Some(file.user));
        Shortage { limit, user, left_out: 1, most: RANKS as u64 }
    }));
    Listed { newest: newest.into_iter().collect(), left_out, ..Listed::default() }
}

fn written(meta: &std::fs::Metadata) -> Duration {
    let seconds = u64::try_from(meta.mtime()).unwrap_or(0);
    Duration::new(seconds, u32::try_from(meta.mtime_nsec()).unwrap_or(0))
}

/// The number after `rank` in a file name: `oom_rank-3_snapshot`, `rank3`, `snapshot.rank_12`.
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
        let none = BTreeMap::new();
        let found = look(folder.path(), &none).unwrap().newest;
        let names: Vec<_> = found
            .iter()
            .map(|(rank, file)| (rank.as_str(), file.path.file_name().unwrap().to_str().unwrap()))
            .collect();
        assert_eq!(names, [("0", "b_rank0.pickle"), ("1", "rank1.pkl")]);
        assert!(look(&folder.path().join("none"), &none).is_err());
    }

    #[test]
    fn in_a_shared_folder_the_snapshot_of_the_ranks_user_counts() {
        let owners = BTreeMap::from([("0".to_owned(), 61_001)]);
        let counts = |shared, folder, rank, user| {
            is_accepted(owners.get::<str>(rank).copied(), (folder, shared), user)
        };
        let (alice, mallory) = (61_001, 61_002);
        // Like /scratch/snapshots with mode 1777.
        assert_eq!([alice, mallory, 0].map(|user| counts(true, 0, "0", user)), [true, false, false]);
        assert_eq!([alice, mallory, 0].map(|user| counts(true, 0, "1", user)), [false, false, true]);
        assert_eq!([alice, mallory, 0].map(|user| counts(true, alice, "1", user)), [true, false, true]);
        // A folder that only one user can write: another user's process that reports rank 0 has no effect.
        assert_eq!([alice, mallory, 0].map(|user| counts(false, mallory, "0", user)), [false, true, true]);
    }

    #[test]
    fn a_newer_file_of_another_user_is_ignored_and_counted() {
        use std::os::unix::fs::{PermissionsExt as _, chown};
        let folder = tempfile::tempdir().unwrap();
        std::fs::set_permissions(folder.path(), std::fs::Permissions::from_mode(0o1777)).unwrap();
        let own = rustix::process::geteuid().as_raw();
        let at = |name: &str, seconds: u64| {
            let file = std::fs::File::create(folder.path().join(name)).unwrap();
            file.set_modified(std::time::UNIX_EPOCH + Duration::from_secs(seconds)).unwrap();
        };
        at("old_rank0.pickle", 100);
        at("new_rank0.pickle", 200);
        // Only root can change the owner of a file; any other user who runs this test is not the user of rank 1.
        let newest = if own == 0 {
            chown(folder.path().join("new_rank0.pickle"), Some(61_002), None).unwrap();
            "old_rank0.pickle"
        } else {
            "new_rank0.pickle"
        };
        at("rank1.pickle", 300);
        let owners = BTreeMap::from([("0".to_owned(), own), ("1".to_owned(), 61_003)]);
        let found = look(folder.path(), &owners).unwrap();
        let names: Vec<_> = found.newest.values().map(|file| file.path.file_name().unwrap()).collect();
        assert_eq!(names, [newest]);
        assert_eq!(found.of_others, 1 + u64::from(own == 0));
    }

    #[test]
    fn one_user_leaves_places_for_anothers_ranks() {
        let stamp = |user: u32| Newest {
            path: PathBuf::new(),
            stamp: Stamp { inode: 1, bytes: 1, written: Duration::ZERO },
            user,
        };
        let mut found: BTreeMap<_, _> = (0..300).map(|rank| (format!("{rank:04}"), stamp(61_002))).collect();
        found.insert("9999".to_owned(), stamp(61_001));
        let Listed { newest, left_out, .. } = divide(found, Vec::new());
        assert!(newest.contains_key("9999") && newest.len() == RANKS);
        assert_eq!(left_out.len(), 45);
        assert!(left_out.iter().all(|shortage| shortage.user == Some(61_002)));
    }
}
