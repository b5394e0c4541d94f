//! How jobs of Slurm ended, and the most memory that they used: `sacct`.
//!
//! `sacct` has a line for each job and each of its steps, of which MaxRSS is known only of steps; states are those of
//! `man sacct`, section JOB STATE CODES. It has no samples.

use std::borrow::Cow;

use super::{RunEnd, RunRecord, RunRecordError};
use memwarden::model::ends::EndCause;

/// Most columns of fixed widths; `sacct --helpformat` lists some 110.
const MOST_COLUMNS: usize = 512;

/// Reads the output of `sacct`, with or without `--parsable2`, with a header.
///
/// # Errors
/// [`RunRecordError`], with the line.
pub(crate) fn sacct(bytes: &[u8]) -> Result<RunRecord, RunRecordError> {
    let text = String::from_utf8_lossy(bytes);
    let text = text.trim_start_matches('\u{feff}');
    let widths = widths(text);
    // One line at a time: short lines below many columns would take a multiple of the text.
    let mut lines = text.lines().map(|line| piped(line, &widths)).enumerate();
    let header = lines.next().map_or(Cow::Borrowed(""), |(_, line)| line);
    // The line of dashes.
    lines.by_ref().take(usize::from(!widths.is_empty())).for_each(drop);
    // Bars, or what --delimiter named.
    let delimiter = ['|', ',', '\t', ';'].into_iter().find(|letter| header.contains(*letter)).unwrap_or('|');
    let columns: Vec<&str> = header.trim_end_matches(delimiter).split(delimiter).map(str::trim).collect();
    let place = |name: &str| columns.iter().position(|column| *column == name);
    let (Some(id), Some(state)) = (place("JobID"), place("State")) else {
        return Err(RunRecordError::Nothing("the output of sacct needs the columns JobID and State"));
    };
    let [name, exit, used, limit] = ["JobName", "ExitCode", "MaxRSS", "ReqMem"].map(place);
    let mut ends: Vec<RunEnd> = Vec::new();
    let mut numbers: Vec<String> = Vec::new();
    for (at, line) in lines.filter(|(_, line)| !line.trim().is_empty()) {
        let cells: Vec<&str> = line.split(delimiter).map(str::trim).collect();
        let wrong = |problem: String| RunRecordError::Line { line: at + 1, problem };
        if cells.len() < columns.len() {
            return Err(wrong(format!("{} cells, but the header has {}", cells.len(), columns.len())));
        }
        if delimiter != '|' && cells.len() > columns.len() + 1 {
            return Err(wrong(format!(
                "a cell has {delimiter:?}, which also divides the cells: --parsable2 writes bars"
            )));
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
        } else if cause(cells[state]) == EndCause::CgroupLimit && end.cause != EndCause::Finished {
            end.cause = EndCause::CgroupLimit;
        }
        end.used_bytes = end.used_bytes.max(amount(cell(used)));
    }
    if ends.is_empty() {
        return Err(RunRecordError::Nothing("the output of sacct has no job"));
    }
    Ok(RunRecord { tool: "sacct", ends, ..RunRecord::default() })
}

/// The widths of columns of fixed widths, which the line of dashes below the header shows; none where it has no such columns.
fn widths(text: &str) -> Vec<usize> {
    let dashes = text.lines().nth(1).filter(|line| line.starts_with("---")).unwrap_or_default();
    dashes.split_whitespace().take(MOST_COLUMNS).map(str::len).collect()
}

/// The line with `|` between its cells, where the columns have fixed widths.
fn piped<'t>(line: &'t str, widths: &[usize]) -> Cow<'t, str> {
    if widths.is_empty() || line.is_empty() {
        return line.into();
    }
    let mut all = String::with_capacity(line.len());
    let mut letters = line.chars();
    for width in widths {
        all.extend(letters.by_ref().take(*width));
        letters.next();
        all.push('|');
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
