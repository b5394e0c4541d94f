//! The files users install name only metrics that exist, and are what generates them.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use memwarden::catalog;
use serde_json::Value;

use crate::harness::program;

fn root(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(name)
}

/// Every word of a text that looks like one of our metrics.
fn named_metrics(text: &str) -> BTreeSet<String> {
    let words = text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
    words.filter(|word| word.starts_with("memwarden_")).map(str::to_owned).collect()
}

fn check(file: &str) {
    let known: BTreeSet<&str> = catalog::all().map(|desc| desc.name).collect();
    let text = std::fs::read_to_string(root(file)).unwrap();
    let named = named_metrics(&text);
    // A name that ends in an underscore stands for all that begin so.
    let exists = |name: &str| match name.strip_suffix('_') {
        Some(_) => known.iter().any(|metric| metric.starts_with(name)),
        None => known.contains(name),
    };
    let unknown: Vec<&String> = named.iter().filter(|name| !exists(name)).collect();
    assert!(unknown.is_empty(), "{file} names metrics that do not exist: {unknown:?}");
}

#[test]
fn every_metric_named_in_a_shipped_file_exists() {
    for file in
        ["dashboards/memwarden-node.json", "alerts/memwarden.rules.yaml", "README.md", "ARCHITECTURE.md"]
    {
        check(file);
    }
    for entry in std::fs::read_dir(root("alerts/tests")).unwrap() {
        let path = entry.unwrap().path();
        check(path.strip_prefix(root("")).unwrap().to_str().unwrap());
    }
}

#[test]
fn the_dashboard_is_what_its_script_writes() {
    let output = program("python3").arg(root("dashboards/build.py")).arg("--check").output();
    match output {
        Ok(output) => assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr)),
        Err(error) => crate::skip::skip(&format!("python3 cannot be run: {error}")),
    }
}

#[test]
fn the_dashboard_can_be_provisioned() {
    let board: Value =
        serde_json::from_str(&std::fs::read_to_string(root("dashboards/memwarden-node.json")).unwrap())
            .unwrap();
    assert!(board.get("id").is_none() && board.get("__inputs").is_none());
    assert_eq!(board["uid"], "memwarden-node");
    let panels = board["panels"].as_array().unwrap();
    let mut ids = BTreeSet::new();
    let mut taken = BTreeSet::new();
    for panel in panels {
        assert!(ids.insert(panel["id"].as_u64().unwrap()), "{panel}");
        let place = |name: &str| panel["gridPos"][name].as_u64().unwrap();
        assert!(place("x") + place("w") <= 24, "{panel}");
        for x in place("x")..place("x") + place("w") {
            for y in place("y")..place("y") + place("h") {
                assert!(taken.insert((x, y)), "{} lies on another panel", panel["title"]);
            }
        }
        for target in panel["targets"].as_array().into_iter().flatten() {
            assert_eq!(target["datasource"]["uid"], "${datasource}");
        }
    }
}

#[test]
fn every_alert_is_complete() {
    let text = std::fs::read_to_string(root("alerts/memwarden.rules.yaml")).unwrap();
    let rules: serde_yaml::Value = serde_yaml::from_str(&text).unwrap();
    let tests: String = std::fs::read_dir(root("alerts/tests"))
        .unwrap()
        .map(|entry| std::fs::read_to_string(entry.unwrap().path()).unwrap())
        .collect();
    let mut count = 0;
    for rule in
        rules["groups"].as_sequence().unwrap().iter().flat_map(|group| group["rules"].as_sequence().unwrap())
    {
        let name = rule["alert"].as_str().unwrap();
        count += 1;
        let severity = rule["labels"]["severity"].as_str().unwrap();
        assert!(["critical", "warning", "info"].contains(&severity), "{name}: {severity}");
        let summary = rule["annotations"]["summary"].as_str().unwrap();
        assert!(summary.ends_with('.') && !summary.contains("{{"), "{name}: {summary}");
        assert!(rule["annotations"]["description"].as_str().unwrap().contains("{{"), "{name}");
        assert!(tests.contains(&format!("alertname: {name}\n")), "{name} has no test");
    }
    assert!(count >= 15, "only {count} alerts");
}
