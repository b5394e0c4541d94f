//! The status page: the newest frame as HTML.
//!
//! One HTML document without scripts, inline styles on elements or external resources, so that it works with any
//! Content-Security-Policy. Metrics are looked up by name; missing ones are left out or shown as a dash.

use std::fmt::Write as _;
use std::time::Duration;

use crate::catalog::{gpu, memory, workload};
use crate::model::desc::{Desc, Kind, PREFIX};
use crate::model::finding::{Finding, Severity};
use crate::model::frame::{Frame, SourceReport};
use crate::model::point::Family;
use crate::model::printable::{escaped, is_hidden};
use crate::model::source::Status;
use crate::model::units::Bytes;

/// Allows no resources and no scripts; the page's own style sheet is inline.
pub const CONTENT_SECURITY_POLICY: &str = "default-src 'none'; style-src 'unsafe-inline'; \
     base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

/// Maximum rows of a table, to keep the page readable; `/metrics` has all of them.
const MOST_ROWS: usize = 200;
/// Maximum columns of a table, as many as fit on a laptop's screen.
const MOST_COLUMNS: usize = 8;

const STYLE: &str = include_str!("page.css");

/// Definition of a table: a row for each subject, a column for each gauge that has only the subject's labels.
struct Shape {
    title: &'static str,
    /// Prefix of the names of its gauges, after [`PREFIX`].
    prefix: &'static str,
    /// The label that names a row.
    subject: &'static str,
    /// Labels that only identify the subject further.
    identity: &'static [&'static str],
    /// The gauges shown first; others follow.
    first: &'static [&'static str],
    /// Two gauges, part and whole, that are shown as a bar.
    share: Option<(&'static str, &'static str)>,
    /// The metric that is 1 for the current status of the subject.
    status: Option<&'static str>,
}

const GPUS: Shape = Shape {
    title: "GPUs",
    prefix: "gpu_",
    subject: "gpu",
    identity: &["uuid"],
    first: &[
        gpu::MEMORY_USED.desc.name,
        gpu::MEMORY_TOTAL.desc.name,
        gpu::UTILIZATION.desc.name,
        gpu::TEMPERATURE.desc.name,
        gpu::POWER.desc.name,
    ],
    share: Some((gpu::MEMORY_USED.desc.name, gpu::MEMORY_TOTAL.desc.name)),
    status: Some(gpu::STATUS.desc.name),
};

const WORKLOADS: Shape = Shape {
    title: "Workloads",
    prefix: "workload_",
    subject: "workload",
    identity: &[],
    first: &[
        workload::RSS.desc.name,
        workload::RSS_MAX.desc.name,
        workload::SWAP.desc.name,
        workload::THREADS.desc.name,
        workload::OPEN_FILES.desc.name,
    ],
    share: None,
    status: None,
};

/// Renders the page; `age` is the age of `frame`.
pub fn page(frame: Option<&Frame>, age: Option<Duration>, uptime: Duration, stale_after: Duration) -> String {
    let mut out = String::with_capacity(16 * 1024);
    let _ = write!(
        out,
        "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\
         <meta http-equiv=\"refresh\" content=\"5\"><title>memwarden</title><style>{STYLE}</style></head><body>\n\
         <header><h1>memwarden</h1><p>version {} · up {}</p>\
         <nav><a href=\"/metrics\">Metrics</a> <a href=\"/api/v1/frame\">Frame as JSON</a> \
         <a href=\"/api/v1/findings\">Findings</a> \
         <a href=\"/-/healthy\">Health</a> <a href=\"/-/ready\">Readiness</a></nav></header>\n<main>\n",
        env!("CARGO_PKG_VERSION"),
        Shown(uptime.as_secs_f64(), "_seconds"),
    );
    match (frame, age) {
        (Some(frame), Some(age)) => body(&mut out, frame, age, age > stale_after),
        _ => out.push_str("<p class=\"failed\">No sample has been taken yet.</p>\n"),
    }
    out.push_str("</main></body></html>\n");
    out
}

fn body(out: &mut String, frame: &Frame, age: Duration, stale: bool) {
    let critical = frame.findings.iter().filter(|finding| finding.severity == Severity::Critical).count();
    let class = if stale || critical > 0 { "failed" } else { "ok" };
    let _ = write!(
        out,
        "<p class=\"{class}\">Sample {}: {} series, {} old{}.",
        frame.sequence,
        frame.series(),
        Shown(age.as_secs_f64(), "_seconds"),
        if stale { ": sampling has stalled" } else { "" },
    );
    if critical > 0 {
        let plural = if critical == 1 { "" } else { "s" };
        let _ = write!(out, " {critical} critical finding{plural}.");
    }
    out.push_str("</p>\n");
    findings(out, &frame.findings);
    host(out, frame);
    table(out, frame, &GPUS);
    table(out, frame, &WORKLOADS);
    sources(out, &frame.sources);
}

fn host(out: &mut String, frame: &Frame) {
    let total = frame.value(memory::TOTAL.desc.name, &[]).filter(|total| *total > 0.0);
    let available = frame.value(memory::AVAILABLE.desc.name, &[]);
    let (Some(total), Some(available)) = (total, available) else { return };
    let used = ((total - available) / total).clamp(0.0, 1.0);
    let _ = writeln!(
        out,
        "<section><h2>Host memory</h2><p>{} <span>{} of {} in use, {} available</span></p></section>",
        Bar(used),
        Shown(total - available, "_bytes"),
        Shown(total, "_bytes"),
        Shown(available, "_bytes"),
    );
}

fn table(out: &mut String, frame: &Frame, shape: &Shape) {
    let wanted = |desc: &Desc| {
        desc.kind == Kind::Gauge
            && own_name(desc, shape.prefix).is_some()
            && desc.labels.contains(&shape.subject)
            && desc.labels.iter().all(|label| *label == shape.subject || shape.identity.contains(label))
    };
    let mut columns: Vec<&Family> = frame.families.iter().filter(|family| wanted(family.desc)).collect();
    columns.sort_by_key(|family| {
        let place = shape.first.iter().position(|name| *name == family.desc.name);
        (place.unwrap_or(shape.first.len()), family.desc.name.ends_with("_max"))
    });
    columns.truncate(MOST_COLUMNS);
    // A subject that only has a status gets a row too.
    let statuses = frame.families.iter().find(|family| Some(family.desc.name) == shape.status);
    let mut rows: Vec<&str> = Vec::new();
    for family in columns.iter().chain(&statuses) {
        for (name, _) in named(family, shape.subject) {
            if !name.is_empty() && !rows.contains(&name) && rows.len() < MOST_ROWS {
                rows.push(name);
            }
        }
    }
    if rows.is_empty() {
        return;
    }
    // GPU 10 comes after GPU 9.
    rows.sort_by_key(|name| (name.parse::<u32>().ok(), *name));
    let _ = write!(out, "<section><h2>{}</h2><div><table><thead><tr><th>{}</th>", shape.title, shape.subject);
    if shape.status.is_some() {
        out.push_str("<th>status</th>");
    }
    for family in &columns {
        let _ = write!(
            out,
            "<th title=\"{}\">{}</th>",
            Escaped(family.desc.help()),
            Escaped(&heading(family.desc, shape.prefix))
        );
    }
    out.push_str("</tr></thead><tbody>\n");
    for row in rows {
        let _ = write!(out, "<tr><th>{}</th>", Escaped(row));
        if let Some(metric) = shape.status {
            let status = status_of(frame, metric, shape.subject, row).unwrap_or("–");
            let class = if status == "ok" { "ok" } else { "failed" };
            let _ = write!(out, "<td class=\"{class}\">{}</td>", Escaped(status));
        }
        let value = |family: &Family| {
            named(family, shape.subject).find(|(name, _)| *name == row).map(|(_, value)| value)
        };
        let of = |name: &str| {
            columns.iter().find(|family| family.desc.name == name).and_then(|family| value(family))
        };
        for family in &columns {
            let Some(found) = value(family) else {
                out.push_str("<td>–</td>");
                continue;
            };
            out.push_str("<td>");
            let whole =
                shape.share.filter(|(part, _)| *part == family.desc.name).and_then(|(_, whole)| of(whole));
            match whole {
                Some(whole) if whole > 0.0 => {
                    let _ = write!(out, "{} ", Bar(found / whole));
                }
                _ if family.desc.suffix == "_ratio" => {
                    let _ = write!(out, "{} ", Bar(found));
                }
                _ => {}
            }
            let _ = write!(out, "{}</td>", Shown(found, family.desc.suffix));
        }
        out.push_str("</tr>\n");
    }
    out.push_str("</tbody></table></div></section>\n");
}

/// The `status` whose series is 1 for this row.
fn status_of<'f>(frame: &'f Frame, metric: &str, subject: &str, row: &str) -> Option<&'f str> {
    let family = frame.families.iter().find(|family| family.desc.name == metric)?;
    let place = |label: &str| family.desc.labels.iter().position(|name| *name == label);
    let (subject, status) = (place(subject)?, place("status")?);
    let mut points = family.points.iter().filter(|point| point.value > 0.0);
    let point = points.find(|point| point.labels[subject].as_str() == row)?;
    Some(point.labels[status].as_str())
}

/// The values of a family by the value of one label.
fn named<'f>(family: &'f Family, label: &str) -> impl Iterator<Item = (&'f str, f64)> {
    let place = family.desc.labels.iter().position(|name| *name == label);
    family.points.iter().filter_map(move |point| Some((point.labels.get(place?)?.as_str(), point.value)))
}

/// The metric's name without both prefixes; absent where it does not begin with them.
fn own_name(desc: &Desc, prefix: &str) -> Option<&'static str> {
    desc.name.strip_prefix(PREFIX)?.strip_prefix(prefix)
}

fn heading(desc: &Desc, prefix: &str) -> String {
    let name = own_name(desc, prefix).unwrap_or(desc.name);
    name.strip_suffix(desc.suffix).unwrap_or(name).replace('_', " ")
}

/// The findings, most severe first.
fn findings(out: &mut String, findings: &[Finding]) {
    if findings.is_empty() {
        return;
    }
    out.push_str(
        "<section><h2>Findings</h2><div><table><thead><tr><th>subject</th><th>state</th>\
         <th>summary</th><th>advice</th></tr></thead><tbody>\n",
    );
    let mut worst: Vec<&Finding> = findings.iter().collect();
    worst.sort_by_key(|finding| std::cmp::Reverse(finding.severity));
    for finding in worst.into_iter().take(MOST_ROWS) {
        let class = match finding.severity {
            Severity::Info => "quiet",
            Severity::Warning | Severity::Critical => "failed",
        };
        let _ = writeln!(
            out,
            "<tr><th>{}</th><td class=\"{class}\">{}</td><td>{}</td><td>{}</td></tr>",
            Escaped(&finding.subject.to_string()),
            Escaped(finding.state),
            Escaped(&finding.summary),
            Escaped(finding.advice),
        );
    }
    out.push_str("</tbody></table></div></section>\n");
}

fn sources(out: &mut String, sources: &[SourceReport]) {
    out.push_str(
        "<section><h2>Sources</h2><div><table><thead><tr><th>source</th><th>status</th>\
         <th>last complete sample</th><th>reason</th></tr></thead><tbody>\n",
    );
    for report in sources {
        let class = match report.status {
            Status::Ok => "ok",
            Status::Unavailable => "quiet",
            Status::Failed => "failed",
        };
        let _ = write!(
            out,
            "<tr><th>{}</th><td class=\"{class}\">{}</td><td>",
            Escaped(report.source),
            report.status.label()
        );
        match report.age_seconds {
            Some(age) => {
                let _ = write!(out, "{} before this sample", Shown(age, "_seconds"));
            }
            None => out.push('–'),
        }
        let _ = writeln!(out, "</td><td>{}</td></tr>", Escaped(report.why.as_deref().unwrap_or("")));
    }
    out.push_str("</tbody></table></div></section>\n");
}

/// A bar from 0 to 1, as an element that works without style sheets.
struct Bar(f64);

impl std::fmt::Display for Bar {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self(share) = self;
        write!(f, "<meter min=\"0\" max=\"1\" high=\"0.9\" optimum=\"0\" value=\"{share:.3}\"></meter>")
    }
}

/// A value formatted in the unit of a metric's suffix.
struct Shown(f64, &'static str);

impl std::fmt::Display for Shown {
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "checked to be positive; a float beyond u64 becomes its largest, which is still shown as EiB"
    )]
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self(value, suffix) = *self;
        match suffix {
            "_bytes" if value >= 0.0 => write!(f, "{}", Bytes::new(value as u64)),
            "_ratio" => write!(f, "{:.1} %", value * 100.0),
            "_celsius" => write!(f, "{value:.0} °C"),
            "_watts" => write!(f, "{value:.0} W"),
            "_hertz" => write!(f, "{:.0} MHz", value / 1e6),
            "_joules" => write!(f, "{value:.0} J"),
            "_seconds" if value >= 172_800.0 => write!(f, "{:.1} d", value / 86_400.0),
            "_seconds" if value >= 7_200.0 => write!(f, "{:.1} h", value / 3_600.0),
            "_seconds" if value >= 120.0 => write!(f, "{:.1} min", value / 60.0),
            "_seconds" => write!(f, "{value:.1} s"),
            _ if value.fract() == 0.0 => write!(f, "{value}"),
            _ => write!(f, "{value:.3}"),
        }
    }
}

/// Text escaped for HTML elements and attributes.
struct Escaped<'a>(&'a str);

impl std::fmt::Display for Escaped<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        for character in self.0.chars() {
            match character {
                '&' => f.write_str("&amp;")?,
                '<' => f.write_str("&lt;")?,
                '>' => f.write_str("&gt;")?,
                '"' => f.write_str("&quot;")?,
                '\'' => f.write_str("&#39;")?,
                hidden if is_hidden(hidden) => f.write_str(&escaped(hidden.encode_utf8(&mut [0; 4])))?,
                other => f.write_char(other)?,
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::serve::http::tests::frames;
    use expect_test::expect_file;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn a_node_is_shown() {
        let html = page(Some(&frames::node()), Some(SECOND), SECOND * 90_000, SECOND * 5);
        expect_file!["testdata/page.html"].assert_eq(&html.replace(STYLE, "…"));
    }

    #[test]
    fn what_jobs_name_themselves_stays_text() {
        let html = page(Some(&frames::hostile()), Some(SECOND * 9), SECOND, SECOND * 5);
        assert!(!html.contains("<script"), "{html}");
        assert!(html.contains("&lt;script&gt;alert(&quot;1&quot;)&lt;/script&gt;"), "{html}");
        assert!(html.contains("sampling has stalled"));
    }

    #[test]
    fn nothing_hidden_is_on_the_page() {
        assert_eq!(Escaped("a<\u{202e}b\x1b\n").to_string(), "a&lt;\\u{202e}b\\x1b\\n");
    }

    #[test]
    fn without_a_frame_it_says_so() {
        assert!(page(None, None, SECOND, SECOND).contains("No sample has been taken yet."));
    }
}
