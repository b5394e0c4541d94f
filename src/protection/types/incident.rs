//! The record of an incident, built from lines of the audit log.

use std::fmt::Write as _;

use serde::{Deserialize, Serialize};
use serde_json::Value;
use time::UtcDateTime;

use crate::model::ends::End;
use crate::model::format;
use crate::model::label::Label;
use crate::model::names::named;
use crate::model::time::Timestamp;
use crate::model::units::Bytes;

/// The version of the record format.
pub const SCHEMA: &str = "memwarden.incident/1";

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
    /// The limit in bytes.
    pub limit: Option<Bytes>,
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
    pub from: String,
    /// The state after.
    pub to: String,
    /// The label of its `policy::Reason`.
    pub reason: String,
    /// The reason as a sentence.
    #[serde(default)]
    pub why: String,
    /// The readings that it is based on, with age and threshold.
    pub readings: Vec<Value>,
}

/// One step, from its start to its end.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct StepRecord {
    /// Its number in the audit log.
    pub number: u64,
    /// When it began, in seconds since 1970.
    pub unix_seconds: f64,
    /// The step, as in the audit log.
    pub step: Value,
    /// `ok` or `failed`; absent where the record ends before.
    pub result: Option<String>,
    /// The outcome, as in the audit log.
    pub outcome: Value,
    /// How long the call took, in microseconds.
    pub took_us: Option<u64>,
    /// Number of processes that it reached, or would have reached.
    pub processes: Option<u64>,
    /// The error's number (errno(3)).
    pub errno: Option<i64>,
    /// Why it failed.
    pub error: Option<String>,
    /// Seconds from the start to the end, for a step that ended later.
    pub ended_after_seconds: Option<f64>,
    /// The output of a hook.
    pub output: String,
    /// The processes that it reached.
    pub reached: Vec<Value>,
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
    /// Its age.
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

/// The record of an incident.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
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
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub end: Option<Box<End>>,
    /// The transitions.
    pub moves: Vec<Move>,
    /// The steps.
    pub steps: Vec<StepRecord>,
    /// Further facts, such as the kernel's figures of its victim.
    pub facts: serde_json::Map<String, Value>,
    /// Lines of the audit log that were lost so far.
    pub lost_lines: u64,
}

impl Incident {
    /// Adds the lines of the audit log that name this incident; skips others and invalid lines.
    pub fn read(&mut self, lines: &[u8]) {
        for line in lines.split(|byte| *byte == b'\n') {
            let line: Value = serde_json::from_slice(line).unwrap_or_default();
            if line["incident"] == self.id.as_str() {
                self.take(&line);
            }
        }
    }

    fn take(&mut self, line: &Value) {
        let text = |key: &str| line[key].as_str().unwrap_or_default().to_owned();
        let at = line["unix_seconds"].as_f64().unwrap_or_default();
        for (own, key) in
            [(&mut self.target, "target"), (&mut self.mode, "mode"), (&mut self.config, "config")]
        {
            if own.is_empty() {
                *own = text(key);
            }
        }
        if let (Some("transition"), Some(readings)) = (line["entry"].as_str(), line["readings"].as_array()) {
            self.moves.push(Move {
                unix_seconds: at,
                from: text("from"),
                to: text("to"),
                reason: text("reason"),
                why: text("why"),
                readings: readings.clone(),
            });
            return;
        }
        let Some(number) = line["number"].as_u64() else { return };
        if line["entry"] == "before" {
            let step = line["step"].clone();
            self.steps.push(StepRecord { number, unix_seconds: at, step, ..StepRecord::default() });
            return;
        }
        let Some(step) = self.steps.iter_mut().rev().find(|step| step.number == number) else { return };
        match line["entry"].as_str() {
            Some("after") => {
                step.took_us = line["took_us"].as_u64();
                step.close(line);
            }
            Some("ended") => {
                step.ended_after_seconds = Some(at - step.unix_seconds);
                step.output.push_str(&text("output"));
                step.close(line);
            }
            Some("reached") => {
                step.reached.extend(line["processes"].as_array().into_iter().flatten().cloned())
            }
            _ => {}
        }
    }

    /// The id of the incident on all nodes of the run, where nodes of a run asked each other: that of the request that
    /// caused it, otherwise that of its own request.
    pub fn run_incident(&self) -> Option<&str> {
        let of = |kind: &str| {
            let step = self.steps.iter().find(|step| step.step["do"] == kind)?;
            step.step["request"]["incident"].as_str()
        };
        of("run_requested").or_else(|| of("ask_run"))
    }

    /// Whether other nodes of the run were asked and their answers are not recorded yet.
    pub fn awaits_answers(&self) -> bool {
        let awaited = |step: &StepRecord| {
            step.step["do"] == "ask_run"
                && step.outcome.get("started").is_some()
                && step.ended_after_seconds.is_none()
        };
        self.steps.iter().any(awaited)
    }

    /// The node that asked for a checkpoint of the run; absent where none did.
    pub fn asked_by(&self) -> Option<&str> {
        let step = self.steps.iter().find(|step| step.step["do"] == "run_requested")?;
        step.step["request"]["from"].as_str()
    }

    /// The run whose other nodes were asked for a checkpoint; absent where none were.
    pub fn asked_run(&self) -> Option<&str> {
        self.ask_step()?.step["run"].as_str()
    }

    /// What came back from the other nodes, or why none were asked; absent where there is no answer.
    pub fn answers(&self) -> Option<&str> {
        let step = self.ask_step()?;
        let output = Some(step.output.trim()).filter(|output| !output.is_empty());
        output.or(step.error.as_deref())
    }

    fn ask_step(&self) -> Option<&StepRecord> {
        self.steps.iter().find(|step| step.step["do"] == "ask_run")
    }

    /// Every process that was reached, once, with the steps that reached it.
    pub fn processes(&self) -> Vec<(&Value, Vec<u64>)> {
        let mut found: Vec<(&Value, Vec<u64>)> = Vec::new();
        for step in &self.steps {
            for process in &step.reached {
                let same = |(known, _): &&mut (&Value, Vec<u64>)| {
                    known["pid"] == process["pid"] && known["start"] == process["start"]
                };
                match found.iter_mut().find(same) {
                    Some((_, steps)) => steps.push(step.number),
                    None => found.push((process, vec![step.number])),
                }
            }
        }
        found
    }
}

impl StepRecord {
    fn close(&mut self, line: &Value) {
        let text = |key: &str| line[key].as_str().map(str::to_owned);
        self.result = text("result");
        self.outcome = line["outcome"].clone();
        self.error = text("error");
        self.errno = line["errno"].as_i64();
        self.processes = line["processes"].as_u64().or(self.processes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LINES: &str = r#"{"entry":"transition","incident":"i","unix_seconds":1.0,"target":"job","mode":"enforce","config":"ab","from":"ok","to":"warn","reason":"near_soft_level","why":"cgroup memory is near its soft level","readings":[{"what":"headroom_bytes","value":5.0}]}
{"entry":"before","incident":"i","unix_seconds":2.0,"number":7,"step":{"do":"hook"}}
{"entry":"before","incident":"other","unix_seconds":2.0,"number":8,"step":{}}
{"entry":"after","incident":"i","unix_seconds":2.1,"number":7,"took_us":12,"result":"ok","outcome":{"started":1},"processes":0}
{"entry":"ended","incident":"i","unix_seconds":4.5,"number":7,"output":"done\n","result":"ok","outcome":"done","processes":1}
{"entry":"before","incident":"i","unix_seconds":5.0,"number":9,"step":{"do":"kill_tree"}}
{"entry":"reached","incident":"i","unix_seconds":5.0,"number":9,"processes":[{"pid":3,"start":1},{"pid":4,"start":2}]}
{"entry":"before","incident":"i","unix_seconds":6.0,"number":10,"step":{"do":"release"}}
{"entry":"reached","incident":"i","unix_seconds":6.0,"number":10,"processes":[{"pid":4,"start":2}]}
{"entry":"after","incident":"i","unix_seconds":6.0,"number":99,"result":"ok"}
no line
"#;

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
        incident.read(LINES.as_bytes());
        assert_eq!(
            (incident.target.as_str(), incident.mode.as_str(), incident.moves.len()),
            ("job", "enforce", 1)
        );
        let [hook, kill, release] = incident.steps.as_slice() else { panic!("{:?}", incident.steps) };
        assert_eq!((hook.took_us, hook.output.as_str(), hook.processes), (Some(12), "done\n", Some(1)));
        assert_eq!((hook.outcome.as_str(), hook.ended_after_seconds), (Some("done"), Some(2.5)));
        assert_eq!((kill.result.as_deref(), kill.reached.len()), (None, 2), "the record breaks off");
        assert_eq!(release.number, 10);
        let shown: Vec<(u64, Vec<u64>)> = incident
            .processes()
            .into_iter()
            .map(|(process, steps)| (process["pid"].as_u64().unwrap(), steps))
            .collect();
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
        fn no_bytes_panic(bytes: Vec<u8>, cut in 0_usize..1500, hit: u8) {
            let mut incident = Incident { id: "i".to_owned(), ..Incident::default() };
            incident.read(&bytes);
            let mut text = LINES.as_bytes().to_vec();
            let place = cut % text.len();
            text[place] = hit;
            incident.read(&text);
            let _ = incident.processes();
        }
    }
}
