//! What is wrong: each problem of the node once, with its cause and its owner.
//!
//! Several findings can have one cause: a GPU that runs out, the allocator on it that runs out, and the leak in that. They
//! are one problem, about the GPU.

use super::forecast::{Forecast, Forecasts, Growth, time_left};
use super::gpu::Gpu;
use super::owner::Owner;
use super::problem::{Link, Problem};
use super::workload::Workload;
use super::{NodeView, fragmentation};
use crate::model::acknowledged::{Acknowledgement, ProblemId};
use crate::model::finding::{Cause, Finding, Severity, Subject};
use crate::model::format;
use crate::model::frame::Frame;
use crate::model::health::{Health, Rule};
use crate::model::outlook::Conclusion;

/// The kind of a problem of memory that runs out or leaks.
const MEMORY: &str = "memory";

/// The analyzer of XIDs that need an operator.
const XID: &str = "xid";

/// The analyzer of faults of GPUs.
const HARDWARE: &str = "hardware";

/// The analyzer that states what is not measured.
pub(super) const VISIBILITY: &str = "visibility";

/// A workload with at least this share of the used memory of the host is named as its largest.
const MUCH: f64 = 0.2;

/// The problems of a node, worst first, of equal ones those of the node first, then those that are acknowledged.
pub(super) fn problems(view: &NodeView, frame: &Frame, forecasts: &Forecasts<'_>) -> Vec<Problem> {
    let source = Source { view, frame, forecasts, now: view.unix_seconds };
    let mut all = Vec::new();
    all.extend(view.gpus.iter().filter_map(|gpu| source.gpu(gpu)));
    all.extend(view.gpus.iter().flat_map(|gpu| source.gpu_instances(gpu)));
    all.extend(view.workloads.iter().filter_map(|workload| source.workload(workload)));
    all.extend(view.workloads.iter().filter_map(|workload| workload.stalled(view.unix_seconds)));
    all.extend(source.findings());
    all.extend(source.protection());
    // Without a time left, a shortage of the host is the least certain of the problems of a severity.
    all.extend(source.host());
    all.extend(source.unseen());
    for problem in &mut all {
        if source.is_only_stated(&problem.id.subject) {
            problem.health = problem.health.min(Health::Warning);
        }
        problem.name = problem.id.to_string();
        problem.acknowledged = frame.acknowledged.of(&problem.id, problem.health).cloned();
        if let Some(Acknowledgement { by, unix_seconds }) = &problem.acknowledged {
            let begin = if problem.because.is_empty() { "" } else { ", " };
            let at = format::clock(*unix_seconds, view.unix_seconds);
            problem.because.push_str(&format!("{begin}acknowledged by {by} at {at}"));
        }
    }
    all.sort_by(|one, next| {
        let left = |problem: &Problem| problem.seconds_left.unwrap_or(f64::INFINITY);
        let health = |problem: &Problem| (problem.counted(), problem.health, problem.is_of_node);
        health(next).cmp(&health(one)).then(left(one).total_cmp(&left(next)))
    });
    all
}

struct Source<'a> {
    view: &'a NodeView,
    frame: &'a Frame,
    forecasts: &'a Forecasts<'a>,
    now: f64,
}

impl Source<'_> {
    fn finding(&self, analyzer: &str, wanted: impl Fn(&Subject) -> bool) -> Option<&Finding> {
        let findings = self.frame.findings.iter();
        findings
            .filter(|finding| finding.analyzer == analyzer && wanted(&finding.subject))
            .max_by_key(|f| f.severity)
    }

    fn gpu(&self, gpu: &Gpu) -> Option<Problem> {
        let about = |health, what: String| Problem {
            health,
            what,
            gpu: Some(gpu.index.clone()),
            link: Link::Gpu(gpu.index.clone()),
            owner: gpu.holders.first().map(|holder| holder.owner.clone()),
            workload: gpu.holders.first().map(|holder| holder.owner.workload.clone()),
            ..Problem::default()
        };
        let own = |subject: &Subject| subject.gpu.as_str() == gpu.index && subject.uuid.as_str() == gpu.uuid;
        if !gpu.answers() && !gpu.status.is_empty() {
            return Some(self.silent(gpu, about));
        }
        let on = |subject: &Subject| {
            own(subject) || (subject.resource.as_str() == "allocator" && subject.gpu.as_str() == gpu.index)
        };
        let worst = self.forecasts.worst(on);
        let leak = self.forecasts.fastest(on);
        let leaks = leak.is_some_and(|(_, growth)| growth.leaks());
        let growth_health = leak.map_or(Health::Ok, |(_, growth)| growth.state.into());
        let health = worst.map_or(Health::Ok, |(_, forecast)| forecast.health()).max(growth_health);
        // A GPU that is full is not ok, although nothing is known to be wrong.
        if health < Health::Warning && worst.is_none_or(|(_, known)| known.rule != Rule::FullWithoutGrowth) {
            return None;
        }
        let forecast = worst.map(|(_, forecast)| forecast.clone()).unwrap_or_default();
        let name = format!("GPU {}", gpu.index);
        let mut problem = about(health, runs_out(&name, gpu.share(), &forecast, leaks));
        problem.id = ProblemId::new(MEMORY, of_gpu(gpu));
        let stated = forecast.stated().map(|tte| tte.p50);
        problem.seconds_left = stated.or_else(|| forecast.at_its_growth().filter(|_| leaks));
        if let Some((subject, growth)) = leak {
            problem.because = cause(growth, self.now);
            if let Some(workload) = self.view.workload(subject.workload.as_str()) {
                problem.owner = Some(owner_of(workload, subject.pid.as_str()));
                problem.workload = Some(workload.name.clone());
            }
            problem.since = growth.since_unix_seconds;
        } else if let Some(growth) = forecast.growth().filter(|growth| *growth > 0.0) {
            problem.because = format!("growing {}", format::rate(growth));
        }
        problem.advice = advice(worst, leak);
        problem.since = problem.since.or_else(|| worst.map(|(_, forecast)| forecast.since_unix_seconds));
        Some(problem)
    }

    /// The MIG instances of a GPU that run out, or are full.
    fn gpu_instances(&self, gpu: &Gpu) -> impl Iterator<Item = Problem> {
        gpu.mig.iter().filter_map(move |mig| {
            let id = ProblemId::new(MEMORY, mig.subject(gpu));
            let (known, forecast) = self.forecasts.worst(|subject| *subject == id.subject)?;
            if forecast.health() < Health::Warning && forecast.rule != Rule::FullWithoutGrowth {
                return None;
            }
            let share = format::share(Some(forecast.used_bytes), Some(forecast.limit_bytes));
            let growth = forecast.growth().filter(|growth| *growth > 0.0);
            Some(Problem {
                health: forecast.health(),
                what: runs_out(&format!("{:#}", id.subject), share, forecast, false),
                because: growth
                    .map_or_else(String::new, |growth| format!("growing {}", format::rate(growth))),
                advice: known.advice().to_owned(),
                since: Some(forecast.since_unix_seconds),
                seconds_left: forecast.stated().map(|tte| tte.p50),
                gpu: Some(gpu.index.clone()),
                link: Link::Gpu(gpu.index.clone()),
                id,
                ..Problem::default()
            })
        })
    }

    /// A GPU whose values are not known.
    fn silent(&self, gpu: &Gpu, about: impl Fn(Health, String) -> Problem) -> Problem {
        let visible =
            |subject: &Subject| subject.gpu.as_str() == gpu.index && subject.uuid.as_str() == gpu.uuid;
        let finding = self.finding(VISIBILITY, visible);
        let since = finding.map(|finding| finding.since_unix_seconds);
        let since = since.into_iter().chain(gpu.sample_age.map(|age| self.now - age)).reduce(f64::min);
        let call = if gpu.hung_call.is_empty() { String::new() } else { format!(" ({})", gpu.hung_call) };
        let clock =
            since.map_or_else(String::new, |since| format!(" since {}", format::clock(since, self.now)));
        let mut problem =
            about(gpu.health, format!("GPU {} does not respond{clock}, its memory is unknown", gpu.index));
        problem.is_of_node = true;
        problem.id = ProblemId::new("status", of_gpu(gpu));
        let xid = self.finding(XID, visible).filter(|finding| finding.severity == Severity::Critical);
        let xid = xid.map_or_else(String::new, |finding| {
            format!(", {}", finding.summary.trim_end_matches('.').replacen("GPU ", "and GPU ", 1))
        });
        problem.because = format!("{}{call}{xid}", gpu.status_words());
        problem.owner_is_last_known = gpu.holders_are_last_known;
        problem.since = since;
        problem.advice = finding.map_or("", |finding| finding.advice).to_owned();
        problem
    }

    fn host(&self) -> Option<Problem> {
        let host = &self.view.host;
        let forecast = host.forecast.clone().unwrap_or_default();
        if forecast.health() < Health::Warning {
            return None;
        }
        let grows = self.forecasts.fastest(|subject| subject.resource.as_str() == "workload");
        let holder = grows.and_then(|(subject, _)| self.view.workload(subject.workload.as_str()));
        let largest = || {
            let memory = |workload: &&Workload| workload.rss;
            self.view
                .workloads
                .iter()
                .filter(|own| format::share(own.rss, host.used).is_some_and(|share| share >= MUCH))
                .max_by(|one, next| memory(one).unwrap_or(0.0).total_cmp(&memory(next).unwrap_or(0.0)))
        };
        let because = match (grows.filter(|_| holder.is_some()), largest()) {
            (Some((_, growth)), _) => cause(growth, self.now),
            (None, Some(workload)) => {
                format!("the largest workload holds {}", workload.rss.map_or_else(String::new, format::bytes))
            }
            (None, None) => "no workload holds much of it".to_owned(),
        };
        let growth = forecast.growth().filter(|growth| *growth > 0.0 && forecast.stated().is_none());
        let because =
            growth.map_or(because.clone(), |rate| format!("growing {}, {because}", format::rate(rate)));
        Some(Problem {
            health: forecast.health(),
            what: runs_out("The host", host.share(), &forecast, false),
            because,
            owner: holder.or_else(largest).map(Owner::of),
            workload: holder.map(|workload| workload.name.clone()),
            advice: advice(self.forecasts.worst(|subject| *subject == Subject::host()), None),
            since: Some(forecast.since_unix_seconds),
            seconds_left: forecast.stated().map(|tte| tte.p50),
            link: Link::Node,
            is_of_node: true,
            id: ProblemId::new(MEMORY, Subject::host()),
            ..Problem::default()
        })
    }

    /// A workload that runs out or leaks by itself.
    fn workload(&self, workload: &Workload) -> Option<Problem> {
        let own = |subject: &Subject| {
            subject.workload.as_str() == workload.name
                && matches!(subject.resource.as_str(), "workload" | "process")
                || (!workload.cgroup.is_empty()
                    && subject.resource.as_str() == "cgroup"
                    && subject.cgroup.as_str() == workload.cgroup)
        };
        let worst = self.forecasts.worst(own);
        let grows = self.forecasts.fastest(own);
        let leaks = grows.is_some_and(|(_, growth)| growth.leaks());
        let runs_short = worst.filter(|(_, forecast)| forecast.health() >= Health::Warning);
        if runs_short.is_none() && !leaks {
            return None;
        }
        let forecast = worst.map(|(_, forecast)| forecast.clone()).unwrap_or_default();
        let name = format::short(&workload.name, 40);
        let what = match runs_short {
            Some(_) => runs_out(&name, None, &forecast, leaks),
            None => format!("{name} leaks{}", grows.map_or_else(String::new, |(_, growth)| growth.pace(" "))),
        };
        let grows_since = grows.and_then(|(_, growth)| growth.since_unix_seconds);
        let growth_health = grows.map_or(Health::Ok, |(_, growth)| growth.state.into());
        Some(Problem {
            health: runs_short.map_or(Health::Ok, |(_, forecast)| forecast.health()).max(growth_health),
            what,
            because: grows.map_or_else(String::new, |(_, growth)| cause(growth, self.now)),
            owner: Some(Owner::of(workload)),
            advice: advice(runs_short, grows),
            since: runs_short.map(|(_, forecast)| forecast.since_unix_seconds).or(grows_since),
            seconds_left: forecast.stated().map(|tte| tte.p50),
            workload: Some(workload.name.clone()),
            link: Link::Workload(workload.name.clone()),
            id: ProblemId::new(MEMORY, Subject::workload(&workload.name.as_str().into())),
            ..Problem::default()
        })
    }

    /// Findings that are in no problem above.
    fn findings(&self) -> impl Iterator<Item = Problem> {
        let stated = self.frame.findings.iter();
        let stated = stated.filter(|finding| finding.severity > Severity::Info || finding.analyzer == XID);
        stated.filter(|finding| !self.is_told(finding)).map(|finding| {
            let subject = &finding.subject;
            let in_cgroup = || {
                let mut all = self.view.workloads.iter().filter(|_| !subject.cgroup.is_empty());
                all.find(|workload| workload.cgroup == subject.cgroup.as_str())
            };
            let workload = self.view.workload(subject.workload.as_str()).or_else(in_cgroup);
            let owner = workload.map(|workload| owner_of(workload, subject.pid.as_str()));
            let gpu = Some(subject.gpu.to_string()).filter(|gpu| !gpu.is_empty());
            let on_it =
                self.view.gpu(subject.gpu.as_str()).filter(|_| matches!(finding.analyzer, XID | HARDWARE));
            let owner = owner.or_else(|| Some(on_it?.holders.first()?.owner.clone()));
            let link = match (&gpu, workload) {
                (_, Some(workload)) => Link::Workload(workload.name.clone()),
                (Some(gpu), None) => Link::Gpu(gpu.clone()),
                (None, None) => Link::Node,
            };
            let rank = workload
                .and_then(|workload| workload.ranks.iter().find(|rank| rank.pid == subject.pid.as_str()));
            let allocator = rank.and_then(|rank| rank.forecast.as_ref());
            let left = allocator.filter(|_| finding.analyzer == "fragmentation").and_then(Forecast::stated);
            let on = gpu.as_ref().map_or_else(String::new, |gpu| format!(" on GPU {gpu}"));
            let (what, because) = match (finding.analyzer, rank) {
                ("fragmentation", Some(rank)) => {
                    fragmentation::stated(rank, &on, finding.state, finding.since_unix_seconds, self.now)
                }
                ("fragmentation", None) => {
                    let since = format::clock(finding.since_unix_seconds, self.now);
                    let summary = finding.summary.trim_end_matches('.');
                    (format!("{summary}, since {since}, time left unknown"), String::new())
                }
                _ => (finding.summary.trim_end_matches('.').to_owned(), String::new()),
            };
            let health = match finding.analyzer {
                // It is as bad once it is acknowledged, which its severity says.
                XID => Health::Critical,
                _ => Health::from(finding.severity).max(allocator.map_or(Health::Ok, Forecast::health)),
            };
            Problem {
                health,
                what,
                because: because.trim_end_matches('.').to_owned(),
                owner,
                advice: finding.advice.to_owned(),
                since: Some(finding.since_unix_seconds),
                seconds_left: left.map(|tte| tte.p50),
                gpu,
                workload: workload.map(|workload| workload.name.clone()),
                link,
                is_of_node: subject.cause() == Cause::Node
                    || matches!(finding.analyzer, VISIBILITY | XID | HARDWARE),
                id: ProblemId::new(finding.analyzer, subject.clone()),
                ..Problem::default()
            }
        })
    }

    /// Whether only a process states this, and the driver confirms no GPU of it or of its workload: any user can state it.
    fn is_only_stated(&self, subject: &Subject) -> bool {
        let workload = self.view.workload(subject.workload.as_str());
        let is_confirmed = !subject.gpu.is_empty() || workload.is_some_and(|own| !own.gpus.is_empty());
        subject.cause() == Cause::Statement && !is_confirmed
    }

    /// Whether a finding is part of the problem of its GPU, workload or host.
    fn is_told(&self, finding: &Finding) -> bool {
        let subject = &finding.subject;
        let resource = subject.resource.as_str();
        let gpu = self.view.gpu(subject.gpu.as_str());
        match (finding.analyzer, resource) {
            ("exhaustion", "host") => true,
            (XID, _) => gpu.is_some_and(|gpu| !gpu.answers()) && finding.severity == Severity::Critical,
            (
                "exhaustion" | VISIBILITY | "leak",
                "gpu" | "gpu_instance" | "gpu_process" | "allocator" | "outside_allocator",
            ) => gpu.is_some(),
            ("exhaustion" | "leak", "workload" | "process") => {
                self.view.workload(subject.workload.as_str()).is_some()
            }
            ("exhaustion", "cgroup") => {
                self.view.workloads.iter().any(|workload| workload.cgroup == subject.cgroup.as_str())
            }
            _ => false,
        }
    }

    fn protection(&self) -> Vec<Problem> {
        let protection = &self.view.protection;
        let about = |health, what: String, because: String| Problem {
            health,
            what,
            because,
            link: Link::Protection,
            id: ProblemId::new("protection", Subject::default()),
            ..Problem::default()
        };
        let mut all = Vec::new();
        if protection.stuck() {
            let age = format::duration(protection.round_age.unwrap_or(0.0));
            all.push(about(
                Health::Critical,
                format!("The guard has made no round for {age}"),
                "nothing is protected".to_owned(),
            ));
        }
        for target in &protection.targets {
            let acts = matches!(target.state.as_str(), "soft" | "checkpoint" | "term" | "kill" | "verify");
            let unfit = matches!(target.state.as_str(), "disarmed" | "blind");
            let escalates = acts && target.mode == "enforce";
            if !(unfit || escalates) {
                continue;
            }
            let name = format::short(&target.workload, 40);
            let mut problem = about(
                target.health,
                format!("Protection of {name} is in the state {}", target.state),
                lower_first(target.why.first().map_or("", |why| why.trim_end_matches('.'))),
            );
            problem.workload = Some(target.workload.clone());
            let subject = Subject::workload(&target.workload.as_str().into());
            problem.id = ProblemId::new(&format!("protection/{}", target.target), subject);
            problem.owner = self.view.workload(&target.workload).map(Owner::of);
            all.push(problem);
        }
        all
    }

    /// What cannot be measured.
    fn unseen(&self) -> Vec<Problem> {
        let stated_as = |kind: &str, what: String, resource: &str, source: &str| {
            let (resource, source) = (resource.into(), source.into());
            let id = ProblemId::new(kind, Subject { resource, source, ..Subject::default() });
            Problem { health: Health::Unknown, what, is_of_node: true, id, ..Problem::default() }
        };
        let unknown = |what: String, resource: &str| stated_as("unknown", what, resource, "");
        let unseen = self.view.gpus_unseen.iter();
        let mut all: Vec<Problem> = unseen.map(|why| unknown(why.clone(), "gpus")).collect();
        let stated =
            |name: &str| self.finding(VISIBILITY, |subject| subject.source.as_str() == name).is_some();
        let failing = self.view.sources.iter().filter(|source| source.fails());
        for source in failing.filter(|source| !stated(&source.name)) {
            let gpus = source.name == "gpu" && self.view.gpus.iter().any(|gpu| !gpu.answers());
            if !gpus {
                let what = format!("Source {} fails: {}", source.name, source.why.trim_end_matches('.'));
                // The same problem as that of the finding that follows.
                all.push(stated_as(VISIBILITY, what, "source", &source.name));
            }
        }
        if self.view.host.limited {
            all.push(unknown("Processes of other users are hidden from memwarden".to_owned(), "processes"));
        }
        if self.view.host.used.is_none() {
            all.push(unknown("The memory of the host cannot be read".to_owned(), "host"));
        }
        if !self.frame.outlook.has_forecasts && self.frame.sequence > 0 && self.forecasts.ready {
            all.push(unknown("Forecasts failed in the newest sample".to_owned(), "forecasts"));
        }
        all
    }
}

fn of_gpu(gpu: &Gpu) -> Subject {
    Subject::gpu(&gpu.index.as_str().into(), &gpu.uuid.as_str().into())
}

/// The owner of a process of a workload, with its rank where the workload has several.
fn owner_of(workload: &Workload, pid: &str) -> Owner {
    let owner = Owner::of(workload);
    let rank = workload.ranks.iter().find(|rank| rank.pid == pid && !pid.is_empty());
    match rank {
        Some(rank) if workload.ranks.len() > 1 || !matches!(rank.world.as_str(), "" | "1") => {
            owner.with_rank(&rank.rank)
        }
        _ => owner,
    }
}

/// What can be done: about the growth, where it is stated, else about the resource.
fn advice(worst: Option<(&Conclusion, &Forecast)>, growth: Option<(&Subject, &Growth)>) -> String {
    let stated =
        growth.and_then(|(_, growth)| growth.stated).filter(|stated| Health::from(stated.state) > Health::Ok);
    let of_growth = stated.map(|stated| stated.memory.advice());
    of_growth.or_else(|| worst.map(|(known, _)| known.advice())).unwrap_or_default().to_owned()
}

/// When something runs out of memory, as far as it is predicted.
fn runs_out(name: &str, share: Option<f64>, forecast: &Forecast, leaks: bool) -> String {
    let used = share.map_or_else(String::new, |share| format!(" ({} used)", format::percent(share)));
    if let Some(left) = time_left(forecast) {
        return format!("{name}{used} runs out of memory in {left}");
    }
    match forecast.rule {
        _ if forecast.is_over => {}
        Rule::Full => return format!("{name} is full{used}"),
        Rule::FullAfterGrowth => return format!("{name} has filled up{used}"),
        Rule::FullWithoutGrowth => {
            return format!("{name} is full{used}, and whether its allocator holds free memory is not known");
        }
        _ => {}
    }
    match forecast.at_its_growth().filter(|_| leaks) {
        Some(left) => {
            format!("{name}{used} runs out of memory in about {} at its growth", format::duration(left))
        }
        None => format!("{name}{used} may run out of memory: {}", forecast.why()),
    }
}

fn cause(growth: &Growth, now: f64) -> String {
    format!("{}{}{}", growth.state.label(), growth.pace(" "), growth.since(" ", now))
}

/// The sentence with a small first letter, to follow a colon.
fn lower_first(text: &str) -> String {
    let mut letters = text.chars();
    letters.next().map_or_else(String::new, |first| first.to_lowercase().chain(letters).collect())
}
