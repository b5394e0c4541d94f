//! The summary of an incident in one sentence. It states what was done, not what was due.

use super::incident::{Cause, Incident, Move, StepRecord};
use super::reason::Reason;
use super::rung::State;
use super::step::{Outcome, Work};
use crate::model::facts::OomScope;
use crate::model::format;

/// The summary; the existing one where nothing more is known.
pub fn summary(incident: &Incident) -> String {
    match incident.cause {
        Cause::KernelOom if incident.kills > 0 => return of_kills(incident),
        _ if incident.moves.is_empty() => return incident.summary.clone(),
        _ => {}
    }
    let enforced = incident.mode == "enforce";
    let mut output: Vec<&str> = Vec::new();
    for step in incident.moves.iter().filter(|step| step.from != step.to) {
        output.extend_from_slice(if enforced { was(incident, step) } else { would(incident, step) });
    }
    let target = &incident.target;
    let requested = incident.moves.iter().find(|step| step.to == State::Checkpoint);
    let cause = match requested.map(|step| step.reason) {
        Some(Reason::RunRequest) => format!("Another node of its run asked for a checkpoint of {target}"),
        Some(Reason::Prekill) => format!("systemd-oomd was about to kill {target}"),
        _ => format!("Memory of {target} ran low"),
    };
    match (enforced, output.is_empty()) {
        (_, true) => format!("{cause}; no signal is recorded."),
        (true, false) => format!("{cause}; it {}.", list(&output)),
        (false, false) => {
            format!("{cause}; no action was taken. Protection would have {}.", list(&output))
        }
    }
}

fn of_kills(incident: &Incident) -> String {
    let victim = incident.victim.as_ref();
    let why = match victim.map(|victim| victim.scope) {
        Some(OomScope::Cgroup) => "a cgroup's memory was exhausted",
        Some(OomScope::Host) => "the host's memory was exhausted",
        Some(OomScope::Nodes) => "the memory of the NUMA nodes that it may use was exhausted",
        Some(OomScope::Request) => "an operator asked for it (sysrq f)",
        Some(OomScope::PageFault) | None => "which memory was exhausted is not known",
    };
    let who = match victim.map(|victim| (victim.comm.as_str(), victim.pid)) {
        Some((comm, Some(pid))) if !comm.is_empty() => format!("{comm} (pid {pid})"),
        Some((_, Some(pid))) => format!("a process (pid {pid})"),
        _ => "a process".to_owned(),
    };
    let first = format!("The kernel killed {who}: {why}.");
    match incident.ended_unix_seconds.filter(|ended| *ended > incident.began_unix_seconds) {
        Some(until) => {
            format!("{first} Kills in this cgroup until {}: {}.", format::timestamp(until), incident.kills)
        }
        None => first,
    }
}

/// Whether the steps of a stage reached processes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Reached {
    /// At least one process was reached.
    Some,
    /// No process was reached: the steps were skipped, refused, or failed.
    None,
    /// The stage had no such steps.
    Unmeant,
    /// Unknown: the record ends before the end of a step.
    Unknown,
}

fn reached(incident: &Incident, stage: State) -> Reached {
    let signals = |step: &&StepRecord| {
        let work = &step.step.work;
        step.step.stage == stage && (work.kills() || matches!(work, Work::Signal { .. }))
    };
    let steps: Vec<&StepRecord> = incident.steps.iter().filter(signals).collect();
    let arrived = |step: &&StepRecord| {
        step.reached.iter().any(|process| process.errno == 0)
            || matches!(step.outcome(), Some(Outcome::Done | Outcome::WouldHave))
    };
    if steps.is_empty() {
        Reached::Unmeant
    } else if steps.iter().any(arrived) {
        Reached::Some
    } else if steps.iter().any(|step| step.end.is_none()) {
        Reached::Unknown
    } else {
        Reached::None
    }
}

/// The effects of a transition on the job.
fn was(incident: &Incident, step: &Move) -> &'static [&'static str] {
    if step.to == State::Checkpoint {
        return match reached(incident, State::Checkpoint) {
            Reached::Some => &["received a checkpoint request"],
            Reached::None => &["could not be sent a checkpoint request"],
            Reached::Unmeant => &["was given time for a checkpoint"],
            Reached::Unknown => &[],
        };
    }
    if step.to == State::Term {
        let saved = step.reason == Reason::Saved;
        return match (saved, reached(incident, State::Term)) {
            (true, Reached::Some) => &["saved its checkpoint", "received SIGTERM"],
            (true, Reached::Unknown) => &["saved its checkpoint"],
            (true, _) => &["saved its checkpoint", "could not be sent SIGTERM"],
            (false, Reached::Some) => &["received SIGTERM"],
            (false, Reached::Unknown) => &[],
            (false, _) => &["could not be sent SIGTERM"],
        };
    }
    if step.to == State::Kill {
        return match reached(incident, State::Kill) {
            Reached::Some => &["was killed"],
            Reached::Unknown => &[],
            _ => &["could not be killed"],
        };
    }
    // What VERIFY waited for was named before.
    let verified = step.from == State::Verify;
    if step.reason == Reason::SavedAndGone {
        return &["saved its checkpoint", "ended"];
    }
    if step.reason == Reason::Gone && !verified {
        return &["ended"];
    }
    let mut moves = incident.moves.iter();
    let requested = moves.any(|step| matches!(step.reason, Reason::RunRequest | Reason::Prekill));
    if requested && step.to == State::Cooldown && step.reason == Reason::Saved {
        return &["saved its checkpoint"];
    }
    let went_on = !verified && step.reason == Reason::Recovered;
    if went_on { &["recovered"] } else { &[] }
}

/// The effects that a transition would have had.
fn would(incident: &Incident, step: &Move) -> &'static [&'static str] {
    if step.to == State::Checkpoint {
        return match reached(incident, State::Checkpoint) {
            Reached::None => &["found no process that handles the request"],
            _ => &["sent it a checkpoint request"],
        };
    }
    if step.to == State::Term {
        return &["sent it SIGTERM"];
    }
    if step.to == State::Kill { &["killed it"] } else { &[] }
}

/// "a", "a and b", "a, b and c".
fn list(parts: &[&str]) -> String {
    match parts {
        [] => String::new(),
        [only] => (*only).to_owned(),
        [before @ .., last] => format!("{} and {last}", before.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::ids::ProcessKey;
    use crate::types::audit::{StepEnd, StepResult};
    use crate::types::reason::Resource;
    use crate::types::rung::Rung;
    use crate::types::step::{SignalNumber, Skip, Step, TargetId};
    use expect_test::expect;

    fn signal() -> Work {
        let process = ProcessKey { pid: 7, start: 1 };
        Work::Signal { process, signal: SignalNumber::TERM, only_if_caught: false }
    }

    fn killing() -> Work {
        Work::KillTree { roots: [].into() }
    }

    #[track_caller]
    fn check(mode: &str, moves: &[(State, State, Reason)], expected: &expect_test::Expect) {
        let done = Some(Outcome::Done);
        let steps = [
            (State::Checkpoint, signal(), done),
            (State::Term, signal(), done),
            (State::Kill, killing(), done),
        ];
        check_steps(mode, moves, &steps, expected);
    }

    /// A step without an outcome has no end.
    #[track_caller]
    fn check_steps(
        mode: &str,
        moves: &[(State, State, Reason)],
        steps: &[(State, Work, Option<Outcome>)],
        expected: &expect_test::Expect,
    ) {
        let steps = steps.iter().map(|(stage, work, outcome)| StepRecord {
            end: outcome.map(|outcome| StepEnd {
                result: StepResult::Ok,
                outcome: Some(outcome),
                processes: None,
                errno: None,
                error: None,
            }),
            ..StepRecord::new(1, 0.0, Step { target: TargetId(1), stage: *stage, work: work.clone() })
        });
        let moves = moves.iter().map(|(from, to, reason)| Move {
            from: *from,
            to: *to,
            reason: *reason,
            ..Move::default()
        });
        let (target, mode) = ("job".to_owned(), mode.to_owned());
        expected.assert_eq(&summary(&Incident {
            target,
            mode,
            moves: moves.collect(),
            steps: steps.collect(),
            ..Incident::default()
        }));
    }

    #[test]
    fn the_escalation_is_described_in_a_sentence() {
        use State::{Cooldown, Verify};
        let [warn, soft, checkpoint, term, kill] = Rung::ALL.map(State::from);
        let level = Reason::Level(Resource::Cgroup);
        check("enforce", &[(warn, soft, level)], &expect!["Memory of job ran low; no signal is recorded."]);
        let saved = [
            (warn, soft, level),
            (soft, checkpoint, level),
            (checkpoint, term, Reason::Saved),
            (term, Verify, Reason::Gone),
            (Verify, Cooldown, Reason::Gone),
        ];
        check(
            "enforce",
            &saved,
            &expect![
                "Memory of job ran low; it received a checkpoint request, saved its checkpoint, received SIGTERM and ended."
            ],
        );
        let deaf = [
            (soft, checkpoint, level),
            (checkpoint, term, Reason::GraceOver),
            (term, kill, Reason::TermOver),
            (kill, Verify, Reason::Killed),
            (Verify, Verify, Reason::Unkillable),
        ];
        check(
            "enforce",
            &deaf,
            &expect![
                "Memory of job ran low; it received a checkpoint request, received SIGTERM and was killed."
            ],
        );
        check(
            "observe",
            &deaf,
            &expect![
                "Memory of job ran low; no action was taken. Protection would have sent it a checkpoint request, sent \
                 it SIGTERM and killed it."
            ],
        );
        check(
            "enforce",
            &[(soft, checkpoint, level), (checkpoint, Cooldown, Reason::Recovered)],
            &expect!["Memory of job ran low; it received a checkpoint request and recovered."],
        );
    }

    #[test]
    fn only_what_was_done_is_reported() {
        let [_, soft, checkpoint, term, kill] = Rung::ALL.map(State::from);
        let level = Reason::Level(Resource::Cgroup);
        let moves = [
            (soft, checkpoint, level),
            (checkpoint, term, Reason::NobodyCatches),
            (term, kill, Reason::TermOver),
        ];
        let done = Some(Outcome::Done);
        let ask = |outcome| (State::Checkpoint, signal(), Some(outcome));
        let end = |outcome| (State::Term, signal(), Some(outcome));
        let record = (State::Checkpoint, Work::Record, done);
        let not_caught = ask(Outcome::Skipped(Skip::NotCaught));
        check_steps(
            "enforce",
            &moves,
            &[
                record.clone(),
                not_caught.clone(),
                not_caught.clone(),
                end(Outcome::Done),
                (State::Kill, killing(), done),
            ],
            &expect![
                "Memory of job ran low; it could not be sent a checkpoint request, received SIGTERM and was killed."
            ],
        );
        check_steps(
            "enforce",
            &moves,
            &[
                not_caught,
                ask(Outcome::Done),
                end(Outcome::Skipped(Skip::Gone)),
                (State::Kill, killing(), None),
            ],
            &expect![
                "Memory of job ran low; it received a checkpoint request and could not be sent SIGTERM."
            ],
        );
        check_steps(
            "enforce",
            &moves[..1],
            &[record],
            &expect!["Memory of job ran low; it was given time for a checkpoint."],
        );
    }
}
