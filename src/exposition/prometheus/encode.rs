//! One writer for both text formats, so that they cannot disagree on a value.
//!
//! Formats: <https://prometheus.io/docs/instrumenting/exposition_formats/> and
//! <https://prometheus.io/docs/specs/om/open_metrics_spec/>. No timestamps, so
//! that a vanished series is stale at once; no `_created`.

use std::fmt::Write as _;

use crate::model::desc::{Desc, Kind};
use crate::model::point::Family;

/// A text format.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Format {
    /// `text/plain; version=0.0.4`.
    Text,
    /// `application/openmetrics-text; version=1.0.0`.
    OpenMetrics,
}

impl Format {
    /// The Content-Type, without which Prometheus 3 refuses a scrape.
    pub const fn content_type(self) -> &'static str {
        match self {
            Self::Text => "text/plain; version=0.0.4; charset=utf-8",
            Self::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
        }
    }
}

/// The whole exposition of `families`.
pub fn encode(families: &[Family], format: Format) -> String {
    /// A series takes about this much.
    const SERIES: usize = 128;
    let series: usize = families.iter().map(|family| family.points.len() + 2).sum();
    let mut out = String::with_capacity(series * SERIES);
    for family in families.iter().filter(|family| !family.points.is_empty()) {
        header(&mut out, family.desc, format);
        for point in &family.points {
            out.push_str(family.desc.name);
            for (place, (name, value)) in family.desc.labels.iter().zip(&point.labels).enumerate() {
                out.push(if place == 0 { '{' } else { ',' });
                out.push_str(name);
                out.push_str("=\"");
                escape(&mut out, value.as_str(), true);
                out.push('"');
            }
            if !family.desc.labels.is_empty() {
                out.push('}');
            }
            out.push(' ');
            number(&mut out, point.value);
            out.push('\n');
        }
    }
    if format == Format::OpenMetrics {
        out.push_str("# EOF\n");
    }
    out
}

fn header(out: &mut String, desc: &Desc, format: Format) {
    let kind = match desc.kind {
        Kind::Gauge => "gauge",
        Kind::Counter => "counter",
    };
    match format {
        Format::Text => {
            let _ = write!(out, "# HELP {} ", desc.name);
            escape(out, desc.help(), false);
            let _ = writeln!(out, "\n# TYPE {} {kind}", desc.name);
        }
        Format::OpenMetrics => {
            let name =
                desc.name.strip_suffix("_total").filter(|_| desc.kind == Kind::Counter).unwrap_or(desc.name);
            let _ = writeln!(out, "# TYPE {name} {kind}");
            if let Some(unit) = desc.suffix.strip_prefix('_').filter(|_| name.ends_with(desc.suffix)) {
                let _ = writeln!(out, "# UNIT {name} {unit}");
            }
            let _ = write!(out, "# HELP {name} ");
            escape(out, desc.help(), true);
            out.push('\n');
        }
    }
}

/// Backslash, newline, and (but in HELP of 0.0.4) the double quote.
fn escape(out: &mut String, text: &str, quotes: bool) {
    if !text.contains(['\\', '\n', '"']) {
        out.push_str(text);
        return;
    }
    for character in text.chars() {
        match character {
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '"' if quotes => out.push_str("\\\""),
            other => out.push(other),
        }
    }
}

/// Whole numbers without a fraction, others in the shortest form that reads back the same.
#[expect(clippy::cast_possible_truncation, reason = "checked to be whole and within 2^53")]
fn number(out: &mut String, value: f64) {
    if value.fract() == 0.0 && value.abs() < 9_007_199_254_740_992.0 {
        let _ = write!(out, "{}", value as i64);
    } else {
        let _ = write!(out, "{value}");
    }
}
