//! The verdict, and the health of each part.

use super::*;

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
    let mut failing = Node::new();
    failing.finding("visibility", Subject::source("vmstat"), "failed", Severity::Warning);
    let stated: Vec<_> =
        failing.view().problems.iter().map(|own| (own.health, own.is_unmeasured())).collect();
    assert_eq!(stated, [(Health::Warning, true)]);
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
