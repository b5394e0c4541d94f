//! Everything that a user of the node can name, or put where the configuration points: opened here and nowhere else.
//!
//! A path is named by the configuration or by a person at a terminal, and users write in the folders on its way. So:
//!
//! - The walk begins at `/`, or at the current folder for a path that is not absolute. A symbolic link is followed
//!   only in a **trusted** folder: one that belongs to root or to the user that this process runs as, in which nobody
//!   else may create or rename anything (no right to write for others, nor for a group that is not root's), and whose
//!   parents on the way were trusted as well. From the first other folder on no link is followed at all, and `..` is
//!   refused: the rest is opened with `openat2(2)` and `RESOLVE_BENEATH | RESOLVE_NO_SYMLINKS`, or one component after
//!   the other with `O_NOFOLLOW` where the kernel has no `openat2`.
//! - Nothing but a regular file is opened, without waiting (`O_NONBLOCK`) and without taking a controlling terminal
//!   (`O_NOCTTY`); what was opened is looked at again on the descriptor before the first byte is read or written.
//! - Reading, in a folder that others can write: a file that not everybody may read counts only if it has one name (no
//!   hard link to somebody's private file), and belongs neither to root nor to the user of this process. Nothing
//!   becomes known through us that its owner keeps to itself.
//! - A word that somebody waits for (`owned`) counts from the users that are given only; root's in a trusted folder.
//! - Appending: the file belongs to the user of this process and has one name.
//! - Replacing: a new file is made beside, under a name that did not exist, and takes the place of the old one by
//!   `renameat` in the same open folder. Nothing is written through what was there before.

mod folder;
mod walk;

use std::fs::{File, Metadata};
use std::io::{self, Read as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use rustix::fs::OFlags;

pub use self::folder::Folder;
use self::walk::{Last, Place};

/// Why something is not opened, although it is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
pub enum Refusal {
    /// It is a pipe, a device, a socket or a folder.
    #[error("it is not a regular file")]
    NotRegular,
    /// It is a symbolic link, or lies behind one, and others could have put it there.
    #[error(
        "it is a symbolic link, or lies behind one, in a folder that others can write; give the path that it leads to, or \
         take the right to write from the group and from others in that folder (chmod go-w)"
    )]
    Link,
    /// The rest of the path goes up, where others can write.
    #[error("its path has `..` where others can write")]
    Up,
    /// It belongs to somebody whose file is not wanted here.
    #[error("it belongs to another user than it should")]
    Owner,
    /// Not everybody may read it, and whoever named it need not be one of those who may.
    #[error(
        "it is a private file where others can write: not everybody may read it, and it is root's or has a second name; \
         let everybody read it (chmod o+r), or take the right to write from the group and from others in each folder of \
         its path (chmod go-w)"
    )]
    Private,
    /// It is larger than what is read.
    #[error("it is larger than what is read")]
    TooLarge,
}

impl Refusal {
    /// The refusal in an error of this module; nothing in one of the operating system.
    pub fn of(error: &io::Error) -> Option<Self> {
        error.get_ref()?.downcast_ref().copied()
    }
}

impl From<Refusal> for io::Error {
    fn from(refusal: Refusal) -> Self {
        let kind = match refusal {
            Refusal::NotRegular | Refusal::Up => io::ErrorKind::InvalidInput,
            Refusal::Link | Refusal::Owner | Refusal::Private => io::ErrorKind::PermissionDenied,
            Refusal::TooLarge => io::ErrorKind::InvalidData,
        };
        Self::new(kind, refusal)
    }
}

/// What a path leads to, without opening it.
///
/// # Errors
/// A [`Refusal`], or the operating system's.
pub fn status(path: &Path) -> io::Result<Metadata> {
    let Place { folder, name, .. } = walk::place(path, Last::Followed)?;
    let status = walk::entry(&folder, &name)?;
    if status.is_symlink() { Err(Refusal::Link.into()) } else { Ok(status) }
}

/// The first folder of a path in which others than root and the user of this process can create or rename files, with
/// its owner, group and mode; nothing where there is none, or none can be looked at.
pub fn writable_folder(path: &Path) -> Option<String> {
    let mut folders: Vec<&Path> = path.ancestors().skip(1).collect();
    folders.reverse();
    // As long as nobody else can write, no link on the way is a user's.
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
/// A [`Refusal`], or the operating system's.
pub fn open(path: &Path) -> io::Result<(File, Metadata)> {
    let place = walk::place(path, Last::Followed)?;
    read_at(&place)
}

/// Opens a regular file of one of these users for reading; of root as well, where nobody else can write.
///
/// # Errors
/// A [`Refusal`], or the operating system's.
pub fn owned(path: &Path, users: &[u32]) -> io::Result<(File, Metadata)> {
    let place = walk::place(path, Last::Followed)?;
    let (file, status) = read_at(&place)?;
    let known = users.contains(&status.uid()) || (place.trusted && status.uid() == 0);
    if known { Ok((file, status)) } else { Err(Refusal::Owner.into()) }
}

/// Reads a whole regular file of at most `largest` bytes, where an owner is given as [`owned`] does.
///
/// # Errors
/// A [`Refusal`], or the operating system's.
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

/// Puts a file where a person wants it: a new one, or in the place of a regular file.
///
/// # Errors
/// A [`Refusal`] where something is there that is a link or no regular file; or the operating system's.
pub fn put(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let Place { folder, trusted, name } = walk::place(path, Last::Kept)?;
    let mode = match walk::entry(&folder, &name) {
        Ok(status) if status.is_symlink() => return Err(Refusal::Link.into()),
        Ok(status) if !status.is_file() => return Err(Refusal::NotRegular.into()),
        // What others are allowed with their own file, they are not with ours.
        Ok(status) if status.uid() == rustix::process::geteuid().as_raw() => Some(status.mode() & 0o777),
        Ok(_) => None,
        Err(error) if error.kind() == io::ErrorKind::NotFound => None,
        Err(error) => return Err(error),
    };
    let folder = Folder::of(folder, trusted);
    folder.put(&name, mode, |out| out.write_all(bytes))
}

fn read_at(place: &Place) -> io::Result<(File, Metadata)> {
    let before = walk::entry(&place.folder, &place.name)?;
    regular(&before)?;
    let file = walk::open(&place.folder, &place.name, OFlags::RDONLY)?;
    let status = file.metadata()?;
    regular(&status)?;
    let ours = status.uid() == 0 || status.uid() == rustix::process::geteuid().as_raw();
    let everybodys = status.mode() & 0o004 != 0;
    // What is in a folder of ours is there because we, or root, put it there, wherever the folder was moved to.
    let placed = place.trusted || walk::is_safe(&place.folder)?;
    if !placed && !everybodys && (ours || status.nlink() != 1) {
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
