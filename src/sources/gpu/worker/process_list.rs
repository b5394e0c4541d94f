//! Lists of processes, in the layout that the driver is proven to write.
//!
//! The drivers from 535.43.02 to 535.86.10 write entries of 32 bytes from the calls of version 3, those before 510 lack these
//! calls, and nothing in an answer names its layout. So each call gets more room than any layout needs, filled with a mark,
//! and a list is believed only if what was written has the size that the layout says.
#![expect(unsafe_code, reason = "NVML is a C library")]

use nvml_wrapper::Device;
use nvml_wrapper::error::{NvmlError, nvml_sym, nvml_try};

use super::calls::call;

/// Attempts to fetch a list that grows between the calls for its length and its content.
const ATTEMPTS: u32 = 4;

/// Entries for which each further attempt has more room.
const HEADROOM: u32 = 5;

/// The longest list; a longer one is a wrong answer.
const MOST: u32 = 65_536;

/// Words of 8 bytes for each entry: twice as many as the longest layout has.
const WORDS: usize = 8;

/// A byte that the driver has not written.
const MARK: u8 = 0xa5;

/// A process on one GPU or MIG instance.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Entry {
    pub pid: u32,
    /// Bytes; absent if the driver does not report them.
    pub memory: Option<u64>,
    pub gpu_instance: Option<u32>,
    pub compute_instance: Option<u32>,
}

/// One version of a call.
pub(super) struct Version {
    /// The function's name in nvml.h.
    function: &'static str,
    /// Bytes of an entry: 16 without instances (`nvmlProcessInfo_v1_t`), 24 with them.
    size: usize,
    run: fn(&Device<'_>, &mut u32, *mut u64) -> Result<(), NvmlError>,
}

macro_rules! versions {
    ($($function:ident $size:literal),+) => {
        [$(Version {
            function: stringify!($function),
            size: $size,
            run: |device, count, room| {
                let call = nvml_sym(device.nvml().lib().$function.as_ref())?;
                // SAFETY: the room is null where `count` is 0, and otherwise has `WORDS` words for each of `count` entries.
                nvml_try(unsafe { call(device.handle(), &raw mut *count, room.cast()) })
            },
        }),+]
    };
}

/// The kinds of lists, each with the versions of its call from the newest on.
pub(super) const LISTS: [[Version; 3]; 3] = [
    versions!(
        nvmlDeviceGetComputeRunningProcesses_v3 24,
        nvmlDeviceGetComputeRunningProcesses_v2 24,
        nvmlDeviceGetComputeRunningProcesses 16
    ),
    versions!(
        nvmlDeviceGetGraphicsRunningProcesses_v3 24,
        nvmlDeviceGetGraphicsRunningProcesses_v2 24,
        nvmlDeviceGetGraphicsRunningProcesses 16
    ),
    versions!(
        nvmlDeviceGetMPSComputeRunningProcesses_v3 24,
        nvmlDeviceGetMPSComputeRunningProcesses_v2 24,
        nvmlDeviceGetMPSComputeRunningProcesses 16
    ),
];

/// A list, from the newest version of its call that the driver has and whose layout is proven.
pub(super) fn list(device: &Device<'_>, versions: &[Version]) -> Result<Vec<Entry>, NvmlError> {
    newest(
        versions.iter().map(|version| {
            || attempts(|headroom| call(version.function, || version.entries(device, headroom)))
        }),
    )
}

/// The first answer of a version that exists and is proven.
fn newest<C: FnOnce() -> Result<Option<Vec<Entry>>, NvmlError>>(
    versions: impl Iterator<Item = C>,
) -> Result<Vec<Entry>, NvmlError> {
    let mut refused = None;
    for version in versions {
        match version() {
            Ok(Some(entries)) => return Ok(entries),
            Ok(None) => {}
            // 25 and 26: the version of an argument does not match, and the call is deprecated (nvml.h).
            Err(
                error @ (NvmlError::FailedToLoadSymbol(_)
                | NvmlError::FunctionNotFound
                | NvmlError::UnexpectedVariant(25 | 26)),
            ) => {
                refused.get_or_insert(error);
            }
            Err(error) => return Err(error),
        }
    }
    Err(refused.unwrap_or(NvmlError::NotSupported))
}

/// Repeats a call whose result grew between its two steps, each time with more room.
pub(super) fn attempts<T>(mut call: impl FnMut(u32) -> Result<T, NvmlError>) -> Result<T, NvmlError> {
    for attempt in 1..ATTEMPTS {
        match call((attempt - 1) * HEADROOM) {
            Err(NvmlError::InsufficientSize(_)) => {}
            answer => return answer,
        }
    }
    call((ATTEMPTS - 1) * HEADROOM)
}

impl Version {
    /// The list; nothing if the driver does not write the layout of this version.
    fn entries(&self, device: &Device<'_>, headroom: u32) -> Result<Option<Vec<Entry>>, NvmlError> {
        let mut count = 0;
        match (self.run)(device, &mut count, std::ptr::null_mut()) {
            Ok(()) if count == 0 => return Ok(Some(Vec::new())),
            Ok(()) | Err(NvmlError::InsufficientSize(_)) => {}
            Err(error) => return Err(error),
        }
        if count > MOST {
            return Ok(None);
        }
        let capacity = (count + headroom) as usize;
        let mut room = vec![u64::from_ne_bytes([MARK; 8]); capacity * WORDS];
        count += headroom;
        (self.run)(device, &mut count, room.as_mut_ptr())?;
        let bytes: Vec<u8> = room.into_iter().flat_map(u64::to_ne_bytes).collect();
        Ok(proven(&bytes, count as usize, capacity, self.size))
    }
}

/// The entries of a buffer, if the driver wrote entries of this size and nothing beyond them, also where there was room for more.
fn proven(bytes: &[u8], count: usize, capacity: usize, size: usize) -> Option<Vec<Entry>> {
    let (claimed, beyond) = bytes.split_at_checked(count * size).filter(|_| count <= capacity)?;
    if beyond.iter().any(|byte| *byte != MARK) {
        return None;
    }
    claimed.chunks_exact(size).map(entry).collect()
}

/// An entry whose fields were all written, with a pid that can exist.
fn entry(bytes: &[u8]) -> Option<Entry> {
    let number = |at: usize| Some(u32::from_ne_bytes(*bytes.get(at..)?.first_chunk()?));
    let written = |at: usize| number(at).is_none_or(|number| number != u32::from_ne_bytes([MARK; 4]));
    let pid = number(0).filter(|pid| i32::try_from(*pid).is_ok_and(|pid| pid > 0))?;
    let memory = u64::from_ne_bytes(*bytes.get(8..)?.first_chunk()?);
    let complete = (written(8) || written(12)) && written(16) && written(20);
    let instance = |at| number(at).filter(|instance| *instance != u32::MAX);
    complete.then(|| Entry {
        pid,
        memory: Some(memory).filter(|memory| *memory != u64::MAX),
        gpu_instance: instance(16),
        compute_instance: instance(20),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What a driver leaves in the room for `capacity` entries after it wrote one of `size` bytes for each pid.
    fn written(pids: &[u32], size: usize, capacity: usize) -> Vec<u8> {
        let mut bytes = vec![MARK; capacity * WORDS * 8];
        for (entry, pid) in bytes.chunks_exact_mut(size).zip(pids) {
            entry.fill(0);
            entry[..4].copy_from_slice(&pid.to_ne_bytes());
            entry[8..16].copy_from_slice(&(u64::from(*pid) << 20).to_ne_bytes());
        }
        bytes
    }

    fn pids(entries: Option<Vec<Entry>>) -> Option<Vec<u32>> {
        entries.map(|entries| entries.iter().map(|entry| entry.pid).collect())
    }

    #[test]
    fn only_the_layout_that_was_written_is_believed() {
        for count in 1..=40_u32 {
            let own: Vec<u32> = (701..701 + count).collect();
            let length = own.len();
            for (written_size, read_size) in [(16, 16), (24, 24)] {
                for capacity in [length, length + 5] {
                    let bytes = written(&own, written_size, capacity);
                    assert_eq!(pids(proven(&bytes, length, capacity, read_size)), Some(own.clone()));
                }
            }
            for (written_size, read_size) in [(32, 24), (16, 24), (24, 16)] {
                for capacity in [length, length + 5] {
                    let bytes = written(&own, written_size, capacity);
                    assert_eq!(
                        proven(&bytes, length, capacity, read_size),
                        None,
                        "{count} of {written_size}"
                    );
                }
            }
        }
        assert_eq!(proven(&written(&[1, 2], 24, 2), 3, 2, 24), None, "more than there was room for");
        assert_eq!(proven(&written(&[1, u32::MAX], 24, 2), 2, 2, 24), None, "not a pid");
    }

    #[test]
    fn memory_and_instances_may_be_unknown() {
        let mut bytes = written(&[7], 24, 1);
        bytes[8..24].fill(0xff);
        let unknown = Entry { pid: 7, memory: None, gpu_instance: None, compute_instance: None };
        assert_eq!(proven(&bytes, 1, 1, 24), Some(vec![unknown]));
        bytes[8..16].fill(MARK);
        assert_eq!(proven(&bytes, 1, 1, 24), None, "a field that was not written");
    }

    #[test]
    fn an_older_call_is_tried_where_a_newer_one_is_missing_or_disproved() {
        type Answer = fn() -> Result<Option<Vec<Entry>>, NvmlError>;
        let answers = |answers: [Answer; 3]| newest(answers.into_iter());
        let found: Answer = || Ok(Some(Vec::new()));
        let missing: Answer = || Err(NvmlError::FunctionNotFound);
        let disproved: Answer = || Ok(None);
        let lost: Answer = || Err(NvmlError::GpuLost);
        assert!(answers([disproved, missing, found]).is_ok());
        assert!(matches!(answers([disproved, lost, found]), Err(NvmlError::GpuLost)));
        assert!(matches!(answers([missing; 3]), Err(NvmlError::FunctionNotFound)));
        assert!(matches!(answers([disproved; 3]), Err(NvmlError::NotSupported)));
    }

    #[test]
    fn a_list_that_grows_is_fetched_again_at_most_a_few_times() {
        let mut rooms = Vec::new();
        let answer = attempts(|headroom| {
            rooms.push(headroom);
            if headroom < 10 { Err(NvmlError::InsufficientSize(None)) } else { Ok(()) }
        });
        assert!(answer.is_ok());
        assert_eq!(rooms, [0, 5, 10]);
        let endless: Result<(), _> = attempts(|_| Err(NvmlError::InsufficientSize(None)));
        assert!(matches!(endless, Err(NvmlError::InsufficientSize(None))));
    }
}
