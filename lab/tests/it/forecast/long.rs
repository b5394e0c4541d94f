//! Lives of days: what begins late is seen soon, what goes on slowly is seen at all, and the daily round is no leak.

use std::f64::consts::TAU;

use forecast::LeakState;
use forecast::tracker::{Assessment, Sample, Tracker};

use super::simulate::Chance;

/// Seconds between two samples.
const INTERVAL: f64 = 10.0;
/// Samples in a day and in an hour.
const DAY: f64 = 8_640.0;
const HOUR: f64 = 360.0;
const MB: f64 = 1e6;
const LIMIT: f64 = 40_000.0;

/// What is said each minute of a life of so many days; `level` is in MB, from the sample's number.
fn lived(days: f64, level: impl Fn(f64) -> f64) -> Vec<(f64, Assessment)> {
    let mut chance = Chance::new(7);
    let mut tracker = Tracker::new();
    let mut said = Vec::new();
    for i in 0_u32.. {
        let at = f64::from(i);
        if at > days * DAY {
            break;
        }
        let used = (level(at) + 50.0 * chance.normal()) * MB;
        tracker.push(at * INTERVAL, Sample { used, ..Sample::default() });
        if i % 6 == 5 {
            said.push((at, tracker.assess(Some(LIMIT * MB), &[3600.0])));
        }
    }
    assert!(tracker.is_sound());
    said
}

/// The share of the time after the first day in which it is called a leak.
#[expect(clippy::cast_precision_loss, reason = "counts of a few thousand")]
fn alarmed(said: &[(f64, Assessment)]) -> f64 {
    let later: Vec<_> = said.iter().filter(|(at, _)| *at > DAY).collect();
    later.iter().filter(|(_, said)| said.leak == LeakState::Leaking).count() as f64 / later.len() as f64
}

#[test]
fn a_leak_that_begins_after_days_is_forecast() {
    let begins = 3.0 * DAY;
    // 20 GB in 400 samples: 67 minutes.
    let level = |at: f64| 20_000.0 + 50.0 * (at - begins).max(0.0);
    let said = lived(3.0 + 395.0 / DAY, level);
    assert!(said.iter().filter(|(at, _)| *at < begins).all(|(_, said)| said.leak != LeakState::Leaking));
    let (at, first) = said.iter().find(|(_, said)| said.tte.is_some()).expect("no forecast");
    let (after, left) = (at - begins, (400.0 - (at - begins)) * INTERVAL);
    // The newest samples span 1,344; a leak must last for some of them.
    assert!(after < 0.2 * 1_344.0, "after {after} samples");
    let p50 = first.tte.unwrap().p50;
    assert!((p50 - left).abs() < 0.25 * left, "{p50} of {left}");
    assert_eq!(said.last().unwrap().1.leak, LeakState::Leaking);
    assert!(said.last().unwrap().1.p_exhaustion[0].unwrap() > 0.9);
}

#[test]
fn the_daily_round_and_one_job_after_the_other_are_no_leaks() {
    let diurnal = |at: f64| 20_000.0 + 5_000.0 * (TAU * at / DAY).sin();
    let said = lived(4.0, diurnal);
    assert!(alarmed(&said) < 0.01, "{}", alarmed(&said));
    let jobs = |at: f64| {
        let of_the_hour = (at / HOUR).fract();
        5_000.0 + if of_the_hour < 0.7 { 12_000.0 * (of_the_hour / 0.1).min(1.0) } else { 0.0 }
    };
    let said = lived(4.0, jobs);
    assert!(alarmed(&said) < 0.01, "{}", alarmed(&said));
    assert!(said.iter().filter(|(at, _)| *at > DAY).all(|(_, said)| said.tte.is_none()));
}

#[test]
fn a_little_more_each_day_is_a_leak() {
    let said = lived(5.0, |at| 20_000.0 + 800.0 * at / DAY);
    assert!(alarmed(&said) > 0.8, "{}", alarmed(&said));
    let growth = said.last().unwrap().1.growth.unwrap().bytes_per_second;
    let wanted = 800.0 * MB / (DAY * INTERVAL);
    assert!((growth - wanted).abs() < 0.2 * wanted, "{growth} of {wanted}");
}

#[test]
fn jobs_that_load_for_minutes_each_hour_are_no_leaks() {
    let mut chance = Chance::new(3);
    let mut tracker = Tracker::new();
    for i in 0_u32..40 * 3_600 {
        let of_the_hour = f64::from(i % 3_600);
        // Four minutes up, forty minutes of work.
        let job = if of_the_hour < 2_640.0 { 12_000.0 * (of_the_hour / 240.0).min(1.0) } else { 0.0 };
        let used = (5_000.0 + job + 20.0 * chance.normal()) * MB;
        tracker.push(f64::from(i), Sample { used, ..Sample::default() });
        if i % 10 == 9 {
            let said = tracker.assess(Some(LIMIT * MB), &[3600.0]);
            assert!(i < 20 * 3_600 || said.leak != LeakState::Leaking && said.tte.is_none(), "{i}: {said:?}");
        }
    }
}

#[test]
fn a_job_that_runs_out_and_restarts_is_forecast_each_time() {
    let mut chance = Chance::new(4);
    let mut tracker = Tracker::new();
    let cycle = 3_600;
    for run in 0_u32..6 {
        let mut told = None;
        for second in 0..cycle {
            let used =
                (5_000.0 + 35_000.0 * f64::from(second) / f64::from(cycle) + 30.0 * chance.normal()) * MB;
            tracker.push(f64::from(run * cycle + second), Sample { used, ..Sample::default() });
            if second % 10 == 9 {
                let said = tracker.assess(Some(LIMIT * MB), &[3600.0]);
                let left = f64::from(cycle - second);
                let right = |p50: f64| (p50 - left).abs() < 0.3 * left;
                if told.is_none() && second > 600 && said.tte.is_some_and(|tte| right(tte.p50)) {
                    told = Some(left);
                }
            }
        }
        assert!(told.is_some_and(|left| left > 600.0), "run {run}: {told:?} s ahead");
    }
}

#[test]
fn a_slow_leak_is_forecast_by_the_top_of_its_days() {
    // 2 GB more each day under a swing of 2 GB: it runs out at the top of a day, after 8.2 days.
    let level = |at: f64| 20_000.0 + 2_000.0 * at / DAY + 2_000.0 * (TAU * at / DAY).sin();
    let out = (0..100_000).map(f64::from).find(|at| level(*at) >= LIMIT).unwrap();
    let said = lived(out / DAY - 0.25, level);
    let last_days = said.iter().filter(|(at, _)| out - at < 1.5 * DAY);
    let told: Vec<f64> =
        last_days.filter_map(|(at, said)| said.tte.map(|tte| tte.p50 / INTERVAL / (out - at))).collect();
    assert!(told.len() > 1_000, "{}", told.len());
    let late = told.iter().filter(|share| **share > 1.3).count();
    assert!(late * 20 < told.len(), "{late} of {} much too late", told.len());
}
