//! Series, and what the tracker says of them.

use proptest::prelude::*;

use super::*;

const MB: f64 = 1e6;

fn run(values: impl IntoIterator<Item = (f64, Sample)>) -> (Tracker, Vec<Assessment>) {
    let mut tracker = Tracker::new();
    let mut assessments = Vec::new();
    for (i, (at, sample)) in values.into_iter().enumerate() {
        tracker.push(at, sample);
        if i % 10 == 9 {
            assessments.push(tracker.assess(Some(4e9), &[60.0, 3600.0]));
        }
    }
    (tracker, assessments)
}

fn used(bytes: f64) -> Sample {
    Sample { used: bytes, ..Sample::default() }
}

fn seconds(count: u32) -> impl Iterator<Item = f64> {
    (0..count).map(f64::from)
}

#[test]
fn a_line_is_a_leak_with_the_time_that_is_left() {
    let (_, assessments) = run(seconds(400).map(|t| (t, used(1e9 + 5.0 * MB * t))));
    let last = assessments.last().unwrap();
    assert_eq!(last.leak, LeakState::Leaking);
    let left = (4e9 - (1e9 + 5.0 * MB * 399.0)) / (5.0 * MB);
    let tte = last.tte.unwrap();
    assert!((tte.p50 - left).abs() < 0.05 * left, "{tte:?}, {left}");
    assert!(tte.p10 < tte.p50 && tte.p90.is_some_and(|p90| p90 > tte.p50), "{tte:?}");
    assert!(assessments.iter().take(5).all(|assessment| assessment.leak == LeakState::Insufficient));
}

#[test]
fn a_step_before_the_growth_does_not_shorten_the_time_left() {
    // A GPU that is empty until a job loads 60 of its 80 GB, which then leaks.
    let bytes = |at: f64| match at {
        at if at < 30.0 => 0.0,
        at if at < 60.0 => 60e9,
        at => 60e9 + (at - 60.0) * 0.08e9,
    };
    let mut tracker = Tracker::new();
    let mut forecasts = 0;
    for tick in 0..1200_u32 {
        let at = f64::from(tick) * 0.25;
        tracker.push(at, used(bytes(at)));
        let left = (80e9 - bytes(at)) / 0.08e9;
        if tick % 40 == 0
            && let Some(tte) = tracker.assess(Some(80e9), &[60.0]).tte
        {
            forecasts += 1;
            assert!((0.7 * left..1.5 * left).contains(&tte.p50), "{at}: {tte:?}, {left} left");
        }
    }
    assert!(forecasts > 10, "{forecasts}");
}

#[test]
fn a_fill_is_no_leak_soon_after_it_stops() {
    let (_, assessments) = run(seconds(600).map(|t| (t, used(1e9 + 5.0 * MB * t.min(300.0)))));
    let on: Vec<usize> =
        (0..assessments.len()).filter(|i| assessments[*i].leak == LeakState::Leaking).collect();
    assert!(on.iter().any(|i| *i < 30), "never on");
    assert!(on.iter().all(|i| *i < 33), "{on:?}");
    assert!(assessments.last().unwrap().tte.is_none());
}

#[test]
fn the_growth_rate_ends_when_growth_has_ended() {
    let lives = [300_u32, 1_200, 1_800, 3_600, 7_200, 14_400];
    for (lasts, tooth) in lives.into_iter().flat_map(|lasts| [(lasts, 0.0), (lasts, 20.0 * MB)]) {
        let grows = f64::from(lasts);
        let noise = |t: f64| tooth * (t % 17.0) / 17.0;
        let mut tracker = Tracker::new();
        let mut rates = Vec::new();
        for t in seconds(lasts + 1_800) {
            tracker.push(t, used(10e9 + 5.0 * MB * t.min(grows) + noise(t)));
            if t % 5.0 == 4.0 {
                let rate = tracker.assess(None, &[]).growth.map_or(0.0, |growth| growth.bytes_per_second);
                rates.push((t, rate > 0.25 * MB));
            }
        }
        let last = rates.iter().rposition(|(_, rate)| *rate).unwrap();
        assert!(rates[last].0 <= grows + 150.0, "{grows} {tooth}: {:?}", rates[last]);
        let first = rates.iter().position(|(_, rate)| *rate).unwrap();
        assert!(rates[first..=last].iter().all(|(_, rate)| *rate), "{grows} {tooth}: it flaps");
    }
}

/// A peak of +30 % for five seconds each 45 s, on slow growth.
fn evaluated(at: f64, growth: f64) -> f64 {
    let level = 1e9 + growth * at;
    if at % 45.0 >= 40.0 { 1.3 * level } else { level }
}

#[test]
fn the_peak_that_reaches_the_limit_is_forecast_in_time() {
    let limit = evaluated(1_617.0, 0.2 * MB);
    let mut tracker = Tracker::new();
    let mut assessments = Vec::new();
    for at in seconds(1_617) {
        tracker.push(at, used(evaluated(at, 0.2 * MB)));
        if at % 10.0 == 9.0 {
            assessments.push((at, tracker.assess(Some(limit), &[60.0, 300.0])));
        }
    }
    // The peak of 1,615 s is the first one that reaches it; the one before it is 0.7 % lower.
    let left = |at: f64| 1_617.0 - at;
    let warned = assessments.iter().filter(|(at, _)| (20.0..=60.0).contains(&left(*at)));
    assert!(
        warned.clone().any(|(_, assessment)| assessment.p_exhaustion[0] >= Some(0.5)),
        "{:?}",
        assessments.last()
    );
    for (at, assessment) in warned {
        let tte = assessment.tte.unwrap();
        assert!(tte.p10 <= left(*at) && tte.p90.is_none_or(|p90| p90 >= left(*at)), "{at} {tte:?}");
        let peaks = assessment.peaks.unwrap();
        assert!(peaks.count >= 10 && (peaks.period_seconds - 45.0).abs() < 1.0, "{peaks:?}");
    }
    assert!(
        assessments
            .iter()
            .all(|(at, assessment)| left(*at) < 300.0 || assessment.p_exhaustion[0] < Some(0.5))
    );
}

#[test]
fn peaks_between_samples_that_grow_are_forecast() {
    let sample = |t: f64, seen: bool| {
        let peak = (seen && t % 60.0 == 30.0).then_some(2e9 + MB * t);
        Sample { peak, ..used(1e9) }
    };
    let (_, assessments) = run(seconds(1_200).map(|t| (t, sample(t, true))));
    let tte = assessments.last().and_then(|last| last.tte).unwrap();
    assert!((tte.p50 - 800.0).abs() < 200.0, "{tte:?}");
    let (_, assessments) = run(seconds(1_200).map(|t| (t, sample(t, false))));
    assert!(assessments.iter().all(|assessment| assessment.tte.is_none()));
}

#[test]
fn constant_peaks_near_the_limit_are_no_warning() {
    let limit = 1.02 * evaluated(40.0, 0.0);
    let (_, assessments) = run(seconds(3_000).map(|at| (at, used(evaluated(at, 0.0)))));
    assert!(assessments.iter().all(|assessment| assessment.peaks.is_none() && assessment.tte.is_none()));
    let mut tracker = Tracker::new();
    for at in seconds(3_000) {
        tracker.push(at, used(evaluated(at, 0.0)));
        if at % 10.0 == 9.0 {
            let assessment = tracker.assess(Some(limit), &[60.0]);
            assert!(
                assessment.p_exhaustion[0].is_none_or(|p| p < 0.1) && assessment.tte.is_none(),
                "{at}: {assessment:?}"
            );
        }
    }
}

#[test]
fn a_probability_is_that_of_the_quantiles_times_that_of_growth() {
    let mut checked = 0;
    for growth in [0.2 * MB, 1.0 * MB] {
        let mut tracker = Tracker::new();
        for at in seconds(1_500) {
            tracker.push(at, used(evaluated(at, growth) + 3.0 * MB * (at % 7.0)));
            let forecast =
                if at % 50.0 == 49.0 { tracker.clone().assess(Some(2.9e9), &[60.0]).tte } else { None };
            if let Some((tte, p90)) = forecast.and_then(|tte| Some((tte, tte.p90?))) {
                let assessment = tracker.assess(Some(2.9e9), &[tte.p50, p90]);
                let continues = assessment.p_growth_continues.unwrap();
                for (p, wanted) in assessment.p_exhaustion.iter().flatten().zip([0.5, 0.9]) {
                    assert!((p - wanted * continues).abs() < 0.05, "{at} {wanted}: {assessment:?}");
                }
                checked += 1;
            }
        }
    }
    assert!(checked > 5, "{checked}");
}

#[test]
fn a_sawtooth_and_a_constant_are_steady() {
    for tooth in [0.0, 20.0 * MB] {
        let (_, assessments) = run(seconds(800).map(|t| (t, used(1e9 + tooth * (t % 17.0)))));
        assert!(
            assessments
                .iter()
                .all(|assessment| assessment.leak != LeakState::Leaking && assessment.tte.is_none())
        );
        assert_eq!(assessments.last().unwrap().p_exhaustion, [Some(0.0), Some(0.0)]);
    }
}

#[test]
fn cache_and_reserved_memory_are_no_leak() {
    let cache = |t| Sample { used: 1e9 + MB * t, unreclaimable: Some(1e9), allocated: None, peak: None };
    let (tracker, assessments) = run(seconds(600).map(|t| (t, cache(t))));
    assert!(assessments.iter().all(|assessment| assessment.leak != LeakState::Leaking));
    assert_eq!(tracker.watched(), Watched::Unreclaimable);
    let reserved =
        |t: f64| Sample { used: 1e9 + MB * t, unreclaimable: None, allocated: Some(0.9e9), peak: None };
    let (tracker, assessments) = run(seconds(600).map(|t| (t, reserved(t))));
    assert!(assessments.iter().all(|assessment| assessment.leak != LeakState::Leaking));
    assert_eq!(tracker.watched(), Watched::Allocated);
}

#[test]
fn a_still_device_is_forecast_from_the_allocator() {
    let sample =
        |t| Sample { used: 3.5e9, unreclaimable: None, allocated: Some(1e9 + 5.0 * MB * t), peak: None };
    let (_, assessments) = run(seconds(400).map(|t| (t, sample(t))));
    let last = assessments.last().unwrap();
    assert_eq!((last.leak, last.basis), (LeakState::Leaking, Some(Basis::Allocated)));
}

#[test]
fn a_restart_begins_again() {
    let value = |t: f64| if t < 400.0 { 3e9 + MB * t } else { 1e9 + MB * (t % 7.0) };
    let (tracker, assessments) = run(seconds(600).map(|t| (t, used(value(t)))));
    assert!(assessments.last().unwrap().leak != LeakState::Leaking);
    assert!(View::recent(&tracker.history, USED).max().iter().all(|max| *max < 2e9), "the old life is there");
}

#[test]
fn gaps_and_jumps_of_the_clock_are_one_interval() {
    let jump = |t: f64| match t {
        t if t > 300.0 => t - 50_000.0,
        t if t > 200.0 => t + 86_400.0,
        t => t,
    };
    let series = || seconds(400).map(|t| 1e9 + 5.0 * MB * t + MB * (t % 5.0));
    let (_, smooth) = run(seconds(400).zip(series().map(used)));
    let (_, jumped) = run(seconds(400).map(jump).zip(series().map(used)));
    let states =
        |assessments: &[Assessment]| assessments.iter().map(|assessment| assessment.leak).collect::<Vec<_>>();
    assert_eq!(states(&smooth), states(&jumped));
}

#[test]
fn what_cannot_be_is_not_taken() {
    let mut tracker = Tracker::new();
    assert!(tracker.push(0.0, used(1.0)));
    for (at, value) in [(0.0, 2.0), (f64::NAN, 1.0), (1.0, f64::NAN), (1.0, -1.0), (1.0, 1e300)] {
        assert!(!tracker.push(at, used(value)), "{at} {value}");
    }
}

#[test]
fn a_restored_state_continues_unchanged() {
    let values: Vec<_> =
        seconds(500).map(|t| (t, used(1e9 + 2.0 * MB * t + 9.0 * MB * (t % 11.0)))).collect();
    let (mut whole, _) = run(values[..400].iter().copied());
    let kept = serde_json::to_string(&whole).unwrap();
    let mut read: Tracker = serde_json::from_str(&kept).unwrap();
    assert!(read.is_sound());
    for (at, sample) in &values[400..] {
        whole.push(*at, *sample);
        read.push(*at, *sample);
    }
    let assessments = [&mut whole, &mut read].map(|t| format!("{:?}", t.assess(Some(4e9), &[60.0])));
    assert_eq!(assessments[0], assessments[1]);
}

#[test]
fn in_a_long_life_too_a_still_device_is_forecast_from_the_allocator() {
    let sample =
        |t| Sample { used: 3.5e9, unreclaimable: None, allocated: Some(1e9 + 0.1 * MB * t), peak: None };
    let (_, assessments) = run(seconds(20_000).map(|t| (t, sample(t))));
    let last = assessments.last().unwrap();
    assert_eq!((last.leak, last.basis), (LeakState::Leaking, Some(Basis::Allocated)));
    // The device holds 0.5 GB more than is allocated now, and there is 0.5 GB besides.
    let p50 = last.tte.unwrap().p50;
    assert!((p50 - 5_000.0).abs() < 1_500.0, "{p50}");
}

#[test]
fn memory_is_bounded() {
    const { assert!(Tracker::BOUND <= 3072) };
    let (tracker, _) = run(seconds(20_000).map(|t| (t, used(1e9 + t))));
    assert!(tracker.history.recent().all().len() <= 64);
    assert!(tracker.is_sound());
}

proptest! {
    #[test]
    fn nothing_panics_and_nothing_is_not_a_number(
        steps in proptest::collection::vec((-10.0..100.0_f64, 0.0..1e12_f64, proptest::option::of(0.0..1e12_f64)), 0..400),
        limit in 0.0..1e12_f64,
    ) {
        let mut tracker = Tracker::new();
        let mut at = 0.0;
        for (i, (step, used, other)) in steps.into_iter().enumerate() {
            at += step;
            let unreclaimable = other.filter(|_| i % 3 == 0);
            tracker.push(at, Sample { used, unreclaimable, allocated: other, peak: None });
            if i % 7 == 0 {
                let assessment = tracker.assess(Some(limit), &[1.0, 1e6]);
                prop_assert!(assessment.p_exhaustion.iter().flatten().all(|p| (0.0..=1.0).contains(p)));
                if let Some(tte) = assessment.tte {
                    prop_assert!(tte.p10 <= tte.p50 && tte.p90.is_none_or(|p90| p90 >= tte.p50));
                }
                prop_assert!(assessment.growth.is_none_or(|g| g.bytes_per_second.is_finite() && g.error_bytes_per_second.is_finite()));
            }
        }
        prop_assert!(tracker.is_sound());
    }

    #[test]
    fn a_damaged_state_is_refused_or_harms_nothing(
        which in proptest::collection::vec(0.0..1.0_f64, 1..4),
        by in proptest::sample::select(vec![-1e300, -1.0, 0.0, 0.5, 1.0, 7.0, 1e9, 1e38, 1e300]),
    ) {
        let mut state = old_state();
        let count = numbers(&mut state).len();
        for place in which {
            #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, clippy::cast_precision_loss, reason = "an index")]
            let at = (place * count as f64) as usize;
            *numbers(&mut state)[at] = by.into();
        }
        let Ok(mut tracker) = serde_json::from_value::<Tracker>(state) else { return Ok(()) };
        if tracker.is_sound() {
            for i in 3_000..4_500_u32 {
                tracker.push(f64::from(i), used(1e9 + 5e6 * f64::from(i)));
                if i % 10 == 0 {
                    let assessment = tracker.assess(Some(40e9), &[60.0, 3600.0]);
                    prop_assert!(assessment.p_exhaustion.iter().flatten().all(|p| (0.0..=1.0).contains(p)), "{:?}", assessment);
                    prop_assert!(assessment.growth.is_none_or(|g| g.bytes_per_second.is_finite()), "{:?}", assessment);
                }
            }
        }
    }
}

/// What is kept of a leak that is older than the newest samples.
fn old_state() -> serde_json::Value {
    let mut tracker = Tracker::new();
    for i in 0..3_000_u32 {
        tracker.push(f64::from(i), used(1e9 + 5e6 * f64::from(i) + 1e5 * f64::from(i * 7919 % 97)));
        if i % 10 == 9 {
            tracker.assess(Some(40e9), &[60.0]);
        }
    }
    serde_json::to_value(&tracker).unwrap()
}

/// Every number of a state.
fn numbers(state: &mut serde_json::Value) -> Vec<&mut serde_json::Value> {
    use serde_json::Value;
    match state {
        Value::Number(_) => vec![state],
        Value::Array(all) => all.iter_mut().flat_map(numbers).collect(),
        Value::Object(all) => all.values_mut().flat_map(numbers).collect(),
        _ => Vec::new(),
    }
}
