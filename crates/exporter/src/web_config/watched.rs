//! Detects changes of files by their metadata.

use std::fs;
use std::io::{self, Read};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use tokio::time::Instant;

/// Maximum file size in bytes; certificates and user lists have a few KiB.
const LARGEST: u64 = 1 << 20;
/// Two writes within one tick of the file system's clock (at most 10 ms) cannot be distinguished by metadata; until a
/// reading is this old, the content is compared instead.
const SETTLED: Duration = Duration::from_millis(100);

/// The files that a configuration was read from.
#[derive(Debug, Default)]
pub(super) struct Files {
    read: Vec<Watched>,
}

#[derive(Debug)]
struct Watched {
    path: PathBuf,
    stamp: Option<Stamp>,
    /// Absent where the file could not be read.
    content: Option<Vec<u8>>,
    at: Instant,
    settled: bool,
}

/// The metadata that changes with a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Stamp {
    device: u64,
    inode: u64,
    size: u64,
    modified: (i64, i64),
    changed: (i64, i64),
}

impl Files {
    /// Reads a file and records its metadata and content.
    pub(super) fn read(&mut self, path: &Path) -> io::Result<Vec<u8>> {
        // The metadata is read before the content, so that a change in between is detected.
        let stamp = stamp(path);
        let content = content(path);
        self.read.push(Watched {
            path: path.to_owned(),
            stamp,
            content: content.as_ref().ok().cloned(),
            at: Instant::now(),
            settled: false,
        });
        content
    }

    /// Whether any file has changed since it was read.
    pub(super) fn changed(&mut self) -> bool {
        self.read.iter_mut().any(Watched::changed)
    }
}

impl Watched {
    fn changed(&mut self) -> bool {
        let stamp = stamp(&self.path);
        let same = stamp == self.stamp;
        if same && self.settled {
            return false;
        }
        let settled = same && self.at.elapsed() >= SETTLED;
        if content(&self.path).ok() != self.content {
            return true;
        }
        if !same {
            (self.stamp, self.at) = (stamp, Instant::now());
        }
        self.settled = settled;
        false
    }
}

fn stamp(path: &Path) -> Option<Stamp> {
    let metadata = fs::metadata(path).ok()?;
    Some(Stamp {
        device: metadata.dev(),
        inode: metadata.ino(),
        size: metadata.size(),
        modified: (metadata.mtime(), metadata.mtime_nsec()),
        changed: (metadata.ctime(), metadata.ctime_nsec()),
    })
}

fn content(path: &Path) -> io::Result<Vec<u8>> {
    let mut content = Vec::new();
    fs::File::open(path)?.take(LARGEST + 1).read_to_end(&mut content)?;
    if content.len() as u64 > LARGEST {
        return Err(io::Error::new(io::ErrorKind::InvalidData, format!("more than {LARGEST} bytes")));
    }
    Ok(content)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn every_way_to_change_is_seen() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("f");
        let reread = || {
            let mut files = Files::default();
            let _ = files.read(&path);
            files
        };
        let mut files = reread();
        assert!(!files.changed(), "still missing");
        fs::write(&path, "one").unwrap();
        assert!(files.changed(), "appeared");
        for settle in [false, true] {
            files = reread();
            assert!(!files.changed());
            if settle {
                tokio::time::advance(SETTLED).await;
                assert!(!files.changed());
            }
            // The same size, at once: the file system's clock may not have moved.
            fs::write(&path, if settle { "two" } else { "six" }).unwrap();
            if !settle {
                assert!(files.changed(), "rewritten");
            }
            files = reread();
            let other = folder.path().join("g");
            fs::write(&other, "ten").unwrap();
            fs::rename(&other, &path).unwrap();
            assert!(files.changed(), "replaced");
        }
        files = reread();
        fs::write(&path, "ten").unwrap();
        assert!(!files.changed(), "touched only");
        fs::remove_file(&path).unwrap();
        assert!(files.changed(), "gone");
    }
}
