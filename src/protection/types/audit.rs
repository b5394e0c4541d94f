//! The lines of the audit log: steps before they are carried out, and their results.
//!
//! Each line is one JSON object. Each step has a `before` and an `after` line with the same number; a step that ends
//! later has an `ended` line. A line is written into the caller's buffer, so that no memory is needed during a
//! shortage.

use serde::Serialize;

use super::step::{Outcome, Step, StepDone, StepError, Touched};
use crate::model::printable::is_hidden;
use crate::model::time::Timestamp;

/// The version of the line format.
const SCHEMA: &str = "memwarden.audit/1";
/// Maximum number of processes per line; more are in the next line.
pub const PROCESSES_A_LINE: usize = 32;

/// The fields of every line of an incident.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Occasion<'a> {
    /// When.
    #[serde(skip)]
    pub at: Timestamp,
    /// The incident's id; empty outside incidents.
    #[serde(skip_serializing_if = "str::is_empty")]
    pub incident: &'a str,
    /// The target's name.
    #[serde(skip_serializing_if = "str::is_empty")]
    pub target: &'a str,
    /// `observe`, `enforce` or `drill`.
    #[serde(skip_serializing_if = "str::is_empty")]
    pub mode: &'a str,
    /// The first digits of the configuration's hash.
    #[serde(skip_serializing_if = "str::is_empty")]
    pub config: &'a str,
}

/// A reading that a decision is based on.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Reading {
    /// Its name, with the unit as last word: `headroom_bytes`.
    pub what: &'static str,
    /// The value, where it is known.
    pub value: Option<f64>,
    /// The threshold that it is compared with, where there is one.
    pub threshold: Option<f64>,
    /// Its age in seconds.
    pub age_seconds: Option<f64>,
}

/// The content of a line.
#[derive(Clone, Copy, Debug, Serialize)]
#[serde(tag = "entry", rename_all = "snake_case")]
pub enum Entry<'a> {
    /// A transition.
    Transition {
        /// The state before.
        from: &'a str,
        /// The state after.
        to: &'a str,
        /// The reason, a word.
        reason: &'a str,
        /// The reason as a sentence.
        why: &'a str,
        /// The readings that it is based on.
        readings: &'a [Reading],
    },
    /// A step, before it is carried out.
    Before {
        /// Its number, counted since the log was opened.
        number: u64,
        /// The step.
        step: &'a Step,
    },
    /// The result of a step.
    After {
        /// Its number.
        number: u64,
        /// Its duration in microseconds, whatever the result.
        #[serde(rename = "took_us")]
        micros: u64,
        /// The result.
        #[serde(flatten, serialize_with = "end")]
        result: &'a Result<StepDone, StepError>,
    },
    /// The processes that a step reached; at most [`PROCESSES_A_LINE`].
    Reached {
        /// The step's number.
        number: u64,
        /// The processes.
        #[serde(serialize_with = "records")]
        processes: &'a [Touched],
    },
    /// A step has ended later.
    Ended {
        /// The step's number, where it is known.
        number: Option<u64>,
        /// The output of a hook or web service.
        output: &'a str,
        /// The result.
        #[serde(flatten, serialize_with = "end")]
        result: &'a Result<StepDone, StepError>,
    },
}

#[derive(Serialize)]
struct Line<'a> {
    schema: &'static str,
    unix_seconds: f64,
    boot_seconds: f64,
    #[serde(flatten)]
    occasion: &'a Occasion<'a>,
    #[serde(flatten)]
    entry: &'a Entry<'a>,
}

/// The result of a step, in one format for success and failure.
#[derive(Serialize)]
struct End<'a> {
    result: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    outcome: Option<Outcome>,
    #[serde(skip_serializing_if = "Option::is_none")]
    processes: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    errno: Option<i32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<Displayed<'a>>,
}

/// An error, serialized by its `Display` without allocation.
struct Displayed<'a>(&'a StepError);

impl Serialize for Displayed<'_> {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self.0)
    }
}

fn records<S: serde::Serializer>(processes: &[Touched], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_seq(processes.iter().map(Process::of))
}

/// A process that was reached, in records.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, serde::Deserialize)]
pub struct Process<'a> {
    /// Its pid.
    pub pid: u32,
    /// When it started, in clock ticks after boot.
    pub start: u64,
    /// Its real user.
    pub uid: u32,
    /// Its name, without control characters.
    #[serde(borrow)]
    pub comm: std::borrow::Cow<'a, str>,
    /// Its resident memory.
    pub resident_bytes: u64,
    /// The error's number, 0 for none.
    pub errno: i32,
}

impl<'a> Process<'a> {
    /// The record of a process.
    pub fn of(touched: &'a Touched) -> Self {
        let comm = touched.comm.split(|byte| *byte == 0).next().unwrap_or_default();
        let comm = match std::str::from_utf8(comm) {
            Ok(plain) if !plain.contains(is_hidden) => plain.into(),
            _ => String::from_utf8_lossy(comm).replace(is_hidden, "?").into(),
        };
        let Touched { key, uid, resident, errno, .. } = *touched;
        Self { pid: key.pid, start: key.start, uid, comm, resident_bytes: resident, errno }
    }
}

fn end<S: serde::Serializer>(result: &Result<StepDone, StepError>, serializer: S) -> Result<S::Ok, S::Error> {
    let blank = End { result: "ok", outcome: None, processes: None, errno: None, error: None };
    let end = match result {
        Ok(done) => End { outcome: Some(done.outcome), processes: Some(done.processes), ..blank },
        Err(error) => End { result: "failed", errno: error.errno(), error: Some(Displayed(error)), ..blank },
    };
    end.serialize(serializer)
}

impl Entry<'_> {
    /// Writes the line with its newline into `line`, which is cleared first.
    pub fn write(&self, occasion: &Occasion<'_>, line: &mut Vec<u8>) {
        line.clear();
        let (unix_seconds, boot_seconds) =
            (occasion.at.unix().as_secs_f64(), occasion.at.monotonic().as_secs_f64());
        let shown = Line { schema: SCHEMA, unix_seconds, boot_seconds, occasion, entry: self };
        // Every key is a text and the buffer takes all bytes, so that nothing can fail.
        let _ = serde_json::to_writer(&mut *line, &shown);
        line.push(b'\n');
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::ids::ProcessKey;
    use crate::protection::types::rung::State;
    use crate::protection::types::step::{Finished, SignalNumber, TargetId, Ticket, Work};

    const OCCASION: Occasion<'_> = Occasion {
        at: Timestamp::from_secs(7),
        incident: "i-1",
        target: "job",
        mode: "enforce",
        config: "ab12",
    };

    fn check(entry: &Entry<'_>, expected: &expect_test::Expect) {
        let mut line = b"old".to_vec();
        entry.write(&OCCASION, &mut line);
        let text = String::from_utf8(line).unwrap();
        assert!(text.ends_with('\n') && text.matches('\n').count() == 1);
        serde_json::from_str::<serde_json::Value>(&text).unwrap();
        let same = r#"{"schema":"memwarden.audit/1","unix_seconds":7.0,"boot_seconds":7.0,"incident":"i-1","target":"job","mode":"enforce","config":"ab12","#;
        expected.assert_eq(text.trim_end().strip_prefix(same).unwrap());
    }

    #[test]
    fn a_step_is_a_pair_of_lines() {
        let process = ProcessKey { pid: 77, start: 5 };
        let work = Work::Signal { process, signal: SignalNumber::TERM, only_if_caught: false };
        let step = Step { target: TargetId(2), stage: State::Term, work };
        check(
            &Entry::Before { number: 3, step: &step },
            &expect_test::expect![[
                r#""entry":"before","number":3,"step":{"target":2,"stage":"term","do":"signal","process":{"pid":77,"start":5},"signal":15,"only_if_caught":false}}"#
            ]],
        );
        let done = Ok(StepDone { outcome: Outcome::Done, processes: 1 });
        check(
            &Entry::After { number: 3, result: &done, micros: 40 },
            &expect_test::expect![[
                r#""entry":"after","number":3,"took_us":40,"result":"ok","outcome":"done","processes":1}"#
            ]],
        );
        let failed = Err(StepError::System { call: "pidfd_send_signal", pid: 77, errno: 1 });
        check(
            &Entry::After { number: 4, result: &failed, micros: 9 },
            &expect_test::expect![[
                r#""entry":"after","number":4,"took_us":9,"result":"failed","errno":1,"error":"pidfd_send_signal pid 77: Operation not permitted (os error 1)"}"#
            ]],
        );
    }

    #[test]
    fn transitions_and_ends_are_lines_too() {
        let readings =
            [Reading { what: "headroom_bytes", value: Some(5.0), threshold: None, age_seconds: Some(0.01) }];
        check(
            &Entry::Transition {
                from: "ok",
                to: "warn",
                reason: "near_soft_level",
                why: "it is low",
                readings: &readings,
            },
            &expect_test::expect![[
                r#""entry":"transition","from":"ok","to":"warn","reason":"near_soft_level","why":"it is low","readings":[{"what":"headroom_bytes","value":5.0,"threshold":null,"age_seconds":0.01}]}"#
            ]],
        );
        let error = StepError::Outside { what: "the hook exited with code 3".into() };
        let mut finished = Finished::new(Ticket(1), Err(error));
        finished.output = "no \"room\"\n".into();
        check(
            &Entry::Ended { number: Some(3), output: &finished.output, result: &finished.result },
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
            &Entry::Reached { number: 1, processes: &[touched] },
            &expect_test::expect![[
                r#""entry":"reached","number":1,"processes":[{"pid":1,"start":2,"uid":3,"comm":"a?�\"b","resident_bytes":4,"errno":0}]}"#
            ]],
        );
    }
}
