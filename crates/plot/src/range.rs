//! How much of time and of values a chart shows.

use super::chart::{Baseline, Fan, Panel};
use super::gaps::{self, Piece};
use memwarden_model::outlook::Tte;

/// From the lowest to the highest that is shown; the second is always larger.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Range {
    pub(super) low: f64,
    pub(super) high: f64,
}

impl Range {
    /// Where a value lies: 0 at the lowest, 1 at the highest.
    pub(super) fn share(self, value: f64) -> f64 {
        (value - self.low) / (self.high - self.low)
    }

    /// Whether a value is shown.
    pub(super) fn holds(self, value: f64) -> bool {
        value >= self.low && value <= self.high
    }
}

/// A forecast may take this many times the room of the history, so that both can be read.
const FORESIGHT: f64 = 1.5;
/// Marks this far outside the history, in its lengths, still stretch the chart.
const MARGIN: f64 = 0.25;
/// A limit higher than this many times the highest value would press the lines to the floor; it is named only.
const LIMIT_REACH: f64 = 4.0;

/// A panel with its lines cut at their gaps.
#[derive(Debug)]
pub(super) struct Cut<'a> {
    pub(super) panel: &'a Panel,
    pub(super) lines: Vec<Vec<Piece>>,
}

impl<'a> Cut<'a> {
    pub(super) fn new(panel: &'a Panel) -> Self {
        Self { panel, lines: panel.lines.iter().map(|line| gaps::pieces(&line.ordered())).collect() }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.lines.iter().all(Vec::is_empty)
    }

    fn points(&self) -> impl Iterator<Item = (f64, f64)> {
        self.lines.iter().flatten().flatten().copied()
    }

    /// The values shown: all points, the limit where it is near, the forecast.
    pub(super) fn values(&self, time: Range) -> Range {
        let panel = self.panel;
        let fan = panel.fan.filter(is_drawable);
        let begun = fan.map(|fan| fan.from);
        let Some((low, high)) = ends(self.points().map(|(_, value)| value).chain(begun)) else {
            return Range { low: 0.0, high: 1.0 };
        };
        let mut top = high;
        let reached = fan.is_some_and(|fan| {
            [fan.tte.p10, fan.tte.p50].into_iter().any(|after| time.holds(fan.at_s + after))
        });
        let limit = panel.limit.as_ref().map(|limit| limit.value).or(fan.map(|fan| fan.limit));
        if let Some(limit) = limit.filter(|limit| limit.is_finite())
            && (limit <= LIMIT_REACH * high || reached)
        {
            top = top.max(limit);
        }
        let bottom = match panel.baseline {
            Baseline::Zero => low.min(0.0),
            Baseline::Fit => low,
        };
        // Above a limit at the top there is room for its name.
        let share = if top > high { 0.12 } else { 0.06 };
        padded(bottom, top, share, panel.baseline == Baseline::Fit || low < 0.0)
    }
}

/// The span of time shown: all points, near marks, and as much of the forecasts as leaves room for the history.
pub(super) fn time(panels: &[Cut<'_>]) -> Range {
    let marks = || {
        panels.iter().flat_map(|cut| {
            let bands = cut.panel.bands.iter().flat_map(|band| [Some(band.from_s), band.to_s]).flatten();
            let events = cut.panel.events.iter().map(|event| event.t_s);
            let fan = cut.panel.fan.filter(is_drawable).map(|fan| fan.at_s);
            bands.chain(events).chain(fan)
        })
    };
    let points = panels.iter().flat_map(|cut| cut.points().map(|(time, _)| time));
    let Some((first, last)) = ends(points).or_else(|| ends(marks())) else {
        return Range { low: 0.0, high: 1.0 };
    };
    let span = last - first;
    let near = |at: &f64| *at >= first - MARGIN * span && *at <= last + MARGIN * span;
    let (mut low, mut high) = ends(marks().filter(near).chain([first, last])).unwrap_or((first, last));
    for fan in panels.iter().filter_map(|cut| cut.panel.fan).filter(is_drawable) {
        let Tte { p10, p50, p90 } = fan.tte;
        let wanted = (p10 * 1.5).max(p50 * 1.3).max(p90.unwrap_or(0.0));
        let room = if span > 0.0 { span * FORESIGHT } else { wanted };
        high = high.max(fan.at_s + (wanted * 1.04).min(room));
    }
    if high - low <= f64::EPSILON * high.abs().max(low.abs()) {
        let around = (high.abs() * 1e-9).max(0.5);
        (low, high) = (low - around, high + around);
    }
    bounded(Range { low, high })
}

/// Whether there is a forecast to draw: finite, and of something yet to come.
pub(super) fn is_drawable(fan: &Fan) -> bool {
    let Tte { p10, p50, p90 } = fan.tte;
    [p10, p50].into_iter().chain(p90).all(|after| after.is_finite() && after > 0.0)
        && [fan.at_s, fan.from, fan.limit].iter().all(|number| number.is_finite())
}

/// A little air above, and below where the floor is not zero.
fn padded(low: f64, high: f64, share: f64, below: bool) -> Range {
    let span = high - low;
    let flat = span <= f64::EPSILON * high.abs().max(low.abs());
    let air = if flat { (high.abs() * 0.1).max(1.0) } else { span * share };
    bounded(Range { low: if below { low - air } else { low }, high: high + air })
}

/// The difference of two enormous numbers may not be one.
fn bounded(range: Range) -> Range {
    const MOST: f64 = f64::MAX / 4.0;
    Range { low: range.low.clamp(-MOST, MOST / 2.0), high: range.high.clamp(-MOST / 2.0, MOST) }
}

fn ends(values: impl Iterator<Item = f64>) -> Option<(f64, f64)> {
    values.filter(|value| value.is_finite()).fold(None, |found, value| {
        Some(found.map_or((value, value), |(low, high): (f64, f64)| (low.min(value), high.max(value))))
    })
}

#[cfg(test)]
mod tests {
    use super::super::chart::{Event, Limit, Line};
    use super::*;

    fn panel(values: &[f64]) -> Panel {
        let points = values.iter().zip(0_u32..).map(|(value, at)| (f64::from(at), Some(*value))).collect();
        Panel { lines: vec![Line { name: "used".to_owned(), points }], ..Panel::default() }
    }

    fn fan(p50_s: f64) -> Fan {
        Fan { at_s: 4.0, from: 5.0, limit: 8.0, tte: Tte { p10: p50_s / 2.0, p50: p50_s, p90: None } }
    }

    #[test]
    fn values_begin_at_zero_and_leave_air() {
        let mut panel = panel(&[100.0, 101.0]);
        let any = Range { low: 0.0, high: 1.0 };
        assert_eq!(Cut::new(&panel).values(any), Range { low: 0.0, high: 101.0 + 101.0 * 0.06 });
        panel.baseline = Baseline::Fit;
        assert_eq!(Cut::new(&panel).values(any), Range { low: 100.0 - 0.06, high: 101.06 });
    }

    #[test]
    fn a_far_limit_does_not_press_the_line_to_the_floor() {
        let mut panel = panel(&[1.0, 2.0]);
        let any = Range { low: 0.0, high: 1.0 };
        panel.limit = Some(Limit { value: 6.0, name: String::new() });
        assert!(Cut::new(&panel).values(any).holds(6.0));
        panel.limit = Some(Limit { value: 600.0, name: String::new() });
        assert!(!Cut::new(&panel).values(any).holds(600.0));
    }

    #[test]
    fn a_forecast_leaves_room_for_the_history() {
        let mut panel = panel(&[1.0, 2.0, 3.0, 4.0, 5.0]);
        panel.fan = Some(fan(3.0));
        let shown = time(&[Cut::new(&panel)]);
        assert!(shown.holds(4.0 + 3.0) && shown.high < 9.0, "{shown:?}");
        panel.fan = Some(fan(1e9));
        assert_eq!(time(&[Cut::new(&panel)]), Range { low: 0.0, high: 10.0 });
    }

    #[test]
    fn what_cannot_be_drawn_is_not() {
        for broken in [f64::NAN, f64::INFINITY, 0.0, -1.0] {
            assert!(!is_drawable(&fan(broken)));
        }
    }

    #[test]
    fn a_mark_of_another_year_does_not_stretch_the_chart() {
        let mut panel = panel(&[1.0, 2.0, 3.0]);
        for at_s in [2.4, 1e12] {
            panel.events.push(Event { t_s: at_s, text: "killed".to_owned(), alarm: true });
        }
        assert_eq!(time(&[Cut::new(&panel)]), Range { low: 0.0, high: 2.4 });
    }

    proptest::proptest! {
        #[test]
        fn ranges_are_never_empty(values: Vec<f64>, limit: f64, p50: f64, fit: bool) {
            let mut panel = panel(&values);
            panel.limit = Some(Limit { value: limit, name: String::new() });
            panel.fan = Some(fan(p50));
            panel.baseline = if fit { Baseline::Fit } else { Baseline::Zero };
            let cut = Cut::new(&panel);
            let shown = time(std::slice::from_ref(&cut));
            let values = cut.values(shown);
            for range in [shown, values] {
                assert!(range.high > range.low && (range.high - range.low).is_finite(), "{range:?}");
            }
        }
    }
}
