//! What the analyzers conclude of each resource, typed.
//!
//! A [`Conclusion`] is all that is known of one resource at one tick. Metrics and findings are written from it
//! (`analyzers::conclusions`); protection, pages, reports and charts read it. Nothing reads a label or a sentence back.

use std::sync::Arc;

pub use forecast::{Basis, LeakState, Rate, Tte};

use foldhash::{HashMap, HashMapExt as _};
use serde::{Deserialize, Serialize};

use super::ends::End;
use super::facts::OomVictim;
use super::finding::Subject;
use super::fits::Fit;
use super::format;
use super::health::{Health, Rule};
use super::ids::{ProcessKey, WorkloadKey};
use super::label::Label;

/// The horizons of the probabilities, in seconds.
pub const HORIZONS: [f64; 4] = [60.0, 300.0, 900.0, 3600.0];

/// The values of the label `horizon`, in the order of [`HORIZONS`].
pub const HORIZON_LABELS: [&str; HORIZONS.len()] = ["1m", "5m", "15m", "60m"];

/// A time to exhaustion is stated to people where growth goes on until then with at least this probability.
const WORTH_STATING: f64 = 0.1;

/// The conclusions of one tick. At most as many as the analyzers track subjects (`analyzers.*.max_subjects`).
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Outlook {
    /// Every assessed resource, each once.
    pub conclusions: Vec<Conclusion>,
    /// Whether the phases that ranks predict fit.
    pub fits: Vec<Fit>,
    /// How processes ended, and why; the oldest first.
    pub ends: Arc<[Arc<End>]>,
    /// The processes that the kernel's OOM killer killed since the tick before, by the source `kmsg`.
    pub oom_victims: Vec<OomVictim>,
    /// The workloads of processes that were killed and whose end is not stated yet.
    pub awaits_kills: Vec<Label>,
    /// Whether an analyzer forecasts: false where it is disabled, or failed in this tick.
    pub has_forecasts: bool,
    /// Whether an analyzer detects leaks.
    pub has_leaks: bool,
}

/// What is known of one resource.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Conclusion {
    /// The resource by the names that are displayed.
    pub subject: Subject,
    /// The resource by identities of the kernel and the driver, for programs that act on it; absent where the sources
    /// did not report it, and in JSON.
    #[serde(skip)]
    pub identity: Option<Resource>,
    /// Its memory against its limit; absent for a resource without a limit.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub forecast: Option<Forecast>,
    /// How its memory grows; absent where it is not assessed for leaks.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub growth: Option<Growth>,
}

/// An assessed resource, by identities of the kernel, the driver and [`super::ids`].
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Resource {
    Host,
    /// A cgroup, by its path in the hierarchy of the memory controller.
    Cgroup(Label),
    Gpu {
        /// The UUID that the driver gives it.
        uuid: Label,
    },
    /// The NUMA nodes that a workload may use, where these are not all.
    Nodes(WorkloadKey),
    /// A workload: the sum of its processes.
    Workload(WorkloadKey),
    Process(ProcessKey),
    /// The memory of one process on one GPU, as the driver reports it.
    GpuProcess {
        process: ProcessKey,
        /// The UUID of the GPU.
        uuid: Label,
    },
    /// The allocator of a process, as the process itself reports it.
    Allocator {
        process: ProcessKey,
        /// The UUID of the GPU that it allocates on; absent where the driver does not confirm one.
        device: Option<Label>,
    },
}

/// The memory of a resource against its limit, and when it is exhausted.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Forecast {
    /// Memory that counts against the limit, in bytes.
    pub used_bytes: f64,
    pub limit_bytes: f64,
    /// Growth; absent before there are enough samples.
    pub rate: Option<Rate>,
    /// Seconds since growth began; absent while it does not grow.
    pub growing_for_seconds: Option<f64>,
    /// The time to exhaustion from the frame's time on; absent while no exhaustion is predicted.
    pub time_to_exhaustion: Option<Tte>,
    /// The probability of exhaustion within each of [`HORIZONS`]; absent before there are enough samples.
    #[serde(default)]
    pub within: [Option<f64>; HORIZONS.len()],
    /// The probability that growth goes on until exhaustion, or for the longest horizon if that is sooner.
    pub growth_continues: Option<f64>,
    /// The quantity that the forecast is computed from; absent without a forecast.
    pub basis: Option<Basis>,
    /// The recurring peaks that the forecast is computed from; absent where it is computed from the trend.
    pub peaks: Option<Peaks>,
    /// Why it has its health.
    pub rule: Rule,
    /// Since when that rule holds, in seconds since 1970.
    pub since_unix_seconds: f64,
    /// Whether that rule does not hold any more: the health falls when a less severe rule has held for a minute.
    #[serde(default)]
    pub is_over: bool,
    /// The rule that several samples confirm, which alerts read; absent where it is the shown one.
    #[serde(skip)]
    pub confirmed: Option<Rule>,
}

/// Peaks that recur.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Peaks {
    pub count: u64,
    /// Seconds since the first of them.
    pub for_seconds: f64,
    /// Median interval in seconds.
    pub period_seconds: f64,
    /// Median height in bytes.
    pub height_bytes: f64,
    /// Growth of their highest values in bytes per second.
    pub growth_bytes_per_second: f64,
    /// Seconds until the next one is expected.
    pub next_seconds: f64,
    /// The phase of the job in which they occur, and the steps from one to the next; absent where the job does not
    /// report it.
    pub phase: Option<(String, f64)>,
}

/// How memory grows.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Growth {
    pub state: LeakState,
    pub evaluated_bytes: f64,
    /// The rate; absent before there are enough samples, and after growth ends until the evaluated samples no longer
    /// include it.
    pub rate: Option<Rate>,
    /// The same for each training step; absent where the job reports no steps.
    pub bytes_per_step: Option<f64>,
    /// When it began, in seconds since 1970; absent while it does not grow.
    pub since_unix_seconds: Option<f64>,
    /// Strength of the evidence, 0.5 to 1, which orders suspects and is not a probability; absent while it does not grow.
    pub confidence: Option<f64>,
    /// The evidence; absent before there are enough samples.
    pub evidence: Option<GrowthEvidence>,
    /// The growth that is stated to people; absent where none is stated.
    pub stated: Option<StatedGrowth>,
}

/// The evidence for growth in the evaluated window.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct GrowthEvidence {
    /// The rise over the window in bytes.
    pub rise_bytes: f64,
    /// The length of the window in seconds.
    pub window_seconds: f64,
    /// Distance of the slope of the lower envelope from zero, in standard errors.
    pub floor_standard_errors: f64,
    /// The same for the center.
    pub center_standard_errors: f64,
    /// The same for the upper envelope.
    pub peak_standard_errors: f64,
}

/// Growth as it is stated: it rises at once, and falls when it has not held for a minute.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct StatedGrowth {
    /// `growing` or `leaking`.
    pub state: LeakState,
    /// Since when, in seconds since 1970.
    pub since_unix_seconds: f64,
    /// The type of memory that most likely grows.
    pub memory: GrowingMemory,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum GrowingMemory {
    Anonymous,
    Shared,
    /// Anonymous or shared memory: it is not known which.
    AnonymousOrShared,
    /// Pinned host memory.
    Pinned,
    /// Resident memory, which the kernel does not report by type.
    Resident,
    /// Memory that an allocator of a GPU gave to tensors.
    GpuAllocated,
    /// Memory of a GPU as its driver reports it.
    GpuReserved,
    /// Memory of a process on a GPU that its allocators did not reserve.
    OutsideAllocator,
}

impl GrowingMemory {
    pub const fn words(self) -> &'static str {
        match self {
            Self::Anonymous => "anonymous memory",
            Self::Shared => "shared memory",
            Self::AnonymousOrShared => "anonymous or shared memory",
            Self::Pinned => "pinned host memory",
            Self::Resident => "resident memory",
            Self::GpuAllocated => "memory allocated to tensors",
            Self::GpuReserved => "GPU memory reported by the driver",
            Self::OutsideAllocator => "GPU memory outside of the allocator",
        }
    }

    /// What can be done about its growth, one sentence.
    pub const fn advice(self) -> &'static str {
        match self {
            Self::Anonymous => {
                "Check what the program keeps across steps or requests: lists and caches that grow, and losses that retain the autograd graph."
            }
            Self::Shared => {
                "Check for tensors in /dev/shm that are never freed: data-loader workers, queues, shared caches."
            }
            Self::AnonymousOrShared => {
                "Check which of the two grows (memwarden_workload_rss_anon_bytes, _rss_shmem_bytes)."
            }
            Self::Pinned => {
                "Check for pinned tensors that are kept: offload buffers, and data loaders with pin_memory."
            }
            Self::GpuAllocated => {
                "Check for tensors that are kept across steps, such as losses that retain the autograd graph; an allocator snapshot shows the source lines (memwarden snapshot)."
            }
            Self::Resident => {
                "Check which of its mappings grows; the kernel does not report its memory by type here."
            }
            Self::OutsideAllocator => {
                "Check what takes device memory without PyTorch's allocator: NCCL communicators and CUDA graphs that are created again, workspaces of cuBLAS and cuDNN, extensions that call cudaMalloc."
            }
            Self::GpuReserved => {
                "The allocator may only be reserving more memory; the allocated memory that the job reports shows whether it leaks."
            }
        }
    }
}

impl Forecast {
    /// Memory left in bytes.
    pub fn headroom_bytes(&self) -> f64 {
        (self.limit_bytes - self.used_bytes).max(0.0)
    }

    /// The used share of the limit.
    pub fn used_share(&self) -> f64 {
        self.used_bytes / self.limit_bytes
    }

    /// The health of the resource by its memory: the only severity of a forecast.
    pub const fn health(&self) -> Health {
        self.rule.health()
    }

    /// Why it has its health, to follow "because".
    pub const fn why(&self) -> &'static str {
        if self.is_over { self.rule.past() } else { self.rule.text() }
    }

    /// Growth in bytes per second.
    pub fn growth(&self) -> Option<f64> {
        self.rate.map(|rate| rate.bytes_per_second)
    }

    /// The probability of exhaustion within a horizon of [`HORIZONS`]; absent before there are enough samples.
    pub fn within(&self, horizon: f64) -> Option<f64> {
        let place = HORIZONS.iter().position(|known| *known >= horizon)?;
        self.within[place]
    }

    /// Whether there are enough samples for a forecast.
    pub fn is_ready(&self) -> bool {
        self.within.iter().any(Option::is_some)
    }

    /// The time to exhaustion that is stated to people; absent while none is predicted, and where growth probably ends
    /// before.
    pub fn stated(&self) -> Option<Tte> {
        let goes_on = self.growth_continues.is_none_or(|p| p >= WORTH_STATING);
        self.time_to_exhaustion.filter(|_| goes_on)
    }

    /// Seconds until it is full at its growth; absent where it does not grow.
    pub fn at_its_growth(&self) -> Option<f64> {
        self.growth().filter(|growth| *growth > 0.0).map(|growth| self.headroom_bytes() / growth)
    }

    /// Confidence of the rule: the probability in it, 1 where it compares measured values, and for
    /// [`Rule::None`] the probability of no exhaustion within the hour. Absent for a leak, without a probability, and for a rule
    /// that is over.
    pub fn confidence(&self) -> Option<f64> {
        match self.rule {
            _ if self.is_over => None,
            Rule::None => self.within(3600.0).map(|p| 1.0 - p),
            Rule::ExhaustionWithinHour => self.within(3600.0),
            Rule::ExhaustionWithin15Minutes => self.within(900.0),
            Rule::Throttled
            | Rule::Full
            | Rule::FullAfterGrowth
            | Rule::FullWithoutGrowth
            | Rule::NearlyFull
            | Rule::NearlyFullAndGrows => Some(1.0),
            Rule::Leaks | Rule::TooFewSamples => None,
        }
    }
}

impl Growth {
    pub fn leaks(&self) -> bool {
        self.state == LeakState::Leaking
    }

    pub fn grows(&self) -> bool {
        self.state >= LeakState::Growing
    }

    /// The rate in bytes per second.
    pub fn bytes_per_second(&self) -> Option<f64> {
        self.rate.map(|rate| rate.bytes_per_second)
    }

    /// The rate as text after `before`; empty where it is not known.
    pub fn pace(&self, before: &str) -> String {
        let rate = self.bytes_per_second();
        rate.map_or_else(String::new, |rate| format!("{before}{}", format::rate(rate)))
    }

    /// Since when it grows, as text after `before`; empty where it is not known. `now` is in seconds since 1970.
    pub fn since(&self, before: &str, now: f64) -> String {
        let since = self.since_unix_seconds;
        since.map_or_else(String::new, |since| format!("{before}since {}", format::clock(since, now)))
    }
}

/// The health of a resource by both parts of its conclusion: that of its memory against its limit, and at least a
/// warning where it leaks; unknown without either.
pub fn health(forecast: Option<&Forecast>, growth: Option<&Growth>) -> Health {
    let growth = growth.map(|growth| growth.state.into());
    match (forecast, growth) {
        (Some(forecast), Some(growth)) if growth >= Health::Warning => forecast.health().max(growth),
        (Some(forecast), _) => forecast.health(),
        (None, growth) => growth.unwrap_or(Health::Unknown),
    }
}

/// The health of several resources: as the worst of them. One that has begun a moment ago does not make the others unknown,
/// unless it is the host; without any resource it is unknown.
pub fn overall<'a>(all: impl IntoIterator<Item = (&'a Subject, &'a Forecast)>) -> Health {
    let (mut known, mut young) = (None, None);
    for (subject, forecast) in all {
        let is_young = forecast.rule == Rule::TooFewSamples && *subject != Subject::host();
        let worst = if is_young { &mut young } else { &mut known };
        *worst = (*worst).max(Some(forecast.health()));
    }
    known.or(young).unwrap_or(Health::Unknown)
}

impl Conclusion {
    pub fn health(&self) -> Health {
        health(self.forecast.as_ref(), self.growth.as_ref())
    }

    /// What can be done before the resource is exhausted, one sentence.
    pub fn advice(&self) -> &'static str {
        match self.subject.resource.as_str() {
            "host" => "Look which workload grows; save a checkpoint before the kernel chooses a victim.",
            "cgroup" => "Save a checkpoint and raise the limit, or find what in the group grows.",
            "device_memory" => {
                "Save a checkpoint; raise dmem.max of the cgroup, or use a smaller batch or activation checkpointing."
            }
            "memory_high" => {
                "Raise or remove memory.high of the cgroup (MemoryHigh= of a systemd unit, memory QoS of the kubelet), or reduce what its processes use: the kernel does not end them, and they do not go on by themselves."
            }
            "numa_nodes" => {
                "Save a checkpoint; allow the job more NUMA nodes (cpuset.mems of its cgroup, the scheduler's memory binding): it cannot use the memory of the others."
            }
            "gpu" | "gpu_instance" | "allocator" => {
                "Save a checkpoint; a smaller batch, or activation checkpointing, needs less."
            }
            "tmpfs" => {
                "Delete files that are no longer needed, use fewer data-loader workers, or enlarge it (docker --shm-size, mount -o remount,size=)."
            }
            _ => "Save a checkpoint; fewer data-loader workers or a smaller batch need less.",
        }
    }
}

impl Outlook {
    /// The forecasts with the identities of their resources; absent where no analyzer forecasts.
    pub fn forecasts(&self) -> Option<impl Iterator<Item = (&Resource, &Forecast)>> {
        let all = self.conclusions.iter();
        self.has_forecasts
            .then(|| all.filter_map(|known| Some((known.identity.as_ref()?, known.forecast.as_ref()?))))
    }

    /// The growth with the identities of its resources; absent where no analyzer detects leaks.
    pub fn growths(&self) -> Option<impl Iterator<Item = (&Resource, &Growth)>> {
        let all = self.conclusions.iter();
        self.has_leaks
            .then(|| all.filter_map(|known| Some((known.identity.as_ref()?, known.growth.as_ref()?))))
    }

    /// Adds the results of another analyzer: what both conclude of one resource becomes one conclusion.
    pub fn absorb(&mut self, other: Self) {
        self.has_forecasts |= other.has_forecasts;
        self.has_leaks |= other.has_leaks;
        self.awaits_kills.extend(other.awaits_kills);
        self.fits.extend(other.fits);
        if !other.ends.is_empty() {
            self.ends = other.ends;
        }
        if self.conclusions.is_empty() {
            self.conclusions = other.conclusions;
            return;
        }
        let mut places = HashMap::with_capacity(self.conclusions.len());
        places.extend(self.conclusions.iter().enumerate().map(|(place, own)| (own.subject.clone(), place)));
        for more in other.conclusions {
            match places.get(&more.subject) {
                Some(place) => {
                    let own = &mut self.conclusions[*place];
                    own.identity = own.identity.take().or(more.identity);
                    own.forecast = own.forecast.take().or(more.forecast);
                    own.growth = own.growth.take().or(more.growth);
                }
                None => self.conclusions.push(more),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_parts_of_a_resource_are_one_conclusion() {
        let of = |workload: &str| Conclusion {
            subject: Subject::workload(&workload.into()),
            ..Conclusion::default()
        };
        let forecast = Conclusion { forecast: Some(Forecast::default()), ..of("a") };
        let growth = Conclusion { growth: Some(Growth::default()), ..of("a") };
        let mut outlook = Outlook::default();
        outlook.absorb(Outlook {
            conclusions: vec![forecast],
            has_forecasts: true,
            has_leaks: false,
            ..Outlook::default()
        });
        assert!(outlook.forecasts().is_some() && outlook.growths().is_none(), "missing differs from empty");
        outlook.absorb(Outlook {
            conclusions: vec![growth, of("b")],
            has_forecasts: false,
            has_leaks: true,
            ..Outlook::default()
        });
        let [a, b] = &*outlook.conclusions else { panic!("{outlook:?}") };
        assert!(a.forecast.is_some() && a.growth.is_some() && b.subject.workload.as_str() == "b");
    }

    #[test]
    fn only_a_young_host_makes_others_unknown() {
        let of = |rule| Forecast { rule, ..Forecast::default() };
        let (young, calm, full) = (of(Rule::TooFewSamples), of(Rule::None), of(Rule::Full));
        let (host, job) = (Subject::host(), Subject::workload(&"a".into()));
        let health = |all: &[(&Subject, &Forecast)]| overall(all.iter().copied());
        assert_eq!(health(&[(&host, &calm), (&job, &young)]), Health::Ok);
        assert_eq!(health(&[(&host, &young), (&job, &calm)]), Health::Unknown);
        assert_eq!(health(&[(&host, &young), (&job, &full)]), Health::Critical);
        assert_eq!((health(&[(&job, &young)]), health(&[])), (Health::Unknown, Health::Unknown));
    }

    #[test]
    fn a_conclusion_survives_json() {
        let forecast = Forecast {
            time_to_exhaustion: Some(Tte { p10: 1.0, p50: 2.0, p90: None }),
            within: [Some(0.1), None, None, Some(0.5)],
            peaks: Some(Peaks { phase: Some(("x: used up".to_owned(), 10.0)), ..Peaks::default() }),
            rule: Rule::ExhaustionWithinHour,
            ..Forecast::default()
        };
        let own = Conclusion { subject: Subject::host(), forecast: Some(forecast), ..Conclusion::default() };
        let json = serde_json::to_string(&own).unwrap();
        assert_eq!(serde_json::from_str::<Conclusion>(&json).unwrap(), own);
    }

    #[test]
    fn a_leak_is_at_least_a_warning_and_a_time_that_growth_will_not_reach_is_not_stated() {
        let leak = Growth { state: LeakState::Leaking, ..Growth::default() };
        let calm = Forecast { rule: Rule::None, ..Forecast::default() };
        let own = Conclusion { forecast: Some(calm.clone()), growth: Some(leak), ..Conclusion::default() };
        assert_eq!(own.health(), Health::Warning);
        let young = Conclusion { forecast: Some(calm.clone()), growth: Some(Growth::default()), ..own };
        assert_eq!(young.health(), Health::Ok);
        assert_eq!(Conclusion::default().health(), Health::Unknown);
        let tte = Some(Tte { p10: 20.0, p50: 25.0, p90: None });
        let sawtooth = Forecast { time_to_exhaustion: tte, growth_continues: Some(0.01), ..calm };
        assert_eq!(sawtooth.stated(), None);
        assert_eq!(Forecast { growth_continues: Some(0.9), ..sawtooth }.stated(), tte);
    }
}
