//! The source trait and its errors.

#![warn(missing_docs)]

use std::fmt;

use super::names::named;
use super::point::Batch;
use super::time::Timestamp;

/// Measures one part of the node.
///
/// `sample` is called once a tick, on the sampler thread. It must not block on anything that can hang (a device
/// belongs in a process of its own), must not print, and must not turn "unknown" into zero: values that could not be
/// read are left out, and the error states the reason. Points put before an error are kept.
///
/// ```
/// use memwarden_model::{desc::Gauge, point::Batch, time::Timestamp, units::Count};
/// use memwarden_model::source::{Source, SourceError};
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
    /// Measures once and adds the points to `out`.
    fn sample(&mut self, at: Timestamp, out: &mut Batch) -> Result<(), SourceError>;

    /// Handles an operator's request; most sources ignore it.
    fn control(&mut self, _request: Control) {}

    /// Called when the daemon exits, to release resources cleanly; must take less than a second.
    fn finish(&mut self) {}
}

/// A component besides the sources that adds points to each frame.
///
/// `report` is called once a tick, on the sampler thread, and must not block.
pub trait Reporter: Send + Sync + fmt::Debug {
    /// Adds its points.
    fn report(&self, at: Timestamp, out: &mut Batch);
}

/// A request of the operator to the running sources.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Control {
    /// Release the GPU driver (unload NVML), so that it can be unloaded.
    ReleaseGpu,
    /// Load NVML again.
    AcquireGpu,
}

/// Why a sample is incomplete.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SourceError {
    /// The host does not have what the source measures; this is not an error.
    Unavailable {
        /// One sentence for the log, lower case, no final period.
        why: String,
    },
    /// The measured object should exist and could not be read.
    Failed {
        /// The kind, which is a label value.
        kind: Failure,
        /// One sentence for the log: what was attempted on which path or device, and the cause.
        why: String,
    },
}

named! {
    /// The kinds of failure, which are label values.
    pub enum Failure {
        /// A path that should exist does not.
        NotFound = "not_found",
        /// The kernel denied access.
        Permission = "permission",
        /// The text does not have the documented format.
        Parse = "parse",
        /// Any other error of the operating system.
        Io = "io",
        /// No response in time.
        Timeout = "timeout",
        /// The device or its worker was lost.
        Lost = "lost",
        /// The source panicked; it was rebuilt.
        Panic = "panic",
    }
}

impl Failure {
    /// The kind of an I/O error.
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
    /// The host does not have what the source measures.
    pub fn unavailable(why: impl Into<String>) -> Self {
        Self::Unavailable { why: why.into() }
    }

    /// An error of a measurement that failed.
    pub fn failed(kind: Failure, why: impl Into<String>) -> Self {
        Self::Failed { kind, why: why.into() }
    }

    /// An error of the operating system; `what` says what could not be done.
    pub fn io(what: impl fmt::Display, error: &std::io::Error) -> Self {
        Self::failed(Failure::of(error), format!("{what}: {error}"))
    }

    /// As [`SourceError::io`], where the host may lack what is read.
    pub fn io_or_absent(what: impl fmt::Display, error: &std::io::Error) -> Self {
        match Failure::of(error) {
            Failure::NotFound => Self::unavailable(format!("{what}: {error}")),
            kind => Self::failed(kind, format!("{what}: {error}")),
        }
    }
}

named! {
    /// Result of a source's last sample.
    #[derive(serde::Serialize)]
    #[serde(rename_all = "lowercase")]
    pub enum Status {
        /// The sample was complete.
        Ok = "ok",
        /// The host does not have what the source measures.
        Unavailable = "unavailable",
        /// The measured object should exist and could not be read.
        Failed = "failed",
    }
}
