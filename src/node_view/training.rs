//! Ranks, their allocators, and the events that jobs report.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use super::forecast::{Forecast, Forecasts, Growth};
use super::lookup::{Lookup, MetricRow};
use crate::catalog::{fragmentation, training};
use crate::model::desc::Desc;
use crate::model::finding::Subject;
use crate::model::format;
use crate::model::frame::Frame;
use crate::model::health::Health;
use crate::model::timeline::{EntryKind, Viewer};

/// Maximum number of events that a view has.
const MOST_EVENTS: usize = 100;

/// A rank is stalled without a step for so many times its last step, and for so many seconds, as the alert RunStalled has it.
const STALL_STEPS: f64 = 20.0;
const SHORTEST_STALL: f64 = 120.0;
/// Parts of the names of phases without steps.
const PAUSES: [&str; 4] = ["eval", "valid", "test", "generat"];

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Rank {
    /// Its number; with the pid where another process has the same.
    pub rank: String,
    /// Number of ranks of the run; empty where it is not known.
    pub world: String,
    /// Its process.
    pub pid: String,
    /// The index of its GPU; empty where it uses none or several.
    pub gpu: String,
    /// The UUID of its GPU; empty likewise.
    pub uuid: String,
    /// The name that the user gave the run.
    pub run: String,
    pub framework: String,
    pub step: Option<f64>,
    /// How long that step took, in seconds.
    pub step_seconds: Option<f64>,
    /// Seconds since its last step.
    pub step_age: Option<f64>,
    /// Whether it has completed no step for 20 times its last step and two minutes, and does not evaluate or save.
    #[serde(default)]
    pub is_stalled: bool,
    pub tokens_per_second: Option<f64>,
    /// The loss of the last step.
    pub loss: Option<f64>,
    /// Model FLOPs utilization, 0 to 1.
    pub mfu: Option<f64>,
    /// Number of steps since the first message.
    pub steps: Option<f64>,
    /// Number of tokens since the first message.
    pub tokens: Option<f64>,
    /// FLOP/s by convention.
    #[serde(default)]
    pub flops: Vec<(String, f64)>,
    /// Why the formulas have no value.
    #[serde(default)]
    pub flops_unknown: String,
    /// MFU by convention.
    #[serde(default)]
    pub mfus: Vec<(String, f64)>,
    #[serde(default)]
    pub phases: Vec<Phase>,
    /// Seconds since its last message.
    pub message_age: Option<f64>,
    /// The state of its last checkpoint: `saving`, `saved` or `failed`; empty where it has none.
    pub checkpoint: String,
    /// When it last saved one, in seconds since 1970.
    pub checkpoint_saved: Option<f64>,
    /// Its allocators, one for each device.
    pub allocators: Vec<Allocator>,
    /// The growth of its memory on its GPU.
    pub growth: Option<Growth>,
    /// What is predicted of its allocator.
    pub forecast: Option<Forecast>,
}

impl Rank {
    /// How it is: what is predicted of its allocator, or a fragmented allocator where that is worse.
    pub fn health(&self) -> Health {
        let predicted = self.forecast.as_ref().map_or(Health::Unknown, Forecast::health);
        // An allocator that is not assessed does not make a rank unknown whose time left is known.
        let worse = self.allocators.iter().map(Allocator::health).filter(|health| *health > Health::Unknown);
        worse.fold(predicted, Health::max).max(if self.is_stalled { Health::Warning } else { Health::Ok })
    }

    /// The worst state of its allocators, with its severity: `fine`, `fragmenting` or `fragmented`; absent where none is
    /// assessed.
    pub fn allocator_state(&self) -> Option<(&str, Health)> {
        let place =
            |state: &str| ["fine", "fragmenting", "fragmented"].iter().position(|known| *known == state);
        let assessed = self.allocators.iter().filter(|own| !own.state.is_empty());
        let worst = assessed.max_by_key(|own| place(&own.state))?;
        Some((&worst.state, worst.health()))
    }
}

/// A phase of the steps of a rank.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Phase {
    pub name: String,
    /// Time in it in seconds, since the first message.
    pub seconds: f64,
    /// How often it has ended.
    pub count: f64,
    /// The largest allocated memory in it, in bytes.
    pub peak: Option<f64>,
}

/// The allocator of a rank on one device; all amounts in bytes.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Allocator {
    /// The ordinal of the device in the process.
    pub device: String,
    /// The index of the GPU; empty where the driver does not confirm it.
    pub gpu: String,
    /// Memory of live tensors.
    pub allocated: Option<f64>,
    /// Its largest value.
    pub allocated_peak: Option<f64>,
    /// Memory reserved from the device.
    pub reserved: Option<f64>,
    /// The largest value of that.
    pub reserved_peak: Option<f64>,
    /// Free memory in segments that are in use (inactive split).
    pub inactive_split: Option<f64>,
    /// Free memory that cannot be released to the device.
    pub unreleasable: Option<f64>,
    /// The same as a share of the reserved memory, 0 to 1.
    pub unreleasable_ratio: Option<f64>,
    /// Free memory that can be released to the device.
    pub releasable: Option<f64>,
    /// The largest free block.
    pub largest_free: Option<f64>,
    /// Free memory of the device.
    pub device_free: Option<f64>,
    /// All memory of the device.
    pub device_total: Option<f64>,
    /// Allocations that were retried after the cache was freed.
    pub retries: Option<f64>,
    /// Allocations that failed.
    pub ooms: Option<f64>,
    /// `fine`, `fragmenting` or `fragmented`; empty where it is not assessed.
    pub state: String,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct JobEvent {
    /// When, in seconds since 1970.
    pub unix_seconds: f64,
    pub workload: String,
    pub rank: String,
    /// What happened.
    pub what: String,
    /// Whether something failed.
    pub failed: bool,
    /// Whether it states what has grown inside the program.
    #[serde(default)]
    pub grown: bool,
}

impl JobEvent {
    /// How severe it is: a job that ran out of memory or could not save requires attention.
    pub fn health(&self) -> Health {
        if self.failed { Health::Warning } else { Health::Ok }
    }
}

/// Maximum number of characters of a path.
const LONGEST_PATH: usize = 300;

type Ranks = BTreeMap<(String, String), Rank>;

/// The ranks by workload, in order of their numbers.
pub(super) fn ranks(lookup: &Lookup<'_>, forecasts: &Forecasts<'_>) -> BTreeMap<String, Vec<Rank>> {
    let mut all = Ranks::new();
    for row in lookup.current(&training::INFO.desc) {
        let text = |name| row.label(name).to_owned();
        let rank = Rank {
            rank: text("rank"),
            world: text("world"),
            pid: text("pid"),
            gpu: text("gpu"),
            uuid: text("uuid"),
            run: text("run"),
            framework: [row.label("framework"), row.label("framework_version")].join(" ").trim().to_owned(),
            ..Rank::default()
        };
        all.insert((text("workload"), text("rank")), rank);
    }
    for (desc, field) in figures() {
        each(&mut all, lookup, desc, |rank, row| *field(rank) = Some(row.value()));
    }
    each(&mut all, lookup, &training::FLOPS.desc, |rank, row| {
        rank.flops.push((row.label("convention").to_owned(), row.value()));
    });
    each(&mut all, lookup, &training::FLOPS_UNKNOWN.desc, |rank, row| {
        row.label("reason").clone_into(&mut rank.flops_unknown);
    });
    for (desc, field) in phases() {
        each(&mut all, lookup, desc, |rank, row| field(rank.phase(row.label("phase")), row.value()));
    }
    each(&mut all, lookup, &training::MFU.desc, |rank, row| {
        rank.mfus.push((row.label("convention").to_owned(), row.value()));
        if row.label("convention") == "causal" || rank.mfu.is_none() {
            rank.mfu = Some(row.value());
        }
    });
    each(&mut all, lookup, &training::CHECKPOINT.desc, |rank, row| {
        if row.value() > 0.0 {
            row.label("state").clone_into(&mut rank.checkpoint);
        }
    });
    for (desc, field) in amounts() {
        each(&mut all, lookup, desc, |rank, row| *field(rank.allocator(&row)) = Some(row.value()));
    }
    each(&mut all, lookup, &fragmentation::ALLOCATOR_STATE.desc, |rank, row| {
        if row.value() > 0.0 {
            row.label("state").clone_into(&mut rank.allocator(&row).state);
        }
    });
    let pauses: Vec<_> = lookup
        .current(&training::PHASE_NOW.desc)
        .filter(|row| PAUSES.iter().any(|pause| row.label("phase").to_lowercase().contains(pause)))
        .map(|row| (row.label("workload").to_owned(), row.label("rank").to_owned()))
        .collect();
    for (key, rank) in &mut all {
        let longest = rank.step_seconds.map(|step| (STALL_STEPS * step).max(SHORTEST_STALL));
        let stands = rank.step_age.zip(longest).is_some_and(|(age, longest)| age > longest);
        rank.is_stalled = stands && rank.checkpoint != "saving" && !pauses.contains(key);
    }
    let mut by_workload = BTreeMap::<String, Vec<Rank>>::new();
    for ((workload, _), mut rank) in all {
        let (name, pid) = (workload.as_str().into(), rank.pid.as_str().into());
        let on_gpu = Subject {
            workload: workload.as_str().into(),
            ..Subject::gpu_process(&rank.gpu.as_str().into(), &rank.uuid.as_str().into(), &pid)
        };
        let allocator = Subject::allocator(&name, &pid, &rank.gpu.as_str().into());
        rank.growth = forecasts.growth(&on_gpu).or_else(|| forecasts.growth(&allocator));
        rank.forecast = forecasts.forecast(&allocator);
        by_workload.entry(workload).or_default().push(rank);
    }
    for ranks in by_workload.values_mut() {
        ranks.sort_by(|one, next| {
            let number = |rank: &Rank| rank.rank.parse::<u64>().unwrap_or(u64::MAX);
            number(one).cmp(&number(next)).then_with(|| one.rank.cmp(&next.rank))
        });
    }
    by_workload
}

type Field<T> = fn(&mut T) -> &mut Option<f64>;

fn figures() -> [(&'static Desc, Field<Rank>); 9] {
    [
        (&training::STEPS.desc, |rank| &mut rank.steps),
        (&training::TOKENS.desc, |rank| &mut rank.tokens),
        (&training::STEP.desc, |rank| &mut rank.step),
        (&training::STEP_LAST.desc, |rank| &mut rank.step_seconds),
        (&training::STEP_AGE.desc, |rank| &mut rank.step_age),
        (&training::TOKEN_RATE.desc, |rank| &mut rank.tokens_per_second),
        (&training::LOSS.desc, |rank| &mut rank.loss),
        (&training::MESSAGE_AGE.desc, |rank| &mut rank.message_age),
        (&training::CHECKPOINT_SAVED.desc, |rank| &mut rank.checkpoint_saved),
    ]
}

fn amounts() -> [(&'static Desc, Field<Allocator>); 13] {
    [
        (&training::RESERVED_PEAK.desc, |own| &mut own.reserved_peak),
        (&fragmentation::UNRELEASABLE_RATIO.desc, |own| &mut own.unreleasable_ratio),
        (&training::ALLOCATED.desc, |own| &mut own.allocated),
        (&training::ALLOCATED_PEAK.desc, |own| &mut own.allocated_peak),
        (&training::RESERVED.desc, |own| &mut own.reserved),
        (&training::INACTIVE_SPLIT.desc, |own| &mut own.inactive_split),
        (&fragmentation::UNRELEASABLE.desc, |own| &mut own.unreleasable),
        (&training::RELEASABLE.desc, |own| &mut own.releasable),
        (&training::LARGEST_FREE.desc, |own| &mut own.largest_free),
        (&training::DEVICE_FREE.desc, |own| &mut own.device_free),
        (&training::DEVICE_TOTAL.desc, |own| &mut own.device_total),
        (&training::RETRIES.desc, |own| &mut own.retries),
        (&training::ALLOCATOR_OOMS.desc, |own| &mut own.ooms),
    ]
}

type OfPhase = (&'static Desc, fn(&mut Phase, f64));

fn phases() -> [OfPhase; 3] {
    [
        (&training::PHASE_SECONDS.desc, |own, value| own.seconds = value),
        (&training::PHASES.desc, |own, value| own.count = value),
        (&training::PHASE_PEAK.desc, |own, value| own.peak = Some(value)),
    ]
}

/// Passes each series of a metric to its rank.
fn each(all: &mut Ranks, lookup: &Lookup<'_>, desc: &Desc, mut take: impl FnMut(&mut Rank, MetricRow<'_>)) {
    for row in lookup.rows(desc) {
        let key = (row.label("workload").to_owned(), row.label("rank").to_owned());
        // A rank that reported no hello has no identity: its name is its number.
        let rank =
            all.entry(key).or_insert_with_key(|(_, rank)| Rank { rank: rank.clone(), ..Rank::default() });
        take(rank, row);
    }
}

impl Rank {
    fn phase(&mut self, name: &str) -> &mut Phase {
        let new = || Phase { name: name.to_owned(), ..Phase::default() };
        found_or(&mut self.phases, |own| own.name == name, new)
    }

    /// The allocator that a row is about.
    fn allocator(&mut self, row: &MetricRow<'_>) -> &mut Allocator {
        let (device, gpu) = (row.label("device"), row.label("gpu"));
        let new = || Allocator { device: device.to_owned(), gpu: gpu.to_owned(), ..Allocator::default() };
        found_or(&mut self.allocators, |own| own.device == device && own.gpu == gpu, new)
    }
}

/// The first of `all` that is wanted, else a new one at the end.
fn found_or<T>(all: &mut Vec<T>, is_wanted: impl Fn(&T) -> bool, new: impl FnOnce() -> T) -> &mut T {
    let place = all.iter().position(is_wanted).unwrap_or(all.len());
    if place == all.len() {
        all.push(new());
    }
    &mut all[place]
}

/// Where a job that ran out of memory wrote a snapshot of its allocator, to follow what happened; empty where it wrote none.
fn snapshot(detail: Option<&RawValue>) -> String {
    #[derive(Default, Deserialize)]
    struct Detail {
        snapshot: Option<String>,
    }
    let detail: Detail =
        detail.and_then(|detail| serde_json::from_str(detail.get()).ok()).unwrap_or_default();
    let path = detail.snapshot.filter(|path| !path.is_empty());
    path.map_or_else(String::new, |path| {
        format!("; allocator snapshot {}", format::short(&path, LONGEST_PATH))
    })
}

/// The newest events that jobs reported, newest first, as `viewer` may read them.
pub(super) fn events(frame: &Frame, viewer: Viewer) -> Vec<JobEvent> {
    let newest = frame.timeline.entries.iter().rev().take(MOST_EVENTS);
    let phase = newest.map(|entry| {
        let entry = entry.seen_by(viewer);
        let step = entry.step.map_or_else(String::new, |step| format!(" at step {step}"));
        let name = entry.name.as_str();
        let snapshot = match entry.kind {
            EntryKind::Oom => snapshot(entry.detail.as_deref()),
            _ => String::new(),
        };
        let (what, failed) = match entry.kind {
            EntryKind::Start => ("started".to_owned(), false),
            EntryKind::FirstStep => ("finished its first step".to_owned(), false),
            EntryKind::Event if name.is_empty() => ("reported an event".to_owned(), false),
            EntryKind::Event => (format!("event \u{201c}{name}\u{201d}"), false),
            EntryKind::Oom => ("ran out of memory".to_owned(), true),
            EntryKind::Checkpoint => (format!("checkpoint {name}"), name == "failed"),
            EntryKind::Growth if name.is_empty() => ("grew inside".to_owned(), false),
            EntryKind::Growth => (format!("grew inside: {name}"), false),
            EntryKind::End => ("ended".to_owned(), false),
        };
        JobEvent {
            unix_seconds: entry.unix_seconds,
            workload: entry.workload.to_string(),
            rank: entry.rank.to_string(),
            what: what + &step + &snapshot,
            failed,
            grown: entry.kind == EntryKind::Growth,
        }
    });
    phase.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_job_without_memory_tells_where_its_snapshot_is() {
        let told = |json: &str| snapshot(RawValue::from_string(json.to_owned()).ok().as_deref());
        assert_eq!(
            told(r#"{"requested":5,"snapshot":"/scratch/oom.pickle"}"#),
            "; allocator snapshot /scratch/oom.pickle"
        );
        for without in [r#"{"snapshot":null}"#, r#"{"snapshot":""}"#, r#"{"snapshot":7}"#, "[]"] {
            assert_eq!(told(without), "");
        }
        assert_eq!(snapshot(None), "");
        let long = told(&format!(r#"{{"snapshot":"/{}"}}"#, "x".repeat(5_000)));
        assert!(long.chars().count() < 400);
    }
}
