//! The helper processes that touch and watch files of users. One that hangs in a file system of a user does not end with
//! SIGKILL. A thread for each waits for its end.

use std::sync::{Arc, Weak};
use std::time::Duration;

use crate::model::subordinate::payer;
use crate::model::time::Timestamp;

/// After this time a helper hangs whose result nobody awaits any more; its thread kills it within 100 ms.
const HANG_TIMEOUT: Duration = Duration::from_secs(1);
/// Maximum number of helpers that hang, of one user and of all.
const MOST_OF_USER: usize = 2;
const MOST: usize = 16;

#[derive(Debug)]
struct Running {
    /// The user of the job.
    owner: Option<u32>,
    /// Held by the thread that waits for the end of the helper.
    thread: Weak<()>,
    /// Held by whoever awaits its result.
    awaited: Weak<()>,
    /// Since when nobody does.
    since: Option<Timestamp>,
}

/// The helpers that have not ended.
#[derive(Debug, Default)]
pub(super) struct Helpers(Vec<Running>);

/// What the thread of a helper and whoever awaits its result hold while they do.
#[derive(Debug)]
pub(super) struct Token {
    pub(super) thread: Arc<()>,
    pub(super) awaited: Arc<()>,
}

impl Helpers {
    /// Forgets the helpers that have ended.
    pub(super) fn look(&mut self, now: Timestamp) {
        self.0.retain_mut(|running| {
            if running.awaited.strong_count() == 0 {
                running.since.get_or_insert(now);
            }
            running.thread.strong_count() > 0
        });
    }

    /// Admits one more helper, for a job of this owner; nothing if too many hang.
    pub(super) fn admit(&mut self, owner: Option<u32>, now: Timestamp) -> Option<Token> {
        self.look(now);
        let owner = owner.map(payer);
        let hanging = self
            .0
            .iter()
            .filter(|running| running.since.is_some_and(|since| now.since(since) >= HANG_TIMEOUT));
        let (mut all, mut own) = (0, 0);
        for running in hanging {
            all += 1;
            own += usize::from(running.owner == owner);
        }
        if own >= MOST_OF_USER || all >= MOST {
            return None;
        }
        let token = Token { thread: Arc::default(), awaited: Arc::default() };
        let (thread, awaited) = (Arc::downgrade(&token.thread), Arc::downgrade(&token.awaited));
        self.0.push(Running { owner, thread, awaited, since: None });
        Some(token)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn helpers_that_hang_are_few_and_shared_between_users() {
        let mut helpers = Helpers::default();
        let at = Timestamp::from_secs;
        let mut hung = Vec::new();
        // Nobody awaits these any more, and they do not end.
        let mut hang = |helpers: &mut Helpers, user: u32, second| {
            let Some(Token { thread, .. }) = helpers.admit(Some(user), at(second)) else { return false };
            hung.push(thread);
            helpers.look(at(second));
            true
        };
        assert_eq!([10, 20, 30].map(|second| hang(&mut helpers, 7, second)), [true, true, false]);
        let others: Vec<bool> = (100..110)
            .map(|user| {
                hang(&mut helpers, user, 40 + u64::from(user))
                    && hang(&mut helpers, user, 90 + u64::from(user))
            })
            .collect();
        assert_eq!(others.iter().filter(|admitted| **admitted).count(), 7, "{others:?}");
        // One that ends makes place, and those that are awaited take none.
        hung.truncate(1);
        let awaited: Vec<_> = (0..100).map(|_| helpers.admit(Some(7), at(900))).collect();
        assert!(awaited.iter().all(Option::is_some));
    }
}
