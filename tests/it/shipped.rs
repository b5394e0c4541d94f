//! The files users install name only metrics that exist, and are what generates them.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use memwarden::catalog;
use memwarden::model::desc::Kind;
use serde_json::Value;

use crate::harness::{program, tool};

fn root(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(name)
}

/// Every dashboard.
pub(crate) const DASHBOARDS: [&str; 4] = [
    "dashboards/memwarden-node.json",
    "dashboards/memwarden-fleet.json",
    "dashboards/memwarden-runs.json",
    "dashboards/memwarden-training.json",
];
const RULES: [&str; 2] = ["alerts/memwarden.rules.yaml", "alerts/memwarden.recording.rules.yaml"];

/// Every word of a text that looks like one of our metrics, or with a colon like what a rule records of one.
fn named_metrics(text: &str) -> BTreeSet<String> {
    let words = text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_' && c != ':');
    let words = words.map(|word| word.trim_matches(':'));
    let ours = words.filter(|word| crate::tables::is_ours(word) || word.contains(":memwarden_"));
    ours.map(str::to_owned).collect()
}

fn rules(file: &str) -> Vec<serde_yaml::Value> {
    let rules: serde_yaml::Value =
        serde_yaml::from_str(&std::fs::read_to_string(root(file)).unwrap()).unwrap();
    let groups = rules["groups"].as_sequence().unwrap().iter();
    groups.flat_map(|group| group["rules"].as_sequence().unwrap().clone()).collect()
}

/// The names of what the rules record.
fn recorded() -> Vec<String> {
    let rules = RULES.into_iter().flat_map(rules);
    rules.filter_map(|rule| Some(rule["record"].as_str()?.to_owned())).collect()
}

/// What the rules ask.
pub(crate) fn expressions() -> Vec<String> {
    RULES.into_iter().flat_map(rules).map(|rule| rule["expr"].as_str().unwrap().to_owned()).collect()
}

/// All tests of rules, one after the other.
pub(crate) fn rule_tests() -> String {
    let files = std::fs::read_dir(root("alerts/tests")).unwrap();
    files.map(|entry| std::fs::read_to_string(entry.unwrap().path()).unwrap()).collect()
}

/// The panels of a dashboard, with those in rows that are closed.
pub(crate) fn panels(board: &Value) -> Vec<&Value> {
    let mut found = Vec::new();
    for panel in board["panels"].as_array().unwrap() {
        found.push(panel);
        found.extend(panel["panels"].as_array().into_iter().flatten());
    }
    found
}

fn check(file: &str) {
    let recorded = recorded();
    let mut known: BTreeSet<&str> = catalog::all().map(|desc| desc.name).collect();
    let histograms = catalog::all().filter(|desc| desc.kind == Kind::Histogram);
    let parts: Vec<String> = histograms
        .flat_map(|desc| ["bucket", "sum", "count"].map(|part| format!("{}_{part}", desc.name)))
        .collect();
    known.extend(recorded.iter().chain(&parts).map(String::as_str));
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
    for file in DASHBOARDS.into_iter().chain(RULES) {
        check(file);
    }
    for page in crate::pages::pages() {
        check(&page);
    }
    for entry in std::fs::read_dir(root("alerts/tests")).unwrap() {
        let path = entry.unwrap().path();
        check(path.strip_prefix(root("")).unwrap().to_str().unwrap());
    }
}

#[test]
fn the_dashboards_are_what_their_script_writes() {
    let output = program("python3").arg(root("dashboards/build.py")).arg("--check").output();
    match output {
        Ok(output) => assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr)),
        Err(error) => crate::skip::skip(&format!("python3 cannot be run: {error}")),
    }
}

#[test]
fn the_dashboards_can_be_provisioned() {
    for file in DASHBOARDS {
        let board: Value = serde_json::from_str(&std::fs::read_to_string(root(file)).unwrap()).unwrap();
        assert!(board.get("id").is_none() && board.get("__inputs").is_none());
        assert_eq!(format!("dashboards/{}.json", board["uid"].as_str().unwrap()), file);
        let mut ids = BTreeSet::new();
        let mut taken = BTreeSet::new();
        for panel in panels(&board) {
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
        assert_eq!(board["links"][0]["tags"][0], "memwarden", "{file} links to the others");
        assert_eq!(board["tags"][0], "memwarden");
    }
}

#[test]
fn the_dashboards_are_few_screens_that_lead_to_each_other() {
    let mut count = 0;
    for file in DASHBOARDS {
        let board: Value = serde_json::from_str(&std::fs::read_to_string(root(file)).unwrap()).unwrap();
        let (rows, shown): (Vec<_>, Vec<_>) =
            panels(&board).into_iter().partition(|panel| panel["type"] == "row");
        count += shown.len();
        assert!(rows.iter().skip(2).all(|row| row["collapsed"] == true), "{file}");
        for panel in &shown {
            let said = panel["fieldConfig"]["defaults"]["noValue"].as_str().unwrap();
            assert!(said.ends_with('.') && said.starts_with(char::is_uppercase), "{said}");
        }
        let text = serde_json::to_string(&shown).unwrap();
        let next = ["node", "runs", "training"].map(|board| format!("/d/memwarden-{board}?var-"));
        assert!(next.iter().any(|link| text.contains(link)), "{file} links to no other");
    }
    assert!(count <= 80, "{count} panels");
}

/// An owner's alert never has the group of the operators; each group says its interval, without which it is the server's.
#[test]
fn the_alerts_are_in_three_groups() {
    let text = std::fs::read_to_string(root("alerts/memwarden.rules.yaml")).unwrap();
    let rules: serde_yaml::Value = serde_yaml::from_str(&text).unwrap();
    let mut names = Vec::new();
    for group in rules["groups"].as_sequence().unwrap() {
        assert_eq!(group["interval"], "15s");
        let name = group["name"].as_str().unwrap();
        names.push(name);
        for rule in group["rules"].as_sequence().unwrap() {
            assert_eq!(rule.get("record").is_some(), name == "memwarden-recorded", "{rule:?}");
            let Some(audience) = rule["labels"]["audience"].as_str() else { continue };
            assert_eq!(audience == "operators", name != "memwarden-jobs", "{rule:?}");
        }
    }
    assert_eq!(names, ["memwarden-recorded", "memwarden-node", "memwarden-jobs", "memwarden-itself"]);
}

#[test]
fn every_alert_is_complete() {
    let tests = rule_tests();
    let mut count = 0;
    for rule in rules("alerts/memwarden.rules.yaml") {
        let Some(name) = rule["alert"].as_str() else { continue };
        count += 1;
        let severity = rule["labels"]["severity"].as_str().unwrap();
        assert!(["critical", "warning", "info"].contains(&severity), "{name}: {severity}");
        let summary = rule["annotations"]["summary"].as_str().unwrap();
        assert!(
            summary.ends_with('.') && summary.contains("{{ $labels."),
            "{name} names what it is about: {summary}"
        );
        let audience = rule["labels"]["audience"].as_str().unwrap();
        assert!(audience.contains("operators") || audience.contains("owners"), "{name}: {audience}");
        assert_eq!(rule["keep_firing_for"], "1m", "{name}");
        assert!(rule["annotations"]["description"].as_str().unwrap().contains("{{"), "{name}");
        assert!(tests.contains(&format!("alertname: {name}\n")), "{name} has no test");
        // `every_alert_has_five_lines_in_the_runbook` checks that the section exists.
        let section = format!("file:///usr/share/doc/memwarden/docs/alerts.md#{}", name.to_lowercase());
        assert_eq!(rule["annotations"]["runbook_url"], section.as_str(), "{name}");
    }
    // More of them are not read.
    assert!((15..=30).contains(&count), "{count} alerts");
}

/// Alerts that are about no job, or no run: `TrainingStalled` is about workloads without a run.
const ABOUT_NO_JOB: [&str; 4] = ["GpuDriverUnavailable", "KernelFault", "NodeDegraded", "TrainingStalled"];

#[test]
fn every_alert_about_a_job_has_its_owner() {
    const FILE: &str = "alerts/tests/owned.yaml";
    let of_memwarden = |name: &str| {
        name.starts_with("Memwarden")
            || name.starts_with("ProtectionHost")
            || name.starts_with("ProtectionGuard")
    };
    let about_jobs: BTreeSet<String> =
        alerts().into_iter().filter(|name| !of_memwarden(name) && !ABOUT_NO_JOB.contains(&&**name)).collect();
    let tests: serde_yaml::Value =
        serde_yaml::from_str(&std::fs::read_to_string(root(FILE)).unwrap()).unwrap();
    let samples = tests["tests"].as_sequence().unwrap().iter().flat_map(|test| {
        test["promql_expr_test"].as_sequence().unwrap().iter().flat_map(|asked| {
            let expression = asked["expr"].as_str().unwrap();
            let owned = r#"ALERTS{alertstate="firing", user="alice", run="llama-7", workload="train"}"#;
            assert!(expression.contains(owned), "{expression}");
            asked["exp_samples"].as_sequence().unwrap().clone()
        })
    });
    let owned: BTreeSet<String> = samples
        .map(|sample| sample["labels"].as_str().unwrap().split('"').nth(1).unwrap().to_owned())
        .collect();
    assert_eq!(owned, about_jobs);
    let Some(promtool) = tool("promtool") else { return };
    let done = program(promtool).args(["test", "rules"]).arg(root(FILE)).output().unwrap();
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
}

#[test]
fn every_recorded_series_is_tested() {
    let tests = rule_tests();
    for name in recorded() {
        assert!(tests.contains(&format!("expr: {name}\n")), "{name} has no test");
    }
}

#[test]
fn one_nodes_files_need_no_recording_rules_file() {
    let fleet: Vec<String> = rules("alerts/memwarden.recording.rules.yaml")
        .iter()
        .map(|rule| rule["record"].as_str().unwrap().to_owned())
        .collect();
    let of_one_node = DASHBOARDS.into_iter().filter(|file| !file.contains("fleet"));
    for file in of_one_node.chain(["alerts/memwarden.rules.yaml"]) {
        let text = std::fs::read_to_string(root(file)).unwrap();
        assert!(!fleet.iter().any(|name| text.contains(name)), "{file}");
    }
}

/// The names of the alerts.
fn alerts() -> BTreeSet<String> {
    let rules = rules("alerts/memwarden.rules.yaml");
    rules.iter().filter_map(|rule| Some(rule["alert"].as_str()?.to_owned())).collect()
}

#[test]
fn the_alertmanager_example_inhibits_alerts_that_exist() {
    const FILE: &str = "alerts/alertmanager.example.yaml";
    let known = alerts();
    let config: serde_yaml::Value =
        serde_yaml::from_str(&std::fs::read_to_string(root(FILE)).unwrap()).unwrap();
    for template in config["templates"].as_sequence().unwrap() {
        assert!(root("alerts").join(template.as_str().unwrap()).exists());
        for list in ["Cargo.toml", "deploy/packages"] {
            assert!(std::fs::read_to_string(root(list)).unwrap().contains("alerts/*.tmpl"), "{list}");
        }
    }
    let inhibit = config["inhibit_rules"].as_sequence().unwrap();
    let matchers = inhibit.iter().flat_map(|rule| {
        ["source_matchers", "target_matchers"].map(|side| rule[side].as_sequence().unwrap().clone())
    });
    let mut named = BTreeSet::new();
    for matcher in matchers.flatten() {
        let matcher = matcher.as_str().unwrap().to_owned();
        let Some(names) = matcher.strip_prefix("alertname") else { continue };
        named.extend(names.trim_start_matches(['=', '~']).trim_matches('"').split('|').map(str::to_owned));
    }
    for needed in ["GpuHung", "MemwardenDegraded", "TrainingStalled"] {
        assert!(named.contains(needed), "{needed}");
    }
    let unknown: Vec<_> = named.difference(&known).collect();
    assert!(unknown.is_empty(), "{unknown:?}");
    let Some(amtool) = tool("amtool") else { return };
    let done = program(amtool).arg("check-config").arg(root(FILE)).output().unwrap();
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
}

/// Every Rust file of the tree, as its module path and text.
fn modules(folder: &Path, prefix: &str, into: &mut Vec<(String, String)>) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let stem = path.file_stem().unwrap().to_str().unwrap();
        let name = if stem == "mod" { prefix.to_owned() } else { format!("{prefix}::{stem}") };
        if path.is_dir() {
            modules(&path, &name, into);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            into.push((name, std::fs::read_to_string(&path).unwrap()));
        }
    }
}

#[test]
fn every_test_that_the_security_page_names_exists() {
    let page = std::fs::read_to_string(root("docs/security.md")).unwrap();
    let mut all = Vec::new();
    modules(&root("src"), "", &mut all);
    modules(&root("tests/it"), "", &mut all);
    for entry in std::fs::read_dir(root("crates")).unwrap().map(Result::unwrap) {
        let name = entry.file_name().into_string().unwrap();
        modules(&entry.path().join("src"), &format!("::{name}"), &mut all);
    }
    let quoted = page.split('`').skip(1).step_by(2);
    let is_path = |text: &&str| {
        text.contains("::") && text.chars().all(|c| c.is_ascii_alphanumeric() || "_:".contains(c))
    };
    let named: BTreeSet<&str> = quoted.filter(is_path).collect();
    assert!(named.len() > 1, "the page names tests");
    assert!(page.split_whitespace().count() <= 2_500, "nobody reads a long page");
    for path in &named {
        let (module, test) = path.rsplit_once("::").unwrap();
        // Unit tests are in a file of their own or in a module at the end of the file they test.
        let homes = [format!("::{module}"), format!("::{}", module.trim_end_matches("::tests"))];
        let function = format!("fn {test}(");
        let exists = all.iter().any(|(name, text)| homes.contains(name) && text.contains(&function));
        assert!(exists, "docs/security.md names {path}, which does not exist");
    }
    for (name, text) in all.iter().filter(|(name, _)| name.starts_with("::attacks::")) {
        for test in text.split("#[test]\n").skip(1) {
            let test = test.split("fn ").nth(1).unwrap().split('(').next().unwrap();
            let path = format!("{}::{test}", name.trim_start_matches(':'));
            assert!(named.contains(path.as_str()), "docs/security.md does not name {path}");
        }
    }
}
