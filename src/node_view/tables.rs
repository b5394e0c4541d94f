//! The tables of a node. A column is added here, and in no renderer.

use super::events::Event;
use super::forecast::time_left;
use super::host::{Cgroup, NumaNode};
use super::problem::Link;
use super::table::{Cell, Row, Table};
use super::training::{Allocator, Rank};
use super::workload::{Process, Workload};
use super::{NodeView, Protection};
use crate::history::recent::{Quantity, Subject};
use crate::model::format;
use crate::model::health::{self, Health};
use crate::model::outlook::{Forecast, Growth, LeakState};
use crate::model::units::real;

/// What an event is about; empty where it is about no GPU, no workload, no rank.
#[derive(Clone, Copy, Debug)]
pub struct About<'a> {
    /// The index of the GPU.
    pub gpu: &'a str,
    pub workload: &'a str,
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
        (state, Some(rate)) if growth.grows() => format!("{}, {}", state.label(), format::rate(rate)),
        (state, _) => state.label().to_owned(),
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
        match own.state() {
            "fragmented" => (None, "allocator fragmented".to_owned()),
            _ => (None, future(None, own.growth.as_ref())),
        }
    }

    pub fn workload_table(&self) -> Table {
        let growths = self.workloads.iter().map(|own| own.growth.as_ref().and_then(Growth::bytes_per_second));
        let rate = format::rates(&growths.collect::<Vec<_>>());
        let huge = |own: &Workload| own.huge_pages.filter(|huge| *huge > 0.0);
        let has_huge = self.workloads.iter().any(|own| huge(own).is_some());
        let row = |own: &Workload| {
            let (left, shown) = self.left(own);
            let growth = own.growth.as_ref().and_then(Growth::bytes_per_second);
            let gpus: Vec<&str> = own.gpus.iter().map(|(gpu, _)| gpu.as_str()).collect();
            let ranks = Some(real(own.ranks.len() as u64)).filter(|ranks| *ranks > 0.0);
            let link = Link::Workload(own.name.clone());
            let gpu = match &*gpus {
                [one] => Cell::text(*one).to(Link::Gpu((*one).to_owned())),
                several => Cell::text(several.join(" ")),
            };
            let row = Row::new(&*own.name, own.health)
                .to(link.clone())
                .text("workload", 0, Cell::text(&own.name).to(link))
                .text("user", 2, &own.user)
                .text("run", 4, &own.run)
                .text("time left", 1, Cell::time_left(left, shown))
                .bytes("RSS", 0, own.rss);
            let row = if has_huge { row.bytes("huge pages", 3, huge(own)) } else { row };
            row.value("growth", 3, growth, &rate)
                .trail(Subject::Workload(own.name.as_str().into()), Quantity::Used, None)
                .bytes("GPU memory", 0, own.gpu_memory)
                .text("GPUs", 5, gpu)
                .count("ranks", 7, ranks)
                .count("step", 6, own.ranks.iter().filter_map(|rank| rank.step).reduce(f64::max))
                .count("processes", 8, own.process_count)
        };
        let empty = "No workload is running: a job of Slurm, a container, processes with GPU memory, or what sources.workload.matchers and \
             units name (docs/configuration.md, section Workloads).";
        let mut table = Table::new("Workloads", self.workloads.iter().map(row), empty);
        if self.workloads_omitted > 0 {
            table.rest = format!(
                "{} more workloads are not tracked: sources.workload.max_workloads is reached.",
                self.workloads_omitted
            );
        }
        table
    }

    pub fn ranks(&self) -> impl Iterator<Item = (&Workload, &Rank)> {
        self.workloads.iter().flat_map(|own| own.ranks.iter().map(move |rank| (own, rank)))
    }

    /// The ranks that `wanted` accepts.
    pub fn rank_table(&self, wanted: impl Fn(&Workload, &Rank) -> bool) -> Table {
        let rows =
            self.ranks().filter(|(own, rank)| wanted(own, rank)).map(|(own, rank)| rank_row(own, rank));
        Table::new("Ranks", rows, "No rank reports its steps.")
    }

    pub fn problem_table(&self) -> Table {
        let rows = self.problems.iter().enumerate().map(|(place, problem)| {
            let what = problem.what.split(" in ").next().unwrap_or_default();
            Row::new(format!("{what}\0{:?}\0{place}", problem.link), problem.counted())
                .to(Link::Problem(place))
                .value("since", 1, problem.since, |since| format::clock(since, self.unix_seconds))
                .prose("problem", problem.sentence().trim_end_matches('.'))
        });
        Table::new("Problems", rows, self.no_problem())
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
        let rows = all.into_iter().map(|(unix, health, text, link)| {
            let time = Cell { number: Some(unix), ..Cell::text(format::clock(unix, self.unix_seconds)) };
            let mut row = Row::new(format!("{unix}\0{text}"), health);
            row.link = link;
            row.text("time", 0, time).prose("event", text)
        });
        Table::new("Events", rows, "Nothing has changed since memwarden started.")
    }

    /// The largest processes that belong to no workload.
    pub fn process_table(&self) -> Table {
        process_table(&self.host.processes, self.host.used, None)
    }

    /// The largest cgroups, where there is no workload.
    pub fn cgroup_table(&self) -> Table {
        let row = |own: &Cgroup| {
            let used = Cell::number(Some(own.used), format::bytes);
            Row::new(&*own.path, Health::Ok)
                .text("cgroup", 0, &own.path)
                .number("memory", 0, used.share(format::share(Some(own.used), own.limit.or(self.host.total))))
                .bytes("limit", 1, own.limit)
        };
        Table::new("Cgroups", self.host.cgroups.iter().map(row), "No cgroup is measured.")
    }

    /// The memory of the NUMA nodes of a host with several. A full one is no problem of the node: only of a job that may use no other.
    pub fn numa_table(&self) -> Table {
        let row = |own: &NumaNode| {
            let used = (own.total - own.available).max(0.0);
            let share = format::share(Some(used), Some(own.total));
            let note = share.filter(|share| health::is_nearly_full(*share)).map_or_else(String::new, |_| {
                let node = &own.node;
                format!("NUMA node {node} is nearly full: what may use no other finds no memory, although others have some")
            });
            Row::new(&*own.node, Health::Ok)
                .text("NUMA node", 0, &own.node)
                .number("used", 0, Cell::number(Some(used), format::bytes).share(share))
                .bytes("available", 0, Some(own.available))
                .bytes("total", 1, Some(own.total))
                .prose("", note)
        };
        Table::new("NUMA nodes", self.host.nodes.iter().map(row), "No NUMA node is measured.")
    }

    /// The sources of samples.
    pub fn source_table(&self) -> Table {
        let rows = self.sources.iter().map(|source| {
            let ago = |age| format!("{} ago", format::duration(age));
            Row::new(&*source.name, source.measured())
                .text("source", 0, &source.name)
                .text("status", 0, Cell::text(&source.status).of(source.measured()))
                .value("last complete sample", 1, source.age_seconds, ago)
                .prose("reason", &source.why)
        });
        Table::new("Sources", rows, "No source has been sampled.")
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
    let on = if rank.gpu.is_empty() { gpu } else { gpu.to(Link::Gpu(rank.gpu.clone())) };
    let total = allocator.and_then(|own| own.device_total);
    let future = future(rank.forecast.as_ref(), rank.growth.as_ref());
    Row::new(format!("{}\0{}", own.name, rank.rank), rank.health())
        .to(link.clone())
        .number("rank", 0, Cell::index(&rank.rank).to(link))
        .text("workload", 1, Cell::text(&own.name).to(Link::Workload(own.name.clone())))
        .text("GPU", 0, on)
        .text("allocator", 4, state)
        .bytes("allocated", 0, sum(|own| own.allocated))
        .trail(subject, Quantity::Used, total)
        .bytes("reserved", 2, sum(|own| own.reserved))
        .number("cannot be released", 5, lost)
        .text("time left", 1, Cell::time_left(left, future))
        .count("step", 1, rank.step)
        .value("step time", 3, rank.step_seconds, |seconds| format!("{seconds:.2} s"))
        .count("tokens/s", 6, rank.tokens_per_second)
        .value("MFU", 7, rank.mfu, format::percent)
        .text("checkpoint", 8, &rank.checkpoint)
        .value("last message", 6, rank.message_age, |age| format!("{} ago", format::duration(age)))
}

/// Processes, with their shares of a whole in bytes; `others` are not among them.
pub(super) fn process_table(processes: &[Process], whole: Option<f64>, others: Option<f64>) -> Table {
    let row = |process: &Process| {
        let gpus = process.gpus.iter().map(|(gpu, memory)| format!("GPU {gpu}: {}", format::bytes(*memory)));
        let rss = Cell::number(process.rss, format::bytes);
        Row::new(&*process.pid, Health::Ok)
            .text("process", 0, &process.name)
            .number("pid", 0, Cell::index(&process.pid))
            .number("RSS", 0, rss.share(format::share(process.rss, whole)))
            .text("GPU memory", 1, gpus.collect::<Vec<_>>().join(", "))
            .text("rank", 2, &process.rank)
    };
    let mut table = Table::new("Processes", processes.iter().map(row), "No process is known.");
    if let Some(others) = others.filter(|others| *others > 0.0) {
        table.rest = format!("{others:.0} smaller processes are not listed.");
    }
    table
}

impl Protection {
    /// The targets; only those of a workload where one is named.
    pub fn target_table(&self, of: Option<&str>) -> Table {
        let targets = self.targets.iter().filter(|target| of.is_none_or(|name| target.workload == name));
        let rows = targets.map(|target| {
            let left_out = target.left_out.filter(|count| *count > 0.0);
            let workload = Cell::text(&target.workload);
            let workload = match target.workload.as_str() {
                "" => workload,
                name => workload.to(Link::Workload(name.to_owned())),
            };
            let state = if target.state.is_empty() { "no workload" } else { &target.state };
            let members = |members| match left_out {
                Some(count) => format!("{members:.0} ({count:.0} left out)"),
                None => format::whole(members),
            };
            Row::new(format!("{}\0{}", target.target, target.workload), target.health)
                .to(Link::Target(target.target.clone(), target.workload.clone()))
                .text("target", 0, &target.target)
                .text("workload", 0, workload)
                .text("mode", 3, &target.mode)
                .text("state", 0, Cell::text(state).of(target.health))
                .text("memory left", 4, target.headroom_text())
                .value("processes", 6, target.members, members)
                .count("terminations left", 7, target.terminations_left)
                .prose("why", target.why.join(" "))
        });
        let empty = match (of, self.configured()) {
            (Some(_), true) => "No protection target names this workload.",
            _ => "No protection target is configured: memwarden signals no process.",
        };
        Table::new("Protection targets", rows, empty)
    }
}
