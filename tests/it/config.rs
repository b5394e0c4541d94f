//! The default file, and one file per mistake with the expected message.

use std::path::{Path, PathBuf};

use memwarden::app;
use memwarden::config::{self, default_file};

fn folder(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(name)
}

/// Compares a shipped file with its expected content; `UPDATE_EXPECT=1` writes it.
fn check_shipped(path: &Path, expected: &str) {
    if std::env::var_os("UPDATE_EXPECT").is_some() {
        std::fs::write(path, expected).unwrap();
    }
    let found = std::fs::read_to_string(path).unwrap_or_default();
    assert!(found == expected, "{} is out of date; run the tests with UPDATE_EXPECT=1", path.display());
}

#[test]
fn the_shipped_default_is_generated_from_the_types() {
    check_shipped(&folder("config/memwarden.yaml"), &default_file::write(&app::schema()));
}

#[test]
fn the_shipped_default_equals_no_configuration() {
    let schema = app::schema();
    let shipped = config::parse(&folder("config/memwarden.yaml"), &schema, &[]).unwrap();
    let silent = config::parse_str("", Path::new("none"), &schema, &[]).unwrap();
    assert_eq!(shipped, silent);
}

#[test]
fn the_preset_for_the_host_alone_watches_nothing_else() {
    let done =
        crate::harness::memwarden(&["check-config"]).arg(folder("config/host-only.yaml")).output().unwrap();
    let text = String::from_utf8(done.stdout).unwrap();
    assert!(done.status.success() && text.contains("When 10 % of host memory is left"), "{text}");
    assert!(
        text.contains("immediately when 5 % of host memory is left;") && !text.contains("limit is left"),
        "{text}"
    );
}

#[test]
fn another_yaml_parser_reads_the_default_too() {
    let text = std::fs::read_to_string(folder("config/memwarden.yaml")).unwrap();
    let value: serde_yaml::Value = serde_yaml::from_str(&text).unwrap();
    assert_eq!(value["sampling"]["interval"], "1s");
}

#[test]
fn every_mistake_gets_its_message() {
    let schema = app::schema();
    let bad = folder("tests/fixtures/config/bad");
    let mut files: Vec<PathBuf> =
        std::fs::read_dir(&bad).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    assert!(files.len() >= 20, "only {} files", files.len());
    let mut wrong = Vec::new();
    for file in files {
        let text = std::fs::read_to_string(&file).unwrap();
        let expected: Vec<&str> = text.lines().filter_map(|line| line.strip_prefix("# refused: ")).collect();
        let shown = match config::parse(&file, &schema, &[]) {
            Ok(_) => String::new(),
            Err(error) => error.to_string(),
        };
        let prefix = format!("{}:", file.display());
        let found: Vec<&str> = shown.lines().map(|line| line.strip_prefix(&prefix).unwrap_or(line)).collect();
        if std::env::var_os("UPDATE_EXPECT").is_some() {
            let kept: String = text
                .lines()
                .filter(|line| !line.starts_with("# refused: "))
                .map(|line| format!("{line}\n"))
                .collect();
            let written: String = found.iter().map(|line| format!("# refused: {line}\n")).collect();
            std::fs::write(&file, kept + &written).unwrap();
        } else if expected.is_empty() || found != expected {
            wrong.push(format!("{}\n  expected {expected:#?}\n  found {found:#?}", file.display()));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

proptest::proptest! {
    #[test]
    fn no_text_panics(text in "[ -~\n]{0,200}") {
        let _ = config::parse_str(&text, Path::new("f"), &app::schema(), &[]);
    }

    #[test]
    fn no_damaged_default_panics(place in 0usize..4000, byte in " -~") {
        let mut text = default_file::write(&app::schema());
        if text.is_char_boundary(place.min(text.len())) {
            text.insert_str(place.min(text.len()), &byte);
        }
        let _ = config::parse_str(&text, Path::new("f"), &app::schema(), &[]);
    }
}
