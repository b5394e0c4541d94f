//! Limits lines of the log about what others can cause as often as they like.

use std::sync::Mutex;
use std::time::Duration;

use super::lock::lock;
use super::time::Timestamp;

/// Minimum time between two lines; what they are about is counted each time.
const INTERVAL: Duration = Duration::from_secs(60);

/// When a line was last written.
#[derive(Debug, Default)]
pub struct Seldom(Mutex<Option<Timestamp>>);

impl Seldom {
    /// Whether a line may be written now; if so, the next one may be a minute later.
    pub fn is_due(&self, now: Timestamp) -> bool {
        let mut last = lock(&self.0);
        let is_due = last.is_none_or(|before| now.since(before) >= INTERVAL);
        if is_due {
            *last = Some(now);
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
        let lines = (0..180).filter(|second| seldom.is_due(Timestamp::from_secs(1_000 + second)));
        assert_eq!(lines.collect::<Vec<_>>(), [0, 60, 120]);
    }
}
