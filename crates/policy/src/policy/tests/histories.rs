//! Properties of any history: what is observed is drawn at random, sensible or not.

use std::time::Duration;

use proptest::prelude::*;

use super::{GIB, MIB, limits, secs};
use crate::model::checkpoint::CheckpointState;
use crate::model::limited_groups::LimitedGroups;
use crate::model::outlook::Tte;
use crate::model::room::Room;
use crate::model::time::Timestamp;
use crate::model::units::{Bytes, real};
use crate::policy::{
    Ack, Aged, Board, Escalation, Gate, Levels, Limits, Members, Mode, Observed, Occupied, Reading, Reason,
    Resource, Rung, State, Transition, Trigger,
};

fn reading() -> impl Strategy<Value = Option<Aged<Reading>>> {
    let headroom = prop_oneof![3 => 0..600 * MIB, 3 => 0..3 * GIB, 4 => 0..9 * GIB];
    let rate = proptest::option::of(prop_oneof![-1e9..1e9_f64, Just(f64::NAN), Just(f64::INFINITY)]);
    let age = prop_oneof![8 => Just(0), 1 => 0_u64..10_000];
    let known = (headroom, rate.clone(), rate, age).prop_map(|(headroom, fast, slow, age)| {
        let reading = Reading { room: Room::new(Bytes::new(headroom), Bytes::new(8 * GIB)), fast, slow };
        Aged::of(reading, Duration::from_millis(age))
    });
    prop_oneof![9 => known.prop_map(Some), 1 => Just(None)]
}

fn observed() -> impl Strategy<Value = Observed> {
    let forecast = proptest::option::of((proptest::option::of(0.0..500.0_f64), 0_u64..20));
    let ack = proptest::option::of(prop_oneof![
        Just(CheckpointState::Saving),
        Just(CheckpointState::Saved),
        Just(CheckpointState::Failed)
    ]);
    let members = proptest::option::of((0_u32..4, proptest::option::of(0_u32..3)));
    let alive = proptest::option::of(0_u32..3);
    let busy = prop_oneof![9 => Just(false), 1 => Just(true)];
    let fit = prop_oneof![30 => Just(true), 1 => Just(false)];
    let save = proptest::option::of((0_u64..10 * GIB).prop_map(Bytes::new));
    // A kill that cannot begin, and a plan that is not carried out yet.
    let waits = prop_oneof![7 => Just((false, false)), 3 => any::<(bool, bool)>()];
    let steps = (busy, waits);
    ([reading(), reading()], forecast, any::<(bool, bool)>(), ack, members, alive, steps, fit, save).prop_map(
        |(readings, forecast, (leak, alert), ack, members, alive, steps, fit, save)| Observed {
            restarted: false,
            readings: [readings[0], readings[1], None, None, None, None],
            absent: [false; 6],
            save: [save, save, None, None, None, None],
            groups: LimitedGroups::default(),
            nodes: None,
            forecast: forecast
                .map(|(p50, age)| Aged::of(p50.map(|p50| Tte { p10: p50 / 2.0, p50, p90: None }), secs(age))),
            falls: forecast.map(|(p50, age)| Aged::of([p50.map(|p50| p50 * 1e5); 6], secs(age))),
            growth: forecast.map(|(p50, age)| Aged::of(p50.unwrap_or_default() - real(age), secs(age))),
            leak: Some(Aged::now(leak)),
            alert: Some(Aged::now(alert.then_some(Some(Rung::Kill)))),
            members: members.map(|(count, catching)| Aged::now(Members { count, catching })),
            ack: ack.map(|kind| Ack { kind, at: Timestamp::from_secs(0) }),
            alive,
            victims: Bytes::new(GIB),
            gives: Some(Bytes::new(16 * GIB)),
            half_dead: None,
            busy: steps.0,
            kill_waits: steps.1.0,
            unfinished: steps.1.1,
            fit,
        },
    )
}

/// Both the host and the cgroup are watched, and everything may trigger everything.
fn eager(mode: Mode, max_state: Option<Rung>) -> Limits {
    let anything = Trigger { max_state: Some(Rung::Kill), max_age: secs(10) };
    let mut limits =
        Limits { mode, max_state, forecast: anything, leak: anything, alert: anything, ..limits() };
    limits.levels[Resource::Host.place()] = limits.levels[Resource::Cgroup.place()];
    limits.grace = secs(3);
    limits.term_grace = secs(2);
    limits.for_time = secs(1);
    limits.verify_timeout = secs(2);
    limits
}

type History = Vec<(u64, [Observed; 2])>;

fn history() -> impl Strategy<Value = History> {
    let spell = (1_u64..3_000, [observed(), observed()], 1_usize..12);
    let spells = proptest::collection::vec(spell, 1..40);
    // Spells of the same, so that what must hold for a while sometimes does.
    spells.prop_map(|spells| {
        spells.into_iter().flat_map(|(ms, observed, times)| vec![(ms, observed); times]).collect()
    })
}

/// Every move, with what was observed, of two targets.
fn run(
    limits: [Limits; 2],
    history: &History,
    mut look: impl FnMut(usize, &Observed, State, Option<Transition>),
) {
    let mut now = Timestamp::from_secs(100);
    let mut board = Board::new(2, limits.iter().map(|limits| limits.max_kills_per_hour), 4);
    for (slot, limits) in limits.into_iter().enumerate() {
        let escalation = Escalation::new(limits, now);
        board.set_slot(slot, Some(Occupied { target: slot, user: Some(7), escalation }));
    }
    for (ms, observed) in history {
        now = now.plus(Duration::from_millis(*ms));
        for (place, observed) in observed.iter().enumerate() {
            let observed = Observed { ack: observed.ack.map(|ack| Ack { at: now, ..ack }), ..*observed };
            let before = board.escalation(place).unwrap().state();
            let moved = board.step(place, now, &observed);
            look(place, &observed, before, moved);
        }
    }
}

/// Whether a level is crossed by a reading that can be trusted.
fn crossed(levels: &Levels, reading: Option<Aged<Reading>>, hard: bool) -> bool {
    let amount = if hard { levels.hard } else { Some(levels.soft) };
    reading.zip(amount).is_some_and(|(reading, amount)| {
        reading.age <= levels.max_age
            && !reading.value.room.is_implausible()
            && reading.value.is_within(amount)
    })
}

fn fresh(limits: &Limits, observed: &Observed) -> bool {
    limits.watched().any(|(resource, levels)| {
        observed
            .reading(resource)
            .is_some_and(|reading| reading.age <= levels.max_age && !reading.value.room.is_implausible())
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 150, ..ProptestConfig::default() })]

    #[test]
    fn two_checkpoint_signals_to_a_job_are_an_interval_apart(history in history()) {
        let limits = || eager(Mode::Enforce, Some(Rung::Kill));
        let interval = limits().request_interval;
        let mut asked = std::collections::BTreeMap::<usize, Timestamp>::new();
        let mut too_soon = None;
        run([limits(), limits()], &history, |place, _, _, moved| {
            if let Some(moved) = moved.filter(|moved| moved.ask) {
                assert!(moved.acts() && moved.incident > 0);
                let before = asked.insert(place, moved.at);
                if before.is_some_and(|before| moved.at.since(before) < interval) {
                    too_soon = Some((place, moved));
                }
            }
        });
        prop_assert_eq!(too_soon, None);
    }

    #[test]
    fn a_soft_level_alone_ends_no_job(history in history()) {
        let nothing = |max_age| Trigger { max_state: None, max_age };
        let limits = || Limits { leak: nothing(secs(1)), alert: nothing(secs(1)), ..eager(Mode::Enforce, Some(Rung::Kill)) };
        let of = limits();
        let within = of.soft_within.as_secs_f64();
        let mut wrong = None;
        run([limits(), limits()], &history, |_, observed, before, moved| {
            let ends = moved.is_some_and(|moved| moved.to == State::Term && moved.acts());
            let recent = observed.forecast.filter(|forecast| forecast.age <= of.forecast.max_age);
            let foreseen = recent.is_some_and(|recent| recent.value.is_some_and(|tte| tte.p50 <= within));
            let reasons = of.watched().any(|(resource, levels)| {
                let Some(Aged { value: Reading { room: Room { memory: headroom, limit: total, .. }, slow, .. }, .. }) = observed.reading(resource) else {
                    return false;
                };
                let hard = levels.hard.map_or(0, |hard| hard.of(*total).get());
                let grows = slow.is_some_and(|rate| rate > 0.0 && real(headroom.get()) / rate <= within);
                headroom.get() <= levels.soft.of(*total).get().midpoint(hard) || (recent.is_none() && grows)
            });
            if ends && before != State::Term && !foreseen && !reasons {
                wrong = Some((moved, *observed));
            }
        });
        prop_assert_eq!(wrong, None);
    }

    #[test]
    fn no_job_is_ended_that_could_not_give_back_what_is_lacking(history in history(), gives in 0..2 * GIB) {
        let nothing = |max_age| Trigger { max_state: None, max_age };
        let limits = || Limits {
            forecast: nothing(secs(1)), leak: nothing(secs(1)), alert: nothing(secs(1)), hard_ignores_rate: true,
            ..eager(Mode::Enforce, Some(Rung::Kill))
        };
        let of = limits();
        // The limit is that of a group, in which others can hold the memory.
        let mut groups = crate::model::limited_groups::LimitedGroups::default();
        groups.add(1);
        groups.set_least(1);
        let history: History = history.into_iter().map(|(ms, observed)| {
            (ms, observed.map(|observed| Observed { gives: Some(Bytes::new(gives)), groups, ..observed }))
        }).collect();
        let mut wrong = None;
        run([limits(), limits()], &history, |_, observed, before, moved| {
            let begins = moved.filter(|moved| matches!(moved.to, State::Term | State::Kill) && moved.acts());
            let begins = begins.filter(|moved| before != State::Term && moved.from != State::Blind);
            // Both jobs together are the most that can be given back.
            let helps = of.watched().any(|(resource, levels)| {
                observed.reading(resource).is_some_and(|reading| {
                    let room = reading.value.room;
                    let lacking = room.lacking(room.level(levels.soft)).get();
                    lacking > 0 && lacking <= 2 * gives
                })
            });
            if begins.is_some() && !helps {
                wrong = Some((moved, *observed));
            }
        });
        prop_assert_eq!(wrong, None);
    }

    #[test]
    fn no_checkpoint_is_requested_that_the_memory_left_cannot_take(history in history()) {
        let limits = || eager(Mode::Enforce, Some(Rung::Kill));
        let of = limits();
        let mut wrong = None;
        run([limits(), limits()], &history, |_, observed, before, moved| {
            let asks = moved.is_some_and(|moved| moved.to == State::Checkpoint && moved.acts());
            let too_large = of.watched().any(|(resource, levels)| {
                observed.reading(resource).zip(observed.save[resource.place()]).is_some_and(|(reading, takes)| {
                    let Room { memory: headroom, limit: total, .. } = reading.value.room;
                    let hard = levels.hard.map_or(Bytes::ZERO, |hard| hard.of(total));
                    let known = reading.age <= levels.max_age && headroom <= total;
                    known && headroom < hard.saturating_add(takes)
                })
            });
            if asks && too_large {
                wrong = Some((before, moved));
            }
        });
        prop_assert_eq!(wrong, None);
    }

    #[test]
    fn the_hard_level_acts_within_one_step(history in history()) {
        // A limit of its own, so that no other target can hold it up.
        let limits = || {
            let mut limits = Limits { max_kills_per_hour: 1000, hard_ignores_rate: true, ..eager(Mode::Enforce, Some(Rung::Kill)) };
            limits.levels[Resource::Host.place()] = None;
            limits
        };
        let of = limits();
        let levels = of.levels[Resource::Cgroup.place()].unwrap();
        let mut late = None;
        run([limits(), limits()], &history, |_, observed, before, moved| {
            let due = crossed(&levels, observed.readings[Resource::Cgroup.place()], true)
                && observed.fit
                && !observed.kill_waits
                && observed.members.is_some_and(|members| members.value.count > 0)
                && !matches!(before, State::Kill | State::Verify)
                && !(before == State::Term && observed.alive == Some(0));
            if due && moved.is_none_or(|moved| moved.to != State::Kill) {
                late = Some((before, moved));
            }
        });
        prop_assert_eq!(late, None);
    }

    #[test]
    fn only_a_kill_replaces_a_plan_and_only_one_that_can_begin(history in history()) {
        let limits = || eager(Mode::Enforce, Some(Rung::Kill));
        let mut wrong = None;
        run([limits(), limits()], &history, |_, observed, before, moved| {
            let Some(moved) = moved else { return };
            let kills = moved.to == State::Kill;
            if if kills { observed.kill_waits } else { observed.unfinished } {
                wrong = Some((before, moved));
            }
        });
        prop_assert_eq!(wrong, None);
    }

    #[test]
    fn a_kill_that_waits_is_decided_as_if_it_had_not(history in history()) {
        // The rate limits count what was done.
        let limits = || Limits { max_kills_per_hour: 1000, hard_ignores_rate: true, ..eager(Mode::Enforce, Some(Rung::Kill)) };
        let mut now = Timestamp::from_secs(100);
        let gate = Gate::OPEN;
        let mut escalation = Escalation::new(limits(), now);
        for (ms, [observed, _]) in &history {
            now = now.plus(Duration::from_millis(*ms));
            let [waiting, free] = [true, false].map(|kill_waits| Observed { kill_waits, ..*observed });
            let mut other = escalation.clone();
            let moved = escalation.step(now, &waiting, gate);
            let kills = other.step(now, &free, gate).is_some_and(|moved| moved.to == State::Kill);
            prop_assert_eq!(escalation.kill_waits(), kills);
            prop_assert!(!kills || moved.is_none());
            // It can begin at the same reading.
            let later = escalation.clone().step(now, &free, gate);
            prop_assert!(!kills || later.is_some_and(|moved| moved.to == State::Kill));
            if kills {
                escalation = other;
            }
        }
    }

    #[test]
    fn nothing_graceful_happens_without_fresh_data(history in history()) {
        let limits = || eager(Mode::Enforce, Some(Rung::Kill));
        let of = limits();
        let mut blind = None;
        run([limits(), limits()], &history, |_, observed, _, moved| {
            if let Some(moved) = moved.filter(Transition::acts)
                && !fresh(&of, observed)
            {
                blind = Some(moved);
            }
        });
        prop_assert_eq!(blind, None);
    }

    #[test]
    fn no_process_is_killed_while_the_level_is_not_crossed_or_unknown(history in history()) {
        let limits = [eager(Mode::Enforce, Some(Rung::Checkpoint)), eager(Mode::Enforce, Some(Rung::Term))];
        let max_state = [State::Checkpoint, State::Term];
        let mut beyond = None;
        run(limits, &history, |place, _, _, moved| {
            if let Some(moved) = moved.filter(|moved| moved.acts() && moved.to > max_state[place]) {
                beyond = Some((place, moved));
            }
        });
        prop_assert_eq!(beyond, None);
    }

    #[test]
    fn no_second_victim_for_a_shared_shortage(history in history(), below_one_limit: bool) {
        // Only the host is watched, or one limit above both: what one gives back, both have.
        let unwatched = if below_one_limit { Resource::Host } else { Resource::Cgroup };
        let limits = || {
            let mut limits = eager(Mode::Enforce, Some(Rung::Kill));
            limits.levels[unwatched.place()] = None;
            limits
        };
        let mut history = history;
        if below_one_limit {
            history.iter_mut().flat_map(|(_, observed)| observed).for_each(|observed| {
                observed.groups.add(3);
                observed.groups.set_least(3);
            });
        }
        let (mut states, mut overdue) = ([State::Ok; 2], [false; 2]);
        let mut both = None;
        let (mut elapsed, mut steps) = (0, history.iter());
        // When each was asked to end, and the time that it has for that.
        let (mut asked, allowed) = ([0; 2], limits().term_grace + limits().verify_timeout);
        run([limits(), limits()], &history, |place, _, _, moved| {
            if place == 0 {
                elapsed += steps.next().unwrap().0;
            }
            // One in TERM can be past its time only after BLIND, in which nothing was said of it, and one in KILL only where
            // the kill itself takes longer.
            if matches!(states[1 - place], State::Term | State::Kill) {
                overdue[1 - place] = u128::from(elapsed - asked[1 - place]) >= allowed.as_millis();
            }
            let Some(moved) = moved else { return };
            if matches!(moved.to, State::Term | State::Kill) && moved.reason != Reason::Fresh {
                asked[place] = elapsed;
            }
            states[place] = moved.to;
            // Whoever stays past its time holds nobody up any more.
            let late = matches!(moved.reason, Reason::Unkillable | Reason::NotBack) && moved.to == moved.from;
            overdue[place] = late || (overdue[place] && moved.to == State::Verify);
            let ending = |state| matches!(state, State::Term | State::Kill | State::Verify);
            if moved.acts() && ending(moved.to) && ending(states[1 - place]) && !overdue[1 - place] {
                both = Some((place, moved));
            }
        });
        prop_assert_eq!(both, None);
    }

    #[test]
    fn the_rate_limits_hold(history in history()) {
        let limits = || eager(Mode::Enforce, Some(Rung::Kill));
        let mut counted = [0_u32; 2];
        // The whole history is shorter than an hour.
        prop_assume!(history.iter().map(|(ms, _)| ms).sum::<u64>() < 3_600_000);
        run([limits(), limits()], &history, |place, _, _, moved| {
            counted[place] += u32::from(moved.is_some_and(|moved| moved.counts));
        });
        prop_assert!(counted.iter().all(|count| *count <= 3), "{counted:?}");
        prop_assert!(counted.iter().sum::<u32>() <= 4, "{counted:?}");
    }

    #[test]
    fn an_incident_is_one_at_a_time_and_climbs(history in history()) {
        let limits = || eager(Mode::Enforce, Some(Rung::Kill));
        let mut last = [(0_u64, State::Ok); 2];
        let mut wrong = None;
        run([limits(), limits()], &history, |place, _, before, moved| {
            let Some(moved) = moved.filter(Transition::acts) else { return };
            let (incident, rung) = last[place];
            let climbs = moved.incident == incident && moved.to > rung;
            let begins = moved.incident == incident + 1;
            // It was too soon after the request of the incident before.
            let asks = moved.incident == incident && moved.to == State::Checkpoint && moved.ask;
            if !(climbs || begins || (asks && rung == State::Checkpoint)) || moved.from != before {
                wrong = Some((place, last[place], moved));
            }
            last[place] = (moved.incident, moved.to);
        });
        prop_assert_eq!(wrong, None);
    }
}
