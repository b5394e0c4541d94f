//! Maps subordinate user ids to their users: the ids that a user may use in its own user namespaces (subuid(5)).
//!
//! Otherwise one user could have tens of thousands of shares in every limit that is divided between users.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use super::fs;
use crate::model::lock::lock;
use crate::model::subordinate::SubordinateIds;
use crate::model::time::Timestamp;

/// Interval between two reads of the files.
const AGAIN: Duration = Duration::from_secs(60);

/// The subordinate ids of the users of this host.
#[derive(Debug, Default)]
pub struct Subordinates {
    /// The password file, in whose folder `subuid` is; absent if no ids are to be mapped.
    passwd: Option<PathBuf>,
    known: Mutex<KnownIds>,
}

#[derive(Debug, Default)]
struct KnownIds {
    read: Option<Timestamp>,
    ids: Arc<SubordinateIds>,
}

impl Subordinates {
    /// The ids in the file `subuid` beside the password file, which is read at the first lookup.
    pub fn new(passwd: &Path) -> Self {
        Self { passwd: Some(passwd.to_path_buf()), known: Mutex::default() }
    }

    /// The user to whom this id belongs: usually itself.
    pub fn owner(&self, uid: u32, now: Timestamp) -> u32 {
        self.ids(now).owner(uid)
    }

    /// The ids of all users.
    pub fn ids(&self, now: Timestamp) -> Arc<SubordinateIds> {
        let mut known = lock(&self.known);
        if let Some(passwd) = &self.passwd
            && known.read.is_none_or(|read| now.since(read) >= AGAIN)
        {
            known.read = Some(now);
            let subuid = fs::read_text(&passwd.with_file_name("subuid")).unwrap_or_default();
            let users =
                if subuid.is_empty() { String::new() } else { fs::read_text(passwd).unwrap_or_default() };
            known.ids = SubordinateIds::new(ranges(&subuid, &users)).into();
        }
        Arc::clone(&known.ids)
    }
}

/// Parses `NAME:FIRST:COUNT`, where the name may be a number. A range that contains a regular user is ignored.
fn ranges(subuid: &str, passwd: &str) -> Vec<(u32, u32, u32)> {
    let user = |line: &str| {
        let mut fields = line.split(':');
        let name = fields.next().filter(|name| !name.is_empty())?.to_owned();
        Some((name, fields.nth(1)?.parse::<u32>().ok()?))
    };
    let users: HashMap<String, u32> = passwd.lines().filter_map(user).collect();
    let range = |line: &str| {
        let mut fields = line.trim().split(':');
        let name = fields.next()?;
        let owner = users.get(name).copied().or_else(|| name.parse().ok())?;
        // Ranges of root are those of the containers of all users (LXD, Incus).
        if owner == 0 {
            return None;
        }
        let (first, count) = (fields.next()?.parse::<u32>().ok()?, fields.next()?.parse::<u32>().ok()?);
        let taken = users.values().any(|uid| uid.checked_sub(first).is_some_and(|n| n < count));
        (!taken).then_some((first, count, owner))
    };
    subuid.lines().filter_map(range).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn subordinate_ids_count_as_their_user() {
        let folder = tempfile::tempdir().unwrap();
        let passwd = folder.path().join("passwd");
        let now = Timestamp::from_secs;
        let subordinates = Subordinates::new(&passwd);
        assert_eq!(subordinates.owner(100_005, now(1)), 100_005, "there are no files");
        std::fs::write(&passwd, "root:x:0:0\nada:x:1000:1::/:/\nbob:x:1001:1::/:/\n").unwrap();
        let subuid = "ada:100000:65536\n# no\nbob:x:9\n1001:165536:65536\nnobody:300000:5\nbob:0:5000\n";
        std::fs::write(folder.path().join("subuid"), subuid).unwrap();
        assert_eq!(subordinates.owner(100_005, now(60)), 100_005, "not read again yet");
        let owner = |uid| subordinates.owner(uid, now(61));
        assert_eq!(
            [owner(100_000), owner(165_535), owner(165_536), owner(231_071)],
            [1000, 1000, 1001, 1001]
        );
        assert_eq!([owner(231_072), owner(300_001), owner(1000), owner(0)], [231_072, 300_001, 1000, 0]);
        assert_eq!(Subordinates::default().owner(100_005, now(1)), 100_005);
    }

    proptest::proptest! {
        #[test]
        fn no_text_panics(subuid in "[a-c0-9:\n]{0,100}", passwd in "[a-c0-9:\n]{0,100}") {
            let _ = ranges(&subuid, &passwd);
        }
    }
}
