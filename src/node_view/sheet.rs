//! Sheets: all that is shown of one thing, in sections. The page and the terminal render them.

use std::collections::BTreeSet;

use super::conclusion_tables::fit_table;
use super::events::Event;
use super::forecast::{Forecast, Growth, time_left};
use super::problem::{Link, Problem};
use super::table::Table;
use super::tables::{About, process_table};
use super::training::{Allocator, Rank};
use super::workload::{Process, Workload};
use super::{Gpu, NodeView};
use crate::history::recent::{Quantity, Subject};
use crate::model::finding;
use crate::model::fits::Fit;
use crate::model::format;
use crate::model::health::Health;
use crate::model::ids::within;

/// A named value.
#[derive(Clone, Debug, PartialEq)]
pub struct Fact {
    pub name: &'static str,
    pub text: String,
    /// Where more is shown.
    pub link: Option<Link>,
}

/// Named values; those that are not known are left out.
#[derive(Clone, Debug, Default, PartialEq)]
#[must_use]
pub struct Facts(pub Vec<Fact>);

impl Facts {
    /// Adds a text; nothing where it is empty.
    pub fn text(mut self, name: &'static str, text: impl Into<String>) -> Self {
        let text = text.into();
        if !text.is_empty() {
            self.0.push(Fact { name, text, link: None });
        }
        self
    }

    /// Adds a number; nothing where it is not known.
    pub fn number(self, name: &'static str, value: Option<f64>, show: impl Fn(f64) -> String) -> Self {
        self.text(name, value.map_or_else(String::new, show))
    }

    /// Adds an amount of memory in bytes.
    pub fn bytes(self, name: &'static str, value: Option<f64>) -> Self {
        self.number(name, value, format::bytes)
    }

    /// Adds a text that leads to more; nothing where it is empty.
    pub fn link(mut self, name: &'static str, text: &str, link: Link) -> Self {
        if !text.is_empty() {
            self.0.push(Fact { name, text: text.to_owned(), link: Some(link) });
        }
        self
    }

    fn future(self, forecast: Option<&Forecast>, growth: Option<&Growth>, now: f64) -> Self {
        let left = forecast.map(|forecast| {
            time_left(forecast).unwrap_or_else(|| {
                if forecast.is_ready() { "no end predicted" } else { "too few samples" }.to_owned()
            })
        });
        let grows = growth.map(|growth| {
            format!("{}{}{}", growth.state.label(), growth.pace(", "), growth.since(", ", now))
        });
        self.text("time left", left.unwrap_or_default())
            .number("full within 15 min", forecast.and_then(|own| own.within(900.0)), format::percent)
            .bytes("headroom", forecast.map(Forecast::headroom_bytes))
            .text("growth", grows.unwrap_or_default())
    }
}

/// A chart of the recent past.
#[derive(Clone, Debug)]
pub struct ChartOf {
    /// What is shown.
    pub title: &'static str,
    /// Whose values.
    pub subject: Subject,
    /// The curves with their names, the most important first.
    pub curves: Vec<(&'static str, Quantity)>,
    /// The limit in bytes.
    pub limit: Option<f64>,
    /// The forecast of the first curve.
    pub forecast: Option<Forecast>,
}

/// How reserved memory is used, in bytes.
#[derive(Clone, Copy, Debug)]
pub struct Stack {
    /// All of it.
    pub reserved: f64,
    /// Memory of live tensors.
    pub allocated: f64,
    /// Free memory that cannot be released.
    pub unreleasable: f64,
}

/// A part of a section.
#[derive(Clone, Debug)]
pub enum Item {
    /// A sentence, with its health if it has one.
    Text(Option<Health>, String),
    /// Named values.
    Facts(Facts),
    Table(Table),
    /// Problems with their advice.
    Problems(Vec<Problem>),
    Chart(Box<ChartOf>),
    /// How an allocator uses what it reserved.
    Stack(Stack),
}

/// A part of a sheet.
#[derive(Clone, Debug)]
pub struct Section {
    /// Its name in links; empty where no link leads to it.
    pub id: &'static str,
    pub title: String,
    /// What it says.
    pub items: Vec<Item>,
}

impl Section {
    pub fn new(id: &'static str, title: impl Into<String>, items: Vec<Item>) -> Self {
        Self { id, title: title.into(), items }
    }

    /// A table with its name as heading.
    pub fn table(id: &'static str, table: Table) -> Self {
        Self::new(id, table.name, vec![Item::Table(table)])
    }
}

/// All that is shown of one thing.
#[derive(Clone, Debug, Default)]
pub struct Sheet {
    /// What it is about.
    pub title: String,
    /// More about that, in few words.
    pub subtitle: String,
    pub health: Health,
    pub sections: Vec<Section>,
    /// What is opened from it, with a name: `its workload`.
    pub leads_to: Option<(&'static str, Link)>,
}

/// Which events a sheet has.
type Wanted<'a> = Box<dyn Fn(&About<'_>) -> bool + 'a>;

impl NodeView {
    /// All that is shown of what a link names; absent where it does not exist now. `events` are those of the node.
    pub fn sheet<'e>(&self, link: &Link, events: impl IntoIterator<Item = &'e Event>) -> Option<Sheet> {
        let (mut sheet, wanted): (Sheet, Wanted<'_>) = match link {
            Link::Gpu(index) => (self.of_gpu(self.gpu(index)?), Box::new(move |about| about.gpu == index)),
            Link::Workload(name) => {
                (self.of_workload(self.workload(name)?), Box::new(move |about| about.workload == name))
            }
            Link::Rank(name, rank) => {
                let own = self.workload(name)?;
                let known = own.ranks.iter().find(|own| own.rank == *rank)?;
                let is_its = move |about: &About<'_>| {
                    about.workload == name && (about.rank.is_empty() || about.rank == rank)
                };
                (self.of_rank(own, known), Box::new(is_its))
            }
            Link::Problem(place) => (self.of_problem(*place)?, Box::new(|_| false)),
            Link::Target(target, name) => {
                (self.of_target(target, name)?, Box::new(move |about| about.workload == name))
            }
            _ => return None,
        };
        let mut table = self.event_table(events, wanted);
        table.truncate(20);
        if !table.rows.is_empty() {
            sheet.sections.push(Section::table("events", table));
        }
        Some(sheet)
    }

    /// The problems that `wanted` accepts, as a section; none where there is none.
    pub fn problem_section(&self, wanted: impl Fn(&Problem) -> bool) -> Option<Section> {
        let problems: Vec<_> = self.problems.iter().filter(|problem| wanted(problem)).cloned().collect();
        (!problems.is_empty()).then(|| Section::new("problems", "Problems", vec![Item::Problems(problems)]))
    }

    /// What ranks predict, whether it fits, and how the last runs of their commands ended; none where nothing is predicted.
    pub(super) fn fit_section(&self, wanted: impl Fn(&Fit) -> bool) -> Option<Section> {
        let wanted: Vec<&Fit> = self.fits.iter().filter(|fit| wanted(fit)).collect();
        let table = fit_table(wanted.iter().copied());
        let past: BTreeSet<&str> =
            wanted.iter().map(|fit| fit.past.as_str()).filter(|past| !past.is_empty()).collect();
        let past = past.into_iter().map(|past| Item::Text(None, format!("Past runs: {past}.")));
        (!table.rows.is_empty()).then(|| {
            let mut section = Section::table("fit", table);
            section.items.extend(past);
            section
        })
    }

    /// The memory of the host.
    pub fn host_section(&self) -> Section {
        let host = &self.host;
        let share = host.share().map_or_else(String::new, |share| format!(" ({})", format::percent(share)));
        let left = host.forecast.as_ref().and_then(time_left);
        let left = left.map_or_else(String::new, |left| format!(", full in {left}"));
        let shown = |value| format::shown(value, format::bytes);
        let figure = format!("{} of {} used{share}{left}", shown(host.used), shown(host.total));
        let swap = match (host.swap_used, host.swap_total) {
            (Some(used), Some(total)) if total > 0.0 => {
                format!("{} of {}", format::bytes(used), format::bytes(total))
            }
            (_, Some(_)) => "none".to_owned(),
            _ => String::new(),
        };
        let chart = ChartOf {
            title: "Memory of the host",
            subject: Subject::Host,
            curves: vec![("used", Quantity::Used), ("swap", Quantity::Second)],
            limit: host.total,
            forecast: host.forecast.clone(),
        };
        let pools = host.pools.iter().map(|pool| {
            let free = format::shown(pool.free, format::bytes);
            format!("{free} of {} free ({})", format::bytes(pool.total), pool.size)
        });
        let facts = Facts::default()
            .bytes("anonymous", host.anonymous)
            .bytes("page cache", host.cached)
            .bytes("shared, tmpfs", host.shared)
            .text("swap", swap)
            .text("huge pages", Vec::from_iter(pools).join(", "))
            .bytes("memory of GPUs (NUMA nodes), not included", host.of_gpus)
            .number("OOM kills since boot", host.oom_kills, format::whole)
            .text("kernel", &host.kernel)
            .text("system", &host.os);
        let mut items =
            vec![Item::Text(Some(host.health), figure), Item::Chart(Box::new(chart)), Item::Facts(facts)];
        if host.nodes.len() > 1 {
            items.push(Item::Table(self.numa_table()));
        }
        Section::new("host", "Host memory", items)
    }

    /// The targets of protection; only those of a workload where one is named.
    pub fn protection_section(&self, of: Option<&str>) -> Section {
        let own = &self.protection;
        let mut items = vec![Item::Table(own.target_table(of))];
        if of.is_none() && own.configured() {
            let facts = Facts::default()
                .number("last round of the guard", own.round_age, |age| {
                    format!("{} ago", format::duration(age))
                })
                .number("terminations left on the host this hour", own.terminations_left, format::whole)
                .number("workloads without a slot", own.unprotected, format::whole);
            items.push(Item::Facts(facts));
        }
        Section::new("protection", "Protection", items)
    }

    fn of_gpu(&self, gpu: &Gpu) -> Sheet {
        let mut sections: Vec<Section> =
            self.problem_section(|problem| problem.gpu.as_deref() == Some(&gpu.index)).into_iter().collect();
        sections.push(gpu.memory_section());
        sections.push(Section::table("holders", gpu.holder_table()));
        let ranks = self.rank_table(|_, rank| rank.gpu == gpu.index);
        if !ranks.rows.is_empty() {
            sections.push(Section::new("ranks", "Ranks on this GPU", vec![Item::Table(ranks)]));
        }
        let ranks = self.ranks().filter(|(_, rank)| rank.gpu == gpu.index);
        sections.extend(ranks.flat_map(|(_, rank)| rank.allocators.iter().map(|own| allocator(rank, own))));
        sections.push(gpu.device_section());
        let (title, subtitle) = (format!("GPU {}", gpu.index), gpu.name.clone());
        Sheet { title, subtitle, health: gpu.health, sections, leads_to: None }
    }

    fn of_workload(&self, own: &Workload) -> Sheet {
        let mut sections: Vec<Section> = self
            .problem_section(|problem| problem.workload.as_deref() == Some(&own.name))
            .into_iter()
            .collect();
        let (_, left) = self.left(own);
        let shown = |value| format::shown(value, format::bytes);
        let figure = format!(
            "{} of host memory (RSS), {} on GPUs, time left: {}",
            shown(own.rss),
            shown(own.gpu_memory),
            format::or_unknown(&left)
        );
        let subject = Subject::Workload(own.name.as_str().into());
        let runs_out = own.forecast.as_ref().filter(|forecast| forecast.stated().is_some());
        let mut items = vec![
            Item::Text(Some(own.health), figure),
            Item::Chart(Box::new(ChartOf {
                title: "Resident memory of the workload",
                subject: subject.clone(),
                curves: vec![("RSS", Quantity::Used)],
                limit: runs_out.and_then(|forecast| Some(forecast.headroom_bytes() + own.rss?)),
                forecast: own.forecast.clone(),
            })),
        ];
        if own.gpu_memory.is_some() {
            items.push(Item::Chart(Box::new(ChartOf {
                title: "GPU memory of the workload",
                subject,
                curves: vec![("memory on GPUs", Quantity::Second)],
                limit: None,
                forecast: None,
            })));
        }
        let now = self.unix_seconds;
        let mut facts = Facts::default()
            .bytes("anonymous", own.anonymous)
            .bytes("shared", own.shared)
            .bytes("swap", own.swap)
            .bytes("huge pages", own.huge_pages.filter(|huge| *huge > 0.0));
        for (gpu, memory) in &own.gpus {
            let text = format!("{gpu}: {}", format::shown(*memory, format::bytes));
            facts = facts.link("GPU", &text, Link::Gpu(gpu.clone()));
        }
        for known in &self.conclusions {
            let finding::Subject { resource, workload, cgroup, mount, device_region, .. } = &known.subject;
            let (name, place, is_its) = match resource.as_str() {
                "tmpfs" => ("tmpfs", mount, workload.as_str() == own.name),
                "device_memory" => ("device memory", device_region, cgroup.as_str() == own.cgroup),
                "memory_high" => ("memory.high", cgroup, within(&own.cgroup, cgroup.as_str())),
                _ => continue,
            };
            if let Some(forecast) = known.forecast.as_ref().filter(|_| is_its) {
                let (used, limit) = (format::bytes(forecast.used_bytes), format::bytes(forecast.limit_bytes));
                facts = facts.text(name, format!("{place}: {used} of {limit}"));
            }
        }
        let facts = facts
            .future(own.forecast.as_ref(), own.growth.as_ref(), now)
            .number("processes", own.process_count, format::whole)
            .number("started", own.started, |started| format::clock(started, now))
            .text("user", &own.user)
            .text("run", &own.run)
            .text("kind", &own.kind)
            .text("cgroup", &own.cgroup);
        items.push(Item::Facts(facts));
        sections.push(Section::new("memory", "Memory", items));
        let ranks = self.rank_table(|of, _| of.name == own.name);
        if !ranks.rows.is_empty() {
            sections.push(Section::table("ranks", ranks));
        }
        sections.extend(self.fit_section(|fit| fit.workload.as_str() == own.name));
        if !own.processes.is_empty() {
            let table = process_table(&own.processes, own.rss, own.other_processes);
            sections.push(Section::table("processes", table));
        }
        sections.push(self.protection_section(Some(&own.name)));
        let by = [("run ", &own.run), (if own.run.is_empty() { "user " } else { " of user " }, &own.user)];
        let by = by.iter().filter(|(_, name)| !name.is_empty()).map(|(what, name)| format!("{what}{name}"));
        let (title, subtitle) = (format!("Workload {}", own.name), by.collect());
        Sheet { title, subtitle, health: own.health, sections, leads_to: None }
    }

    fn of_rank(&self, own: &Workload, rank: &Rank) -> Sheet {
        let now = self.unix_seconds;
        let chart = ChartOf {
            title: "Allocated memory of the rank",
            subject: Subject::Rank(own.name.as_str().into(), rank.rank.as_str().into()),
            curves: vec![("allocated", Quantity::Used), ("reserved", Quantity::Second)],
            limit: rank.allocators.iter().find_map(|own| own.device_total),
            forecast: rank.forecast.clone(),
        };
        let facts = Facts::default()
            .link("workload", &own.name, Link::Workload(own.name.clone()))
            .text("user", &own.user)
            .text("run", &rank.run)
            .text("ranks of the run", &rank.world)
            .link("GPU", &rank.gpu, Link::Gpu(rank.gpu.clone()))
            .text("pid", &rank.pid)
            .text("framework", &rank.framework)
            .number("step", rank.step, format::whole)
            .number("seconds per step", rank.step_seconds, |seconds| format!("{seconds:.3}"))
            .number("tokens per second", rank.tokens_per_second, format::whole)
            .number("loss", rank.loss, |loss| format!("{loss:.4}"))
            .number("MFU", rank.mfu, format::percent)
            .text("no FLOP/s", &rank.flops_unknown)
            .number("last message", rank.message_age, |age| format!("{} ago", format::duration(age)))
            .text("checkpoint", &rank.checkpoint)
            .number("last checkpoint", rank.checkpoint_saved, |saved| format::clock(saved, now))
            .future(rank.forecast.as_ref(), rank.growth.as_ref(), now);
        let items = vec![Item::Chart(Box::new(chart)), Item::Facts(facts)];
        let mut sections = vec![Section::new("rank", "Training", items)];
        sections.extend(
            self.fit_section(|fit| fit.workload.as_str() == own.name && fit.rank.as_str() == rank.rank),
        );
        sections.extend(rank.allocators.iter().map(|own| allocator(rank, own)));
        let process: Vec<Process> =
            own.processes.iter().filter(|process| process.pid == rank.pid).cloned().collect();
        if !process.is_empty() {
            let table = process_table(&process, own.rss, None);
            sections.push(Section::new("processes", "Its process", vec![Item::Table(table)]));
        }
        Sheet {
            title: format!("Rank {} of {}", rank.rank, own.name),
            subtitle: String::new(),
            health: rank.health(),
            sections,
            leads_to: Some(("its workload", Link::Workload(own.name.clone()))),
        }
    }

    fn of_problem(&self, place: usize) -> Option<Sheet> {
        let problem = self.problems.get(place)?;
        let is_elsewhere = problem.link != Link::Node;
        Some(Sheet {
            title: "Problem".to_owned(),
            health: problem.counted(),
            leads_to: is_elsewhere.then(|| ("where more is shown", problem.link.clone())),
            sections: vec![Section::new("problems", "", vec![Item::Problems(vec![problem.clone()])])],
            ..Sheet::default()
        })
    }

    fn of_target(&self, target: &str, workload: &str) -> Option<Sheet> {
        let mut targets = self.protection.targets.iter();
        let own = targets.find(|own| own.target == target && own.workload == workload)?;
        let facts = Facts::default()
            .text("mode", &own.mode)
            .text("state", &own.state)
            .number("processes", own.members, |members| format!("{members:.0} may be signalled"))
            .number("left out", own.left_out.filter(|out| *out > 0.0), |out| format!("{out:.0} may not"))
            .number("terminations left", own.terminations_left, |left| format!("{left:.0} in this hour"))
            .text("memory left", own.headroom_text());
        let mut items = vec![Item::Facts(facts)];
        items.extend(own.why.iter().map(|why| Item::Text(None, why.clone())));
        let link = Link::Workload(workload.to_owned());
        Some(Sheet {
            title: format!("Protection target {target}: {workload}"),
            health: own.health,
            leads_to: (!workload.is_empty()).then_some(("its workload", link)),
            sections: vec![Section::new("protection", "Protection", items)],
            ..Sheet::default()
        })
    }
}

fn allocator(rank: &Rank, own: &Allocator) -> Section {
    let mut items = Vec::new();
    if let (Some(reserved), Some(allocated)) = (own.reserved, own.allocated)
        && reserved > 0.0
    {
        let lost = own.unreleasable.or(own.inactive_split).unwrap_or(0.0);
        items.push(Item::Stack(Stack {
            reserved,
            allocated: allocated.min(reserved),
            unreleasable: lost.min(reserved - allocated).max(0.0),
        }));
    }
    let facts = Facts::default()
        .text("state", &own.state)
        .bytes("allocated", own.allocated)
        .bytes("peak allocated", own.allocated_peak)
        .bytes("reserved", own.reserved)
        .bytes("inactive split", own.inactive_split)
        .bytes("cannot be released", own.unreleasable)
        .bytes("largest free block", own.largest_free)
        .bytes("free on the device", own.device_free)
        .number("retried allocations", own.retries, format::whole)
        .number("failed allocations", own.ooms, format::whole);
    items.push(Item::Facts(facts));
    let on =
        if own.gpu.is_empty() { format!(", device {}", own.device) } else { format!(" on GPU {}", own.gpu) };
    Section::new("", format!("Allocator of rank {}{on}", rank.rank), items)
}
