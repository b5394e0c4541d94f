//! Bytes by part of the model and by type, as bars.

use super::CheckpointReport;
use crate::files::parameters::summary::Share;
use crate::model::format;
use crate::plot::{Layer, Picture, Point, Rect, Text, Theme, text};

const WIDTH: f64 = 900.0;
const MARGIN: f64 = 24.0;
/// Where bars begin and end, from the left.
const LEFT: f64 = 130.0;
const RIGHT: f64 = 660.0;
/// From one bar to the next.
const STEP: f64 = 26.0;
const THEME: Theme = Theme::LIGHT;

/// A picture of all checkpoints, one below the other.
pub(crate) fn draw(all: &[CheckpointReport<'_>]) -> Picture {
    let mut layer = Layer::default();
    let mut y = MARGIN;
    for report in all {
        let name = text::fit(&report.path, 18.0, true, WIDTH - 2.0 * MARGIN).into_owned();
        layer.text(Text::new(Point::new(MARGIN, y + 18.0), name, 18.0, THEME.ink).bold());
        y += 34.0;
        y = bars(&mut layer, y, "By part of the model", &report.summary.by_group);
        y = bars(&mut layer, y, "By type", &report.summary.by_dtype) + MARGIN;
    }
    let names: Vec<&str> = all.iter().map(|report| report.path.as_str()).collect();
    let title = format!("Parameters: {}", names.join(", "));
    Picture::column(900, y, title, "Bytes by part of the model and by type of element.", layer)
}

fn bars(layer: &mut Layer, mut y: f64, title: &str, shares: &[Share]) -> f64 {
    layer.text(Text::new(Point::new(MARGIN, y + 16.0), title, 14.0, THEME.ink).bold());
    y += 28.0;
    for share in shares {
        let part = share.ratio.map_or(0.0, |ratio| ratio.get().clamp(0.0, 1.0));
        layer.text(Text::new(Point::new(MARGIN, y + 14.0), share.name, 13.0, THEME.ink));
        layer.rect(Rect::new(LEFT, y, (RIGHT - LEFT) * part, 18.0), THEME.series[0]);
        let says = format!("{} ({})", share.bytes, format::percent(part));
        let at = Point::new(LEFT + (RIGHT - LEFT) * part + 8.0, y + 14.0);
        layer.text(Text::new(at, says, 12.0, THEME.muted));
        y += STEP;
    }
    y + 14.0
}
