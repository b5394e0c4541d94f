//! One writer for both text formats, so that their values cannot differ.
//!
//! Formats: <https://prometheus.io/docs/instrumenting/exposition_formats/> and
//! <https://prometheus.io/docs/specs/om/open_metrics_spec/>. No timestamps, so
//! that a vanished series is stale at once; no `_created`.

use std::fmt::Write as _;

use crate::model::desc::{Desc, INFINITE, Kind, SUM};
use crate::model::label::Label;
use crate::model::point::Family;

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
    encode_with(families, format, |_| {})
}

/// The whole exposition of `families`, followed by the families that `more` writes.
pub fn encode_with(families: &[Family], format: Format, more: impl FnOnce(&mut String)) -> String {
    /// Approximate size of a line in bytes, for series and for HELP.
    const LINE: usize = 128;
    let lines: usize = families.iter().map(|family| family.points.len() + 2).sum();
    let mut out = String::with_capacity(lines * LINE);
    for family in families.iter().filter(|family| !family.points.is_empty()) {
        header(&mut out, family.desc, format);
        if family.desc.kind == Kind::Histogram {
            histograms(&mut out, family);
            continue;
        }
        for point in &family.points {
            line(&mut out, family.desc, "", &point.labels, point.value);
        }
    }
    more(&mut out);
    if format == Format::OpenMetrics {
        out.push_str("# EOF\n");
    }
    out
}

/// Writes one series; `labels` may have fewer values than are declared.
fn line(out: &mut String, desc: &Desc, suffix: &str, labels: &[Label], value: f64) {
    out.push_str(desc.name);
    out.push_str(suffix);
    let mut open = false;
    for (name, value) in desc.labels.iter().zip(labels) {
        label(out, &mut open, name, value.as_str());
    }
    if open {
        out.push('}');
    }
    out.push(' ');
    number(out, value);
    out.push('\n');
}

/// Writes a label, and the brace before the first one. Prometheus treats an empty label as absent, so it is not sent.
pub fn label(out: &mut String, open: &mut bool, name: &str, value: &str) {
    if value.is_empty() {
        return;
    }
    out.push(if std::mem::replace(open, true) { ',' } else { '{' });
    out.push_str(name);
    out.push_str("=\"");
    escape(out, value, true);
    out.push('"');
}

/// Writes buckets, sum and count, in the order that both formats require. The bound is the last label.
fn histograms(out: &mut String, family: &Family) {
    let mut count = None;
    for point in &family.points {
        let Some((le, labels)) = point.labels.split_last() else { continue };
        if le.as_str() != SUM {
            line(out, family.desc, "_bucket", &point.labels, point.value);
            count = (le.as_str() == INFINITE).then_some(point.value);
        } else if let Some(count) = count.take() {
            line(out, family.desc, "_sum", labels, point.value);
            line(out, family.desc, "_count", labels, count);
        }
    }
}

fn header(out: &mut String, desc: &Desc, format: Format) {
    let kind = desc.kind.label();
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

/// Escapes backslash, newline, and (except in HELP of 0.0.4) the double quote.
pub fn escape(out: &mut String, text: &str, quotes: bool) {
    // Without an early exit the compiler vectorizes the comparison; almost no label needs escaping.
    let special = |byte: u8| (byte == b'\\') | (byte == b'\n') | (byte == b'"');
    if !text.bytes().fold(false, |found, byte| found | special(byte)) {
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

/// Writes whole numbers without a fraction, others in the shortest form that parses to the same value.
#[expect(clippy::cast_possible_truncation, reason = "checked to be whole and within 2^53")]
pub fn number(out: &mut String, value: f64) {
    // Integers are written several times faster, and most values are whole.
    if value.fract() == 0.0
        && value.abs() < 9_007_199_254_740_992.0
        && (value != 0.0 || value.is_sign_positive())
    {
        out.push_str(itoa::Buffer::new().format(value as i64));
    } else {
        let _ = write!(out, "{value}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::desc::{Counter, Gauge, Histogram};
    use crate::model::histogram::Buckets;
    use crate::model::point::{Batch, Point};
    use crate::model::units::{Bytes, Count, Flag, Seconds};
    use expect_test::expect;
    use prometheus::Encoder as _;
    use prometheus::proto;

    static USED: Gauge<Bytes> =
        Gauge::new("memwarden_gpu_memory_used_bytes", " Memory \"in\" use,\nwithout C:\\.", &["gpu", "uuid"]);
    static TRIPS: Counter<Count> = Counter::new("memwarden_trips_total", "Trips.", &[]);
    static BUSY: Counter<Seconds> = Counter::new("memwarden_cpu_seconds_total", "CPU time.", &["mode"]);
    static INFO: Gauge<Flag> = Gauge::new("memwarden_build_info", "The build; always 1.", &["version"]);

    fn family(desc: &'static Desc, points: &[(&[&str], f64)]) -> Family {
        let point = |(labels, value): &(&[&str], f64)| Point {
            labels: labels.iter().map(|label| Label::from(*label)).collect(),
            value: *value,
        };
        Family::new(desc, points.iter().map(point).collect())
    }

    fn families() -> Vec<Family> {
        vec![
            family(&USED.desc, &[(&["0", "GPU-1"], 1_073_741_824.0), (&["1", "a\"b\\c\nd"], 0.0)]),
            family(&TRIPS.desc, &[(&[], 3.0)]),
            family(&BUSY.desc, &[(&["user"], 0.1), (&["system"], 1e21)]),
            family(&INFO.desc, &[(&["1.0"], 1.0)]),
            family(&INFO.desc, &[]),
        ]
    }

    #[test]
    fn text() {
        expect![[r#"
            # HELP memwarden_gpu_memory_used_bytes Memory "in" use,\nwithout C:\\.
            # TYPE memwarden_gpu_memory_used_bytes gauge
            memwarden_gpu_memory_used_bytes{gpu="0",uuid="GPU-1"} 1073741824
            memwarden_gpu_memory_used_bytes{gpu="1",uuid="a\"b\\c\nd"} 0
            # HELP memwarden_trips_total Trips.
            # TYPE memwarden_trips_total counter
            memwarden_trips_total 3
            # HELP memwarden_cpu_seconds_total CPU time.
            # TYPE memwarden_cpu_seconds_total counter
            memwarden_cpu_seconds_total{mode="user"} 0.1
            memwarden_cpu_seconds_total{mode="system"} 1000000000000000000000
            # HELP memwarden_build_info The build; always 1.
            # TYPE memwarden_build_info gauge
            memwarden_build_info{version="1.0"} 1
        "#]]
        .assert_eq(&encode(&families(), Format::Text));
    }

    #[test]
    fn openmetrics() {
        expect![[r##"
            # TYPE memwarden_gpu_memory_used_bytes gauge
            # UNIT memwarden_gpu_memory_used_bytes bytes
            # HELP memwarden_gpu_memory_used_bytes Memory \"in\" use,\nwithout C:\\.
            memwarden_gpu_memory_used_bytes{gpu="0",uuid="GPU-1"} 1073741824
            memwarden_gpu_memory_used_bytes{gpu="1",uuid="a\"b\\c\nd"} 0
            # TYPE memwarden_trips counter
            # HELP memwarden_trips Trips.
            memwarden_trips_total 3
            # TYPE memwarden_cpu_seconds counter
            # UNIT memwarden_cpu_seconds seconds
            # HELP memwarden_cpu_seconds CPU time.
            memwarden_cpu_seconds_total{mode="user"} 0.1
            memwarden_cpu_seconds_total{mode="system"} 1000000000000000000000
            # TYPE memwarden_build_info gauge
            # HELP memwarden_build_info The build; always 1.
            memwarden_build_info{version="1.0"} 1
            # EOF
        "##]]
        .assert_eq(&encode(&families(), Format::OpenMetrics));
    }

    #[test]
    fn a_histogram_is_the_same_in_both_formats() {
        static STEP: Histogram<Seconds> =
            Histogram::new("memwarden_step_duration_seconds", "Steps.", &["rank", "le"]);
        let mut batch = Batch::new();
        let mut buckets = Buckets::<-1, 2>::default();
        for seconds in [0.25, 0.75, 9.0] {
            buckets.observe(seconds);
        }
        batch.put_histogram(&STEP, &["0".into()], &buckets);
        batch.put_histogram(&STEP, &["".into()], &Buckets::<-1, 2>::default());
        let (families, ..) = batch.seal();
        let series = r#"memwarden_step_duration_seconds_bucket{rank="0",le="0.5"} 1
memwarden_step_duration_seconds_bucket{rank="0",le="1.0"} 2
memwarden_step_duration_seconds_bucket{rank="0",le="+Inf"} 3
memwarden_step_duration_seconds_sum{rank="0"} 10
memwarden_step_duration_seconds_count{rank="0"} 3
memwarden_step_duration_seconds_bucket{le="0.5"} 0
memwarden_step_duration_seconds_bucket{le="1.0"} 0
memwarden_step_duration_seconds_bucket{le="+Inf"} 0
memwarden_step_duration_seconds_sum 0
memwarden_step_duration_seconds_count 0
"#;
        let text = "# HELP memwarden_step_duration_seconds Steps.\n# TYPE memwarden_step_duration_seconds histogram\n";
        assert_eq!(encode(&families, Format::Text), format!("{text}{series}"));
        let text = "# TYPE memwarden_step_duration_seconds histogram\n# UNIT memwarden_step_duration_seconds seconds\n# HELP memwarden_step_duration_seconds Steps.\n";
        assert_eq!(encode(&families, Format::OpenMetrics), format!("{text}{series}# EOF\n"));
    }

    /// The same points through the `prometheus` crate.
    fn reference(families: &[Family]) -> String {
        let metric = |family: &Family, point: &Point| {
            let mut metric = proto::Metric::default();
            // An empty label is one that is not there.
            let pairs =
                family.desc.labels.iter().zip(point.labels.iter()).filter(|(_, value)| !value.is_empty());
            let pairs = pairs.map(|(name, value)| {
                let mut pair = proto::LabelPair::default();
                pair.set_name((*name).to_owned());
                pair.set_value(value.as_str().to_owned());
                pair
            });
            metric.set_label(pairs.collect());
            match family.desc.kind {
                Kind::Gauge => {
                    let mut gauge = proto::Gauge::default();
                    gauge.set_value(point.value);
                    metric.set_gauge(gauge);
                }
                Kind::Counter => {
                    let mut counter = proto::Counter::default();
                    counter.set_value(point.value);
                    metric.set_counter(counter);
                }
                Kind::Histogram => unreachable!("none is generated"),
            }
            metric
        };
        let converted: Vec<proto::MetricFamily> = families
            .iter()
            .filter(|family| !family.points.is_empty())
            .map(|family| {
                let mut converted = proto::MetricFamily::default();
                converted.set_name(family.desc.name.to_owned());
                converted.set_help(family.desc.help().to_owned());
                converted.set_field_type(match family.desc.kind {
                    Kind::Gauge => proto::MetricType::GAUGE,
                    Kind::Counter => proto::MetricType::COUNTER,
                    Kind::Histogram => proto::MetricType::HISTOGRAM,
                });
                converted.set_metric(family.points.iter().map(|point| metric(family, point)).collect());
                converted
            })
            .collect();
        let mut out = Vec::new();
        prometheus::TextEncoder::new().encode(&converted, &mut out).unwrap();
        String::from_utf8(out).unwrap()
    }

    /// Name, labels, value.
    type Sample = (String, Vec<(String, String)>, f64);

    /// Reads OpenMetrics as its specification's ABNF says, written without a look at the encoder.
    fn read_openmetrics(text: &str) -> Vec<Sample> {
        let body = text.strip_suffix("# EOF\n").expect("ends in EOF");
        let mut samples = Vec::new();
        let mut open: Option<(String, String)> = None;
        let mut closed = std::collections::HashSet::new();
        for line in body.lines() {
            if let Some(rest) = line.strip_prefix("# ") {
                let mut words = rest.splitn(3, ' ');
                let (word, name, argument) =
                    (words.next().unwrap(), words.next().unwrap(), words.next().unwrap());
                if word == "TYPE" {
                    if let Some((before, _)) = open.replace((name.to_owned(), argument.to_owned())) {
                        assert!(closed.insert(before), "a family must be contiguous");
                    }
                    assert!(!closed.contains(name), "{name} opened twice");
                }
                assert_eq!(open.as_ref().unwrap().0, name, "metadata of another family");
                if word == "UNIT" {
                    assert!(name.ends_with(&format!("_{argument}")), "{line}");
                }
                continue;
            }
            let (family, kind) = open.as_ref().expect("a sample after its TYPE");
            let name_end = line.find(['{', ' ']).unwrap();
            let name = &line[..name_end];
            let expected = if kind == "counter" { format!("{family}_total") } else { family.clone() };
            assert_eq!(name, expected);
            let mut rest = &line[name_end..];
            let mut labels = Vec::new();
            if let Some(inner) = rest.strip_prefix('{') {
                rest = inner;
                loop {
                    let (label, after) = rest.split_once("=\"").unwrap();
                    let mut value = String::new();
                    let mut characters = after.char_indices();
                    let end = loop {
                        match characters.next().unwrap() {
                            (_, '\\') => match characters.next().unwrap().1 {
                                'n' => value.push('\n'),
                                other => value.push(other),
                            },
                            (end, '"') => break end,
                            (_, other) => value.push(other),
                        }
                    };
                    labels.push((label.to_owned(), value));
                    rest = &after[end + 1..];
                    match rest.strip_prefix(',') {
                        Some(more) => rest = more,
                        None => {
                            rest = rest.strip_prefix('}').unwrap();
                            break;
                        }
                    }
                }
            }
            let value = rest.strip_prefix(' ').unwrap();
            assert!(!value.contains(' '), "no timestamps");
            samples.push((name.to_owned(), labels, value.parse().unwrap()));
        }
        samples
    }

    fn some_families() -> impl proptest::strategy::Strategy<Value = Vec<Family>> {
        use proptest::prelude::*;
        let value = prop_oneof![
            any::<f64>().prop_filter("finite", |value| value.is_finite()),
            any::<i32>().prop_map(f64::from),
            (0_u32..60).prop_map(|power| f64::from(power).exp2()),
        ];
        let point = (value, "\\PC{0,12}", "[\"\\\\\na-z]{0,8}");
        let points = || proptest::collection::vec(point.clone(), 0..6);
        (points(), points(), points()).prop_map(|(used, trips, busy)| {
            let make = |desc: &'static Desc, points: Vec<(f64, String, String)>| {
                let point = |(value, one, two): (f64, String, String)| Point {
                    labels: [one, two][..desc.labels.len()].iter().map(Label::from).collect(),
                    value,
                };
                Family::new(desc, points.into_iter().map(point).collect())
            };
            vec![make(&USED.desc, used), make(&TRIPS.desc, trips), make(&BUSY.desc, busy)]
        })
    }

    proptest::proptest! {
        #[test]
        fn text_is_what_the_reference_encoder_writes(families in some_families()) {
            proptest::prop_assert_eq!(encode(&families, Format::Text), reference(&families));
        }

        #[test]
        fn openmetrics_reads_back(families in some_families()) {
            let read = read_openmetrics(&encode(&families, Format::OpenMetrics));
            let written: Vec<_> = families
                .iter()
                .flat_map(|family| {
                    family.points.iter().map(move |point| {
                        let labels = family.desc.labels.iter().zip(point.labels.iter());
                        let labels = labels.filter(|(_, value)| !value.is_empty());
                        let labels = labels.map(|(name, value)| ((*name).to_owned(), value.to_string())).collect();
                        (family.desc.name.to_owned(), labels, point.value)
                    })
                })
                .collect();
            proptest::prop_assert_eq!(read, written);
        }
    }
}
