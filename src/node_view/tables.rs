//! The tables of a node. A column is added here, and in no renderer.

use super::events::Event;
use super::forecast::time_left;
use super::problem::Link;
use super::table::{Cell, Column, Kind, Row, Table, number, prose, text};
use super::training::{Allocator, Rank};
use super::workload::{Process, Workload};
use super::{NodeView, Protection};
use crate::history::recent::{Quantity, Subject};
use crate::model::format;
use crate::model::outlook::{Forecast, Growth, LeakState};

/// A column of small charts.
pub(super) const LAST_MINUTES: Column = Column { title: "last 10 min", kind: Kind::Trail, weight: 3 };

/// What an event is about; empty where it is about no GPU, no workload, no rank.
#[derive(Clone, Copy, Debug)]
pub struct About<'a> {
    /// The index of the GPU.
    pub gpu: &'a str,
    /// The workload.
    pub workload: &'a str,
    /// The rank.
    pub rank: &'a str,
    /// When, in seconds since 1970.
    pub unix_seconds: f64,
}

/// What a forecast and a growth say of the future, in few words; empty where neither exists.
fn future(forecast: Option<&Forecast>, growth: Option<&Growth>) -> String {
    if let Some(left) = forecast.and_then(time_left) {
        return left;
    }
    let Some(growth) = growth else { return String::new() };
    match (growth.state, growth.bytes_per_second()) {
        (LeakState::Insufficient, _) => "too few samples".to_owned(),
        (state, Some(rate)) if growth.grows() => format!("{}, {}", state.word(), format::rate(rate)),
        (state, _) => state.word().to_owned(),
    }
}

impl NodeView {
    /// The time that a workload has left, in seconds and as text, or why it is not known.
    pub(super) fn left(&self, own: &Workload) -> (Option<f64>, String) {
        if let Some((left, shown)) = self.first_to_run_out(own) {
            return (Some(left), shown);
        }
        if let Some(gpu) = self.silent_gpu(own) {
            return (None, format!("unknown: GPU {gpu}"));
        }
        let is_fragmented = own.state() == "fragmented";
        (
            None,
            if is_fragmented { "allocator fragmented".to_owned() } else { future(None, own.growth.as_ref()) },
        )
    }

    /// The workloads.
    pub fn workload_table(&self) -> Table {
        let growths = self.workloads.iter().map(|own| own.growth.as_ref().and_then(Growth::bytes_per_second));
        let rate = format::rates(&growths.collect::<Vec<_>>());
        let row = |own: &Workload| {
            let (left, shown) = self.left(own);
            let growth = own.growth.as_ref().and_then(Growth::bytes_per_second);
            let gpus: Vec<&str> = own.gpus.iter().map(|(gpu, _)| gpu.as_str()).collect();
            #[expect(clippy::cast_precision_loss, reason = "a count of ranks")]
            let ranks = Some(own.ranks.len() as f64).filter(|ranks| *ranks > 0.0);
            let link = Link::Workload(own.name.clone());
            let gpu = match &*gpus {
                [one] => Cell::text(*one).to(Link::Gpu((*one).to_owned())),
                several => Cell::text(several.join(" ")),
            };
            Row {
                id: own.name.clone(),
                health: own.health,
                cells: vec![
                    Cell::text(&own.name).to(link.clone()),
                    Cell::text(&own.user),
                    Cell::text(&own.run),
                    Cell::time_left(left, shown),
                    Cell::bytes(own.rss),
                    Cell::number(growth, &rate),
                    Cell::trail(Subject::Workload(own.name.as_str().into()), Quantity::Used, None),
                    Cell::bytes(own.gpu_memory),
                    gpu,
                    Cell::count(ranks),
                    Cell::count(own.ranks.iter().filter_map(|rank| rank.step).reduce(f64::max)),
                    Cell::count(own.process_count),
                ],
                link: Some(link),
            }
        };
        Table {
            name: "Workloads",
            columns: vec![
                text("workload", 0),
                text("user", 2),
                text("run", 4),
                text("time left", 1),
                number("RSS", 0),
                number("growth", 3),
                LAST_MINUTES,
                number("GPU memory", 0),
                text("GPUs", 5),
                number("ranks", 7),
                number("step", 6),
                number("processes", 8),
            ],
            rows: self.workloads.iter().map(row).collect(),
            empty: "No workload is running: a job of Slurm, a container, processes with GPU memory, or what sources.workload.matchers and units name.".to_owned(),
            rest: match self.workloads_omitted {
                0 => String::new(),
                omitted => format!(
                    "{omitted} more workloads are not tracked: sources.workload.max_workloads is reached."
                ),
            },
        }
    }

    /// All ranks, with their workloads.
    pub fn ranks(&self) -> impl Iterator<Item = (&Workload, &Rank)> {
        self.workloads.iter().flat_map(|own| own.ranks.iter().map(move |rank| (own, rank)))
    }

    /// The ranks that `wanted` accepts.
    pub fn rank_table(&self, wanted: impl Fn(&Workload, &Rank) -> bool) -> Table {
        let rows =
            self.ranks().filter(|(own, rank)| wanted(own, rank)).map(|(own, rank)| rank_row(own, rank));
        Table {
            name: "Ranks",
            columns: vec![
                number("rank", 0),
                text("workload", 1),
                text("GPU", 0),
                text("allocator", 4),
                number("allocated", 0),
                LAST_MINUTES,
                number("reserved", 2),
                number("cannot be released", 5),
                text("time left", 1),
                number("step", 1),
                number("step time", 3),
                number("tokens/s", 6),
                number("MFU", 7),
                text("checkpoint", 8),
                number("last message", 6),
            ],
            rows: rows.collect(),
            empty: "No rank reports its steps.".to_owned(),
            ..Table::default()
        }
    }

    /// The problems.
    pub fn problem_table(&self) -> Table {
        let rows = self.problems.iter().enumerate().map(|(place, problem)| {
            let what = problem.what.split(" in ").next().unwrap_or_default();
            Row {
                id: format!("{what}\0{:?}\0{place}", problem.link),
                health: problem.health,
                cells: vec![
                    Cell::number(problem.since, |since| format::clock(since, self.unix_seconds)),
                    Cell::text(problem.sentence().trim_end_matches('.')),
                ],
                link: Some(Link::Problem(place)),
            }
        });
        Table {
            name: "Problems",
            columns: vec![number("since", 1), prose("problem")],
            rows: rows.collect(),
            empty: self.no_problem().to_owned(),
            ..Table::default()
        }
    }

    /// The events that `wanted` accepts, and those that jobs reported, newest first.
    pub fn event_table<'e>(
        &self,
        events: impl IntoIterator<Item = &'e Event>,
        wanted: impl Fn(&About<'_>) -> bool,
    ) -> Table {
        let own = events.into_iter().filter(|event| {
            let (gpu, workload, unix_seconds) = (&*event.gpu, &*event.workload, event.unix_seconds);
            wanted(&About { gpu, workload, rank: "", unix_seconds })
        });
        let own = own.map(|event| {
            let link = match (event.gpu.as_str(), event.workload.as_str()) {
                ("", "") => None,
                ("", workload) => Some(Link::Workload(workload.to_owned())),
                (gpu, _) => Some(Link::Gpu(gpu.to_owned())),
            };
            (event.unix_seconds, event.health, event.text.clone(), link)
        });
        let jobs = self.job_events.iter().filter(|event| {
            let (workload, rank, unix_seconds) = (&*event.workload, &*event.rank, event.unix_seconds);
            wanted(&About { gpu: "", workload, rank, unix_seconds })
        });
        let jobs = jobs.map(|event| {
            let said = format!("{} rank {}: {}", event.workload, event.rank, event.what);
            (event.unix_seconds, event.health(), said, Some(Link::Workload(event.workload.clone())))
        });
        let mut all: Vec<_> = own.chain(jobs).collect();
        all.sort_by(|(one, ..), (next, ..)| next.total_cmp(one));
        let rows = all.into_iter().map(|(unix, health, text, link)| Row {
            id: format!("{unix}\0{text}"),
            health,
            cells: vec![
                Cell::number(Some(unix), |unix| format::clock(unix, self.unix_seconds)),
                Cell::text(text),
            ],
            link,
        });
        Table {
            name: "Events",
            columns: vec![number("time", 0), prose("event")],
            rows: rows.collect(),
            empty: "Nothing has changed since memwarden started.".to_owned(),
            ..Table::default()
        }
    }

    /// The largest processes that belong to no workload.
    pub fn process_table(&self) -> Table {
        process_table(&self.host.processes, self.host.used, None)
    }

    /// The sources of samples.
    pub fn source_table(&self) -> Table {
        let rows = self.sources.iter().map(|source| Row {
            id: source.name.clone(),
            health: source.measured(),
            cells: vec![
                Cell::text(&source.name),
                Cell::text(&source.status).of(source.measured()),
                Cell::number(source.age_seconds, |age| format!("{} ago", format::duration(age))),
                Cell::text(&source.why),
            ],
            link: None,
        });
        Table {
            name: "Sources",
            columns: vec![
                text("source", 0),
                text("status", 0),
                number("last complete sample", 1),
                prose("reason"),
            ],
            rows: rows.collect(),
            empty: "No source has been sampled.".to_owned(),
            ..Table::default()
        }
    }
}

fn rank_row(own: &Workload, rank: &Rank) -> Row {
    let allocator = rank.allocators.first();
    let sum = |field: fn(&Allocator) -> Option<f64>| {
        rank.allocators.iter().filter_map(field).reduce(|one, next| one + next)
    };
    let lost = allocator.and_then(|own| own.unreleasable);
    let of_reserved = format::share(lost, allocator.and_then(|own| own.reserved));
    let lost = Cell::number(lost, |lost| match of_reserved {
        Some(share) => format!("{} ({})", format::bytes(lost), format::percent(share)),
        None => format::bytes(lost),
    });
    let state = rank.allocator_state();
    let state = state.map_or_else(|| Cell::text(""), |(state, health)| Cell::text(state).of(health));
    let left = rank.forecast.as_ref().and_then(Forecast::stated).map(|tte| tte.p50);
    let link = Link::Rank(own.name.clone(), rank.rank.clone());
    let gpu = Cell::text(&rank.gpu);
    let subject = Subject::Rank(own.name.as_str().into(), rank.rank.as_str().into());
    Row {
        id: format!("{}\0{}", own.name, rank.rank),
        health: rank.health(),
        cells: vec![
            Cell::index(&rank.rank).to(link.clone()),
            Cell::text(&own.name).to(Link::Workload(own.name.clone())),
            if rank.gpu.is_empty() { gpu } else { gpu.to(Link::Gpu(rank.gpu.clone())) },
            state,
            Cell::bytes(sum(|own| own.allocated)),
            Cell::trail(subject, Quantity::Used, allocator.and_then(|own| own.device_total)),
            Cell::bytes(sum(|own| own.reserved)),
            lost,
            Cell::time_left(left, future(rank.forecast.as_ref(), rank.growth.as_ref())),
            Cell::count(rank.step),
            Cell::number(rank.step_seconds, |seconds| format!("{seconds:.2} s")),
            Cell::count(rank.tokens_per_second),
            Cell::number(rank.mfu, format::percent),
            Cell::text(&rank.checkpoint),
            Cell::number(rank.message_age, |age| format!("{} ago", format::duration(age))),
        ],
        link: Some(link),
    }
}

/// Processes, with their shares of a whole in bytes; `others` are not among them.
pub(super) fn process_table(processes: &[Process], whole: Option<f64>, others: Option<f64>) -> Table {
    let row = |process: &Process| {
        let gpus = process.gpus.iter().map(|(gpu, memory)| format!("GPU {gpu}: {}", format::bytes(*memory)));
        Row {
            id: process.pid.clone(),
            health: crate::model::health::Health::Ok,
            cells: vec![
                Cell::text(&process.name),
                Cell::index(&process.pid),
                Cell::bytes(process.rss).share(format::share(process.rss, whole)),
                Cell::text(gpus.collect::<Vec<_>>().join(", ")),
                Cell::text(&process.rank),
            ],
            link: None,
        }
    };
    Table {
        name: "Processes",
        columns: vec![
            text("process", 0),
            number("pid", 0),
            number("RSS", 0),
            text("GPU memory", 1),
            text("rank", 2),
        ],
        rows: processes.iter().map(row).collect(),
        empty: "No process is known.".to_owned(),
        rest: others
            .filter(|others| *others > 0.0)
            .map_or_else(String::new, |others| format!("{others:.0} smaller processes are not listed.")),
    }
}

impl Protection {
    /// The targets; only those of a workload where one is named.
    pub fn target_table(&self, of: Option<&str>) -> Table {
        let targets = self.targets.iter().filter(|target| of.is_none_or(|name| target.workload == name));
        let rows = targets.map(|target| {
            let left_out = target.left_out.filter(|count| *count > 0.0);
            let workload = Cell::text(&target.workload);
            Row {
                id: format!("{}\0{}", target.target, target.workload),
                health: target.health,
                cells: vec![
                    Cell::text(&target.target),
                    match target.workload.as_str() {
                        "" => workload,
                        name => workload.to(Link::Workload(name.to_owned())),
                    },
                    Cell::text(&target.mode),
                    Cell::text(if target.state.is_empty() { "no workload" } else { &target.state })
                        .of(target.health),
                    Cell::text(target.headroom_text()),
                    Cell::number(target.members, |members| match left_out {
                        Some(count) => format!("{members:.0} ({count:.0} left out)"),
                        None => format::whole(members),
                    }),
                    Cell::count(target.terminations_left),
                    Cell::text(target.why.join(" ")),
                ],
                link: Some(Link::Target(target.target.clone(), target.workload.clone())),
            }
        });
        Table {
            name: "Protection targets",
            columns: vec![
                text("target", 0),
                text("workload", 0),
                text("mode", 3),
                text("state", 0),
                text("memory left", 4),
                number("processes", 6),
                number("terminations left", 7),
                prose("why"),
            ],
            rows: rows.collect(),
            empty: match (of, self.configured()) {
                (Some(_), true) => "No protection target names this workload.",
                _ => "No protection target is configured: memwarden signals no process.",
            }
            .to_owned(),
            ..Table::default()
        }
    }
}
