//! Initialization: a reference count, and the driver generation of its first reference.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::abi::{Answer, Code};
use crate::loaded::Loaded;

/// The count in the upper half and the generation in the lower, so that both change at once.
static SESSION: AtomicU64 = AtomicU64::new(0);

const ONE: u64 = 1 << 32;

/// Takes a reference; only the first one adopts the driver's current generation.
pub(crate) fn enter(loaded: &Loaded) {
    let generation = u64::from(loaded.scenario.driver_generation);
    let next = |session: u64| Some(if session < ONE { ONE | generation } else { session + ONE });
    let _ = SESSION.fetch_update(Ordering::SeqCst, Ordering::SeqCst, next);
}

/// Releases a reference and returns whether it was the last; `UNINITIALIZED` if there was none.
pub(crate) fn leave() -> Result<bool, Code> {
    let next = |session: u64| session.checked_sub(ONE);
    match SESSION.fetch_update(Ordering::SeqCst, Ordering::SeqCst, next) {
        Ok(before) => Ok(before < 2 * ONE),
        Err(_) => Err(Code::UNINITIALIZED),
    }
}

/// `UNINITIALIZED` without a reference, and after the driver was reloaded under one.
pub(crate) fn check(loaded: &Loaded) -> Answer {
    let session = SESSION.load(Ordering::SeqCst);
    let generation = session & 0xFFFF;
    if session < ONE || generation != u64::from(loaded.scenario.driver_generation) {
        Err(Code::UNINITIALIZED)
    } else {
        Ok(())
    }
}
