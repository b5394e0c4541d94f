//! Live memory over a trace, by who holds it at the peak.

use super::{Drawn, LEFT, RIGHT, THEME, heading, label, legend, number};
use crate::files::snapshot::analysis::{Holding, TraceReport};
use crate::files::snapshot::{Event, Trace};
use memwarden::model::units::{Bytes, real};
use memwarden::plot::{Anchor, Color, Layer, Point, Rect, Stroke, Text, text};

const HIGH: f64 = 260.0;
const COLUMNS: usize = 550;
/// For all other stacks, and for what has none.
const REST: [Color; 2] = [Color::new(0x8A, 0x92, 0x9B), Color::new(0xC9, 0xCE, 0xD4)];

/// Draws one trace; gives back where it ends.
pub(super) fn draw(
    layer: &mut Layer,
    top: f64,
    drawn: &Drawn<'_>,
    trace: &Trace,
    report: &TraceReport,
) -> f64 {
    let (snapshot, events) = (drawn.snapshot, drawn.snapshot.events(trace));
    let axis = Axis::new(events);
    let held =
        Holding::of(snapshot, trace, THEME.series.len() - 1, COLUMNS, &|event| axis.share(events, event));
    heading(
        layer,
        top,
        &format!("Live memory over the trace, by {} and by who holds the most at the peak", axis.unit()),
    );
    let most = report.reserved_peak_bytes.max(report.peak.live_bytes).get().max(1);
    let plot = Rect::new(LEFT, top + 16.0, RIGHT - LEFT, HIGH);
    grid(layer, plot, most, &axis);
    let x = |column: usize| {
        plot.x
            + plot.width * real(u64::try_from(column).unwrap_or(0))
                / real(u64::try_from(COLUMNS).unwrap_or(1))
    };
    let y = |bytes: u64| plot.bottom() - plot.height * (real(bytes) / real(most)).min(1.0);
    let mut below = vec![0u64; COLUMNS];
    let mut entries = Vec::new();
    // What was there all the time is at the bottom, and is mostly without a stack.
    for (number, stack) in held.stacks.iter().enumerate().rev() {
        let rest = (number + REST.len()).checked_sub(held.stacks.len());
        let color = rest.map_or_else(|| THEME.series[number % THEME.series.len()], |rest| REST[rest]);
        let (mut upper, mut lower) = (Vec::new(), Vec::new());
        for (column, sums) in held.columns.iter().enumerate() {
            let above = below[column].saturating_add(sums[number]);
            for edge in [x(column), x(column + 1)] {
                upper.push(Point::new(edge, y(above)));
                lower.push(Point::new(edge, y(below[column])));
            }
            below[column] = above;
        }
        upper.extend(lower.into_iter().rev());
        let mut own = Layer::default();
        own.polygon(upper, color);
        layer.group(stack.clone(), own);
        entries.push((color, stack.clone()));
    }
    let mut line = Vec::new();
    for (column, bytes) in held.reserved.iter().enumerate() {
        line.push(Point::new(x(column), y(*bytes)));
        line.push(Point::new(x(column + 1), y(*bytes)));
    }
    layer.polyline(line, Stroke::dashed(THEME.ink, 1.5, 6.0, 4.0));
    for failure in &report.failures {
        let at = plot.x + plot.width * axis.share(events, failure.event);
        layer.line(Point::new(at, plot.y), Point::new(at, plot.bottom()), Stroke::solid(THEME.alarm, 2.0));
        let says = Text::new(Point::new(at, plot.y - 3.0), "out of memory", 11.0, THEME.alarm);
        layer.text(says.anchored(if at > plot.x + plot.width / 2.0 { Anchor::End } else { Anchor::Start }));
    }
    peak(layer, plot, axis.share(events, report.peak.event), y(report.peak.live_bytes.get()), report);
    let mut row = plot.bottom() + 40.0;
    layer.line(
        Point::new(LEFT, row - 4.0),
        Point::new(LEFT + 24.0, row - 4.0),
        Stroke::dashed(THEME.ink, 1.5, 6.0, 4.0),
    );
    label(layer, Point::new(LEFT + 32.0, row), "held from the driver", 12.0);
    for entry in entries.into_iter().rev() {
        row += 18.0;
        let says = text::fit(&entry.1, 12.0, false, RIGHT - LEFT - 20.0).into_owned();
        legend(layer, LEFT, row, &[(entry.0, says)]);
    }
    row + 8.0
}

fn peak(layer: &mut Layer, plot: Rect, share: f64, y: f64, report: &TraceReport) {
    let at = plot.x + plot.width * share;
    layer.circle(Point::new(at, y), 4.5, THEME.background);
    layer.circle(Point::new(at, y), 3.5, THEME.ink);
    let says = format!("peak {}", report.peak.live_bytes);
    let (x, anchor) = if share > 0.8 { (at - 8.0, Anchor::End) } else { (at + 8.0, Anchor::Start) };
    let mut says = Text::new(Point::new(x, y - 7.0), says, 12.0, THEME.ink).bold().anchored(anchor);
    // Near the top there is room below the peak only, on the color of what holds it.
    says.at.y = says.at.y.max(plot.y + 12.0);
    let room = says.bounds();
    layer.rect(
        Rect::new(room.x - 3.0, room.y, room.width + 6.0, room.height),
        THEME.background.with_alpha(220),
    );
    layer.text(says);
}

fn grid(layer: &mut Layer, plot: Rect, most: u64, axis: &Axis) {
    let mut step = 1u64;
    while most / step > 5 {
        step = step.saturating_mul(2);
    }
    let mut value = 0u64;
    while value <= most {
        let y = plot.bottom() - plot.height * real(value) / real(most);
        layer.line(Point::new(plot.x, y), Point::new(plot.right(), y), Stroke::solid(THEME.grid, 1.0));
        number(layer, Point::new(plot.x - 6.0, y + 4.0), Bytes::new(value).to_string(), Anchor::End);
        let Some(next) = value.checked_add(step) else { break };
        value = next;
    }
    for tick in 0..=5u8 {
        let share = f64::from(tick) / 5.0;
        let anchor = match tick {
            0 => Anchor::Start,
            5 => Anchor::End,
            _ => Anchor::Middle,
        };
        let x = plot.x + plot.width * share;
        number(layer, Point::new(x, plot.bottom() + 16.0), axis.label(share), anchor);
    }
}

/// From events to places: by time where all events have one, by number otherwise.
struct Axis {
    /// The first time and the span in microseconds.
    time: Option<(u64, u64)>,
    events: u64,
}

impl Axis {
    fn new(events: &[Event]) -> Self {
        let ends =
            (events.first().and_then(|event| event.time_us), events.last().and_then(|event| event.time_us));
        let time = match ends {
            (Some(first), Some(last))
                if last > first && events.iter().all(|event| event.time_us.is_some()) =>
            {
                Some((first.get(), last.get() - first.get()))
            }
            _ => None,
        };
        Self { time, events: u64::try_from(events.len()).unwrap_or(u64::MAX) }
    }

    fn unit(&self) -> &'static str {
        if self.time.is_some() { "time" } else { "event" }
    }

    /// How far along an event is, 0 to 1; events count from 1.
    fn share(&self, events: &[Event], event: u32) -> f64 {
        let known = (event as usize).checked_sub(1).and_then(|index| events.get(index)?.time_us);
        match (self.time, known) {
            (Some((first, span)), Some(at)) => {
                (real(at.get().saturating_sub(first)) / real(span)).clamp(0.0, 1.0)
            }
            (Some(_), None) => 0.0,
            (None, _) => f64::from(event) / real(self.events.max(1)),
        }
    }

    fn label(&self, share: f64) -> String {
        match self.time {
            Some((_, span)) if span < 10_000 => format!("{:.0} µs", share * real(span)),
            Some((_, span)) if span < 10_000_000 => format!("{:.0} ms", share * real(span) / 1e3),
            Some((_, span)) => format!("{:.1} s", share * real(span) / 1e6),
            None => format!("{:.0}", share * real(self.events)),
        }
    }
}
