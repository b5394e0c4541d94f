//! What a source is and how it says that it cannot.

use std::fmt;

use super::point::Batch;
use super::time::Timestamp;

/// Something that measures.
///
/// `sample` is called once a tick, on the sampler thread. It must not block on
/// anything that can hang (a device belongs in a process of its own), must not
/// print, and must not turn "unknown" into zero: what could not be read is left
/// out, and the error says why. Points put before an error are kept.
///
/// ```
/// use memwarden::model::{desc::Gauge, point::Batch, time::Timestamp, units::Count};
/// use memwarden::model::source::{Source, SourceError};
///
/// static ANSWER: Gauge<Count> = Gauge::new("memwarden_answer", "The answer.", &[]);
/// struct Answer;
/// impl Source for Answer {
///     fn sample(&mut self, _at: Timestamp, out: &mut Batch) -> Result<(), SourceError> {
///         out.put(&ANSWER, &[], Count(42));
///         Ok(())
///     }
/// }
/// ```
pub trait Source: Send {
    /// Measures once and puts what it found into `out`.
    fn sample(&mut self, at: Timestamp, out: &mut Batch) -> Result<(), SourceError>;

    /// Is told of an operator's request; most sources have nothing to do.
    fn control(&mut self, _request: Control) {}

    /// The daemon ends: the last chance to give back what a sudden end would harm, for less than a second.
    fn finish(&mut self) {}
}

/// Something beside the sources that has something to say in each frame.
///
/// `report` is called once a tick, on the sampler thread, and must not wait for anything.
pub trait Reporter: Send + Sync + fmt::Debug {
    /// Puts what it has to say.
    fn report(&self, at: Timestamp, out: &mut Batch);
}

/// What an operator may ask of the sources while they run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Control {
    /// Let go of the GPU driver, so that it can be unloaded.
    ReleaseGpu,
    /// Take the GPU driver up again.
    AcquireGpu,
}

/// Why a source has less to say than it should.
#[derive(Debug)]
pub enum SourceError {
    /// This host has no such thing; nothing is wrong.
    Unavailable {
        /// One sentence for the log, lower case, no final period.
        why: String,
    },
    /// It should be there and could not be read.
    Failed {
        /// Bounded: a label value.
        kind: Failure,
        /// One sentence for the log: what was attempted on which path or device, and the cause.
        why: String,
    },
}

/// The kinds of failure, which are label values.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Failure {
    /// A path that should exist does not.
    NotFound,
    /// The kernel refused.
    Permission,
    /// The text was not what the kernel's documentation promises.
    Parse,
    /// Any other error of the operating system.
    Io,
    /// No answer in time.
    Timeout,
    /// The device or its worker is gone.
    Lost,
    /// The source panicked; it was rebuilt.
    Panic,
}

impl Failure {
    /// Every kind, so that their counters start at zero.
    pub const ALL: [Self; 7] =
        [Self::NotFound, Self::Permission, Self::Parse, Self::Io, Self::Timeout, Self::Lost, Self::Panic];

    /// The value of the `kind` label.
    pub const fn label(self) -> &'static str {
        match self {
            Self::NotFound => "not_found",
            Self::Permission => "permission",
            Self::Parse => "parse",
            Self::Io => "io",
            Self::Timeout => "timeout",
            Self::Lost => "lost",
            Self::Panic => "panic",
        }
    }

    /// The kind of an error of the operating system.
    pub fn of(error: &std::io::Error) -> Self {
        match error.kind() {
            std::io::ErrorKind::NotFound => Self::NotFound,
            std::io::ErrorKind::PermissionDenied => Self::Permission,
            std::io::ErrorKind::InvalidData => Self::Parse,
            std::io::ErrorKind::TimedOut => Self::Timeout,
            _ => Self::Io,
        }
    }
}

impl fmt::Display for SourceError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unavailable { why } | Self::Failed { why, .. } => f.write_str(why),
        }
    }
}

impl std::error::Error for SourceError {}

impl SourceError {
    /// This host has no such thing.
    pub fn unavailable(why: impl Into<String>) -> Self {
        Self::Unavailable { why: why.into() }
    }

    /// It could not be read.
    pub fn failed(kind: Failure, why: impl Into<String>) -> Self {
        Self::Failed { kind, why: why.into() }
    }
}

/// What became of a source's last sample.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Status {
    /// It said all it can.
    Ok,
    /// This host has no such thing.
    Unavailable,
    /// It should be there and could not be read.
    Failed,
}

impl Status {
    /// Every status.
    pub const ALL: [Self; 3] = [Self::Ok, Self::Unavailable, Self::Failed];

    /// The value of the `status` label.
    pub const fn label(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Unavailable => "unavailable",
            Self::Failed => "failed",
        }
    }
}
