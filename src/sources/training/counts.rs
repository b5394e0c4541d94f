//! What the listener counted, and what of it is worth a line in the log.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::formats::messages::Body;
use crate::model::lock::lock;
use crate::model::time::Timestamp;

macro_rules! kinds {
    ($(#[$doc:meta])* $name:ident {$($(#[$each:meta])* $variant:ident = $label:literal),+ $(,)?}) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum $name {
            $($(#[$each])* $variant),+
        }

        impl $name {
            /// Every one, so that their counters start at zero.
            pub const ALL: &'static [Self] = &[$(Self::$variant),+];

            /// The value of the label.
            pub const fn label(self) -> &'static str {
                match self {
                    $(Self::$variant => $label),+
                }
            }
        }
    };
}

kinds! {
    /// What can be wrong with what a client sends.
    Wrong {
        /// A line is too long.
        Length = "length",
        /// It is not UTF-8.
        Encoding = "encoding",
        /// It is not a JSON object.
        Json = "json",
        /// A key is missing, or its value is not what the protocol says.
        Key = "key",
        /// A total fell.
        Falling = "falling",
        /// A message before the first `hello`.
        NoHello = "no_hello",
        /// A rank outside its world, or one that changes again and again.
        Rank = "rank",
        /// More phases or events than are kept.
        Excess = "excess",
        /// The stream ended within a line.
        Torn = "torn",
        /// A line was not finished in time.
        Stalled = "stalled",
        /// The user's processes have too many unfinished lines.
        Memory = "memory",
    }
}

kinds! {
    /// Why a client was turned away.
    Refused {
        /// Too many clients.
        Clients = "clients",
        /// Too many of one user.
        User = "user",
        /// Its place was given to a user who had fewer.
        Share = "share",
        /// The kernel did not say who it is, or had no descriptor left.
        System = "system",
    }
}

/// The most lines in the log about bad messages in a minute: anybody can send them.
const LINES: u32 = 10;

/// Everything that is counted.
#[derive(Debug, Default)]
pub struct Counts {
    /// Messages, in the order of [`Body::TYPES`].
    messages: [AtomicU64; Body::TYPES.len()],
    wrong: [AtomicU64; Wrong::ALL.len()],
    refused: [AtomicU64; Refused::ALL.len()],
    /// Bytes read.
    pub bytes: AtomicU64,
    /// Times a client was not read for a while because it sends too much.
    pub paused: AtomicU64,
    /// Clients whose process is not known for certain.
    pub unproven: AtomicU64,
    /// When the minute began, and how many lines there were in it.
    lines: Mutex<(Option<Timestamp>, u32)>,
}

impl Counts {
    /// A message was understood.
    pub fn message(&self, body: &Body) {
        self.messages[body.place()].fetch_add(1, Ordering::Relaxed);
    }

    /// Something was wrong.
    pub fn wrong(&self, kind: Wrong) {
        self.wrong[kind as usize].fetch_add(1, Ordering::Relaxed);
    }

    /// A client was turned away.
    pub fn refused(&self, why: Refused) {
        self.refused[why as usize].fetch_add(1, Ordering::Relaxed);
    }

    /// Messages so far, by type.
    pub fn messages(&self) -> impl Iterator<Item = (&'static str, u64)> {
        Body::TYPES.into_iter().zip(self.messages.iter().map(|count| count.load(Ordering::Relaxed)))
    }

    /// What was wrong so far, by kind.
    pub fn wrongs(&self) -> impl Iterator<Item = (Wrong, u64)> {
        let counts = self.wrong.iter().map(|count| count.load(Ordering::Relaxed));
        Wrong::ALL.iter().copied().zip(counts)
    }

    /// Clients turned away so far, by reason.
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
    fn a_flood_of_bad_lines_is_no_flood_in_the_log() {
        let counts = Counts::default();
        let logged = |second| (0..1_000).filter(|_| counts.may_log(Timestamp::from_secs(second))).count();
        assert_eq!([logged(100), logged(159), logged(160)], [10, 0, 10]);
    }

    #[test]
    fn each_kind_has_a_count_of_its_own() {
        let counts = Counts::default();
        for kind in Wrong::ALL {
            counts.wrong(*kind);
        }
        counts.refused(Refused::User);
        assert!(counts.wrongs().all(|(_, count)| count == 1));
        assert_eq!(counts.refusals().map(|(_, count)| count).collect::<Vec<_>>(), [0, 1, 0, 0]);
    }
}
