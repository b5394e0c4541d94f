//! Bars of the host and of each GPU, with their last 10 minutes and the time left.

use crate::history::recent::Subject;
use crate::model::format;
use crate::model::printable::escaped;
use crate::node_view::forecast::time_left;
use crate::node_view::{Gpu, Health, NodeView};
use unicode_width::UnicodeWidthStr as _;

use super::canvas::{Canvas, Tone};
use crate::top::state::State;

/// Eighths of a cell, from the bottom.
const RISING: [&str; 8] = ["▁", "▂", "▃", "▄", "▅", "▆", "▇", "█"];
/// The same in ASCII.
const RISING_ASCII: [&str; 8] = ["_", ".", ",", "-", "=", "+", "*", "#"];
/// Eighths of a cell, from the left.
const FULL: [&str; 8] = ["▏", "▎", "▍", "▌", "▋", "▊", "▉", "█"];

/// One line: how much of a memory is used, and until when there is some.
pub(super) struct Meter {
    label: String,
    health: Health,
    subject: Subject,
    share: Option<f64>,
    /// What is shown in place of the bar.
    status: Option<String>,
    amount: String,
    limit: Option<f64>,
    left: String,
    more: String,
}

/// The meters of a node: the host, then its GPUs.
pub(super) fn meters(view: &NodeView) -> Vec<Meter> {
    let host = &view.host;
    let forecast = host.forecast.as_ref();
    let left = forecast.and_then(time_left);
    let swap = match (host.swap_used, host.swap_total) {
        (Some(used), Some(total)) if total > 0.0 => {
            format!("swap {} of {}", format::bytes(used), format::bytes(total))
        }
        _ => String::new(),
    };
    let first = Meter {
        label: "host".to_owned(),
        health: host.health,
        subject: Subject::Host,
        share: host.share(),
        status: None,
        amount: amount(host.used, host.total),
        limit: host.total,
        left: left.unwrap_or_default(),
        more: swap,
    };
    std::iter::once(first).chain(view.gpus.iter().map(gpu)).collect()
}

fn gpu(gpu: &Gpu) -> Meter {
    let answers = gpu.answers();
    let whole = gpu.whole();
    let status = (!answers).then(|| match gpu.status.as_str() {
        "" => "unknown".to_owned(),
        status => format!("{status}: {}", gpu.status_words()),
    });
    let busy = gpu.utilization.filter(|_| answers);
    let busy = busy.map_or_else(String::new, |busy| format!("{} busy, ", format::percent(busy)));
    let held = gpu.held_by();
    Meter {
        label: escaped(&format!("GPU {}", gpu.index)).into_owned(),
        health: gpu.health,
        subject: Subject::Gpu(gpu.uuid.as_str().into()),
        share: gpu.share().filter(|_| answers),
        status,
        amount: amount(gpu.used.filter(|_| answers), whole),
        limit: whole,
        left: gpu.time_left.clone(),
        more: escaped(&format!("{busy}{held}")).into_owned(),
    }
}

/// An amount of a whole: `57.3 of 80.0 GiB`.
fn amount(used: Option<f64>, whole: Option<f64>) -> String {
    let Some(used) = used.map(format::bytes) else { return "unknown".to_owned() };
    let Some(whole) = whole.map(format::bytes) else { return used };
    match (used.split_once(' '), whole.split_once(' ')) {
        (Some((number, unit)), Some((_, other))) if unit == other => format!("{number} of {whole}"),
        _ => format!("{used} of {whole}"),
    }
}

/// The columns of the parts of a meter, by the width of the screen.
struct Widths {
    bar: u16,
    left: u16,
    spark: u16,
    more: u16,
}

impl Widths {
    fn of(width: u16) -> Self {
        // Symbol, label, percent and amount take 40 columns.
        let rest = width.saturating_sub(40);
        let left = 18.min(rest / 2);
        let bar = (rest.saturating_sub(left) / 5).clamp(6, 30);
        let rest = rest.saturating_sub(left + bar + 2);
        let more = if rest > 60 {
            rest / 2
        } else if rest > 34 {
            rest - 20
        } else {
            0
        };
        Self { bar, left, spark: rest.saturating_sub(more + 1), more }
    }
}

/// Writes meters one below the other; those with the worst health, where there is no room for all.
pub(super) fn write(canvas: &mut Canvas<'_>, state: &State, view: &NodeView, y: u16, rows: u16, now: f64) {
    let mut all = meters(view);
    let room = usize::from(rows);
    let hidden = all.len().saturating_sub(room);
    if hidden > 0 {
        let mut order: Vec<usize> = (0..all.len()).collect();
        order.sort_by_key(|place| std::cmp::Reverse(all[*place].health));
        order.truncate(room.saturating_sub(1));
        order.sort_unstable();
        let kept = all.into_iter().enumerate().filter(|(place, _)| order.contains(place));
        all = kept.map(|(_, meter)| meter).collect();
    }
    let widths = Widths::of(canvas.buffer.area.width);
    let mut y = y;
    for meter in &all {
        row(canvas, state, meter, y, &widths, now);
        y += 1;
    }
    if hidden > 0 {
        let text = format!("and {} more GPUs without a worse state: key 3", hidden + 1);
        canvas.put(4, y, 60, &text, Tone::Dim);
    }
}

fn row(canvas: &mut Canvas<'_>, state: &State, meter: &Meter, y: u16, widths: &Widths, now: f64) {
    let health = state.shown(meter.health);
    let tone = Tone::Health(health);
    canvas.put(0, y, 2, health.symbol(), tone);
    canvas.put(3, y, 7, &meter.label, Tone::Title);
    let mut x = 10;
    if let Some(status) = &meter.status {
        // The verdict has the reason, for which there is no room on a narrow screen.
        let room = widths.bar + 28;
        let is_whole = status.width() <= usize::from(room);
        let status = if is_whole { status } else { status.split(':').next().unwrap_or_default() };
        canvas.put(x, y, room, status, tone);
    } else {
        bar(canvas, x, y, widths.bar, meter.share, tone);
        let share = meter.share.map_or_else(|| "?".to_owned(), format::percent);
        canvas.put(x + widths.bar + 1, y, 6, &format!("{share:>5}"), Tone::Plain);
        canvas.put(x + widths.bar + 7, y, 21, &meter.amount, Tone::Plain);
    }
    x += widths.bar + 29;
    let tone = if health >= Health::Warning { tone } else { Tone::Plain };
    canvas.put(x, y, widths.left, &meter.left, tone);
    x += widths.left + 1;
    let columns = state.trails.columns(&meter.subject, usize::from(widths.spark), now);
    spark(canvas, x, y, &columns, meter.limit);
    canvas.name(x + widths.spark + 1, y, widths.more, &meter.more, Tone::Dim);
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a share between 0 and 1 of a few hundred eighths"
)]
fn eighths(share: f64, cells: u16) -> usize {
    (share.clamp(0.0, 1.0) * f64::from(cells) * 8.0).round() as usize
}

fn bar(canvas: &mut Canvas<'_>, x: u16, y: u16, width: u16, share: Option<f64>, tone: Tone) {
    let is_unicode = canvas.look.is_unicode;
    let (full, empty) = if is_unicode { ("█", "░") } else { ("#", ".") };
    let Some(share) = share else {
        canvas.put(x, y, width, &"?".repeat(usize::from(width)), Tone::Dim);
        return;
    };
    let filled = eighths(share, width);
    for place in 0..width {
        let cell = filled.saturating_sub(usize::from(place) * 8).min(8);
        match cell {
            8 => canvas.put(x + place, y, 1, full, tone),
            0 => canvas.put(x + place, y, 1, empty, Tone::Dim),
            part if is_unicode => canvas.put(x + place, y, 1, FULL[part - 1], tone),
            4..8 => canvas.put(x + place, y, 1, full, tone),
            _ => canvas.put(x + place, y, 1, empty, Tone::Dim),
        };
    }
}

/// The levels of values below a limit, 1 to `8 * rows`; absent where there is no value.
fn levels(columns: &[Option<f64>], limit: Option<f64>, rows: u16) -> Vec<Option<usize>> {
    let most = columns.iter().flatten().copied().fold(0.0, f64::max);
    let limit = limit.filter(|limit| *limit > 0.0).unwrap_or(most).max(most);
    let level = |value: f64| if limit > 0.0 { eighths(value / limit, rows).max(1) } else { 1 };
    columns.iter().map(|value| value.map(level)).collect()
}

fn spark(canvas: &mut Canvas<'_>, x: u16, y: u16, columns: &[Option<f64>], limit: Option<f64>) {
    let signs = if canvas.look.is_unicode { RISING } else { RISING_ASCII };
    for (place, level) in (x..).zip(levels(columns, limit, 1)) {
        if let Some(level) = level {
            canvas.put(place, y, 1, signs[(level - 1).min(7)], Tone::Plain);
        }
    }
}

/// A chart of several lines, with its limit and the time on its axis.
pub(super) fn chart(
    canvas: &mut Canvas<'_>,
    (y, rows): (u16, u16),
    columns: &[Option<f64>],
    limit: Option<f64>,
    tone: Tone,
) {
    let signs = if canvas.look.is_unicode { RISING } else { RISING_ASCII };
    let most = columns.iter().flatten().copied().fold(0.0, f64::max);
    let top = limit.unwrap_or(most).max(most);
    let newest = columns.iter().rev().flatten().next();
    canvas.put(0, y, 12, &format!("{:>11}", format::bytes(top)), Tone::Dim);
    canvas.put(0, y + rows - 1, 12, &format!("{:>11}", "0"), Tone::Dim);
    for (x, level) in (12..).zip(levels(columns, limit, rows)) {
        for row in 0..rows {
            let level = level.unwrap_or(0).saturating_sub(usize::from(row) * 8).min(8);
            if level > 0 {
                canvas.put(x, y + rows - 1 - row, 1, signs[level - 1], tone);
            }
        }
    }
    let text = match newest {
        Some(newest) => format!("the last 10 minutes; newest: {}", format::bytes(*newest)),
        None => "nothing is known of the last 10 minutes".to_owned(),
    };
    canvas.put(12, y + rows, 60, &text, Tone::Dim);
}
