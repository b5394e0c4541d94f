//! The ends that are kept, counted and restored.

use super::*;

#[test]
fn a_state_with_the_highest_number_is_restored() {
    let mut node = Node::new(&[(11, "train", None)]);
    let end = serde_json::to_string(&[End { number: u64::MAX, ..End::default() }]).unwrap();
    node.ends.restore(&end).unwrap();
    let ends = node.end(&[11], |batch| exit(batch, 11, 9));
    assert_eq!(ends.len(), 2);
}

#[test]
fn an_invalid_saved_end_costs_no_other_one() {
    let mut node = Node::new(&[(11, "train", None)]);
    let end = serde_json::to_string(&End { number: 7, ..End::default() }).unwrap();
    let saved = format!("[{end}, {{\"number\": \"x\"}}, {end}]");
    assert!(node.ends.restore(&saved).is_err(), "it is reported");
    assert_eq!(node.end(&[11], |batch| exit(batch, 11, 9)).len(), 3);
}

#[test]
fn a_run_that_keeps_dying_of_the_same_cause_is_counted() {
    let mut node = Node::new(&[]);
    let mut repeated = Vec::new();
    for (pid, (status, is_kill)) in (11..).zip([(9, true), (9, true), (9, true), (0, false), (9, true)]) {
        node.running = vec![(pid, "train", Some("0"))];
        node.tick(|_| {});
        node.end(&[pid], |batch| {
            exit(batch, pid, status);
            let victim = OomVictim {
                pid: Some(pid),
                comm: "python3".into(),
                uid: Some(1000),
                process: Some(Node::key(pid)),
                cgroup: Label::default(),
                limit_cgroup: "/jobs".into(),
                scope: OomScope::Cgroup,
                ..OomVictim::default()
            };
            batch.facts.oom_victims.extend(is_kill.then_some(victim));
        });
        let families = node.last.batch.families().iter();
        let points = families.filter(|family| family.desc.name == metrics::REPEATED.desc.name);
        let points = points.flat_map(|family| &family.points);
        repeated.push(points.map(|point| (point.labels[2].to_string(), point.value)).collect::<Vec<_>>());
    }
    let count = |value| vec![("ada".to_owned(), value)];
    assert_eq!(repeated, [vec![], count(2.0), count(3.0), vec![], vec![]]);
}

#[test]
fn a_run_that_nobody_starts_again_is_not_counted_for_ever() {
    let end = |unix_seconds| {
        let cause = EndCause::CgroupLimit;
        Arc::new(End { unix_seconds, cause, retry: cause.retry(), is_whole: true, ..End::default() })
    };
    let ends = [end(1_000.0), end(2_000.0)];
    assert_eq!([2_001.0, 5_599.0, 5_601.0].map(|unix| repeated(&ends, unix).len()), [1, 1, 0]);
}

#[test]
fn a_user_with_many_ends_displaces_its_own() {
    let mut ends = Ends::default();
    ends.keep(End { user_id: 1001, cause: EndCause::Finished, ..End::default() });
    for number in 0..1_000 {
        ends.keep(End { user_id: 1002, number, cause: EndCause::Failed, ..End::default() });
    }
    let of = |user| ends.ends.iter().filter(|end| end.user_id == user).count();
    assert_eq!((of(1001), of(1002)), (1, MOST - 1));
}

#[test]
fn the_ends_of_users_without_a_counter_of_their_own_are_counted_together() {
    let mut node = Node::new(&[(11, "train", Some("0"))]);
    for user in 0..MOST_USERS {
        node.ends.counts.entry(format!("user{user}").into()).or_default();
    }
    node.ends.counts.remove(&Label::from("ada"));
    node.tick(|_| {});
    node.end(&[11], |batch| exit(batch, 11, 9));
    let counted =
        |user: &str| node.ends.counts.get(&Label::from(user)).map(|counts| counts.iter().sum::<u64>());
    assert_eq!([counted("ada"), counted(""), counted("user0")], [None, Some(1), Some(0)]);
}

#[test]
fn ends_of_processes_without_a_workload_are_counted_from_zero() {
    let mut node = Node::new(&[]);
    node.tick(|_| {});
    let families = node.last.batch.families().iter();
    let counts: Vec<_> = families
        .filter(|family| family.desc.name == metrics::ENDS.desc.name)
        .flat_map(|family| &family.points)
        .map(|point| (point.labels[0].as_str(), point.value))
        .collect();
    assert_eq!(counts, [("", 0.0); EndCause::ALL.len()]);
}

#[test]
fn ends_are_bounded_and_survive_a_restart() {
    let mut node = Node::new(&[]);
    for round in 0..300_u32 {
        let name: &'static str = if round == 0 { "first" } else { "other" };
        node.running = vec![(11 + round, name, Some("0"))];
        node.tick(|_| {});
        node.end(&[11 + round], |batch| exit(batch, 11 + round, if round == 0 { 0x100 } else { 0 }));
    }
    let ends = Arc::clone(&node.last.outlook.ends);
    // Those that finished are removed first.
    assert_eq!((ends.len(), ends[0].workload.as_str()), (MOST, "first"));
    let mut text = Vec::new();
    node.ends.save().unwrap()(&mut text).unwrap();
    let mut later = Node::new(&[(9_999, "train", None)]);
    later.end(&[9_999], |batch| exit(batch, 9_999, 9));
    later.ends.restore(std::str::from_utf8(&text).unwrap()).unwrap();
    later.tick(|_| {});
    let known = &later.last.outlook.ends;
    assert_eq!((known.len(), known.last().unwrap().number), (MOST, 301));
}
