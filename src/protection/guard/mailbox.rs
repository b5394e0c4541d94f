//! A mailbox for one value: one thread puts the newest value, another takes it without blocking.
//!
//! Values that the receiver no longer needs go back to the sender, so that the receiver neither allocates nor frees.

use std::sync::Mutex;

use crate::model::lock::lock;

/// A mailbox for one value.
#[derive(Debug)]
pub(super) struct Mailbox<T>(Mutex<Both<T>>);

#[derive(Debug)]
struct Both<T> {
    fresh: Option<Box<T>>,
    used: Option<Box<T>>,
}

impl<T> Default for Mailbox<T> {
    fn default() -> Self {
        Self(Mutex::new(Both { fresh: None, used: None }))
    }
}

impl<T> Mailbox<T> {
    /// Puts a value; `merge` takes over from a value that was not taken what must not be lost.
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

    /// Whether there is no new value.
    pub(super) fn is_empty(&self) -> bool {
        self.0.try_lock().is_ok_and(|both| both.fresh.is_none())
    }

    /// Takes the newest value in exchange for the one held before; changes nothing while the sender holds the lock.
    /// Returns whether a value was taken.
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
    fn values_not_yet_taken_are_merged() {
        let mailbox = Mailbox::default();
        let add = |new: &mut Vec<u8>, old: &mut Vec<u8>| new.append(old);
        let mut held = None;
        assert!(!mailbox.take(&mut held));
        mailbox.give(Box::new(vec![1]), add);
        mailbox.give(Box::new(vec![2]), add);
        assert!(mailbox.take(&mut held));
        assert_eq!(held.as_deref(), Some(&vec![2, 1]));
        assert!(!mailbox.take(&mut held) && held.is_some(), "nothing new");
        mailbox.give(Box::new(vec![3]), add);
        assert!(mailbox.take(&mut held));
        assert_eq!(held.as_deref(), Some(&vec![3]));
    }
}
