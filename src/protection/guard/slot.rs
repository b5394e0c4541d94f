//! A place where one thread leaves what is newest for another that never waits.
//!
//! What the taker is done with goes back to the giver, so that the taker
//! neither allocates nor frees.

use std::sync::Mutex;

use crate::model::lock::lock;

/// The place.
#[derive(Debug)]
pub(super) struct Slot<T>(Mutex<Both<T>>);

#[derive(Debug)]
struct Both<T> {
    fresh: Option<Box<T>>,
    used: Option<Box<T>>,
}

impl<T> Default for Slot<T> {
    fn default() -> Self {
        Self(Mutex::new(Both { fresh: None, used: None }))
    }
}

impl<T> Slot<T> {
    /// Leaves something; `merge` is given what nobody took, to keep what must not be lost.
    pub(super) fn give(&self, mut new: Box<T>, merge: impl FnOnce(&mut T, &mut T)) {
        let mut both = lock(&self.0);
        if let Some(mut unread) = both.fresh.take() {
            merge(&mut new, &mut unread);
        }
        both.fresh = Some(new);
        let used = both.used.take();
        drop(both);
        drop(used);
    }

    /// Takes what is newest in exchange for what was taken before; leaves things as they are where the giver is there.
    pub(super) fn take(&self, held: &mut Option<Box<T>>) -> bool {
        let Ok(mut both) = self.0.try_lock() else { return false };
        if both.fresh.is_none() || both.used.is_some() {
            return false;
        }
        both.used = held.take();
        *held = both.fresh.take();
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_nobody_took_is_merged() {
        let slot = Slot::default();
        let add = |new: &mut Vec<u8>, old: &mut Vec<u8>| new.append(old);
        let mut held = None;
        assert!(!slot.take(&mut held));
        slot.give(Box::new(vec![1]), add);
        slot.give(Box::new(vec![2]), add);
        assert!(slot.take(&mut held));
        assert_eq!(held.as_deref(), Some(&vec![2, 1]));
        assert!(!slot.take(&mut held) && held.is_some(), "nothing new");
        slot.give(Box::new(vec![3]), add);
        assert!(slot.take(&mut held));
        assert_eq!(held.as_deref(), Some(&vec![3]));
    }
}
