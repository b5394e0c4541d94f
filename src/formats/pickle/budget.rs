//! What reading may cost: stated before it starts, charged before memory is taken.

use std::mem::size_of;

/// The bounds of reading one file. An operation takes at least one byte, so their number is bounded by the
/// size of the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// The largest file, in bytes.
    pub file_bytes: u64,
    /// Everything held at once, in bytes: the file itself, the arena, and what is decoded from it.
    pub memory_bytes: u64,
    /// Containers that may be open at once. The deepest thing in a snapshot is a frame, at 10.
    pub open: usize,
    /// Values that may wait for their container. PyTorch's C++ pickler writes a list of any length in one go.
    pub waiting: usize,
    /// Values that may be remembered for later references.
    pub remembered: usize,
}

impl Limits {
    /// Never more than this many times the size of the file.
    pub const TIMES_FILE: u64 = 10;
    /// What is allowed even for the smallest file, in bytes: the tables start at some size.
    pub const LEAST: u64 = 1 << 20;
    /// The hard cap where the caller names none, in bytes. The daemon's machine belongs to the job.
    pub const MEMORY_BYTES: u64 = 2 << 30;

    /// The bounds for a file of that size, under a hard cap, both in bytes.
    pub fn for_file(len: u64, cap_bytes: u64) -> Self {
        Self {
            // Text is kept as places in the file, in 32 bits.
            file_bytes: cap_bytes.min(u64::from(u32::MAX)),
            memory_bytes: len.saturating_mul(Self::TIMES_FILE).max(Self::LEAST).min(cap_bytes),
            open: 256,
            waiting: 1 << 25,
            remembered: 1 << 27,
        }
    }
}

/// Memory taken so far, against what may be taken.
#[derive(Clone, Debug)]
pub struct Budget {
    used: u64,
    most: u64,
    limit: u64,
}

/// More memory would have been needed than [`Limits`] allow.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("needs more than the {limit} bytes of memory allowed for it")]
pub struct OverBudget {
    /// The limit, in bytes.
    pub limit: u64,
}

impl Budget {
    /// A budget of which the file itself is already spent.
    pub fn new(limits: &Limits, file: &[u8]) -> Self {
        let used = len64(file.len());
        Self { used, most: used, limit: limits.memory_bytes }
    }

    /// The most that was held at once, in bytes.
    pub const fn most(&self) -> u64 {
        self.most
    }

    /// Takes `bytes`.
    ///
    /// # Errors
    /// Where they would go over the limit; nothing is taken then.
    pub fn take(&mut self, bytes: u64) -> Result<(), OverBudget> {
        let used = self.used.saturating_add(bytes);
        if used > self.limit {
            return Err(OverBudget { limit: self.limit });
        }
        self.used = used;
        self.most = self.most.max(used);
        Ok(())
    }

    /// Gives back what [`Self::take`] took.
    pub const fn give(&mut self, bytes: u64) {
        self.used = self.used.saturating_sub(bytes);
    }

    /// Appends to `list`, charging its growth.
    ///
    /// # Errors
    /// Where the list would have to grow beyond the limit.
    #[inline]
    pub fn push<T>(&mut self, list: &mut Vec<T>, value: T) -> Result<(), OverBudget> {
        if list.len() == list.capacity() {
            self.reserve(list, 1)?;
        }
        list.push(value);
        Ok(())
    }

    /// Makes room for `more` in `list`, charging it. While a list moves, its old and its new place are both held.
    ///
    /// # Errors
    /// Where the list would have to grow beyond the limit, or the machine has no memory.
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

    /// Empties `list` and gives its memory back.
    pub fn drop<T>(&mut self, list: &mut Vec<T>) {
        self.give(bytes_of::<T>(list.capacity()));
        *list = Vec::new();
    }
}

/// The memory of that many values, in bytes.
pub(crate) fn bytes_of<T>(count: usize) -> u64 {
    len64(count.saturating_mul(size_of::<T>()))
}

/// A length is never more than 64 bits on the platforms there are.
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
