//! Why a step of protection failed.

use std::time::Duration;

use super::scope::Refusal;
use super::step::TargetId;
use crate::model::label::Label;

/// Why a step failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StepError {
    /// The target's scope does not allow it.
    #[error("pid {pid} is outside the scope: {refusal}")]
    Refused {
        /// The process, 0 for a group.
        pid: u32,
        /// Why.
        refusal: Refusal,
    },
    /// No scope was given for the target.
    #[error("target {} has no scope", .0.0)]
    NoScope(TargetId),
    /// The cgroup was removed, or replaced by another at the same path.
    #[error("cgroup {path} has been removed or replaced")]
    OtherGroup { path: Label },
    /// The kernel refused.
    #[error("{call}{}: {}", of_process(*pid), std::io::Error::from_raw_os_error(*errno))]
    System {
        call: &'static str,
        /// The process, 0 for none.
        pid: u32,
        /// The error's number (errno(3)).
        errno: i32,
    },
    /// It exceeded its time limit.
    #[error("not done within {} s{}", .within.as_secs_f64(), left_over(*left))]
    TimedOut {
        /// The time limit.
        within: Duration,
        /// Number of processes that have not ended; 0 for other steps.
        left: u32,
    },
    /// A hook or web service failed.
    #[error("{what}")]
    Outside {
        /// The failure as one sentence, cut to a few hundred bytes.
        what: Box<str>,
    },
}

/// The processes that have not ended, as a part of a sentence.
fn left_over(left: u32) -> String {
    if left == 0 { String::new() } else { format!(", {left} processes have not ended") }
}

/// The process of a call, as a part of a sentence.
fn of_process(pid: u32) -> String {
    if pid == 0 { String::new() } else { format!(" pid {pid}") }
}

impl StepError {
    /// The error's number (errno(3)), where the kernel gave one.
    pub const fn errno(&self) -> Option<i32> {
        match self {
            Self::System { errno, .. } => Some(*errno),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_step_without_processes_that_times_out_names_none() {
        let late = |left| StepError::TimedOut { within: Duration::from_secs(10), left }.to_string();
        assert_eq!(late(0), "not done within 10 s");
        assert_eq!(late(3), "not done within 10 s, 3 processes have not ended");
    }
}
