//! The ids that users may use in their own user namespaces (subuid(5)): they share what their user has.
//!
//! Every bounded table asks [`payer`], through [`crate::fair`] or itself, so that no table counts an id for a user.

use std::sync::{Arc, PoisonError, RwLock};

/// The ids of this host, as last published.
static OF_HOST: RwLock<Option<Arc<SubordinateIds>>> = RwLock::new(None);

/// Publishes the ids of this host, for [`payer`].
pub fn publish(ids: &Arc<SubordinateIds>) {
    let mut known = OF_HOST.write().unwrap_or_else(PoisonError::into_inner);
    if known.as_ref().is_none_or(|known| !Arc::ptr_eq(known, ids)) {
        *known = Some(Arc::clone(ids));
    }
}

/// The user whose share what belongs to this id takes: the id itself, or the user whose subordinate id it is.
pub fn payer(uid: u32) -> u32 {
    let known = OF_HOST.read().unwrap_or_else(PoisonError::into_inner);
    known.as_ref().map_or(uid, |known| known.owner(uid))
}

/// The subordinate ids of all users.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SubordinateIds(Vec<(u32, u32, u32)>);

impl SubordinateIds {
    /// The ids in these ranges: first id, count, and user of each.
    pub fn new(mut ranges: Vec<(u32, u32, u32)>) -> Self {
        ranges.sort_unstable();
        Self(ranges)
    }

    /// The user to whom an id belongs: usually itself.
    pub fn owner(&self, uid: u32) -> u32 {
        let mut before = self.0.iter().take_while(|(first, ..)| *first <= uid);
        let within = before.find(|(first, count, _)| uid - *first < *count);
        within.map_or(uid, |(_, _, owner)| *owner)
    }
}
