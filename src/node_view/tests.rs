//! Nodes with problems, and their verdicts.

use std::sync::Arc;

use super::events::Recorder;
use super::*;
use crate::catalog::{fragmentation, gpu, memory, protection, training, workload as jobs};
use crate::model::acknowledged::{Acknowledgement, ProblemId};
use crate::model::finding::{Finding, Severity, Subject};
use crate::model::frame::SourceReport;
use crate::model::health::Rule;
use crate::model::label::Label;
use crate::model::outlook::{Forecast, Growth, LeakState, Outlook, Rate, Tte};
use crate::model::point::Batch;
use crate::model::source::Status;
use crate::model::time::Timestamp;
use crate::model::units::{Bytes, Count, Flag, Seconds};

const GIB: u64 = 1 << 30;
const NOW: u64 = 1_795_391_700;

/// When everything began, in seconds since 1970.
fn began() -> f64 {
    f64::from(u32::try_from(NOW - 600).unwrap())
}

/// A node that is described step by step.
#[derive(Default)]
pub(crate) struct Node {
    batch: Batch,
    findings: Vec<Finding>,
    sources: Vec<SourceReport>,
    conclusions: Vec<Conclusion>,
    at: u64,
}

fn gpu_labels(index: u32) -> [Label; 2] {
    [index.into(), format!("GPU-{index}").into()]
}

impl Node {
    /// A host with 64 GiB of which a quarter is used, and forecasts of it.
    pub(crate) fn new() -> Self {
        let mut node = Self { batch: Batch::new(), at: NOW, ..Self::default() };
        node.batch.put(&memory::HOST_INFO, &["node17".into(), "6.8".into(), "Debian".into()], Flag(true));
        node.batch.put(&memory::TOTAL, &[], Bytes::new(64 * GIB));
        node.batch.put(&memory::USED, &[], Bytes::new(16 * GIB));
        node.assessed(Subject::host(), 16, 64, Rule::None);
        node
    }

    /// A resource of which so much is used, and the rule that holds.
    fn assessed(&mut self, subject: Subject, used_gib: u64, limit_gib: u64, rule: Rule) {
        let gib = |gib: u64| f64::from(u32::try_from(gib << 10).unwrap()) * 1_048_576.0;
        let forecast = Forecast {
            used_bytes: gib(used_gib),
            limit_bytes: gib(limit_gib),
            within: [Some(0.01); 4],
            rule,
            since_unix_seconds: began(),
            ..Forecast::default()
        };
        self.conclusions.push(Conclusion { subject, forecast: Some(forecast), ..Conclusion::default() });
    }

    /// The forecast of a resource that was assessed.
    fn forecast(&mut self, subject: &Subject) -> &mut Forecast {
        let known = self.conclusions.iter_mut().find(|known| known.subject == *subject);
        known.and_then(|known| known.forecast.as_mut()).expect("it was assessed")
    }

    /// A GPU with 80 GiB of which so much is used, and its status.
    pub(crate) fn gpu(&mut self, index: u32, used_gib: u64, status: &str) {
        let labels = gpu_labels(index);
        let [gpu, uuid] = labels.clone();
        for other in ["ok", "hung", "lost"] {
            self.batch.put(&gpu::STATUS, &[gpu.clone(), uuid.clone(), other.into()], Flag(other == status));
        }
        if status == "ok" {
            self.batch.put(&gpu::MEMORY_USED, &labels, Bytes::new(used_gib * GIB));
            self.batch.put(&gpu::MEMORY_FREE, &labels, Bytes::new((80 - used_gib) * GIB));
            self.assessed(Subject::gpu(&gpu, &uuid), used_gib, 80, Rule::None);
        } else {
            self.batch.put(&gpu::HUNG_CALL, &[gpu, uuid, "nvmlDeviceGetMemoryInfo".into()], Flag(true));
            self.batch.put(&gpu::SAMPLE_AGE, &labels, Seconds::from_micros(180_000_000));
        }
    }

    /// A workload of a user with a rank on a GPU.
    pub(crate) fn job(&mut self, name: &str, user: &str, run: &str, on: u32, gib: Option<u64>) {
        let empty = Label::default();
        let mut info = vec![empty.clone(); jobs::INFO.desc.labels.len()];
        (info[0], info[1], info[2]) = (name.into(), "slurm".into(), user.into());
        self.batch.put(&jobs::INFO, &info, Flag(true));
        self.batch.put(&jobs::RSS, &[name.into()], Bytes::new(2 * GIB));
        self.batch.put(
            &jobs::PROCESS_RSS,
            &[name.into(), "4711".into(), "python3".into()],
            Bytes::new(2 * GIB),
        );
        let [gpu, uuid] = gpu_labels(on);
        if let Some(gib) = gib {
            self.batch.put(
                &jobs::GPU_MEMORY,
                &[name.into(), gpu.clone(), uuid.clone()],
                Bytes::new(gib * GIB),
            );
        }
        let rank = ["0", "0", "1", "4711"].map(Label::from);
        let [number, local, world, pid] = rank;
        let found =
            [name.into(), number, local, world, pid, gpu, uuid, run.into(), empty.clone(), "torch".into()];
        let found: Vec<Label> = found.into_iter().chain([empty.clone(), empty.clone(), empty]).collect();
        self.batch.put(&training::INFO, &found, Flag(true));
    }

    fn finding(&mut self, analyzer: &'static str, subject: Subject, state: &'static str, severity: Severity) {
        self.findings.push(Finding {
            analyzer,
            summary: format!("{subject} is {state}."),
            subject,
            state,
            severity,
            since_unix_seconds: began(),
            evidence: Vec::new(),
            advice: "Save a checkpoint.",
        });
    }

    /// GPU 0 runs out in 4 minutes, because an allocator on it leaks.
    pub(crate) fn leak(&mut self) {
        let [gpu, uuid] = gpu_labels(0);
        let on = Subject::gpu(&gpu, &uuid);
        let known = self.forecast(&on);
        known.time_to_exhaustion = Some(Tte { p10: 185.0, p50: 250.0, p90: Some(420.0) });
        known.rule = Rule::ExhaustionWithin15Minutes;
        let process =
            Subject { workload: "slurm/4711".into(), ..Subject::gpu_process(&gpu, &uuid, &"4711".into()) };
        let growth = Growth {
            state: LeakState::Leaking,
            rate: Some(Rate { bytes_per_second: f64::from(50_u32 << 20), error_bytes_per_second: 0.0 }),
            since_unix_seconds: Some(began()),
            ..Growth::default()
        };
        let subject = process.clone();
        self.conclusions.push(Conclusion { subject, growth: Some(growth), ..Conclusion::default() });
        self.finding("exhaustion", on, "critical", Severity::Critical);
        self.finding("leak", process, "leaking", Severity::Warning);
    }

    fn source(&mut self, source: &'static str, status: Status, why: &str) {
        let why = Some(why.to_owned());
        self.sources.push(SourceReport { source, status, why, age_seconds: None });
    }

    pub(crate) fn frame(self) -> Frame {
        let (families, dropped, _) = self.batch.seal();
        assert!(dropped.is_empty(), "{dropped:?}");
        Frame {
            sequence: 1,
            at: Timestamp::from_secs(self.at),
            families,
            sources: self.sources,
            findings: self.findings,
            outlook: Outlook {
                conclusions: self.conclusions,
                has_forecasts: true,
                has_leaks: true,
                ..Outlook::default()
            },
            timeline: Arc::default(),
            acknowledged: Arc::default(),
        }
    }

    fn view(self) -> NodeView {
        view(&self.frame(), 0.5, None)
    }
}

fn view(frame: &Frame, age_seconds: f64, last_holders: Option<&LastHolders>) -> NodeView {
    NodeView::of(Some(frame), &Situation { host_name: None, age_seconds, stale_after: 5.0, last_holders })
}

#[track_caller]
fn says(view: &NodeView, health: Health, sentence: &str) {
    assert_eq!((view.verdict.health, view.verdict.sentence.as_str()), (health, sentence));
}

#[test]
fn a_node_without_problems_says_how_full_it_is() {
    let mut node = Node::new();
    node.gpu(0, 40, "ok");
    node.gpu(1, 60, "ok");
    node.job("slurm/4711", "alice", "llama70b", 0, Some(39));
    let view = node.view();
    says(
        &view,
        Health::Ok,
        "No memory is predicted to run out: host memory 25 % used, fullest GPU 1 75 % used.",
    );
    assert_eq!((view.node.as_str(), view.problems.len()), ("node17", 0));
    let holder = &view.gpus[0].holders[0];
    assert_eq!(holder.owner.to_string(), "run llama70b of user alice (slurm/4711)");
    assert_eq!(
        (holder.ranks.as_slice(), view.gpus[0].time_left.as_str()),
        (&["0".to_owned()][..], "no end predicted")
    );
    assert_eq!(view.workloads[0].processes[0].rank, "0");
}

#[test]
fn a_leak_is_one_problem_with_its_time_and_its_owner() {
    let mut node = Node::new();
    node.gpu(0, 70, "ok");
    node.job("slurm/4711", "alice", "llama70b", 0, Some(69));
    node.leak();
    let view = node.view();
    says(
        &view,
        Health::Critical,
        "GPU 0 (88 % used) runs out of memory in 4 min (3 to 7): leaking +50.0 MiB/s since 23:45 UTC, run llama70b of \
         user alice (slurm/4711).",
    );
    assert_eq!((view.verdict.more, view.gpus[0].time_left.as_str()), (0, "4 min (3 to 7)"));
    assert_eq!((view.gpus[0].health, view.workloads[0].health), (Health::Critical, Health::Critical));
    assert_eq!(view.problems[0].link, Link::Gpu("0".to_owned()));
}

#[test]
fn a_leak_without_a_forecast_has_the_time_at_its_growth() {
    let mut node = Node::new();
    node.gpu(0, 70, "ok");
    node.job("slurm/4711", "alice", "llama70b", 0, Some(69));
    node.leak();
    let [gpu, uuid] = gpu_labels(0);
    let known = node.forecast(&Subject::gpu(&gpu, &uuid));
    known.time_to_exhaustion = None;
    known.rule = Rule::Leaks;
    known.rate = Some(Rate { bytes_per_second: f64::from(1_u32 << 30) / 20.0, ..Rate::default() });
    let view = view(&node.frame(), 0.0, None);
    assert_eq!(view.silent_gpu(view.workload("slurm/4711").unwrap()), None);
    let sentence = &view.verdict.sentence;
    assert!(
        sentence.starts_with("GPU 0 (88 % used) runs out of memory in about 3 min at its growth: "),
        "{sentence}"
    );
    assert_eq!((view.verdict.health, view.gpus[0].time_left.as_str()), (Health::Warning, "about 3 min"));
    let left = view.first_to_run_out(view.workload("slurm/4711").unwrap());
    assert_eq!(left.map(|(_, text)| text).as_deref(), Some("about 3 min, GPU 0"));
}

#[test]
fn a_hung_gpu_is_unknown_and_names_who_held_it_last() {
    let before = |status| {
        let mut node = Node::new();
        node.gpu(0, 70, status);
        node.job("slurm/4711", "alice", "llama70b", 0, (status == "ok").then_some(69));
        node
    };
    let mut recorder = Recorder::default();
    recorder.record(&before("ok").frame());
    let mut node = before("hung");
    node.at += 60;
    let [gpu, uuid] = gpu_labels(0);
    node.finding("visibility", Subject::gpu(&gpu, &uuid), "hung", Severity::Critical);
    let mut frame = node.frame();
    // The rank is still connected, and without it the memory of the past remains.
    frame.families.retain(|family| family.desc.name != training::INFO.desc.name);
    recorder.record(&frame);
    let view = view(&frame, 0.0, Some(&recorder.last_holders));
    says(
        &view,
        Health::Critical,
        "GPU 0 does not respond since 23:45 UTC, its memory is unknown: a driver call does not return \
         (nvmlDeviceGetMemoryInfo), last used by slurm/4711 of user alice.",
    );
    assert_eq!((view.gpus[0].used, view.gpus[0].time_left.as_str()), (None, "unknown"));
    assert!(view.gpus[0].holders_are_last_known);
    assert_eq!(view.silent_gpu(view.workload("slurm/4711").unwrap()), Some("0"));
    let events: Vec<_> = recorder.events().map(|event| (event.gpu.as_str(), event.health)).collect();
    assert_eq!(events, [("0", Health::Critical)]);
}

#[test]
fn what_is_unknown_is_never_ok() {
    let none = NodeView::of(None, &Situation { host_name: Some("n"), ..Situation::default() });
    says(&none, Health::Unknown, "No sample has been taken yet.");
    let stale = view(&Node::new().frame(), 12.0, None);
    says(
        &stale,
        Health::Unknown,
        "Sampling has stalled: the newest sample is 12 s old, and nothing after it is known.",
    );
    let mut few = Node::new();
    (few.batch, few.conclusions) = (Batch::new(), Vec::new());
    few.batch.put(&memory::TOTAL, &[], Bytes::new(GIB));
    few.batch.put(&memory::USED, &[], Bytes::new(GIB / 2));
    says(&few.view(), Health::Unknown, "There are too few samples for a forecast; it takes about a minute.");
    let mut unreadable = Node::new();
    unreadable.source("process", Status::Failed, "permission denied");
    says(&unreadable.view(), Health::Unknown, "Source process fails: permission denied.");
    let mut hidden = Node::new();
    hidden.batch.put(&gpu::NVML_STATUS, &["no_permission".into()], Flag(true));
    says(
        &hidden.view(),
        Health::Unknown,
        "GPUs are not visible: memwarden may not open the devices (no_permission).",
    );
    let mut lacking = Node::new();
    lacking.source("pressure", Status::Unavailable, "the kernel has no PSI");
    assert_eq!(lacking.view().verdict.health, Health::Ok, "what the host does not have is no defect");
}

#[test]
fn a_fragmented_allocator_says_how_much_is_lost() {
    let mut node = Node::new();
    node.gpu(0, 78, "ok");
    node.job("slurm/4711", "alice", "llama70b", 0, Some(77));
    let labels: [Label; 4] = ["slurm/4711".into(), "0".into(), "0".into(), "0".into()];
    node.batch.put(&training::ALLOCATED, &labels, Bytes::new(47 * GIB));
    node.batch.put(&training::RESERVED, &labels, Bytes::new(76 * GIB));
    node.batch.put(&fragmentation::UNRELEASABLE, &labels, Bytes::new(25 * GIB));
    node.batch.put(&training::RETRIES, &labels, Count(7));
    node.batch.put(&training::LARGEST_FREE, &labels, Bytes::new(2 * GIB));
    node.batch.put(&training::DEVICE_FREE, &labels, Bytes::new(GIB));
    let subject = Subject::allocator(&"slurm/4711".into(), &"4711".into(), &"0".into());
    node.finding("fragmentation", subject, "fragmented", Severity::Warning);
    node.batch.put(
        &fragmentation::ALLOCATOR_STATE,
        &[&labels[..], &["fragmented".into()]].concat(),
        Flag(true),
    );
    let view = node.view();
    assert_eq!(view.gpus[0].time_left, "unknown", "it does not grow, and the next allocation can fail");
    says(
        &view,
        Health::Warning,
        "The allocator of rank 0 on GPU 0 is fragmented since 23:45 UTC, time left unknown: an allocation above 5.0 GiB \
         fails, 25.0 GiB of 76.0 GiB reserved cannot be released, run llama70b of user alice (slurm/4711).",
    );
}

#[test]
fn a_target_states_which_processes_do_not_save_on_request() {
    let mut node = Node::new();
    node.batch.put(&protection::MODE, &["jobs".into(), "enforce".into()], Flag(true));
    let and = |last: &str| ["jobs".into(), "slurm/17".into(), Label::from(last)];
    node.batch.put(&protection::STATE, &and("ok"), Flag(true));
    node.batch.put(&protection::CANNOT_SAVE, &and(""), Count(1));
    node.batch.put(&protection::CANNOT_SAVE, &and("faulthandler"), Count(2));
    let target = &node.view().protection.targets[0];
    let why = "1 process does not save a checkpoint on request, as the job reports: without a reason. \
               2 processes do not save a checkpoint on request, as the job reports: faulthandler.";
    assert!(target.why.join(" ").ends_with(why), "{}", target.why.join(" "));
}

#[test]
fn a_target_states_why_it_does_not_act() {
    let why = |mode: &str, state: &str, met: &[&str], not_met: &[&str], reason: Option<&str>| {
        let mut node = Node::new();
        for other in ["observe", "enforce"] {
            node.batch.put(&protection::MODE, &["jobs".into(), other.into()], Flag(other == mode));
        }
        if !state.is_empty() {
            let and = |last: &str| ["jobs".into(), "slurm/17".into(), Label::from(last)];
            node.batch.put(&protection::STATE, &and(state), Flag(true));
            for (conditions, holds) in [(met, true), (not_met, false)] {
                for condition in conditions {
                    node.batch.put(&protection::CONDITION, &and(condition), Flag(holds));
                }
            }
            if let Some(reason) = reason {
                node.batch.put(&protection::DISARMED_REASON, &and(reason), Flag(true));
            }
        }
        let view = node.view();
        let target = &view.protection.targets[0];
        (target.health, target.why.join(" "), view.verdict.health)
    };
    let check = |found: (Health, String, Health), health, part: &str, node| {
        assert_eq!((found.0, found.2), (health, node), "{}", found.1);
        assert!(found.1.contains(part), "{}", found.1);
    };
    check(why("enforce", "", &[], &[], None), Health::Ok, "No running workload matches", Health::Ok);
    check(why("enforce", "ok", &[], &["gpu_soft"], None), Health::Ok, "No trigger holds", Health::Ok);
    check(
        why("observe", "warn", &["leak"], &[], None),
        Health::Warning,
        "a leak is confirmed. Mode observe",
        Health::Ok,
    );
    check(
        why("enforce", "blind", &[], &[], None),
        Health::Unknown,
        "none of the watched readings",
        Health::Unknown,
    );
    let disarmed = why("enforce", "disarmed", &[], &[], Some("no_permission"));
    check(disarmed, Health::Warning, "CAP_KILL is missing", Health::Warning);
    let used_up = why("enforce", "disarmed", &[], &["rate_left"], None);
    check(used_up, Health::Warning, "terminations in an hour is used up", Health::Warning);
    let acting = why("enforce", "checkpoint", &["gpu_soft"], &["alone_on_host"], None);
    check(acting, Health::Critical, "another target is freeing memory", Health::Critical);
}

#[test]
fn no_owner_is_named_for_memory_of_others() {
    let mut node = Node::new();
    node.job("slurm/17", "bob", "", 0, None);
    node.forecast(&Subject::host()).rule = Rule::ExhaustionWithinHour;
    // The workload has 2 GiB of the 16 GiB that are used.
    let sentence = "The host (25 % used) may run out of memory: exhaustion within an hour is more likely than not: \
                    no workload holds much of it.";
    says(&node.view(), Health::Warning, sentence);
}

#[test]
fn the_model_survives_its_json_form() {
    let mut node = Node::new();
    node.gpu(0, 70, "ok");
    node.job("slurm/4711", "alice", "llama70b", 0, Some(69));
    node.leak();
    let view = node.view();
    let json = serde_json::to_vec(&view).unwrap();
    assert_eq!(serde_json::from_slice::<NodeView>(&json).unwrap(), view);
}

#[test]
fn one_subject_cannot_displace_the_events_of_others() {
    let mut recorder = Recorder::default();
    for tick in 0..200 {
        let mut node = Node::new();
        node.at += tick;
        if tick == 0 {
            let [gpu, uuid] = gpu_labels(3);
            node.finding("visibility", Subject::gpu(&gpu, &uuid), "lost", Severity::Critical);
        }
        if tick % 2 == 0 {
            node.finding("leak", Subject::workload(&"flapping".into()), "leaking", Severity::Warning);
        }
        recorder.record(&node.frame());
    }
    let about = |workload: &str| recorder.events().filter(|event| event.workload == workload).count();
    assert_eq!((about("flapping"), about("")), (32, 2));
    assert!(recorder.events().is_sorted_by_key(|event| event.unix_seconds));
}

#[test]
fn the_severity_of_each_part_is_that_of_the_model() {
    let rank = |rule: Option<Rule>, states: &[&str]| {
        let forecast = rule.map(|rule| Forecast { rule, ..Forecast::default() });
        let own = states.iter().map(|state| Allocator { state: (*state).to_owned(), ..Allocator::default() });
        Rank { forecast, allocators: own.collect(), ..Rank::default() }
    };
    assert_eq!(rank(None, &[]).health(), Health::Unknown);
    assert_eq!(rank(None, &["fine"]).health(), Health::Unknown, "nothing is predicted of it");
    assert_eq!(rank(Some(Rule::None), &["", "fragmenting"]).health(), Health::Ok);
    assert_eq!(rank(Some(Rule::None), &["fine", "fragmented"]).health(), Health::Warning);
    assert_eq!(rank(Some(Rule::Full), &["fragmented"]).health(), Health::Critical);
    assert_eq!(rank(None, &[""]).allocator_state(), None);
    let worst = rank(None, &["fragmented", "fine", "fragmenting"]);
    assert_eq!(worst.allocator_state(), Some(("fragmented", Health::Warning)));

    let grows = |state: LeakState| Growth { state, ..Growth::default() };
    let workload = |state: Option<LeakState>, rank: Rank| {
        let own = Workload { growth: state.map(grows), ranks: vec![rank], ..Workload::default() };
        own.state().to_owned()
    };
    assert_eq!(workload(Some(LeakState::Steady), worst.clone()), "fragmented");
    assert_eq!(workload(None, worst.clone()), "fragmented");
    assert_eq!(workload(Some(LeakState::Leaking), worst), "leaking");
    assert_eq!(workload(Some(LeakState::Steady), rank(None, &["fragmenting"])), "steady");
    assert_eq!(workload(None, rank(None, &["fine"])), "");

    let xid = |severity: &str| Xid { severity: severity.to_owned(), ..Xid::default() }.health();
    let severities = ["critical", "warning", "info", "unknown"].map(xid);
    assert_eq!(severities, [Health::Critical, Health::Warning, Health::Ok, Health::Unknown]);

    let event = |failed| JobEvent {
        unix_seconds: 0.0,
        workload: String::new(),
        rank: String::new(),
        what: String::new(),
        failed,
        grown: false,
    };
    assert_eq!([true, false].map(|failed| event(failed).health()), [Health::Warning, Health::Ok]);

    let mut node = Node::new();
    node.source("pressure", Status::Unavailable, "the kernel has no PSI");
    node.source("process", Status::Failed, "permission denied");
    node.source("memory", Status::Ok, "");
    let view = node.view();
    let seen: Vec<_> = view.sources.iter().map(|source| (source.measured(), source.fails())).collect();
    assert_eq!(seen, [(Health::Unknown, false), (Health::Warning, true), (Health::Ok, false)]);

    assert_eq!(Node::new().view().no_problem(), "No problem is known.");
    assert!(NodeView::default().no_problem().ends_with("not known either."));
}

/// The grid of a GPU: what is concluded of it, and how the node and its job are then, on every screen that shows the model.
#[test]
fn every_part_of_the_view_has_the_health_of_the_conclusion() {
    for rule in Rule::ALL {
        for left in [None, Some(25.0), Some(600.0), Some(2_000.0), Some(90_000.0)] {
            for goes_on in [0.01, 0.9] {
                let mut node = Node::new();
                node.gpu(0, 70, "ok");
                node.job("slurm/4711", "alice", "llama70b", 0, Some(69));
                let [gpu, uuid] = gpu_labels(0);
                let known = node.forecast(&Subject::gpu(&gpu, &uuid));
                known.rule = rule;
                known.growth_continues = Some(goes_on);
                known.time_to_exhaustion = left.map(|p50| Tte { p10: p50 / 2.0, p50, p90: None });
                let expected = rule.health();
                let view = node.view();
                assert_eq!(view.gpus[0].health, expected, "{rule:?} {left:?}");
                let problem = view.problems.first().map(|problem| problem.health);
                let is_problem = expected >= Health::Warning || rule == Rule::FullWithoutGrowth;
                assert_eq!(problem, is_problem.then_some(expected), "{rule:?} {left:?}");
                let verdict = problem.unwrap_or(Health::Ok);
                assert_eq!(view.verdict.health, verdict, "{rule:?} {left:?}");
                let is_stated = left.is_some() && goes_on > 0.5;
                assert_eq!(view.gpus[0].forecast.as_ref().unwrap().stated().is_some(), is_stated);
                assert!(view.problems.iter().all(|problem| !problem.is_of_node));
            }
        }
    }
}

#[test]
fn a_rank_without_a_step_is_not_ok() {
    let stalled = |age: f64, phase: &str, state: &str| {
        let mut node = Node::new();
        node.gpu(0, 20, "ok");
        node.job("slurm/4711", "alice", "llama70b", 0, Some(19));
        let labels: [Label; 2] = ["slurm/4711".into(), "0".into()];
        node.batch.put_some(&training::STEP_LAST, &labels, Seconds::new(0.5));
        node.batch.put_some(&training::STEP_AGE, &labels, Seconds::new(age));
        node.batch.put(&training::PHASE_NOW, &[&labels[..], &[phase.into()]].concat(), Flag(true));
        node.batch.put(&training::CHECKPOINT, &[&labels[..], &[state.into()]].concat(), Flag(true));
        let view = node.view();
        assert!(view.problems.iter().all(|problem| !problem.is_of_node));
        (view.workload("slurm/4711").unwrap().health, view.verdict.sentence)
    };
    let (health, sentence) = stalled(216.0, "forward", "saved");
    assert_eq!(health, Health::Warning);
    assert!(sentence.starts_with("1 rank of slurm/4711 completed no step for 4 min"), "{sentence}");
    for (age, phase, state) in
        [(100.0, "forward", "saved"), (216.0, "Evaluate", "saved"), (216.0, "forward", "saving")]
    {
        assert!(stalled(age, phase, state).0 < Health::Warning, "{age} {phase} {state}");
    }
}

#[test]
fn a_view_survives_json_and_its_printable_form_has_no_control_characters() {
    let mut node = Node::new();
    node.gpu(0, 70, "ok");
    node.gpu(1, 0, "hung");
    node.job("slurm/4711", "alice", "llama\u{1b}[2J\n", 0, Some(69));
    node.leak();
    let view = view(&node.frame(), 0.0, None);
    let json = serde_json::to_string(&view).unwrap();
    assert_eq!(serde_json::from_str::<NodeView>(&json).unwrap(), view);
    let shown = view.printable();
    assert_eq!(shown.workloads[0].run, "llama\\x1b[2J\\n");
    assert!(!serde_json::to_string(&shown).unwrap().contains("\\u001b"));
}

#[test]
fn an_acknowledged_problem_stays_listed_and_does_not_count_until_it_is_worse() {
    let frame = |known: Health| {
        let mut node = Node::new();
        node.gpu(0, 72, "ok");
        node.job("slurm/4711", "alice", "llama70b", 0, Some(71));
        node.leak();
        let mut frame = node.frame();
        let [gpu, uuid] = gpu_labels(0);
        let acknowledgement = Acknowledgement { by: "bob".to_owned(), unix_seconds: began() };
        let id = ProblemId::new("memory", Subject::gpu(&gpu, &uuid));
        Arc::make_mut(&mut frame.acknowledged).add(id, known, acknowledgement);
        frame
    };
    let worse = view(&frame(Health::Warning), 0.5, None);
    assert_eq!(worse.verdict.health, Health::Critical);
    let [problem] = &worse.problems[..] else { panic!("{:?}", worse.problems) };
    assert_eq!(problem.acknowledging().unwrap(), "memwarden acknowledge memory/gpu/0");
    let known = view(&frame(Health::Critical), 0.5, None);
    assert_eq!(known.verdict.health, Health::Ok);
    let [problem] = &known.problems[..] else { panic!("{:?}", known.problems) };
    assert_eq!(
        (problem.health, problem.counted(), problem.acknowledging()),
        (Health::Critical, Health::Ok, None)
    );
    let said = &known.verdict.sentence;
    assert!(said.starts_with("Every known problem is acknowledged. GPU 0 ("), "{said}");
    assert!(said.contains(", acknowledged by bob at "), "{said}");
}

#[test]
fn the_largest_cgroups_are_those_that_say_more_than_their_parents() {
    let mut node = Node::new();
    for (path, gib, limit) in [
        ("/", 20, None),
        ("/user.slice", 12, None),
        ("/user.slice/user-1000.slice", 11, Some(16)),
        ("/system.slice", 8, None),
        ("/system.slice/a.service", 3, None),
        ("/system.slice/b.service", 3, Some(4)),
    ] {
        node.batch.put(&crate::catalog::cgroup::USAGE, &[path.into()], Bytes::new(gib * GIB));
        let limit = limit.map(|gib: u64| Bytes::new(gib * GIB));
        node.batch.put_some(&crate::catalog::cgroup::LIMIT, &[path.into()], limit);
    }
    let table = node.view().cgroup_table();
    let rows: Vec<Vec<String>> =
        table.rows.iter().map(|row| row.cells.iter().map(|cell| cell.text.clone()).collect()).collect();
    expect_test::expect![[r#"
        [
            [
                "/user.slice/user-1000.slice",
                "11.0 GiB",
                "16.0 GiB",
            ],
            [
                "/system.slice",
                "8.0 GiB",
                "–",
            ],
            [
                "/system.slice/a.service",
                "3.0 GiB",
                "–",
            ],
            [
                "/system.slice/b.service",
                "3.0 GiB",
                "4.0 GiB",
            ],
        ]
    "#]]
    .assert_debug_eq(&rows);
}
