//! A rate limit: a maximum number of events per hour, divided between users.

use std::time::Duration;

use crate::model::time::Timestamp;

/// The window of the rate limits.
const WINDOW: Duration = Duration::from_secs(3600);

/// The times of the last events, each with the user of the job.
#[derive(Clone, Debug)]
pub struct Rate {
    /// The newest, oldest first; its capacity is taken at the start.
    times: Vec<(Timestamp, Option<u32>)>,
    most: usize,
    /// The users who have jobs now, each once; its capacity is taken at the start.
    users: Vec<u32>,
}

impl Rate {
    /// Nothing happened yet; at most `most` times in an hour. There is room for as many users as there are `slots`.
    pub fn new(most: u32, slots: usize) -> Self {
        let most = most as usize;
        // Each user who comes later has its share, also where others have used up everything before.
        let times = Vec::with_capacity(2 * most + slots.min(2 * most));
        Self { times, most, users: Vec::with_capacity(slots) }
    }

    /// Who has jobs now.
    pub fn divide(&mut self, users: impl Iterator<Item = u32>) {
        self.users.clear();
        for user in users {
            if !self.users.contains(&user) && self.users.len() < self.users.capacity() {
                self.users.push(user);
            }
        }
    }

    fn lately(&self, now: Timestamp) -> impl Iterator<Item = Option<u32>> + '_ {
        self.times.iter().filter(move |(time, _)| now.since(*time) < WINDOW).map(|(_, user)| *user)
    }

    /// Events left in the current hour, for all users together.
    pub fn left(&self, now: Timestamp) -> u32 {
        u32::try_from(self.most.saturating_sub(self.lately(now).count())).unwrap_or(u32::MAX)
    }

    /// How often it may still happen now to jobs of this user.
    ///
    /// Each user who has jobs has an equal share, and at least once; beyond its share a user has what the shares of the
    /// others leave. A user who comes when another has used up everything has its share all the same.
    pub fn left_for(&self, now: Timestamp, user: Option<u32>) -> u32 {
        if self.most == 0 || self.times.capacity() == self.lately(now).count() {
            return 0;
        }
        let stranger = user.is_none_or(|user| !self.users.contains(&user));
        let users = self.users.len() + usize::from(stranger);
        let share = (self.most / users).max(1);
        let used = |user: Option<u32>| self.lately(now).filter(|other| *other == user).count();
        let others = self.users.iter().map(|other| Some(*other)).filter(|other| *other != user);
        let reserved: usize = others.map(|other| share.saturating_sub(used(other))).sum();
        let own = share.saturating_sub(used(user));
        let beyond = self.most.saturating_sub(self.lately(now).count() + reserved);
        u32::try_from(own.max(beyond)).unwrap_or(u32::MAX)
    }

    /// It happened. More often than allowed is possible where a rule may ignore the limit.
    pub fn count(&mut self, now: Timestamp, user: Option<u32>) {
        if self.most == 0 {
            return;
        }
        if self.times.len() == self.times.capacity() {
            self.times.remove(0);
        }
        self.times.push((now, user));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_hour_later_it_may_happen_again() {
        let mut rate = Rate::new(2, 64);
        let at = Timestamp::from_secs;
        assert_eq!(rate.left(at(0)), 2);
        rate.count(at(10), None);
        rate.count(at(20), None);
        assert_eq!([at(20), at(3609), at(3610), at(3620)].map(|now| rate.left(now)), [0, 0, 1, 2]);
        assert_eq!([at(20), at(3609), at(3610)].map(|now| rate.left_for(now, None)), [0, 0, 1]);
        rate.count(at(30), None);
        assert_eq!(rate.left(at(3615)), 0, "the newest two count");
        assert_eq!((Rate::new(0, 64).left(at(0)), Rate::new(0, 64).left_for(at(0), Some(7))), (0, 0));
    }

    #[test]
    fn one_user_cannot_use_up_the_share_of_another() {
        const ALICE: Option<u32> = Some(1001);
        const MALLORY: Option<u32> = Some(1002);
        let at = Timestamp::from_secs;
        let mut rate = Rate::new(5, 64);
        rate.divide([1002].into_iter());
        assert_eq!(rate.left_for(at(0), MALLORY), 5, "alone it has everything");
        rate.divide([1001, 1002, 1002].into_iter());
        let mut ended = 0;
        while rate.left_for(at(ended), MALLORY) > 0 {
            rate.count(at(ended), MALLORY);
            ended += 1;
        }
        assert_eq!((ended, rate.left_for(at(9), ALICE)), (3, 2));
        // Another one who comes now has its share, whoever was there before.
        rate.count(at(9), ALICE);
        rate.count(at(9), ALICE);
        rate.divide([1001, 1002, 1003].into_iter());
        assert_eq!([ALICE, MALLORY, Some(1003)].map(|user| rate.left_for(at(10), user)), [0, 0, 1]);
    }

    #[test]
    fn there_is_an_end_to_users_who_come_later() {
        let mut rate = Rate::new(1, 64);
        let at = Timestamp::from_secs(1);
        let ended = (0..100).take_while(|user| {
            rate.divide(std::iter::once(*user));
            let may = rate.left_for(at, Some(*user)) > 0;
            rate.count(at, Some(*user));
            may
        });
        assert!(ended.count() <= 8);
    }
}
