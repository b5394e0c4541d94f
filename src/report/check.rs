//! `check`: the health of the node for a program, in one line.

use serde::Serialize;

use super::text::Page;
use crate::model::health::Health;
use crate::model::printable::escaped;
use crate::node_view::{NO_FORECAST, NodeView, Problem, TOO_FEW};

/// Longest line in bytes: Node Problem Detector cuts the message of a custom plugin here, unless `max_output_length` of the
/// plugin's configuration is larger.
const LONGEST: usize = 80;

/// Which problems `check` reports.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Scope {
    /// Those of the node: its memory, devices that do not respond, what cannot be measured. A job cannot cause them by
    /// filling a limit of its own.
    #[default]
    Node,
    /// Those of its jobs too.
    All,
}

/// The answer of `memwarden check`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct CheckReport {
    health: Health,
    scope: Scope,
    exit_code: u8,
    /// The line that the text format prints.
    message: String,
    /// What is wrong or unknown, worst first.
    problems: Vec<String>,
}

/// A problem that counts.
struct Stated {
    health: Health,
    is_unmeasured: bool,
    sentence: String,
}

impl Stated {
    fn unknown(sentence: &str) -> Self {
        Self { health: Health::Unknown, is_unmeasured: true, sentence: sentence.to_owned() }
    }
}

impl CheckReport {
    /// The health by what the daemon states of its node; a health of `severity` or a worse one is a problem.
    pub fn of(node: &NodeView, scope: Scope, severity: Health) -> Self {
        if node.is_stalled || node.age_seconds.is_none() {
            return Self::new(scope, severity, vec![Stated::unknown(&node.verdict.sentence)], 0);
        }
        let is_selected = |problem: &&Problem| scope == Scope::All || problem.is_of_node;
        let stated = node.problems.iter().filter(is_selected);
        let mut problems: Vec<_> = stated
            .filter(|problem| problem.acknowledged.is_none())
            .map(|problem| Stated {
                health: problem.health,
                is_unmeasured: problem.is_unmeasured(),
                sentence: problem.sentence(),
            })
            .collect();
        // With no problem stated, the verdict says whether that means that there is none.
        let verdict = &node.verdict;
        let none_counts = node.problems.iter().all(|problem| problem.acknowledged.is_some());
        if none_counts && verdict.health == Health::Unknown && !verdict.sentence.is_empty() {
            problems.push(Stated::unknown(&verdict.sentence));
        } else if !node.analyzed.forecasts {
            problems.push(Stated::unknown(NO_FORECAST));
        } else if node.host.forecast.as_ref().is_some_and(|forecast| !forecast.is_ready()) {
            problems.push(Stated::unknown(TOO_FEW));
        }
        let of_jobs = node.problems.iter().filter(|problem| {
            !is_selected(problem) && problem.acknowledged.is_none() && problem.health >= Health::Warning
        });
        let of_jobs = of_jobs.count() + node.problems_left_out;
        Self::new(scope, severity, problems, of_jobs)
    }

    /// The health of a node whose daemon states nothing that can be used; `why` is the reason.
    pub fn blind(scope: Scope, why: &str) -> Self {
        Self::new(scope, Health::Critical, vec![Stated::unknown(why)], 0)
    }

    /// `of_jobs` is the number of problems of jobs, which the scope leaves out.
    fn new(scope: Scope, severity: Health, problems: Vec<Stated>, of_jobs: usize) -> Self {
        let health = problems.iter().map(|stated| stated.health).max().unwrap_or(Health::Ok);
        // The exit codes of a custom plugin of Node Problem Detector. A problem that is known stays one, whatever else is
        // not known.
        let exit_code = match health {
            health if health >= severity.max(Health::Warning) => 1,
            _ if problems.iter().any(|stated| stated.is_unmeasured) => 2,
            _ => 0,
        };
        let problems: Vec<String> = problems.into_iter().map(|stated| stated.sentence).collect();
        let none = match (scope, of_jobs) {
            (Scope::All, 0) => "no problem is known".to_owned(),
            (Scope::All, _) => "no problem that is listed counts".to_owned(),
            (Scope::Node, 0) => "no problem of the node is known".to_owned(),
            (Scope::Node, jobs) => {
                format!("no problem of the node is known, {jobs} of its jobs (--scope all)")
            }
        };
        // Of all, the problems of jobs that the list of the daemon leaves out are among those that count.
        let left_out = if scope == Scope::All { of_jobs } else { 0 };
        Self { health, scope, exit_code, message: line(health, &problems, left_out, &none), problems }
    }

    /// The exit code: 0 ok, 1 problem, 2 unknown.
    pub const fn exit_code(&self) -> u8 {
        self.exit_code
    }

    /// The line as a page shows it: on a terminal, the word of the health has a color.
    pub fn shown(&self, page: Page) -> String {
        let word = self.health.label();
        self.message
            .strip_prefix(word)
            .map_or_else(|| self.message.clone(), |rest| format!("{}{rest}", page.painted(self.health, word)))
    }
}

/// The line: the health, the first reason or that there is `none`, and how many others there are, with those left out.
fn line(health: Health, stated: &[String], left_out: usize, none: &str) -> String {
    let more = stated.len().saturating_sub(1) + left_out;
    let end = if more == 0 { String::new() } else { format!(" (+{more} more)") };
    let start = stated.first().map_or_else(
        || format!("{}: {none}", health.label()),
        |first| format!("{}: {}", health.label(), escaped(first.trim_end_matches('.'))),
    );
    format!("{}{end}", shortened(&start, LONGEST - end.len()))
}

/// The text with at most `most` bytes; what is cut is replaced with `...`.
fn shortened(text: &str, most: usize) -> String {
    if text.len() <= most {
        return text.to_owned();
    }
    let mut end = most.saturating_sub(3);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    format!("{}...", &text[..end])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::node_view::Analyzed;

    fn node(problems: &[(Health, bool, &str)]) -> NodeView {
        let problem = |(health, is_of_node, what): &(Health, bool, &str)| Problem {
            health: *health,
            is_of_node: *is_of_node,
            what: (*what).to_owned(),
            ..Problem::default()
        };
        NodeView {
            age_seconds: Some(0.1),
            analyzed: Analyzed { forecasts: true, leaks: true },
            problems: problems.iter().map(problem).collect(),
            ..NodeView::default()
        }
    }

    fn check(node: &NodeView, scope: Scope, severity: Health) -> (u8, String) {
        let checked = CheckReport::of(node, scope, severity);
        (checked.exit_code(), checked.message)
    }

    #[test]
    fn the_worst_problem_comes_first_and_others_are_counted() {
        let node = node(&[(Health::Critical, true, "C"), (Health::Warning, true, "W")]);
        assert_eq!(check(&node, Scope::Node, Health::Critical), (1, "critical: C (+1 more)".to_owned()));
    }

    #[test]
    fn a_job_that_fills_its_own_limit_is_no_problem_of_the_node() {
        let node = node(&[(Health::Critical, false, "J"), (Health::Warning, true, "W")]);
        assert_eq!(check(&node, Scope::Node, Health::Critical), (0, "warning: W".to_owned()));
        assert_eq!(check(&node, Scope::Node, Health::Warning), (1, "warning: W".to_owned()));
        assert_eq!(check(&node, Scope::All, Health::Critical).0, 1);
        let node = self::node(&[(Health::Critical, false, "J"), (Health::Warning, false, "W")]);
        let line = "ok: no problem of the node is known, 2 of its jobs (--scope all)";
        assert_eq!(check(&node, Scope::Node, Health::Critical), (0, line.to_owned()));
    }

    #[test]
    fn what_a_user_can_cause_is_no_problem_of_the_node() {
        use crate::model::finding::{Severity, Subject};
        let code = |subject: Subject, scope| {
            let mut node = crate::node_view::tests::Node::new();
            node.finding("exhaustion", subject, "full", Severity::Critical);
            CheckReport::of(&node.view(), scope, Health::Critical).exit_code()
        };
        let mut of_node = Vec::new();
        for subject in Subject::of_each_type() {
            // With every name that a user can choose: a mount point as of the host, a cgroup, a workload.
            let names = |subject: &mut Subject| {
                (subject.cgroup, subject.mount) = ("/user.slice".into(), "/run/user/1000".into());
            };
            let mut named = subject.clone();
            names(&mut named);
            let codes = [subject.clone(), named].map(|subject| code(subject, Scope::Node));
            assert_eq!(codes[0], codes[1], "{subject:?}");
            if codes[0] != 0 {
                of_node.push(subject.resource.to_string());
            }
        }
        // The host's exhaustion is judged from its conclusion.
        assert_eq!(of_node, ["zone", "source"]);
        let shared = Subject::tmpfs(&"".into(), &"/dev/shm".into());
        assert_eq!((code(shared.clone(), Scope::Node), code(shared, Scope::All)), (0, 1));
    }

    #[test]
    fn problems_that_are_left_out_are_counted() {
        let mut node = node(&[(Health::Critical, false, "J")]);
        node.problems_left_out = 60;
        let line = "ok: no problem of the node is known, 61 of its jobs (--scope all)";
        assert_eq!(check(&node, Scope::Node, Health::Critical), (0, line.to_owned()));
        assert_eq!(check(&node, Scope::All, Health::Critical), (1, "critical: J (+60 more)".to_owned()));
    }

    #[test]
    fn an_acknowledged_problem_does_not_count() {
        let mut node = node(&[(Health::Critical, true, "C"), (Health::Unknown, true, "U")]);
        let by = crate::model::acknowledged::Acknowledgement::default();
        node.problems[0].acknowledged = Some(by.clone());
        assert_eq!(check(&node, Scope::Node, Health::Warning), (2, "unknown: U".to_owned()));
        node.problems[1].acknowledged = Some(by);
        assert_eq!(check(&node, Scope::All, Health::Warning), (0, "ok: no problem is known".to_owned()));
    }

    #[test]
    fn what_is_not_known_is_not_healthy() {
        assert_eq!(
            check(&node(&[]), Scope::Node, Health::Critical),
            (0, "ok: no problem of the node is known".to_owned())
        );
        let hidden = node(&[(Health::Warning, true, "W"), (Health::Unknown, true, "U")]);
        assert_eq!(check(&hidden, Scope::Node, Health::Critical).0, 2, "a warning hides nothing");
        assert_eq!(check(&hidden, Scope::Node, Health::Warning).0, 1);
        assert_eq!(check(&NodeView::default(), Scope::Node, Health::Critical).0, 2, "no sample");
        let stalled = NodeView { is_stalled: true, ..node(&[]) };
        assert_eq!(check(&stalled, Scope::All, Health::Warning).0, 2);
        // A problem of a job, or a warning, hides no missing forecast.
        for problems in [vec![], vec![(Health::Warning, false, "J")], vec![(Health::Warning, true, "W")]] {
            let mut young = node(&problems);
            young.host.forecast = Some(crate::model::outlook::Forecast::default());
            assert_eq!(check(&young, Scope::Node, Health::Critical).0, 2);
            let disabled = NodeView { analyzed: Analyzed::default(), ..node(&problems) };
            assert_eq!(check(&disabled, Scope::Node, Health::Critical).0, 2);
        }
    }

    #[test]
    fn a_source_that_fails_is_a_warning_and_makes_the_check_unknown() {
        let mut node = node(&[(Health::Warning, true, "W")]);
        node.problems[0].id.kind = "visibility".into();
        assert_eq!(check(&node, Scope::Node, Health::Critical), (2, "warning: W".to_owned()));
        assert_eq!(check(&node, Scope::Node, Health::Warning).0, 1);
    }

    #[test]
    fn the_line_has_at_most_80_bytes() {
        let long = format!("{}\u{1b}[2J\n", "é".repeat(100));
        for count in [1, 2, 200] {
            let (code, line) = check(
                &node(&vec![(Health::Critical, true, long.as_str()); count]),
                Scope::Node,
                Health::Critical,
            );
            assert!(code == 1 && line.len() <= LONGEST && line.contains("..."), "{line}");
            assert!(!line.contains(char::is_control) && line.ends_with(')') == (count > 1), "{line}");
        }
    }
}
