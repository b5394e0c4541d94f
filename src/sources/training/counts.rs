//! Counters of the listener, and the rate limit of its log messages.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::formats::lines::LineError;
use crate::formats::messages::Body;
use crate::model::lock::lock;
use crate::model::names::named;
use crate::model::time::Timestamp;

named! {
    /// Errors in the messages of a client.
    pub enum Wrong {
        /// A line is too long.
        Length = "length",
        /// A line is not UTF-8.
        Encoding = "encoding",
        /// A line is not a JSON object.
        Json = "json",
        /// A key is missing or has an invalid value.
        Key = "key",
        /// A total decreased.
        Decreased = "falling",
        /// A message before the first `hello`.
        NoHello = "no_hello",
        /// A rank outside its world, or changed too often.
        Rank = "rank",
        /// More phases or events than are kept.
        Excess = "excess",
        /// The stream ended within a line.
        Torn = "torn",
        /// A line was not completed in time.
        Stalled = "stalled",
        /// The user's processes have too many bytes of incomplete lines.
        Memory = "memory",
    }

    /// Why a client was disconnected.
    pub enum Refused {
        /// The limit of all connections was reached.
        Clients = "clients",
        /// The limit of connections of one user was reached.
        User = "user",
        /// It was disconnected for a user with fewer connections.
        Share = "share",
        /// The kernel did not identify it, or no file descriptor was available.
        System = "system",
    }
}

impl From<LineError> for Wrong {
    fn from(error: LineError) -> Self {
        match error {
            LineError::Length => Self::Length,
            LineError::Memory => Self::Memory,
        }
    }
}

/// Most log messages per minute about invalid messages, because any user can cause them.
const LINES: u32 = 10;

/// Counters of the listener.
#[derive(Debug, Default)]
pub struct Counts {
    /// Valid messages, in the order of [`Body::TYPES`].
    messages: [AtomicU64; Body::TYPES.len()],
    wrong: [AtomicU64; Wrong::ALL.len()],
    refused: [AtomicU64; Refused::ALL.len()],
    pub bytes: AtomicU64,
    /// Times that reading from a client was paused because it exceeded the message rate.
    pub paused: AtomicU64,
    /// Clients whose process could not be verified.
    pub unproven: AtomicU64,
    /// When the current minute began, and the number of log messages in it.
    lines: Mutex<(Option<Timestamp>, u32)>,
}

impl Counts {
    pub fn message(&self, body: &Body) {
        if let Some(place) = Body::TYPES.iter().position(|kind| *kind == body.kind()) {
            self.messages[place].fetch_add(1, Ordering::Relaxed);
        }
    }

    pub fn wrong(&self, kind: Wrong) {
        self.wrong[kind as usize].fetch_add(1, Ordering::Relaxed);
    }

    /// Counts a disconnected client.
    pub fn refused(&self, why: Refused) {
        self.refused[why as usize].fetch_add(1, Ordering::Relaxed);
    }

    /// Messages so far, by type.
    pub fn messages(&self) -> impl Iterator<Item = (&'static str, u64)> {
        Body::TYPES.iter().copied().zip(self.messages.iter().map(|count| count.load(Ordering::Relaxed)))
    }

    /// Errors so far, by kind.
    pub fn wrongs(&self) -> impl Iterator<Item = (Wrong, u64)> {
        let counts = self.wrong.iter().map(|count| count.load(Ordering::Relaxed));
        Wrong::ALL.iter().copied().zip(counts)
    }

    /// Clients disconnected so far, by reason.
    pub fn refusals(&self) -> impl Iterator<Item = (Refused, u64)> {
        let counts = self.refused.iter().map(|count| count.load(Ordering::Relaxed));
        Refused::ALL.iter().copied().zip(counts)
    }

    /// Whether one more line may be logged.
    pub fn may_log(&self, now: Timestamp) -> bool {
        let mut lines = lock(&self.lines);
        let (begun, count) = *lines;
        let Some(begun) = begun.filter(|begun| now.since(*begun) < Duration::from_secs(60)) else {
            *lines = (Some(now), 1);
            return true;
        };
        *lines = (Some(begun), count.saturating_add(1));
        count < LINES
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn many_invalid_lines_are_logged_at_a_limited_rate() {
        let counts = Counts::default();
        let logged = |second| (0..1_000).filter(|_| counts.may_log(Timestamp::from_secs(second))).count();
        assert_eq!([logged(100), logged(159), logged(160)], [10, 0, 10]);
    }

    #[test]
    fn each_kind_has_a_count_of_its_own() {
        let counts = Counts::default();
        for kind in Wrong::ALL {
            counts.wrong(kind);
        }
        counts.refused(Refused::User);
        assert!(counts.wrongs().all(|(_, count)| count == 1));
        assert_eq!(counts.refusals().map(|(_, count)| count).collect::<Vec<_>>(), [0, 1, 0, 0]);
    }
}
