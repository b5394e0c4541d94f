//! A limit that was reached, and at whose cost.
//!
//! Every bounded table of the daemon has a share for each user, so that one
//! user cannot use up the places of another. What a share or a table had no
//! room for is stated here, and the engine makes a metric, a finding and a
//! log line of it.

use std::collections::BTreeMap;
use std::time::Duration;

use super::time::Timestamp;

/// What one limit left out, in one tick, of one user.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shortage {
    /// The limit's name, which is a label value: `job_connections`, `otlp_ranks`.
    pub limit: &'static str,
    /// Whose things were left out; absent where the limit has no user.
    pub user: Option<u32>,
    /// How many of them are left out now.
    pub left_out: u64,
    /// The places there are for all users together.
    pub most: u64,
}

/// How long after the last one a limit that turns things away counts as reached.
const LATELY: Duration = Duration::from_secs(60);
/// Users that are told by name; the things of others are told together.
const USERS: usize = 32;

/// What a limit turned away lately, for limits that are reached between two ticks and not in them.
#[derive(Debug)]
pub struct TurnedAway {
    limit: &'static str,
    /// How many of each user since the limit was reached, and when the last was.
    users: BTreeMap<Option<u32>, (u64, Timestamp)>,
}

impl TurnedAway {
    /// Nothing yet, by the limit of this name.
    pub const fn new(limit: &'static str) -> Self {
        Self { limit, users: BTreeMap::new() }
    }

    /// One more of this user.
    pub fn note(&mut self, user: Option<u32>, at: Timestamp) {
        let known = self.users.contains_key(&user) || self.users.len() < USERS;
        let (count, last) = self.users.entry(user.filter(|_| known)).or_insert((0, at));
        *count += 1;
        *last = at;
    }

    /// What is to be stated now, where there are so many places.
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
    fn what_was_turned_away_is_told_for_a_minute_and_of_few_users() {
        let mut turned = TurnedAway::new("places");
        let told = |turned: &mut TurnedAway, second| -> Vec<(Option<u32>, u64)> {
            let now = Timestamp::from_secs(second);
            turned.shortages(4, now).map(|shortage| (shortage.user, shortage.left_out)).collect()
        };
        turned.note(Some(7), Timestamp::from_secs(100));
        turned.note(Some(7), Timestamp::from_secs(130));
        turned.note(Some(9), Timestamp::from_secs(120));
        assert_eq!(told(&mut turned, 179), [(Some(7), 2), (Some(9), 1)]);
        assert_eq!(told(&mut turned, 189), [(Some(7), 2)]);
        assert_eq!(told(&mut turned, 190), []);
        for user in 0..1_000 {
            turned.note(Some(user), Timestamp::from_secs(200));
        }
        let told = told(&mut turned, 200);
        assert_eq!((told.len(), told[0]), (USERS + 1, (None, 1_000 - USERS as u64)));
    }
}
