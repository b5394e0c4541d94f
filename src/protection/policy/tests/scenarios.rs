//! What happens, as people read it.

use expect_test::{Expect, expect};

use super::world::{Job, play};
use super::{GIB, MIB, limits, secs};
use crate::protection::policy::{Limits, Mode, Reach};

#[track_caller]
fn check(limits: Limits, job: &Job, seconds: u32, expected: Expect) {
    expected.assert_eq(&play(limits, job, seconds));
}

fn ramp(_: f64) -> f64 {
    50.0 * MIB as f64
}

#[test]
fn a_ramp_is_saved_and_ends() {
    check(limits(), &Job { takes: ramp, ..Job::default() }, 180, expect![[r#"
          71.6 s  2.50 GiB  ok → warn: cgroup memory is near its soft level
          83.9 s  1.90 GiB  warn → soft: the soft level of cgroup memory is crossed
          84.0 s  1.89 GiB  soft → checkpoint: the soft level of cgroup memory is crossed, asked to save
          89.0 s  1.65 GiB  checkpoint → term: the checkpoint is complete, asked to end
          90.0 s  2.01 GiB  term → verify: no victim is left
          90.2 s  2.81 GiB  verify → cooldown: memory is back
         105.2 s  8.00 GiB  cooldown → ok: the quiet time is over
    "#]]);
}

#[test]
fn a_plateau_below_the_levels_is_left_alone() {
    let takes = |time: f64| if time < 30.0 { 100.0 * MIB as f64 } else { 0.0 };
    check(limits(), &Job { takes, ..Job::default() }, 300, expect![[""]]);
}

#[test]
fn a_job_that_says_nothing_has_its_grace_and_no_more() {
    let takes = |time: f64| if time < 90.0 { 50.0 * MIB as f64 } else { 0.0 };
    check(limits(), &Job { takes, saving: None, saved: None, ..Job::default() }, 180, expect![[r#"
          71.6 s  2.50 GiB  ok → warn: cgroup memory is near its soft level
          83.9 s  1.90 GiB  warn → soft: the soft level of cgroup memory is crossed
          84.0 s  1.89 GiB  soft → checkpoint: the soft level of cgroup memory is crossed, asked to save
         114.0 s  1.61 GiB  checkpoint → term: the time to save is over, asked to end
         115.0 s  2.01 GiB  term → verify: no victim is left
         115.2 s  2.81 GiB  verify → cooldown: memory is back
         130.2 s  8.00 GiB  cooldown → ok: the quiet time is over
    "#]]);
}

#[test]
fn a_job_that_says_it_is_saving_has_longer() {
    let takes = |time: f64| if time < 90.0 { 50.0 * MIB as f64 } else { 0.0 };
    check(limits(), &Job { takes, saved: Some(100.0), ..Job::default() }, 300, expect![[r#"
          71.6 s  2.50 GiB  ok → warn: cgroup memory is near its soft level
          83.9 s  1.90 GiB  warn → soft: the soft level of cgroup memory is crossed
          84.0 s  1.89 GiB  soft → checkpoint: the soft level of cgroup memory is crossed, asked to save
         184.0 s  1.61 GiB  checkpoint → term: the checkpoint is complete, asked to end
         185.0 s  2.01 GiB  term → verify: no victim is left
         185.2 s  2.81 GiB  verify → cooldown: memory is back
         200.2 s  8.00 GiB  cooldown → ok: the quiet time is over
    "#]]);
}

#[test]
fn a_checkpoint_that_is_never_complete_ends_all_the_same() {
    let takes = |time: f64| if time < 90.0 { 50.0 * MIB as f64 } else { 0.0 };
    check(limits(), &Job { takes, saved: None, ..Job::default() }, 800, expect![[r#"
          71.6 s  2.50 GiB  ok → warn: cgroup memory is near its soft level
          83.9 s  1.90 GiB  warn → soft: the soft level of cgroup memory is crossed
          84.0 s  1.89 GiB  soft → checkpoint: the soft level of cgroup memory is crossed, asked to save
         684.0 s  1.61 GiB  checkpoint → term: the time to save is over, asked to end
         685.0 s  2.01 GiB  term → verify: no victim is left
         685.2 s  2.81 GiB  verify → cooldown: memory is back
         700.2 s  8.00 GiB  cooldown → ok: the quiet time is over
    "#]]);
}

#[test]
fn a_job_that_catches_nothing_is_asked_to_end_at_once() {
    check(limits(), &Job { takes: ramp, catches: false, saving: None, saved: None, ..Job::default() }, 180, expect![[""]]);
}

#[test]
fn who_ignores_sigterm_is_killed_by_time() {
    let takes = |time: f64| if time < 90.0 { 50.0 * MIB as f64 } else { 0.0 };
    check(limits(), &Job { takes, ends: None, ..Job::default() }, 180, expect![[""]]);
}

#[test]
fn the_hard_level_wins_over_every_courtesy() {
    let takes = |time: f64| if time < 60.0 { 50.0 * MIB as f64 } else { 1500.0 * MIB as f64 };
    check(limits(), &Job { takes, ..Job::default() }, 180, expect![[""]]);
}

#[test]
fn memory_that_comes_back_by_itself_ends_it() {
    let takes = |time: f64| if time < 90.0 { 50.0 * MIB as f64 } else { -100.0 * MIB as f64 };
    check(limits(), &Job { takes, saved: None, ..Job::default() }, 180, expect![[""]]);
}

#[test]
fn memory_that_comes_back_slowly_takes_no_second_victim() {
    let takes = |_| 2000.0 * MIB as f64;
    check(limits(), &Job { takes, returns: 100.0 * MIB as f64, ..Job::default() }, 180, expect![[""]]);
}

#[test]
fn who_cannot_be_killed_is_said_and_left() {
    let takes = |_| 2000.0 * MIB as f64;
    check(limits(), &Job { takes, dies: None, ..Job::default() }, 120, expect![[""]]);
}

#[test]
fn what_is_foreseen_asks_for_a_checkpoint_and_no_more() {
    let foreseen = |time: f64| (10.0..100.0).contains(&time).then_some(400.0 - 4.0 * time);
    check(limits(), &Job { foreseen, ..Job::default() }, 180, expect![[r#"
          71.6 s  2.50 GiB  ok → warn: cgroup memory is near its soft level
          83.9 s  1.90 GiB  warn → soft: the soft level of cgroup memory is crossed
          84.0 s  1.89 GiB  soft → checkpoint: the soft level of cgroup memory is crossed, asked to save
    "#]]);
}

#[test]
fn an_alert_asks_for_a_checkpoint() {
    check(limits(), &Job { alert: 10.0..40.0, ..Job::default() }, 120, expect![[""]]);
}

#[test]
fn nothing_is_done_blindly() {
    let takes = |time: f64| if time < 90.0 { 50.0 * MIB as f64 } else { 0.0 };
    let job = Job { takes, saving: None, saved: None, blind: 95.0..125.0, ..Job::default() };
    check(limits(), &job, 180, expect![[""]]);
}

#[test]
fn observing_tells_the_same_story_and_does_nothing() {
    let takes = |time: f64| if time < 90.0 { 50.0 * MIB as f64 } else { 0.0 };
    check(Limits { mode: Mode::Observe, ..limits() }, &Job { takes, ..Job::default() }, 300, expect![[""]]);
}

#[test]
fn a_policy_that_may_only_ask_never_ends_a_job() {
    let limits = Limits { reach: Reach::Checkpoint, ..limits() };
    check(limits, &Job { takes: ramp, ..Job::default() }, 300, expect![[""]]);
}

#[test]
fn the_hook_has_its_time_first() {
    check(Limits { hook_time: secs(5), ..limits() }, &Job { takes: ramp, ..Job::default() }, 180, expect![[""]]);
}

#[test]
fn a_saw_is_not_asked_again_and_again() {
    let takes = |time: f64| if time % 60.0 < 30.0 { 180.0 * MIB as f64 } else { -180.0 * MIB as f64 };
    let job = Job { takes, saved: Some(2.0), ..Job::default() };
    let limits = Limits { reach: Reach::Checkpoint, cooldown: secs(5), ..limits() };
    check(limits, &job, 240, expect![[""]]);
    const { assert!(GIB > MIB) };
}
