//! What happened in an incident, in one sentence.

use crate::model::incident::{Incident, Move};
use crate::protection::policy::{Reason, State};

/// The sentence, from the moves of the ladder; what was said before where there are none.
pub(super) fn summary(incident: &Incident) -> String {
    if incident.moves.is_empty() {
        return incident.summary.clone();
    }
    let enforced = incident.mode == "enforce";
    let mut said: Vec<&str> = Vec::new();
    for step in incident.moves.iter().filter(|step| step.from != step.to) {
        said.extend_from_slice(if enforced { was(step) } else { would(step) });
    }
    let target = &incident.target;
    match (enforced, said.is_empty()) {
        (_, true) => format!("Memory of {target} ran low; it was watched closely."),
        (true, false) => format!("Memory of {target} ran low; it {}.", list(&said)),
        (false, false) => {
            format!("Memory of {target} ran low; nothing was done. Protection would have {}.", list(&said))
        }
    }
}

fn goes(step: &Move, to: State) -> bool {
    step.to == to.label()
}

fn because(step: &Move, reason: Reason) -> bool {
    step.reason == reason.to_string()
}

/// What a move did to the job.
fn was(step: &Move) -> &'static [&'static str] {
    if goes(step, State::Checkpoint) {
        return &["was asked to save itself"];
    }
    if goes(step, State::Term) && because(step, Reason::Saved) {
        return &["saved", "was asked to end"];
    }
    if goes(step, State::Term) {
        return &["was asked to end"];
    }
    if goes(step, State::Kill) {
        return &["was killed"];
    }
    if because(step, Reason::Gone) {
        return &["ended"];
    }
    let went_on = step.from != State::Verify.label() && because(step, Reason::Recovered);
    if went_on { &["has its memory back"] } else { &[] }
}

/// What it would have done.
fn would(step: &Move) -> &'static [&'static str] {
    if goes(step, State::Checkpoint) {
        return &["asked it to save itself"];
    }
    if goes(step, State::Term) {
        return &["asked it to end"];
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
    use crate::protection::policy::Resource;
    use expect_test::expect;

    #[track_caller]
    fn check(mode: &str, moves: &[(State, State, Reason)], expected: &expect_test::Expect) {
        let moves = moves.iter().map(|(from, to, reason)| Move {
            from: from.label().to_owned(),
            to: to.label().to_owned(),
            reason: reason.to_string(),
            ..Move::default()
        });
        let (target, mode) = ("job".to_owned(), mode.to_owned());
        expected.assert_eq(&summary(&Incident {
            target,
            mode,
            moves: moves.collect(),
            ..Incident::default()
        }));
    }

    #[test]
    fn the_ladder_is_told_in_a_sentence() {
        use State::{Checkpoint, Cooldown, Kill, Soft, Term, Verify, Warn};
        let level = Reason::Level(Resource::Cgroup);
        check("enforce", &[(Warn, Soft, level)], &expect!["Memory of job ran low; it was watched closely."]);
        let saved = [
            (Warn, Soft, level),
            (Soft, Checkpoint, level),
            (Checkpoint, Term, Reason::Saved),
            (Term, Verify, Reason::Gone),
            (Verify, Cooldown, Reason::Recovered),
        ];
        check(
            "enforce",
            &saved,
            &expect![
                "Memory of job ran low; it was asked to save itself, saved, was asked to end and ended."
            ],
        );
        let deaf = [
            (Soft, Checkpoint, level),
            (Checkpoint, Term, Reason::GraceOver),
            (Term, Kill, Reason::TermOver),
            (Kill, Verify, Reason::Killed),
            (Verify, Verify, Reason::Unkillable),
        ];
        check(
            "enforce",
            &deaf,
            &expect!["Memory of job ran low; it was asked to save itself, was asked to end and was killed."],
        );
        check(
            "observe",
            &deaf,
            &expect![
                "Memory of job ran low; nothing was done. Protection would have asked it to save itself, asked it to \
                 end and killed it."
            ],
        );
        check(
            "enforce",
            &[(Soft, Checkpoint, level), (Checkpoint, Cooldown, Reason::Recovered)],
            &expect!["Memory of job ran low; it was asked to save itself and has its memory back."],
        );
    }
}
