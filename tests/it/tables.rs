//! The registry and the catalog: rules for every entry.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;

use memwarden::host::roots::Roots;
use memwarden::model::desc::{Desc, Kind};
use memwarden::sources::{Context, REGISTRY};
use memwarden::{app, catalog, config};

/// Names without the prefix: those that Prometheus client libraries give the metrics of their own process.
const STANDARD: &[&str] = &[
    "process_cpu_seconds_total",
    "process_max_fds",
    "process_open_fds",
    "process_resident_memory_bytes",
    "process_start_time_seconds",
    "process_threads",
    "process_virtual_memory_bytes",
];

/// Whether a metric of this name is declared by memwarden.
pub(crate) fn is_ours(name: &str) -> bool {
    name.starts_with("memwarden_") || STANDARD.contains(&name)
}

#[test]
fn every_standard_metric_is_exposed() {
    for name in STANDARD {
        assert!(catalog().iter().any(|desc| desc.name == *name), "{name} is not exposed");
    }
}

fn catalog() -> Vec<&'static Desc> {
    catalog::all().collect()
}

#[test]
fn names_are_unique_and_have_our_prefix_or_are_standard() {
    let mut seen = BTreeSet::new();
    for desc in catalog() {
        assert!(seen.insert(desc.name), "{} is declared twice", desc.name);
        assert!(is_ours(desc.name), "{}", desc.name);
        let lower = desc.name.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_');
        assert!(lower && !desc.name.contains("__"), "{}", desc.name);
    }
}

#[test]
fn metrics_of_performance_logs_exist() {
    for name in memwarden::perf_log::rows::NAMES {
        assert!(catalog().iter().any(|desc| desc.name == *name), "{name} is no metric");
    }
}

#[test]
fn a_name_ends_in_its_unit() {
    for desc in catalog() {
        let base = desc.name.strip_suffix("_total");
        match desc.kind {
            Kind::Counter => assert!(base.is_some(), "the counter {} does not end in _total", desc.name),
            Kind::Gauge | Kind::Histogram => {
                assert!(base.is_none(), "{} is no counter and ends in _total", desc.name);
            }
        }
        // The unit stays last, after `_max`.
        let base = base.unwrap_or(desc.name);
        assert!(base.ends_with(desc.suffix), "{} has the unit {}", desc.name, desc.suffix);
        let units = ["_bytes", "_seconds", "_ratio", "_celsius", "_watts", "_joules", "_hertz"];
        for unit in units.iter().filter(|unit| base.ends_with(**unit)) {
            assert!(
                desc.suffix.ends_with(unit),
                "{} promises {unit} and has the unit {:?}",
                desc.name,
                desc.suffix
            );
        }
    }
}

#[test]
fn no_label_belongs_to_prometheus() {
    let reserved = [
        "job",
        "instance",
        "le",
        "quantile",
        "type",
        "cluster",
        "region",
        "zone_name",
        "service",
        "environment",
        "env",
        "owner",
        "stage",
        "customer",
        "dc",
        "datacenter",
        "az",
    ];
    for desc in catalog() {
        let labels = match desc.labels.split_last() {
            Some((last, labels)) if desc.kind == Kind::Histogram => {
                assert_eq!(*last, "le", "{}", desc.name);
                labels
            }
            _ => desc.labels,
        };
        for label in labels {
            assert!(!reserved.contains(label), "{} has the label {label}", desc.name);
            assert!(!desc.name.contains(&format!("_{label}_by_")), "{}", desc.name);
        }
        let distinct: BTreeSet<_> = desc.labels.iter().collect();
        assert_eq!(distinct.len(), desc.labels.len(), "{} repeats a label", desc.name);
    }
}

#[test]
fn a_dimensionless_name_states_what_it_counts() {
    for desc in catalog().into_iter().filter(|desc| desc.suffix.is_empty()) {
        assert!(desc.ucum.starts_with('{') && desc.ucum.ends_with('}'), "{} has {:?}", desc.name, desc.ucum);
        assert_ne!(desc.ucum, "{item}", "{} does not say what it counts", desc.name);
    }
}

#[test]
fn a_peak_has_the_labels_of_its_gauge() {
    for desc in catalog() {
        if let Some(peak) = desc.peak {
            assert_eq!(peak.labels, desc.labels, "{} and {}", desc.name, peak.name);
            assert_eq!(peak.suffix, desc.suffix, "{} and {}", desc.name, peak.name);
            assert!(
                catalog().iter().any(|other| std::ptr::eq(*other, peak)),
                "{} is not registered",
                peak.name
            );
        }
    }
}

#[test]
fn every_source_can_be_built_from_its_defaults() {
    let schema = app::schema();
    let config = config::parse_str("", Path::new("defaults"), &schema, &[]).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let context = Context {
        roots: Arc::new(Roots::under(folder.path())),
        worker: None,
        checkpoints: Arc::default(),
        past_runs: Arc::default(),
    };
    let mut names = BTreeSet::new();
    for registration in REGISTRY {
        assert!(names.insert(registration.name), "{} is registered twice", registration.name);
        assert!(registration.about.ends_with('.'), "{}", registration.about);
        assert!(!registration.metrics.is_empty(), "{} has no metrics", registration.name);
        drop((registration.build)(&config.sources[registration.name].settings, &context));
    }
}

#[test]
fn every_source_is_harmless_on_an_empty_host() {
    let schema = app::schema();
    let config = config::parse_str("", Path::new("defaults"), &schema, &[]).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let context = Context {
        roots: Arc::new(Roots::under(folder.path())),
        worker: None,
        checkpoints: Arc::default(),
        past_runs: Arc::default(),
    };
    // The socket that jobs connect to is not part of the host.
    let looks = |name| !["gpu", "training"].contains(&name);
    for registration in REGISTRY.iter().filter(|registration| looks(registration.name)) {
        let mut source = (registration.build)(&config.sources[registration.name].settings, &context);
        let mut batch = memwarden::model::point::Batch::new();
        let outcome = source.sample(memwarden::model::time::Timestamp::from_secs(1), &mut batch);
        let says_so = outcome.is_err() || registration.name == "workload";
        assert!(says_so, "{} found something in an empty folder", registration.name);
    }
}

#[test]
fn no_two_metrics_share_an_otlp_name() {
    let mut seen = std::collections::BTreeMap::new();
    for desc in catalog() {
        if let Some(other) = seen.insert(desc.otlp_name(), desc.name) {
            panic!("{} and {other} are both {} over OTLP", desc.name, desc.otlp_name());
        }
    }
}

#[test]
fn no_gauge_shares_its_family_with_a_counter() {
    // OpenMetrics names a counter's family without `_total`.
    let gauges: BTreeSet<&str> =
        catalog().into_iter().filter(|desc| desc.kind == Kind::Gauge).map(|desc| desc.name).collect();
    for desc in catalog().into_iter().filter(|desc| desc.kind == Kind::Counter) {
        let family = desc.name.strip_suffix("_total").unwrap();
        assert!(!gauges.contains(family), "{} and {family}", desc.name);
    }
}
