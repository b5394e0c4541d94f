use proptest::prelude::*;

use super::*;
use crate::model::fit::{Medium, Phase};

fn command(user: u32, script: &str) -> Command {
    Command {
        user_id: user,
        script: script.into(),
        arguments_hash: "0123456789abcdef".into(),
        world_size: 2,
        parameters: Some(7),
        trainable: Some(7),
    }
}

fn rank(pid: u32, step: Option<u64>) -> ObservedRank {
    ObservedRank {
        process: ProcessKey { pid, start: 1 },
        payer: 1000,
        command: command(1000, "train.py"),
        workload: "job".into(),
        run: "sft".into(),
        has_ended: false,
        outcome: None,
        phase: Label::default(),
        has_begun: false,
        step,
        ooms: 0,
        peaks: vec![PhasePeak { phase: Phase::Step, resource: Medium::Device, bytes: u64::from(pid) }],
        life_peaks: [None; LIVES.len()],
        bytes_per_token: None,
    }
}

fn ended(rank: ObservedRank) -> ObservedRank {
    ObservedRank { has_ended: true, ..rank }
}

fn finished(rank: ObservedRank) -> ObservedRank {
    ObservedRank { outcome: Some(EndCause::Finished.into()), ..rank }
}

/// A tick in which none of the ranks that have left runs any more.
fn tick(
    past: &PastRuns,
    ranks: &[ObservedRank],
    ends: &[Arc<End>],
    now: Timestamp,
) -> BTreeMap<ProcessKey, String> {
    let said = past.tick(ranks, ends, &[], |_| false, now);
    // Time passes until the ends of its processes are known.
    for _ in 1..if ranks.is_empty() { CLOSING_TICKS } else { 1 } {
        past.tick(&[], &[], &[], |_| false, now);
    }
    said
}

/// The end of this process by the OOM killer.
fn killed(pid: u32) -> Arc<End> {
    let cause = EndCause::CgroupLimit;
    Arc::new(End { pid, user_id: 1000, cause, unix_seconds: 2e9, ..End::default() })
}

fn at(second: u64) -> Timestamp {
    Timestamp::from_secs(1_700_000_000 + second)
}

/// Two ranks train up to `step`, and end as `end` says.
fn play(
    past: &PastRuns,
    begun: u64,
    step: u64,
    end: impl Fn(ObservedRank) -> ObservedRank,
    killed: &[Arc<End>],
) {
    tick(past, &[rank(7, None), rank(8, None)], &[], at(begun));
    tick(past, &[rank(7, Some(step)), rank(8, Some(step))], &[], at(begun + 1));
    tick(past, &[end(rank(7, Some(step))), ended(rank(8, Some(step)))], &[], at(begun + 2));
    tick(past, &[], killed, at(begun + 3));
    tick(past, &[], &[], at(begun + 6));
}

/// What is said at the next start.
fn said(past: &PastRuns, now: u64) -> Option<String> {
    // It is stopped before it measures anything.
    let own = ObservedRank { peaks: Vec::new(), ..rank(9, None) };
    let said = tick(past, std::slice::from_ref(&own), &[], at(now)).into_values().next();
    tick(past, &[ended(own)], &[], at(now));
    said
}

#[test]
fn the_last_runs_that_died_are_told_at_the_next_start() {
    let past = PastRuns::default();
    let fails = |own: ObservedRank| ended(ObservedRank { ooms: 1, ..own });
    play(&past, 0, 100, |own| ended(finished(own)), &[]);
    assert_eq!(said(&past, 10), None);
    play(&past, 20, 261, fails, &[]);
    assert_eq!(
        said(&past, 30).unwrap(),
        "the last run of this command died after step 261 (out of GPU memory)"
    );
    play(&past, 40, 261, fails, &[]);
    assert_eq!(
        said(&past, 50).unwrap(),
        "the last 2 runs of this command died after step 261 (out of GPU memory)"
    );
    play(&past, 60, 33, ended, &[killed(8)]);
    assert_eq!(
        said(&past, 70).unwrap(),
        "the last 3 runs of this command died after steps 33 to 261 (for lack of memory)"
    );
    let shown = past.shown(Some(1000)).runs;
    let known: Vec<_> = shown
        .iter()
        .map(|run| (run.past.number, run.past.outcome.cause, run.past.step, run.past.ranks))
        .collect();
    assert_eq!(
        known,
        [
            (4, EndCause::CgroupLimit, Some(33), 2),
            (3, EndCause::GpuMemory, Some(261), 2),
            (2, EndCause::GpuMemory, Some(261), 2),
            (1, EndCause::Unknown, Some(100), 2)
        ]
    );
    assert_eq!(shown[0].past.peaks[0].bytes, 8, "of the rank with the most");
    assert!(past.shown(Some(1001)).runs.is_empty());
}

#[test]
fn a_run_that_recovers_from_a_failed_allocation_did_not_die_of_it() {
    let past = PastRuns::default();
    let with = |step, ooms| finished(ObservedRank { ooms, ..rank(7, Some(step)) });
    tick(&past, &[with(5, 0)], &[], at(0));
    tick(&past, &[with(5, 1)], &[], at(1));
    tick(&past, &[ended(with(9, 1))], &[], at(2));
    tick(&past, &[], &[], at(9));
    assert_eq!(past.shown(None).runs[0].past.outcome.cause, EndCause::Finished);
}

#[test]
fn the_step_of_a_run_that_completed_none_is_not_invented() {
    let past = PastRuns::default();
    let dies = |begun: u64, step: Option<u64>| {
        let with = |ooms| ObservedRank { ooms, ..rank(7, step) };
        tick(&past, &[with(0)], &[], at(begun));
        tick(&past, &[ended(with(1))], &[], at(begun + 1));
        tick(&past, &[], &[], at(begun + 5));
        said(&past, begun + 6).unwrap()
    };
    assert_eq!(dies(0, None), "the last run of this command died before its first step (out of GPU memory)");
    assert_eq!(
        dies(10, None),
        "the last 2 runs of this command died before their first step (out of GPU memory)"
    );
    assert_eq!(
        dies(20, Some(5_000)),
        "the last 3 runs of this command died after step 5000 or before their first step (out of GPU memory)"
    );
}

/// A run whose only rank ends so, without a completed step: what is kept of it, and what is said at the next start.
fn dies(rank: &ObservedRank, killed: &[Arc<End>], status: Option<i32>) -> (Option<PastRun>, Option<String>) {
    let past = PastRuns::default();
    let ObservedRank { process, .. } = *rank;
    let begins = ObservedRank { has_ended: false, outcome: None, ..rank.clone() };
    tick(&past, &[begins], &[], at(0));
    tick(&past, std::slice::from_ref(rank), &[], at(1));
    let exits: Vec<_> = status.map(|status| (process, status)).into_iter().collect();
    past.tick(&[], killed, &exits, |_| false, at(2));
    tick(&past, &[], &[], at(5));
    let run = past.shown(None).runs.into_iter().next().map(|shown| shown.past);
    (run, said(&past, 6))
}

#[test]
fn a_run_that_dies_before_its_first_step_is_kept_with_its_phase_and_its_end() {
    let own = ObservedRank { peaks: Vec::new(), has_begun: true, ..ended(rank(7, None)) };
    let own = ObservedRank { phase: "optimizer".into(), ..own };
    let says = |cause: EndCause, exception: &str, resource: Option<Medium>, phase: &str| {
        let (exception, phase) = (exception.into(), phase.into());
        let outcome = Outcome { cause, status: None, exception, resource, phase };
        ObservedRank { outcome: Some(outcome), phase: Label::default(), ..own.clone() }
    };
    let killed = [killed(7)];
    let host = Some(Medium::Host);
    let silent = ObservedRank { phase: Label::default(), ..own.clone() };
    let cases = [
        (own.clone(), &killed[..], Some(9), "in optimizer (killed by the OOM killer)"),
        (own.clone(), &[], Some(9), "in optimizer (killed by SIGKILL)"),
        (silent, &[], Some(139), "(killed by SIGSEGV)"),
        (own.clone(), &[], Some(3 << 8), "in optimizer (exit status 3)"),
        (
            says(EndCause::ProcessLimit, "RuntimeError", host, "forward"),
            &[],
            Some(1 << 8),
            "in forward (out of host memory)",
        ),
        (
            says(EndCause::Failed, "ValueError", None, "backward"),
            &[],
            Some(1 << 8),
            "in backward (exception ValueError)",
        ),
        (says(EndCause::WillNotFit, "", None, ""), &[], Some(80 << 8), "(aborted, as it would not fit)"),
        (says(EndCause::Finished, "", None, ""), &[], Some(2 << 8), "(exit status 2)"),
    ];
    for (rank, killed, status, expected) in cases {
        let (run, said) = dies(&rank, killed, status);
        let run = run.unwrap();
        assert_eq!(run.step, None, "{expected}");
        let said = said.unwrap().replacen("step,", "step", 1);
        assert_eq!(said, format!("the last run of this command died before its first step {expected}"));
    }
    // Ends on purpose are kept, and not told.
    for (rank, status, end) in [
        (own.clone(), Some(15), EndCause::Killed),
        (own.clone(), None, EndCause::Unknown),
        (own.clone(), Some(0), EndCause::Finished),
        (says(EndCause::Killed, "KeyboardInterrupt", None, ""), Some(2), EndCause::Killed),
    ] {
        let (run, said) = dies(&rank, &[], status);
        assert_eq!((run.unwrap().outcome.cause, said), (end, None));
    }
    // What connects and does not train is kept only if it dies.
    let idle = ObservedRank { has_begun: false, ..own };
    assert_eq!(dies(&idle, &[], Some(15)).0, None);
    assert!(dies(&idle, &killed, Some(9)).0.is_some());
}

#[test]
fn the_end_of_a_run_is_that_of_the_rank_that_ended_it() {
    let past = PastRuns::default();
    let fails = Outcome { exception: "DistBackendError".into(), ..EndCause::Failed.into() };
    tick(&past, &[rank(7, Some(1)), rank(8, Some(1)), rank(9, Some(1))], &[], at(0));
    let others = ObservedRank { outcome: Some(fails), ..rank(8, Some(1)) };
    tick(&past, &[ended(rank(7, Some(1))), ended(others), ended(rank(9, Some(1)))], &[], at(1));
    let exits = [(7, 11), (8, 1 << 8), (9, 15)].map(|(pid, status)| (ProcessKey { pid, start: 1 }, status));
    past.tick(&[], &[], &exits, |_| false, at(2));
    tick(&past, &[], &[], at(5));
    assert_eq!(past.shown(None).runs[0].past.outcome.words(), "killed by SIGSEGV");
}

#[test]
fn the_end_of_a_helper_of_the_whole_workload_explains_an_exception() {
    let fails = Outcome { exception: "RuntimeError".into(), ..EndCause::Failed.into() };
    let own = ObservedRank { outcome: Some(fails), ..ended(rank(7, Some(3))) };
    let of_helper = |is_whole| {
        let end = End { is_whole, workload: "job".into(), ..End::clone(&killed(99)) };
        let (run, _) = dies(&own, &[Arc::new(end)], None);
        run.unwrap().outcome.cause
    };
    assert_eq!([true, false].map(of_helper), [EndCause::CgroupLimit, EndCause::Failed]);
}

#[test]
fn a_run_of_a_command_whose_model_is_not_known_yet_is_told_of_those_of_every_model() {
    let past = PastRuns::default();
    let with = |parameters: Option<u64>| {
        let command = Command { parameters, trainable: parameters, ..command(1000, "train.py") };
        ObservedRank { command, ..rank(7, Some(3)) }
    };
    tick(&past, &[with(Some(7))], &[], at(0));
    tick(&past, &[ended(ObservedRank { ooms: 1, ..with(Some(7)) })], &[], at(1));
    tick(&past, &[], &[], at(5));
    let says = |parameters, second| !tick(&past, &[with(parameters)], &[], at(second)).is_empty();
    assert_eq!([says(None, 6), says(Some(7), 7), says(Some(8), 8)], [true, true, false]);
}

#[test]
fn memory_that_grows_outside_of_measured_steps_is_kept() {
    let past = PastRuns::default();
    let with = |step: Option<u64>, device, host| ObservedRank { life_peaks: [device, host], ..rank(7, step) };
    for (second, step, host) in
        [(0, None, 10), (1, Some(1), 30), (2, Some(17), 40), (3, Some(200), 100), (4, Some(300), 90)]
    {
        tick(&past, &[with(step, None, Some(host))], &[], at(second));
    }
    tick(&past, &[ended(finished(with(Some(300), None, None)))], &[], at(5));
    tick(&past, &[], &[], at(9));
    let kept = |place: usize| past.shown(None).runs[place].past.life_peaks.clone();
    let host = |bytes, growth_bytes| vec![LifePeak { resource: Medium::Host, bytes, growth_bytes }];
    assert_eq!(kept(0), host(100, Some(60)));
    // One that ends before it has settled does not grow; what is not known is not 0.
    tick(&past, &[with(Some(5), None, Some(7))], &[], at(20));
    tick(&past, &[ended(finished(with(Some(6), None, Some(8))))], &[], at(21));
    tick(&past, &[], &[], at(25));
    assert_eq!(kept(0), host(8, None));
}

#[test]
fn a_run_whose_rank_connects_again_goes_on() {
    let past = PastRuns::default();
    let with = |ooms, step| ObservedRank { ooms, ..rank(7, Some(step)) };
    let lives = |ranks: &[ObservedRank], second| {
        past.tick(ranks, &[], &[], |key| key.pid == 7, at(second));
    };
    lives(&[with(0, 5)], 0);
    // It connects again after a minute; another rank of the run does so first.
    lives(&[ended(with(0, 5))], 1);
    lives(&[], 30);
    lives(&[rank(8, Some(5))], 60);
    lives(&[with(0, 5), rank(8, Some(5))], 61);
    assert!(past.shown(None).runs.is_empty());
    let bye = |own: ObservedRank| ended(finished(own));
    lives(&[bye(with(0, 9)), bye(rank(8, Some(9)))], 62);
    (0..CLOSING_TICKS).for_each(|_| lives(&[], 66));
    let ends = || {
        past.shown(None).runs.iter().map(|run| (run.past.step, run.past.outcome.cause)).collect::<Vec<_>>()
    };
    assert_eq!(ends(), [(Some(9), EndCause::Finished)]);
    // The end of a run that waits for a rank is not known when the daemon stops.
    lives(&[with(0, 2)], 70);
    lives(&[ended(with(0, 2))], 71);
    lives(&[], 80);
    past.close();
    assert_eq!(ends().len(), 1);
    // It ends with the process.
    tick(&past, &[], &[], at(90));
    assert_eq!(ends(), [(Some(2), EndCause::Unknown), (Some(9), EndCause::Finished)]);
}

#[test]
fn another_shape_of_the_model_is_another_command_and_ranks_that_are_started_again_another_run() {
    let past = PastRuns::default();
    let unknown = |own: ObservedRank| ObservedRank {
        command: Command { parameters: None, trainable: None, ..own.command },
        ..own
    };
    // The shape is known later than the first message.
    tick(&past, &[unknown(rank(7, None))], &[], at(0));
    tick(&past, &[ended(ObservedRank { ooms: 1, ..rank(7, Some(3)) })], &[], at(1));
    // The launcher starts it again within a second.
    tick(&past, &[rank(17, None)], &[], at(2));
    tick(&past, &[ended(unknown(rank(17, Some(1))))], &[], at(3));
    tick(&past, &[], &[], at(9));
    let runs = past.shown(None).runs;
    assert_eq!(runs.len(), 2);
    assert!(runs.iter().all(|run| run.command.parameters == Some(7)), "{runs:?}");
}

#[test]
fn the_file_has_all_and_a_damaged_one_changes_nothing() {
    let past = PastRuns::default();
    play(&past, 0, 5, ended, &[]);
    let text = past.changed().unwrap();
    assert!(past.changed().is_none() && !past.has_changed());
    let later = PastRuns::default();
    play(&later, 0, 6, ended, &[]);
    later.restore(text.as_bytes()).unwrap();
    let steps: Vec<_> = later.shown(None).runs.iter().map(|run| (run.past.number, run.past.step)).collect();
    assert_eq!(steps, [(2, Some(6)), (1, Some(5))]);
    for wrong in [&text[..text.len() - 2], "", "[]", &text.replacen(":2,", ":1,", 1)] {
        assert!(later.restore(wrong.as_bytes()).is_err(), "{wrong}");
    }
    assert_eq!(later.shown(None).runs.len(), 2);
}

/// A run of a command of this user id, on the share of `payer`.
fn run_of(past: &PastRuns, (payer, user): (u32, u32), place: usize, second: u64) {
    let command = command(user, &format!("{place}.py"));
    let own = ObservedRank { command, payer, ..rank(7, Some(1)) };
    tick(past, std::slice::from_ref(&own), &[], at(second));
    tick(past, &[ended(own)], &[], at(second + 1));
    tick(past, &[], &[], at(second + 5));
}

#[test]
fn a_user_with_many_commands_leaves_room_for_others() {
    let past = PastRuns::default();
    for place in 0..MOST_COMMANDS + 10 {
        run_of(&past, (1000, 1000), place, place as u64 * 10);
    }
    assert_eq!(past.shown(None).runs.len(), MOST_COMMANDS);
    assert_eq!(past.shown(None).runs[0].command.script.as_str(), format!("{}.py", MOST_COMMANDS + 9));
    run_of(&past, (1001, 1001), 0, 100_000);
    assert_eq!((past.shown(Some(1001)).runs.len(), past.shown(None).runs.len()), (1, MOST_COMMANDS));
}

#[test]
fn the_ids_that_a_user_may_use_in_a_namespace_have_that_users_share_also_after_a_restart() {
    let first = PastRuns::default();
    for place in 0..4 {
        run_of(&first, (1000, 1000), place, place as u64 * 10);
    }
    let shares = |past: &PastRuns, from: u64| {
        for place in 0..MOST_COMMANDS as u64 {
            let id = u32::try_from(100_000 + from + place).unwrap();
            run_of(past, (1001, id), 0, 1_000 + 10 * (from + place));
        }
        assert_eq!(past.shown(Some(1000)).runs.len(), 4);
        assert_eq!(past.shown(None).runs.len(), MOST_COMMANDS);
    };
    shares(&first, 0);
    let restored = PastRuns::default();
    restored.restore(first.changed().unwrap().as_bytes()).unwrap();
    shares(&restored, 1_000);
    // Runs that are observed have the same shares.
    let live = PastRuns::default();
    let all = (100_000..).take(MOST_LIVE).map(|id| {
        let command = command(id, "train.py");
        ObservedRank { payer: 1001, command, ..rank(id, Some(1)) }
    });
    let all: Vec<_> = all.chain([rank(7, Some(1)), rank(8, Some(1))]).collect();
    tick(&live, &all, &[], at(0));
    assert_eq!(lock(&live.0).live.of(1000), 1);
    let other = ObservedRank { command: command(1000, "other.py"), ..rank(9, Some(1)) };
    tick(&live, &[other], &[], at(1));
    assert_eq!(lock(&live.0).live.of(1000), 2);
}

proptest! {
    #[test]
    fn what_is_kept_is_bounded_and_outlasts_a_restart(
        events in prop::collection::vec(
            (0_u32..4, 0_u32..6, 0_u32..40, any::<bool>(), 0_u64..3, prop::option::of(0_u64..9)),
            1..400,
        ),
    ) {
        let past = PastRuns::default();
        for (second, (user, script, pid, has_ended, ooms, step)) in events.into_iter().enumerate() {
            let command = command(user, &script.to_string());
            let own = ObservedRank { command, payer: user / 2, has_ended, ooms, ..rank(pid, step) };
            tick(&past, &[own], &[killed(pid / 2)], at(second as u64));
            let state = lock(&past.0);
            prop_assert!(state.live.len() <= MOST_LIVE && state.commands.len() <= MOST_COMMANDS);
            for runs in state.commands.values() {
                prop_assert!(!runs.is_empty() && runs.len() <= MOST_RUNS);
                prop_assert!(runs.iter().zip(runs.iter().skip(1)).all(|(one, other)| one.number < other.number));
            }
            for live in state.live.values() {
                prop_assert!(live.gone.len() <= MOST_GONE && live.ooms.len() <= live.connected.len());
            }
        }
        past.close();
        if let Some(text) = past.changed() {
            let later = PastRuns::default();
            later.restore(text.as_bytes()).unwrap();
            prop_assert_eq!(later.shown(None), past.shown(None));
        }
    }
}
