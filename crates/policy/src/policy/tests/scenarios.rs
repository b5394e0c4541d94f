//! What happens, as people read it.

use expect_test::{Expect, expect};

use super::world::{Job, play};
use super::{GIB, limits, secs};
use crate::policy::{Limits, Mode, Rung, Trigger};

/// In the unit of the played rates.
const MIB: f64 = 1_048_576.0;

#[track_caller]
fn check(limits: Limits, job: &Job, seconds: u32, expected: Expect) {
    expected.assert_eq(&play(limits, job, seconds));
}

fn ramp(_: f64) -> f64 {
    50.0 * MIB
}

#[test]
fn a_ramp_is_saved_and_ends() {
    check(
        limits(),
        &Job { takes: ramp, ..Job::default() },
        180,
        expect![[r#"
            at  71.6 s  2.50 GiB left: ok → warn: cgroup memory is near its soft level
            at  83.9 s  1.90 GiB left: warn → soft: the soft level of cgroup memory is crossed
            at  84.0 s  1.89 GiB left: soft → checkpoint: the soft level of cgroup memory is crossed, asked to save
            at  97.2 s  1.25 GiB left: checkpoint → term: the checkpoint is complete, asked to end
            at  98.2 s  1.61 GiB left: term → verify: all victims have ended
            at  98.5 s  2.81 GiB left: verify → cooldown: the shortage is over
            at 113.5 s  8.00 GiB left: cooldown → ok: the cooldown is over
        "#]],
    );
}

#[test]
fn a_plateau_below_the_levels_is_left_alone() {
    let takes = |time: f64| if time < 30.0 { 100.0 * MIB } else { 0.0 };
    check(limits(), &Job { takes, ..Job::default() }, 300, expect![[""]]);
}

#[test]
fn a_job_that_no_longer_grows_is_asked_and_not_ended() {
    // It grows until the soft level is crossed, and an hour later to the half of what lies between the levels.
    let takes = |time: f64| match time {
        t if t < 86.0 || (3_686.0..3_700.0).contains(&t) => 50.0 * MIB,
        _ => 0.0,
    };
    check(
        limits(),
        &Job { takes, ..Job::default() },
        3_600,
        expect![[r#"
        at  71.6 s  2.50 GiB left: ok → warn: cgroup memory is near its soft level
        at  83.9 s  1.90 GiB left: warn → soft: the soft level of cgroup memory is crossed
        at  84.0 s  1.89 GiB left: soft → checkpoint: the soft level of cgroup memory is crossed, asked to save
    "#]],
    );
    check(
        limits(),
        &Job { takes, ..Job::default() },
        3_800,
        expect![[r#"
            at  71.6 s  2.50 GiB left: ok → warn: cgroup memory is near its soft level
            at  83.9 s  1.90 GiB left: warn → soft: the soft level of cgroup memory is crossed
            at  84.0 s  1.89 GiB left: soft → checkpoint: the soft level of cgroup memory is crossed, asked to save
            at 3697.2 s  1.25 GiB left: checkpoint → checkpoint: the soft level of cgroup memory is crossed, asked to save
            at 3702.2 s  1.12 GiB left: checkpoint → term: the checkpoint is complete, asked to end
            at 3703.2 s  1.52 GiB left: term → verify: all victims have ended
            at 3703.5 s  2.72 GiB left: verify → cooldown: the shortage is over
            at 3718.5 s  8.00 GiB left: cooldown → ok: the cooldown is over
        "#]],
    );
}

/// 2.2 GiB for a second, past halfway to the hard level.
fn burst(time: f64) -> f64 {
    match time {
        t if t < 30.0 => 100.0 * MIB,
        t if (40.0..40.5).contains(&t) => 4.4 * 1024.0 * MIB,
        t if (41.5..42.0).contains(&t) => -4.4 * 1024.0 * MIB,
        _ => 0.0,
    }
}

#[test]
fn a_burst_that_is_shorter_than_the_time_for_ends_nothing() {
    for catches in [true, false] {
        check(
            limits(),
            &Job { takes: burst, catches, ..Job::default() },
            120,
            expect![[r#"
                at  40.1 s  2.19 GiB left: ok → warn: cgroup memory is near its soft level
                at  40.3 s  1.31 GiB left: warn → soft: the soft level of cgroup memory is crossed
                at  40.4 s  0.87 GiB left: soft → checkpoint: the soft level of cgroup memory is crossed, asked to save
                at  45.4 s  3.07 GiB left: checkpoint → cooldown: the shortage is over
                at  60.4 s  3.07 GiB left: cooldown → ok: the cooldown is over
            "#]],
        );
    }
}

#[test]
fn a_job_whose_save_takes_memory_is_asked_while_it_fits() {
    // From 6 GiB left; the soft level is 2 GiB, the hard level 0.5 GiB, and a save is requested a minute before it no longer fits.
    let rates: [fn(f64) -> f64; 3] = [|_| 2.0 * MIB, |_| 10.0 * MIB, |_| 40.0 * MIB];
    for save in [1, 3] {
        for takes in rates {
            let rate = takes(0.0) / MIB;
            let moves = play(limits(), &Job { takes, save: Some(save * GIB), ..Job::default() }, 3600);
            let asked = moves.lines().find(|line| line.ends_with("asked to save")).unwrap();
            let left: f64 = asked.split_whitespace().nth(3).unwrap().parse().unwrap();
            let save = f64::from(u32::try_from(save).unwrap());
            let minute = f64::max(save + 0.5 + 61.0 * rate / 1024.0, 2.0);
            assert!((save + 0.5..=minute).contains(&left), "{save} GiB, {rate} MiB/s: {moves}");
            assert!(!moves.contains("killed"), "{save} GiB, {rate} MiB/s: {moves}");
        }
    }
}

#[test]
fn what_a_save_lacks_is_reported_again_where_the_limit_can_be_raised() {
    // It grows past what the first raise gave, before the save fits.
    let job = Job {
        takes: |time| if time < 30.0 { 200.0 * MIB } else { 0.0 },
        save: Some(3 * GIB),
        ..Job::default()
    };
    let reports = |raises| {
        let limits = Limits {
            raises,
            max_state: Some(Rung::Checkpoint),
            forecast: Trigger { max_state: None, ..limits().forecast },
            ..limits()
        };
        play(limits, &job, 120).matches("needs more memory than is left").count()
    };
    assert_eq!(reports(false), 1);
    // After 1, 2, 4, 8, 16 and 32 seconds.
    assert_eq!(reports(true), 7);
}

#[test]
fn a_job_that_saves_fast_is_not_killed_for_what_its_save_takes() {
    // 5 GiB in 10 seconds: at that rate, the rest above the hard level would be used up within `kill_margin`.
    let takes = |_: f64| 2.0 * MIB;
    let job = Job { takes, save: Some(5 * GIB), saved: Some(10.5), ..Job::default() };
    let moves = play(Limits { kill_margin: secs(5), ..limits() }, &job, 600);
    assert!(moves.contains("asked to save") && !moves.contains("killed"), "{moves}");
}

#[test]
fn a_save_that_takes_longer_than_the_interval_of_requests_is_not_repeated() {
    let takes = |time: f64| if time < 99.0 { 50.0 * MIB } else { 0.0 };
    for request_interval in [secs(0), secs(300)] {
        let job = Job { takes, saved: Some(400.0), ..Job::default() };
        let moves = play(Limits { request_interval, ..limits() }, &job, 800);
        let count = |what: &str| moves.matches(what).count();
        assert_eq!((count("asked to save"), count("asked to end")), (1, 1), "{moves}");
    }
}

#[test]
fn a_job_that_is_predicted_to_run_out_is_ended_before_the_half() {
    let foreseen = |time: f64| Some(170.0 - time);
    let takes = |time: f64| if time < 86.0 { 50.0 * MIB } else { 1.0 * MIB };
    let ignored = Trigger { max_state: None, ..limits().forecast };
    let moves =
        play(Limits { forecast: ignored, ..limits() }, &Job { takes, foreseen, ..Job::default() }, 112);
    assert!(moves.contains("checkpoint") && !moves.contains("term"), "predictions are ignored: {moves}");
    check(
        limits(),
        &Job { takes, foreseen, ..Job::default() },
        112,
        expect![[r#"
        at   0.0 s  6.00 GiB left: ok → warn: exhaustion is predicted
        at  83.9 s  1.90 GiB left: warn → soft: the soft level of cgroup memory is crossed
        at  84.0 s  1.89 GiB left: soft → checkpoint: the soft level of cgroup memory is crossed, asked to save
        at 110.0 s  1.78 GiB left: checkpoint → term: the checkpoint is complete, asked to end
        at 111.0 s  2.18 GiB left: term → verify: all victims have ended
    "#]],
    );
}

#[test]
fn a_job_that_does_not_answer_has_its_grace_and_no_more() {
    let takes = |time: f64| if time < 99.0 { 50.0 * MIB } else { 0.0 };
    check(
        limits(),
        &Job { takes, saving: None, saved: None, ..Job::default() },
        180,
        expect![[r#"
            at  71.6 s  2.50 GiB left: ok → warn: cgroup memory is near its soft level
            at  83.9 s  1.90 GiB left: warn → soft: the soft level of cgroup memory is crossed
            at  84.0 s  1.89 GiB left: soft → checkpoint: the soft level of cgroup memory is crossed, asked to save
            at 114.0 s  1.17 GiB left: checkpoint → term: the time limit of the checkpoint is over, asked to end
            at 115.0 s  1.57 GiB left: term → verify: all victims have ended
            at 115.3 s  2.77 GiB left: verify → cooldown: the shortage is over
            at 130.3 s  8.00 GiB left: cooldown → ok: the cooldown is over
        "#]],
    );
}

#[test]
fn a_job_that_reports_saving_has_longer() {
    let takes = |time: f64| if time < 99.0 { 50.0 * MIB } else { 0.0 };
    check(
        limits(),
        &Job { takes, saved: Some(100.0), ..Job::default() },
        300,
        expect![[r#"
            at  71.6 s  2.50 GiB left: ok → warn: cgroup memory is near its soft level
            at  83.9 s  1.90 GiB left: warn → soft: the soft level of cgroup memory is crossed
            at  84.0 s  1.89 GiB left: soft → checkpoint: the soft level of cgroup memory is crossed, asked to save
            at 184.0 s  1.17 GiB left: checkpoint → term: the checkpoint is complete, asked to end
            at 185.0 s  1.57 GiB left: term → verify: all victims have ended
            at 185.3 s  2.77 GiB left: verify → cooldown: the shortage is over
            at 200.3 s  8.00 GiB left: cooldown → ok: the cooldown is over
        "#]],
    );
}

#[test]
fn a_checkpoint_that_is_never_complete_ends_all_the_same() {
    let takes = |time: f64| if time < 99.0 { 50.0 * MIB } else { 0.0 };
    check(
        limits(),
        &Job { takes, saved: None, ..Job::default() },
        800,
        expect![[r#"
            at  71.6 s  2.50 GiB left: ok → warn: cgroup memory is near its soft level
            at  83.9 s  1.90 GiB left: warn → soft: the soft level of cgroup memory is crossed
            at  84.0 s  1.89 GiB left: soft → checkpoint: the soft level of cgroup memory is crossed, asked to save
            at 684.0 s  1.17 GiB left: checkpoint → term: the time limit of the checkpoint is over, asked to end
            at 685.0 s  1.57 GiB left: term → verify: all victims have ended
            at 685.3 s  2.77 GiB left: verify → cooldown: the shortage is over
            at 700.3 s  8.00 GiB left: cooldown → ok: the cooldown is over
        "#]],
    );
}

#[test]
fn a_job_that_catches_nothing_is_asked_to_end_at_once() {
    check(
        limits(),
        &Job { takes: ramp, catches: false, saving: None, saved: None, ..Job::default() },
        180,
        expect![[r#"
            at  71.6 s  2.50 GiB left: ok → warn: cgroup memory is near its soft level
            at  83.9 s  1.90 GiB left: warn → soft: the soft level of cgroup memory is crossed
            at  84.0 s  1.89 GiB left: soft → checkpoint: the soft level of cgroup memory is crossed, asked to save
            at  97.2 s  1.25 GiB left: checkpoint → term: no process has a handler for the checkpoint signal, asked to end
            at  98.2 s  1.61 GiB left: term → verify: all victims have ended
            at  98.5 s  2.81 GiB left: verify → cooldown: the shortage is over
            at 113.5 s  8.00 GiB left: cooldown → ok: the cooldown is over
        "#]],
    );
}

#[test]
fn who_ignores_sigterm_is_killed_by_time() {
    let takes = |time: f64| if time < 99.0 { 50.0 * MIB } else { 0.0 };
    check(
        limits(),
        &Job { takes, ends: None, ..Job::default() },
        180,
        expect![[r#"
            at  71.6 s  2.50 GiB left: ok → warn: cgroup memory is near its soft level
            at  83.9 s  1.90 GiB left: warn → soft: the soft level of cgroup memory is crossed
            at  84.0 s  1.89 GiB left: soft → checkpoint: the soft level of cgroup memory is crossed, asked to save
            at  97.2 s  1.25 GiB left: checkpoint → term: the checkpoint is complete, asked to end
            at 107.2 s  1.17 GiB left: term → kill: the time limit after SIGTERM is over, killed
            at 107.3 s  1.17 GiB left: kill → verify: the kill was carried out
            at 108.0 s  2.77 GiB left: verify → cooldown: the shortage is over
            at 123.0 s  8.00 GiB left: cooldown → ok: the cooldown is over
        "#]],
    );
}

#[test]
fn the_hard_level_precedes_every_grace_period() {
    let takes = |time: f64| if time < 60.0 { 50.0 * MIB } else { 1500.0 * MIB };
    check(
        limits(),
        &Job { takes, ..Job::default() },
        180,
        expect![[r#"
            at  60.3 s  2.48 GiB left: ok → warn: cgroup memory is near its soft level
            at  60.9 s  1.61 GiB left: warn → soft: the soft level of cgroup memory is crossed
            at  61.0 s  1.46 GiB left: soft → checkpoint: the soft level of cgroup memory is crossed, asked to save
            at  61.7 s  0.43 GiB left: checkpoint → kill: the hard level of cgroup memory is crossed, killed
            at  61.8 s  0.29 GiB left: kill → verify: the kill was carried out
            at  62.8 s  2.80 GiB left: verify → cooldown: the shortage is over
            at  77.8 s  8.00 GiB left: cooldown → ok: the cooldown is over
        "#]],
    );
}

#[test]
fn memory_that_comes_back_by_itself_ends_it() {
    let takes = |time: f64| if time < 90.0 { 50.0 * MIB } else { -100.0 * MIB };
    check(
        limits(),
        &Job { takes, saving: None, saved: None, ..Job::default() },
        180,
        expect![[r#"
            at  71.6 s  2.50 GiB left: ok → warn: cgroup memory is near its soft level
            at  83.9 s  1.90 GiB left: warn → soft: the soft level of cgroup memory is crossed
            at  84.0 s  1.89 GiB left: soft → checkpoint: the soft level of cgroup memory is crossed, asked to save
            at 101.1 s  2.70 GiB left: checkpoint → cooldown: the shortage is over
            at 116.1 s  4.16 GiB left: cooldown → ok: the cooldown is over
        "#]],
    );
}

#[test]
fn memory_that_comes_back_slowly_takes_no_second_victim() {
    let takes = |_| 2000.0 * MIB;
    check(
        limits(),
        &Job { takes, returns: 100.0 * MIB, ..Job::default() },
        180,
        expect![[r#"
            at   1.7 s  2.48 GiB left: ok → warn: cgroup memory is near its soft level
            at   2.1 s  1.70 GiB left: warn → soft: the soft level of cgroup memory is crossed
            at   2.2 s  1.51 GiB left: soft → checkpoint: the soft level of cgroup memory is crossed, asked to save
            at   2.8 s  0.34 GiB left: checkpoint → kill: the hard level of cgroup memory is crossed, killed
            at   2.9 s  0.14 GiB left: kill → verify: the kill was carried out
            at  18.9 s  1.53 GiB left: verify → verify: the victims have ended and the shortage is not over
            at  28.9 s  2.51 GiB left: verify → cooldown: the shortage is over
            at  43.9 s  3.97 GiB left: cooldown → ok: the cooldown is over
        "#]],
    );
}

#[test]
fn memory_that_never_comes_back_takes_no_second_victim() {
    check(
        limits(),
        &Job { takes: |_| 2000.0 * MIB, returns: 0.0, rest: 3, ..Job::default() },
        120,
        expect![[r#"
            at   1.7 s  2.48 GiB left: ok → warn: cgroup memory is near its soft level
            at   2.1 s  1.70 GiB left: warn → soft: the soft level of cgroup memory is crossed
            at   2.2 s  1.51 GiB left: soft → checkpoint: the soft level of cgroup memory is crossed, asked to save
            at   2.8 s  0.34 GiB left: checkpoint → kill: the hard level of cgroup memory is crossed, killed
            at   2.9 s  0.14 GiB left: kill → verify: the kill was carried out
            at  20.9 s  0.00 GiB left: verify → verify: the victims have ended and the shortage is not over
        "#]],
    );
}

#[test]
fn a_saw_does_not_start_the_hook_again_and_again() {
    let takes = |time: f64| if time < 8.0 || (time - 8.0) % 6.0 > 3.0 { 600.0 * MIB } else { -600.0 * MIB };
    check(
        Limits { max_state: Some(Rung::Soft), for_time: secs(1) / 5, ..limits() },
        &Job { takes, ..Job::default() },
        60,
        expect![[r#"
            at   5.9 s  2.48 GiB left: ok → warn: cgroup memory is near its soft level
            at   7.0 s  1.84 GiB left: warn → soft: the soft level of cgroup memory is crossed
            at  10.2 s  2.66 GiB left: soft → cooldown: the shortage is over
            at  25.2 s  2.07 GiB left: cooldown → warn: cgroup memory is near its soft level
            at  25.6 s  1.84 GiB left: warn → soft: the soft level of cgroup memory is crossed
            at  27.6 s  2.66 GiB left: soft → cooldown: the shortage is over
            at  42.6 s  2.78 GiB left: cooldown → ok: the cooldown is over
            at  43.1 s  2.48 GiB left: ok → warn: cgroup memory is near its soft level
        "#]],
    );
}

#[test]
fn a_process_that_cannot_be_killed_is_reported_and_left() {
    let takes = |_| 2000.0 * MIB;
    check(
        limits(),
        &Job { takes, dies: None, ..Job::default() },
        120,
        expect![[r#"
            at   1.7 s  2.48 GiB left: ok → warn: cgroup memory is near its soft level
            at   2.1 s  1.70 GiB left: warn → soft: the soft level of cgroup memory is crossed
            at   2.2 s  1.51 GiB left: soft → checkpoint: the soft level of cgroup memory is crossed, asked to save
            at   2.8 s  0.34 GiB left: checkpoint → kill: the hard level of cgroup memory is crossed, killed
            at   2.9 s  0.14 GiB left: kill → verify: the kill was carried out
            at  20.9 s  0.00 GiB left: verify → verify: victims have not ended within their time limit
        "#]],
    );
}

#[test]
fn a_forecast_leads_to_a_checkpoint_request_and_no_further() {
    let foreseen = |time: f64| (10.0..100.0).contains(&time).then_some(400.0 - 4.0 * time);
    check(
        limits(),
        &Job { foreseen, ..Job::default() },
        180,
        expect![[r#"
            at  25.0 s  6.00 GiB left: ok → warn: exhaustion is predicted
            at  87.0 s  6.00 GiB left: warn → soft: exhaustion is predicted
            at  87.1 s  6.00 GiB left: soft → checkpoint: exhaustion is predicted, asked to save
            at 102.0 s  6.00 GiB left: checkpoint → cooldown: the shortage is over
            at 117.0 s  6.00 GiB left: cooldown → ok: the cooldown is over
        "#]],
    );
}

#[test]
fn an_alert_asks_for_a_checkpoint() {
    check(
        limits(),
        &Job { alert: 10.0..40.0, ..Job::default() },
        120,
        expect![[r#"
            at  10.0 s  6.00 GiB left: ok → warn: an alert fires
            at  12.0 s  6.00 GiB left: warn → soft: an alert fires
            at  12.1 s  6.00 GiB left: soft → checkpoint: an alert fires, asked to save
            at  42.0 s  6.00 GiB left: checkpoint → cooldown: the shortage is over
            at  57.0 s  6.00 GiB left: cooldown → ok: the cooldown is over
        "#]],
    );
}

#[test]
fn nothing_is_done_blindly() {
    let takes = |time: f64| if time < 99.0 { 50.0 * MIB } else { 0.0 };
    let job = Job { takes, saving: None, saved: None, blind: 100.0..130.0, ..Job::default() };
    check(
        limits(),
        &job,
        180,
        expect![[r#"
            at  71.6 s  2.50 GiB left: ok → warn: cgroup memory is near its soft level
            at  83.9 s  1.90 GiB left: warn → soft: the soft level of cgroup memory is crossed
            at  84.0 s  1.89 GiB left: soft → checkpoint: the soft level of cgroup memory is crossed, asked to save
            at 103.0 s  1.17 GiB left: checkpoint → blind: no watched reading is recent
            at 130.0 s  1.17 GiB left: blind → checkpoint: readings are recent again
            at 132.0 s  1.17 GiB left: checkpoint → term: the time limit of the checkpoint is over, asked to end
            at 133.0 s  1.57 GiB left: term → verify: all victims have ended
            at 133.3 s  2.77 GiB left: verify → cooldown: the shortage is over
            at 148.3 s  8.00 GiB left: cooldown → ok: the cooldown is over
        "#]],
    );
}

#[test]
fn observing_records_the_same_incident_and_does_nothing() {
    let takes = |time: f64| if time < 99.0 { 50.0 * MIB } else { 0.0 };
    check(
        Limits { mode: Mode::Observe, ..limits() },
        &Job { takes, ..Job::default() },
        300,
        expect![[r#"
            at  71.6 s  2.50 GiB left: ok → warn: cgroup memory is near its soft level
            at  83.9 s  1.90 GiB left: warn → soft: the soft level of cgroup memory is crossed
            at  84.0 s  1.89 GiB left: soft → checkpoint: the soft level of cgroup memory is crossed
            at 114.0 s  1.17 GiB left: checkpoint → term: the time limit of the checkpoint is over
            at 124.0 s  1.17 GiB left: term → kill: the time limit after SIGTERM is over
            at 124.1 s  1.17 GiB left: kill → verify: the kill was carried out
        "#]],
    );
}

#[test]
fn a_policy_that_may_only_ask_never_ends_a_job() {
    let limits = Limits { max_state: Some(Rung::Checkpoint), ..limits() };
    check(
        limits,
        &Job { takes: ramp, ..Job::default() },
        300,
        expect![[r#"
            at  71.6 s  2.50 GiB left: ok → warn: cgroup memory is near its soft level
            at  83.9 s  1.90 GiB left: warn → soft: the soft level of cgroup memory is crossed
            at  84.0 s  1.89 GiB left: soft → checkpoint: the soft level of cgroup memory is crossed, asked to save
        "#]],
    );
}

#[test]
fn the_hook_has_its_time_first() {
    check(
        Limits { hook_wait: secs(5), ..limits() },
        &Job { takes: ramp, ..Job::default() },
        180,
        expect![[r#"
            at  71.6 s  2.50 GiB left: ok → warn: cgroup memory is near its soft level
            at  83.9 s  1.90 GiB left: warn → soft: the soft level of cgroup memory is crossed
            at  88.9 s  1.65 GiB left: soft → checkpoint: the waiting time of the hook is over, asked to save
            at  97.2 s  1.25 GiB left: checkpoint → term: the checkpoint is complete, asked to end
            at  98.2 s  1.61 GiB left: term → verify: all victims have ended
            at  98.5 s  2.81 GiB left: verify → cooldown: the shortage is over
            at 113.5 s  8.00 GiB left: cooldown → ok: the cooldown is over
        "#]],
    );
}

#[test]
fn a_saw_is_not_asked_again_and_again() {
    let takes = |time: f64| if time % 60.0 < 30.0 { 180.0 * MIB } else { -180.0 * MIB };
    let job = Job { takes, saved: Some(2.0), ..Job::default() };
    let limits = Limits { max_state: Some(Rung::Checkpoint), cooldown: secs(5), ..limits() };
    check(
        limits,
        &job,
        130,
        expect![[r#"
            at  19.9 s  2.48 GiB left: ok → warn: cgroup memory is near its soft level
            at  23.8 s  1.80 GiB left: warn → soft: the soft level of cgroup memory is crossed
            at  23.9 s  1.78 GiB left: soft → checkpoint: the soft level of cgroup memory is crossed, asked to save
            at  42.0 s  2.85 GiB left: checkpoint → cooldown: the shortage is over
            at  47.0 s  3.73 GiB left: cooldown → ok: the cooldown is over
            at  79.9 s  2.48 GiB left: ok → warn: cgroup memory is near its soft level
            at  83.8 s  1.80 GiB left: warn → soft: the soft level of cgroup memory is crossed
            at  83.9 s  1.78 GiB left: soft → checkpoint: the soft level of cgroup memory is crossed
            at 102.0 s  2.85 GiB left: checkpoint → cooldown: the shortage is over
            at 107.0 s  3.73 GiB left: cooldown → ok: the cooldown is over
        "#]],
    );
}

#[test]
fn a_used_up_rate_disarms_and_the_hard_level_may_be_excepted() {
    let job = Job { takes: ramp, ends: None, ..Job::default() };
    let limits = |ignores| Limits { max_kills_per_hour: 0, hard_ignores_rate: ignores, ..limits() };
    check(
        limits(false),
        &job,
        130,
        expect![[r#"
            at   0.0 s  6.00 GiB left: ok → disarmed: the rate limit is used up
            at  83.9 s  1.90 GiB left: disarmed → disarmed: an action is due and the rate limit forbids it
        "#]],
    );
    check(
        limits(true),
        &job,
        130,
        expect![[r#"
            at   0.0 s  6.00 GiB left: ok → disarmed: the rate limit is used up
            at  83.9 s  1.90 GiB left: disarmed → disarmed: an action is due and the rate limit forbids it
            at 112.6 s  0.50 GiB left: disarmed → kill: the hard level of cgroup memory is crossed, killed
            at 112.7 s  0.49 GiB left: kill → verify: the kill was carried out
            at 113.6 s  2.88 GiB left: verify → cooldown: the shortage is over
            at 113.7 s  3.28 GiB left: cooldown → disarmed: the rate limit is used up
        "#]],
    );
}

#[test]
fn a_process_that_may_not_be_killed_is_reported() {
    let job = Job { takes: ramp, ends: None, ..Job::default() };
    check(
        Limits { max_state: Some(Rung::Term), ..limits() },
        &job,
        130,
        expect![[r#"
            at  71.6 s  2.50 GiB left: ok → warn: cgroup memory is near its soft level
            at  83.9 s  1.90 GiB left: warn → soft: the soft level of cgroup memory is crossed
            at  84.0 s  1.89 GiB left: soft → checkpoint: the soft level of cgroup memory is crossed, asked to save
            at  97.2 s  1.25 GiB left: checkpoint → term: the checkpoint is complete, asked to end
            at 107.2 s  0.76 GiB left: term → term: victims have not ended within their time limit
        "#]],
    );
}

#[test]
fn no_checkpoint_is_requested_where_its_save_would_exhaust_the_memory() {
    // Nothing predicted the growth. A save takes 1.4 GiB, which are there above the hard level again when the job has freed some.
    let takes = |time: f64| match time {
        t if (81.0..83.0).contains(&t) => 2_116.0 * MIB,
        t if (100.0..110.0).contains(&t) => -8.0 * MIB,
        _ => 0.0,
    };
    let save = Some(1434 << 20);
    check(
        limits(),
        &Job { takes, save, ..Job::default() },
        130,
        expect![[r#"
            at  81.6 s  4.55 GiB left: ok → warn: it is predicted that a checkpoint can no longer be saved soon
            at  82.9 s  1.87 GiB left: warn → soft: the soft level of cgroup memory is crossed
            at  83.0 s  1.87 GiB left: soft → soft: saving a checkpoint needs more memory than is left
            at 104.2 s  1.90 GiB left: soft → checkpoint: the soft level of cgroup memory is crossed, asked to save
        "#]],
    );
}

#[test]
fn a_job_whose_save_never_fits_is_ended_by_the_hard_level_only() {
    let save = Some(6 << 30);
    check(
        limits(),
        &Job { takes: ramp, save, ..Job::default() },
        150,
        expect![[r#"
        at  71.6 s  2.50 GiB left: ok → warn: cgroup memory is near its soft level
        at  83.9 s  1.90 GiB left: warn → soft: the soft level of cgroup memory is crossed
        at  84.0 s  1.89 GiB left: soft → soft: saving a checkpoint needs more memory than is left
        at 112.6 s  0.50 GiB left: soft → kill: the hard level of cgroup memory is crossed, killed
        at 112.7 s  0.49 GiB left: kill → verify: the kill was carried out
        at 113.6 s  2.88 GiB left: verify → cooldown: the shortage is over
        at 128.6 s  8.00 GiB left: cooldown → ok: the cooldown is over
    "#]],
    );
}

#[test]
fn no_prediction_keeps_a_job_from_being_ended() {
    // It stays below the half of what lies between the levels, and says that its save takes more than there is.
    let takes = |time: f64| if time < 99.0 { 50.0 * MIB } else { 0.0 };
    let save = Some(u64::MAX);
    check(
        limits(),
        &Job { takes, save, ..Job::default() },
        180,
        expect![[r#"
            at  71.6 s  2.50 GiB left: ok → warn: cgroup memory is near its soft level
            at  83.9 s  1.90 GiB left: warn → soft: the soft level of cgroup memory is crossed
            at  84.0 s  1.89 GiB left: soft → soft: saving a checkpoint needs more memory than is left
            at 113.9 s  1.17 GiB left: soft → term: saving a checkpoint needs more memory than is left, asked to end
            at 114.9 s  1.57 GiB left: term → verify: all victims have ended
            at 115.2 s  2.77 GiB left: verify → cooldown: the shortage is over
            at 130.2 s  8.00 GiB left: cooldown → ok: the cooldown is over
        "#]],
    );
}
