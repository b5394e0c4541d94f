//! What may still be taken below a limit of memory, and when a level of it is crossed.

use super::units::{Amount, Bytes};

/// What may still be taken below one limit, as the kernel counts it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Room {
    /// Bytes that can be taken without swapping.
    pub memory: Bytes,
    /// The limit, in bytes; 0 where it is not known.
    pub limit: Bytes,
    /// Free swap in bytes that processes below the limit can use.
    pub swap: Bytes,
    /// That swap with what they use of it, in bytes; 0 where they have none.
    pub swap_limit: Bytes,
}

/// The swap that some processes can use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SwapRoom {
    /// Free, in bytes.
    pub left: Bytes,
    /// With what they use of it, in bytes; 0 where they have none.
    pub limit: Bytes,
}

/// The swap of the host that processes in cgroups can use, by the version of the memory controller.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GroupSwap {
    /// That of groups whose own `memory.swappiness` is not 0.
    pub v1: SwapRoom,
    pub v2: SwapRoom,
}

impl Room {
    /// The room below a limit that has no swap.
    pub const fn new(memory: Bytes, limit: Bytes) -> Self {
        Self { memory, limit, swap: Bytes::ZERO, swap_limit: Bytes::ZERO }
    }

    /// The same with swap.
    #[must_use]
    pub const fn with_swap(self, swap: SwapRoom) -> Self {
        Self { swap: swap.left, swap_limit: swap.limit, ..self }
    }

    /// The swap of it.
    pub const fn swap(self) -> SwapRoom {
        SwapRoom { left: self.swap, limit: self.swap_limit }
    }

    /// Bytes until the limit ends or throttles processes: memory and swap.
    pub const fn left(self) -> Bytes {
        self.memory.saturating_add(self.swap)
    }

    /// The same without swap.
    #[must_use]
    pub const fn without_swap(self) -> Self {
        Self::new(self.memory, self.limit)
    }

    /// Memory in use, in bytes, without swap.
    pub const fn used(self) -> Bytes {
        self.limit.saturating_sub(self.memory)
    }

    /// Whether the amounts contradict each other.
    pub const fn is_implausible(self) -> bool {
        self.limit.get() == 0
            || self.memory.get() > self.limit.get()
            || self.swap.get() > self.swap_limit.get()
    }

    /// The level that an amount means here. A share is one of memory and one of swap: the level is crossed where memory *and* swap
    /// are at or below it, as earlyoom has it. A size is compared with both together.
    pub fn level(self, amount: Amount) -> Level {
        Level {
            memory: amount.of(self.limit),
            swap: matches!(amount, Amount::Share(_)).then(|| amount.of(self.swap_limit)),
        }
    }

    /// Whether no more than a level is left.
    pub fn is_within(self, level: Level) -> bool {
        match level.swap {
            Some(swap) => self.memory <= level.memory && self.swap <= swap,
            None => self.left() <= level.memory,
        }
    }

    /// Bytes that must be taken at least until the level is crossed.
    pub fn until(self, level: Level) -> Bytes {
        match level.swap {
            Some(swap) => {
                self.memory.saturating_sub(level.memory).saturating_add(self.swap.saturating_sub(swap))
            }
            None => self.left().saturating_sub(level.memory),
        }
    }

    /// Bytes that must be given back until the level is not crossed any more; 0 where it is not.
    pub fn lacking(self, level: Level) -> Bytes {
        if !self.is_within(level) {
            return Bytes::ZERO;
        }
        let above = |level: Bytes, left: Bytes| level.saturating_sub(left).saturating_add(Bytes::new(1));
        match level.swap {
            None => above(level.memory, self.left()),
            Some(swap) if self.swap_limit > Bytes::ZERO => {
                above(level.memory, self.memory).min(above(swap, self.swap))
            }
            Some(_) => above(level.memory, self.memory),
        }
    }
}

/// A level of one room.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Level {
    /// Of memory, in bytes.
    memory: Bytes,
    /// Of swap, in bytes; absent where `memory` is compared with both together.
    swap: Option<Bytes>,
}

impl Level {
    /// No room at all.
    pub const EXHAUSTED: Self = Self { memory: Bytes::ZERO, swap: Some(Bytes::ZERO) };

    /// Its memory in bytes.
    pub const fn memory(self) -> Bytes {
        self.memory
    }

    /// The level halfway to a lower one.
    #[must_use]
    pub fn halfway(self, lower: Self) -> Self {
        let between = |one: Bytes, other: Bytes| Bytes::new(one.get().midpoint(other.get()));
        Self {
            memory: between(self.memory, lower.memory),
            swap: self.swap.map(|swap| between(swap, lower.swap.unwrap_or_default())),
        }
    }

    /// The level that is higher by another one.
    #[must_use]
    pub fn plus(self, other: Self) -> Self {
        Self {
            memory: self.memory.saturating_add(other.memory),
            swap: self.swap.map(|swap| swap.saturating_add(other.swap.unwrap_or_default())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn room(memory: u64, swap: u64) -> Room {
        let [memory, swap] = [memory, swap].map(Bytes::new);
        Room { memory, limit: Bytes::new(1000), swap, swap_limit: Bytes::new(200) }
    }

    #[test]
    fn a_share_is_crossed_where_memory_and_swap_are_at_or_below_it() {
        let level = |room: Room| room.is_within(room.level(Amount::Share(0.1)));
        assert!(level(room(100, 20)) && level(room(0, 0)));
        assert!(!level(room(0, 21)), "swap is left");
        assert!(!level(room(101, 0)), "memory is left");
        assert!(level(room(100, 200).without_swap()));
        assert_eq!(room(150, 50).until(room(150, 50).level(Amount::Share(0.1))), Bytes::new(80));
    }

    #[test]
    fn a_size_is_compared_with_memory_and_swap_together() {
        let level = |room: Room| room.is_within(room.level(Amount::Bytes(Bytes::new(100))));
        assert!(level(room(60, 40)) && level(room(100, 0)));
        let lacking = |room: Room, amount| room.lacking(room.level(amount)).get();
        let size = Amount::Bytes(Bytes::new(100));
        assert_eq!([room(60, 40), room(10, 0), room(60, 41)].map(|room| lacking(room, size)), [1, 91, 0]);
        let share = Amount::Share(0.1);
        assert_eq!([room(40, 5), room(40, 21)].map(|room| lacking(room, share)), [16, 0]);
        assert_eq!(lacking(room(40, 0).without_swap(), share), 61);
        assert!(!level(room(60, 41)) && !level(room(101, 0)));
        let [size, share] =
            [Amount::Bytes(Bytes::new(100)), Amount::Share(0.1)].map(|amount| room(0, 0).level(amount));
        assert!(room(180, 20).is_within(size.plus(share)) && !room(180, 21).is_within(size.plus(share)));
        assert!(room(50, 10).is_within(share.halfway(Level::EXHAUSTED)));
        assert!(!room(50, 11).is_within(share.halfway(Level::EXHAUSTED)));
    }

    #[test]
    fn contradictions_are_implausible() {
        assert!(!room(1000, 200).is_implausible());
        assert!(room(1001, 0).is_implausible() && room(0, 201).is_implausible());
        assert!(Room::default().is_implausible(), "nothing is known");
    }
}
