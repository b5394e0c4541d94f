//! The texts of `tests/kernel`, each with what it tells.

use std::fmt::Write as _;
use std::path::Path;

use super::*;
use crate::formats::kernel::record;

/// One text: its name, its records as the kernel writes them, and what they tell.
struct Text {
    name: String,
    records: Vec<String>,
    expected: Vec<String>,
}

fn texts(path: &Path) -> Vec<Text> {
    let text = std::fs::read_to_string(path).unwrap();
    let mut all: Vec<Text> = Vec::new();
    for line in text.lines() {
        if let Some(name) = line.strip_prefix("## ") {
            all.push(Text { name: name.to_owned(), records: Vec::new(), expected: Vec::new() });
        } else if let Some(last) = all.last_mut() {
            if let Some(event) = line.strip_prefix("= ") {
                last.expected.push(event.to_owned());
            } else if let Some((head, message)) = line.split_once(' ') {
                // `LEVEL+FLAG@SECOND`.
                let (head, second) = head.split_once('@').unwrap_or((head, "1"));
                let (level, flag) = head.split_once('+').unwrap_or((head, "-"));
                let number = last.records.len();
                last.records.push(format!("{level},{number},{second}{number:06},{flag};{message}"));
            }
        }
    }
    all
}

/// The event in the words of the texts.
fn shown(event: &Event) -> String {
    match event {
        Event::Kill(kill) => {
            let mut text = format!("kill {}", kill.scope);
            text.push_str(if kill.is_scope_stated { "" } else { "?" });
            let mut add = |key: &str, value: Option<String>| {
                if let Some(value) = value {
                    let _ = write!(text, " {key}={value}");
                }
            };
            let path = |path: &String| Some(path.clone()).filter(|path| !path.is_empty());
            add("pid", kill.pid.map(|pid| pid.to_string()));
            add("chosen", kill.chosen.map(|pid| pid.to_string()));
            add("comm", Some(kill.comm.replace('\\', "\\x5c").replace('\t', "\\x09")));
            add("uid", kill.uid.map(|uid| uid.to_string()));
            add("in", path(&kill.cgroup));
            add("limit", path(&kill.limit_cgroup));
            text
        }
        Event::Xid { pci, xid, severity } if *severity != crate::model::xid::severity(*xid) => {
            format!("xid {pci} {xid} {}", severity.label())
        }
        Event::Xid { pci, xid, .. } => format!("xid {pci} {xid}"),
        Event::MemoryError { pid } => format!("memory_error {pid}"),
        Event::HugePages { pid } => format!("huge_pages {pid}"),
        Event::ForkRejected { cgroup } => format!("fork_rejected {cgroup}"),
        Event::Warning(warning) => format!("warning {warning}"),
    }
}

#[test]
fn every_text_tells_what_happened() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/kernel");
    let mut wrong = String::new();
    let (mut count, mut failed) = (0, 0);
    let mut files: Vec<_> = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    for text in files
        .iter()
        .filter(|path| path.extension().is_some_and(|kind| kind == "txt"))
        .flat_map(|path| texts(path))
    {
        let mut reports = Reports::default();
        let told = text.records.iter().filter_map(|bytes| {
            let record = record(bytes.as_bytes()).unwrap_or_else(|| panic!("{}: {bytes}", text.name));
            reports.read(&record)
        });
        let told: Vec<String> = told.map(|event| shown(&event)).collect();
        count += 1;
        if told != text.expected {
            failed += 1;
            let _ = writeln!(wrong, "{}\n  told  {told:#?}\n  truth {:#?}", text.name, text.expected);
        }
    }
    assert!(count >= 250, "{count} texts");
    assert!(failed == 0, "{failed} of {count} are wrong:\n{wrong}");
}

proptest::proptest! {
    #[test]
    fn never_panics(lines in proptest::collection::vec(("(Out of memory: Killed process|Memory cgroup out of memory: Killed process|oom-kill:constraint=CONSTRAINT_MEMCG,|Task in |Tasks in )", "\\PC{0,30}", "[-c+]"), 0..20)) {
        let mut reports = Reports::default();
        for (number, (head, tail, flag)) in lines.iter().enumerate() {
            let bytes = format!("6,{number},{number},{flag};{head} {tail}");
            record(bytes.as_bytes()).and_then(|record| reports.read(&record));
        }
    }
}
