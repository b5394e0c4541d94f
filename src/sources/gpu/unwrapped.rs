//! Driver counters that restart at zero.

/// A driver counter that wraps, converted to one that only grows.
#[derive(Clone, Copy, Debug, Default)]
pub struct Unwrapped {
    base: u64,
    last: u64,
}

impl Unwrapped {
    /// Adds the driver's newest value.
    pub fn feed(&mut self, raw: u64) {
        if raw < self.last {
            self.base = self.base.saturating_add(self.last);
        }
        self.last = raw;
    }

    pub fn total(self) -> u64 {
        self.base.saturating_add(self.last)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_total_only_grows() {
        let mut counter = Unwrapped::default();
        let totals = [5, 9, 2, 2, 0, u64::MAX, 1].map(|raw| {
            counter.feed(raw);
            counter.total()
        });
        assert_eq!(totals, [5, 9, 11, 11, 11, u64::MAX, u64::MAX]);
    }
}
