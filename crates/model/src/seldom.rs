//! Limits lines of the log about what others can cause as often as they like.

use std::sync::Mutex;
use std::time::Duration;

use super::lock::lock;
use super::time::Timestamp;

/// Minimum time between two lines that say the same; what they are about is counted each time.
const INTERVAL: Duration = Duration::from_secs(60);

/// When a line was last written, and what it said.
#[derive(Debug, Default)]
pub struct Seldom(Mutex<Option<(Timestamp, String)>>);

impl Seldom {
    /// Whether a line that says `what` may be written now; if so, the next one that says the same may be a minute later.
    pub fn is_due(&self, now: Timestamp, what: &str) -> bool {
        let mut last = lock(&self.0);
        let is_due =
            last.as_ref().is_none_or(|(before, said)| said != what || now.since(*before) >= INTERVAL);
        if is_due {
            *last = Some((now, what.to_owned()));
        }
        is_due
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_minute_has_one_line() {
        let seldom = Seldom::default();
        let lines = (0..180).filter(|second| seldom.is_due(Timestamp::from_secs(1_000 + second), "a"));
        assert_eq!(lines.collect::<Vec<_>>(), [0, 60, 120]);
        assert!(seldom.is_due(Timestamp::from_secs(1_179), "b"), "it is news");
    }
}
