//! Problems, their owners and their words.

use super::*;

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
fn a_full_tmpfs_is_a_condition_of_no_node_because_users_can_fill_it() {
    for (workload, has_owner) in [("", false), ("slurm/4711", true)] {
        let mut node = Node::new();
        node.job("slurm/4711", "alice", "llama70b", 0, None);
        let subject = Subject::tmpfs(&workload.into(), &"/dev/shm".into());
        node.finding("exhaustion", subject, "full", Severity::Critical);
        let problem =
            node.view().problems.into_iter().find(|problem| problem.id.kind.as_str() == "exhaustion");
        let problem = problem.unwrap();
        assert_eq!((problem.is_of_node, problem.owner.is_some()), (false, has_owner), "{problem:?}");
        assert_eq!(problem.health, Health::Critical);
    }
}

#[test]
fn a_user_with_many_problems_hides_none_of_the_node_or_of_others() {
    let mut node = Node::new();
    for (name, user) in [("flood", "mallory"), ("slurm/4711", "alice")] {
        node.job(name, user, "", 0, None);
    }
    for pid in 0..260_u32 {
        let stated = Subject::allocator(&"flood".into(), &pid.into(), &"".into());
        node.finding("exhaustion", stated, "full", Severity::Critical);
    }
    node.finding("fragmentation", Subject::zone(&"0".into(), &"Normal".into()), "low", Severity::Warning);
    let own = Subject::allocator(&"slurm/4711".into(), &"9".into(), &"".into());
    node.finding("exhaustion", own, "full", Severity::Critical);
    let view = node.view();
    assert_eq!((view.problems.len(), view.problems_left_out, view.verdict.more), (200, 62, 261));
    let worst = &view.problems[0];
    assert!(worst.is_of_node && worst.health == Health::Warning, "what a process states is worse: {worst:?}");
    let of = |user: &str| {
        let has = |problem: &&Problem| problem.owner.as_ref().is_some_and(|owner| owner.user == user);
        view.problems.iter().filter(has).count()
    };
    assert_eq!((of("mallory"), of("alice")), (198, 1));
    let mut shown = view.problems.clone();
    assert_eq!(Problem::cut(&mut shown, 20), 180);
    assert!(shown[0].is_of_node && shown.iter().any(|own| own.workload.as_deref() == Some("slurm/4711")));
}

#[test]
fn what_only_a_process_states_is_not_critical() {
    for (gpu, gib, health) in
        [("", None, Health::Warning), ("", Some(69), Health::Critical), ("0", None, Health::Critical)]
    {
        let mut node = Node::new();
        node.gpu(0, 70, "ok");
        node.job("slurm/4711", "alice", "", 0, gib);
        let subject = Subject::allocator(&"slurm/4711".into(), &"4711".into(), &gpu.into());
        node.assessed(subject.clone(), 79, 80, Rule::Full);
        node.finding("exhaustion", subject, "full", Severity::Critical);
        let view = node.view();
        assert_eq!((view.problems.len(), view.verdict.health), (1, health), "{:?}", view.problems);
    }
}

#[test]
fn device_memory_of_the_cgroup_of_a_workload_has_its_owner() {
    let mut node = Node::new();
    node.job("slurm/4711", "alice", "llama70b", 0, None);
    let subject = Subject::device_memory(&"/slurm/4711".into(), &"drm/0000:03:00.0/vram".into());
    node.assessed(subject.clone(), 8, 8, Rule::Full);
    node.finding("exhaustion", subject, "full", Severity::Critical);
    let view = node.view();
    let problem = view.problems.iter().find(|problem| problem.id.kind.as_str() == "exhaustion").unwrap();
    assert_eq!(problem.workload.as_deref(), Some("slurm/4711"));
    assert!(problem.owner.is_some() && !problem.is_of_node, "{problem:?}");
    let sheet = format!("{:?}", view.sheet(&Link::Workload("slurm/4711".to_owned()), []));
    assert!(sheet.contains("drm/0000:03:00.0/vram: "), "{sheet}");
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
fn a_full_instance_is_a_problem_of_its_own_on_a_gpu_that_is_nearly_empty() {
    let view = |used_gib, rule| {
        let mut node = Node::new();
        node.gpu(0, 10, "ok");
        let labels = ["0", "MIG-9", "9", "0"].map(Label::from);
        let named = [&labels[..], &["GPU-0".into(), "1g.10gb".into()]].concat();
        node.batch.put(&gpu::MIG_INFO, &named, Flag(true));
        node.batch.put(&gpu::MIG_TOTAL, &labels, Bytes::new(10 * GIB));
        node.batch.put(&gpu::MIG_USED, &labels, Bytes::new(used_gib * GIB));
        node.assessed(Subject::gpu_instance(&"0".into(), &"MIG-9".into(), &"9".into()), used_gib, 10, rule);
        node.view()
    };
    let full = view(10, Rule::FullAfterGrowth);
    says(&full, Health::Critical, "MIG instance 9 on GPU 0 has filled up (100 % used).");
    assert_eq!((full.gpus.len(), full.gpus[0].health), (1, Health::Critical));
    assert_eq!((full.gpus[0].mig[0].used, full.problems.len()), (Some(10.0 * 1_073_741_824.0), 1));
    assert_eq!(view(10, Rule::FullWithoutGrowth).verdict.health, Health::Unknown);
    let healthy = view(2, Rule::None);
    assert!(healthy.problems.is_empty() && healthy.gpus[0].health == Health::Ok);
}

#[test]
fn an_instance_without_a_parent_is_of_no_gpu_without_a_uuid() {
    let mut node = Node::new();
    node.batch.put(&gpu::STATUS, &["1".into(), Label::default(), "ok".into()], Flag(true));
    let named = ["0", "MIG-9", "9", "0", "", "1g.10gb"].map(Label::from);
    node.batch.put(&gpu::MIG_INFO, &named, Flag(true));
    let gpus = node.view().gpus;
    assert_eq!((gpus.len(), gpus[0].uuid.as_str(), gpus[0].mig.len()), (1, "", 0));
}
