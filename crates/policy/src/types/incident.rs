//! The record of an incident, built from lines of the audit log.

use std::fmt::Write as _;

use serde::{Deserialize, Serialize};
use time::UtcDateTime;

use super::audit::{Entry, Line, Occasion, Reading, StepEnd, StepResult};
use super::reason::Reason;
use super::run_request::{RunQuery, RunRequest};
use super::rung::State;
use super::step::{Outcome, Step, Touched, Work};
use super::summary::summary;
use crate::model::ends::End;
use crate::model::facts::OomVictim;
use crate::model::finding::Subject;
use crate::model::format;
use crate::model::label::Label;
use crate::model::names::named;
use crate::model::printable;
use crate::model::time::Timestamp;
use crate::model::units::Bytes;

/// The version of the record format.
pub const SCHEMA: &str = "memwarden.incident/2";

/// 9999-12-31 23:59:59 UTC, the last second that a date is written for.
const LAST_SECOND: i64 = UtcDateTime::MAX.unix_timestamp();

/// One reading of a watched resource.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sample {
    /// When.
    pub at: Timestamp,
    /// The subject: `host`, a target's name for the limit of its cgroup, or one of [`target_subjects`].
    pub subject: Label,
    /// Bytes used, where known.
    pub used: Option<Bytes>,
    pub limit: Option<Bytes>,
}

/// The header of the files of samples, whose times are seconds since 1970.
pub const SAMPLES_HEADER: &str = "t_s,bytes,limit\n";

/// The file of an incident with the samples of a subject.
pub fn samples_file(subject: &str) -> String {
    let plain = |c: char| if c.is_ascii_alphanumeric() || c == '_' { c } else { '-' };
    let name: String = subject.chars().map(plain).take(60).collect();
    format!("memory-{name}.csv")
}

/// The resources of a target whose readings have subjects of their own, beside the limit of its cgroup.
const RESOURCES: [&str; 2] = ["GPU", "allocator"];

/// The subjects of the readings of a target's GPU memory and of its allocator.
pub fn target_subjects(target: &str) -> [Label; 2] {
    RESOURCES.map(|resource| format!("{target} {resource}").into())
}

/// Whether a sample is of this target.
pub fn is_of_target(subject: &str, target: &str) -> bool {
    let resource = subject.strip_prefix(target);
    resource.is_some_and(|resource| {
        resource.is_empty() || resource.strip_prefix(' ').is_some_and(|own| RESOURCES.contains(&own))
    })
}

/// The id of an incident that begins at `at`: the time in UTC, and its subject. Ids sort by time.
pub fn name(at: Timestamp, about: &str) -> String {
    let mut out = String::new();
    name_into(at, about, &mut out);
    out
}

/// Writes the [`name`] into a text, which is cleared first; 90 bytes are enough.
pub fn name_into(at: Timestamp, about: &str, out: &mut String) {
    out.clear();
    let since = at.unix();
    let seconds = i64::try_from(since.as_secs()).unwrap_or(i64::MAX).min(LAST_SECOND);
    let utc = UtcDateTime::from_unix_timestamp(seconds).unwrap_or(UtcDateTime::UNIX_EPOCH);
    let (year, month, day) = (utc.year(), u8::from(utc.month()), utc.day());
    let (hour, minute, second) = utc.as_hms();
    // Writing to a text cannot fail.
    let _ = write!(
        out,
        "{year:04}{month:02}{day:02}T{hour:02}{minute:02}{second:02}.{:03}Z-",
        since.subsec_millis()
    );
    let plain = |c: char| if c.is_ascii_alphanumeric() || c == '_' { c } else { '-' };
    out.extend(about.trim_matches(|c: char| plain(c) == '-').chars().map(plain).take(60));
}

named! {
    /// Why there is a record.
    #[derive(Default, Serialize, Deserialize)]
    #[serde(rename_all = "snake_case")]
    pub enum Cause {
        /// A policy acted, or would have acted.
        #[default]
        Policy = "policy",
        /// The kernel's OOM killer killed a process.
        KernelOom = "kernel_oom",
        /// Another program ended a process of a job by `SIGKILL`.
        Killed = "killed",
    }
}

/// One transition.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Move {
    /// When, in seconds since 1970.
    pub unix_seconds: f64,
    /// The state before.
    pub from: State,
    /// The state after.
    pub to: State,
    #[serde(flatten)]
    pub reason: Reason,
    /// The readings that it is based on, with age and threshold.
    pub readings: Vec<Reading>,
}

/// One step, from its start to its end.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct StepRecord {
    /// Its number in the audit log.
    pub number: u64,
    /// When it began, in seconds since 1970.
    pub unix_seconds: f64,
    pub step: Step,
    /// Absent where the record ends before.
    #[serde(flatten)]
    pub end: Option<StepEnd<'static>>,
    /// How long the call took, in microseconds.
    pub took_us: Option<u64>,
    /// Seconds from the start to the end, for a step that ended later.
    pub ended_after_seconds: Option<f64>,
    /// The output of a hook.
    pub output: String,
    /// The processes that it reached.
    pub reached: Vec<Touched>,
}

/// The memory that ran short and the job at the beginning of an incident. What is not known is absent.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Circumstances {
    /// What ran short: `host`, `cgroup`, `gpu` or `allocator`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub resource: Option<String>,
    /// Memory in use that counts against the limit.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub used_bytes: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limit_bytes: Option<f64>,
    /// Growth of this memory, or that of the workload where only it is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub growth_bytes_per_second: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub workload: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub run: Option<String>,
    /// The last optimizer step, of the rank that is furthest.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub step: Option<f64>,
    /// The step of the last checkpoint that was saved.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub checkpoint_step: Option<f64>,
    /// Its path, as the job reported it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub checkpoint_path: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub checkpoint_age_seconds: Option<f64>,
}

impl Circumstances {
    /// What is known, as pairs of a name and a text.
    pub fn words(&self) -> Vec<(&'static str, String)> {
        let whole = |step: f64| format::whole(step);
        let checkpoint = [
            self.checkpoint_step.map(|step| format!("step {}", whole(step))),
            self.checkpoint_path.clone(),
            self.checkpoint_age_seconds.map(|age| format!("{} old", format::duration(age))),
        ];
        let checkpoint: Vec<String> = checkpoint.into_iter().flatten().collect();
        let all = [
            ("resource", self.resource.clone()),
            ("limit", self.limit_bytes.map(format::bytes)),
            ("used", self.used_bytes.map(format::bytes)),
            ("growth", self.growth_bytes_per_second.map(format::rate)),
            ("workload", self.workload.clone()),
            ("run", self.run.clone()),
            ("step", self.step.map(whole)),
            ("last checkpoint", Some(checkpoint.join(", ")).filter(|text| !text.is_empty())),
        ];
        all.into_iter().filter_map(|(name, text)| Some((name, text?))).collect()
    }
}

/// What an analyzer stated about a subject.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Statement {
    pub analyzer: String,
    pub subject: Subject,
    pub summary: String,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "as serde calls it")]
const fn is_none(count: &u64) -> bool {
    *count == 0
}

/// The record of an incident.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Incident {
    /// [`SCHEMA`].
    pub schema: String,
    /// Its name, which is its folder's.
    pub id: String,
    /// The host's name.
    pub host: String,
    /// The version of memwarden.
    pub version: String,
    /// Why there is a record.
    pub cause: Cause,
    /// The user of the job, or of the process that the kernel killed; absent where unknown.
    pub user: Option<u32>,
    /// The target's name, or the victim's group.
    pub target: String,
    /// `observe`, `enforce` or `drill`; empty where no policy acted.
    pub mode: String,
    /// The first digits of the configuration's hash.
    pub config: String,
    /// When it began, in seconds since 1970.
    pub began_unix_seconds: f64,
    /// When it ended, in seconds since 1970; absent while it is in progress.
    pub ended_unix_seconds: Option<f64>,
    /// What happened, one sentence.
    pub summary: String,
    /// The policy as a sentence.
    pub policy: String,
    #[serde(flatten)]
    pub circumstances: Circumstances,
    /// How the process ended that another program killed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub end: Option<Box<End>>,
    /// The transitions.
    pub moves: Vec<Move>,
    pub steps: Vec<StepRecord>,
    /// The first and the last victim of the kernel's OOM killer, where its log names them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub victim: Option<OomVictim>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_victim: Option<OomVictim>,
    /// Number of processes that the OOM killer killed.
    #[serde(skip_serializing_if = "is_none")]
    pub kills: u64,
    /// What the analyzers stated when it killed.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub findings: Vec<Statement>,
    /// The subjects of its [`samples_file`]s.
    pub subjects: Vec<String>,
    /// Why the record has no end.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub interrupted: Option<String>,
    /// Lines of the audit log that were lost so far.
    pub lost_lines: u64,
}

impl Incident {
    /// As the text of its file.
    pub fn json(&self) -> Vec<u8> {
        let text = serde_json::to_string_pretty(self).unwrap_or_default();
        printable::json(&text).into_owned().into_bytes()
    }

    /// Takes what is known of an incident in progress from its lines of the audit log.
    pub fn complete(&mut self, lines: &[u8]) {
        (self.moves, self.steps) = (Vec::new(), Vec::new());
        self.read(lines);
        self.summary = summary(self);
    }

    /// Adds the lines of the audit log that name this incident; skips others and invalid lines.
    pub fn read(&mut self, lines: &[u8]) {
        for line in lines.split(|byte| *byte == b'\n') {
            if let Some(line) = Line::read(line).filter(|line| line.occasion.incident == self.id) {
                self.add(line);
            }
        }
    }

    fn add(&mut self, line: Line<'static>) {
        let at = line.unix_seconds;
        let Occasion { target, mode, config, .. } = line.occasion;
        for (own, text) in [(&mut self.target, target), (&mut self.mode, mode), (&mut self.config, config)] {
            if own.is_empty() {
                *own = text.into_owned();
            }
        }
        match line.entry {
            Entry::Transition { from, to, reason, readings, .. } => {
                self.moves.push(Move { unix_seconds: at, from, to, reason, readings: readings.into_owned() });
            }
            Entry::Before { number, step } => {
                self.steps.push(StepRecord::new(number, at, step.into_owned()));
            }
            Entry::After { number, micros, end } => {
                if let Some(step) = self.step(number) {
                    step.took_us = Some(micros);
                    step.close(end);
                }
            }
            Entry::Ended { number, output, end } => {
                if let Some(step) = number.and_then(|number| self.step(number)) {
                    step.ended_after_seconds = Some(at - step.unix_seconds);
                    step.output.push_str(&output);
                    step.close(end);
                }
            }
            Entry::Reached { number, processes } => {
                if let Some(step) = self.step(number) {
                    step.reached.extend_from_slice(&processes);
                }
            }
        }
    }

    fn step(&mut self, number: u64) -> Option<&mut StepRecord> {
        self.steps.iter_mut().rev().find(|step| step.number == number)
    }

    /// The first request of another node of the run for a checkpoint.
    fn run_requested(&self) -> Option<&RunRequest> {
        self.steps.iter().find_map(|step| match &step.step.work {
            Work::RunRequested { request } => Some(&**request),
            _ => None,
        })
    }

    /// The first request to the other nodes of the run.
    fn asked(&self) -> Option<(&StepRecord, &RunQuery)> {
        self.steps.iter().find_map(|step| match &step.step.work {
            Work::AskRun(query) => Some((step, &**query)),
            _ => None,
        })
    }

    /// The id of the incident on all nodes of the run, where nodes of a run asked each other: that of the request that
    /// caused it, otherwise that of its own request.
    pub fn run_incident(&self) -> Option<&str> {
        let own = || self.asked().map(|(_, query)| &query.request);
        self.run_requested().or_else(own).map(|request| request.incident.as_str())
    }

    /// Whether other nodes of the run were asked and their answers are not recorded yet.
    pub fn awaits_answers(&self) -> bool {
        self.steps.iter().any(|step| {
            let outcome = step.end.as_ref().and_then(|end| end.outcome);
            matches!((&step.step.work, outcome), (Work::AskRun(_), Some(Outcome::Started(_))))
                && step.ended_after_seconds.is_none()
        })
    }

    /// The node that asked for a checkpoint of the run; absent where none did.
    pub fn asked_by(&self) -> Option<&str> {
        self.run_requested().map(|request| request.from.as_str())
    }

    /// The run whose other nodes were asked for a checkpoint; absent where none were.
    pub fn asked_run(&self) -> Option<&str> {
        self.asked().map(|(_, query)| query.run.as_str())
    }

    /// What came back from the other nodes, or why none were asked; absent where there is no answer.
    pub fn answers(&self) -> Option<String> {
        let (step, _) = self.asked()?;
        let output = Some(step.output.trim().to_owned()).filter(|output| !output.is_empty());
        output.or_else(|| Some(step.end.as_ref()?.error.as_ref()?.to_string()))
    }

    /// Every process that was reached, once, with the steps that reached it.
    pub fn processes(&self) -> Vec<(&Touched, Vec<u64>)> {
        let mut found: Vec<(&Touched, Vec<u64>)> = Vec::new();
        for step in &self.steps {
            for process in &step.reached {
                match found.iter_mut().find(|(known, _)| known.key == process.key) {
                    Some((_, steps)) => steps.push(step.number),
                    None => found.push((process, vec![step.number])),
                }
            }
        }
        found
    }
}

impl StepRecord {
    /// A step that has begun.
    pub const fn new(number: u64, unix_seconds: f64, step: Step) -> Self {
        Self {
            number,
            unix_seconds,
            step,
            end: None,
            took_us: None,
            ended_after_seconds: None,
            output: String::new(),
            reached: Vec::new(),
        }
    }

    fn close(&mut self, end: StepEnd<'static>) {
        let processes = end.processes.or_else(|| self.end.as_ref()?.processes);
        self.end = Some(StepEnd { processes, ..end });
    }

    /// Its outcome; absent where it failed, or its end is not recorded.
    pub fn outcome(&self) -> Option<Outcome> {
        self.end.as_ref()?.outcome
    }

    pub fn has_failed(&self) -> bool {
        self.end.as_ref().is_some_and(|end| end.result == StepResult::Failed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::ids::ProcessKey;
    use crate::types::audit::Quantity;
    use crate::types::reason::Resource;
    use crate::types::step::{Hook, TargetId, Ticket};

    /// The lines of these entries, of the incident `i` except where they are of another one.
    fn lines() -> Vec<u8> {
        let hook = Hook { program: "/h".into(), arguments: Vec::new(), timeout: std::time::Duration::ZERO };
        let hook = Work::Hook { hook: hook.into(), input: "".into() };
        let kill = Work::KillTree { roots: [].into() };
        let release = Work::Release { processes: [].into() };
        let ok = |outcome, processes| StepEnd {
            result: StepResult::Ok,
            outcome: Some(outcome),
            processes: Some(processes),
            errno: None,
            error: None,
        };
        let before = |number, work| Entry::Before {
            number,
            step: std::borrow::Cow::Owned(Step { target: TargetId(1), stage: State::Kill, work }),
        };
        let reached = |number, keys: &[(u32, u64)]| Entry::Reached {
            number,
            processes: keys.iter().map(|key| touched(*key)).collect(),
        };
        let reading = Reading {
            what: Quantity::HeadroomBytes(Resource::Cgroup),
            value: Some(5.0),
            threshold: None,
            age_seconds: None,
        };
        let transition = Entry::Transition {
            from: State::Ok,
            to: State::Warn,
            reason: Reason::Near(Resource::Cgroup),
            why: "cgroup memory is near its soft level".into(),
            readings: vec![reading].into(),
        };
        let all = [
            (1, "i", transition),
            (2, "i", before(7, hook)),
            (2, "other", before(8, Work::Record)),
            (3, "i", Entry::After { number: 7, micros: 12, end: ok(Outcome::Started(Ticket(1)), 0) }),
            (5, "i", Entry::Ended { number: Some(7), output: "done\n".into(), end: ok(Outcome::Done, 1) }),
            (5, "i", before(9, kill)),
            (5, "i", reached(9, &[(3, 1), (4, 2)])),
            (6, "i", before(10, release)),
            (6, "i", reached(10, &[(4, 2)])),
            (6, "i", Entry::After { number: 99, micros: 1, end: ok(Outcome::Done, 1) }),
        ];
        let (mut text, mut line) = (Vec::new(), Vec::new());
        for (second, incident, entry) in all {
            let [incident, target, mode, config] = [incident, "job", "enforce", "ab"].map(Into::into);
            entry.write(Timestamp::from_secs(second), Occasion { incident, target, mode, config }, &mut line);
            text.extend_from_slice(&line);
        }
        text.extend_from_slice(b"no line\n");
        text
    }

    fn touched((pid, start): (u32, u64)) -> Touched {
        Touched { key: ProcessKey { pid, start }, uid: 0, comm: [0; 16], resident: 0, errno: 0 }
    }

    #[test]
    fn the_subjects_of_a_target_are_told_from_those_of_others() {
        let [gpu, allocator] = target_subjects("train");
        assert_eq!((gpu.as_str(), allocator.as_str()), ("train GPU", "train allocator"));
        assert!(
            ["train", "train GPU", "train allocator"].iter().all(|subject| is_of_target(subject, "train"))
        );
        assert!(
            !["host", "train2", "train2 GPU", "trai", "train x"].iter().any(|own| is_of_target(own, "train"))
        );
    }

    #[test]
    fn audit_lines_become_incidents() {
        let mut incident = Incident { id: "i".to_owned(), ..Incident::default() };
        incident.read(&lines());
        assert_eq!(
            (incident.target.as_str(), incident.mode.as_str(), incident.moves.len()),
            ("job", "enforce", 1)
        );
        let [hook, kill, release] = incident.steps.as_slice() else { panic!("{:?}", incident.steps) };
        assert_eq!((hook.took_us, hook.output.as_str()), (Some(12), "done\n"));
        assert_eq!((hook.outcome(), hook.ended_after_seconds), (Some(Outcome::Done), Some(3.0)));
        assert_eq!((&kill.end, kill.reached.len()), (&None, 2), "the record breaks off");
        let text = serde_json::to_string(&incident).unwrap();
        assert_eq!(serde_json::from_str::<Incident>(&text).unwrap(), incident);
        assert_eq!(release.number, 10);
        let shown: Vec<(u32, Vec<u64>)> =
            incident.processes().into_iter().map(|(process, steps)| (process.key.pid, steps)).collect();
        assert_eq!(shown, [(3, vec![9]), (4, vec![9, 10])]);
    }

    #[test]
    fn names_sort_by_time_and_are_file_names() {
        let named = |seconds, about| name(Timestamp::from_secs(seconds), about);
        assert_eq!(named(0, "job"), "19700101T000000.000Z-job");
        assert_eq!(named(1_709_164_799, "/slurm/uid_7/../x y"), "20240228T235959.000Z-slurm-uid_7----x-y");
        assert_eq!(named(1_709_164_800, ""), "20240229T000000.000Z-");
        assert_eq!(named(1_735_689_599, "é"), "20241231T235959.000Z-");
        assert_eq!(named(u64::MAX, "far"), "99991231T235959.000Z-far");
    }

    proptest::proptest! {
        #[test]
        fn no_bytes_panic(bytes: Vec<u8>, cut in 0_usize..4000, hit: u8) {
            let mut incident = Incident { id: "i".to_owned(), ..Incident::default() };
            incident.read(&bytes);
            let mut text = lines();
            let place = cut % text.len();
            text[place] = hit;
            incident.read(&text);
            let _ = incident.processes();
        }
    }
}
