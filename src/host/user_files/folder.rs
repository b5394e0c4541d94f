//! An open folder in which others may write.

use std::ffi::{OsStr, OsString};
use std::fs::{File, Metadata, Permissions};
use std::io::{self, Write as _};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::Path;

use rustix::fs::{self as rfs, AtFlags, Dir, Mode, OFlags};
use rustix::io::Errno;

use super::walk::{self, Last, Place};
use super::{Refusal, regular};

/// Names that are tried for a new file.
const TRIES: u32 = 16;

/// A folder. What is done in it is done in this one, whatever is put in its place later.
#[derive(Debug)]
pub struct Folder {
    folder: OwnedFd,
    trusted: bool,
}

impl Folder {
    pub(super) const fn of(folder: OwnedFd, trusted: bool) -> Self {
        Self { folder, trusted }
    }

    /// Opens a folder.
    ///
    /// # Errors
    /// A [`Refusal`], or the operating system's.
    pub fn open(path: &Path) -> io::Result<Self> {
        let Place { folder, trusted, name } = walk::place(path, Last::Followed)?;
        Self { folder, trusted }.enter(&name)
    }

    /// Opens a folder, which is made where it is not there, with its parents.
    ///
    /// # Errors
    /// A [`Refusal`], or the operating system's.
    pub fn make(path: &Path) -> io::Result<Self> {
        match (Self::open(path), path.parent(), path.file_name()) {
            (Err(error), Some(parent), Some(name)) if error.kind() == io::ErrorKind::NotFound => {
                Self::make(parent)?.make_inside(name)
            }
            (opened, ..) => opened,
        }
    }

    /// Opens a folder of this folder, which is made where it is not there.
    ///
    /// # Errors
    /// A [`Refusal`], or the operating system's.
    pub fn make_inside(&self, name: impl AsRef<OsStr>) -> io::Result<Self> {
        let name = name.as_ref();
        match rfs::mkdirat(&self.folder, name, Mode::from_raw_mode(0o755)) {
            Ok(()) | Err(Errno::EXIST) => self.enter(name),
            Err(error) => Err(error.into()),
        }
    }

    fn enter(&self, name: &OsStr) -> io::Result<Self> {
        let folder = walk::step(&self.folder, name)?;
        let trusted = self.trusted && walk::is_safe(&folder)?;
        Ok(Self { folder, trusted })
    }

    /// The names of its entries, so many at most.
    ///
    /// # Errors
    /// The operating system's.
    pub fn names(&self, most: usize) -> io::Result<Vec<OsString>> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let listing = rfs::openat(&self.folder, ".", flags, Mode::empty())?;
        let mut names = Vec::new();
        for entry in Dir::new(listing)? {
            let entry = entry?;
            let name = entry.file_name().to_bytes();
            if name != b"." && name != b".." {
                names.push(OsStr::from_bytes(name).to_owned());
            }
            if names.len() >= most {
                break;
            }
        }
        Ok(names)
    }

    /// What an entry is; of a link, the link.
    ///
    /// # Errors
    /// The operating system's.
    pub fn entry(&self, name: &OsStr) -> io::Result<Metadata> {
        walk::entry(&self.folder, name)
    }

    /// Opens a file to append to, which is made where it is not there; it is ours and has no other name.
    ///
    /// # Errors
    /// A [`Refusal`], or the operating system's.
    pub fn append(&self, name: impl AsRef<OsStr>) -> io::Result<File> {
        let name = name.as_ref();
        match self.entry(name) {
            Ok(status) => regular(&status)?,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
        let flags = OFlags::WRONLY | OFlags::APPEND | OFlags::CREATE;
        let file = walk::create(&self.folder, name, flags, Mode::from_raw_mode(0o644))?;
        let status = file.metadata()?;
        regular(&status)?;
        if status.uid() != rustix::process::geteuid().as_raw() || status.nlink() != 1 {
            return Err(Refusal::Owner.into());
        }
        Ok(file)
    }

    /// Replaces a file as a whole; what was there is not written through, whatever it was.
    ///
    /// # Errors
    /// The operating system's or `write`'s; nothing is left beside it.
    pub fn replace(
        &self,
        name: impl AsRef<OsStr>,
        mode: u32,
        write: impl FnOnce(&mut dyn io::Write) -> io::Result<()>,
    ) -> io::Result<()> {
        self.put(name.as_ref(), Some(mode), write)
    }

    /// Without a mode, the file gets that of new files.
    pub(super) fn put(
        &self,
        name: &OsStr,
        mode: Option<u32>,
        write: impl FnOnce(&mut dyn io::Write) -> io::Result<()>,
    ) -> io::Result<()> {
        let (beside, file) = self.beside(name)?;
        let written = (|| {
            if let Some(mode) = mode {
                file.set_permissions(Permissions::from_mode(mode))?;
            }
            let mut out = io::BufWriter::new(file);
            write(&mut out)?;
            out.flush()?;
            out.get_ref().sync_all()?;
            Ok(rfs::renameat(&self.folder, &beside, &self.folder, name)?)
        })();
        written.inspect_err(|_| {
            // What cannot be removed was moved, or is another's by now.
            let _ = rfs::unlinkat(&self.folder, &beside, AtFlags::empty());
        })
    }

    /// A new file under a name that did not exist.
    fn beside(&self, name: &OsStr) -> io::Result<(OsString, File)> {
        let own = rustix::process::getpid().as_raw_nonzero();
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL;
        for attempt in 0..TRIES {
            let mut beside = OsString::from(".");
            // A name has at most 255 bytes.
            beside.push(OsStr::from_bytes(&name.as_bytes()[..name.len().min(200)]));
            beside.push(format!(".{own}.{attempt}.new"));
            match walk::create(&self.folder, &beside, flags, Mode::from_raw_mode(0o666)) {
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                created => return created.map(|file| (beside, file)),
            }
        }
        Err(io::ErrorKind::AlreadyExists.into())
    }

    /// Renames an entry within the folder.
    ///
    /// # Errors
    /// The operating system's.
    pub fn rename(&self, from: impl AsRef<OsStr>, to: impl AsRef<OsStr>) -> io::Result<()> {
        Ok(rfs::renameat(&self.folder, from.as_ref(), &self.folder, to.as_ref())?)
    }

    /// Removes an entry that is no folder.
    ///
    /// # Errors
    /// The operating system's.
    pub fn remove(&self, name: impl AsRef<OsStr>) -> io::Result<()> {
        Ok(rfs::unlinkat(&self.folder, name.as_ref(), AtFlags::empty())?)
    }
}
