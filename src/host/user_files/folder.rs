//! An open folder that others may be able to write.

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

/// Most names that are tried for a new file.
const TRIES: u32 = 16;

/// An open folder. All operations apply to this folder, even if its path is replaced later.
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
    /// A [`Refusal`], or an error of the operating system.
    pub fn open(path: &Path) -> io::Result<Self> {
        let Place { folder, trusted, name } = walk::place(path, Last::Followed)?;
        Self { folder, trusted }.enter(&name)
    }

    /// Opens a folder, which is created if it does not exist, with its parents.
    ///
    /// # Errors
    /// A [`Refusal`], or an error of the operating system.
    pub fn make(path: &Path) -> io::Result<Self> {
        match (Self::open(path), path.parent(), path.file_name()) {
            (Err(error), Some(parent), Some(name)) if error.kind() == io::ErrorKind::NotFound => {
                Self::make(parent)?.make_inside(name)
            }
            (opened, ..) => opened,
        }
    }

    /// Opens a subfolder, which is created if it does not exist.
    ///
    /// # Errors
    /// A [`Refusal`], or an error of the operating system.
    pub fn make_inside(&self, name: impl AsRef<OsStr>) -> io::Result<Self> {
        let name = name.as_ref();
        match rfs::mkdirat(&self.folder, name, Mode::from_raw_mode(0o755)) {
            Ok(()) | Err(Errno::EXIST) => self.enter(name),
            Err(error) => Err(error.into()),
        }
    }

    /// Opens a subfolder; a symbolic link is refused.
    ///
    /// # Errors
    /// A [`Refusal`], or an error of the operating system.
    pub fn inside(&self, name: &OsStr) -> io::Result<Self> {
        self.enter(name)
    }

    /// The target of a symbolic link in the folder, as text; it is not followed.
    ///
    /// # Errors
    /// Errors of the operating system; `InvalidInput` for an entry that is no symbolic link.
    pub fn link(&self, name: &OsStr) -> io::Result<Vec<u8>> {
        Ok(rfs::readlinkat(&self.folder, name, Vec::new())?.into_bytes())
    }

    fn enter(&self, name: &OsStr) -> io::Result<Self> {
        let folder = walk::step(&self.folder, name)?;
        let trusted = self.trusted && walk::is_safe(&folder)?;
        Ok(Self { folder, trusted })
    }

    /// The names of its entries, at most `most`.
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

    /// Metadata of an entry; symbolic links are not followed.
    pub fn entry(&self, name: &OsStr) -> io::Result<Metadata> {
        walk::entry(&self.folder, name)
    }

    /// Opens a file to append to, which is created if it does not exist. It must belong to the calling user, or to root in a
    /// trusted folder, and have no other hard link.
    ///
    /// # Errors
    /// A [`Refusal`], or an error of the operating system.
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
        let is_ours =
            status.uid() == rustix::process::geteuid().as_raw() || (self.trusted && status.uid() == 0);
        if !is_ours || status.nlink() != 1 {
            return Err(Refusal::Owner.into());
        }
        Ok(file)
    }

    /// Replaces a file atomically; an existing file of any kind is not written through.
    ///
    /// # Errors
    /// Errors of the operating system or of `write`; no other file remains.
    pub fn replace(
        &self,
        name: impl AsRef<OsStr>,
        mode: u32,
        write: impl FnOnce(&mut dyn io::Write) -> io::Result<()>,
    ) -> io::Result<()> {
        self.put(name.as_ref(), Some(mode), write)
    }

    /// Without a mode, the file gets the default mode of new files.
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
            // If it cannot be removed, it was moved or replaced.
            let _ = rfs::unlinkat(&self.folder, &beside, AtFlags::empty());
        })
    }

    /// Creates a file under a name that did not exist.
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
    pub fn rename(&self, from: impl AsRef<OsStr>, to: impl AsRef<OsStr>) -> io::Result<()> {
        Ok(rfs::renameat(&self.folder, from.as_ref(), &self.folder, to.as_ref())?)
    }

    /// Removes an entry that is not a folder.
    pub fn remove(&self, name: impl AsRef<OsStr>) -> io::Result<()> {
        Ok(rfs::unlinkat(&self.folder, name.as_ref(), AtFlags::empty())?)
    }
}
