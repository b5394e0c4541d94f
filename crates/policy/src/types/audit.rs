//! The lines of the audit log: steps before they are carried out, and their results.
//!
//! Each line is one JSON object. Each step has a `before` and an `after` line with the same number; a step that ends
//! later has an `ended` line. A line is written into the caller's buffer, so that no memory is needed during a
//! shortage; the same types read it again.

use std::borrow::Cow;

use serde::{Deserialize, Serialize};

use super::reason::{Reason, Resource};
use super::rung::State;
use super::step::{Outcome, Step, StepDone, StepError, Touched};
use crate::model::names::named;
use crate::model::time::Timestamp;

/// The version of the line format.
const SCHEMA: &str = "memwarden.audit/2";
/// Maximum number of processes per line; more are in the next line.
pub const PROCESSES_A_LINE: usize = 32;

/// What a [`Reading`] is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Quantity {
    /// The memory that is left.
    HeadroomBytes(Resource),
    TimeToExhaustionSeconds,
}

/// A reading that a decision is based on.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Reading {
    pub what: Quantity,
    /// The value, where it is known.
    pub value: Option<f64>,
    /// The threshold that it is compared with, where there is one.
    pub threshold: Option<f64>,
    pub age_seconds: Option<f64>,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Line<'a> {
    schema: Cow<'a, str>,
    /// When, in seconds since 1970 and since the boot.
    pub unix_seconds: f64,
    boot_seconds: f64,
    #[serde(flatten)]
    pub occasion: Occasion<'a>,
    #[serde(flatten)]
    pub entry: Entry<'a>,
}

/// What every line of an incident has.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Occasion<'a> {
    /// The incident's id; empty outside incidents.
    #[serde(default, skip_serializing_if = "str::is_empty")]
    pub incident: Cow<'a, str>,
    /// The target's name.
    #[serde(default, skip_serializing_if = "str::is_empty")]
    pub target: Cow<'a, str>,
    /// `observe`, `enforce` or `drill`.
    #[serde(default, skip_serializing_if = "str::is_empty")]
    pub mode: Cow<'a, str>,
    /// The first digits of the configuration's hash.
    #[serde(default, skip_serializing_if = "str::is_empty")]
    pub config: Cow<'a, str>,
}

/// The content of a line.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(tag = "entry", rename_all = "snake_case")]
pub enum Entry<'a> {
    Transition {
        /// The state before.
        from: State,
        /// The state after.
        to: State,
        #[serde(flatten)]
        reason: Reason,
        /// The reason as a sentence.
        why: Cow<'a, str>,
        /// The readings that it is based on.
        readings: Cow<'a, [Reading]>,
    },
    /// A step, before it is carried out.
    Before {
        /// Its number, counted since the log was opened.
        number: u64,
        step: Cow<'a, Step>,
    },
    /// The result of a step.
    After {
        number: u64,
        /// Its duration in microseconds, whatever the result.
        #[serde(rename = "took_us")]
        micros: u64,
        #[serde(flatten)]
        end: StepEnd<'a>,
    },
    /// The processes that a step reached; at most [`PROCESSES_A_LINE`].
    Reached {
        /// The step's number.
        number: u64,
        processes: Cow<'a, [Touched]>,
    },
    /// A step has ended later.
    Ended {
        /// The step's number, where it is known.
        number: Option<u64>,
        /// The output of a hook or web service.
        output: Cow<'a, str>,
        #[serde(flatten)]
        end: StepEnd<'a>,
    },
}

named! {
    /// Whether a step failed.
    #[derive(Serialize, Deserialize)]
    #[serde(rename_all = "snake_case")]
    pub enum StepResult {
        Ok = "ok",
        Failed = "failed",
    }
}

/// The result of a step, in one format for success and failure.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StepEnd<'a> {
    pub result: StepResult,
    /// Absent where it failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub outcome: Option<Outcome>,
    /// Number of processes that it reached, or would have reached.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub processes: Option<u32>,
    /// The error's number (errno(3)).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub errno: Option<i32>,
    /// Why it failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<Failure<'a>>,
}

/// Why a step failed. The error is written by its `Display`, without allocation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Failure<'a> {
    Of(&'a StepError),
    Read(String),
}

impl Serialize for Failure<'_> {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Of(error) => serializer.collect_str(error),
            Self::Read(text) => serializer.serialize_str(text),
        }
    }
}

impl<'de> Deserialize<'de> for Failure<'_> {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer).map(Self::Read)
    }
}

impl std::fmt::Display for Failure<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Of(error) => error.fmt(f),
            Self::Read(text) => f.write_str(text),
        }
    }
}

impl<'a> From<&'a Result<StepDone, StepError>> for StepEnd<'a> {
    fn from(result: &'a Result<StepDone, StepError>) -> Self {
        let end = Self { result: StepResult::Ok, outcome: None, processes: None, errno: None, error: None };
        match result {
            Ok(done) => Self { outcome: Some(done.outcome), processes: Some(done.processes), ..end },
            Err(error) => Self {
                result: StepResult::Failed,
                errno: error.errno(),
                error: Some(Failure::Of(error)),
                ..end
            },
        }
    }
}

impl Line<'_> {
    /// The line of a text; absent where it is none.
    pub fn read(text: &[u8]) -> Option<Line<'static>> {
        serde_json::from_slice(text).ok()
    }
}

impl<'a> Entry<'a> {
    /// Writes the line with its newline into `line`, which is cleared first.
    pub fn write(self, at: Timestamp, occasion: Occasion<'a>, line: &mut Vec<u8>) {
        line.clear();
        let (unix_seconds, boot_seconds) = (at.unix().as_secs_f64(), at.monotonic().as_secs_f64());
        let shown = Line { schema: SCHEMA.into(), unix_seconds, boot_seconds, occasion, entry: self };
        // Every key is a text and the buffer takes all bytes, so that nothing can fail.
        let _ = serde_json::to_writer(&mut *line, &shown);
        line.push(b'\n');
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::ids::ProcessKey;
    use crate::types::rung::State;
    use crate::types::step::{Finished, SignalNumber, TargetId, Ticket, Work};

    fn check(entry: Entry<'_>, expected: &expect_test::Expect) {
        let [incident, target, mode, config] = ["i-1", "job", "enforce", "ab12"].map(Cow::Borrowed);
        let mut line = b"old".to_vec();
        entry.write(Timestamp::from_secs(7), Occasion { incident, target, mode, config }, &mut line);
        let read = Line::read(&line).unwrap();
        let mut again = Vec::new();
        read.entry.write(Timestamp::from_secs(7), read.occasion, &mut again);
        assert_eq!(String::from_utf8(again), String::from_utf8(line.clone()));
        let text = String::from_utf8(line).unwrap();
        assert!(text.ends_with('\n') && text.matches('\n').count() == 1);
        let same = r#"{"schema":"memwarden.audit/2","unix_seconds":7.0,"boot_seconds":7.0,"incident":"i-1","target":"job","mode":"enforce","config":"ab12","#;
        expected.assert_eq(text.trim_end().strip_prefix(same).unwrap());
    }

    #[test]
    fn a_step_is_a_pair_of_lines() {
        let process = ProcessKey { pid: 77, start: 5 };
        let work = Work::Signal { process, signal: SignalNumber::TERM, only_if_caught: false };
        let step = Step { target: TargetId(2), stage: State::Term, work };
        check(
            Entry::Before { number: 3, step: Cow::Borrowed(&step) },
            &expect_test::expect![[
                r#""entry":"before","number":3,"step":{"target":2,"stage":"term","do":"signal","process":{"pid":77,"start":5},"signal":15,"only_if_caught":false}}"#
            ]],
        );
        let done = Ok(StepDone { outcome: Outcome::Done, processes: 1 });
        check(
            Entry::After { number: 3, end: (&done).into(), micros: 40 },
            &expect_test::expect![[
                r#""entry":"after","number":3,"took_us":40,"result":"ok","outcome":"done","processes":1}"#
            ]],
        );
        let failed = Err(StepError::System { call: "pidfd_send_signal", pid: 77, errno: 1 });
        check(
            Entry::After { number: 4, end: (&failed).into(), micros: 9 },
            &expect_test::expect![[
                r#""entry":"after","number":4,"took_us":9,"result":"failed","errno":1,"error":"pidfd_send_signal pid 77: Operation not permitted (os error 1)"}"#
            ]],
        );
    }

    #[test]
    fn transitions_and_ends_are_lines_too() {
        let readings = [Reading {
            what: Quantity::HeadroomBytes(Resource::Cgroup),
            value: Some(5.0),
            threshold: None,
            age_seconds: Some(0.01),
        }];
        check(
            Entry::Transition {
                from: State::Ok,
                to: State::Warn,
                reason: Reason::Near(Resource::Cgroup),
                why: "it is low".into(),
                readings: readings.as_slice().into(),
            },
            &expect_test::expect![[
                r#""entry":"transition","from":"ok","to":"warn","reason":"near_soft_level","resource":"cgroup","why":"it is low","readings":[{"what":{"headroom_bytes":"cgroup"},"value":5.0,"threshold":null,"age_seconds":0.01}]}"#
            ]],
        );
        let error = StepError::Outside { what: "the hook exited with code 3".into() };
        let mut finished = Finished::new(Ticket(1), Err(error));
        finished.output = "no \"room\"\n".into();
        check(
            Entry::Ended {
                number: Some(3),
                output: (&*finished.output).into(),
                end: (&finished.result).into(),
            },
            &expect_test::expect![[
                r#""entry":"ended","number":3,"output":"no \"room\"\n","result":"failed","error":"the hook exited with code 3"}"#
            ]],
        );
    }

    #[test]
    fn a_process_may_have_any_name() {
        let mut comm = [0; 16];
        comm[..5].copy_from_slice(b"a\n\xff\"b");
        let key = ProcessKey { pid: 1, start: 2 };
        let touched = Touched { key, uid: 3, comm, resident: 4, errno: 0 };
        check(
            Entry::Reached { number: 1, processes: [touched].as_slice().into() },
            &expect_test::expect![[
                r#""entry":"reached","number":1,"processes":[{"pid":1,"start":2,"uid":3,"comm":"a?�\"b","resident_bytes":4,"errno":0}]}"#
            ]],
        );
    }
}
