//! What happens, as people read it.

use expect_test::{Expect, expect};

use super::world::{Job, play};
use super::{limits, secs};
use crate::protection::policy::{Limits, Mode, Reach};

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
              71.6 s  2.50 GiB  ok → warn: cgroup memory is near its soft level
              83.9 s  1.90 GiB  warn → soft: the soft level of cgroup memory is crossed
              84.0 s  1.89 GiB  soft → checkpoint: the soft level of cgroup memory is crossed, asked to save
              89.0 s  1.65 GiB  checkpoint → term: the checkpoint is complete, asked to end
              90.0 s  2.01 GiB  term → verify: no victim is left
              90.2 s  2.81 GiB  verify → cooldown: memory is back
             105.2 s  8.00 GiB  cooldown → ok: the quiet time is over
        "#]],
    );
}

#[test]
fn a_plateau_below_the_levels_is_left_alone() {
    let takes = |time: f64| if time < 30.0 { 100.0 * MIB } else { 0.0 };
    check(limits(), &Job { takes, ..Job::default() }, 300, expect![[""]]);
}

#[test]
fn a_job_that_says_nothing_has_its_grace_and_no_more() {
    let takes = |time: f64| if time < 90.0 { 50.0 * MIB } else { 0.0 };
    check(
        limits(),
        &Job { takes, saving: None, saved: None, ..Job::default() },
        180,
        expect![[r#"
              71.6 s  2.50 GiB  ok → warn: cgroup memory is near its soft level
              83.9 s  1.90 GiB  warn → soft: the soft level of cgroup memory is crossed
              84.0 s  1.89 GiB  soft → checkpoint: the soft level of cgroup memory is crossed, asked to save
             114.0 s  1.61 GiB  checkpoint → term: the time to save is over, asked to end
             115.0 s  2.01 GiB  term → verify: no victim is left
             115.2 s  2.81 GiB  verify → cooldown: memory is back
             130.2 s  8.00 GiB  cooldown → ok: the quiet time is over
        "#]],
    );
}

#[test]
fn a_job_that_says_it_is_saving_has_longer() {
    let takes = |time: f64| if time < 90.0 { 50.0 * MIB } else { 0.0 };
    check(
        limits(),
        &Job { takes, saved: Some(100.0), ..Job::default() },
        300,
        expect![[r#"
              71.6 s  2.50 GiB  ok → warn: cgroup memory is near its soft level
              83.9 s  1.90 GiB  warn → soft: the soft level of cgroup memory is crossed
              84.0 s  1.89 GiB  soft → checkpoint: the soft level of cgroup memory is crossed, asked to save
             184.0 s  1.61 GiB  checkpoint → term: the checkpoint is complete, asked to end
             185.0 s  2.01 GiB  term → verify: no victim is left
             185.2 s  2.81 GiB  verify → cooldown: memory is back
             200.2 s  8.00 GiB  cooldown → ok: the quiet time is over
        "#]],
    );
}

#[test]
fn a_checkpoint_that_is_never_complete_ends_all_the_same() {
    let takes = |time: f64| if time < 90.0 { 50.0 * MIB } else { 0.0 };
    check(
        limits(),
        &Job { takes, saved: None, ..Job::default() },
        800,
        expect![[r#"
              71.6 s  2.50 GiB  ok → warn: cgroup memory is near its soft level
              83.9 s  1.90 GiB  warn → soft: the soft level of cgroup memory is crossed
              84.0 s  1.89 GiB  soft → checkpoint: the soft level of cgroup memory is crossed, asked to save
             684.0 s  1.61 GiB  checkpoint → term: the time to save is over, asked to end
             685.0 s  2.01 GiB  term → verify: no victim is left
             685.2 s  2.81 GiB  verify → cooldown: memory is back
             700.2 s  8.00 GiB  cooldown → ok: the quiet time is over
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
              71.6 s  2.50 GiB  ok → warn: cgroup memory is near its soft level
              83.9 s  1.90 GiB  warn → soft: the soft level of cgroup memory is crossed
              84.0 s  1.89 GiB  soft → checkpoint: the soft level of cgroup memory is crossed, asked to save
              84.1 s  1.89 GiB  checkpoint → term: no process catches the checkpoint signal, asked to end
              85.1 s  2.24 GiB  term → verify: no victim is left
              85.2 s  2.64 GiB  verify → cooldown: memory is back
             100.2 s  8.00 GiB  cooldown → ok: the quiet time is over
        "#]],
    );
}

#[test]
fn who_ignores_sigterm_is_killed_by_time() {
    let takes = |time: f64| if time < 90.0 { 50.0 * MIB } else { 0.0 };
    check(
        limits(),
        &Job { takes, ends: None, ..Job::default() },
        180,
        expect![[r#"
              71.6 s  2.50 GiB  ok → warn: cgroup memory is near its soft level
              83.9 s  1.90 GiB  warn → soft: the soft level of cgroup memory is crossed
              84.0 s  1.89 GiB  soft → checkpoint: the soft level of cgroup memory is crossed, asked to save
              89.0 s  1.65 GiB  checkpoint → term: the checkpoint is complete, asked to end
              99.0 s  1.61 GiB  term → kill: the time to end is over, killed
              99.1 s  1.61 GiB  kill → verify: the kill was carried out
              99.7 s  2.81 GiB  verify → cooldown: memory is back
             114.7 s  8.00 GiB  cooldown → ok: the quiet time is over
        "#]],
    );
}

#[test]
fn the_hard_level_wins_over_every_courtesy() {
    let takes = |time: f64| if time < 60.0 { 50.0 * MIB } else { 1500.0 * MIB };
    check(
        limits(),
        &Job { takes, ..Job::default() },
        180,
        expect![[r#"
              60.3 s  2.48 GiB  ok → warn: cgroup memory is near its soft level
              61.7 s  0.43 GiB  warn → kill: the hard level of cgroup memory is crossed, killed
              61.8 s  0.29 GiB  kill → verify: the kill was carried out
              62.8 s  2.80 GiB  verify → cooldown: memory is back
              77.8 s  8.00 GiB  cooldown → ok: the quiet time is over
        "#]],
    );
}

#[test]
fn memory_that_comes_back_by_itself_ends_it() {
    let takes = |time: f64| if time < 90.0 { 50.0 * MIB } else { -100.0 * MIB };
    check(
        limits(),
        &Job { takes, saved: None, ..Job::default() },
        180,
        expect![[r#"
              71.6 s  2.50 GiB  ok → warn: cgroup memory is near its soft level
              83.9 s  1.90 GiB  warn → soft: the soft level of cgroup memory is crossed
              84.0 s  1.89 GiB  soft → checkpoint: the soft level of cgroup memory is crossed, asked to save
             101.1 s  2.70 GiB  checkpoint → cooldown: memory is back
             116.1 s  4.16 GiB  cooldown → ok: the quiet time is over
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
               1.7 s  2.48 GiB  ok → warn: cgroup memory is near its soft level
               2.8 s  0.34 GiB  warn → kill: the hard level of cgroup memory is crossed, killed
               2.9 s  0.14 GiB  kill → verify: the kill was carried out
              18.9 s  1.53 GiB  verify → verify: the victims are gone and their memory is not back
              28.8 s  2.50 GiB  verify → cooldown: memory is back
              43.8 s  3.96 GiB  cooldown → ok: the quiet time is over
        "#]],
    );
}

#[test]
fn who_cannot_be_killed_is_said_and_left() {
    let takes = |_| 2000.0 * MIB;
    check(
        limits(),
        &Job { takes, dies: None, ..Job::default() },
        120,
        expect![[r#"
               1.7 s  2.48 GiB  ok → warn: cgroup memory is near its soft level
               2.8 s  0.34 GiB  warn → kill: the hard level of cgroup memory is crossed, killed
               2.9 s  0.14 GiB  kill → verify: the kill was carried out
              20.9 s  0.00 GiB  verify → verify: victims are still there after their time
        "#]],
    );
}

#[test]
fn what_is_foreseen_asks_for_a_checkpoint_and_no_more() {
    let foreseen = |time: f64| (10.0..100.0).contains(&time).then_some(400.0 - 4.0 * time);
    check(
        limits(),
        &Job { foreseen, ..Job::default() },
        180,
        expect![[r#"
              25.0 s  6.00 GiB  ok → warn: exhaustion is foreseen
              87.0 s  6.00 GiB  warn → soft: exhaustion is foreseen
              87.1 s  6.00 GiB  soft → checkpoint: exhaustion is foreseen, asked to save
             102.0 s  6.00 GiB  checkpoint → cooldown: memory is back
             117.0 s  6.00 GiB  cooldown → ok: the quiet time is over
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
              10.0 s  6.00 GiB  ok → warn: an alert fires
              12.0 s  6.00 GiB  warn → soft: an alert fires
              12.1 s  6.00 GiB  soft → checkpoint: an alert fires, asked to save
              42.0 s  6.00 GiB  checkpoint → cooldown: memory is back
              57.0 s  6.00 GiB  cooldown → ok: the quiet time is over
        "#]],
    );
}

#[test]
fn nothing_is_done_blindly() {
    let takes = |time: f64| if time < 90.0 { 50.0 * MIB } else { 0.0 };
    let job = Job { takes, saving: None, saved: None, blind: 95.0..125.0, ..Job::default() };
    check(
        limits(),
        &job,
        180,
        expect![[r#"
              71.6 s  2.50 GiB  ok → warn: cgroup memory is near its soft level
              83.9 s  1.90 GiB  warn → soft: the soft level of cgroup memory is crossed
              84.0 s  1.89 GiB  soft → checkpoint: the soft level of cgroup memory is crossed, asked to save
              98.0 s  1.61 GiB  checkpoint → blind: nothing that is watched was read lately
             125.0 s  1.61 GiB  blind → checkpoint: it can be read again
             125.1 s  1.61 GiB  checkpoint → term: the time to save is over, asked to end
             126.1 s  2.01 GiB  term → verify: no victim is left
             126.3 s  2.81 GiB  verify → cooldown: memory is back
             141.3 s  8.00 GiB  cooldown → ok: the quiet time is over
        "#]],
    );
}

#[test]
fn observing_tells_the_same_story_and_does_nothing() {
    let takes = |time: f64| if time < 90.0 { 50.0 * MIB } else { 0.0 };
    check(
        Limits { mode: Mode::Observe, ..limits() },
        &Job { takes, ..Job::default() },
        300,
        expect![[r#"
              71.6 s  2.50 GiB  ok → warn: cgroup memory is near its soft level
              83.9 s  1.90 GiB  warn → soft: the soft level of cgroup memory is crossed
              84.0 s  1.89 GiB  soft → checkpoint: the soft level of cgroup memory is crossed
             114.0 s  1.61 GiB  checkpoint → term: the time to save is over
             124.0 s  1.61 GiB  term → kill: the time to end is over
             124.1 s  1.61 GiB  kill → verify: the kill was carried out
        "#]],
    );
}

#[test]
fn a_policy_that_may_only_ask_never_ends_a_job() {
    let limits = Limits { reach: Reach::Checkpoint, ..limits() };
    check(
        limits,
        &Job { takes: ramp, ..Job::default() },
        300,
        expect![[r#"
              71.6 s  2.50 GiB  ok → warn: cgroup memory is near its soft level
              83.9 s  1.90 GiB  warn → soft: the soft level of cgroup memory is crossed
              84.0 s  1.89 GiB  soft → checkpoint: the soft level of cgroup memory is crossed, asked to save
        "#]],
    );
}

#[test]
fn the_hook_has_its_time_first() {
    check(
        Limits { hook_time: secs(5), ..limits() },
        &Job { takes: ramp, ..Job::default() },
        180,
        expect![[r#"
              71.6 s  2.50 GiB  ok → warn: cgroup memory is near its soft level
              83.9 s  1.90 GiB  warn → soft: the soft level of cgroup memory is crossed
              88.9 s  1.65 GiB  soft → checkpoint: the hook had its time, asked to save
              93.9 s  1.41 GiB  checkpoint → term: the checkpoint is complete, asked to end
              94.9 s  1.77 GiB  term → verify: no victim is left
              95.1 s  2.57 GiB  verify → cooldown: memory is back
             110.1 s  8.00 GiB  cooldown → ok: the quiet time is over
        "#]],
    );
}

#[test]
fn a_saw_is_not_asked_again_and_again() {
    let takes = |time: f64| if time % 60.0 < 30.0 { 180.0 * MIB } else { -180.0 * MIB };
    let job = Job { takes, saved: Some(2.0), ..Job::default() };
    let limits = Limits { reach: Reach::Checkpoint, cooldown: secs(5), ..limits() };
    check(
        limits,
        &job,
        130,
        expect![[r#"
              19.9 s  2.48 GiB  ok → warn: cgroup memory is near its soft level
              24.7 s  1.64 GiB  warn → soft: the soft level of cgroup memory is crossed
              24.8 s  1.62 GiB  soft → checkpoint: the soft level of cgroup memory is crossed, asked to save
              42.0 s  2.85 GiB  checkpoint → cooldown: memory is back
              47.0 s  3.73 GiB  cooldown → ok: the quiet time is over
              79.9 s  2.48 GiB  ok → warn: cgroup memory is near its soft level
              84.7 s  1.64 GiB  warn → soft: the soft level of cgroup memory is crossed
              84.8 s  1.62 GiB  soft → checkpoint: the soft level of cgroup memory is crossed
             102.0 s  2.85 GiB  checkpoint → cooldown: memory is back
             107.0 s  3.73 GiB  cooldown → ok: the quiet time is over
        "#]],
    );
}
