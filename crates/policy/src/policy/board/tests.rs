//! Which of several jobs is asked, and which is ended.

use super::super::observed::{Ack, Aged, Members, Observed, Reading, Resource};
use super::super::tests::{GIB, limits};
use super::super::transition::Reason;
use super::*;
use crate::model::checkpoint::CheckpointState;
use crate::model::room::Room;
use crate::model::units::Bytes;
use crate::policy::Limits;
use std::time::Duration;

/// Less memory than the hard level is left below the limit.
fn short() -> Observed {
    let (headroom, total) = (Bytes::ZERO, Bytes::new(8 * GIB));
    let mut observed = Observed { fit: true, gives: Some(Bytes::new(8 * GIB)), ..Observed::default() };
    observed.readings[Resource::Cgroup.place()] = Some(Aged::now(Reading::of(Room::new(headroom, total))));
    observed.members = Some(Aged::now(Members { count: 1, catching: None }));
    observed
}

#[test]
fn a_job_whose_end_frees_nothing_of_its_group_is_asked_to_save_and_not_ended() {
    // Whether the limit is that of a group, and what of it the end of the job gives back.
    let reached = |is_group: bool, gives: u64| {
        let mut observed = Observed { gives: Some(Bytes::new(gives)), ..short() };
        observed.members = Some(Aged::now(Members { count: 1, catching: Some(1) }));
        if is_group {
            observed.groups.add(7);
            observed.groups.set_least(7);
        }
        let mut board = Board::new(1, [50], 50);
        let begun = Timestamp::from_secs(100);
        let escalation = Escalation::new(limits(), begun);
        board.set_slot(0, Some(Occupied { target: 0, user: Some(7), escalation }));
        let steps = (0..600).filter_map(|tenths| {
            let moved = board.step(0, begun.plus(Duration::from_millis(100 * tenths)), &observed)?;
            Some((moved.ask, matches!(moved.to, State::Term | State::Kill)))
        });
        let steps: Vec<_> = steps.collect();
        (steps.iter().any(|(ask, _)| *ask), steps.iter().any(|(_, ends)| *ends))
    };
    assert_eq!(reached(true, 0), (true, false), "page tables, pipes or files in memory fill it");
    assert!(reached(true, 8 * GIB).1);
    assert!(reached(false, 0).1, "a limit of the job's processes counts nothing else");
}

#[test]
fn what_was_ended_before_counts_on() {
    let (now, before) = (Timestamp::from_secs(4000), Timestamp::from_secs(1000));
    let mut board = Board::new(0, [3, 3], 5);
    board.recall(1, None, before);
    board.recall(usize::MAX, None, before);
    assert_eq!((board.left(0, now), board.left(1, now), board.host_left(now)), (3, 2, 3));
    assert_eq!(board.host_left(Timestamp::from_secs(4600)), 5);
}

#[test]
fn of_two_jobs_on_a_host_the_one_that_grows_is_ended_first() {
    let now = |rate| Some(Aged::now(rate));
    let old = Some(Aged::of(1e6, Duration::from_secs(60)));
    for (growth, ends) in [
        ([now(0.0), now(1e6)], 1),
        ([now(1e6), now(0.0)], 0),
        // By what its end gives back, the first does not grow.
        ([None, now(1e6)], 1),
        ([now(0.0), old], 0),
    ] {
        let mut now = Timestamp::from_secs(100);
        let mut levels = limits().levels;
        levels.swap(Resource::Cgroup.place(), Resource::Host.place());
        let of = Limits { levels, ..limits() };
        let mut board = Board::new(2, [3], 5);
        for slot in 0..2 {
            let escalation = Escalation::new(of.clone(), now);
            board.set_slot(slot, Some(Occupied { target: 0, user: None, escalation }));
        }
        let mut observed = Observed { fit: true, gives: Some(Bytes::new(8 * GIB)), ..Observed::default() };
        let reading = Reading::of(Room::new(Bytes::new(GIB), Bytes::new(8 * GIB)));
        observed.readings[Resource::Host.place()] = Some(Aged::now(reading));
        observed.members = Some(Aged::now(Members { count: 1, catching: Some(1) }));
        let mut ended = None;
        for _ in 0..100 {
            now = now.plus(Duration::from_secs(1));
            observed.ack = Some(Ack { kind: CheckpointState::Saved, at: now });
            for (slot, growth) in growth.into_iter().enumerate() {
                let moved = board.step(slot, now, &Observed { growth, ..observed });
                ended = ended.or(moved.filter(|moved| moved.to == State::Term).map(|_| slot));
            }
        }
        assert_eq!(ended, Some(ends), "{growth:?}");
    }
}

#[test]
fn a_job_that_says_that_it_saves_has_no_other_job_ended_in_its_place() {
    let mut now = Timestamp::from_secs(100);
    let mut levels = limits().levels;
    levels.swap(Resource::Cgroup.place(), Resource::Host.place());
    let mut board = Board::new(2, [3], 5);
    for (slot, user) in [(0, 1001), (1, 1002)] {
        let escalation = Escalation::new(Limits { levels, ..limits() }, now);
        board.set_slot(slot, Some(Occupied { target: 0, user: Some(user), escalation }));
    }
    // No forecast knows how fast they grow.
    let mut observed = Observed { fit: true, ..Observed::default() };
    let reading = Reading::of(Room::new(Bytes::new(GIB), Bytes::new(8 * GIB)));
    observed.readings[Resource::Host.place()] = Some(Aged::now(reading));
    observed.members = Some(Aged::now(Members { count: 1, catching: Some(1) }));
    let mut ended = None;
    for second in 0..3_000_u64 {
        now = now.plus(Duration::from_secs(1));
        for (slot, kind, gives) in
            [(0, CheckpointState::Saved, 3 * GIB), (1, CheckpointState::Saving, GIB + second * (1 << 20))]
        {
            let (ack, gives) = (Some(Ack { kind, at: now }), Some(Bytes::new(gives)));
            let moved = board.step(slot, now, &Observed { ack, gives, ..observed });
            ended = ended.or(moved.filter(|moved| moved.to == State::Term).map(|_| slot));
        }
    }
    assert_eq!(ended, Some(1), "the one that grows, whatever it says");
}

/// Which of some jobs are ended at the hard level of the host, of whose 64 GiB one is left; each gives back so much, and a
/// victim so much of it, with the growth of each.
fn ended(gives: &[u64], returns: u64, growth: &[f64]) -> Vec<usize> {
    let mut now = Timestamp::from_secs(100);
    let mut levels = limits().levels;
    let cgroup = levels[Resource::Cgroup.place()].take();
    levels[Resource::Host.place()] = cgroup;
    let of = Limits { levels, max_kills_per_hour: 50, ..limits() };
    let mut board = Board::new(gives.len(), [50], 50);
    for slot in 0..gives.len() {
        let escalation = Escalation::new(of.clone(), now);
        board.set_slot(slot, Some(Occupied { target: 0, user: None, escalation }));
    }
    // 512 MiB are left, and 1.5 GiB are lacking below the soft level.
    let (mut left, mut ended) = (GIB / 2, Vec::new());
    for _ in 0..600 {
        now = now.plus(Duration::from_millis(100));
        for (slot, gives) in gives.iter().enumerate() {
            let gone = ended.contains(&slot);
            let mut observed = Observed { fit: true, gives: Some(Bytes::new(*gives)), ..Observed::default() };
            observed.absent[Resource::Cgroup.place()] = true;
            observed.readings[Resource::Host.place()] =
                Some(Aged::now(Reading::of(Room::new(Bytes::new(left), Bytes::new(64 * GIB)))));
            observed.growth = growth.get(slot).map(|growth| Aged::now(*growth));
            observed.members = Some(Aged::now(Members { count: u32::from(!gone), catching: None }));
            observed.alive = gone.then_some(0);
            let moved = board.step(slot, now, &observed);
            if moved.is_some_and(|moved| moved.to == State::Kill) {
                ended.push(slot);
                left += returns;
            }
        }
    }
    ended
}

#[test]
fn a_job_is_ended_only_where_that_helps() {
    const MIB: u64 = 1 << 20;
    assert!(ended(&[30 * MIB; 4], 30 * MIB, &[]).is_empty(), "all together hold a tenth of what is lacking");
    assert_eq!(ended(&[30 * MIB, 4 * GIB], 4 * GIB, &[]), [1], "only the large one holds what is lacking");
    assert_eq!(ended(&[GIB; 3], GIB, &[]), [1], "each gives back its share, once what others hold is known");
}

#[test]
fn after_an_end_that_gave_nothing_back_only_a_job_that_grows_is_ended() {
    assert_eq!(ended(&[4 * GIB; 3], 0, &[]), [0]);
    assert_eq!(ended(&[4 * GIB; 3], 0, &[0.0, 0.0, 1e9]), [0, 2]);
}

#[test]
fn a_job_that_has_lost_processes_to_sigterm_is_ended_whole() {
    for (half_dead, expected) in [
        (Some(true), (State::Kill, Reason::HalfDead)),
        (Some(false), (State::Cooldown, Reason::Recovered)),
        (None, (State::Cooldown, Reason::Recovered)),
    ] {
        let mut now = Timestamp::from_secs(100);
        let mut board = Board::new(1, [3], 5);
        board.set_slot(
            0,
            Some(Occupied { target: 0, user: None, escalation: Escalation::new(limits(), now) }),
        );
        let mut moves = Vec::new();
        for _ in 0..1_000 {
            now = now.plus(Duration::from_millis(100));
            let ends = moves.iter().any(|(to, _)| *to == State::Term);
            let left = if ends { 6 * GIB } else { GIB };
            let mut observed = Observed { half_dead: half_dead.filter(|_| ends), ..short() };
            observed.readings[Resource::Cgroup.place()] =
                Some(Aged::now(Reading::of(Room::new(Bytes::new(left), Bytes::new(8 * GIB)))));
            observed.members = Some(Aged::now(Members { count: 2, catching: Some(1) }));
            observed.ack = Some(Ack { kind: CheckpointState::Saved, at: now });
            moves.extend(board.step(0, now, &observed).map(|moved| (moved.to, moved.reason)));
        }
        let term = moves.iter().position(|(to, _)| *to == State::Term).unwrap();
        assert_eq!(moves[term + 1], expected, "{moves:?}");
    }
}

#[test]
fn what_is_only_observed_uses_up_nothing_of_the_host() {
    let now = Timestamp::from_secs(100);
    let mut board = Board::new(2, [3, 3], 1);
    let escalation = |mode| Escalation::new(Limits { mode, ..limits() }, now);
    board.set_slot(0, Some(Occupied { target: 0, user: None, escalation: escalation(Mode::Observe) }));
    board.set_slot(1, Some(Occupied { target: 1, user: None, escalation: escalation(Mode::Enforce) }));
    let mut to = |slot| board.step(slot, now, &short()).map(|moved| moved.to);
    assert_eq!((to(0), to(1)), (Some(State::Kill), Some(State::Kill)));
    assert_eq!((board.left(0, now), board.left(1, now), board.host_left(now)), (2, 2, 0));
}

/// Two users' jobs of one target, in slots 0 and 1, both at their hard level.
fn two_users(now: Timestamp, limits: &Limits) -> Board {
    let mut board = Board::new(3, [3], 5);
    for (slot, user) in [(0, 1002), (1, 1001)] {
        let escalation = Escalation::new(limits.clone(), now);
        board.set_slot(slot, Some(Occupied { target: 0, user: Some(user), escalation }));
    }
    board
}

#[test]
fn one_user_does_not_use_up_the_hour_of_another() {
    let mut now = Timestamp::from_secs(100);
    let limits = Limits { verify_timeout: Duration::ZERO, cooldown: Duration::ZERO, ..limits() };
    let mut board = two_users(now, &limits);
    let mut ended = 0;
    // Mallory's jobs end one after the other; each has a new escalation.
    for _ in 0..6 {
        now = now.plus(Duration::from_secs(10));
        ended += u32::from(board.step(0, now, &short()).is_some_and(|moved| moved.to == State::Kill));
        let escalation = Escalation::new(limits.clone(), now);
        board.set_slot(0, Some(Occupied { target: 0, user: Some(1002), escalation }));
    }
    assert_eq!(ended, 2);
    assert_eq!(board.step(1, now, &short()).map(|moved| moved.to), Some(State::Kill), "Alice's job");
}

#[test]
fn users_who_come_late_end_no_more_jobs_than_the_host_allows() {
    let mut now = Timestamp::from_secs(100);
    let mut board = Board::new(1, [3, 3], 2);
    let mut ended = 0;
    // Each comes when the others before it are gone, and has a share of its own.
    for user in 1001..1011 {
        now = now.plus(Duration::from_secs(10));
        let escalation = Escalation::new(limits(), now);
        board.set_slot(0, Some(Occupied { target: (user % 2) as usize, user: Some(user), escalation }));
        ended += u32::from(board.step(0, now, &short()).is_some_and(|moved| moved.to == State::Kill));
    }
    assert_eq!((ended, board.host_left(now)), (2, 0));
    assert_eq!(board.used_up(0, now), UsedUp { target: false, host: true });
    let an_hour_later = Timestamp::from_secs(3715);
    assert_eq!(board.used_up(0, an_hour_later), UsedUp::default());
    assert_eq!((board.host_left(an_hour_later), board.used_up(9, now)), (1, UsedUp::default()));
}

#[test]
fn the_limit_that_is_used_up_is_named() {
    let now = Timestamp::from_secs(100);
    let mut board = two_users(now, &limits());
    for _ in 0..2 {
        board.recall(0, Some(1002), now);
    }
    // Of the target's three one is left, which is the other user's; the host has three left for everybody.
    assert_eq!(board.used_up(0, now), UsedUp { target: true, host: false });
    assert_eq!(board.used_up(1, now), UsedUp::default());
}

#[test]
fn a_kill_withheld_by_the_rate_limit_is_reported_once() {
    let mut now = Timestamp::from_secs(100);
    let mut board = Board::new(1, [1], 1);
    board.recall(0, Some(7), now);
    let escalation = Escalation::new(limits(), now);
    board.set_slot(0, Some(Occupied { target: 0, user: Some(7), escalation }));
    let mut moves = Vec::new();
    for _ in 0..20 {
        now = now.plus(Duration::from_secs(1));
        moves.extend(board.step(0, now, &short()).map(|moved| (moved.to, moved.reason)));
    }
    assert_eq!(moves, [(State::Disarmed, Reason::RateUsed), (State::Disarmed, Reason::Withheld)]);
}

#[test]
fn a_limit_above_two_targets_ends_one_of_them() {
    let now = Timestamp::from_secs(100);
    // Each slot: the limited groups of the job, the innermost first, and the one with the least memory left.
    let ended = |jobs: [(&[u64], u64); 2]| {
        let mut board = Board::new(2, [3, 3], 5);
        jobs.map(|(groups, least)| {
            let slot = usize::from(board.slots[0].is_some());
            let escalation = Escalation::new(limits(), now);
            board.set_slot(slot, Some(Occupied { target: slot, user: Some(7), escalation }));
            let mut observed = short();
            groups.iter().for_each(|group| observed.groups.add(*group));
            observed.groups.set_least(least);
            board.step(slot, now, &observed).map(|moved| moved.to)
        })
    };
    let [kill, warn] = [Some(State::Kill), Some(State::Warn)];
    assert_eq!(ended([(&[4, 3], 3), (&[3], 3)]), [kill, warn], "the same limit");
    assert_eq!(ended([(&[4, 3], 4), (&[5, 3], 3)]), [kill, warn], "the memory of the first counts above it");
    assert_eq!(ended([(&[3], 3), (&[4, 3], 4)]), [kill, kill], "a limit of its own below");
    assert_eq!(ended([(&[3], 3), (&[4], 4)]), [kill, kill], "two limits");
}

#[test]
fn full_numa_nodes_end_only_a_job_that_may_use_no_other() {
    let now = Timestamp::from_secs(100);
    // Each slot: the nodes of the job, and the GiB that its end gives back where one is lacking.
    let moves = |jobs: [(&str, u64); 2]| {
        let mut board = Board::new(2, [3, 3], 5);
        let mut moves = Vec::new();
        // Both are known before one is judged.
        for second in 0..2 {
            for (slot, (nodes, gives)) in jobs.into_iter().enumerate() {
                let mut limits = limits();
                limits.levels.swap(Resource::Cgroup.place(), Resource::Nodes.place());
                if second == 0 {
                    let escalation = Escalation::new(limits, now);
                    board.set_slot(slot, Some(Occupied { target: slot, user: Some(7), escalation }));
                }
                let left = if second == 0 { 8 * GIB } else { GIB };
                let mut observed = short();
                observed.readings = Default::default();
                observed.readings[Resource::Nodes.place()] =
                    Some(Aged::now(Reading::of(Room::new(Bytes::new(left), Bytes::new(8 * GIB)))));
                observed.nodes = NodeSet::of_list(nodes.as_bytes());
                observed.gives = Some(Bytes::new(gives * GIB));
                let at = now.plus(Duration::from_secs(second * 10));
                moves.push(board.step(slot, at, &observed).map(|moved| (moved.to, moved.reason)));
            }
        }
        [moves[2], moves[3]]
    };
    let [near, useless] =
        [Reason::Near, Reason::WouldNotHelp].map(|why| Some((State::Warn, why(Resource::Nodes))));
    assert_eq!(moves([("1", 2), ("1", 2)]), [near, near]);
    assert_eq!(moves([("1", 1), ("1", 1)]), [near, near], "together they give back what is lacking");
    assert_eq!(moves([("1", 1), ("0", 1)]), [useless, useless], "each has nodes of its own");
    assert_eq!(
        moves([("1", 1), ("0-1", 1)]),
        [useless, near],
        "the memory of the second may be on another node"
    );
}

#[test]
fn a_throttled_job_is_asked_to_save_and_not_ended() {
    let mut now = Timestamp::from_secs(100);
    let mut limits = limits();
    limits.levels.swap(Resource::Cgroup.place(), Resource::High.place());
    let levels = limits.levels[Resource::High.place()].as_mut().unwrap();
    levels.hard = None;
    let mut board = Board::new(1, [3], 5);
    let escalation = Escalation::new(limits, now);
    board.set_slot(0, Some(Occupied { target: 0, user: Some(7), escalation }));
    let mut observed = short();
    observed.readings.swap(Resource::Cgroup.place(), Resource::High.place());
    // Also where it grows, so that little time is left at its rate.
    let high = observed.readings[Resource::High.place()].as_mut().unwrap();
    (high.value.fast, high.value.slow) = (Some(1e9), Some(1e9));
    let mut moves = Vec::new();
    for _ in 0..3_600 {
        now = now.plus(Duration::from_secs(1));
        moves.extend(board.step(0, now, &observed).map(|moved| moved.to));
    }
    assert_eq!(moves, [State::Warn, State::Soft, State::Checkpoint]);
}

#[test]
fn a_limit_that_went_with_the_victims_is_not_reported_as_recovered() {
    let mut now = Timestamp::from_secs(100);
    let mut board = Board::new(1, [3], 5);
    let escalation = Escalation::new(limits(), now);
    board.set_slot(0, Some(Occupied { target: 0, user: Some(7), escalation }));
    let gone = Observed { alive: Some(0), readings: Default::default(), ..short() };
    let gone = Observed { members: Some(Aged::now(Members { count: 0, catching: None })), ..gone };
    let absent = Resource::ALL.map(|resource| resource != Resource::Host);
    let mut moves = Vec::new();
    for observed in [short(), gone, Observed { absent, ..gone }] {
        now = now.plus(Duration::from_millis(100));
        moves.extend(board.step(0, now, &observed).map(|moved| (moved.to, moved.reason)));
    }
    let hard = Reason::Hard(Resource::Cgroup);
    let [killed, gone] = [(State::Verify, Reason::Killed), (State::Cooldown, Reason::Gone)];
    assert_eq!(moves, [(State::Kill, hard), killed, gone]);
}

#[test]
fn the_memory_of_a_victim_has_a_minute_to_return_to_a_pool() {
    let not_back_after = |is_pool: bool| {
        let begun = Timestamp::from_secs(100);
        let mut board = Board::new(1, [3], 5);
        let escalation = Escalation::new(limits(), begun);
        board.set_slot(0, Some(Occupied { target: 0, user: Some(7), escalation }));
        if is_pool {
            board.escalation_mut(0).unwrap().use_pool();
        }
        board.step(0, begun, &short());
        let members = Some(Aged::now(Members { count: 0, catching: None }));
        let gone = Observed { alive: Some(0), members, ..short() };
        let at = |second: u64| begun.plus(Duration::from_secs(second));
        (1..200).find(|second| {
            let moved = board.step(0, at(*second), &gone);
            moved.is_some_and(|moved| moved.reason == Reason::NotBack && moved.to == State::Cooldown)
        })
    };
    assert_eq!([false, true].map(not_back_after), [Some(11), Some(61)]);
}

#[test]
fn a_victim_that_outlasts_its_time_delays_no_other() {
    outlasts(false);
}

#[test]
fn a_kill_that_does_not_end_delays_no_other() {
    outlasts(true);
}

/// The first of two targets is killed, and its victim does not end, or the kill itself (`unfinished`).
fn outlasts(unfinished: bool) {
    let mut now = Timestamp::from_secs(100);
    let mut limits = limits();
    // What the host has is everybody's.
    limits.levels[Resource::Host.place()] = limits.levels[Resource::Cgroup.place()].take();
    let mut board = Board::new(2, [3, 3], 5);
    for slot in 0..2 {
        let escalation = Escalation::new(limits.clone(), now);
        board.set_slot(slot, Some(Occupied { target: slot, user: Some(7), escalation }));
    }
    let short = |alive| {
        let mut observed = short();
        observed.readings.swap(Resource::Host.place(), Resource::Cgroup.place());
        Observed { alive, ..observed }
    };
    assert_eq!(board.step(0, now, &short(None)).map(|moved| moved.to), Some(State::Kill));
    let mut second = None;
    let allowed = limits.verify_timeout + if unfinished { limits.term_grace } else { Duration::ZERO };
    for tenth in 1..600 {
        now = now.plus(Duration::from_millis(100));
        board.step(0, now, &Observed { unfinished, ..short(Some(1)) });
        if board.step(1, now, &short(None)).is_some_and(|moved| moved.to == State::Kill) {
            second = Some(Duration::from_millis(100) * tenth);
            break;
        }
    }
    let second = second.expect("the second target is protected");
    assert!(second >= allowed, "one victim for one shortage: {second:?}");
    assert!(second < allowed + Duration::from_secs(2), "{second:?}");
}

#[test]
fn a_shortage_that_ends_while_a_forecast_is_known_leaves_no_growth_for_the_next() {
    let begun = Timestamp::from_secs(100);
    let mut board = Board::new(1, [3], 5);
    board.set_slot(
        0,
        Some(Occupied { target: 0, user: Some(7), escalation: Escalation::new(limits(), begun) }),
    );
    let mut step = |second: u64, gives: Option<u64>, forecast: bool| {
        let growth = forecast.then(|| Aged::now(1e6));
        let observed = Observed { gives: gives.map(Bytes::new), growth, ..Observed::default() };
        board.step(0, begun.plus(Duration::from_secs(second)), &observed);
        board.growth[0]
    };
    step(0, Some(GIB), false);
    assert_eq!(step(10, None, true), Some(1e6));
    step(3_600, Some(10 * GIB), false);
    assert_eq!(step(3_610, Some(10 * GIB), false), Some(0.0));
}
