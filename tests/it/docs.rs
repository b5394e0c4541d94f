//! The documents: their links lead somewhere, their configurations are accepted, and their lists
//! are complete.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Component, Path, PathBuf};

use memwarden::app;
use memwarden::config::{self, default_file};
use memwarden::model::health::Rule;
use memwarden::model::outlook::{self, Conclusion};
use memwarden::node_view::{self, NodeView};

use crate::pages::{blocks, book, pages, read, root, spans};

/// The anchor that a heading gets, as GitHub and mdBook make it.
fn slug(heading: &str) -> String {
    let kept = heading.trim().to_lowercase();
    let kept = kept.chars().filter(|c| c.is_alphanumeric() || " -_".contains(*c));
    kept.map(|c| if c == ' ' { '-' } else { c }).collect()
}

fn headings(text: &str) -> Vec<String> {
    let (prose, _) = blocks(text);
    let lines = prose.lines().filter(|line| line.starts_with('#'));
    lines.map(|line| line.trim_start_matches('#').trim().to_owned()).collect()
}

/// The targets of a page's links and pictures.
fn targets(text: &str) -> Vec<String> {
    let (prose, _) = blocks(text);
    // A link in code is text.
    let plain: String =
        prose.split("\n\n").map(|text| text.split('`').step_by(2).collect::<String>() + "\n\n").collect();
    let after = plain.split("](").skip(1);
    after.filter_map(|rest| Some(rest.split(')').next()?.trim().to_owned())).collect()
}

/// A path without `..`, from the root.
fn normal(path: &Path) -> PathBuf {
    let mut out = PathBuf::new();
    for part in path.components() {
        match part {
            Component::ParentDir => assert!(out.pop(), "{} leaves the tree", path.display()),
            part => out.push(part),
        }
    }
    out
}

/// promtool runs them: each is in a test of `alerts/tests/`.
#[test]
fn every_query_of_a_page_is_tested() {
    let spaced = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
    let tests = spaced(&crate::shipped::rule_tests());
    let mut queries = 0;
    for page in book() {
        for block in blocks(&read(&page)).1.iter().filter(|block| block.info == "promql") {
            assert!(
                tests.contains(&format!("expr: | {} exp_samples", spaced(&block.text))),
                "{page}: {}",
                block.text
            );
            queries += 1;
        }
    }
    assert!(queries >= 3, "{queries}");
}

#[test]
fn every_relative_link_of_the_documents_resolves() {
    let mut broken = Vec::new();
    let mut seen = 0;
    for page in pages() {
        let folder = Path::new(&page).parent().unwrap().to_owned();
        for target in targets(&read(&page)) {
            if target.contains("://") || target.starts_with("mailto:") {
                continue;
            }
            seen += 1;
            let (file, anchor) = target.split_once('#').unwrap_or((&target, ""));
            let file = if file.is_empty() { PathBuf::from(&page) } else { normal(&folder.join(file)) };
            if !root().join(&file).exists() {
                broken.push(format!("{page}: {target}: there is no {}", file.display()));
            } else if !anchor.is_empty() {
                let known = headings(&read(file.to_str().unwrap()));
                if !known.iter().any(|heading| slug(heading) == anchor) {
                    broken.push(format!("{page}: {target}: no heading has this anchor"));
                }
            }
        }
    }
    assert!(broken.is_empty(), "{}", broken.join("\n"));
    assert!(seen >= 30, "only {seen} links were found");
}

#[test]
fn the_summary_lists_every_page_once() {
    let mut listed: Vec<String> =
        targets(&read("docs/SUMMARY.md")).into_iter().map(|page| format!("docs/{page}")).collect();
    listed.sort();
    let pages: Vec<String> = book().into_iter().filter(|page| page != "docs/SUMMARY.md").collect();
    assert_eq!(listed, pages);
}

#[test]
fn the_readme_is_short() {
    let lines = read("README.md").lines().count();
    assert!(lines <= 150, "README.md has {lines} lines; details belong to docs/");
}

/// The rows of the first table after `marker`, as cells.
fn rows_after(text: &str, marker: &str) -> Vec<Vec<String>> {
    let (_, rest) = text.split_once(marker).unwrap_or_else(|| panic!("{marker} is missing"));
    let table =
        rest.lines().skip_while(|line| !line.starts_with('|')).take_while(|line| line.starts_with('|'));
    let cells = |line: &str| line.trim_matches('|').split(" | ").map(|cell| cell.trim().to_owned()).collect();
    table.skip(2).map(cells).collect()
}

/// The text of each span in backticks of a cell.
fn codes(cell: &str) -> Vec<&str> {
    cell.split('`').skip(1).step_by(2).collect()
}

#[test]
fn the_keys_that_programs_may_rely_on_exist() {
    let conclusion = Conclusion {
        forecast: Some(outlook::Forecast::default()),
        growth: Some(outlook::Growth::default()),
        ..Conclusion::default()
    };
    let json = |value: serde_json::Result<serde_json::Value>| value.unwrap();
    let shapes = [
        ("NodeView", json(serde_json::to_value(NodeView::default()))),
        ("Verdict", json(serde_json::to_value(NodeView::default().verdict))),
        ("Problem", json(serde_json::to_value(node_view::Problem::default()))),
        ("Forecast", json(serde_json::to_value(conclusion.forecast.as_ref()))),
        ("Growth", json(serde_json::to_value(conclusion.growth.as_ref()))),
        ("Conclusion", json(serde_json::to_value(&conclusion))),
    ];
    let page = read("docs/api.md");
    for (name, shape) in shapes {
        let rows = rows_after(&page, &format!("<!-- keys of {name}, checked by a test -->"));
        assert!(rows.len() >= 3, "{name} has {} rows", rows.len());
        for key in rows.iter().flat_map(|row| codes(&row[0])) {
            assert!(shape.get(key).is_some(), "docs/api.md: {name} has no key {key}");
        }
    }
}

#[test]
fn every_rule_of_a_health_is_explained() {
    let rows = rows_after(&read("docs/analyzers.md"), "## Health");
    let explained: BTreeMap<&str, &str> =
        rows.iter().map(|row| (codes(&row[0])[0], row[1].as_str())).collect();
    let known: BTreeMap<&str, &str> =
        Rule::ALL.iter().map(|rule| (rule.label(), rule.health().label())).collect();
    assert_eq!(explained, known);
}

#[test]
fn every_analyzer_is_explained() {
    let rows = rows_after(&read("docs/analyzers.md"), "# Analyzers");
    let explained: BTreeSet<&str> = rows.iter().map(|row| codes(&row[0])[0]).collect();
    let known: BTreeSet<&str> =
        memwarden::analyzers::REGISTRY.iter().map(|registration| registration.name).collect();
    assert_eq!(explained, known);
}

#[test]
fn every_term_of_the_glossary_stands_once_and_in_order() {
    let rows = rows_after(&read("docs/glossary.md"), "# Glossary");
    let terms: Vec<String> = rows.iter().map(|row| row[0].to_lowercase()).collect();
    let mut once = terms.clone();
    once.sort();
    once.dedup();
    assert_eq!(terms, once);
    assert!(terms.len() >= 30, "only {} terms", terms.len());
}

#[test]
fn every_configuration_of_the_documents_is_accepted() {
    let schema = app::schema();
    let mut checked = 0;
    for page in pages() {
        for block in blocks(&read(&page)).1 {
            let mut info = block.info.split_whitespace();
            if info.next() != Some("yaml") {
                continue;
            }
            match info.next() {
                Some("config") => {
                    let read = config::parse_str(&block.text, Path::new(&page), &schema, &[]);
                    assert!(read.is_ok(), "{page}\n{}\n{}", block.text, read.unwrap_err());
                    checked += 1;
                }
                Some("prometheus" | "collector" | "kubernetes") => {
                    let read: Result<serde_yaml::Value, _> = serde_yaml::from_str(&block.text);
                    assert!(read.is_ok(), "{page}\n{}\n{}", block.text, read.unwrap_err());
                }
                other => panic!(
                    "{page}: say after `yaml` whose file it is: config, prometheus, collector, kubernetes; {other:?}"
                ),
            }
        }
    }
    assert!(checked >= 5, "only {checked} configurations were found");
}

#[test]
fn every_configuration_key_of_the_documents_exists() {
    let shipped: serde_yaml::Value = serde_yaml::from_str(&default_file::write(&app::schema())).unwrap();
    let sections: BTreeSet<&str> =
        shipped.as_mapping().unwrap().keys().map(|key| key.as_str().unwrap()).collect();
    // The ends of files whose names begin like sections.
    let files = [".json", ".jsonl", ".md", ".py", ".rs"];
    let mut unknown = Vec::new();
    let mut seen = 0;
    for page in pages() {
        let (prose, _) = blocks(&read(&page));
        for span in spans(&prose) {
            let key: String =
                span.chars().take_while(|c| c.is_ascii_alphanumeric() || "._".contains(*c)).collect();
            let parts: Vec<&str> = key.split('.').collect();
            if parts.len() < 2 || !sections.contains(parts[0]) || files.iter().any(|end| key.ends_with(end)) {
                continue;
            }
            seen += 1;
            let mut here = &shipped;
            for part in &parts {
                // What is below a list is not in the file that is shipped, but in a comment.
                if here.as_sequence().is_some()
                    || here.as_mapping().is_some_and(serde_yaml::Mapping::is_empty)
                {
                    break;
                }
                match here.get(part) {
                    Some(below) => here = below,
                    None => {
                        unknown.push(format!("{page}: {key}"));
                        break;
                    }
                }
            }
        }
    }
    assert!(unknown.is_empty(), "{}", unknown.join("\n"));
    assert!(seen >= 20, "only {seen} keys were found");
}

#[test]
fn every_alert_has_five_lines_in_the_runbook() {
    let rules: serde_yaml::Value = serde_yaml::from_str(&read("alerts/memwarden.rules.yaml")).unwrap();
    let groups = rules["groups"].as_sequence().unwrap().iter();
    let rules = groups.flat_map(|group| group["rules"].as_sequence().unwrap());
    let alerts: BTreeSet<String> =
        rules.filter_map(|rule| Some(rule["alert"].as_str()?.to_owned())).collect();
    let page = read("docs/alerts.md");
    let told: BTreeMap<String, String> = page
        .split("\n### ")
        .skip(1)
        .map(|section| {
            let (title, text) = section.split_once('\n').unwrap();
            (title.trim().to_owned(), text.split("\n## ").next().unwrap().trim().to_owned())
        })
        .collect();
    assert_eq!(told.keys().cloned().collect::<BTreeSet<_>>(), alerts);
    let boards = ["fleet", "node", "runs", "training"]
        .map(|name| (format!("\"{name}\"."), read(&format!("dashboards/memwarden-{name}.json"))));
    for (alert, text) in told {
        let lines: Vec<&str> = text.trim_start_matches("- ").split("\n- ").collect();
        let names: Vec<&str> = lines.iter().filter_map(|line| Some(line.split_once(": ")?.0)).collect();
        assert_eq!(names, ["Means", "Panel", "Command", "Do", "Ends"], "{alert}");
        let (panel, board) = lines[1]["Panel: ".len()..].split_once(" of the dashboard ").unwrap();
        let (_, board) =
            boards.iter().find(|(name, _)| name == board).unwrap_or_else(|| panic!("{alert}: {board}"));
        assert!(board.contains(&format!("\"title\": {panel}")), "{alert}: no panel {panel}");
        assert!(lines[2].contains('`'), "{alert}: {}", lines[2]);
    }
}

#[test]
fn every_file_that_the_architecture_names_exists() {
    let mut missing = Vec::new();
    let mut seen = 0;
    for page in ["ARCHITECTURE.md", "CONTRIBUTING.md"] {
        let (prose, _) = blocks(&read(page));
        for span in spans(&prose) {
            let tops = [
                "src/",
                "crates/",
                "tests/",
                "docs/",
                "config/",
                "clients/",
                "benches/",
                "fuzz/",
                "examples/",
            ];
            if !tops.iter().any(|top| span.starts_with(top)) || span.contains(['*', ' ']) {
                continue;
            }
            // A name in capitals stands for one that the reader chooses.
            let chosen =
                span.split('/').position(|part| part.len() > 1 && part.chars().all(char::is_uppercase));
            let parts = span.split('/').take(chosen.unwrap_or(usize::MAX));
            let path: PathBuf = parts.map(|part| part.split("::").next().unwrap()).collect();
            seen += 1;
            if !root().join(&path).exists() {
                missing.push(format!("{page}: {span}"));
            }
        }
    }
    assert!(missing.is_empty(), "{}", missing.join("\n"));
    assert!(seen >= 40, "only {seen} files were found");
}

/// Every Rust file below a folder.
fn sources(folder: &Path, into: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            sources(&path, into);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            into.push(path);
        }
    }
}

#[test]
fn the_architecture_lists_every_thread_by_its_name() {
    let page = read("ARCHITECTURE.md");
    let section = page.split("## Threads and processes").nth(1).unwrap().split("\n## ").next().unwrap();
    let rows: Vec<&str> = section.lines().filter(|line| line.starts_with('|')).collect();
    let mut files = Vec::new();
    sources(&root().join("src"), &mut files);
    let mut seen = 0;
    for file in files {
        let text = std::fs::read_to_string(&file).unwrap();
        for started in text.split("thread::Builder::new()").skip(1) {
            let rest = started.trim_start();
            // Names that are made up at run time have a row too, which no test can tell.
            let Some(name) = rest.strip_prefix(".name(\"").and_then(|rest| rest.split('"').next()) else {
                continue;
            };
            seen += 1;
            let listed = rows.iter().any(|row| row.contains(&format!("`{name}`")));
            assert!(listed, "{} starts a thread {name}, which ARCHITECTURE.md does not list", file.display());
        }
    }
    assert!(seen >= 15, "only {seen} threads were found");
}

/// Where the part of the reference of metrics begins that is generated.
const GENERATED: &str =
    "<!-- Generated from here on: UPDATE_EXPECT=1 cargo nextest run -E 'test(docs)' -->\n";

/// The rows of `memwarden metrics`, in a table for each group of names.
fn reference() -> String {
    let output = crate::harness::memwarden(&["metrics"]).output().unwrap();
    let table = String::from_utf8(output.stdout).unwrap();
    let head: String = table.split_inclusive('\n').take(2).collect();
    let mut groups: BTreeMap<&str, String> = BTreeMap::new();
    for row in table.split_inclusive('\n').skip(2) {
        let name = row.strip_prefix("| `").unwrap();
        let words = if name.starts_with("memwarden_") { 2 } else { 1 };
        let end = name.match_indices(['_', '`']).nth(words - 1).unwrap().0;
        groups.entry(&name[..end]).or_default().push_str(row);
    }
    let mut out = String::new();
    for (group, rows) in groups {
        let all = if rows.contains(&format!("`{group}_")) { "_*" } else { "" };
        out.push_str(&format!("\n## {group}{all}\n\n{head}{rows}"));
    }
    out
}

#[test]
fn the_reference_of_metrics_is_generated_from_the_declarations() {
    let found = read("docs/metrics.md");
    let (head, _) = found.split_once(GENERATED).unwrap();
    let expected = format!("{head}{GENERATED}{}", reference());
    if std::env::var_os("UPDATE_EXPECT").is_some() {
        std::fs::write(root().join("docs/metrics.md"), &expected).unwrap();
    } else {
        assert!(found == expected, "docs/metrics.md is out of date; run the tests with UPDATE_EXPECT=1");
    }
}

/// The part of docs/gpus.md that is generated.
fn gpu_tables() -> String {
    let mut text = String::from("| fault | severity | where the GPU | then |\n| --- | --- | --- | --- |\n");
    for fault in memwarden::analyzers::hardware::FAULTS {
        let (severity, what) = (fault.severity.label(), fault.what);
        text.push_str(&format!("| `{}` | {severity} | {what} | {} |\n", fault.name, fault.advice));
    }
    text.push_str(
        "\n## Values\n\nA number above the largest that can be true is no value: `memwarden_gpu_field_status` says `implausible`.\n\n\
         | field | what the driver reports | largest | metric |\n| --- | --- | --- | --- |\n",
    );
    for field in memwarden::sources::gpu::field::Field::ALL {
        let (what, most, metric) = field.about();
        let metric = metric.map_or_else(String::new, |metric| format!("`{metric}`"));
        let most = if what.starts_with("No value") { String::new() } else { most.to_string() };
        text.push_str(&format!(
            "| `{}` | {} | {most} | {metric} |\n",
            field.label(),
            what.trim_end_matches('.')
        ));
    }
    text
}

#[test]
fn the_tables_of_gpus_are_generated_from_the_declarations() {
    let path = root().join("docs/gpus.md");
    let found = std::fs::read_to_string(&path).unwrap();
    let (written, _) = found.split_once(GENERATED).unwrap();
    let expected = format!("{written}{GENERATED}\n{}", gpu_tables());
    if std::env::var_os("UPDATE_EXPECT").is_some() {
        std::fs::write(&path, expected).unwrap();
    } else {
        assert!(found == expected, "docs/gpus.md is out of date; run the tests with UPDATE_EXPECT=1");
    }
}
