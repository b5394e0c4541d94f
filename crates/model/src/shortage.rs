//! Reached limits, and the users whose entries they leave out.
//!
//! Every bounded table of the daemon has a share for each user, so that one user cannot use up the slots of another.
//! What a share or a table had no slot for is recorded here, and the engine creates a metric, a finding and a log
//! line from it.

use std::collections::BTreeMap;
use std::time::Duration;

use super::subordinate::payer;
use super::time::Timestamp;

/// Number of entries of one user that one limit left out in one tick.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shortage {
    /// The limit's name, which is a label value: `job_connections`.
    pub limit: &'static str,
    /// The user whose entries were left out; absent where the limit is not per user.
    pub user: Option<u32>,
    /// Number of entries that are currently left out.
    pub left_out: u64,
    /// Total number of slots for all users.
    pub most: u64,
}

impl Shortage {
    /// The shortages of a limit with `most` slots, from the number of entries that it left out, by user.
    pub fn of_users<'m>(
        limit: &'static str,
        most: usize,
        left_out: impl IntoIterator<Item = (&'m u32, &'m u64)>,
    ) -> impl Iterator<Item = Self> {
        let users = left_out.into_iter().map(|(user, left_out)| (*user, *left_out));
        users.map(move |(user, left_out)| Self { limit, user: Some(user), left_out, most: most as u64 })
    }
}

/// How long a limit counts as reached after it last refused an entry.
const LATELY: Duration = Duration::from_secs(60);
/// Maximum number of users that are listed; the entries of further users are summed.
const USERS: usize = 32;

/// Recently refused entries, for limits that are reached between ticks.
#[derive(Debug)]
pub struct Refusals {
    limit: &'static str,
    /// Number of refused entries of each user since the limit was reached, and the time of the last one.
    users: BTreeMap<Option<u32>, (u64, Timestamp)>,
}

impl Refusals {
    /// Creates an empty record for the limit of this name.
    pub const fn new(limit: &'static str) -> Self {
        Self { limit, users: BTreeMap::new() }
    }

    /// Records a refused entry of this user.
    pub fn note(&mut self, user: Option<u32>, at: Timestamp) {
        let user = user.map(payer);
        let known = self.users.contains_key(&user) || self.users.len() < USERS;
        let (count, last) = self.users.entry(user.filter(|_| known)).or_insert((0, at));
        *count += 1;
        *last = at;
    }

    /// The current shortages of this limit, which has `most` slots.
    pub fn shortages(&mut self, most: usize, at: Timestamp) -> impl Iterator<Item = Shortage> {
        self.users.retain(|_, (_, last)| at.since(*last) < LATELY);
        let (limit, most) = (self.limit, most as u64);
        self.users.iter().map(move |(user, (left_out, _))| Shortage {
            limit,
            user: *user,
            left_out: *left_out,
            most,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refusals_are_reported_for_a_minute_and_for_few_users() {
        let mut refusals = Refusals::new("places");
        let shown = |refusals: &mut Refusals, second| -> Vec<(Option<u32>, u64)> {
            let now = Timestamp::from_secs(second);
            refusals.shortages(4, now).map(|shortage| (shortage.user, shortage.left_out)).collect()
        };
        refusals.note(Some(7), Timestamp::from_secs(100));
        refusals.note(Some(7), Timestamp::from_secs(130));
        refusals.note(Some(9), Timestamp::from_secs(120));
        assert_eq!(shown(&mut refusals, 179), [(Some(7), 2), (Some(9), 1)]);
        assert_eq!(shown(&mut refusals, 189), [(Some(7), 2)]);
        assert_eq!(shown(&mut refusals, 190), []);
        for user in 0..1_000 {
            refusals.note(Some(user), Timestamp::from_secs(200));
        }
        let shown = shown(&mut refusals, 200);
        assert_eq!((shown.len(), shown[0]), (USERS + 1, (None, 1_000 - USERS as u64)));
    }
}
