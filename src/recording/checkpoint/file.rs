//! Reads checkpoints without evicting pages of a job from the page cache.
//!
//! Pages in the page cache are read from it and stay. Other pages are read without readahead and dropped afterwards.
//! `preadv2(RWF_NOWAIT)` distinguishes them; on a file system without it, files are read normally.

use std::fs::File;
use std::io::{self, IoSliceMut};
use std::num::NonZeroU64;
use std::os::unix::fs::{FileExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::Path;

use rustix::fs::{Advice, OFlags, fadvise};
use rustix::io::{Errno, ReadWriteFlags, preadv2};

use crate::files::parameters::ReadAt;

/// Maximum size of one read from the page cache, in bytes: the data fit into the second-level cache for the scan.
const HOT: usize = 256 << 10;
/// Maximum size of one read from elsewhere, in bytes.
pub(crate) const COLD: usize = 1 << 20;

/// A regular file, open for reading.
#[derive(Debug)]
pub(crate) struct Gentle {
    file: File,
    size: u64,
    /// Identifies the file among others of the same name: device, inode, size, time of the last change.
    identity: [u64; 4],
    page: u64,
}

impl Gentle {
    /// Opens the file. Never blocks on a pipe.
    pub(crate) fn open(path: &Path) -> io::Result<Self> {
        let flags = OFlags::NONBLOCK | OFlags::CLOEXEC;
        let flags = i32::try_from(flags.bits()).unwrap_or(0);
        let file = File::options().read(true).custom_flags(flags).open(path)?;
        let metadata = file.metadata()?;
        if !metadata.is_file() {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "it is not a regular file"));
        }
        // Readahead would fetch pages that cannot be distinguished from the job's. A file system may refuse the advice.
        let _ = fadvise(&file, 0, None, Advice::Random);
        let changed = metadata.mtime_nsec().unsigned_abs() ^ metadata.mtime().unsigned_abs() << 30;
        Ok(Self {
            size: metadata.len(),
            identity: [metadata.dev(), metadata.ino(), metadata.len(), changed],
            page: u64::try_from(rustix::param::page_size()).unwrap_or(4096),
            file,
        })
    }

    pub(crate) const fn identity(&self) -> [u64; 4] {
        self.identity
    }

    /// Reads at least one byte from `offset` on, at most all of `buffer`.
    pub(crate) fn read_some(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        let hot = buffer.len().min(HOT);
        let cached = match preadv2(
            &self.file,
            &mut [IoSliceMut::new(&mut buffer[..hot])],
            offset,
            ReadWriteFlags::NOWAIT,
        ) {
            Ok(read) if read == hot => return Ok(read),
            Ok(read) => read,
            Err(Errno::AGAIN) => 0,
            Err(Errno::INTR) => 0,
            Err(Errno::OPNOTSUPP | Errno::NOSYS | Errno::INVAL) => {
                self.file.read_exact_at(&mut buffer[..hot], offset)?;
                return Ok(hot);
            }
            Err(error) => return Err(error.into()),
        };
        let from = offset + cached as u64;
        let to = self.cold_end(from, offset + buffer.len().min(COLD) as u64);
        let end = usize::try_from(to - offset).unwrap_or(buffer.len()).min(buffer.len());
        self.file.read_exact_at(&mut buffer[cached..end], from)?;
        self.drop_pages(from, to);
        Ok(end)
    }

    /// The end of a read: at a page boundary if possible, so that the next read starts with a separate page.
    fn cold_end(&self, from: u64, to: u64) -> u64 {
        let page_end = to - to % self.page;
        if page_end > from { page_end } else { to }
    }

    /// Drops the pages that were not in the page cache before.
    ///
    /// A page that the next read shares stays: otherwise that read would find it not cached.
    fn drop_pages(&self, from: u64, to: u64) {
        let start = from - from % self.page;
        let end = if to >= self.size { to.next_multiple_of(self.page) } else { to - to % self.page };
        if let Some(len) = end.checked_sub(start).and_then(NonZeroU64::new) {
            // If the advice is refused, the pages stay until the kernel reclaims them.
            let _ = fadvise(&self.file, start, Some(len), Advice::DontNeed);
        }
    }
}

impl ReadAt for Gentle {
    fn size(&self) -> u64 {
        self.size
    }

    fn read_exact_at(&self, mut buffer: &mut [u8], mut offset: u64) -> io::Result<()> {
        while !buffer.is_empty() {
            let read = self.read_some(buffer, offset)?;
            buffer = &mut buffer[read..];
            offset += read as u64;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_byte_is_read_once() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("f");
        let bytes: Vec<u8> = (0..3u32 << 20).map(|n| n.to_le_bytes()[2] ^ n.to_le_bytes()[0]).collect();
        std::fs::write(&path, &bytes).unwrap();
        let file = Gentle::open(&path).unwrap();
        let mut read = vec![0; bytes.len() - 7];
        file.read_exact_at(&mut read, 7).unwrap();
        assert!(read == bytes[7..]);
        let beyond = file.read_exact_at(&mut [0; 8], bytes.len() as u64 - 7).unwrap_err();
        assert_eq!(beyond.kind(), io::ErrorKind::UnexpectedEof);
    }

    /// The pages in the page cache.
    fn cached(path: &Path, pages: u64) -> Vec<bool> {
        let file = File::open(path).unwrap();
        fadvise(&file, 0, None, Advice::Random).unwrap();
        let probe = |page: u64| {
            let mut byte = [0];
            let read = preadv2(&file, &mut [IoSliceMut::new(&mut byte)], page * 4096, ReadWriteFlags::NOWAIT);
            read == Ok(1)
        };
        (0..pages).map(probe).collect()
    }

    /// How many of the job's 512 pages are in the page cache after three readings, and how many others; nothing if the
    /// file system does not drop pages on request.
    fn kept() -> Option<(usize, usize)> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("f");
        std::fs::write(&path, vec![7; 8 << 20]).unwrap();
        let file = File::open(&path).unwrap();
        file.sync_all().unwrap();
        fadvise(&file, 0, None, Advice::DontNeed).unwrap();
        fadvise(&file, 0, None, Advice::Random).unwrap();
        if rustix::param::page_size() != 4096 || cached(&path, 1) == [true] {
            return None;
        }
        // Querying a page fetches it.
        fadvise(&file, 0, None, Advice::DontNeed).unwrap();
        // The pages that the job has read.
        file.read_exact_at(&mut vec![0; 2 << 20], 3 << 20).unwrap();
        let gentle = Gentle::open(&path).unwrap();
        for _ in 0..3 {
            gentle.read_exact_at(&mut vec![0; (8 << 20) - 84], 84).unwrap();
        }
        let found = cached(&path, 8 << 8);
        let (start, end) = (3 << 8, 5 << 8);
        let inside = found[start..end].iter().filter(|cached| **cached).count();
        Some((inside, found.iter().filter(|cached| **cached).count() - inside))
    }

    #[test]
    fn the_page_cache_is_unchanged() {
        // Pages that another CPU holds at this moment are not dropped, or appear not to be cached; on a busy machine
        // this may happen in some tries, but not in all.
        let mut tries = Vec::new();
        for _ in 0..10 {
            let Some((inside, outside)) = kept() else {
                let why = "the file system of the temporary folder does not drop pages on request";
                return crate::skip::skip(why);
            };
            // A read that starts outside the cache and ends in the job's pages drops up to a MiB of them, at the first
            // of its ends.
            if inside >= 255 && outside <= 8 {
                return;
            }
            tries.push((inside, outside));
        }
        panic!("of 512 pages were kept, and left behind: {tries:?}");
    }

    #[test]
    fn only_regular_files_are_accepted() {
        let folder = tempfile::tempdir().unwrap();
        assert!(Gentle::open(folder.path()).is_err());
        assert!(Gentle::open(Path::new("/dev/zero")).is_err());
    }
}
