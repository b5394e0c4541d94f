//! The summary of an incident in one sentence. It states what was done, not what was due.

use crate::protection::policy::{Reason, State};
use crate::protection::types::incident::{Incident, Move, StepRecord};

/// The summary, from the transitions; the existing one where there are none.
pub(super) fn summary(incident: &Incident) -> String {
    if incident.moves.is_empty() {
        return incident.summary.clone();
    }
    let enforced = incident.mode == "enforce";
    let mut output: Vec<&str> = Vec::new();
    for step in incident.moves.iter().filter(|step| step.from != step.to) {
        output.extend_from_slice(if enforced { was(incident, step) } else { would(incident, step) });
    }
    let target = &incident.target;
    let requested = incident.moves.iter().find(|step| step.to == State::Checkpoint.label());
    let by = |reason| requested.is_some_and(|step| because(step, reason));
    let cause = match (by(Reason::RunRequest), by(Reason::Prekill)) {
        (true, _) => format!("Another node of its run asked for a checkpoint of {target}"),
        (_, true) => format!("systemd-oomd was about to kill {target}"),
        (false, false) => format!("Memory of {target} ran low"),
    };
    match (enforced, output.is_empty()) {
        (_, true) => format!("{cause}; no signal is recorded."),
        (true, false) => format!("{cause}; it {}.", list(&output)),
        (false, false) => {
            format!("{cause}; no action was taken. Protection would have {}.", list(&output))
        }
    }
}

fn goes(step: &Move, to: State) -> bool {
    step.to == to.label()
}

fn because(step: &Move, reason: Reason) -> bool {
    step.reason == reason.label()
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
        let verb = step.step["do"].as_str().unwrap_or_default();
        step.step["stage"] == stage.label() && matches!(verb, "signal" | "kill_group" | "kill_tree")
    };
    let steps: Vec<&StepRecord> = incident.steps.iter().filter(signals).collect();
    let arrived = |step: &StepRecord| step.reached.iter().any(|process| process["errno"] == 0);
    if steps.is_empty() {
        Reached::Unmeant
    } else if steps.iter().any(|step| arrived(step) || step.outcome == "done" || step.outcome == "would_have")
    {
        Reached::Some
    } else if steps.iter().any(|step| step.result.is_none() && step.outcome.is_null()) {
        Reached::Unknown
    } else {
        Reached::None
    }
}

/// The effects of a transition on the job.
fn was(incident: &Incident, step: &Move) -> &'static [&'static str] {
    if goes(step, State::Checkpoint) {
        return match reached(incident, State::Checkpoint) {
            Reached::Some => &["received a checkpoint request"],
            Reached::None => &["could not be sent a checkpoint request"],
            Reached::Unmeant => &["was given time for a checkpoint"],
            Reached::Unknown => &[],
        };
    }
    if goes(step, State::Term) {
        let saved = because(step, Reason::Saved);
        return match (saved, reached(incident, State::Term)) {
            (true, Reached::Some) => &["saved its checkpoint", "received SIGTERM"],
            (true, Reached::Unknown) => &["saved its checkpoint"],
            (true, _) => &["saved its checkpoint", "could not be sent SIGTERM"],
            (false, Reached::Some) => &["received SIGTERM"],
            (false, Reached::Unknown) => &[],
            (false, _) => &["could not be sent SIGTERM"],
        };
    }
    if goes(step, State::Kill) {
        return match reached(incident, State::Kill) {
            Reached::Some => &["was killed"],
            Reached::Unknown => &[],
            _ => &["could not be killed"],
        };
    }
    // What VERIFY waited for was named before.
    let verified = step.from == State::Verify.label();
    if because(step, Reason::SavedAndGone) {
        return &["saved its checkpoint", "ended"];
    }
    if because(step, Reason::Gone) && !verified {
        return &["ended"];
    }
    let requests = [Reason::RunRequest, Reason::Prekill];
    let requested = incident.moves.iter().any(|step| requests.iter().any(|reason| because(step, *reason)));
    if requested && goes(step, State::Cooldown) && because(step, Reason::Saved) {
        return &["saved its checkpoint"];
    }
    let went_on = !verified && because(step, Reason::Recovered);
    if went_on { &["recovered"] } else { &[] }
}

/// The effects that a transition would have had.
fn would(incident: &Incident, step: &Move) -> &'static [&'static str] {
    if goes(step, State::Checkpoint) {
        return match reached(incident, State::Checkpoint) {
            Reached::None => &["found no process that handles the request"],
            _ => &["sent it a checkpoint request"],
        };
    }
    if goes(step, State::Term) {
        return &["sent it SIGTERM"];
    }
    if goes(step, State::Kill) { &["killed it"] } else { &[] }
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
    use crate::protection::policy::{Resource, Rung};
    use expect_test::expect;

    #[track_caller]
    fn check(mode: &str, moves: &[(State, State, Reason)], expected: &expect_test::Expect) {
        let signal = r#"{"do":"signal","stage":"checkpoint"}"#;
        let term = r#"{"do":"signal","stage":"term"}"#;
        let kill = r#"{"do":"kill_tree","stage":"kill"}"#;
        check_steps(mode, moves, &[(signal, "done"), (term, "done"), (kill, "done")], expected);
    }

    #[track_caller]
    fn check_steps(
        mode: &str,
        moves: &[(State, State, Reason)],
        steps: &[(&str, &str)],
        expected: &expect_test::Expect,
    ) {
        let steps = steps.iter().map(|(step, outcome)| StepRecord {
            step: serde_json::from_str(step).unwrap(),
            outcome: serde_json::from_str(outcome).unwrap_or_else(|_| (*outcome).into()),
            ..StepRecord::default()
        });
        let moves = moves.iter().map(|(from, to, reason)| Move {
            from: from.label().to_owned(),
            to: to.label().to_owned(),
            reason: reason.label().to_owned(),
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
        let ask = r#"{"do":"signal","stage":"checkpoint"}"#;
        let term = r#"{"do":"signal","stage":"term"}"#;
        let kill = r#"{"do":"kill_group","stage":"kill"}"#;
        let record = r#"{"do":"record","stage":"checkpoint"}"#;
        let not_caught = r#"{"skipped":"not_caught"}"#;
        check_steps(
            "enforce",
            &moves,
            &[(record, "done"), (ask, not_caught), (ask, not_caught), (term, "done"), (kill, "done")],
            &expect![
                "Memory of job ran low; it could not be sent a checkpoint request, received SIGTERM and was killed."
            ],
        );
        check_steps(
            "enforce",
            &moves,
            &[(ask, not_caught), (ask, "done"), (term, r#"{"skipped":"gone"}"#), (kill, "null")],
            &expect![
                "Memory of job ran low; it received a checkpoint request and could not be sent SIGTERM."
            ],
        );
        check_steps(
            "enforce",
            &moves[..1],
            &[(record, "done")],
            &expect!["Memory of job ran low; it was given time for a checkpoint."],
        );
    }
}
