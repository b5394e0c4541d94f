//! How jobs of Slurm ended, and the most memory that they used: `sacct` and jobstats.
//!
//! `sacct` has a line for each job and each of its steps, of which MaxRSS is known only of steps; states are those of
//! `man sacct`, section JOB STATE CODES. A summary of jobstats is `JS1:`, base64 of gzip of JSON (`report::job_summary` writes
//! the same), the JSON itself (`jobstats --json`), or the report that it prints. None has samples.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::io::Read as _;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use flate2::read::GzDecoder;
use serde::Deserialize;

use super::{RunEnd, RunRecord, RunRecordError};
use crate::model::ends::EndCause;

/// Maximum size of the JSON of one job: a job of 10,000 nodes with eight GPUs each has 6 MB.
const LARGEST: u64 = 16 << 20;

/// Reads the output of `sacct`, with or without `--parsable2`, with a header.
///
/// # Errors
/// [`RunRecordError`], with the line.
pub(crate) fn sacct(bytes: &[u8]) -> Result<RunRecord, RunRecordError> {
    let text = String::from_utf8_lossy(bytes);
    let text = piped(&text);
    let mut lines = text.lines().enumerate();
    let header = lines.next().map_or("", |(_, line)| line);
    let columns: Vec<&str> = header.trim_end_matches('|').split('|').map(str::trim).collect();
    let place = |name: &str| columns.iter().position(|column| *column == name);
    let (Some(id), Some(state)) = (place("JobID"), place("State")) else {
        return Err(RunRecordError::Nothing("the output of sacct needs the columns JobID and State"));
    };
    let [name, exit, used, limit, comment] =
        ["JobName", "ExitCode", "MaxRSS", "ReqMem", "AdminComment"].map(place);
    let mut ends: Vec<RunEnd> = Vec::new();
    let mut remarks = Vec::new();
    let mut numbers: Vec<String> = Vec::new();
    for (at, line) in lines.filter(|(_, line)| !line.trim().is_empty()) {
        let cells: Vec<&str> = line.split('|').map(str::trim).collect();
        let wrong = |problem: String| RunRecordError::Line { line: at + 1, problem };
        if cells.len() < columns.len() {
            return Err(wrong(format!("{} cells, but the header has {}", cells.len(), columns.len())));
        }
        let cell = |place: Option<usize>| place.map_or("", |place| cells[place]);
        let (job, step) = cells[id].split_once('.').map_or((cells[id], false), |(job, _)| (job, true));
        if !step || numbers.last().is_none_or(|last| last != job) {
            let run = if step || cell(name).is_empty() {
                format!("job {job}")
            } else {
                format!("job {job} ({})", cell(name))
            };
            ends.push(RunEnd::new(run, cause(cells[state])));
            numbers.push(job.to_owned());
        }
        let Some(end) = ends.last_mut() else { continue };
        if !step {
            // The code and the signal that ended it, 0 where none did.
            let code = cell(exit).split_once(':').filter(|(_, signal)| *signal == "0");
            end.exit_code = code.and_then(|(code, _)| code.parse().ok());
            end.limit_bytes = amount(cell(limit));
            if cell(comment).starts_with("JS1:") {
                match summary(cell(comment).as_bytes()) {
                    Some(summary) => summary.fill(end),
                    None => remarks.push(format!("the summary of jobstats of {} cannot be read", end.run)),
                }
            }
        } else if cause(cells[state]) == EndCause::CgroupLimit && end.cause != EndCause::Finished {
            end.cause = EndCause::CgroupLimit;
        }
        end.used_bytes = end.used_bytes.max(amount(cell(used)));
    }
    if ends.is_empty() {
        return Err(RunRecordError::Nothing("the output of sacct has no job"));
    }
    Ok(RunRecord { tool: "sacct", ends, remarks, ..RunRecord::default() })
}

/// The text with `|` between the cells, where it has columns of fixed widths, which the line of dashes below the header shows.
fn piped(text: &str) -> Cow<'_, str> {
    let Some(dashes) = text.lines().nth(1).filter(|line| line.starts_with("---")) else { return text.into() };
    let widths: Vec<usize> = dashes.split_whitespace().map(str::len).collect();
    let mut all = String::with_capacity(text.len());
    for (at, line) in text.lines().enumerate() {
        let mut letters = line.chars();
        for width in widths.iter().filter(|_| at != 1 && !line.is_empty()) {
            all.extend(letters.by_ref().take(*width));
            letters.next();
            all.push('|');
        }
        all.push('\n');
    }
    all.into()
}

/// The cause that a state means; `CANCELLED by 1000` has a user.
fn cause(state: &str) -> EndCause {
    match state.split([' ', '+']).next().unwrap_or_default() {
        "COMPLETED" => EndCause::Finished,
        // A column of the default width cuts it off.
        "OUT_OF_MEMORY" | "OUT_OF_ME" => EndCause::CgroupLimit,
        "FAILED" | "BOOT_FAIL" => EndCause::Failed,
        "CANCELLED" | "TIMEOUT" | "DEADLINE" | "PREEMPTED" | "NODE_FAIL" | "REVOKED" => EndCause::Killed,
        _ => EndCause::Unknown,
    }
}

/// `16G`, `4000M` or `12345K`, with the `n` of older versions (for each node); not an amount for each CPU (`c`).
fn amount(cell: &str) -> Option<u64> {
    let cell = cell.strip_suffix('n').unwrap_or(cell);
    let (number, unit) = match cell.char_indices().next_back()? {
        (at, letter) if letter.is_ascii_alphabetic() => (&cell[..at], letter),
        _ => (cell, 'B'),
    };
    let shift = match unit {
        'B' => 0,
        'K' => 10,
        'M' => 20,
        'G' => 30,
        'T' => 40,
        _ => return None,
    };
    let bytes = number.parse::<f64>().ok()? * f64::from(shift).exp2();
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "the range is checked")]
    (1.0..super::quantity::LARGEST).contains(&bytes).then_some(bytes as u64)
}

#[derive(Deserialize)]
struct Summary {
    nodes: BTreeMap<String, Node>,
}

#[derive(Deserialize)]
struct Node {
    used_memory: Option<u64>,
    total_memory: Option<u64>,
}

impl Summary {
    /// The node that used the largest part counts.
    fn fill(&self, end: &mut RunEnd) {
        let part = |node: &&Node| {
            #[expect(clippy::cast_precision_loss, reason = "a share")]
            node.used_memory
                .zip(node.total_memory)
                .map_or(0.0, |(used, total)| used as f64 / total.max(1) as f64)
        };
        if let Some(worst) = self.nodes.values().max_by(|one, other| part(one).total_cmp(&part(other))) {
            end.used_bytes = worst.used_memory.or(end.used_bytes);
            end.limit_bytes = worst.total_memory.or(end.limit_bytes);
        }
    }
}

/// The summary after `JS1:`.
fn summary(text: &[u8]) -> Option<Summary> {
    let packed = STANDARD.decode(text.strip_prefix(b"JS1:")?.trim_ascii()).ok()?;
    let mut json = Vec::new();
    GzDecoder::new(&*packed).take(LARGEST).read_to_end(&mut json).ok()?;
    serde_json::from_slice(&json).ok()
}

/// The heading of the report that jobstats prints.
pub(super) const HEADING: &[u8] = b"Slurm Job Statistics";

/// Reads that report: the state, and the memory of each node.
fn printed(text: &str) -> RunEnd {
    let mut end = RunEnd::new(String::new(), EndCause::Unknown);
    let (mut nodes, mut is_memory) = (BTreeMap::new(), false);
    for line in text.lines().map(str::trim) {
        // Other tables of nodes follow.
        is_memory = line.starts_with("CPU memory usage per node") || is_memory && !line.contains(" per node");
        match line.split_once(": ").map(|(name, value)| (name, value.trim())) {
            Some(("Job ID", job)) => end.run = format!("job {job}"),
            Some(("State", state)) => end.cause = cause(state),
            Some((name, value)) if is_memory && !name.starts_with("Total") => {
                let amounts = value.split(' ').next().and_then(|amounts| amounts.split_once('/'));
                let size = |text: &str| amount(text.strip_suffix('B').unwrap_or(text));
                if let Some((used, total)) = amounts {
                    nodes
                        .insert(name.to_owned(), Node { used_memory: size(used), total_memory: size(total) });
                }
            }
            _ => {}
        }
    }
    Summary { nodes }.fill(&mut end);
    end
}

/// Reads one summary of jobstats: its line, its JSON, or the report that it prints.
///
/// # Errors
/// [`RunRecordError`] where it is neither.
pub(crate) fn jobstats(bytes: &[u8]) -> Result<RunRecord, RunRecordError> {
    let text = bytes.strip_prefix(b"\xef\xbb\xbf").unwrap_or(bytes).trim_ascii();
    if text.windows(HEADING.len()).any(|window| window == HEADING) {
        let ends = vec![printed(&String::from_utf8_lossy(text))];
        return Ok(RunRecord { tool: "jobstats", ends, ..RunRecord::default() });
    }
    let summary = if text.starts_with(b"{") { serde_json::from_slice(text).ok() } else { summary(text) };
    let problem = "not a summary of jobstats (JS1: and base64 of gzip of JSON, or the JSON)";
    let summary = summary.ok_or(RunRecordError::At { offset: 0, problem })?;
    let mut end = RunEnd::new(String::new(), EndCause::Unknown);
    summary.fill(&mut end);
    Ok(RunRecord { tool: "jobstats", ends: vec![end], ..RunRecord::default() })
}
