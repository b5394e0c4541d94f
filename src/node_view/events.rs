//! What changes from frame to frame: the recent past of each series, events, and who last held each GPU.
//!
//! [`Recorder::record`] takes one frame a tick and never renders text of what did not change.

use std::collections::{BTreeMap, VecDeque};

use serde::{Deserialize, Serialize};

use super::ends;
use super::lookup::Lookup;
use crate::catalog::{gpu, memory, protection, training, workload};
use crate::history::recent::{Quantity, Recent, Sample, Subject};
use crate::model::finding::{self, Severity};
use crate::model::format;
use crate::model::frame::Frame;
use crate::model::health::Health;
use crate::model::label::Label;

/// Maximum number of events.
const MOST_EVENTS: usize = 512;
/// Maximum number of events of one subject, so that one that changes all the time does not displace the others.
const MOST_OF_ONE: usize = 32;
/// Maximum number of workloads that are remembered for a GPU.
const MOST_HOLDERS: usize = 4;
/// Maximum number of characters of an event's text.
const LONGEST: usize = 200;

/// A change of the node.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Event {
    /// When, in seconds since 1970.
    pub unix_seconds: f64,
    /// How it is from then on.
    pub health: Health,
    /// What changed, in one sentence.
    pub text: String,
    /// The GPU that it is about, by its index; empty where it is about none.
    pub gpu: String,
    /// The workload that it is about; empty where it is about none.
    pub workload: String,
}

/// The workloads that were last seen on each GPU, by its UUID.
#[derive(Clone, Debug, Default)]
pub struct LastHolders(BTreeMap<String, Vec<(String, Option<f64>)>>);

impl LastHolders {
    /// The workloads with their memory, most first.
    pub(super) fn of(&self, uuid: &str) -> Option<&[(String, Option<f64>)]> {
        self.0.get(uuid).map(Vec::as_slice)
    }
}

/// What is known of a finding while it is active.
#[derive(Debug)]
struct Active {
    severity: Severity,
    gpu: Label,
    workload: Label,
    name: String,
}

#[derive(Debug, Default)]
pub struct Recorder {
    /// The recent past of each series.
    pub recent: Recent,
    /// Who was last seen on each GPU.
    pub last_holders: LastHolders,
    events: VecDeque<Event>,
    findings: BTreeMap<(&'static str, finding::Subject, &'static str), Active>,
    states: BTreeMap<(Label, Label), Label>,
    /// Seconds since 1970 minus the seconds of the clock that never steps, at the newest frame.
    offset: f64,
    frames: u64,
    /// The number of the last end of a process; absent before the first frame.
    last_end: Option<u64>,
}

impl Recorder {
    pub fn record(&mut self, frame: &Frame) {
        let (at, unix) = (frame.at.monotonic().as_secs_f64(), frame.at.unix().as_secs_f64());
        self.offset = unix - at;
        let lookup = Lookup::of(frame);
        self.recent.record(at, &samples(&lookup));
        self.hold(&lookup);
        self.compare_findings(frame, unix);
        self.compare_states(&lookup, unix);
        self.add_ends(frame);
        self.frames += 1;
    }

    /// Seconds since 1970 at a time of the recent past's origin, by the newest frame's clocks.
    pub fn unix(&self, at: f64) -> f64 {
        self.offset + at
    }

    /// The events, oldest first.
    pub fn events(&self) -> impl DoubleEndedIterator<Item = &Event> {
        self.events.iter()
    }

    fn hold(&mut self, lookup: &Lookup<'_>) {
        let mut seen = BTreeMap::<&str, Vec<(&str, f64)>>::new();
        for row in lookup.rows(&workload::GPU_MEMORY.desc) {
            seen.entry(row.label("uuid")).or_default().push((row.label("workload"), row.value()));
        }
        for row in lookup.current(&gpu::STATUS.desc) {
            let (uuid, answers) = (row.label("uuid"), row.label("status") == "ok");
            // A GPU that does not answer keeps who held it last.
            let Some(mut holders) = seen.remove(uuid).or_else(|| answers.then(Vec::new)) else { continue };
            holders.sort_by(|(_, one), (_, next)| next.total_cmp(one));
            holders.truncate(MOST_HOLDERS);
            let same = self.last_holders.0.get_mut(uuid).filter(|known| {
                known.len() == holders.len()
                    && known.iter().zip(&holders).all(|(known, (name, _))| known.0 == *name)
            });
            match same {
                Some(known) => {
                    for (known, (_, memory)) in known.iter_mut().zip(&holders) {
                        known.1 = Some(*memory);
                    }
                }
                None => {
                    let holders = holders.into_iter().map(|(name, memory)| (name.to_owned(), Some(memory)));
                    self.last_holders.0.insert(uuid.to_owned(), holders.collect());
                }
            }
        }
    }

    fn compare_findings(&mut self, frame: &Frame, unix: f64) {
        let stated = frame.findings.iter().filter(|finding| finding.severity > Severity::Info);
        let mut before = std::mem::take(&mut self.findings);
        for finding in stated {
            let key = (finding.analyzer, finding.subject.clone(), finding.state);
            let known = before.remove(&key);
            let active = match known {
                Some(active) if active.severity == finding.severity => active,
                _ => {
                    let (gpu, workload) = (finding.subject.gpu.clone(), finding.subject.workload.clone());
                    let health = Health::from(finding.severity);
                    // The summary of a leak says for how long it has been one, which is of its own time only.
                    let text = match finding.analyzer {
                        "leak" => format!("Memory of {:#} is {}.", finding.subject, finding.state),
                        _ => finding.summary.clone(),
                    };
                    self.add(finding.since_unix_seconds.min(unix), health, text, &gpu, &workload);
                    let name = format!(
                        "{}: the finding \"{}\" has ended",
                        finding.subject,
                        finding.state.replace('_', " ")
                    );
                    Active { severity: finding.severity, gpu, workload, name }
                }
            };
            self.findings.insert(key, active);
        }
        let changed: Vec<_> =
            self.findings.keys().map(|(analyzer, subject, _)| (*analyzer, subject.clone())).collect();
        for ((analyzer, subject, _), ended) in before {
            // Another state of the same subject is an event of its own.
            if !changed.iter().any(|(other, about)| *other == analyzer && *about == subject) {
                self.add(unix, Health::Ok, format!("{}.", ended.name), &ended.gpu, &ended.workload);
            }
        }
    }

    fn compare_states(&mut self, lookup: &Lookup<'_>, unix: f64) {
        let mut now = BTreeMap::new();
        for row in lookup.current(&protection::STATE.desc) {
            let (target, about) = (Label::from(row.label("target")), Label::from(row.label("workload")));
            let state = Label::from(row.label("state"));
            let before = self.states.get(&(target.clone(), about.clone()));
            if before.is_some_and(|before| *before != state)
                || (before.is_none() && state.as_str() != "ok" && self.frames > 0)
            {
                let from = before.map_or_else(String::new, |before| format!(" from {before}"));
                let text = format!("Protection target {target}: {about} goes{from} to {state}.");
                self.add(unix, state_health(state.as_str()), text, &Label::default(), &about);
            }
            now.insert((target, about), state);
        }
        self.states = now;
    }

    /// Adds the ends that are no success, from the first frame on.
    fn add_ends(&mut self, frame: &Frame) {
        let newest = frame.outlook.ends.last().map_or(0, |end| end.number);
        let before = self.last_end.replace(newest);
        for end in frame.outlook.ends.iter().filter(|end| before.is_some_and(|before| end.number > before)) {
            // Of processes without a workload, the incidents of their cgroups are shown.
            if end.is_abnormal() && !end.workload.is_empty() {
                self.add(
                    end.unix_seconds,
                    end.health(),
                    ends::public_sentence(end),
                    &Label::default(),
                    &end.workload,
                );
            }
        }
    }

    fn add(&mut self, unix_seconds: f64, health: Health, text: String, gpu: &Label, workload: &Label) {
        let same = |event: &Event| event.gpu == gpu.as_str() && event.workload == workload.as_str();
        if self.events.iter().filter(|event| same(event)).count() >= MOST_OF_ONE
            && let Some(oldest) = self.events.iter().position(same)
        {
            self.events.remove(oldest);
        }
        if self.events.len() >= MOST_EVENTS {
            self.events.pop_front();
        }
        let (text, gpu, workload) =
            (format::beginning(&text, LONGEST), gpu.to_string(), workload.to_string());
        let event = Event { unix_seconds, health, text, gpu, workload };
        let place = self.events.partition_point(|other| other.unix_seconds <= unix_seconds);
        self.events.insert(place, event);
    }
}

/// How a workload is in a state of protection.
pub(super) fn state_health(state: &str) -> Health {
    match state {
        "ok" | "cooldown" => Health::Ok,
        "disarmed" | "blind" => Health::Unknown,
        "checkpoint" | "term" | "kill" | "verify" => Health::Critical,
        _ => Health::Warning,
    }
}

/// The values of a frame that are kept.
fn samples(lookup: &Lookup<'_>) -> Vec<Sample> {
    let mut all = Vec::new();
    let mut users = foldhash::HashMap::<&Label, &Label>::default();
    for row in lookup.rows(&workload::INFO.desc) {
        users.extend(row.get("workload").zip(row.get("user")));
    }
    let mut put = |subject, quantity, value, owner| all.push(Sample { subject, quantity, value, owner });
    let own = |name: &Label| Some(users.get(name).copied().cloned().unwrap_or_default());
    for (desc, quantity) in
        [(&memory::USED.desc, Quantity::Used), (&memory::SWAP_USED.desc, Quantity::Second)]
    {
        lookup.value(desc).into_iter().for_each(|value| put(Subject::Host, quantity, value, None));
    }
    for (desc, quantity) in
        [(&gpu::MEMORY_USED.desc, Quantity::Used), (&gpu::UTILIZATION.desc, Quantity::Utilization)]
    {
        for (uuid, value) in lookup.rows(desc).filter_map(|row| Some((row.get("uuid")?, row.value()))) {
            put(Subject::Gpu(uuid.clone()), quantity, value, None);
        }
    }
    for row in lookup.rows(&workload::RSS.desc) {
        let Some(name) = row.get("workload") else { continue };
        put(Subject::Workload(name.clone()), Quantity::Used, row.value(), own(name));
    }
    let mut on_gpus = BTreeMap::<&Label, f64>::new();
    for row in lookup.rows(&workload::GPU_MEMORY.desc) {
        row.get("workload").into_iter().for_each(|name| *on_gpus.entry(name).or_default() += row.value());
    }
    for (name, value) in on_gpus {
        put(Subject::Workload(name.clone()), Quantity::Second, value, own(name));
    }
    for (desc, quantity) in
        [(&training::ALLOCATED.desc, Quantity::Used), (&training::RESERVED.desc, Quantity::Second)]
    {
        let mut by_rank = BTreeMap::<(&Label, &Label), f64>::new();
        for row in lookup.rows(desc) {
            let key = row.get("workload").zip(row.get("rank"));
            key.into_iter().for_each(|key| *by_rank.entry(key).or_default() += row.value());
        }
        for ((name, rank), value) in by_rank {
            put(Subject::Rank(name.clone(), rank.clone()), quantity, value, own(name));
        }
    }
    all
}
