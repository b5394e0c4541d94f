//! PyTorch's out-of-memory messages and their cause.

use super::scan::{after, bytes, whole};
use crate::model::names::named;
use crate::model::units::real;

/// The values of one message, in bytes; missing ones are absent.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Oom {
    /// The GPU as the process counts it; newer messages may leave the number out.
    pub gpu: Option<u32>,
    /// The requested size.
    pub tried: Option<u64>,
    /// Total memory of the GPU.
    pub total: Option<u64>,
    /// Free memory of the GPU.
    pub free: Option<u64>,
    /// Memory of the process, including contexts and libraries.
    pub in_use: Option<u64>,
    pub allocated: Option<u64>,
    /// Reserved but unallocated memory, which the allocator could not release.
    pub unallocated: Option<u64>,
}

named! {
    pub enum Cause {
        /// The allocator had enough free memory, in blocks that were too small.
        Fragmentation = "fragmentation",
        /// There was not enough free memory.
        Exhaustion = "exhaustion",
        /// The message does not have the required values.
        Unknown = "unknown",
    }
}

/// Share of the memory of the allocator that must be free for the failure to be one of fragmentation: every allocator
/// holds some.
const NOTICEABLE: f64 = 0.04;

impl Oom {
    /// The cause. When the message is written the allocator has released every completely free segment, so that its
    /// unallocated memory consists of parts of segments in use (CUDACachingAllocator.cpp). If these would have been
    /// sufficient, the cause is fragmentation; below `NOTICEABLE` of what the allocator holds, the GPU is full.
    pub fn cause(&self) -> Cause {
        let is_noticeable = |held: u64| {
            self.allocated.is_none_or(|used| real(held) >= NOTICEABLE * (real(used) + real(held)))
        };
        match (self.tried, self.unallocated) {
            (Some(tried), Some(held)) if held >= tried && is_noticeable(held) => Cause::Fragmentation,
            (Some(_), Some(_)) => Cause::Exhaustion,
            _ => Cause::Unknown,
        }
    }
}

/// Finds the message in a line.
///
/// From PyTorch 2.1: `CUDA out of memory. Tried to allocate X. GPU n has a total capacity of T of which F is free. …
/// this process has U memory in use. … A is allocated by PyTorch, and R is reserved by PyTorch but unallocated.`
/// Before: `CUDA out of memory. Tried to allocate X (GPU 0; T total capacity; A already allocated; F free; R reserved
/// in total by PyTorch)`. On AMD and Ascend, `HIP` and `NPU` replace `CUDA`. JAX has the size only: `RESOURCE_EXHAUSTED: Out
/// of memory while trying to allocate 17179869184 bytes.`
pub fn find(line: &str) -> Option<Oom> {
    let xla = [
        "RESOURCE_EXHAUSTED: Out of memory ",
        "while trying to allocate ",
        "allocating ",
        "trying to allocate ",
    ];
    if let Some(rest) = after(line, xla[0]) {
        let size = xla[1..].iter().find_map(|words| rest.strip_prefix(words));
        return Some(Oom { tried: size.and_then(bytes), ..Oom::default() });
    }
    let (_, rest) = line.split_once("out of memory. Tried to allocate ")?;
    let tried = bytes(rest);
    let amount_before = |words: &str| before(rest, words);
    let number = |text: &str| whole(text).and_then(|gpu| gpu.try_into().ok());
    if let Some(inside) = ["(GPU ", "(NPU "].iter().find_map(|open| after(rest, open)) {
        let allocated = amount_before(" already allocated");
        let reserved = amount_before(" reserved in total by PyTorch");
        return Some(Oom {
            gpu: number(inside),
            tried,
            total: amount_before(" total capacity"),
            free: amount_before(" free;"),
            in_use: None,
            allocated,
            unallocated: reserved.zip(allocated).and_then(|(held, used)| held.checked_sub(used)),
        });
    }
    // PyTorch 2.1 misspells it.
    let capacity = after(rest, "total capacity of ").or_else(|| after(rest, "total capacty of "));
    Some(Oom {
        gpu: after(rest, ". GPU ").and_then(number),
        tried,
        total: capacity.and_then(bytes),
        free: amount_before(" is free"),
        in_use: after(rest, "this process has ").and_then(bytes),
        allocated: amount_before(" is allocated by PyTorch")
            .or_else(|| amount_before(" allocated by PyTorch")),
        unallocated: amount_before(" is reserved by PyTorch but unallocated"),
    })
}

/// The amount before the given words: `396.27 MiB is reserved …`.
fn before(text: &str, words: &str) -> Option<u64> {
    let mut parts = text.split_once(words)?.0.rsplitn(3, ' ');
    let (unit, number) = (parts.next()?, parts.next()?);
    let number = number.rsplit('(').next()?;
    bytes(&format!("{number} {unit}"))
}
