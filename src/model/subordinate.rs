//! The ids that users may use in their own user namespaces (subuid(5)): they share what their user has.

/// The subordinate ids of all users.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SubordinateIds(Vec<(u32, u32, u32)>);

impl SubordinateIds {
    /// The ids in these ranges: first id, count, and user of each.
    pub const fn new(ranges: Vec<(u32, u32, u32)>) -> Self {
        Self(ranges)
    }

    /// The user to whom an id belongs: usually itself.
    pub fn owner(&self, uid: u32) -> u32 {
        let within =
            self.0.iter().find(|(first, count, _)| uid.checked_sub(*first).is_some_and(|n| n < *count));
        within.map_or(uid, |(_, _, owner)| *owner)
    }
}
