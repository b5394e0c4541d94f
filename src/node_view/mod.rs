//! What a page and a terminal show of a node: its verdict, and the rows of all tables, in one model.
//!
//! `tables` and `sheet` decide what is shown, with which words and in which order; the page, the terminal, reports and
//! `/api/v1/node` render it.
//! Pure: a frame and its age go in. Names of users and jobs are as they are; whoever shows them escapes them.

pub mod conclusion_tables;
pub mod ends;
pub mod events;
pub mod forecast;
mod fragmentation;
mod gpu;
mod gpu_tables;
mod host;
mod lookup;
mod owner;
mod problem;
mod problems;
mod protection;
pub mod sheet;
pub mod table;
mod tables;
mod training;
mod verdict;
mod workload;

use std::borrow::Cow;

use serde::{Deserialize, Serialize};

pub use crate::model::health::Health;
pub use gpu::{Gpu, Holder, Mig, Xid};
pub use host::{Host, SourceRow, Zone};
pub use owner::Owner;
pub use problem::{Link, Problem};
pub use protection::{Protection, Target};
pub use tables::About;
pub use training::{Allocator, JobEvent, Phase, Rank};
pub use verdict::{NO_FORECAST, TOO_FEW, Verdict};
pub use workload::{Process, Workload};

use crate::model::finding::{Finding, Subject};
use crate::model::fits::Fit;
use crate::model::format;
use crate::model::frame::Frame;
use crate::model::outlook::Conclusion;
use crate::model::printable::escaped;
use crate::model::timeline::Viewer;
use events::LastHolders;
use forecast::Forecasts;
use lookup::Lookup;

/// Incremented when a key changes its meaning or is removed.
pub const SCHEMA_VERSION: u32 = 1;

/// Maximum number of problems.
const MOST_PROBLEMS: usize = 200;

/// A node at one moment.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct NodeView {
    /// The version of the model's JSON form.
    pub schema_version: u32,
    pub node: String,
    /// The sequence number of the frame; 0 before the first.
    pub sequence: u64,
    /// When it was sampled, in seconds since 1970.
    pub unix_seconds: f64,
    /// Age of the sample in seconds; absent before the first.
    pub age_seconds: Option<f64>,
    /// How the node is, in one sentence.
    pub verdict: Verdict,
    /// Whether sampling has stalled: nothing after the sample is known.
    #[serde(default)]
    pub is_stalled: bool,
    /// What is wrong or unknown, worst first.
    pub problems: Vec<Problem>,
    /// How many problems of workloads are not in the list, because their users have more of them than their share.
    #[serde(default)]
    pub problems_left_out: usize,
    pub host: Host,
    pub gpus: Vec<Gpu>,
    /// Why no GPU is visible, or some are not; absent where all are.
    pub gpus_unseen: Option<String>,
    /// The status of NVML, such as `ok` or `library_absent`; empty where GPUs are not sampled.
    #[serde(default)]
    pub nvml: String,
    /// The workloads, those with problems first, then those with the most memory.
    pub workloads: Vec<Workload>,
    /// Workloads that are not tracked because a limit is reached.
    pub workloads_omitted: u64,
    pub protection: Protection,
    pub sources: Vec<SourceRow>,
    /// The newest events that jobs reported, newest first.
    pub job_events: Vec<JobEvent>,
    /// What the analyzers conclude of each resource, also of those that no other table has: cgroups, processes.
    #[serde(default)]
    pub conclusions: Vec<Conclusion>,
    /// Whether the phases that ranks predict fit the memory that is there.
    #[serde(default)]
    pub fits: Vec<Fit>,
    /// What the analyzers find, in sentences.
    #[serde(default)]
    pub findings: Vec<Stated>,
    /// Whether an analyzer forecasts, and whether one detects leaks: false where it is disabled, or failed in this sample.
    #[serde(default)]
    pub analyzed: Analyzed,
}

/// A finding of an analyzer.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Stated {
    /// The analyzer's name.
    pub analyzer: String,
    pub subject: Subject,
    /// The state of the subject, a term of the analyzer.
    pub state: String,
    /// The finding in one sentence.
    pub summary: String,
    /// What can be done, one sentence; empty where no action is required.
    pub advice: String,
}

/// Which analyzers gave results.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Analyzed {
    /// Forecasts of exhaustion.
    pub forecasts: bool,
    /// Detection of leaks.
    pub leaks: bool,
}

/// What a view needs besides the frame.
#[derive(Clone, Debug, Default)]
pub struct Situation<'a> {
    /// The host's name, where the frame has none.
    pub host_name: Option<&'a str>,
    /// Age of the frame in seconds.
    pub age_seconds: f64,
    /// The age from which sampling counts as stalled, in seconds.
    pub stale_after: f64,
    /// Who reads it.
    pub viewer: Viewer,
    /// The processes that were last seen on each GPU, for a GPU that no longer answers.
    pub last_holders: Option<&'a LastHolders>,
}

impl NodeView {
    /// The view of a frame; that of a daemon without samples where there is none.
    pub fn of(frame: Option<&Frame>, situation: &Situation<'_>) -> Self {
        let Some(frame) = frame else { return Self::without_samples(situation) };
        let lookup = Lookup::of(frame);
        let forecasts = Forecasts::of(&frame.outlook);
        let now = frame.at.unix().as_secs_f64();
        let ranks = training::ranks(&lookup, &forecasts);
        let workloads = workload::workloads(&lookup, &forecasts, ranks);
        let gpus = gpu::gpus(&lookup, &forecasts, &workloads, situation.last_holders);
        let mut view = Self {
            schema_version: SCHEMA_VERSION,
            sequence: frame.sequence,
            unix_seconds: now,
            age_seconds: Some(situation.age_seconds),
            host: host::host(&lookup, &forecasts),
            gpus_unseen: gpu::unseen(&lookup),
            nvml: gpu::nvml(&lookup),
            findings: frame.findings.iter().map(stated).collect(),
            gpus,
            workloads,
            workloads_omitted: workload::omitted(&lookup),
            protection: protection::protection(&lookup),
            sources: host::sources(frame),
            job_events: training::events(frame, situation.viewer),
            conclusions: frame.outlook.conclusions.clone(),
            fits: frame.outlook.fits.clone(),
            analyzed: Analyzed { forecasts: frame.outlook.has_forecasts, leaks: frame.outlook.has_leaks },
            ..Self::default()
        };
        let name = Some(view.host.name.as_str()).filter(|name| !name.is_empty()).or(situation.host_name);
        view.node = name.unwrap_or_default().to_owned();
        view.problems = problems::problems(&view, frame, &forecasts);
        view.take_problems();
        view.problems_left_out = Problem::cut(&mut view.problems, MOST_PROBLEMS);
        view.is_stalled = situation.age_seconds > situation.stale_after;
        view.verdict = verdict::verdict(&view, &forecasts, situation);
        view
    }

    fn without_samples(situation: &Situation<'_>) -> Self {
        Self {
            schema_version: SCHEMA_VERSION,
            node: situation.host_name.unwrap_or_default().to_owned(),
            verdict: Verdict::unknown("No sample has been taken yet."),
            ..Self::default()
        }
    }

    /// Gives GPUs and workloads the health of their problems, and puts the workloads in order.
    fn take_problems(&mut self) {
        for gpu in &mut self.gpus {
            let own = self.problems.iter().filter(|problem| problem.gpu.as_ref() == Some(&gpu.index));
            let mut ranks = self.workloads.iter().flat_map(|workload| &workload.ranks);
            let is_fragmented = ranks.any(|rank| {
                rank.gpu == gpu.index
                    && rank.allocator_state().is_some_and(|(_, health)| health > Health::Unknown)
            });
            gpu.say_time_left(own.filter_map(|problem| problem.seconds_left).next(), is_fragmented);
        }
        for problem in &self.problems {
            if let Some(gpu) = self.gpus.iter_mut().find(|gpu| Some(&gpu.index) == problem.gpu.as_ref()) {
                gpu.health = gpu.health.max(problem.counted());
            }
            let named = problem.workload.as_ref();
            if let Some(workload) = self.workloads.iter_mut().find(|workload| Some(&workload.name) == named) {
                workload.health = workload.health.max(problem.counted());
            }
        }
        self.workloads.sort_by(|one, next| {
            let memory =
                |workload: &Workload| workload.gpu_memory.unwrap_or(0.0) + workload.rss.unwrap_or(0.0);
            let health = (next.health >= Health::Warning).cmp(&(one.health >= Health::Warning));
            health.then(memory(next).total_cmp(&memory(one))).then_with(|| one.name.cmp(&next.name))
        });
    }

    /// What is said in place of a list of problems that is empty.
    pub fn no_problem(&self) -> &'static str {
        match self.verdict.health {
            Health::Ok => "No problem is known.",
            _ => "No problem is known, and the state of the node is not known either.",
        }
    }

    /// The view with all names escaped, for sentences on a terminal.
    #[must_use]
    pub fn printable(self) -> Self {
        fn show(value: &mut serde_json::Value) {
            match value {
                serde_json::Value::String(text) => {
                    if let Cow::Owned(shown) = escaped(text) {
                        *text = shown;
                    }
                }
                serde_json::Value::Array(all) => all.iter_mut().for_each(show),
                serde_json::Value::Object(all) => all.values_mut().for_each(show),
                _ => {}
            }
        }
        let mut value = serde_json::to_value(&self).unwrap_or_default();
        show(&mut value);
        // A view that cannot be escaped is not shown: nothing is known of the node then.
        serde_json::from_value(value).unwrap_or_default()
    }

    /// All processes, each with the name of its workload, which is empty for none.
    pub fn processes(&self) -> impl Iterator<Item = (&str, &Process)> {
        let others = self.host.processes.iter().map(|process| ("", process));
        let all = self.workloads.iter();
        others.chain(all.flat_map(|own| own.processes.iter().map(|process| (own.name.as_str(), process))))
    }

    pub fn workload(&self, name: &str) -> Option<&Workload> {
        self.workloads.iter().find(|workload| workload.name == name)
    }

    /// What the workload runs out of first, with the median time left in seconds: its own memory, the memory of a GPU that
    /// it uses, or the allocator of a rank. Absent while no exhaustion is predicted.
    pub fn first_to_run_out(&self, workload: &Workload) -> Option<(f64, String)> {
        let own = workload.forecast.iter().map(|forecast| (forecast, String::new()));
        let gpus = workload.gpus.iter().filter_map(|(index, _)| {
            let gpu = self.gpu(index).filter(|gpu| gpu.answers())?;
            Some((gpu.forecast.as_ref()?, format!(", GPU {index}")))
        });
        let ranks = workload
            .ranks
            .iter()
            .filter_map(|rank| Some((rank.forecast.as_ref()?, format!(", allocator of rank {}", rank.rank))));
        // The time at its growth of a leak without quantiles.
        let leaks = self.problems.iter().filter_map(|problem| {
            let left = problem.seconds_left.filter(|_| problem.workload.as_ref() == Some(&workload.name))?;
            let of = problem.gpu.as_ref().map_or_else(String::new, |gpu| format!(", GPU {gpu}"));
            Some((left, format!("about {}{of}", format::duration(left))))
        });
        let predicted = own
            .chain(gpus)
            .chain(ranks)
            .filter_map(|(forecast, of)| {
                Some((forecast.stated()?.p50, format!("{}{of}", forecast::time_left(forecast)?)))
            })
            .min_by(|(one, _), (other, _)| one.total_cmp(other));
        predicted.into_iter().chain(leaks).min_by(|(one, _), (other, _)| one.total_cmp(other))
    }

    /// The GPU of a workload that does not answer, by its index: nothing is known of the time left on it.
    pub fn silent_gpu(&self, workload: &Workload) -> Option<&str> {
        let silent = self.gpus.iter().filter(|gpu| !gpu.answers() && !gpu.status.is_empty());
        let of = |gpu: &&Gpu| {
            gpu.holders.iter().any(|holder| holder.owner.workload == workload.name)
                || workload.ranks.iter().any(|rank| rank.gpu == gpu.index)
        };
        silent.filter(of).map(|gpu| gpu.index.as_str()).next()
    }

    pub fn gpu(&self, index: &str) -> Option<&Gpu> {
        self.gpus.iter().find(|gpu| gpu.index == index)
    }
}

fn stated(finding: &Finding) -> Stated {
    Stated {
        analyzer: finding.analyzer.to_owned(),
        subject: finding.subject.clone(),
        state: finding.state.to_owned(),
        summary: finding.summary.clone(),
        advice: finding.advice.to_owned(),
    }
}

#[cfg(test)]
pub(crate) mod tests;
