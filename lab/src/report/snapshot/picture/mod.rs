//! A snapshot drawn: the address space, and live memory over the trace.

mod live;
mod space;

use crate::files::snapshot::Snapshot;
use crate::files::snapshot::analysis::{Analysis, Group};
use memwarden::model::printable;
use memwarden::plot::{Anchor, Color, Layer, Picture, Point, Rect, Text, Theme, svg, text};

const WIDTH: f64 = 1200.0;
const MARGIN: f64 = 24.0;
/// Where what is drawn begins and ends, from the left.
const LEFT: f64 = 84.0;
const RIGHT: f64 = WIDTH - MARGIN;
const THEME: Theme = Theme::LIGHT;

/// One snapshot to draw.
pub(crate) struct Drawn<'d> {
    pub(crate) name: String,
    pub(crate) snapshot: &'d Snapshot<'d>,
    pub(crate) analysis: &'d Analysis<'d>,
}

/// A picture of all of them, one below the other.
pub(crate) fn draw(all: &[Drawn<'_>]) -> Picture {
    let mut layer = Layer::default();
    let mut y = MARGIN;
    for drawn in all {
        for group in &drawn.analysis.devices {
            y = device(&mut layer, y, drawn, group);
        }
    }
    if y <= MARGIN {
        label(&mut layer, Point::new(MARGIN, y + 18.0), "No segments: nothing was allocated.", 14.0);
        y += 36.0;
    }
    let names: Vec<&str> = all.iter().map(|drawn| drawn.name.as_str()).collect();
    // Its height is bounded by what is drawn: 40 rows and a chart for each device.
    let title = format!("Allocator snapshot: {}", names.join(", "));
    let description = "The address space by segment, and live memory over the trace.";
    Picture::column(1200, y, title, description, layer)
}

fn device(layer: &mut Layer, top: f64, drawn: &Drawn<'_>, group: &Group) -> f64 {
    let totals = &group.totals;
    let name = drawn.name.rsplit('/').next().unwrap_or_default();
    let title = format!("{name}, device {}", group.device);
    let title = text::fit(&title, 18.0, true, WIDTH - 2.0 * MARGIN).into_owned();
    layer.text(Text::new(Point::new(MARGIN, top + 18.0), title, 18.0, THEME.ink).bold());
    let says = format!(
        "{} reserved, {} in use, {} can be given back, {} not releasable, largest free range {}",
        totals.reserved_bytes,
        totals.allocated_bytes,
        totals.releasable_bytes,
        totals.unreleasable_bytes,
        totals.largest_free_bytes,
    );
    label(layer, Point::new(MARGIN, top + 40.0), &says, 13.0);
    let y = space::draw(layer, top + 64.0, drawn.snapshot, group.device);
    let trace = drawn.snapshot.traces.iter().find(|trace| trace.device == group.device);
    let report = drawn.analysis.traces.iter().find(|trace| trace.device == group.device);
    let y = match (trace, report) {
        (Some(trace), Some(report)) => live::draw(layer, y + 28.0, drawn, trace, report),
        _ => {
            label(layer, Point::new(MARGIN, y + 28.0), "No trace was recorded for this device.", 13.0);
            y + 44.0
        }
    };
    y + MARGIN
}

fn label(layer: &mut Layer, at: Point, says: &str, size: f64) {
    layer.text(Text::new(at, text::fit(says, size, false, RIGHT - at.x), size, THEME.muted));
}

fn heading(layer: &mut Layer, y: f64, says: &str) {
    layer.text(Text::new(Point::new(MARGIN, y), says, 14.0, THEME.ink).bold());
}

/// Colors and what they stand for, from `x` on in one row.
fn legend(layer: &mut Layer, mut x: f64, y: f64, entries: &[(Color, String)]) {
    for (color, says) in entries {
        layer.rect(Rect::new(x, y - 10.0, 12.0, 12.0), *color);
        layer.text(Text::new(Point::new(x + 17.0, y), says.as_str(), 12.0, THEME.ink));
        x += 17.0 + text::width(says, 12.0, false) + 20.0;
    }
}

fn number(layer: &mut Layer, at: Point, says: String, anchor: Anchor) {
    layer.text(Text::new(at, says, 11.0, THEME.muted).anchored(anchor));
}

/// The picture in a page that needs nothing else.
pub(crate) fn page(picture: &Picture) -> String {
    let title: String = picture.title.chars().filter(|c| !matches!(c, '<' | '>' | '&')).collect();
    let title = printable::escaped(&title);
    let svg = svg::render(picture, printable::is_hidden);
    let svg = svg.find("<svg").map_or("", |start| &svg[start..]);
    format!(
        "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><title>{title}</title>\n\
         <style>body{{margin:0;background:#fff}}svg{{max-width:100%;height:auto;display:block;margin:auto}}</style>\
         </head>\n<body>\n{svg}\n</body></html>\n"
    )
}
