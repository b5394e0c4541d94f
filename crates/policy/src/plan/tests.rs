//! Plans as people read them, and what no plan ever has.

use std::collections::BTreeSet;

use expect_test::{Expect, expect};

use super::victim::ProcessInfo;
use super::*;
use crate::model::ids::ProcessKey;
use crate::model::time::Timestamp;
use crate::model::units::{Amount, Bytes};
use crate::options::tests::parse;
use crate::policy::{Aged, Reading, Resource, State};
use crate::types::step::Group;

fn target(more: &str) -> Target {
    let text = format!(
        "protection: {{mode: enforce, targets: [{{name: train, workload: train, allow_users: [ada]{more}}}]}}"
    );
    parse(&text).unwrap().targets.remove(0)
}

fn roster(target: &Target, own_group: bool) -> Roster {
    let process = |pid: u32, parent: u32, mib: u64| ProcessInfo {
        key: ProcessKey { pid, start: u64::from(pid) },
        parent,
        resident: Bytes::new(mib << 20),
        group: None,
        rank: false,
    };
    let processes = [process(11, 10, 90), process(12, 11, 4000), process(13, 11, 4100), process(14, 12, 500)];
    let group = own_group.then(|| Group { path: "/jobs/a".into(), inode: 7 });
    Roster::new(&processes, target.victims, group)
}

fn transition(from: State, to: State) -> Transition {
    let at = Timestamp::from_secs(1);
    Transition {
        at,
        from,
        to,
        reason: Reason::Alert,
        incident: 1,
        ask: to == State::Checkpoint,
        counts: false,
    }
}

fn plan(target: &Target, transition: &Transition, own_group: bool) -> Plan {
    plan_on(target, transition, own_group, &Observed::default())
}

fn plan_on(target: &Target, transition: &Transition, own_group: bool, observed: &Observed) -> Plan {
    let notification = Arc::from("{}");
    let mut plan = Plan::default();
    if let Some(stage) = stage_of(transition) {
        let roster = roster(target, own_group);
        plan.make(&PlanInput {
            id: TargetId(0),
            target,
            transition,
            observed,
            stage,
            roster: &roster,
            notification: Some(&notification),
        });
    }
    plan
}

#[track_caller]
fn check(target: &Target, own_group: bool, expected: Expect) {
    let escalation = [
        State::Ok,
        State::Warn,
        State::Soft,
        State::Checkpoint,
        State::Term,
        State::Kill,
        State::Verify,
        State::Verify,
        State::Cooldown,
    ];
    let mut notification = String::new();
    for pair in escalation.windows(2) {
        let plan = plan(target, &transition(pair[0], pair[1]), own_group);
        notification.push_str(&format!("{} → {}\n", pair[0].label(), pair[1].label()));
        for Planned { step, unless } in plan.steps() {
            let unless = unless.map_or(String::new(), |place| format!(" unless {place}"));
            notification.push_str(&format!("  {}{unless}\n", step.work));
        }
    }
    expected.assert_eq(&notification);
}

#[test]
fn the_plain_ladder() {
    check(
        &target(""),
        false,
        expect![[r#"
            ok → warn
            warn → soft
              write the incident record
            soft → checkpoint
              write the incident record
              send signal 10 to pid 11, if it has a handler
              send signal 10 to pid 12, if it has a handler unless 1
              send signal 10 to pid 13, if it has a handler unless 1
              send signal 10 to pid 14, if it has a handler unless 2
            checkpoint → term
              write the incident record
              send signal 15 to pid 14
              send signal 15 to pid 13
              send signal 15 to pid 12
              send signal 15 to pid 11
              wait up to 10 s for 4 processes to end
            term → kill
              kill 4 processes and their descendants
              release the memory of 4 processes
              wait up to 18 s for 4 processes to end
              write the incident record
            kill → verify
            verify → verify
            verify → cooldown
        "#]],
    );
}

#[test]
fn with_a_group_a_hook_and_a_webhook() {
    let more = ", hook: {program: /bin/save, wait: 2s}, freeze: true, webhook: \"http://x/\", checkpoint: {file: /tmp/saved}";
    check(
        &target(more),
        true,
        expect![[r#"
            ok → warn
              thaw /jobs/a
              call webhook http://x
            warn → soft
              write the incident record
              freeze /jobs/a
              run /bin/save (at most 5 s)
              call webhook http://x
            soft → checkpoint
              write the incident record
              thaw /jobs/a
              send signal 10 to pid 11, if it has a handler
              send signal 10 to pid 12, if it has a handler unless 2
              send signal 10 to pid 13, if it has a handler unless 2
              send signal 10 to pid 14, if it has a handler unless 3
              wait up to 600 s for /tmp/saved
              call webhook http://x
            checkpoint → term
              write the incident record
              thaw /jobs/a
              send signal 15 to pid 14
              send signal 15 to pid 13
              send signal 15 to pid 12
              send signal 15 to pid 11
              wait up to 10 s for 4 processes to end
              call webhook http://x
            term → kill
              kill all processes in /jobs/a
              kill 4 processes and their descendants unless 0
              release the memory of 4 processes
              wait up to 18 s for 4 processes to end
              write the incident record
              call webhook http://x
            kill → verify
            verify → verify
              run /bin/save (at most 5 s)
              call webhook http://x
            verify → cooldown
              thaw /jobs/a
              call webhook http://x
        "#]],
    );
}

#[test]
fn only_the_largest() {
    check(
        &target(", victims: largest"),
        true,
        expect![[r#"
            ok → warn
            warn → soft
              write the incident record
            soft → checkpoint
              write the incident record
              send signal 10 to pid 11, if it has a handler
              send signal 10 to pid 12, if it has a handler unless 1
              send signal 10 to pid 13, if it has a handler unless 1
              send signal 10 to pid 14, if it has a handler unless 2
            checkpoint → term
              write the incident record
              send signal 15 to pid 13
              wait up to 10 s for 1 processes to end
            term → kill
              kill 1 processes and their descendants
              release the memory of 1 processes
              wait up to 14 s for 1 processes to end
              write the incident record
            kill → verify
            verify → verify
            verify → cooldown
        "#]],
    );
}

#[test]
fn a_return_from_blindness_repeats_nothing() {
    let back = Transition { reason: Reason::Fresh, ..transition(State::Blind, State::Term) };
    assert!(plan(&target(""), &back, true).steps().is_empty());
}

#[test]
fn a_limit_is_raised_for_a_shortage_below_it_where_the_host_has_memory() {
    let target = target(", raise: {to: 60GiB, by: 8GiB, keep_free: 10%}");
    let gib = |count: u64| Bytes::new(count << 30);
    let observed = |available| {
        let mut observed = Observed::default();
        for (resource, headroom, total) in [(Resource::Host, available, 100), (Resource::Cgroup, 1, 40)] {
            let reading = Reading::of(crate::model::room::Room::new(gib(headroom), gib(total)));
            observed.readings[resource.place()] = Some(Aged::now(reading));
        }
        observed.groups.add(9);
        observed.groups.set_least(9);
        observed
    };
    let raised = |reason, own_group, observed: &Observed| {
        let from = if reason == Reason::SaveTooLarge { State::Soft } else { State::Ok };
        let transition = Transition { reason, ..transition(from, State::Soft) };
        let plan = plan_on(&target, &transition, own_group, observed);
        plan.steps().iter().map(|planned| planned.step.work.clone()).find(|work| work.label() == "raise")
    };
    let cgroup = Reason::Level(Resource::Cgroup);
    let group = Group { path: "/jobs/a".into(), inode: 7 };
    let work = Work::Raise { group, limited: 9, from: gib(40), to: gib(48) };
    assert_eq!(raised(cgroup, true, &observed(50)), Some(work));
    assert_eq!(raised(Reason::Forecast, true, &observed(50)), None, "of which resource is unknown");
    assert_eq!(
        raised(cgroup, true, &observed(13)).map(|work| work.to_string()).as_deref(),
        Some("raise the memory limit of /jobs/a from 40.0 GiB to 42.0 GiB")
    );
    let saving = |reason, save: u64| {
        let mut observed = observed(50);
        observed.save[Resource::Cgroup.place()] = Some(gib(save));
        match raised(reason, true, &observed) {
            Some(Work::Raise { to, .. }) => to.saturating_sub(gib(40)).get(),
            None => 0,
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(saving(cgroup, 7), gib(8).get(), "a step of the operator is enough");
    // Also in an incident that a forecast began. 1 GiB is left, and 3 % of the raised limit must stay.
    for reason in [cgroup, Reason::SaveTooLarge] {
        let raised = saving(reason, 15);
        let left = Bytes::new(raised).saturating_add(gib(1)).saturating_sub(gib(15));
        let hard = Amount::Share(0.03).of(gib(40).saturating_add(Bytes::new(raised)));
        assert!(left > hard && left < hard.saturating_add(Bytes::new(2 << 20)), "{left} of {hard}");
    }
    assert_eq!(saving(cgroup, 30), gib(20).get(), "not above `to`");
    assert_eq!(raised(Reason::SaveTooLarge, true, &observed(50)), None, "this limit is not what it lacks");
    assert_eq!(raised(cgroup, true, &observed(10)), None, "the host has no memory to give");
    assert_eq!(raised(cgroup, false, &observed(50)), None, "others are in the group");
    assert_eq!(raised(Reason::Level(Resource::Host), true, &observed(50)), None);
    assert_eq!(raised(Reason::Level(Resource::Gpu), true, &observed(50)), None);
    assert_eq!(raised(cgroup, true, &Observed::default()), None);
}

proptest::proptest! {
    #[test]
    fn no_plan_names_anybody_outside_the_roster(
        from in proptest::sample::select(&State::ALL[..]), to in proptest::sample::select(&State::ALL[..]),
        own_group: bool, largest: bool,
    ) {
        let target = target(if largest { ", victims: largest, freeze: true, hook: {program: /x, wait: 1s}" } else { "" });
        let roster = roster(&target, own_group);
        let known: BTreeSet<ProcessKey> =
            roster.largest.iter().copied().chain(roster.ask.iter().map(|asked| asked.key)).collect();
        let transition = transition(from, to);
        let plan = plan(&target, &transition, own_group);
        for Planned { step, unless } in plan.steps() {
            proptest::prop_assert!(unless.is_none_or(|place| usize::from(place) < plan.steps().len()));
            let named: Vec<ProcessKey> = match &step.work {
                Work::Signal { process, .. } => vec![*process],
                Work::KillTree { roots: keys } | Work::Release { processes: keys } => keys.to_vec(),
                _ => Vec::new(),
            };
            proptest::prop_assert!(named.iter().all(|key| known.contains(key)));
            if let Work::KillGroup { group } | Work::Freeze { group } = &step.work {
                proptest::prop_assert_eq!(Some(group), roster.group.as_ref());
            }
            let ends = matches!(step.work, Work::KillGroup { .. } | Work::KillTree { .. } | Work::Release { .. });
            proptest::prop_assert!(!ends || to == State::Kill);
        }
    }
}
