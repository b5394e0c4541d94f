//! How often something may happen within an hour.

use std::time::Duration;

use crate::model::time::Timestamp;

/// The window of the rate limits.
const WINDOW: Duration = Duration::from_secs(3600);

/// The last times something happened, as many as may happen in an hour.
#[derive(Clone, Debug)]
pub struct Rate {
    /// The newest, oldest first; its capacity is taken at the start.
    times: Vec<Timestamp>,
    most: usize,
}

impl Rate {
    /// Nothing happened yet; at most `most` times in an hour.
    pub fn new(most: u32) -> Self {
        let most = most as usize;
        Self { times: Vec::with_capacity(most), most }
    }

    /// How often it may still happen now.
    pub fn left(&self, now: Timestamp) -> u32 {
        let lately = self.times.iter().filter(|time| now.since(**time) < WINDOW).count();
        u32::try_from(self.most.saturating_sub(lately)).unwrap_or(u32::MAX)
    }

    /// It happened. More often than allowed is possible where a rule may ignore the limit.
    pub fn count(&mut self, now: Timestamp) {
        if self.most == 0 {
            return;
        }
        if self.times.len() == self.most {
            self.times.remove(0);
        }
        self.times.push(now);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_hour_later_it_may_happen_again() {
        let mut rate = Rate::new(2);
        let at = Timestamp::from_secs;
        assert_eq!(rate.left(at(0)), 2);
        rate.count(at(10));
        rate.count(at(20));
        assert_eq!([at(20), at(3609), at(3610), at(3620)].map(|now| rate.left(now)), [0, 0, 1, 2]);
        rate.count(at(30));
        assert_eq!(rate.left(at(3615)), 0, "the newest two count");
        assert_eq!(Rate::new(0).left(at(0)), 0);
    }
}
