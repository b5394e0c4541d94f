//! What the receiver counted.

use std::sync::atomic::{AtomicU64, Ordering};

use super::metrics as m;
use crate::model::point::Batch;
use crate::model::units::Count;

macro_rules! kinds {
    ($(#[$doc:meta])* $name:ident {$($(#[$each:meta])* $variant:ident = $label:literal),+ $(,)?}) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub(super) enum $name {
            $($(#[$each])* $variant),+
        }

        impl $name {
            /// Every one, so that their counters start at zero.
            const ALL: &'static [Self] = &[$(Self::$variant),+];

            const fn label(self) -> &'static str {
                match self {
                    $(Self::$variant => $label),+
                }
            }
        }
    };
}

kinds! {
    /// How a push comes.
    Protocol {
        /// gRPC, over HTTP/2.
        Grpc = "grpc",
        /// Protobuf in the body of a POST.
        Http = "http",
    }
}

kinds! {
    /// What became of a request.
    Answer {
        /// All of it was understood or is of no concern.
        Taken = "taken",
        /// Some of its points were refused.
        Partial = "partial",
        /// It is no request of the protocol.
        Malformed = "malformed",
        /// It is too large, or would be.
        TooLarge = "too_large",
        /// Another signal, encoding, path or method.
        Unsupported = "unsupported",
        /// Too many at once.
        Busy = "busy",
        /// It did not come in time.
        Slow = "slow",
    }
}

kinds! {
    /// What became of a point.
    Outcome {
        /// It is shown.
        Taken = "taken",
        /// Nothing is known by this name, with this unit, shape or attributes.
        Unknown = "unknown",
        /// It is no figure of such a metric, or there is no room.
        Refused = "refused",
    }
}

kinds! {
    /// Why a connection was closed.
    Closed {
        /// Too many of them.
        Connections = "connections",
        /// Too many of one user.
        User = "user",
        /// Its place was given to a user who had fewer.
        Share = "share",
        /// Nothing came for long.
        Idle = "idle",
    }
}

/// Everything that is counted.
#[derive(Debug, Default)]
pub(super) struct Counts {
    requests: [[AtomicU64; Answer::ALL.len()]; Protocol::ALL.len()],
    points: [AtomicU64; Outcome::ALL.len()],
    closed: [AtomicU64; Closed::ALL.len()],
}

impl Counts {
    /// A request was answered.
    pub(super) fn request(&self, protocol: Protocol, answer: Answer) {
        self.requests[protocol as usize][answer as usize].fetch_add(1, Ordering::Relaxed);
    }

    /// So many points had an outcome.
    pub(super) fn points(&self, outcome: Outcome, count: u64) {
        self.points[outcome as usize].fetch_add(count, Ordering::Relaxed);
    }

    /// A connection was closed.
    pub(super) fn closed(&self, why: Closed) {
        self.closed[why as usize].fetch_add(1, Ordering::Relaxed);
    }

    /// Everything so far.
    pub(super) fn put(&self, out: &mut Batch) {
        let count = |count: &AtomicU64| Count(count.load(Ordering::Relaxed));
        for (protocol, answers) in Protocol::ALL.iter().zip(&self.requests) {
            for (answer, requests) in Answer::ALL.iter().zip(answers) {
                out.put(&m::REQUESTS, &[protocol.label().into(), answer.label().into()], count(requests));
            }
        }
        for (outcome, points) in Outcome::ALL.iter().zip(&self.points) {
            out.put(&m::POINTS, &[outcome.label().into()], count(points));
        }
        for (why, closed) in Closed::ALL.iter().zip(&self.closed) {
            out.put(&m::CLOSED, &[why.label().into()], count(closed));
        }
    }
}
