//! What a part found, and the summary of all parts.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use anyhow::Context as _;
use serde::{Deserialize, Serialize};

/// How a part ended.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Verdict {
    Ok,
    Skipped,
    /// memwarden and what it is compared with differ by more than the tolerance.
    Differs,
    /// The part could not be carried out.
    Failed,
}

/// One judged figure.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(crate) struct Check {
    pub(crate) what: String,
    pub(crate) verdict: Verdict,
    /// What memwarden says, what the other says, and the tolerance, in words.
    pub(crate) detail: String,
}

/// The result of one part.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(crate) struct Part {
    pub(crate) part: String,
    pub(crate) verdict: Verdict,
    /// Why it was skipped or failed; otherwise the most important figure.
    pub(crate) note: String,
    #[serde(default)]
    pub(crate) seconds: f64,
    /// Figures that are measured and not judged.
    #[serde(default)]
    pub(crate) figures: serde_json::Map<String, serde_json::Value>,
    #[serde(default)]
    pub(crate) checks: Vec<Check>,
}

/// All parts, with what they ran on.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(crate) struct Summary {
    pub(crate) memwarden: String,
    /// `device`, or `fake NVML`: no device was measured then.
    pub(crate) origin: String,
    pub(crate) driver: String,
    pub(crate) gpus: Vec<String>,
    pub(crate) seconds: f64,
    pub(crate) verdict: Verdict,
    pub(crate) parts: Vec<Part>,
}

impl Part {
    /// A part without judged figures so far.
    pub(crate) fn new(name: &str) -> Self {
        Self {
            part: name.to_owned(),
            verdict: Verdict::Ok,
            note: String::new(),
            seconds: 0.0,
            figures: serde_json::Map::new(),
            checks: Vec::new(),
        }
    }

    /// A part that is not carried out.
    pub(crate) fn skipped(name: &str, why: impl Into<String>) -> Self {
        Self { verdict: Verdict::Skipped, note: why.into(), ..Self::new(name) }
    }

    /// A part that could not be carried out.
    pub(crate) fn failed(name: &str, why: impl Into<String>) -> Self {
        Self { verdict: Verdict::Failed, note: why.into(), ..Self::new(name) }
    }

    /// Adds a judged figure.
    pub(crate) fn check(&mut self, what: impl Into<String>, good: bool, detail: impl Into<String>) {
        let verdict = if good { Verdict::Ok } else { Verdict::Differs };
        self.verdict = self.verdict.max(verdict);
        self.checks.push(Check { what: what.into(), verdict, detail: detail.into() });
    }

    /// Adds something that cannot be judged here.
    pub(crate) fn not_judged(&mut self, what: impl Into<String>, why: impl Into<String>) {
        self.checks.push(Check { what: what.into(), verdict: Verdict::Skipped, detail: why.into() });
    }

    /// Adds a figure that is not judged.
    pub(crate) fn figure(&mut self, name: &str, value: impl Into<serde_json::Value>) {
        self.figures.insert(name.to_owned(), value.into());
    }

    fn count(&self, verdict: Verdict) -> usize {
        self.checks.iter().filter(|check| check.verdict == verdict).count()
    }
}

impl Summary {
    /// Writes `summary.json` and `summary.md`.
    ///
    /// # Errors
    /// The folder cannot be written.
    pub(crate) fn write(&self, folder: &Path) -> anyhow::Result<()> {
        let json = serde_json::to_string_pretty(self)?;
        fs::write(folder.join("summary.json"), json + "\n").context("summary.json")?;
        fs::write(folder.join("summary.md"), self.markdown()).context("summary.md")
    }

    /// The table, then what each part found.
    pub(crate) fn markdown(&self) -> String {
        let mut text = String::new();
        let mut line = |words: std::fmt::Arguments<'_>| {
            // Writing to a string cannot fail.
            let _ = writeln!(text, "{words}");
        };
        line(format_args!("# GPU run: {}\n", word(self.verdict)));
        if self.origin == "unknown" {
            line(format_args!("**There is no recording; no device was measured.**\n"));
        } else if self.origin != "device" {
            line(format_args!(
                "**Rehearsal: the answers come from the {}; no device was measured.**\n",
                self.origin
            ));
        }
        line(format_args!("{}; driver {}; {:.0} s.", self.memwarden, self.driver, self.seconds));
        for gpu in &self.gpus {
            line(format_args!("- {}", cell(gpu)));
        }
        line(format_args!("\n| part | result | s | judged ok | differs | not judged | |"));
        line(format_args!("| --- | --- | --- | --- | --- | --- | --- |"));
        for part in &self.parts {
            line(format_args!(
                "| {} | {} | {:.0} | {} | {} | {} | {} |",
                part.part,
                word(part.verdict),
                part.seconds,
                part.count(Verdict::Ok),
                part.count(Verdict::Differs),
                part.count(Verdict::Skipped),
                cell(&part.note)
            ));
        }
        for part in self.parts.iter().filter(|part| !part.checks.is_empty() || !part.figures.is_empty()) {
            line(format_args!("\n## {}\n", part.part));
            for (name, value) in &part.figures {
                line(format_args!("- {name}: {}", cell(&value.to_string())));
            }
            if !part.checks.is_empty() {
                line(format_args!("\n| | result | |\n| --- | --- | --- |"));
            }
            for check in &part.checks {
                line(format_args!(
                    "| {} | {} | {} |",
                    cell(&check.what),
                    word(check.verdict),
                    cell(&check.detail)
                ));
            }
        }
        text
    }
}

fn word(verdict: Verdict) -> &'static str {
    match verdict {
        Verdict::Ok => "ok",
        Verdict::Skipped => "skipped",
        Verdict::Differs => "**differs**",
        Verdict::Failed => "**failed**",
    }
}

/// A text without what would end a cell of a table.
fn cell(text: &str) -> String {
    text.replace('|', "\\|").replace('\n', " ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_worst_figure_is_the_result_of_a_part() {
        let mut part = Part::new("comparison");
        part.check("a", true, "1 and 1");
        part.not_judged("b", "not supported");
        assert_eq!(part.verdict, Verdict::Ok);
        part.check("c", false, "1 | 2");
        part.check("d", true, "");
        assert_eq!(part.verdict, Verdict::Differs);
        let summary = Summary {
            memwarden: "memwarden 0".to_owned(),
            origin: "fake NVML".to_owned(),
            driver: "1".to_owned(),
            gpus: Vec::new(),
            seconds: 1.0,
            verdict: part.verdict,
            parts: vec![part, Part::skipped("leak", "no CUDA")],
        };
        let text = summary.markdown();
        assert!(text.contains("no device was measured"), "{text}");
        assert!(text.contains("| comparison | **differs** | 0 | 2 | 1 | 1 |  |"), "{text}");
        assert!(text.contains("| c | **differs** | 1 \\| 2 |"), "{text}");
        assert!(text.contains("| leak | skipped | 0 | 0 | 0 | 0 | no CUDA |"), "{text}");
    }
}
