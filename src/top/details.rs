//! The screens of one thing: a GPU, a workload, a rank, a problem, a target; a node, a run, an alert of a cluster.

use super::data::{Data, NodeData};
use super::node_tables::{holders, sum};
use super::state::{Screen, State};
use crate::cluster::Cluster;
use crate::history::recent::Subject;
use crate::model::format::{self, UNKNOWN};
use crate::model::printable::escaped;
use crate::node_view::forecast::{Forecast, Growth, time_left};
use crate::node_view::{Gpu, Health, NodeView, Process, Rank, Workload};

/// A line of a detail.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Line {
    /// A heading.
    Head(String),
    /// A name and its value.
    Fact(&'static str, String),
    /// Text, with its health if it has one.
    Text(Option<Health>, String),
}

/// A detail.
#[derive(Clone, Debug, Default)]
pub(super) struct Detail {
    pub(super) title: String,
    pub(super) health: Health,
    /// What its chart shows: the subject, and the limit in bytes.
    pub(super) chart: Option<(Subject, Option<f64>)>,
    pub(super) lines: Vec<Line>,
    /// What Enter opens, in words.
    pub(super) enter: &'static str,
}

impl Detail {
    fn head(&mut self, text: &str) {
        self.lines.push(Line::Head(text.to_owned()));
    }

    fn fact(&mut self, name: &'static str, value: impl AsRef<str>) {
        if !value.as_ref().is_empty() {
            self.lines.push(Line::Fact(name, escaped(value.as_ref()).into_owned()));
        }
    }

    fn amount(&mut self, name: &'static str, value: Option<f64>) {
        self.fact(name, value.map_or_else(|| UNKNOWN.to_owned(), format::bytes));
    }

    /// A figure; nothing where it is not known.
    fn figure(&mut self, name: &'static str, value: Option<f64>, show: impl Fn(f64) -> String) {
        if let Some(value) = value {
            self.fact(name, show(value));
        }
    }

    fn text(&mut self, health: Option<Health>, text: &str) {
        self.lines.push(Line::Text(health, escaped(text).into_owned()));
    }

    fn forecast(&mut self, forecast: Option<&Forecast>) {
        let Some(forecast) = forecast else { return };
        let left = time_left(forecast).unwrap_or_else(|| match forecast.within(900.0) {
            Some(_) => "no end predicted".to_owned(),
            None => "too few samples".to_owned(),
        });
        self.fact("time left", left);
        self.figure("full within 15 min", forecast.within(900.0), format::percent);
        self.figure("headroom", Some(forecast.headroom_bytes()), format::bytes);
    }

    fn growth(&mut self, growth: Option<&Growth>, now: f64) {
        let Some(growth) = growth else { return };
        let rate =
            growth.bytes_per_second().map_or_else(String::new, |rate| format!(", {}", format::rate(rate)));
        let since = growth
            .since_unix_seconds
            .map_or_else(String::new, |since| format!(", since {}", format::clock(since, now)));
        self.fact("growth", format!("{}{rate}{since}", growth.state.word()));
    }

    fn gone(title: String) -> Self {
        let mut detail = Self { title, ..Self::default() };
        detail.text(None, "It is not among the newest data: it has ended, or is no longer reported.");
        detail
    }
}

/// The detail that is shown; absent where a table is.
pub(super) fn detail(state: &State) -> Option<Detail> {
    let screen = &state.place().screen;
    if matches!(screen, Screen::Tab(_)) {
        return None;
    }
    let found = match &state.data {
        Some(Data::Node(node)) => of_node(node, screen),
        Some(Data::Cluster(cluster)) => of_cluster(cluster, screen),
        None => None,
    };
    Some(found.unwrap_or_else(|| Detail::gone(title(screen))))
}

fn title(screen: &Screen) -> String {
    let text = match screen {
        Screen::Tab(tab) => tab.title().to_owned(),
        Screen::Gpu(index) => format!("GPU {index}"),
        Screen::Workload(name) => format!("Workload {name}"),
        Screen::Rank(workload, rank) => format!("Rank {rank} of {workload}"),
        Screen::Problem(_) => "Problem".to_owned(),
        Screen::Target(target, workload) => format!("Protection target {target}: {workload}"),
        Screen::Node(_, instance) => format!("Node {instance}"),
        Screen::Run(_, run) => format!("Run {run}"),
        Screen::Alert(_) => "Alert".to_owned(),
    };
    escaped(&text).into_owned()
}

fn of_node(data: &NodeData, screen: &Screen) -> Option<Detail> {
    let view = &data.view;
    let mut detail = match screen {
        Screen::Gpu(index) => gpu(view, view.gpu(index)?),
        Screen::Workload(name) => workload(view, view.workload(name)?),
        Screen::Rank(name, rank) => {
            let workload = view.workload(name)?;
            rank_detail(view, workload, workload.ranks.iter().find(|own| own.rank == *rank)?)
        }
        Screen::Problem(place) => problem(view, *place)?,
        Screen::Target(target, workload) => target_detail(view, target, workload)?,
        _ => return None,
    };
    detail.title = title(screen);
    let about = |gpu: &str, workload: &str| match screen {
        Screen::Gpu(index) => gpu == index,
        Screen::Workload(name) | Screen::Rank(name, _) | Screen::Target(_, name) => workload == name,
        _ => false,
    };
    let events: Vec<_> =
        data.events.iter().rev().filter(|event| about(&event.gpu, &event.workload)).take(20).collect();
    if !events.is_empty() {
        detail.head("Events");
        for event in events {
            let at = format::clock(event.unix_seconds, view.unix_seconds);
            detail.text(Some(event.health), &format!("{at}  {}", event.text));
        }
    }
    Some(detail)
}

fn problems(detail: &mut Detail, view: &NodeView, of: impl Fn(&crate::node_view::Problem) -> bool) {
    for problem in view.problems.iter().filter(|problem| of(problem)) {
        detail.text(Some(problem.health), &problem.sentence());
        if !problem.advice.is_empty() {
            detail.text(None, &problem.advice);
        }
    }
}

fn gpu(view: &NodeView, gpu: &Gpu) -> Detail {
    let whole = gpu.used.zip(gpu.free).map(|(used, free)| used + free).or(gpu.total);
    let mut detail = Detail {
        health: gpu.health,
        chart: Some((Subject::Gpu(gpu.uuid.as_str().into()), whole)),
        ..Detail::default()
    };
    problems(&mut detail, view, |problem| problem.gpu.as_deref() == Some(gpu.index.as_str()));
    detail.fact("model", &gpu.name);
    detail.fact("UUID", &gpu.uuid);
    detail.fact("status", format!("{}: {}", gpu.status, gpu.status_words()));
    detail.fact("hung call", &gpu.hung_call);
    let of_last = if gpu.answers() { "" } else { ", of the last sample" };
    let amount = |value: Option<f64>| {
        value.map_or_else(|| UNKNOWN.to_owned(), |value| format!("{}{of_last}", format::bytes(value)))
    };
    detail.fact("used", amount(gpu.used));
    detail.fact("free", amount(gpu.free));
    detail.figure("in no process", gpu.unattributed, format::bytes);
    detail.fact("time left", &gpu.time_left);
    if gpu.answers() {
        detail.figure("busy", gpu.utilization, format::percent);
        detail.figure("temperature", gpu.temperature, |celsius| format!("{celsius:.0} °C"));
        detail.figure("power", gpu.power, |watts| format!("{watts:.0} W"));
    }
    detail.fact("throttled", gpu.throttled.join(", "));
    for xid in &gpu.xids {
        let meaning = if xid.meaning.is_empty() { UNKNOWN } else { &xid.meaning };
        detail.text(Some(xid.health()), &format!("XID {} ×{:.0}: {meaning}", xid.xid, xid.count));
    }
    let last = if gpu.holders_are_last_known { "Held by, when it last answered" } else { "Held by" };
    detail.head(last);
    if gpu.holders.is_empty() {
        detail.text(None, &holders(gpu));
    }
    for holder in &gpu.holders {
        let memory = holder.memory.map_or_else(|| "unknown".to_owned(), format::bytes);
        let ranks = match holder.ranks.as_slice() {
            [] => String::new(),
            ranks => format!(", ranks {}", ranks.join(", ")),
        };
        detail.text(None, &format!("{memory}  {}{ranks}", holder.owner));
    }
    for instance in &gpu.mig {
        let of = |value: Option<f64>| value.map_or_else(|| UNKNOWN.to_owned(), format::bytes);
        detail.text(
            None,
            &format!("MIG {}: {} of {}", instance.instance, of(instance.used), of(instance.total)),
        );
    }
    detail
}

fn workload(view: &NodeView, own: &Workload) -> Detail {
    let mut detail = Detail {
        health: own.health,
        chart: Some((Subject::Workload(own.name.as_str().into()), None)),
        enter: if own.ranks.is_empty() { "" } else { "ranks" },
        ..Detail::default()
    };
    problems(&mut detail, view, |problem| problem.workload.as_deref() == Some(own.name.as_str()));
    detail.fact("user", &own.user);
    detail.fact("run", &own.run);
    detail.fact("kind", &own.kind);
    detail.fact("cgroup", &own.cgroup);
    detail.figure("started", own.started, |started| format::clock(started, view.unix_seconds));
    detail.amount("GPU memory", own.gpu_memory);
    for (index, memory) in &own.gpus {
        let memory = memory.map_or_else(|| "unknown".to_owned(), format::bytes);
        detail.text(None, &format!("GPU {index}: {memory}"));
    }
    detail.amount("RSS", own.rss);
    detail.figure("anonymous", own.anonymous, format::bytes);
    detail.figure("shared", own.shared, format::bytes);
    detail.figure("swap", own.swap, format::bytes);
    detail.growth(own.growth.as_ref(), view.unix_seconds);
    detail.forecast(own.forecast.as_ref());
    for target in view.protection.targets.iter().filter(|target| target.workload == own.name) {
        detail.text(
            Some(target.health),
            &format!(
                "Protection target {}: {}, {}. {}",
                target.target,
                target.mode,
                target.state,
                target.why.join(" ")
            ),
        );
    }
    if !own.ranks.is_empty() {
        detail.head(&format!("Ranks ({})", own.ranks.len()));
        for rank in own.ranks.iter().take(64) {
            detail.text(None, &rank_line(rank));
        }
    }
    processes(&mut detail, &own.processes);
    detail.figure("other processes", own.other_processes.filter(|other| *other > 0.0), |other| {
        format!("{other:.0}")
    });
    detail
}

fn rank_line(rank: &Rank) -> String {
    let shown = |value: Option<f64>, show: fn(f64) -> String| value.map_or_else(|| UNKNOWN.to_owned(), show);
    format!(
        "rank {}  GPU {}  step {}  allocated {}  reserved {}",
        rank.rank,
        if rank.gpu.is_empty() { UNKNOWN } else { &rank.gpu },
        shown(rank.step, |step| format!("{step:.0}")),
        shown(sum(rank, |own| own.allocated), format::bytes),
        shown(sum(rank, |own| own.reserved), format::bytes),
    )
}

fn processes(detail: &mut Detail, processes: &[Process]) {
    if processes.is_empty() {
        return;
    }
    detail.head("Largest processes");
    for process in processes {
        let rss = process.rss.map_or_else(|| UNKNOWN.to_owned(), format::bytes);
        let gpus: Vec<String> = process
            .gpus
            .iter()
            .map(|(index, memory)| format!("GPU {index} {}", format::bytes(*memory)))
            .collect();
        let rank = if process.rank.is_empty() { String::new() } else { format!("  rank {}", process.rank) };
        let line = format!("{:>8}  {}  RSS {rss}{rank}  {}", process.pid, process.name, gpus.join(", "));
        detail.text(None, line.trim_end());
    }
}

fn rank_detail(view: &NodeView, workload: &Workload, rank: &Rank) -> Detail {
    let mut detail = Detail {
        health: rank.health(),
        chart: Some((
            Subject::Rank(workload.name.as_str().into(), rank.rank.as_str().into()),
            rank.allocators.iter().find_map(|own| own.device_total),
        )),
        enter: "its workload",
        ..Detail::default()
    };
    detail.fact("user", &workload.user);
    detail.fact("run", &rank.run);
    detail.fact("of", &rank.world);
    detail.fact("process", &rank.pid);
    detail.fact("GPU", &rank.gpu);
    detail.fact("framework", &rank.framework);
    detail.figure("step", rank.step, |step| format!("{step:.0}"));
    detail.figure("step time", rank.step_seconds, |seconds| format!("{seconds:.3} s"));
    detail.figure("tokens/s", rank.tokens_per_second, |tokens| format!("{tokens:.0}"));
    detail.figure("loss", rank.loss, |loss| format!("{loss:.4}"));
    detail.figure("MFU", rank.mfu, format::percent);
    detail.figure("last message", rank.message_age, |age| format!("{} ago", format::duration(age)));
    detail.fact("checkpoint", &rank.checkpoint);
    detail.figure("saved", rank.checkpoint_saved, |saved| format::clock(saved, view.unix_seconds));
    detail.growth(rank.growth.as_ref(), view.unix_seconds);
    detail.forecast(rank.forecast.as_ref());
    for own in &rank.allocators {
        detail.head(&format!("Allocator of device {}", escaped(&own.device)));
        detail.fact("state", &own.state);
        detail.amount("allocated", own.allocated);
        detail.figure("its peak", own.allocated_peak, format::bytes);
        detail.amount("reserved", own.reserved);
        detail.figure("inactive split", own.inactive_split, format::bytes);
        detail.figure("unreleasable", own.unreleasable, format::bytes);
        detail.figure("largest free block", own.largest_free, format::bytes);
        detail.figure("free on device", own.device_free, format::bytes);
        detail.figure("retries", own.retries, |retries| format!("{retries:.0}"));
        detail.figure("out of memory", own.ooms, |ooms| format!("{ooms:.0} times"));
    }
    let process: Vec<Process> =
        workload.processes.iter().filter(|process| process.pid == rank.pid).cloned().collect();
    processes(&mut detail, &process);
    detail
}

fn problem(view: &NodeView, place: usize) -> Option<Detail> {
    let problem = view.problems.get(place)?;
    let mut detail = Detail { health: problem.health, ..Detail::default() };
    if super::node_tables::target(&problem.link).is_some() {
        detail.enter = "where more is shown";
    }
    detail.text(Some(problem.health), &problem.sentence());
    detail.figure("since", problem.since, |since| format::clock(since, view.unix_seconds));
    if let Some(owner) = &problem.owner {
        detail.fact("owner", owner.to_string());
    }
    if !problem.advice.is_empty() {
        detail.head("What can be done");
        detail.text(None, &problem.advice);
    }
    Some(detail)
}

fn target_detail(view: &NodeView, target: &str, workload: &str) -> Option<Detail> {
    let own = view.protection.targets.iter().find(|own| own.target == target && own.workload == workload)?;
    let mut detail = Detail {
        health: own.health,
        enter: if workload.is_empty() { "" } else { "its workload" },
        ..Detail::default()
    };
    detail.fact("mode", &own.mode);
    detail.fact("state", &own.state);
    for why in &own.why {
        detail.text(None, why);
    }
    detail.figure("processes", own.members, |members| format!("{members:.0} may be signalled"));
    detail.figure("left out", own.left_out.filter(|out| *out > 0.0), |out| format!("{out:.0} may not"));
    detail.figure("terminations left", own.terminations_left, |left| format!("{left:.0} in this hour"));
    for (resource, left) in &own.headroom {
        detail.text(None, &format!("{resource}: {} left", format::bytes(*left)));
    }
    Some(detail)
}

fn of_cluster(cluster: &Cluster, screen: &Screen) -> Option<Detail> {
    let mut detail = Detail::default();
    let mut alerts: Vec<_> = cluster.alerts.iter().flatten().collect();
    let has = |labels: &std::collections::BTreeMap<String, String>, name: &str, value: &str| {
        labels.get(name).is_some_and(|own| own == value)
    };
    match screen {
        Screen::Node(job, instance) => {
            let node = cluster.nodes.iter().find(|node| node.job == *job && node.instance == *instance)?;
            detail.health = node.health();
            detail.fact("state", node.state.word());
            detail.fact("memory", node.memory.word());
            detail.figure("time left", node.time_to_exhaustion_seconds, format::duration);
            detail.figure("full within 15 min", node.exhaustion_probability_15m_ratio, format::percent);
            detail.figure("leaks", node.leaks, |leaks| format!("{leaks:.0}"));
            detail.figure("critical findings", node.critical_findings, |count| format!("{count:.0}"));
            for run in &cluster.runs {
                if let Some(first) = run.first.as_ref().filter(|first| first.instance == *instance) {
                    let left = format::duration(first.time_to_exhaustion_seconds);
                    detail.text(None, &format!("The first resource of run {} to run out: {left}", run.run));
                }
            }
            alerts.retain(|alert| has(&alert.labels, "instance", instance));
        }
        Screen::Run(job, name) => {
            let run = cluster.runs.iter().find(|run| run.job == *job && run.run == *name)?;
            detail.fact("user", &run.user);
            detail.fact("ranks", format!("{:.0}", run.ranks));
            detail.figure("missing ranks", run.missing(), |missing| format!("{missing:.0}"));
            if run.is_stalled() {
                detail.text(Some(Health::Critical), "No rank makes progress.");
            }
            if let (Some(first), Some(what)) = (&run.first, run.first_resource()) {
                let left = format::duration(first.time_to_exhaustion_seconds);
                detail.fact("first to run out", format!("{what}, in {left}"));
            }
            if let Some(slowest) = &run.slowest {
                let ratio = format::percent(slowest.step_time_ratio);
                detail.fact(
                    "slowest rank",
                    format!("{} on {}, {ratio} of the median", slowest.rank, slowest.instance),
                );
            }
            detail.figure("fullest / mean", run.memory_spread_ratio, format::percent);
            detail.figure("tokens/s", run.tokens_per_second, |tokens| format!("{tokens:.0}"));
            alerts.retain(|alert| has(&alert.labels, "run", name));
        }
        Screen::Alert(place) => {
            let alert = alerts.get(*place)?;
            detail.text(None, &alert.name);
            detail.text(None, &alert.text);
            detail.head("Labels");
            for (name, value) in &alert.labels {
                detail.text(None, &format!("{name} = {value}"));
            }
            alerts.clear();
        }
        _ => return None,
    }
    if !alerts.is_empty() {
        detail.head("Alerts");
        for alert in alerts {
            detail.text(None, &format!("{} ({}): {}", alert.name, alert.severity, alert.text));
        }
    }
    detail.title = title(screen);
    Some(detail)
}
