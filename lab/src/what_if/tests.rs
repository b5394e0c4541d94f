//! Runs played against limits and policies.

use super::*;
use memwarden::app::guarded_engine::protection_of;
use memwarden::model::units::GIB;

/// The memory in GiB at each time.
fn series(points: impl IntoIterator<Item = (f64, f64)>) -> Series {
    let points = points.into_iter().map(|(at, gib)| (at, Some(gib * GIB)));
    Series::of_points("run".to_owned(), None, points.collect::<Vec<_>>())
}

/// 1 MiB per second after 100 s, up to 10.1 GiB.
fn ramp() -> Series {
    series((0..=104).map(|place| {
        let at = f64::from(place) * 100.0;
        (5_000.0 + at, 0.1 + at / 1024.0)
    }))
}

fn memwarden() -> Policy {
    let protection = protection_of("run", None).unwrap();
    let [target] = <[_; 1]>::try_from(protection.targets).unwrap();
    Policy::Memwarden(Box::new(target), protection.max_kills_per_hour)
}

fn alone(series: &Series, gib: f64, policy: &Policy, assumed: Assumed) -> Outcome {
    play(&[series], gib * GIB, policy, assumed)[0]
}

#[test]
fn each_policy_ends_a_run_at_its_level() {
    let (run, none) = (ramp(), Assumed::default());
    for (policy, fate, share) in [
        (Policy::Kernel, Fate::OomKilled, 1.0),
        (Policy::Earlyoom, Fate::Terminated, 0.9),
        (Policy::Ray, Fate::Killed, 0.95),
    ] {
        let outcome = alone(&run, 8.0, &policy, none);
        let reached = (8.0 * share - 0.1) * 1024.0;
        assert_eq!(outcome.fate, fate, "{policy:?}");
        assert!((outcome.ended_seconds.unwrap() - reached).abs() <= 2.0, "{reached} {outcome:?}");
        assert_eq!(outcome.lost_seconds, outcome.ended_seconds);
        assert_eq!(alone(&run, 20.0, &policy, none).fate, Fate::Survived);
    }
    let undecided = alone(&run, 8.0, &Policy::Oomd, none);
    assert_eq!((undecided.fate, undecided.lost_seconds), (Fate::Undecided, None));
}

#[test]
fn a_checkpoint_is_saved_before_the_end_and_what_follows_it_is_lost() {
    let (run, policy) = (ramp(), memwarden());
    let saves = alone(&run, 8.0, &policy, Assumed { save: Some(60.0), every: None, ..Assumed::default() });
    let (asked, saved) = (saves.asked_seconds.unwrap(), saves.saved_seconds.unwrap());
    assert_eq!((saves.fate, saved - asked), (Fate::Terminated, 60.0));
    // At the latest halfway to the hard level; it is ended when it has saved, at most the interval of requests ago.
    assert!(asked <= (7.28 - 0.1) * 1024.0 + 4.0 && saves.lost_seconds.unwrap() <= 300.0, "{saves:?}");
    let deaf = alone(&run, 8.0, &policy, Assumed { save: None, every: Some(1_000.0), ..Assumed::default() });
    assert_eq!((deaf.fate, deaf.saved_seconds), (Fate::Terminated, None));
    assert_eq!(deaf.lost_seconds, deaf.ended_seconds.map(|ended| ended % 1_000.0));
    // The save takes longer than the grace.
    let slow = alone(&run, 8.0, &policy, Assumed { save: Some(1e5), every: None, ..Assumed::default() });
    assert_eq!((slow.fate, slow.saved_seconds), (Fate::Terminated, None));
    assert_eq!(alone(&run, 20.0, &policy, Assumed::default()).fate, Fate::Survived);
}

#[test]
fn what_is_full_from_one_step_to_the_next_is_the_kernels() {
    let run = series([(0.0, 1.0), (100.0, 1.0), (100.5, 20.0), (101.0, 1.0), (200.0, 1.0)]);
    for policy in [Policy::Earlyoom, Policy::Ray, memwarden()] {
        let outcome = alone(&run, 8.0, &policy, Assumed::default());
        assert_eq!((outcome.fate, outcome.ended_seconds), (Fate::OomKilled, Some(101.0)), "{policy:?}");
    }
}

#[test]
fn a_run_on_a_gpu_ends_by_a_failed_allocation_unless_memwarden_watches_the_gpu() {
    let gpu = Series { gpu: true, ..ramp() };
    // 8 GiB are crossed 7.9 GiB after the beginning; each second has 1 MiB more.
    let reached = (7.9_f64 * 1024.0).floor() + 1.0;
    for policy in [Policy::Kernel, Policy::Earlyoom, Policy::Oomd, Policy::Ray, memwarden()] {
        assert!(!policy.watches(true) && policy.watches(false), "{policy:?}");
        let outcome = alone(
            &gpu,
            8.0,
            &policy,
            Assumed { save: Some(60.0), every: Some(1_000.0), ..Assumed::default() },
        );
        assert_eq!(outcome.fate, Fate::OutOfGpuMemory, "{policy:?}");
        assert_eq!((outcome.ended_seconds, outcome.asked_seconds), (Some(reached), None), "{policy:?}");
        assert_eq!(outcome.lost_seconds, Some(reached % 1_000.0));
        assert_eq!(alone(&gpu, 20.0, &policy, Assumed::default()).fate, Fate::Survived);
    }
    let Policy::Memwarden(mut target, most) = memwarden() else { unreachable!("it is memwarden's") };
    let level = target.limits.levels[Resource::Cgroup.place()].expect("it has levels of the cgroup");
    target.limits.levels[Resource::Gpu.place()] = Some(level);
    let policy = Policy::Memwarden(target, most);
    let saves = Assumed { save: Some(60.0), every: None, ..Assumed::default() };
    let (outcome, host) = (alone(&gpu, 8.0, &policy, saves), alone(&ramp(), 8.0, &policy, saves));
    assert_eq!((outcome.fate, host.fate), (Fate::Terminated, Fate::Terminated));
    // The levels are the same. The rates of the host's memory decide on a kill only.
    assert_eq!(outcome, host);
    // A GPU that is full has not failed an allocation.
    let full = Series { gpu: true, ..series([(0.0, 1.0), (10.0, 8.0), (20.0, 8.0)]) };
    assert_eq!(alone(&full, 8.0, &Policy::Kernel, saves).fate, Fate::Survived);
}

#[test]
fn runs_that_share_the_memory_are_ended_one_by_one() {
    let (large, small) = (ramp(), series([(0.0, 3.0), (11_000.0, 3.0)]));
    for (policy, first) in [(Policy::Kernel, 0), (Policy::Earlyoom, 0), (Policy::Ray, 1)] {
        let outcomes = play(&[&large, &small], 9.0 * GIB, &policy, Assumed::default());
        let ended: Vec<_> = (0..2).filter(|run| outcomes[*run].fate != Fate::Survived).collect();
        let soonest = ended.iter().min_by(|one, other| {
            outcomes[**one].ended_seconds.partial_cmp(&outcomes[**other].ended_seconds).unwrap()
        });
        assert_eq!(soonest, Some(&first), "{policy:?} {outcomes:?}");
    }
    let outcomes = play(
        &[&small, &large],
        12.0 * GIB,
        &memwarden(),
        Assumed { save: Some(10.0), every: None, ..Assumed::default() },
    );
    assert!(outcomes.iter().any(|run| run.fate == Fate::Survived), "{outcomes:?}");
    assert!(outcomes.iter().any(|run| run.fate == Fate::Terminated), "{outcomes:?}");
    assert!(outcomes.iter().all(|run| run.fate != Fate::OomKilled), "{outcomes:?}");
}

#[test]
fn the_least_limit_is_the_peak_and_what_the_policy_keeps_free() {
    let run = ramp();
    let peak = 0.1 + 10_400.0 / 1024.0;
    for (policy, share) in [(Policy::Kernel, 1.0), (Policy::Earlyoom, 0.9), (Policy::Ray, 0.95)] {
        let limit = least_limit(&run, &policy, Assumed::default()).unwrap() / GIB;
        assert!((limit - peak / share).abs() < 0.02 * peak, "{policy:?}: {limit}");
    }
    assert_eq!(least_limit(&run, &Policy::Oomd, Assumed::default()), None);
    assert_eq!(for_99_percent((1..=200).map(f64::from).collect()), Some(198.0));
    assert_eq!((for_99_percent(vec![3.0, 1.0]), for_99_percent(Vec::new())), (Some(3.0), None));
}
