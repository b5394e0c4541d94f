//! Maximum numbers of subjects, and their shares per user.

use super::*;

#[test]
fn subjects_are_bounded_and_those_that_end_are_forgotten() {
    let mut analyzer = build(&leak::REGISTRATION);
    let put = |batch: &mut Batch, pids: std::ops::Range<u32>| {
        for pid in pids {
            let labels = ["train".into(), pid.into(), "python".into()];
            bytes(batch, &workload::metrics::PROCESS_RSS, &labels, GIB);
        }
    };
    let analysis = run(&mut *analyzer, 0, 3, |_, batch| put(batch, 0..2_500));
    assert_eq!(value(&analysis, "memwarden_leak_subjects", &[]), Some(2_000.0));
    assert_eq!(value(&analysis, "memwarden_leak_subjects_omitted", &[]), Some(500.0));
    let analysis = run(&mut *analyzer, 3, 5, |_, batch| put(batch, 0..10));
    assert_eq!(value(&analysis, "memwarden_leak_subjects", &[]), Some(10.0));
    assert_eq!(value(&analysis, "memwarden_leak_subjects_omitted", &[]), Some(0.0));
}

/// Whose subjects are left out, by what limit.
fn left_out(analysis: &Analysis) -> Vec<(&'static str, Option<u32>, u64, u64)> {
    analysis
        .shortages
        .iter()
        .map(|shortage| (shortage.limit, shortage.user, shortage.left_out, shortage.most))
        .collect()
}

#[test]
fn one_user_with_many_processes_leaves_places_to_anothers() {
    const ALICE: u32 = 61_001;
    const MALLORY: u32 = 61_002;
    let mut analyzer = build(&leak::REGISTRATION);
    // In the order of their names, the other user's come last.
    let put = |batch: &mut Batch, mallorys: u32, alices: u32| {
        for (name, user, pids) in
            [("a-mallory", MALLORY, 0..mallorys), ("z-alice", ALICE, 9_000..9_000 + alices)]
        {
            for pid in pids {
                let labels = [name.into(), pid.into(), "python".into()];
                bytes(batch, &workload::metrics::PROCESS_RSS, &labels, GIB);
                let mut member = Membership::named(ProcessKey { pid, start: 1 }, name);
                member.workload = Arc::new(Workload { user, ..(*member.workload).clone() });
                batch.facts.workload_of.push(member);
            }
        }
    };
    let analysis = run(&mut *analyzer, 0, 3, |_, batch| put(batch, 2_500, 0));
    assert_eq!(left_out(&analysis), [("leak_subjects", Some(MALLORY), 500, 2_000)]);
    // Those that were followed before yield to the other user's.
    let analysis = run(&mut *analyzer, 3, 5, |_, batch| put(batch, 2_500, 30));
    assert_eq!(left_out(&analysis), [("leak_subjects", Some(MALLORY), 530, 2_000)]);
    assert_eq!(value(&analysis, "memwarden_leak_subjects", &[]), Some(2_000.0));
    assert_eq!(value(&analysis, "memwarden_leak_subjects_omitted", &[]), Some(530.0));
    assert!(value(&analysis, "memwarden_leak_state", &["z-alice", "9029"]).is_some(), "the last of hers");
    let analysis = run(&mut *analyzer, 5, 6, |_, batch| put(batch, 1_970, 30));
    assert!(left_out(&analysis).is_empty());
}

#[test]
fn one_user_with_many_groups_leaves_places_to_the_host_and_to_anothers() {
    const ALICE: u32 = 61_001;
    const MALLORY: u32 = 61_002;
    let mut analyzer = build(&exhaustion::REGISTRATION);
    let analysis = run(&mut *analyzer, 0, 3, |second, batch| {
        growing_host(second, batch);
        let mut users = std::collections::BTreeMap::new();
        let mallorys = (0..1_980).map(|number| (format!("/a/{number}"), MALLORY));
        for (path, user) in mallorys.chain((0..20).map(|number| (format!("/z/{number}"), ALICE))) {
            let label = Label::from(path);
            bytes(batch, &cgroup::metrics::LIMIT, std::slice::from_ref(&label), 4.0 * GIB);
            bytes(batch, &cgroup::metrics::WORKING_SET, std::slice::from_ref(&label), GIB);
            users.insert(label, user);
        }
        batch.facts.cgroup_users = Arc::new(users);
    });
    assert_eq!(left_out(&analysis), [("exhaustion_subjects", Some(MALLORY), 1, 2_000)]);
    let headroom = |label| value(&analysis, "memwarden_forecast_headroom_bytes", &[label]);
    assert!(headroom("host").is_some() && headroom("/z/19").is_some() && headroom("/a/0").is_some());
}

#[test]
fn a_workload_is_remembered_for_as_long_as_it_was_followed() {
    let mut analyzer = build(&leak::REGISTRATION);
    let put = |batch: &mut Batch, names: std::ops::Range<u32>| {
        for name in names {
            let labels = [format!("tree-{name}").as_str().into()];
            bytes(batch, &workload::metrics::RSS, &labels, GIB);
        }
    };
    // One that lasts, and ten new ones every second that live for five.
    let analysis = run(&mut *analyzer, 0, 600, |second, batch| {
        put(batch, 0..1);
        put(batch, 1 + second * 10..1 + (second + 5) * 10);
    });
    let followed = value(&analysis, "memwarden_leak_subjects", &[]);
    assert!(followed.is_some_and(|followed| (51.0..=102.0).contains(&followed)), "{followed:?}");
    // The one that lasted is remembered, and yields to new ones where there is no room.
    let analysis = run(&mut *analyzer, 600, 700, |_, batch| put(batch, 9_000..9_001));
    assert_eq!(value(&analysis, "memwarden_leak_subjects", &[]), Some(2.0));
    let analysis = run(&mut *analyzer, 700, 702, |_, batch| put(batch, 10_000..12_000));
    assert_eq!(value(&analysis, "memwarden_leak_subjects", &[]), Some(2_000.0));
    assert_eq!(value(&analysis, "memwarden_leak_subjects_omitted", &[]), Some(0.0));
}
