//! Opens files that a user of the node can name, or put where the configuration points. No other module may do so.
//!
//! Paths come from the configuration or the command line, and users can write folders in them. Therefore:
//!
//! - The walk begins at `/`, or at the current folder for a relative path. A symbolic link is followed
//!   only in a **trusted** folder: one that belongs to root or to the user of this process, in which nobody
//!   else may create or rename anything (not writable by others, nor by a group other than root's), and whose
//!   parents on the path are trusted as well. From the first other folder on, no link is followed, and `..` is
//!   refused: the rest is opened with `openat2(2)` and `RESOLVE_BENEATH | RESOLVE_NO_SYMLINKS`, or one component
//!   at a time with `O_NOFOLLOW` if the kernel has no `openat2`.
//! - Only regular files are opened, without blocking (`O_NONBLOCK`) and without acquiring a controlling terminal
//!   (`O_NOCTTY`); the open descriptor is checked again before the first byte is read or written.
//! - Reading in a folder that others can write: a file that is not readable by everybody is accepted only if it has a
//!   single hard link (so that it is not a link to a user's private file) and belongs neither to root nor
//!   to the user of this process. So memwarden discloses nothing that the owner of a file keeps private.
//! - Files that grant something (`owned`) are accepted only from the given users, and from root in a trusted folder.
//! - Appending: the file must belong to the user of this process and have a single hard link.
//! - Replacing: a new file is created beside, under a name that did not exist, and replaces the old one by
//!   `renameat` in the same open folder. Nothing is written through an existing file.
//! - Touching (`touch_as`): with the rights of the user, below the root folder of the user's process.
//! - Reading how full a tmpfs is (`tmpfs`): no other file system is asked, and no file is opened for reading.

mod folder;
pub mod tmpfs;
mod touch;
mod walk;

use std::fs::{File, Metadata};
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use rustix::fs::OFlags;

pub use self::folder::Folder;
pub use self::touch::touch_as;
use self::walk::{Last, Place};

/// Why an existing file is not opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
pub enum Refusal {
    /// It is a FIFO, a device, a socket or a folder.
    #[error("it is not a regular file")]
    NotRegular,
    /// It is a symbolic link, or behind one, that others could have created.
    #[error(
        "it is a symbolic link, or is behind one, in a folder that others can write; use the path of its target, or \
         remove the write permission of group and others from that folder (chmod go-w)"
    )]
    Link,
    /// The path contains `..` in a folder that others can write.
    #[error("its path contains `..` in a folder that others can write")]
    Up,
    /// It belongs to a user who is not accepted.
    #[error("it belongs to another user than permitted")]
    Owner,
    /// It is not readable by all users, and the user who named it may not be permitted to read it.
    #[error(
        "it is a private file in a folder that others can write: not everybody may read it, and it belongs to \
         root or has a second hard link; \
         let everybody read it (chmod o+r), or remove the write permission of group and others from each folder of \
         its path (chmod go-w)"
    )]
    Private,
    /// It exceeds the maximum size.
    #[error("it is larger than the maximum size")]
    TooLarge,
    /// The process for which it is touched has other ids than those that were checked.
    #[error(
        "the user or group ids of the process are not all the same, or have changed since they were checked"
    )]
    Identity,
}

impl Refusal {
    /// The refusal in an error of this module; nothing for an error of the operating system.
    pub fn of(error: &io::Error) -> Option<Self> {
        error.get_ref()?.downcast_ref().copied()
    }
}

impl From<Refusal> for io::Error {
    fn from(refusal: Refusal) -> Self {
        let kind = match refusal {
            Refusal::NotRegular | Refusal::Up => io::ErrorKind::InvalidInput,
            Refusal::Link | Refusal::Owner | Refusal::Private | Refusal::Identity => {
                io::ErrorKind::PermissionDenied
            }
            Refusal::TooLarge => io::ErrorKind::InvalidData,
        };
        Self::new(kind, refusal)
    }
}

/// Metadata of the file at a path, without opening it.
///
/// # Errors
/// A [`Refusal`], or an error of the operating system.
pub fn status(path: &Path) -> io::Result<Metadata> {
    let Place { folder, name, .. } = walk::place(path, Last::Followed)?;
    let status = walk::entry(&folder, &name)?;
    if status.is_symlink() { Err(Refusal::Link.into()) } else { Ok(status) }
}

/// The first folder of a path in which users other than root and the user of this process can create or
/// rename files, with its owner, group and mode; nothing if there is none, or if it cannot be read.
pub fn writable_folder(path: &Path) -> Option<String> {
    let mut folders: Vec<&Path> = path.ancestors().skip(1).collect();
    folders.reverse();
    // As long as no other user can write, no symbolic link on the path was created by one.
    for folder in folders {
        let (owner, group, mode) = walk::owned(folder)?;
        if !walk::is_safe_mode(owner, group, mode) {
            let mode = mode & 0o7777;
            return Some(format!("{} (user {owner}, group {group}, mode {mode:04o})", folder.display()));
        }
    }
    None
}

/// Opens a regular file for reading.
///
/// # Errors
/// A [`Refusal`], or an error of the operating system.
pub fn open(path: &Path) -> io::Result<(File, Metadata)> {
    let place = walk::place(path, Last::Followed)?;
    read_at(&place)
}

/// Opens a regular file of one of these users for reading; also one of root if no other user can write its path.
///
/// # Errors
/// A [`Refusal`], or an error of the operating system.
pub fn owned(path: &Path, users: &[u32]) -> io::Result<(File, Metadata)> {
    let place = walk::place(path, Last::Followed)?;
    let (file, status) = read_at(&place)?;
    let known = users.contains(&status.uid()) || (place.trusted && status.uid() == 0);
    if known { Ok((file, status)) } else { Err(Refusal::Owner.into()) }
}

/// Reads a regular file of at most `largest` bytes; with `owner`, the file is checked as by [`owned`].
///
/// # Errors
/// A [`Refusal`], or an error of the operating system.
pub fn read(path: &Path, owner: Option<u32>, largest: u64) -> io::Result<Vec<u8>> {
    let (file, status) = match owner {
        Some(owner) => owned(path, &[owner])?,
        None => open(path)?,
    };
    if status.len() > largest {
        return Err(Refusal::TooLarge.into());
    }
    let mut bytes = Vec::with_capacity(usize::try_from(status.len()).unwrap_or(0));
    file.take(largest.saturating_add(1)).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > largest { Err(Refusal::TooLarge.into()) } else { Ok(bytes) }
}

/// Writes a file for a user: a new one, or in place of a regular file.
///
/// # Errors
/// A [`Refusal`] if the path is a link or not a regular file; or an error of the operating system.
pub fn put(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let Place { folder, trusted, name } = walk::place(path, Last::Kept)?;
    let mode = match walk::entry(&folder, &name) {
        Ok(status) if status.is_symlink() => return Err(Refusal::Link.into()),
        Ok(status) if !status.is_file() => return Err(Refusal::NotRegular.into()),
        // A replaced file keeps its permissions only if it belongs to the same user.
        Ok(status) if status.uid() == rustix::process::geteuid().as_raw() => Some(status.mode() & 0o777),
        Ok(_) => None,
        Err(error) if error.kind() == io::ErrorKind::NotFound => None,
        Err(error) => return Err(error),
    };
    let folder = Folder::of(folder, trusted);
    folder.put(&name, mode, |out| out.write_all(bytes))
}

/// Appends to a file, in place: a new one, or one that belongs to the calling user, or to root where no other user can write
/// its path.
///
/// # Errors
/// A [`Refusal`] if the path is a link or not such a file; or an error of the operating system.
pub fn append(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let Place { folder, trusted, name } = walk::place(path, Last::Kept)?;
    Folder::of(folder, trusted).append(&name)?.write_all(bytes)
}

fn read_at(place: &Place) -> io::Result<(File, Metadata)> {
    let before = walk::entry(&place.folder, &place.name)?;
    regular(&before)?;
    let file = walk::open(&place.folder, &place.name, OFlags::RDONLY)?;
    let status = file.metadata()?;
    regular(&status)?;
    let trusted = status.uid() == 0 || status.uid() == rustix::process::geteuid().as_raw();
    let public = status.mode() & 0o004 != 0;
    // A file in a trusted folder was put there by this user or root, regardless of where the folder was moved to.
    let placed = place.trusted || walk::is_safe(&place.folder)?;
    if !placed && !public && (trusted || status.nlink() != 1) {
        return Err(Refusal::Private.into());
    }
    Ok((file, status))
}

fn regular(status: &Metadata) -> io::Result<()> {
    if status.is_symlink() {
        Err(Refusal::Link.into())
    } else if status.is_file() {
        Ok(())
    } else {
        Err(Refusal::NotRegular.into())
    }
}

#[cfg(test)]
mod tests;
