//! Draws a [`State`] into a buffer of cells, from 80 by 24 up; smaller terminals show what fits.

mod canvas;
mod meters;
mod rows;

use ratatui_core::buffer::Buffer;
use ratatui_core::layout::Rect;
use unicode_width::UnicodeWidthStr as _;

pub use canvas::Look;

use self::canvas::{Canvas, Tone};
use super::data::Data;
use super::details::{self, Detail, Line};
use super::keys::HELP;
use super::state::{Hit, Kind, Screen, State, Tab};
use crate::model::format;
use crate::model::printable::escaped;
use crate::node_view::Health;
use crate::report::text::wrap;

/// Maximum number of lines of the verdict.
const MOST_VERDICT: usize = 3;
/// From this width on, panes are drawn beside the table.
const WIDE: u16 = 150;
/// From this number of rows below the bars on, panes are drawn below the table.
const HIGH: u16 = 16;
/// With fewer rows, panes are drawn below a table that leaves at least this number of them free.
const FREE: u16 = 5;

/// Draws the state at `now`, in seconds since 1970 by the clock of this terminal.
pub fn draw(state: &mut State, buffer: &mut Buffer, look: Look, now: f64) {
    let now = state.node_time(now);
    let area = buffer.area;
    let mut canvas = Canvas { buffer, look, is_dim: false };
    state.hits.clear();
    if area.width < 20 || area.height < 5 {
        canvas.put(0, 0, area.width, "the terminal is too small", Tone::Plain);
        return;
    }
    head(&mut canvas, state, now);
    let y = 1 + verdict(&mut canvas, state, now);
    let bottom = area.height - 1;
    canvas.is_dim = state.is_stale();
    if state.has_help {
        help(&mut canvas, y + 1);
    } else if let Some(detail) = details::detail(state, area.width.saturating_sub(2)) {
        detail_screen(&mut canvas, state, &detail, y, bottom, now);
    } else {
        overview(&mut canvas, state, y, bottom, now);
    }
    canvas.is_dim = false;
    foot(&mut canvas, state);
}

fn head(canvas: &mut Canvas<'_>, state: &State, now: f64) {
    let width = canvas.buffer.area.width;
    let name = match &state.data {
        Some(Data::Node(node)) if !node.view.node.is_empty() => node.view.node.as_str(),
        Some(Data::Cluster(_)) => "cluster",
        _ => "memwarden",
    };
    let clock = format::timestamp(now);
    let clock = clock.get(11..19).unwrap_or_default();
    let paused = if state.is_paused { "PAUSED  " } else { "" };
    let right = format!("{paused}{}  {clock} UTC", escaped(&state.origin));
    let taken = u16::try_from(right.width()).unwrap_or(u16::MAX).min(width.saturating_sub(12));
    let left = width.saturating_sub(taken + 1);
    canvas.name(0, 0, left, &escaped(name), Tone::Title);
    canvas.name(width - taken, 0, taken, &right, Tone::Dim);
}

/// Writes the verdict and returns its number of lines.
fn verdict(canvas: &mut Canvas<'_>, state: &State, now: f64) -> u16 {
    let width = canvas.buffer.area.width;
    let (health, sentence, more) = state.verdict(now);
    let more = match more {
        0 => String::new(),
        1 => " 1 more problem.".to_owned(),
        more => format!(" {more} more problems."),
    };
    let mark = if health == Health::Ok { String::new() } else { format!("{} ", health.symbol().trim_end()) };
    let text = format!("{mark}{}: {}{more}", health.label(), escaped(&sentence));
    let tone = Tone::Verdict(health);
    let lines = wrap(&text, usize::from(width));
    let shown = lines.len().min(MOST_VERDICT);
    for (y, line) in (1..).zip(lines.iter().take(shown)) {
        canvas.fill(Rect::new(0, y, width, 1), tone);
        canvas.put(0, y, width, line, tone);
    }
    if lines.len() > shown {
        let y = u16::try_from(shown).unwrap_or(1);
        canvas.put(width - 3, y, 3, "...", tone);
    }
    u16::try_from(shown).unwrap_or(1)
}

fn overview(canvas: &mut Canvas<'_>, state: &mut State, mut y: u16, bottom: u16, now: f64) {
    let area = canvas.buffer.area;
    if let Some(Data::Node(node)) = &state.data {
        let room = bottom.saturating_sub(y + 6).max(2);
        let meters = u16::try_from(1 + node.view.gpus.len()).unwrap_or(u16::MAX).min(room);
        meters::write(canvas, state, &node.view, y, meters, now);
        y += meters;
        if let Some(why) = &node.view.gpus_unseen {
            canvas.put(0, y, 2, Health::Unknown.symbol(), Tone::Health(Health::Unknown));
            canvas.put(3, y, area.width - 3, &escaped(why), Tone::Plain);
            y += 1;
        }
    }
    tabs(canvas, state, y);
    y += 1;
    let height = bottom.saturating_sub(y);
    let side = area.width >= WIDE && height >= 8;
    let panes = panes(state);
    let Some(table) = state.table() else { return };
    // The head of the table and an empty row below it are not free.
    let used = u16::try_from(table.rows.len()).unwrap_or(u16::MAX).saturating_add(2);
    let free = height.saturating_sub(used);
    let (width, rows) = if panes.is_empty() {
        (area.width, height)
    } else if side {
        (area.width * 3 / 5, height)
    } else if height >= HIGH {
        (area.width, height - height * 2 / 5)
    } else if free >= FREE {
        (area.width, height - free)
    } else {
        (area.width, height)
    };
    let main = Rect::new(0, y, width, rows);
    let selected = state.selected(&table);
    let page = usize::from(rows.saturating_sub(1));
    let offset = &mut state.place_mut().offset;
    if let Some(selected) = selected {
        *offset = (*offset).max((selected + 1).saturating_sub(page)).min(selected);
    }
    *offset = (*offset).min(table.rows.len().saturating_sub(page));
    let (offset, sort) = (*offset, state.place().sort);
    state.page = page;
    let is_stale = state.is_stale();
    let mut hits = rows::write(canvas, main, &table, rows::View { offset, selected, sort, is_stale });
    state.hits.append(&mut hits);
    let rest = match (width < area.width, rows < height) {
        (true, _) => Rect::new(width + 1, y, area.width - width - 1, height),
        (false, true) => Rect::new(0, y + rows, area.width, height - rows),
        (false, false) => return,
    };
    write_panes(canvas, state, &panes, rest);
}

/// The tables beside the one that is shown, where there is room.
fn panes(state: &State) -> Vec<Tab> {
    let shown = match state.place().screen {
        Screen::Tab(tab) => tab,
        _ => return Vec::new(),
    };
    let all: &[Tab] = match state.kind {
        Kind::Node => &[Tab::Problems, Tab::Events, Tab::Protection],
        Kind::Cluster => &[Tab::Alerts, Tab::Runs],
    };
    let has_rows = |tab: &&Tab| **tab != shown && !state.whole(**tab).rows.is_empty();
    all.iter().filter(has_rows).copied().collect()
}

fn write_panes(canvas: &mut Canvas<'_>, state: &State, panes: &[Tab], area: Rect) {
    let mut y = area.y;
    for (place, tab) in panes.iter().enumerate() {
        let left = area.bottom().saturating_sub(y);
        let others = u16::try_from(panes.len() - place).unwrap_or(1);
        let table = state.whole(*tab);
        let wanted = u16::try_from(table.rows.len()).unwrap_or(u16::MAX).saturating_add(2);
        let height = wanted.min((left / others).max(3)).min(left);
        if height < 3 {
            return;
        }
        canvas.put(area.x, y, area.width, &format!("{} ({})", tab.label(), table.rows.len()), Tone::Title);
        let inner = Rect::new(area.x, y + 1, area.width, height - 1);
        rows::prose(canvas, inner, &table, state.is_stale());
        y += height;
    }
}

fn tabs(canvas: &mut Canvas<'_>, state: &mut State, y: u16) {
    let width = canvas.buffer.area.width;
    let all = Tab::all(state.kind);
    let titles = |has_counts: bool, most: usize| {
        let title = |(place, tab): (usize, &Tab)| {
            let is_shown = place == state.tab();
            let rows = if state.data.is_some() { state.whole(*tab).rows.len() } else { 0 };
            let count = if rows > 0 && (has_counts || is_shown) { format!(" {rows}") } else { String::new() };
            let name = tab.label().chars().take(if is_shown { usize::MAX } else { most }).collect::<String>();
            format!("{} {name}{count}", place + 1)
        };
        all.iter().enumerate().map(title).collect::<Vec<String>>()
    };
    // With less room, the other tables lose their counts, and then the ends of their names.
    let fits = |titles: &Vec<String>| {
        titles.iter().map(|title| title.width() + 2).sum::<usize>() <= usize::from(width) + 2
    };
    let titles = [titles(true, usize::MAX), titles(false, usize::MAX)]
        .into_iter()
        .find(fits)
        .unwrap_or_else(|| titles(false, 5));
    let mut x = 0;
    for (place, title) in titles.iter().enumerate() {
        let tone = if place == state.tab() { Tone::Selected } else { Tone::Plain };
        let taken = canvas.put(x, y, width.saturating_sub(x), title, tone);
        state.hits.push((Rect::new(x, y, taken, 1), Hit::Tab(place)));
        x += taken + 2;
    }
}

fn detail_screen(canvas: &mut Canvas<'_>, state: &mut State, detail: &Detail, y: u16, bottom: u16, now: f64) {
    let width = canvas.buffer.area.width;
    let health = state.shown(detail.health);
    let mut y = y;
    canvas.put(0, y, 2, health.symbol(), Tone::Health(health));
    canvas.name(3, y, width - 3, &detail.title, Tone::Title);
    y += 1;
    if let Some(chart) = &detail.chart {
        let rows = (bottom.saturating_sub(y) / 4).clamp(2, 10);
        let columns = state.trails.columns(&chart.subject, usize::from(width.saturating_sub(13)), now);
        meters::chart(canvas, (y, rows), &columns, chart.limit, Tone::Health(health));
        y += rows + 1;
    }
    let mut lines: Vec<(u16, String, Tone)> = Vec::new();
    for line in &detail.lines {
        let (text, indent, tone) = match line {
            Line::Row(text) => {
                lines.push((0, text.clone(), Tone::Plain));
                continue;
            }
            Line::Head(text) => (text.clone(), 0, Tone::Title),
            Line::Fact(name, value) => (format!("{name:<20} {value}"), 2, Tone::Plain),
            Line::Text(None, text) => (text.clone(), 2, Tone::Plain),
            Line::Text(Some(health), text) => {
                let health = state.shown(*health);
                (format!("{} {text}", health.symbol()), 2, Tone::Health(health))
            }
        };
        let parts = wrap(&text, usize::from(width.saturating_sub(indent)));
        lines.extend(parts.into_iter().map(|part| (indent, part.to_owned(), tone)));
    }
    let room = usize::from(bottom.saturating_sub(y));
    let place = state.place_mut();
    place.offset = place.offset.min(lines.len().saturating_sub(room));
    let offset = place.offset;
    state.page = room;
    for (row, (indent, text, tone)) in (y..bottom).zip(lines.iter().skip(offset)) {
        canvas.put(*indent, row, width - indent, text, *tone);
    }
    if lines.len() > offset + room && bottom > 0 {
        let text = format!(" {} more lines ", lines.len() - offset - room);
        canvas.put(width.saturating_sub(20), bottom - 1, 20, &text, Tone::Selected);
    }
}

fn help(canvas: &mut Canvas<'_>, y: u16) {
    let width = canvas.buffer.area.width;
    canvas.put(0, y, width, "Keys", Tone::Title);
    let mut row = y + 1;
    for (keys, text) in HELP {
        canvas.put(2, row, 39, keys, Tone::Plain);
        for line in wrap(text, usize::from(width.saturating_sub(42))) {
            canvas.put(42, row, width.saturating_sub(42), line, Tone::Plain);
            row += 1;
        }
    }
    row += 1;
    let mut x = 2;
    for health in [Health::Ok, Health::Unknown, Health::Warning, Health::Critical] {
        let text = format!("{} {}", health.symbol(), health.label());
        x += canvas.put(x, row, 20, &text, Tone::Health(health)) + 3;
    }
}

fn foot(canvas: &mut Canvas<'_>, state: &State) {
    let area = canvas.buffer.area;
    let (y, width) = (area.height - 1, area.width);
    let place = state.place();
    if state.is_typing {
        let text = format!("filter: {}_   (Enter: keep, Esc: clear)", escaped(&place.filter));
        canvas.put(0, y, width, &text, Tone::Plain);
        return;
    }
    let filter = if place.filter.is_empty() {
        String::new()
    } else {
        format!("[filter: {}] ", escaped(&place.filter))
    };
    let enter = details::detail(state, width).map(|detail| detail.enter);
    let keys = match enter {
        Some("") => "Esc back  Up/Down scroll  1-9 tables  ? help  q quit".to_owned(),
        Some(enter) => format!("Esc back  Enter {enter}  Up/Down scroll  ? help  q quit"),
        None => "Enter open  / filter  s sort  r reverse  Space pause  Tab next  ? help  q quit".to_owned(),
    };
    canvas.put(0, y, width, &format!("{filter}{keys}"), Tone::Dim);
}
