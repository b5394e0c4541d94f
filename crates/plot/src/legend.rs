//! What the lines, areas and levels of a panel are, in rows above it.

use super::chart::{Fan, Panel};
use super::color::{Color, Theme};
use super::labels::Labels;
use super::picture::{Layer, Point, Rect, Stroke, Text};
use super::range::{Cut, Range, is_drawable};
use super::{gaps, text};
use memwarden_model::format;
use memwarden_model::outlook::Tte;

/// Height of a row in pixels.
pub(super) const ROW: f64 = 18.0;
const SIZE: f64 = 12.0;
const SWATCH: f64 = 22.0;
const APART: f64 = 18.0;
/// Names longer than this many pixels are cut; their tooltip is whole.
const LONGEST: f64 = 420.0;
/// So many lines show their peak too; with more the names alone are enough to read.
const PEAKS: usize = 6;

/// What stands before a name.
#[derive(Clone, Copy, Debug)]
enum Swatch {
    Line(Stroke),
    Area(Color, Option<Stroke>),
}

#[derive(Clone, Debug)]
struct Entry {
    swatch: Swatch,
    name: String,
}

/// The color and dashes of a line: colors first, then dashes, so that 24 lines differ.
pub(super) fn stroke(theme: &Theme, at: usize, of: usize) -> Stroke {
    let color = theme.series[at % theme.series.len()];
    let width = if of <= 4 { 1.75 } else { 1.25 };
    let dash = match (at / theme.series.len()) % 4 {
        0 => None,
        1 => Some([7.0, 3.0]),
        2 => Some([2.0, 2.0]),
        _ => Some([12.0, 4.0]),
    };
    Stroke { color, width, dash }
}

/// The line of a limit.
pub(super) const fn limit_stroke(theme: &Theme) -> Stroke {
    Stroke::dashed(theme.ink, 1.5, 9.0, 4.0)
}

/// The area and the middle line of a forecast: in the color of the first line, whose future it is.
pub(super) const fn fan_paint(theme: &Theme) -> (Color, Stroke) {
    (theme.series[0].with_alpha(60), Stroke::dashed(theme.series[0], 2.0, 6.0, 4.0))
}

/// Paints the panel's title and legend at the top of a room, in `most` rows at most; gives the rows it took.
pub(super) fn draw(
    layer: &mut Layer,
    labels: &mut Labels,
    theme: &Theme,
    (cut, values): (&Cut<'_>, Range),
    room: Rect,
    most: usize,
) -> usize {
    let (mut x, mut row) = (room.x, 0);
    let base =
        |row: usize| room.y + ROW * (f64::from(u32::try_from(row).unwrap_or(0)) + 0.5) + text::MIDDLE * SIZE;
    let panel = cut.panel;
    if !panel.title.is_empty() {
        let title = text::fit(&panel.title, SIZE, true, room.width * 0.6);
        let title = Text::new(Point::new(x, base(0)), title, SIZE, theme.ink).bold();
        x = title.bounds().right() + APART;
        labels.place(layer, title);
    }
    let entries = entries(theme, cut, values);
    // The last row keeps room for saying how many are not named.
    let more_width = text::width("+ 000 more", SIZE, false) + APART;
    for (at, entry) in entries.iter().enumerate() {
        let name = text::fit(&entry.name, SIZE, false, LONGEST.min(room.width - SWATCH - 6.0));
        let width = SWATCH + 6.0 + text::width(&name, SIZE, false);
        let last_entry = at + 1 == entries.len();
        let keep = |row: usize| if row + 1 == most && !last_entry { more_width } else { 0.0 };
        if x + width + keep(row) > room.right() && x > room.x && row + 1 < most {
            row += 1;
            x = room.x;
        }
        if x + width + keep(row) > room.right() {
            let more = format!("+ {} more", entries.len() - at);
            let more = Text::new(Point::new(x, base(row)), more, SIZE, theme.muted);
            labels.place(layer, more);
            break;
        }
        let mut drawn = Layer::default();
        swatch(&mut drawn, entry.swatch, x, base(row) - text::MIDDLE * SIZE);
        let named = Text::new(Point::new(x + SWATCH + 6.0, base(row)), name, SIZE, theme.ink);
        if labels.place(&mut drawn, named) {
            layer.group(entry.name.clone(), drawn);
        }
        x += width + APART;
    }
    row + 1
}

fn swatch(layer: &mut Layer, swatch: Swatch, x: f64, middle: f64) {
    let (from, to) = (Point::new(x, middle), Point::new(x + SWATCH, middle));
    match swatch {
        Swatch::Line(stroke) => layer.line(from, to, Stroke { width: stroke.width + 0.75, ..stroke }),
        Swatch::Area(fill, line) => {
            layer.rect(Rect::new(x, middle - 5.0, SWATCH, 10.0), fill);
            if let Some(stroke) = line {
                layer.line(from, to, stroke);
            }
        }
    }
}

fn entries(theme: &Theme, cut: &Cut<'_>, values: Range) -> Vec<Entry> {
    let panel = cut.panel;
    let mut found = Vec::new();
    if let Some(fan) = panel.fan.filter(is_drawable) {
        let (area, line) = fan_paint(theme);
        found.push(Entry { swatch: Swatch::Area(area, Some(line)), name: forecast(&fan) });
    }
    if let Some(limit) = panel.limit.as_ref().filter(|limit| !values.holds(limit.value)) {
        let name = format!("{} (beyond this chart)", limit_name(panel, &limit.name, limit.value));
        found.push(Entry { swatch: Swatch::Line(limit_stroke(theme)), name });
    }
    for (at, (line, pieces)) in panel.lines.iter().zip(&cut.lines).enumerate() {
        let peak = pieces.iter().flatten().map(|(_, value)| *value).reduce(f64::max);
        let name = match peak {
            None => format!("{} (no samples)", line.name),
            Some(peak) if panel.lines.len() <= PEAKS => {
                format!("{} (peak {})", line.name, panel.unit.show(peak))
            }
            Some(_) => line.name.clone(),
        };
        found.push(Entry { swatch: Swatch::Line(stroke(theme, at, panel.lines.len())), name });
    }
    if !gaps::unknown(&cut.lines).is_empty() {
        found.push(Entry { swatch: Swatch::Area(theme.unknown, None), name: "no samples".to_owned() });
    }
    found
}

/// "limit 80 GiB", or by its own name.
pub(super) fn limit_name(panel: &Panel, name: &str, value: f64) -> String {
    let name = if name.is_empty() { "limit" } else { name };
    format!("{name} {}", panel.unit.show(value))
}

/// A forecast in words.
pub(super) fn forecast(fan: &Fan) -> String {
    let show = format::duration;
    let Tte { p10, p50, p90 } = fan.tte;
    let late = p90.map_or_else(|| "open".to_owned(), show);
    format!("limit reached in {} (p10 {}, p90 {late})", show(p50), show(p10))
}
