//! Follows one log file: appended data, rotation, truncation, and files that are not logs.
//!
//! Opened by [`crate::host::user_files`]: never blocking, never a pipe, a device
//! or a folder, and never through a link that a user could have made. Each pass reads a
//! bounded amount; a reader that falls far behind skips ahead and counts the skipped bytes.

use std::fs::File;
use std::io;
use std::os::unix::fs::{FileExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};

use crate::host::user_files;

/// Most bytes read from a file in one pass.
pub const IN_ONE_PASS: usize = 256 * 1024;
/// A reader further behind than this skips ahead.
const MOST_BEHIND: u64 = 16 * 1024 * 1024;
/// Number of bytes before the reading position that are kept: if they changed, the file was replaced.
const REMEMBERED: usize = 64;
/// Number of bytes at the start of a new file that are checked for being text.
const FIRST_LOOK: usize = 4096;

/// Why a file is not followed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Refusal {
    /// It is a pipe, a device, a socket or a folder.
    NotRegular,
    /// It does not contain text.
    Binary,
    /// It is a link that a user could have made, or a private file that a user could have put there.
    Untrusted(user_files::Refusal),
    Permission,
    /// Another error of the operating system.
    Io,
}

impl Refusal {
    /// Every value of the `kind` label, so that all counters are exposed from the start.
    pub const LABELS: [&'static str; 5] = ["not_regular", "binary", "untrusted", "permission", "io"];

    /// The value of the `kind` label.
    pub const fn label(self) -> &'static str {
        match self {
            Self::NotRegular => "not_regular",
            Self::Binary => "binary",
            Self::Untrusted(_) => "untrusted",
            Self::Permission => "permission",
            Self::Io => "io",
        }
    }

    /// The kind of an error of the operating system.
    pub fn of(error: &io::Error) -> Self {
        match (user_files::Refusal::of(error), error.kind()) {
            (Some(user_files::Refusal::NotRegular), _) => Self::NotRegular,
            (Some(why), _) => Self::Untrusted(why),
            (None, io::ErrorKind::PermissionDenied) => Self::Permission,
            (None, _) => Self::Io,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PassResult {
    /// It was read to its end.
    End,
    /// There is more to read.
    More,
    /// The file does not exist.
    Missing,
    Refused(Refusal),
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    pub bytes: u64,
    /// Bytes skipped because the reader was too far behind.
    pub skipped: u64,
    /// Times that the file was replaced or truncated.
    pub rotations: u64,
}

/// A part of what was read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Piece<'a> {
    /// Further bytes of the same file.
    Bytes(&'a [u8]),
    /// What follows does not continue the line that has begun.
    Break,
}

#[derive(Debug)]
struct Open {
    file: File,
    identity: (u64, u64),
    place: u64,
    /// The bytes before `place`.
    before: Vec<u8>,
    /// Whether the rest of the line at the position where reading began is skipped.
    torn: bool,
}

#[derive(Debug, Default)]
pub struct Follower {
    path: PathBuf,
    open: Option<Open>,
    /// Identity and size of a file without text: it is not read again until it is replaced or truncated.
    binary: Option<((u64, u64), u64)>,
    /// Why the last pass was refused, if it was.
    last_refusal: Option<Refusal>,
    fresh: bool,
    /// Whether a pass has been made: what exists at the first pass was written before.
    begun: bool,
    buffer: Vec<u8>,
    pub counts: Counts,
}

impl Follower {
    /// A follower that starts at the end of the file that exists at its first pass.
    pub fn new(path: PathBuf) -> Self {
        Self { path, ..Self::default() }
    }

    /// The owner of the open file.
    pub fn owner(&self) -> Option<u32> {
        self.open.as_ref()?.file.metadata().ok().map(|status| status.uid())
    }

    /// Starts at the beginning of the file: it was created after its folder began to be watched.
    #[must_use]
    pub fn from_front(mut self) -> Self {
        self.begun = true;
        self
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    pub const fn is_open(&self) -> bool {
        self.open.is_some()
    }

    /// Whether the last pass was the first that was refused for its reason.
    pub const fn fresh_refusal(&self) -> bool {
        self.fresh
    }

    /// Reads new data, at most [`IN_ONE_PASS`] bytes.
    pub fn pass(&mut self, take: impl FnMut(Piece<'_>)) -> PassResult {
        let found = self.look(take);
        let why = if let PassResult::Refused(why) = found { Some(why) } else { None };
        self.fresh = why.is_some() && why != self.last_refusal;
        self.last_refusal = why;
        found
    }

    fn look(&mut self, mut take: impl FnMut(Piece<'_>)) -> PassResult {
        let at_end = !std::mem::replace(&mut self.begun, true);
        let there = match user_files::status(&self.path) {
            Ok(status) if !status.is_file() => {
                self.open = None;
                return PassResult::Refused(Refusal::NotRegular);
            }
            Ok(status) => Some(((status.dev(), status.ino()), status.len())),
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            Err(error) => return PassResult::Refused(Refusal::of(&error)),
        };
        if let Some((identity, length)) = there
            && let Some((binary, size)) = self.binary
        {
            if binary == identity && length >= size {
                return PassResult::Refused(Refusal::Binary);
            }
            self.binary = None;
        }
        if let Some(open) = &self.open
            && there.map(|(identity, _)| identity) != Some(open.identity)
        {
            // The rest of a file that was replaced is read first.
            let unlinked = open.file.metadata().is_ok_and(|status| status.nlink() == 0);
            match self.read(&mut take) {
                // It was renamed, and its writer may still use it. A deleted file is closed, to free its disk space.
                Ok(PassResult::End) if there.is_none() && !unlinked => return PassResult::Missing,
                Ok(PassResult::End) | Err(_) => {}
                Ok(other) => return other,
            }
            self.open = None;
            self.counts.rotations += 1;
            take(Piece::Break);
        }
        let Some((identity, length)) = there else { return PassResult::Missing };
        let outcome = match &self.open {
            Some(_) => Ok(()),
            None => self.open(identity, at_end),
        };
        match outcome.and_then(|()| self.read(&mut take)) {
            Ok(found) => found,
            Err(Trouble::Gone) => PassResult::Missing,
            Err(Trouble::Refused(why)) => {
                self.open = None;
                self.binary = (why == Refusal::Binary).then_some((identity, length));
                PassResult::Refused(why)
            }
        }
    }

    fn open(&mut self, identity: (u64, u64), at_end: bool) -> Result<(), Trouble> {
        let (file, status) = user_files::open(&self.path)?;
        if (status.dev(), status.ino()) != identity {
            // Replaced at this moment: the next pass opens the new file.
            return Err(Trouble::Gone);
        }
        let mut look = vec![0; FIRST_LOOK];
        let length = file.read_at(&mut look, 0)?;
        if is_binary(&look[..length]) {
            return Err(Trouble::Refused(Refusal::Binary));
        }
        let place = if at_end { status.len() } else { 0 };
        let mut open = Open { file, identity, place, before: Vec::new(), torn: false };
        open.remember()?;
        open.torn = !matches!(open.before.last(), None | Some(b'\n' | b'\r'));
        self.open = Some(open);
        Ok(())
    }

    fn read(&mut self, take: &mut impl FnMut(Piece<'_>)) -> Result<PassResult, Trouble> {
        let Some(open) = &mut self.open else { return Ok(PassResult::Missing) };
        let length = open.file.metadata()?.len();
        if length < open.place || open.changed()? {
            // Truncated, or copied and truncated, and perhaps written again: its content is new.
            open.place = 0;
            open.torn = false;
            self.counts.rotations += 1;
            take(Piece::Break);
        }
        if length - open.place > MOST_BEHIND {
            let ahead = length - MOST_BEHIND / 2;
            self.counts.skipped += ahead - open.place;
            open.place = ahead;
            open.torn = true;
            take(Piece::Break);
        }
        let wanted = usize::try_from(length - open.place).unwrap_or(usize::MAX).min(IN_ONE_PASS);
        self.buffer.resize(wanted, 0);
        let read = open.file.read_at(&mut self.buffer, open.place)?;
        let bytes = &self.buffer[..read];
        if is_binary(bytes) {
            return Err(Trouble::Refused(Refusal::Binary));
        }
        open.place += read as u64;
        self.counts.bytes += read as u64;
        let from = match (open.torn, bytes.iter().position(|byte| matches!(byte, b'\n' | b'\r'))) {
            (true, None) => bytes.len(),
            (true, Some(end)) => {
                open.torn = false;
                end + 1
            }
            (false, _) => 0,
        };
        // If a file is truncated while its writer does not append, a hole precedes what it writes.
        for piece in bytes[from..].split(|byte| *byte == 0).filter(|piece| !piece.is_empty()) {
            take(Piece::Bytes(piece));
        }
        open.remember()?;
        let more = open.place < length;
        if self.buffer.capacity() > IN_ONE_PASS / 4 && !more {
            // The buffer is freed, because most passes read little.
            self.buffer = Vec::new();
        }
        Ok(if more { PassResult::More } else { PassResult::End })
    }
}

impl Open {
    /// Keeps the bytes before the reading position.
    fn remember(&mut self) -> io::Result<()> {
        let from = self.place.saturating_sub(REMEMBERED as u64);
        self.before.resize(usize::try_from(self.place - from).unwrap_or(REMEMBERED), 0);
        let read = self.file.read_at(&mut self.before, from)?;
        self.before.truncate(read);
        Ok(())
    }

    /// Whether these bytes have changed.
    fn changed(&self) -> io::Result<bool> {
        let mut now = [0; REMEMBERED];
        let now = &mut now[..self.before.len().min(REMEMBERED)];
        let from = self.place.saturating_sub(now.len() as u64);
        let read = self.file.read_at(now, from)?;
        Ok(now[..read] != self.before[..])
    }
}

/// Why a pass ended early.
enum Trouble {
    /// The file no longer exists.
    Gone,
    Refused(Refusal),
}

impl From<io::Error> for Trouble {
    fn from(error: io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::NotFound => Self::Gone,
            _ => Self::Refused(Refusal::of(&error)),
        }
    }
}

/// Whether the bytes are not text: more than one in twenty is a control character. A run of zeros counts as
/// one, because a file that was truncated under its writer has a hole.
fn is_binary(bytes: &[u8]) -> bool {
    let mut control = 0;
    let mut zeros = 0;
    let mut last = 1;
    for byte in bytes {
        match byte {
            0 if last == 0 => zeros += 1,
            b'\n' | b'\r' | b'\t' | 0x08 | 0x0c | 0x1b => {}
            0..0x20 | 0x7f => control += 1,
            _ => {}
        }
        last = *byte;
    }
    control > 4 && control * 20 > bytes.len() - zeros
}
