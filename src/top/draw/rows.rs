//! Rows of tables: columns that fit, the selected row, and titles that sort.

use ratatui_core::layout::Rect;
use unicode_width::UnicodeWidthStr as _;

use super::canvas::{Canvas, Tone};
use crate::model::format::UNKNOWN;
use crate::model::printable::escaped;
use crate::node_view::Health;
use crate::node_view::table::{CellKind, Sort, Table};
use crate::report::text::wrap;
use crate::top::state::Hit;

/// Columns before the first column of a table: the symbol of the health.
const MARK: u16 = 3;
/// Columns between two columns of a table.
const GAP: usize = 2;

/// Which part of a table is shown.
#[derive(Clone, Copy, Debug)]
pub(super) struct View {
    pub(super) offset: usize,
    pub(super) selected: Option<usize>,
    pub(super) sort: Option<Sort>,
    pub(super) is_stale: bool,
}

fn shown(health: Health, is_stale: bool) -> Health {
    if is_stale { Health::Unknown } else { health }
}

/// Maximum width of a column before the last one.
const fn most(kind: CellKind) -> usize {
    match kind {
        CellKind::Number | CellKind::Trail => 24,
        CellKind::Text => 40,
        CellKind::Prose => 400,
    }
}

/// The columns that fit into `width`, with their widths: the last one takes what is left.
fn layout(table: &Table, rows: std::ops::Range<usize>, width: u16) -> Vec<(usize, u16)> {
    let room = usize::from(width.saturating_sub(MARK));
    let natural = |column: usize| {
        let cells = table.rows[rows.clone()].iter().filter_map(|row| row.cells.get(column));
        let widest = cells.map(|cell| escaped(&cell.text).width()).max().unwrap_or(0);
        // Room for the mark of the sort order.
        widest.min(most(table.columns[column].kind)).max(table.columns[column].title.width() + 1)
    };
    let mut kept: Vec<(usize, usize)> =
        (0..table.columns.len()).map(|column| (column, natural(column))).collect();
    let total = |kept: &[(usize, usize)]| kept.iter().map(|(_, width)| width + GAP).sum::<usize>();
    let last = table.columns.len().saturating_sub(1);
    let is_prose = table.columns.get(last).is_some_and(|column| column.kind != CellKind::Number);
    // Prose is cut; its first words are enough to keep the columns beside it.
    let least = |kept: &[(usize, usize)]| {
        let prose =
            kept.last().filter(|(column, _)| is_prose && *column == last).map_or(0, |(_, width)| *width);
        total(kept) - prose + prose.min(24)
    };
    while least(&kept) > room {
        let heaviest = kept.iter().map(|(column, _)| table.columns[*column].weight).max().unwrap_or(0);
        let Some(place) =
            kept.iter().position(|(column, _)| heaviest > 0 && table.columns[*column].weight == heaviest)
        else {
            break;
        };
        kept.remove(place);
    }
    // Names become shorter where even the columns that are always shown do not fit.
    while least(&kept) > room {
        let widest = kept
            .iter_mut()
            .filter(|(column, width)| table.columns[*column].kind != CellKind::Number && *width > 8)
            .max_by_key(|(_, width)| *width);
        match widest {
            Some((_, width)) => *width -= 1,
            None => break,
        }
    }
    if is_prose && let Some(at) = kept.iter().position(|(column, _)| *column == last) {
        let others = total(&kept) - kept[at].1;
        kept[at].1 = room.saturating_sub(others + GAP).max(8);
    }
    kept.into_iter().map(|(column, width)| (column, u16::try_from(width).unwrap_or(u16::MAX))).collect()
}

/// Writes a table with its titles; returns what can be clicked.
pub(super) fn write(canvas: &mut Canvas<'_>, area: Rect, table: &Table, view: View) -> Vec<(Rect, Hit)> {
    let mut hits = Vec::new();
    let room = usize::from(area.height.saturating_sub(1));
    let first = view.offset.min(table.rows.len());
    let rows = first..(first + room).min(table.rows.len());
    let columns = layout(table, rows.clone(), area.width);
    let right = area.x + area.width;
    let mut x = area.x + MARK;
    for (column, width) in &columns {
        let about = &table.columns[*column];
        let sorted = view.sort.filter(|sort| sort.column == *column);
        let mark = sorted.map_or("", |sort| if sort.is_reversed { "▲" } else { "▼" });
        let title = format!("{}{mark}", about.title);
        let (begin, room) = placed(about.kind, &title, x, *width, right);
        canvas.put(begin, area.y, room, &title, Tone::Title);
        hits.push((Rect::new(x, area.y, *width, 1), Hit::Column(*column)));
        x += width + 2;
    }
    if table.rows.is_empty() {
        canvas.put(area.x + MARK, area.y + 1, area.width.saturating_sub(MARK), &table.empty, Tone::Dim);
    }
    for (y, place) in (area.y + 1..).zip(rows) {
        let row = &table.rows[place];
        let is_selected = view.selected == Some(place);
        let health = shown(row.health, view.is_stale);
        canvas.put(area.x, y, 2, health.symbol(), Tone::Health(health));
        if is_selected {
            canvas.fill(Rect::new(area.x, y, area.width, 1), Tone::Selected);
        }
        let mut x = area.x + MARK;
        for (column, width) in &columns {
            let Some(cell) = row.cells.get(*column) else { continue };
            let text = escaped(&cell.text);
            let about = &table.columns[*column];
            let tone = match (is_selected, column, health) {
                (true, ..) => Tone::Selected,
                (false, 0, Health::Warning | Health::Critical) => Tone::Health(health),
                _ => Tone::Plain,
            };
            let (begin, room) = placed(about.kind, &text, x, *width, right);
            if about.kind == CellKind::Prose {
                canvas.put(begin, y, room, &text, tone);
            } else {
                canvas.name(begin, y, room, &text, tone);
            }
            x += width + 2;
        }
        hits.push((Rect::new(area.x, y, area.width, 1), Hit::Row(place)));
    }
    hits
}

/// Where a text begins in a column at `x`, and its room before `right`: numbers are at the right of their column.
fn placed(kind: CellKind, text: &str, x: u16, width: u16, right: u16) -> (u16, u16) {
    let columns = u16::try_from(text.width()).unwrap_or(u16::MAX);
    let indent = if kind == CellKind::Number { width.saturating_sub(columns) } else { 0 };
    (x + indent, width.saturating_sub(indent).min(right.saturating_sub(x + indent)))
}

/// Writes the rows of a table as lines of prose: the first columns, then the last one, wrapped.
pub(super) fn prose(canvas: &mut Canvas<'_>, area: Rect, table: &Table, is_stale: bool) {
    let mut y = area.y;
    for row in &table.rows {
        let health = shown(row.health, is_stale);
        let known = row.cells.iter().filter(|cell| cell.text != UNKNOWN);
        let text = known.map(|cell| escaped(&cell.text)).collect::<Vec<_>>().join("  ");
        for (part, line) in wrap(&text, usize::from(area.width.saturating_sub(MARK))).into_iter().enumerate()
        {
            if y >= area.bottom() {
                return;
            }
            if part == 0 {
                canvas.put(area.x, y, 2, health.symbol(), Tone::Health(health));
            }
            canvas.put(area.x + MARK, y, area.width.saturating_sub(MARK), line, Tone::Plain);
            y += 1;
        }
    }
}
