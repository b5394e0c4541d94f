//! Locks that remain usable when a thread panics.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Locks a mutex. A panic of another thread that held it does not matter: what our locks guard is whole between any two
/// statements that can panic.
pub fn lock<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_does_not_make_a_lock_unusable() {
        let mutex = Mutex::new(1);
        let panicked = std::thread::scope(|scope| {
            let held = scope.spawn(|| {
                let mut held = lock(&mutex);
                *held = 2;
                panic!("while it is held");
            });
            held.join().is_err()
        });
        assert!(panicked && mutex.is_poisoned());
        assert_eq!(*lock(&mutex), 2);
    }
}
