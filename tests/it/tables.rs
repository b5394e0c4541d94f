//! The registry and the catalog: rules for every entry.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;

use memwarden::host::roots::Roots;
use memwarden::model::desc::{Desc, Kind};
use memwarden::model::setting::{Opt, OptKind};
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

/// First words that refer to a text before them, which a reader of `/metrics` or of one option does not have.
const LEANING: &[&str] = &[
    "The same",
    "The rest",
    "The others",
    "The other",
    "These",
    "Those",
    "This",
    "That",
    "It",
    "Its",
    "They",
    "Them",
    "Their",
    "Such",
    "Another",
    "As above",
    "Likewise",
    "Also",
    "And",
    "Or",
    "But",
    "Killed so",
    "Told",
];

/// Figures of speech and private terms where a standard term exists.
const FIGURES: &[&str] = &[
    "acted so",
    "begins anew",
    "ladder",
    "ladders",
    "rung",
    "rungs",
    "desk",
    "seat",
    "seats",
    "heard",
    "told",
    "tells",
    "speaks",
    "our own",
    "turned away",
    "lets go",
    "foreseen",
    "fares",
    "loud",
    "most that",
    "goes on",
    "took turns",
    "cut up",
    "whoever",
];

/// Problems that keep a text from being understood alone; `names` are the words that may begin it in lower case.
fn faults(text: &str, names: &[&str]) -> Vec<String> {
    let mut faults = Vec::new();
    let first = text.split([' ', ',', ':']).next().unwrap_or_default();
    if !names.contains(&first) && !text.starts_with(|c: char| c.is_uppercase()) {
        faults.push("does not begin with a capital letter".to_owned());
    }
    if !text.ends_with('.') {
        faults.push("does not end with a period".to_owned());
    }
    if text.chars().count() < 20 {
        faults.push("has fewer than 20 characters".to_owned());
    }
    for start in LEANING {
        if text.strip_prefix(start).is_some_and(|rest| !rest.starts_with(char::is_alphanumeric)) {
            faults.push(format!("begins with `{start}`"));
        }
    }
    let words = text.to_lowercase();
    let words: Vec<&str> = words.split(|c: char| !c.is_alphanumeric()).collect();
    for figure in FIGURES {
        let figure: Vec<&str> = figure.split(' ').collect();
        if words.windows(figure.len()).any(|window| window == figure) {
            faults.push(format!("says `{}`", figure.join(" ")));
        }
    }
    faults
}

#[test]
fn faults_of_a_text_are_detected() {
    const NONE: [&str; 0] = [];
    assert_eq!(faults("Memory of the GPU that can be allocated.", &[]), NONE);
    assert_eq!(faults("systemd units that are workloads.", &["systemd"]), NONE);
    assert_eq!(faults("Thesis of a text that leans on nothing.", &[]), NONE);
    for (text, fault) in [
        ("The same as a share of what is reserved.", "begins with `The same`"),
        ("Its arguments, given to the program.", "begins with `Its`"),
        ("Short.", "has fewer than 20 characters"),
        ("memory of the GPU that can be allocated.", "does not begin with a capital letter"),
        ("Memory of the GPU that can be allocated", "does not end with a period"),
        ("Time since the rank was last heard of.", "says `heard`"),
        ("Connections that were turned away by it.", "says `turned away`"),
    ] {
        assert_eq!(faults(text, &[]), [fault], "{text}");
    }
}

#[test]
fn help_is_understood_alone() {
    let mut wrong = Vec::new();
    let mut seen = std::collections::BTreeMap::new();
    for desc in catalog() {
        wrong.extend(faults(desc.help(), &[]).iter().map(|fault| format!("{} {fault}", desc.name)));
        if let Some(other) = seen.insert(desc.help(), desc.name) {
            wrong.push(format!("{} and {other} have the same HELP", desc.name));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Every complete key of the configuration, with its text.
fn options() -> Vec<(String, &'static str)> {
    fn below(path: &str, opt: &'static Opt, found: &mut Vec<(String, &'static str)>) {
        let path = if path.is_empty() { opt.key.to_owned() } else { format!("{path}.{}", opt.key) };
        found.push((path.clone(), opt.help));
        if let OptKind::Section(options) | OptKind::Sections(options) = opt.kind {
            options.iter().for_each(|opt| below(&path, opt, found));
        }
    }
    let schema = app::schema();
    let mut found = Vec::new();
    schema.sections().for_each(|section| below("", section, &mut found));
    for group in &schema.groups {
        found.push((group.key.to_owned(), group.about));
        for part in &group.parts {
            let path = format!("{}.{}", group.key, part.key);
            found.push((path.clone(), part.about));
            part.options().for_each(|opt| below(&path, opt, &mut found));
        }
    }
    found
}

#[test]
fn texts_of_options_are_understood_alone() {
    let all = options();
    assert!(all.len() > 150, "{}", all.len());
    let mut wrong = Vec::new();
    for (key, text) in &all {
        let short = ["HTTP server."].contains(&text.trim());
        let found = faults(text.trim(), &["systemd"]);
        wrong.extend(
            found
                .iter()
                .filter(|fault| !(short && fault.contains("fewer")))
                .map(|fault| format!("{key} {fault}")),
        );
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Every text of `--help`, with the command and the argument it belongs to.
fn texts_of_commands() -> Vec<(String, String)> {
    fn below(command: &clap::Command, path: &str, found: &mut Vec<(String, String)>) {
        let path = format!("{path} {}", command.get_name());
        let mut add = |whose: String, text: Option<&clap::builder::StyledStr>| {
            if let Some(text) = text {
                // The parser removes the period from texts of one sentence.
                let text = text.to_string();
                found.push((whose, format!("{}.", text.trim_end_matches('.'))));
            }
        };
        add(path.clone(), command.get_long_about().or(command.get_about()));
        for argument in command.get_arguments().filter(|argument| !argument.is_hide_set()) {
            let whose = format!("{path} {}", argument.get_id());
            add(whose.clone(), argument.get_long_help().or(argument.get_help()));
            for value in argument.get_possible_values() {
                add(format!("{whose}={}", value.get_name()), value.get_help());
            }
        }
        command.get_subcommands().for_each(|command| below(command, &path, found));
    }
    let mut found = Vec::new();
    below(&memwarden_lab::cli::whole(), "", &mut found);
    found
}

#[test]
fn texts_of_commands_are_understood_alone() {
    let all = texts_of_commands();
    assert!(all.len() > 100, "{}", all.len());
    let mut wrong = Vec::new();
    for (whose, text) in &all {
        let found = faults(text, &[]);
        wrong.extend(
            found.iter().filter(|fault| !fault.contains("fewer")).map(|fault| format!("{whose} {fault}")),
        );
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn texts_name_only_keys_and_metrics_that_exist() {
    let keys = options();
    let roots: BTreeSet<&str> = keys.iter().filter_map(|(key, _)| key.split('.').next()).collect();
    let exists = |name: &str| keys.iter().any(|(key, _)| key == name);
    let commands = texts_of_commands();
    let texts = catalog().into_iter().map(|desc| (desc.name.to_owned(), desc.help()));
    let texts = texts.chain(keys.iter().cloned());
    let commands = commands.iter().map(|(whose, text)| (whose.clone(), text.as_str()));
    let mut wrong = Vec::new();
    let mut named = 0;
    for (whose, text) in texts.chain(commands) {
        let words = text.replace("[]", "");
        let words = words.split(|c: char| !(c.is_alphanumeric() || matches!(c, '_' | '.')));
        for word in words.map(|word| word.trim_end_matches('.')) {
            let file = word.ends_with(".json");
            let key = !file && word.split_once('.').is_some_and(|(root, _)| roots.contains(root));
            let metric = is_ours(word);
            named += usize::from(key || metric);
            if (key && !exists(word)) || (metric && !catalog().iter().any(|desc| desc.name == word)) {
                wrong.push(format!("{whose} names {word}"));
            }
        }
    }
    assert!(named >= 8, "only {named} names were found");
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
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
