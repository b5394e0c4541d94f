//! Memory limits of reading: set before it starts, charged before memory is allocated.

use std::mem::size_of;

/// The limits of reading one file. An operation takes at least one byte, so that the size of the file bounds their
/// number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// The largest file, in bytes.
    pub file_bytes: u64,
    /// Total memory in use at any time, in bytes: the file itself, the arena, and the decoded data.
    pub memory_bytes: u64,
    /// Maximum number of containers open at once. The deepest value of a snapshot is a frame, at 10.
    pub open: usize,
    /// Maximum number of values on the stack. PyTorch's C++ pickler writes a list of any length at once.
    pub waiting: usize,
    /// Maximum number of memo entries.
    pub remembered: usize,
}

impl Limits {
    /// Memory limit as a multiple of the size of the file.
    pub const TIMES_FILE: u64 = 10;
    /// Minimum memory limit, in bytes: the tables have an initial size.
    pub const LEAST: u64 = 1 << 20;
    /// Default of the hard memory limit, in bytes.
    pub const MEMORY_BYTES: u64 = 2 << 30;

    /// The limits for a file of that size, with a hard memory limit, both in bytes.
    pub fn for_file(len: u64, cap_bytes: u64) -> Self {
        Self {
            // Text is stored as positions in the file, in 32 bits.
            file_bytes: cap_bytes.min(u64::from(u32::MAX)),
            memory_bytes: len.saturating_mul(Self::TIMES_FILE).max(Self::LEAST).min(cap_bytes),
            open: 256,
            waiting: 1 << 25,
            remembered: 1 << 27,
        }
    }
}

/// Memory in use, and its limit.
#[derive(Clone, Debug)]
pub struct Budget {
    used: u64,
    most: u64,
    limit: u64,
}

/// More memory would be required than [`Limits`] allow.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("needs more than the {limit} bytes of memory allowed for it")]
pub struct OverBudget {
    /// The limit, in bytes.
    pub limit: u64,
}

impl Budget {
    /// Creates a budget that the file itself is already charged to.
    pub fn new(limits: &Limits, file: &[u8]) -> Self {
        let used = len64(file.len());
        Self { used, most: used, limit: limits.memory_bytes }
    }

    /// Peak memory in use, in bytes.
    pub const fn most(&self) -> u64 {
        self.most
    }

    /// Charges `bytes`.
    ///
    /// # Errors
    /// If the limit would be exceeded; nothing is charged then.
    pub fn take(&mut self, bytes: u64) -> Result<(), OverBudget> {
        let used = self.used.saturating_add(bytes);
        if used > self.limit {
            return Err(OverBudget { limit: self.limit });
        }
        self.used = used;
        self.most = self.most.max(used);
        Ok(())
    }

    /// Releases bytes that [`Self::take`] charged.
    pub const fn give(&mut self, bytes: u64) {
        self.used = self.used.saturating_sub(bytes);
    }

    /// Appends to `list`, charging its growth.
    ///
    /// # Errors
    /// If the list would exceed the limit.
    #[inline]
    pub fn push<T>(&mut self, list: &mut Vec<T>, value: T) -> Result<(), OverBudget> {
        if list.len() == list.capacity() {
            self.reserve(list, 1)?;
        }
        list.push(value);
        Ok(())
    }

    /// Reserves capacity for `more` values in `list` and charges it. While a list is reallocated, its old and its new
    /// memory are both in use.
    ///
    /// # Errors
    /// If the list would exceed the limit, or the host has no memory.
    #[cold]
    pub fn reserve<T>(&mut self, list: &mut Vec<T>, more: usize) -> Result<(), OverBudget> {
        let (len, old) = (list.len(), list.capacity());
        let needed = len.saturating_add(more);
        if needed <= old {
            return Ok(());
        }
        let new = needed.max(old.saturating_add(old / 2)).max(16);
        self.take(bytes_of::<T>(new))?;
        let taken = list.try_reserve_exact(new - len);
        self.give(bytes_of::<T>(if taken.is_ok() { old } else { new }));
        taken.map_err(|_| OverBudget { limit: self.limit })
    }

    /// Empties `list` and releases its memory.
    pub fn drop<T>(&mut self, list: &mut Vec<T>) {
        self.give(bytes_of::<T>(list.capacity()));
        *list = Vec::new();
    }
}

/// The memory of that many values, in bytes.
pub(crate) fn bytes_of<T>(count: usize) -> u64 {
    len64(count.saturating_mul(size_of::<T>()))
}

/// A length never exceeds 64 bits on the supported platforms.
fn len64(len: usize) -> u64 {
    u64::try_from(len).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn growth_is_charged_before_it_happens() {
        let limits = Limits { memory_bytes: 1000, ..Limits::for_file(0, 1000) };
        let mut budget = Budget::new(&limits, &[0; 100]);
        let mut list: Vec<u64> = Vec::new();
        let refused = (0..1000).find_map(|n| budget.push(&mut list, n).err());
        assert_eq!(refused, Some(OverBudget { limit: 1000 }));
        assert!(budget.most() <= 1000 && list.len() >= 16, "{budget:?} {}", list.len());
        budget.drop(&mut list);
        assert_eq!(budget.used, 100, "only the file is left");
    }

    #[test]
    fn the_bound_is_ten_times_the_file_under_the_cap() {
        assert_eq!(Limits::for_file(3 << 20, 1 << 30).memory_bytes, 30 << 20);
        assert_eq!(Limits::for_file(3 << 30, 1 << 30).memory_bytes, 1 << 30);
        assert_eq!(Limits::for_file(10, 1 << 30).memory_bytes, Limits::LEAST);
    }
}
