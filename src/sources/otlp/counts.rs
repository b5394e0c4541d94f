//! Counters of the receiver.

use std::sync::atomic::{AtomicU64, Ordering};

use super::metrics as m;
use crate::model::names::named;
use crate::model::point::Batch;
use crate::model::units::Count;

named! {
    pub(super) enum Protocol {
        /// gRPC, over HTTP/2.
        Grpc = "grpc",
        /// HTTP, with protobuf in the body of a POST.
        Http = "http",
    }

    /// Outcome of a request.
    pub(super) enum Answer {
        /// All points were accepted or unknown.
        Taken = "taken",
        /// Some of its points were rejected.
        Partial = "partial",
        /// It is not a valid OTLP request.
        Malformed = "malformed",
        /// Its body is too large, or would be when decoded.
        TooLarge = "too_large",
        /// Its signal, encoding, path or method is not supported.
        Unsupported = "unsupported",
        /// Too many concurrent requests.
        Busy = "busy",
        /// It was not received in time.
        Slow = "slow",
    }

    /// Outcome of a point.
    pub(super) enum Outcome {
        /// It was accepted.
        Taken = "taken",
        /// Its name, unit, type or attributes are not known.
        Unknown = "unknown",
        /// Its value is invalid, it is too old, or a limit was reached.
        Refused = "refused",
    }

    /// Why a connection was closed or refused.
    pub(super) enum Closed {
        /// The limit of all connections was reached.
        Connections = "connections",
        /// The limit of connections of one user was reached.
        User = "user",
        /// It was closed for a user with fewer connections.
        Share = "share",
        /// Too many frames of HTTP/2 were received for the number of requests.
        Frames = "frames",
        /// Nothing was received for too long.
        Idle = "idle",
    }
}

/// Counters of the receiver.
#[derive(Debug, Default)]
pub(super) struct Counts {
    requests: [[AtomicU64; Answer::ALL.len()]; Protocol::ALL.len()],
    points: [AtomicU64; Outcome::ALL.len()],
    closed: [AtomicU64; Closed::ALL.len()],
}

impl Counts {
    pub(super) fn request(&self, protocol: Protocol, answer: Answer) {
        self.requests[protocol as usize][answer as usize].fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn points(&self, outcome: Outcome, count: u64) {
        self.points[outcome as usize].fetch_add(count, Ordering::Relaxed);
    }

    /// Counts a closed or refused connection.
    pub(super) fn closed(&self, why: Closed) {
        self.closed[why as usize].fetch_add(1, Ordering::Relaxed);
    }

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
