//! What parameter files hold, as tables for people.

use std::borrow::Cow;
use std::fmt::Write as _;

use super::CheckpointReport;
use crate::files::parameters::Dtype;
use crate::files::parameters::compare::{Comparison, Side};
use crate::files::parameters::summary::{self, Share, Summary, Trainable, Values};
use crate::model::format;
use crate::model::health::Health;
use crate::model::printable;
use crate::model::units::{Bytes, Ratio};
use crate::node_view::table::Row;
use crate::report::Page;
use crate::report::text;

pub(crate) fn checkpoint(report: &CheckpointReport<'_>, all: bool, page: Page, out: &mut String) {
    let summary = &report.summary;
    let _ = writeln!(
        out,
        "{}: {} in {}, {} elements, {}",
        clean(&report.path),
        format::counted(summary.tensors, "tensor"),
        format::counted(report.files.len(), "file"),
        grouped(summary.elements),
        summary.bytes,
    );
    if summary.tied_tensors > 0 {
        let _ = writeln!(
            out,
            "  {} with the elements of others (tied), counted once",
            format::counted(summary.tied_tensors, "tensor")
        );
    }
    out.push('\n');
    shares("By part of the model", &summary.by_group, page, out);
    shares("By type", &summary.by_dtype, page, out);
    if all {
        rows("Every tensor", &report.all, false, page, out);
    } else {
        rows("Largest", &summary.largest, false, page, out);
    }
    match &summary.values {
        Some(found) => values(found, report, page, out),
        None => {
            let unread = "Values were not read (--no-scan): NaN, Inf and zeros are not known.";
            let _ = writeln!(out, "{}", page.marked(Health::Unknown, unread));
        }
    }
    adapter(report, out);
    trainable(summary, out);
    if !report.notes.is_empty() {
        out.push_str("\nRemarks\n");
        for note in report.notes {
            let _ = writeln!(out, "  {}", clean(note));
        }
    }
    out.push('\n');
}

fn shares(title: &str, shares: &[Share], page: Page, out: &mut String) {
    let row = |share: &Share| {
        Row::default()
            .text("", 0, share.name)
            .number("tensors", 2, share.tensors.to_string())
            .number("elements", 0, grouped(share.elements))
            .number("bytes", 0, share.bytes.to_string())
            .value("share", 1, share.ratio.map(Ratio::get), format::percent)
    };
    text::titled(out, title, shares.iter().map(row), page);
}

fn rows(title: &str, rows: &[summary::Row<'_>], bad: bool, page: Page, out: &mut String) {
    if rows.is_empty() {
        return;
    }
    let row = |row: &summary::Row<'_>| {
        let count = |count: Option<u64>, of: &str| format!("{} {of}", grouped(count.unwrap_or(0)));
        let mut cells = Row::default().number("", 0, row.bytes.to_string());
        cells = cells.text("", 0, row.dtype.name()).text("", 0, shape(row.shape));
        if bad {
            cells = cells.number("", 0, count(row.nan, "NaN")).number("", 0, count(row.inf, "Inf"));
        }
        cells.prose("", clean(row.name))
    };
    text::titled(out, title, rows.iter().map(row), page);
}

fn values(found: &Values<'_>, report: &CheckpointReport<'_>, page: Page, out: &mut String) {
    let (level, verdict) = match (found.bad_tensors, found.zero_tensors) {
        _ if found.scanned_tensors == 0 => {
            (Health::Unknown, "Values: none were read; NaN, Inf and zeros are not known".to_owned())
        }
        (0, 0) => (Health::Ok, "Values: no NaN, no Inf, no tensor of zeros only".to_owned()),
        (bad, zero) => (
            if bad > 0 { Health::Critical } else { Health::Warning },
            format!(
                "Values: {} NaN and {} Inf in {}; {} of zeros only",
                grouped(found.nan_elements),
                grouped(found.inf_elements),
                format::counted(bad, "tensor"),
                format::counted(zero, "tensor"),
            ),
        ),
    };
    let _ = writeln!(out, "{}", page.marked(level.in_part(!found.not_scanned.is_empty()), &verdict));
    if let Some(speed) = report.scan {
        let threads = format::counted(speed.threads, "thread");
        let _ = writeln!(
            out,
            "  {} scanned, {speed} by {threads}",
            format::counted(found.scanned_tensors, "tensor")
        );
    }
    for (why, count) in &found.not_scanned {
        let _ = writeln!(out, "  {} not scanned: {why}", format::counted(*count, "tensor"));
    }
    out.push('\n');
    rows("With NaN or Inf", &found.bad, true, page, out);
    rows("Zeros only", &found.zero, false, page, out);
}

fn adapter(report: &CheckpointReport<'_>, out: &mut String) {
    let Some(adapter) = report.adapter else { return };
    let text =
        |text: &Option<String>| text.as_deref().map_or("?".to_owned(), |text| clean(text).into_owned());
    let rank = adapter.r.map_or("?".to_owned(), |rank| rank.to_string());
    let alpha = adapter.lora_alpha.map_or("?".to_owned(), |alpha| alpha.to_string());
    let _ = writeln!(
        out,
        "Adapter: {}, rank {rank}, alpha {alpha}, of {}\n  modules: {}",
        text(&adapter.peft_type),
        text(&adapter.base_model),
        clean(&adapter.target_modules.join(", ")),
    );
}

fn trainable(summary: &Summary<'_>, out: &mut String) {
    let share = |ratio: Option<Ratio>| format::shown(ratio.map(Ratio::get), format::percent);
    let _ = match summary.trainable {
        Trainable::RequiresGrad { elements, of_elements, ratio } => writeln!(
            out,
            "Trainable: {} of {} parameters ({}), by requires_grad",
            grouped(elements),
            grouped(of_elements),
            share(ratio)
        ),
        Trainable::Adapter { elements, of_elements: Some(all), ratio } => writeln!(
            out,
            "Trainable: {} of {} parameters ({}), adapter of adapter and base",
            grouped(elements),
            grouped(all),
            share(ratio)
        ),
        Trainable::Adapter { elements, of_elements: None, .. } => writeln!(
            out,
            "Trainable: {} parameters of the adapter; the share is known with --base",
            grouped(elements)
        ),
        Trainable::NotTold => writeln!(out, "Trainable: not stated in the file"),
    };
}

/// What differs between two checkpoints.
pub(crate) fn comparison(comparison: &Comparison<'_>, top: usize, page: Page, out: &mut String) {
    let _ = writeln!(
        out,
        "Compared: {} of the same shape and type, {} changed, {} added, {} removed",
        comparison.same,
        comparison.changed.len(),
        comparison.added.len(),
        comparison.removed.len(),
    );
    for (title, sides) in [("Added", &comparison.added), ("Removed", &comparison.removed)] {
        let row = |side: &Side<'_>| {
            let bytes = Bytes::new(side.bytes).to_string();
            let row = Row::default().text("", 0, bytes).text("", 0, kind(side.dtype, side.shape));
            row.prose("", clean(side.name))
        };
        list(title, sides.len(), sides.iter().take(top).map(row).collect(), page, out);
    }
    let changed = comparison.changed.iter().take(top).map(|change| {
        let (before, after) = (&change.before, &change.after);
        let change = format!("{} -> {}", kind(before.dtype, before.shape), kind(after.dtype, after.shape));
        Row::default().text("", 0, change).prose("", clean(before.name))
    });
    list("Changed", comparison.changed.len(), changed.collect(), page, out);
    if let (Some(moved), Some(compared)) = (&comparison.values, comparison.compared) {
        let _ = writeln!(out, "\nValues: {} of {} differ", moved.len(), format::counted(compared, "tensor"));
        let rows = moved.iter().take(top).map(|moved| {
            let difference = &moved.difference;
            let most = difference.max_abs.map_or("in bits".to_owned(), |most| format!("up to {most:.3e}"));
            let share = format!("{} of {}", grouped(difference.differing), grouped(difference.elements));
            Row::default().text("", 0, most).text("", 0, share).prose("", clean(moved.name))
        });
        list("Largest differences", moved.len(), rows.collect(), page, out);
    }
    out.push('\n');
}

fn list(title: &str, count: usize, rows: Vec<Row>, page: Page, out: &mut String) {
    if count > 0 {
        let more = count - rows.len();
        let _ = writeln!(out, "\n{title}");
        text::rows(out, rows, page);
        if more > 0 {
            let _ = writeln!(out, "  and {more} more (--top, --format json)");
        }
    }
}

fn kind(dtype: Dtype, lengths: &[u64]) -> String {
    format!("{} {}", dtype.name(), shape(lengths))
}

fn shape(lengths: &[u64]) -> String {
    let lengths: Vec<String> = lengths.iter().map(u64::to_string).collect();
    format!("[{}]", lengths.join(", "))
}

/// Digits in groups of three.
fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut out = String::new();
    for (place, digit) in digits.chars().enumerate() {
        if place > 0 && (digits.len() - place).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

/// A name of a file's that cannot move the cursor of a terminal.
fn clean(name: &str) -> Cow<'_, str> {
    printable::escaped(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_and_names_are_fit_to_be_shown() {
        assert_eq!([0, 999, 1000, 8_030_261_248].map(grouped), ["0", "999", "1,000", "8,030,261,248"]);
        assert_eq!(clean("a\x1b[2Jb"), "a\\x1b[2Jb");
        assert_eq!(clean("é.weight"), "é.weight");
    }
}
