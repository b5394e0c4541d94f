//! Charts of the recent past as SVG, without scripts and without inline styles.
//!
//! Texts and vertical lines are placed in percent, so that a chart fits every width; curves are in a coordinate system of
//! their own that is stretched.

use std::fmt::Write as _;

use maud::Render as _;

use super::render::Name;
use crate::history::rings::{Extent, Range};
use crate::model::format;
use crate::node_view::Health;
use crate::node_view::forecast::{Forecast, time_left};

/// Width and height of the stretched coordinate system.
const SIZE: f64 = 1000.0;
/// Maximum number of points of a chart's curve, and of a sparkline's.
const POINTS: usize = 300;
const SPARK_POINTS: usize = 60;
/// A chart shows at least this many seconds.
const SHORTEST: f64 = 60.0;

/// Steps of a series: the start of each, and its values.
pub(super) type Steps = Vec<(f64, Option<Extent>)>;

#[derive(Clone, Debug, Default)]
pub(super) struct Curve {
    /// Its name in the legend.
    pub(super) name: &'static str,
    pub(super) steps: Steps,
}

/// A moment that is marked.
#[derive(Clone, Debug)]
pub(super) struct Mark {
    /// When, on the time axis of the steps.
    pub(super) at: f64,
    /// How it is from then on.
    pub(super) health: Health,
    /// What happened.
    pub(super) text: String,
}

/// A chart of one quantity.
#[derive(Clone, Debug)]
pub(super) struct Chart<'a> {
    /// What is shown, for screen readers.
    pub(super) title: &'a str,
    pub(super) range: Range,
    /// The curves, the most important first.
    pub(super) curves: Vec<Curve>,
    pub(super) limit: Option<f64>,
    /// The forecast of the first curve.
    pub(super) forecast: Option<&'a Forecast>,
    /// What happened.
    pub(super) marks: Vec<Mark>,
    /// The newest tick on the time axis.
    pub(super) now: f64,
    /// Seconds since 1970 at the origin of the time axis.
    pub(super) unix: f64,
    /// Seconds between two ticks; a longer distance is a gap.
    pub(super) interval: f64,
}

/// Merges steps so that at most `most` remain; a merged step is missing only where all of its steps are.
fn merged(steps: &[(f64, Option<Extent>)], most: usize) -> Steps {
    let group = steps.len().div_ceil(most.max(1)).max(1);
    let merge = |group: &[(f64, Option<Extent>)]| {
        let known = group.iter().filter_map(|(_, extent)| *extent);
        let extent =
            known.reduce(|one, next| Extent { min: one.min.min(next.min), max: one.max.max(next.max) });
        (group[0].0, extent)
    };
    steps.chunks(group).map(merge).collect()
}

/// The parts of a curve without a gap.
fn parts(steps: &Steps, gap: f64) -> Vec<Vec<(f64, Extent)>> {
    let mut all: Vec<Vec<(f64, Extent)>> = Vec::new();
    let mut last = f64::NEG_INFINITY;
    for (at, extent) in steps.iter().filter_map(|(at, extent)| Some((*at, (*extent)?))) {
        match all.last_mut() {
            Some(part) if at - last <= gap => part.push((at, extent)),
            _ => all.push(vec![(at, extent)]),
        }
        last = at;
    }
    all
}

/// A place on the stretched axes.
struct Axes {
    from: f64,
    to: f64,
    top: f64,
}

impl Axes {
    fn x(&self, at: f64) -> f64 {
        ((at - self.from) / (self.to - self.from).max(1e-9)).clamp(0.0, 1.0) * SIZE
    }

    fn y(&self, value: f64) -> f64 {
        SIZE - (value / self.top).clamp(0.0, 1.0) * SIZE
    }

    fn percent(&self, at: f64) -> f64 {
        self.x(at) / SIZE * 100.0
    }

    /// The line of the largest values, and the area down to the smallest.
    fn curve(&self, parts: &[Vec<(f64, Extent)>], class: &str, area: bool, out: &mut String) {
        let (mut line, mut band) = (String::new(), String::new());
        for part in parts {
            for (place, (at, extent)) in part.iter().enumerate() {
                let verb = if place == 0 { 'M' } else { 'L' };
                let (x, y) = (self.x(*at), self.y(extent.max));
                let _ = write!(line, "{verb}{x:.0} {y:.0}");
                let _ = write!(band, "{verb}{x:.0} {y:.0}");
            }
            if let ([(at, extent)], true) = (part.as_slice(), parts.len() > 1) {
                // A single sample between two gaps is a dot.
                let _ = write!(line, "L{:.0} {:.0}", self.x(*at) + 1.0, self.y(extent.max));
            }
            if area {
                let (first, last) = (part[0].0, part[part.len() - 1].0);
                let _ = write!(band, "L{:.0} {SIZE}L{:.0} {SIZE}Z", self.x(last), self.x(first));
            } else {
                for (at, extent) in part.iter().rev() {
                    let _ = write!(band, "L{:.0} {:.0}", self.x(*at), self.y(extent.min));
                }
                band.push('Z');
            }
        }
        let _ = write!(
            out,
            "<path class=\"area {class}\" d=\"{band}\"/><path class=\"line {class}\" d=\"{line}\"/>"
        );
    }
}

/// The largest value of the steps.
fn peak(steps: &Steps) -> Option<f64> {
    steps.iter().filter_map(|(_, extent)| extent.map(|extent| extent.max)).reduce(f64::max)
}

/// A small chart for a table, drawn against its limit.
pub(super) fn spark(
    steps: &Steps,
    range: Range,
    limit: Option<f64>,
    now: f64,
    interval: f64,
    what: &str,
) -> String {
    let Some(top) = peak(steps).map(|peak| limit.map_or(peak * 1.25, |limit| limit.max(peak)).max(1e-9))
    else {
        return String::new();
    };
    let axes = Axes { from: now - range.seconds(), to: now, top };
    let steps = merged(steps, SPARK_POINTS);
    let step = distance(&steps, range, interval);
    let mut out = format!(
        "<svg class=\"spark\" viewBox=\"0 0 {SIZE} {SIZE}\" preserveAspectRatio=\"none\" role=\"img\" aria-label=\"{}\">",
        Name(what).render().into_string()
    );
    axes.curve(&parts(&steps, step), "one", true, &mut out);
    out.push_str("</svg>");
    out
}

/// The longest distance of two steps that is no gap.
fn distance(steps: &Steps, range: Range, interval: f64) -> f64 {
    let between = steps.windows(2).map(|pair| pair[1].0 - pair[0].0).reduce(f64::max);
    f64::from(range.step()).max(interval).max(between.unwrap_or(0.0)) * 1.6
}

impl Chart<'_> {
    /// Writes the chart with its legend; a sentence where there is no sample yet.
    pub(super) fn write(&self, out: &mut String) {
        let Some(peak) = self.curves.iter().filter_map(|curve| peak(&curve.steps)).reduce(f64::max) else {
            out.push_str("<p class=\"quiet\">No history has been kept of this yet.</p>");
            return;
        };
        let axes = self.axes(peak);
        let _ = write!(
            out,
            "<figure><svg class=\"chart\" role=\"img\" aria-label=\"{}\">",
            Name(&self.spoken(peak)).render().into_string()
        );
        let _ = write!(
            out,
            "<svg width=\"100%\" height=\"88%\" viewBox=\"0 0 {SIZE} {SIZE}\" preserveAspectRatio=\"none\" overflow=\"visible\">"
        );
        self.draw(&axes, out);
        out.push_str("</svg>");
        self.annotate(&axes, out);
        out.push_str("</svg>");
        self.legend(out);
        out.push_str("</figure>");
    }

    fn axes(&self, peak: f64) -> Axes {
        let first =
            self.curves.iter().filter_map(|curve| curve.steps.first()).map(|(at, _)| *at).reduce(f64::min);
        let from = first.unwrap_or(self.now).max(self.now - self.range.seconds()).min(self.now - SHORTEST);
        let span = self.now - from;
        // The forecast takes at most as much room as the past.
        let future = self.forecast.and_then(|forecast| {
            let tte = forecast.stated()?;
            Some(tte.p90.unwrap_or(tte.p50 * 1.5).max(tte.p50).min(span))
        });
        Axes {
            from,
            to: self.now + future.unwrap_or(0.0),
            top: peak.max(self.limit.unwrap_or(0.0)).max(1e-9) * 1.04,
        }
    }

    fn draw(&self, axes: &Axes, out: &mut String) {
        for (curve, class) in self.curves.iter().zip(["one", "two", "three"]).rev() {
            let steps = merged(&curve.steps, POINTS);
            let gap = distance(&steps, self.range, self.interval);
            axes.curve(&parts(&steps, gap), class, class == "one" && self.range == Range::Minutes, out);
        }
        if let Some(limit) = self.limit {
            let y = axes.y(limit);
            let _ = write!(out, "<path class=\"limit\" d=\"M0 {y:.0}H{SIZE}\"/>");
        }
        let last =
            self.curves.first().and_then(|curve| curve.steps.iter().rev().find_map(|(_, extent)| *extent));
        if let (Some(last), Some(forecast), Some(limit)) = (last, self.forecast, self.limit)
            && let Some(tte) = forecast.stated()
        {
            let (x, y) = (axes.x(self.now), axes.y(last.max));
            // Each edge goes straight to the limit, and is cut at the edge of the chart.
            let end = |seconds: f64| {
                let part = ((axes.to - self.now) / seconds.max(1e-9)).min(1.0);
                (axes.x(self.now + seconds * part), axes.y(last.max + (limit - last.max) * part))
            };
            let (early, late) = (end(tte.p10), end(tte.p90.unwrap_or(tte.p50 * 4.0)));
            let corner = if late.0 > early.0 {
                format!("L{:.0} {:.0}", late.0, early.1.min(late.1))
            } else {
                String::new()
            };
            let _ = write!(
                out,
                "<path class=\"fan\" d=\"M{x:.0} {y:.0}L{:.0} {:.0}{corner}L{:.0} {:.0}Z\"/>",
                early.0, early.1, late.0, late.1
            );
            let middle = end(tte.p50);
            let _ =
                write!(out, "<path class=\"median\" d=\"M{x:.0} {y:.0}L{:.0} {:.0}\"/>", middle.0, middle.1);
        }
    }

    /// Texts and vertical lines, in percent.
    fn annotate(&self, axes: &Axes, out: &mut String) {
        let now = axes.percent(self.now);
        for mark in self.marks.iter().filter(|mark| (axes.from..=axes.to).contains(&mark.at)) {
            let x = axes.percent(mark.at);
            let _ = write!(
                out,
                "<line class=\"mark {}\" x1=\"{x:.2}%\" x2=\"{x:.2}%\" y1=\"0\" y2=\"88%\"><title>{} {}</title></line>",
                mark.health.label(),
                format::clock(self.unix + mark.at, self.unix + self.now),
                Name(&mark.text).render().into_string()
            );
        }
        if let Some(limit) = self.limit {
            let y = axes.y(limit) / SIZE * 88.0;
            let _ =
                write!(out, "<text x=\"4\" y=\"{y:.1}%\" dy=\"12\">limit {}</text>", format::bytes(limit));
        }
        let first = format::clock(self.unix + axes.from, self.unix + self.now);
        let _ = write!(
            out,
            "<text x=\"0\" y=\"98%\">{}</text>",
            Name(first.trim_end_matches(" UTC")).render().into_string()
        );
        if axes.to > self.now {
            let _ = write!(
                out,
                "<line class=\"now\" x1=\"{now:.2}%\" x2=\"{now:.2}%\" y1=\"0\" y2=\"88%\"/>\
                 <text x=\"{now:.2}%\" y=\"98%\" text-anchor=\"middle\">now</text>\
                 <text x=\"100%\" y=\"98%\" text-anchor=\"end\">in {}</text>",
                format::duration(axes.to - self.now)
            );
        } else {
            out.push_str("<text x=\"100%\" y=\"98%\" text-anchor=\"end\">now</text>");
        }
    }

    fn legend(&self, out: &mut String) {
        out.push_str("<figcaption>");
        for (curve, class) in self.curves.iter().zip(["one", "two", "three"]) {
            if peak(&curve.steps).is_some() {
                let _ = write!(out, "<span class=\"key {class}\">{}</span> ", curve.name);
            }
        }
        if self.forecast.and_then(Forecast::stated).is_some() {
            out.push_str("<span class=\"key fan\">forecast, 10 % to 90 %</span> ");
        }
        if !self.marks.is_empty() {
            out.push_str("<span class=\"key marks\">events</span>");
        }
        out.push_str("</figcaption>");
    }

    /// The chart in words.
    fn spoken(&self, peak: f64) -> String {
        let last =
            self.curves.first().and_then(|curve| curve.steps.iter().rev().find_map(|(_, extent)| *extent));
        let now = last.map_or_else(String::new, |last| format!(": {} now", format::bytes(last.max)));
        let limit = self.limit.map_or_else(String::new, |limit| format!(", limit {}", format::bytes(limit)));
        let left =
            self.forecast.and_then(time_left).map_or_else(String::new, |left| format!(", full in {left}"));
        format!(
            "{}, last {}{now}, highest {}{limit}{left}",
            self.title,
            self.range.label(),
            format::bytes(peak)
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn steps(values: &[Option<f64>]) -> Steps {
        let step = |value: &Option<f64>| value.map(|value| Extent { min: value, max: value });
        (0..).map(f64::from).zip(values.iter().map(step)).collect()
    }

    #[test]
    fn a_gap_is_not_bridged() {
        let steps = steps(&[Some(1.0), Some(2.0), None, None, None, Some(3.0)]);
        assert_eq!(parts(&steps, 1.6).len(), 2);
        let svg = spark(&steps, Range::Minutes, Some(4.0), 6.0, 1.0, "x");
        let line = svg.split("class=\"line one\"").nth(1).unwrap();
        assert_eq!(line.matches('M').count(), 2, "{svg}");
        assert_eq!(spark(&Steps::new(), Range::Minutes, None, 6.0, 1.0, "x"), "");
    }

    #[test]
    fn merging_keeps_peaks() {
        let mut values = vec![Some(1.0); 600];
        values[333] = Some(9.0);
        let few = merged(&steps(&values), 60);
        assert_eq!(few.len(), 60);
        assert_eq!(peak(&few), Some(9.0));
    }

    #[test]
    fn a_chart_says_what_it_shows_and_no_text_is_markup() {
        let tte = crate::model::outlook::Tte { p10: 60.0, p50: 90.0, p90: Some(150.0) };
        let forecast = Forecast { time_to_exhaustion: Some(tte), ..Forecast::default() };
        let chart = Chart {
            title: "Memory of <b>",
            range: Range::Minutes,
            curves: vec![Curve { name: "used", steps: steps(&[Some(1e9), Some(2e9)]) }],
            limit: Some(4e9),
            forecast: Some(&forecast),
            marks: vec![Mark { at: 1.0, health: Health::Warning, text: "</title><script>".to_owned() }],
            now: 2.0,
            unix: 1.7e9,
            interval: 1.0,
        };
        let mut out = String::new();
        chart.write(&mut out);
        assert!(out.contains("aria-label=\"Memory of &lt;b&gt;, last 10m: 1.9 GiB now"), "{out}");
        assert!(
            out.contains("class=\"fan\"") && !out.contains("<script>") && !out.contains("style="),
            "{out}"
        );
        let mut out = String::new();
        Chart { curves: Vec::new(), ..chart }.write(&mut out);
        assert!(out.contains("No history"));
    }
}
