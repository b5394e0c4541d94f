//! The health of a node in one line: the input is the newest frame of its daemon.

use serde::Serialize;

use super::frame_view::{FindingView, FrameView};
use super::text::Page;
use super::unseen;
use super::verdict::VerdictLevel;
use crate::model::finding::Severity;

/// Longest line in bytes: Node Problem Detector cuts the message of a custom plugin here, unless `max_output_length` of the
/// plugin's configuration is larger.
const LONGEST: usize = 80;

/// The health of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Health {
    /// Everything that should be measured is, and no finding has the severity of a problem.
    Ok,
    /// A finding has the severity of a problem.
    Problem,
    /// The daemon does not answer, has no fresh sample, or cannot measure something that the node has.
    Unknown,
}

impl Health {
    const fn word(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Problem => "problem",
            Self::Unknown => "unknown",
        }
    }

    /// The exit code, as of a custom plugin of Node Problem Detector: 0 ok, 1 problem, 2 unknown.
    pub const fn exit_code(self) -> u8 {
        match self {
            Self::Ok => 0,
            Self::Problem => 1,
            Self::Unknown => 2,
        }
    }
}

/// The answer of `memwarden check`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct CheckReport {
    health: Health,
    exit_code: u8,
    /// The line that the text format prints.
    message: String,
    /// The summaries of the findings that are problems, the most severe first.
    problems: Vec<String>,
    /// What cannot be measured, and why.
    unknown: Vec<String>,
}

impl CheckReport {
    /// The health by a frame; a finding of `severity` or a higher one is a problem.
    pub fn of(frame: &FrameView, severity: Severity) -> Self {
        let mut found: Vec<&FindingView> =
            frame.findings.iter().filter(|stated| stated.severity >= severity).collect();
        found.sort_by_key(|stated| std::cmp::Reverse(stated.severity));
        let problems = found.iter().map(|stated| stated.summary.clone()).collect();
        Self::new(problems, unknown(frame))
    }

    /// The health of a node whose daemon has no frame that can be used; `why` is the reason.
    pub fn blind(why: &str) -> Self {
        Self::new(Vec::new(), vec![why.to_owned()])
    }

    fn new(problems: Vec<String>, unknown: Vec<String>) -> Self {
        // A problem that is known stays one, whatever else is not known.
        let health = match (problems.is_empty(), unknown.is_empty()) {
            (false, _) => Health::Problem,
            (true, false) => Health::Unknown,
            (true, true) => Health::Ok,
        };
        let stated = if problems.is_empty() { &unknown } else { &problems };
        Self { health, exit_code: health.exit_code(), message: line(health, stated), problems, unknown }
    }

    /// The health.
    pub const fn health(&self) -> Health {
        self.health
    }

    /// The line as a page shows it: on a terminal, the word of the health has a color.
    pub fn shown(&self, page: Page) -> String {
        let level = match self.health {
            Health::Ok => VerdictLevel::Ok,
            Health::Problem => VerdictLevel::Critical,
            Health::Unknown => VerdictLevel::Unknown,
        };
        let word = self.health.word();
        self.message
            .strip_prefix(word)
            .map_or_else(|| self.message.clone(), |rest| format!("{}{rest}", level.painted(word, page)))
    }

    /// The health and its first reason, in one line of at most 80 bytes without a line feed.
    pub fn message(&self) -> &str {
        &self.message
    }
}

/// What the daemon should measure and does not.
fn unknown(frame: &FrameView) -> Vec<String> {
    let mut unknown: Vec<String> = unseen::silent(frame)
        .into_iter()
        .map(|(gpu, status)| format!("GPU {gpu} does not answer ({status})"))
        .collect();
    unknown.extend(unseen::hidden(frame));
    let memory = frame.sources.iter().find(|source| source.source == "memory");
    for source in &frame.sources {
        // Without the memory of the host nothing is known of the node.
        let required = source.source == "memory" && source.status != "ok";
        if required || source.status == "failed" {
            let why = source.why.as_deref().unwrap_or("no reason is given");
            unknown.push(format!("source {} {}: {why}", source.source, source.status));
        }
    }
    if memory.is_none() {
        unknown.push("the memory of the host is not measured: source memory is off".to_owned());
    }
    unknown
}

/// The line: the health, the first reason, and how many others there are.
fn line(health: Health, stated: &[String]) -> String {
    let more = stated.len().saturating_sub(1);
    let end = if more == 0 { String::new() } else { format!(" (+{more} more)") };
    let start = stated.first().map_or_else(
        || format!("{}: no finding requires attention", health.word()),
        |first| format!("{}: {}", health.word(), first.trim_end_matches('.')),
    );
    let start = start.replace(['\n', '\r'], " ");
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

    fn frame(sources: &str, findings: &str, metrics: &str) -> FrameView {
        let json = format!(
            r#"{{"sequence": 7, "unix_seconds": 1.0, "sources": [{sources}], "findings": [{findings}],
                "metrics": [{metrics}]}}"#
        );
        FrameView::read(json.as_bytes()).unwrap()
    }

    const MEMORY: &str = r#"{"source": "memory", "status": "ok", "why": null, "age_seconds": 0.1}"#;

    fn finding(severity: &str, summary: &str) -> String {
        format!(
            r#"{{"analyzer": "a", "subject": {{"resource": "host"}}, "state": "s", "severity": "{severity}",
                "summary": "{summary}"}}"#
        )
    }

    fn check(frame: &FrameView, severity: Severity) -> (u8, String) {
        let checked = CheckReport::of(frame, severity);
        (checked.exit_code, checked.message().to_owned())
    }

    #[test]
    fn the_worst_finding_comes_first_and_others_are_counted() {
        let findings = [finding("info", "I."), finding("warning", "W."), finding("critical", "C.")].join(",");
        let frame = frame(MEMORY, &findings, "");
        assert_eq!(check(&frame, Severity::Critical), (1, "problem: C".to_owned()));
        assert_eq!(check(&frame, Severity::Warning), (1, "problem: C (+1 more)".to_owned()));
        assert_eq!(check(&frame, Severity::Info), (1, "problem: C (+2 more)".to_owned()));
    }

    #[test]
    fn a_finding_below_the_severity_is_no_problem() {
        let frame = frame(MEMORY, &finding("warning", "W."), "");
        assert_eq!(check(&frame, Severity::Critical), (0, "ok: no finding requires attention".to_owned()));
    }

    #[test]
    fn what_cannot_be_measured_is_not_healthy() {
        let failed = format!(r#"{MEMORY}, {{"source": "vmstat", "status": "failed", "why": "cannot read"}}"#);
        assert_eq!(
            check(&frame(&failed, "", ""), Severity::Critical),
            (2, "unknown: source vmstat failed: cannot read".to_owned())
        );
        let absent = r#"{"source": "memory", "status": "unavailable", "why": "no /proc/meminfo"}"#;
        assert_eq!(check(&frame(absent, "", ""), Severity::Critical).0, 2);
        assert_eq!(check(&frame("", "", ""), Severity::Critical).0, 2);
        // What this host does not have is not missed.
        let without = format!(r#"{MEMORY}, {{"source": "gpu", "status": "unavailable", "why": "no NVML"}}"#);
        assert_eq!(check(&frame(&without, "", ""), Severity::Critical).0, 0);
        let nvml = |status: &str| {
            format!(
                r#"{{"name": "memwarden_nvml_status",
                    "series": [{{"labels": {{"status": "{status}"}}, "value": 1}}]}}"#
            )
        };
        assert_eq!(check(&frame(&without, "", &nvml("library_absent")), Severity::Critical).0, 0);
        assert_eq!(check(&frame(&without, "", &nvml("version_mismatch")), Severity::Critical).0, 2);
    }

    #[test]
    fn a_gpu_that_hangs_is_unknown_and_a_known_problem_stays_one() {
        let gpu = r#"{"name": "memwarden_gpu_status",
            "series": [{"labels": {"gpu": "3", "uuid": "u", "status": "ok"}, "value": 0},
                       {"labels": {"gpu": "3", "uuid": "u", "status": "hung"}, "value": 1}]}"#;
        assert_eq!(
            check(&frame(MEMORY, "", gpu), Severity::Critical),
            (2, "unknown: GPU 3 does not answer (hung)".to_owned())
        );
        let both = frame(MEMORY, &finding("critical", "C."), gpu);
        assert_eq!(check(&both, Severity::Critical), (1, "problem: C".to_owned()));
    }

    #[test]
    fn the_line_has_at_most_80_bytes() {
        for count in [1, 2, 1000] {
            let summary = format!("{}\\u001b[2J\\n", "é".repeat(100));
            let findings = vec![finding("critical", &summary); count].join(",");
            let (code, line) = check(&frame(MEMORY, &findings, ""), Severity::Critical);
            assert!(code == 1 && line.len() <= LONGEST && line.contains("..."), "{line}");
            assert!(!line.contains(char::is_control) && line.ends_with(')') == (count > 1), "{line}");
        }
    }
}
