//! Reads the files of one cgroup through descriptors that are kept open.

use std::fs::File;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use rustix::io::Errno;

use crate::host::cgroup::{Version, open, read};
use crate::host::fs;
use crate::host::room::group::{self, Bound};
use crate::model::source::SourceError;
use crate::model::units::Bytes;

/// State shared by the reads of all cgroups.
#[derive(Debug, Default)]
pub struct Reader {
    buffer: Vec<u8>,
    /// Number of descriptors that may still be kept; without one, a file is opened for each read.
    pub allowance: usize,
    /// The first file that could not be read or parsed.
    pub error: Option<SourceError>,
    /// The first file that each kernel has and that does not exist: the tree is emulated, or provided in part.
    pub absent: Option<SourceError>,
}

impl Reader {
    /// Records a file with invalid content, if it is the first error.
    pub fn note_garbled(&mut self, path: &Path) {
        self.note(path, &io::Error::new(io::ErrorKind::InvalidData, "unexpected content"));
    }

    /// Records that a file does not exist whose values are unknown then, if it is the first.
    pub fn note_absent(&mut self, path: &Path) {
        self.absent.get_or_insert_with(|| {
            let path = path.display();
            SourceError::unavailable(format!("{path} does not exist: its values are unknown"))
        });
    }

    /// Records an error, if it is the first.
    pub fn note(&mut self, path: &Path, error: &io::Error) {
        self.error.get_or_insert_with(|| fs::failed(path, error));
    }
}

/// The cgroup was removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gone;

/// Whether the error means that the cgroup was removed: `ENODEV` on a descriptor, `ENOENT` on a path.
pub fn is_gone(error: &io::Error) -> bool {
    matches!(Errno::from_io_error(error), Some(Errno::NODEV | Errno::NOENT))
}

/// A value that is read of a cgroup.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Item {
    /// `memory.stat`.
    Stat,
    /// Memory charged.
    Usage,
    Limit,
    /// The largest usage so far.
    Peak,
    Events,
    /// How often the limit was reached (v1).
    LimitHits,
    /// Kernel memory (v1).
    Kernel,
    /// Memory and swap charged together (v1).
    BothUsage,
    /// The limit of memory and swap together (v1).
    BothLimit,
    /// Swapped-out memory (v2).
    SwapUsage,
    /// The limit of swap (v2).
    SwapLimit,
    /// The throttling threshold (v2).
    High,
    /// Stalls (v2).
    Pressure,
    /// Processes and threads (v2).
    Tasks,
    /// Device memory in use, by region (v2).
    DeviceUsage,
    /// The limits of device memory (v2).
    DeviceLimit,
    /// Device memory that is protected from eviction (v2).
    DeviceLow,
    /// The size of the regions of device memory; of the root (v2).
    DeviceCapacity,
}

impl Item {
    const ALL: usize = Self::DeviceCapacity as usize + 1;
    /// What is read of each region of device memory.
    pub const OF_DEVICES: [Self; 4] =
        [Self::DeviceUsage, Self::DeviceLimit, Self::DeviceLow, Self::DeviceCapacity];

    const fn file(self, version: Version) -> &'static str {
        let (v1, v2) = match self {
            Self::Stat => ("memory.stat", "memory.stat"),
            Self::Usage => (Version::V1.usage_file(), Version::V2.usage_file()),
            Self::Limit => ("memory.limit_in_bytes", "memory.max"),
            Self::Peak => ("memory.max_usage_in_bytes", "memory.peak"),
            Self::Events => ("memory.oom_control", "memory.events"),
            Self::LimitHits => ("memory.failcnt", ""),
            Self::Kernel => ("memory.kmem.usage_in_bytes", ""),
            Self::BothUsage => ("memory.memsw.usage_in_bytes", ""),
            Self::BothLimit => ("memory.memsw.limit_in_bytes", ""),
            Self::SwapUsage => ("", "memory.swap.current"),
            Self::SwapLimit => ("", "memory.swap.max"),
            Self::High => ("", "memory.high"),
            Self::Pressure => ("", "memory.pressure"),
            Self::Tasks => ("", "pids.current"),
            Self::DeviceUsage => ("", "dmem.current"),
            Self::DeviceLimit => ("", "dmem.max"),
            Self::DeviceLow => ("", "dmem.low"),
            Self::DeviceCapacity => ("", "dmem.capacity"),
        };
        match version {
            Version::V1 => v1,
            Version::V2 => v2,
        }
    }

    /// Whether the kernel provides the file for every cgroup except the root.
    const fn is_provided(self) -> bool {
        matches!(self, Self::Stat | Self::Usage | Self::Limit)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Got<T> {
    Value(T),
    /// The file does not exist.
    Absent,
    /// It could not be read or parsed; the reader has the error.
    Unknown,
}

impl<T> Got<T> {
    /// The value, if there is one.
    pub fn some(self) -> Option<T> {
        match self {
            Self::Value(value) => Some(value),
            Self::Absent | Self::Unknown => None,
        }
    }
}

#[derive(Debug)]
enum Slot {
    Closed,
    Kept(File),
    Absent,
}

#[derive(Debug)]
pub struct Files {
    pub dir: PathBuf,
    version: Version,
    is_root: bool,
    slots: [Slot; Item::ALL],
}

impl Files {
    /// The files in a folder, not opened yet.
    pub fn new(version: Version, dir: PathBuf, is_root: bool) -> Self {
        Self { dir, version, is_root, slots: [const { Slot::Closed }; Item::ALL] }
    }

    pub fn path(&self, item: Item) -> PathBuf {
        self.dir.join(item.file(self.version))
    }

    /// Number of descriptors that are kept open.
    pub fn kept(&self) -> usize {
        self.slots.iter().filter(|slot| matches!(slot, Slot::Kept(_))).count()
    }

    /// Closes everything.
    pub fn close(&mut self) {
        self.slots = [const { Slot::Closed }; Item::ALL];
    }

    /// Tries files again that did not exist: a controller can be enabled later.
    pub fn forget_absent(&mut self) {
        for slot in self.slots.iter_mut().filter(|slot| matches!(slot, Slot::Absent)) {
            *slot = Slot::Closed;
        }
    }

    /// Reads an item that is a single number.
    pub fn number(&mut self, item: Item, reader: &mut Reader) -> Result<Option<u64>, Gone> {
        Ok(self.get(item, reader, group::number)?.some())
    }

    /// Reads an item that is an amount of memory.
    pub fn bytes(&mut self, item: Item, reader: &mut Reader) -> Result<Option<Bytes>, Gone> {
        Ok(self.number(item, reader)?.map(Bytes::new))
    }

    pub fn limit(&mut self, item: Item, reader: &mut Reader) -> Result<Bound, Gone> {
        Ok(match self.get(item, reader, group::amount)? {
            Got::Value(bound) => bound,
            Got::Absent if item.is_provided() && !self.is_root => Bound::Unknown,
            // A cgroup without the file has no limit.
            Got::Absent => Bound::Unbounded,
            Got::Unknown => Bound::Unknown,
        })
    }

    /// Reads one item; a text that `parse` rejects is an error of the reader.
    ///
    /// # Errors
    /// [`Gone`] if the cgroup was removed.
    pub fn get<T>(
        &mut self,
        item: Item,
        reader: &mut Reader,
        parse: impl FnOnce(&[u8]) -> Option<T>,
    ) -> Result<Got<T>, Gone> {
        let slot = item as usize;
        let outcome = match &self.slots[slot] {
            Slot::Absent => return Ok(self.absent(item, reader)),
            Slot::Kept(file) => read_kept(file, item, &mut reader.buffer),
            Slot::Closed => match open(&self.path(item)) {
                Ok(file) => {
                    let outcome = read(&file, &mut reader.buffer);
                    if outcome.is_ok() && reader.allowance > 0 {
                        reader.allowance -= 1;
                        self.slots[slot] = Slot::Kept(file);
                    }
                    outcome
                }
                Err(error) => Err(error),
            },
        };
        match outcome {
            Ok(()) => match parse(&reader.buffer) {
                Some(value) => Ok(Got::Value(value)),
                None => {
                    reader.note_garbled(&self.path(item));
                    Ok(Got::Unknown)
                }
            },
            Err(error) => self.fail(item, &error, reader),
        }
    }

    fn fail<T>(&mut self, item: Item, error: &io::Error, reader: &mut Reader) -> Result<Got<T>, Gone> {
        match Errno::from_io_error(error) {
            Some(Errno::NODEV) => Err(Gone),
            // The walk finds a cgroup by its usage: without it, the folder is not (or no longer) one of the controller.
            Some(Errno::NOENT) if item == Item::Usage && !self.is_root => Err(Gone),
            // If PSI is disabled, the pressure file exists and returns EOPNOTSUPP.
            Some(Errno::NOENT | Errno::OPNOTSUPP) => {
                self.slots[item as usize] = Slot::Absent;
                Ok(self.absent(item, reader))
            }
            _ => {
                reader.note(&self.path(item), error);
                Ok(Got::Unknown)
            }
        }
    }

    fn absent<T>(&self, item: Item, reader: &mut Reader) -> Got<T> {
        if item.is_provided() && !self.is_root {
            reader.note_absent(&self.path(item));
        }
        Got::Absent
    }
}

/// Reads through a descriptor that was opened at an earlier tick.
fn read_kept(file: &File, item: Item, buffer: &mut Vec<u8>) -> io::Result<()> {
    // The kernel itself returns ENODEV. If a cgroup tree is provided by
    // something else (lxcfs, a recording), a deleted file would remain
    // readable; one `stat` per cgroup and tick detects that.
    if item == Item::Usage && file.metadata()?.nlink() == 0 {
        return Err(Errno::NODEV.into());
    }
    read(file, buffer)
}
