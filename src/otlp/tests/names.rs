//! The standard translation of each instrument's name gives the name of the scraped metric.

use std::collections::{BTreeMap, BTreeSet};

use super::super::stream::streams;
use super::world::METRICS;
use crate::catalog;
use crate::config::OtlpNames;
use crate::model::desc::{Desc, Instrument, Kind};

/// The name in Prometheus, as its `UnderscoreEscapingWithSuffixes` translates it.
fn translated(name: &str, unit: &str, kind: Instrument) -> String {
    let mut tokens: Vec<String> = name
        .split(|character: char| !character.is_ascii_alphanumeric())
        .filter(|token| !token.is_empty())
        .map(str::to_owned)
        .collect();
    let (main, per) = unit.split_once('/').map_or((unit, None), |(main, per)| (main, Some(per)));
    let annotated = |unit: &str| unit.contains(['{', '}']);
    let main = match main {
        unit if annotated(unit) => "",
        "By" => "bytes",
        "s" => "seconds",
        "Cel" => "celsius",
        "W" => "watts",
        "J" => "joules",
        "Hz" => "hertz",
        "1" | "" => "",
        other => panic!("the translation of {other} is not known here"),
    };
    if !main.is_empty() && !tokens.iter().any(|token| token == main) {
        tokens.push(main.to_owned());
    }
    match per {
        None => {}
        Some("s") => tokens.extend(["per".to_owned(), "second".to_owned()]),
        Some(other) if annotated(other) => {}
        Some(other) => panic!("the translation of /{other} is not known here"),
    }
    let mut end_in = |word: &str| {
        tokens.retain(|token| token != word);
        tokens.push(word.to_owned());
    };
    match kind {
        Instrument::Counter => end_in("total"),
        Instrument::Gauge if unit == "1" => end_in("ratio"),
        _ => {}
    }
    tokens.join("_")
}

fn everything() -> Vec<&'static Desc> {
    catalog::all().chain(METRICS.iter().copied()).collect()
}

#[test]
fn every_metric_translates_back_to_its_pull_name() {
    let all = everything();
    let streams = streams(&all, OtlpNames::Memwarden);
    let names = all.iter().flat_map(|desc| match desc.kind {
        Kind::Histogram => ["_bucket", "_sum", "_count"].map(|part| format!("{}{part}", desc.name)).to_vec(),
        _ => vec![desc.name.to_owned()],
    });
    let pushed: Vec<_> =
        streams.iter().map(|stream| translated(&stream.name, stream.unit, stream.kind)).collect();
    assert_eq!(pushed, names.collect::<Vec<_>>());
}

#[test]
fn names_are_translated_as_measured() {
    for (name, unit, kind, expected) in [
        ("t.gpu.memory.used", "By", Instrument::Gauge, "t_gpu_memory_used_bytes"),
        ("t.gpu.utilization", "1", Instrument::Gauge, "t_gpu_utilization_ratio"),
        ("t.util_ratio", "1", Instrument::Gauge, "t_util_ratio"),
        ("t.already_bytes", "By", Instrument::Gauge, "t_already_bytes"),
        ("t.leak.rate", "By/s", Instrument::Gauge, "t_leak_rate_bytes_per_second"),
        ("t.cpu.time", "s", Instrument::Counter, "t_cpu_time_seconds_total"),
        ("t.steps", "{step}", Instrument::Counter, "t_steps_total"),
        ("t.mem.usage", "By", Instrument::UpDownCounter, "t_mem_usage_bytes"),
        ("t.flops", "{flop}/s", Instrument::Gauge, "t_flops_per_second"),
    ] {
        assert_eq!(translated(name, unit, kind), expected);
    }
}

#[test]
fn metrics_of_one_convention_are_distinguishable() {
    let mut conventions: BTreeMap<&str, Vec<&Desc>> = BTreeMap::new();
    for desc in everything() {
        let Some(semconv) = &desc.semconv else { continue };
        // The backends disagree on whether that is a ratio.
        assert!((semconv.instrument, desc.ucum) != (Instrument::UpDownCounter, "1"), "{}", desc.name);
        for (label, _) in semconv.renamed {
            assert!(desc.labels.contains(label), "{} has no label {label}", desc.name);
        }
        let renamed =
            |label: &&str| semconv.renamed.iter().find(|(from, _)| from == label).map(|(_, to)| *to);
        let keys: Vec<&str> = desc.labels.iter().map(|label| renamed(label).unwrap_or(label)).collect();
        let keys: Vec<&str> = keys.into_iter().chain(semconv.fixed.iter().map(|(key, _)| *key)).collect();
        let distinct: BTreeSet<_> = keys.iter().collect();
        assert_eq!(distinct.len(), keys.len(), "{} has an attribute twice: {keys:?}", desc.name);
        conventions.entry(semconv.name).or_default().push(desc);
    }
    for (name, descs) in conventions {
        let shapes: BTreeSet<_> = descs
            .iter()
            .map(|desc| (desc.ucum, desc.semconv.as_ref().map(|semconv| format!("{:?}", semconv.instrument))))
            .collect();
        assert_eq!(shapes.len(), 1, "{name} has several units or instruments: {shapes:?}");
        // Two metrics may be distinguished by a label or by a fixed attribute, but one of them is required.
        let distinguished: BTreeSet<_> = descs
            .iter()
            .map(|desc| (desc.labels, desc.semconv.as_ref().map(|semconv| (semconv.fixed, semconv.renamed))))
            .collect();
        assert_eq!(distinguished.len(), descs.len(), "{name} is declared twice with the same attributes");
    }
}
