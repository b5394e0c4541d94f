//! Path of a log, with the wildcards `*` and `?` in its last component.

use std::ffi::OsString;
use std::io;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use super::file::Refusal;
use crate::host::user_files::{self, Folder};
use crate::model::shortage::Shortage;
use crate::model::{fair, pattern};

/// Most links that are remembered as not followed.
const MOST_REFUSED: usize = 256;
/// Most entries of a folder that are read; files beyond it are not found.
const MOST_ENTRIES: usize = 16_384;

/// A configured path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pattern {
    path: PathBuf,
    /// Whether the last component has wildcards.
    wild: bool,
}

/// The files of one path.
#[derive(Debug, Default)]
pub struct Files {
    pub found: Vec<PathBuf>,
    /// Files beyond the limit.
    pub left_out: Vec<Shortage>,
    /// Links that are not followed, with the reason.
    pub refused: Vec<(PathBuf, Refusal)>,
}

impl Pattern {
    /// Parses a path; the error is a phrase.
    pub fn new(path: PathBuf) -> Result<Self, &'static str> {
        let Some(name) = path.file_name() else { return Err("must be the path of a file") };
        let folder = path.parent().unwrap_or(Path::new(""));
        if !path.is_absolute() {
            return Err("must be absolute");
        }
        if is_wild(folder.as_os_str().as_bytes()) {
            return Err("may have wildcards only in its last component");
        }
        let wild = is_wild(name.as_bytes());
        Ok(Self { path, wild })
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Whether it has wildcards.
    pub const fn is_wild(&self) -> bool {
        self.wild
    }

    /// The files that match: if there are more than `most`, the most recently written ones of each user. A path without
    /// wildcards is returned without checking that it exists.
    pub fn files(&self, most: usize) -> io::Result<Files> {
        if !self.wild {
            return Ok(Files { found: vec![self.path.clone()], ..Files::default() });
        }
        let folder = self.path.parent().unwrap_or(Path::new("/"));
        let wanted = self.path.file_name().map(|name| name.as_bytes()).unwrap_or_default();
        let mut found: Vec<(SystemTime, OsString, u32)> = Vec::new();
        let mut refused = Vec::new();
        let open = Folder::open(folder)?;
        for name in open.names(MOST_ENTRIES)? {
            if !pattern::fits_bytes(wanted, name.as_bytes()) {
                continue;
            }
            // Skips files that were removed meanwhile, and entries that are not regular files or that a user
            // could have linked.
            let Ok(status) = open.entry(&name) else { continue };
            let followed =
                if status.is_symlink() { user_files::status(&folder.join(&name)) } else { Ok(status) };
            let status = match followed {
                Ok(status) => status,
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                Err(error) => {
                    if refused.len() < MOST_REFUSED {
                        refused.push((folder.join(&name), Refusal::of(&error)));
                    }
                    continue;
                }
            };
            if status.is_file() {
                found.push((status.modified().unwrap_or(SystemTime::UNIX_EPOCH), name, status.uid()));
            }
        }
        found.sort_by(|one, other| other.0.cmp(&one.0).then_with(|| one.1.cmp(&other.1)));
        let (mut found, left_out) = fair::split(found, most, |(_, _, user)| *user);
        let shortages = left_out.into_iter().map(|(_, _, user)| Shortage {
            limit: "log_files",
            user: Some(user),
            left_out: 1,
            most: most as u64,
        });
        let left_out = shortages.collect();
        found.sort_by(|one, other| one.1.cmp(&other.1));
        Ok(Files {
            found: found.into_iter().map(|(_, name, _)| folder.join(name)).collect(),
            left_out,
            refused,
        })
    }
}

fn is_wild(name: &[u8]) -> bool {
    name.iter().any(|byte| matches!(byte, b'*' | b'?'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_match_names() {
        for (pattern, name, expected) in [
            ("worker_*.log", "worker_3.log", true),
            ("worker_*.log", "worker_3.log.1", false),
            ("*.log", ".log", true),
            ("?", "", false),
            ("a*b*c", "aXbYbZc", true),
            ("", "", true),
        ] {
            assert_eq!(
                crate::model::pattern::fits_bytes(pattern.as_bytes(), name.as_bytes()),
                expected,
                "{pattern} {name}"
            );
        }
    }

    #[test]
    fn wildcards_belong_into_the_last_component() {
        let wild = |path: &str| Pattern::new(path.into()).map(|pattern| pattern.wild);
        assert_eq!(wild("/var/log/train-*.log"), Ok(true));
        assert_eq!(wild("/var/log/train.log"), Ok(false));
        assert_eq!(wild("/var/*/train.log"), Err("may have wildcards only in its last component"));
        assert_eq!(wild("train.log"), Err("must be absolute"));
        assert_eq!(wild("/"), Err("must be the path of a file"));
    }

    #[test]
    fn the_files_written_last_are_followed() {
        let folder = tempfile::tempdir().unwrap();
        for (name, second) in [("a.log", 30), ("b.log", 10), ("c.log", 20), ("d.txt", 40)] {
            let file = std::fs::File::create(folder.path().join(name)).unwrap();
            file.set_modified(SystemTime::UNIX_EPOCH + std::time::Duration::from_secs(second)).unwrap();
        }
        std::fs::create_dir(folder.path().join("e.log")).unwrap();
        let found = Pattern::new(folder.path().join("*.log")).unwrap().files(2).unwrap().found;
        assert_eq!(found, [folder.path().join("a.log"), folder.path().join("c.log")]);
        if rustix::process::geteuid().is_root() {
            // The file of another user, which is older than both, keeps its share.
            let other = folder.path().join("b.log");
            std::os::unix::fs::chown(&other, Some(61_001), None).unwrap();
            let files = Pattern::new(folder.path().join("*.log")).unwrap().files(2).unwrap();
            assert_eq!(files.found, [folder.path().join("a.log"), other]);
            assert_eq!(files.left_out.len(), 1);
            assert_eq!(files.left_out[0].user, Some(0));
        }
        let none = Pattern::new(folder.path().join("none/*.log")).unwrap();
        assert_eq!(none.files(2).unwrap_err().kind(), io::ErrorKind::NotFound);
    }
}
