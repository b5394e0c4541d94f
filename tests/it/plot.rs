//! `memwarden plot` as a user runs it.

use std::path::Path;

use crate::harness::{memwarden, program, python_with};
use crate::skip::skip;

struct Ran {
    out: String,
    err: String,
    good: bool,
}

fn plot(folder: &Path, args: &[&str]) -> Ran {
    let mut command = memwarden(&["plot"]);
    let done = command.args(args).current_dir(folder).output().unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    Ran { out: text(done.stdout), err: text(done.stderr), good: done.status.success() }
}

fn folder(files: &[(&str, &[u8])]) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    for (name, bytes) in files {
        std::fs::write(folder.path().join(name), bytes).unwrap();
    }
    folder
}

const CSV: &[u8] = b"t_s,bytes\n0,1073741824\n60,2147483648\n120,1610612736\n";

#[test]
fn a_recording_becomes_a_chart_on_standard_output_or_in_a_file() {
    let folder = folder(&[("memory.csv", CSV)]);
    let ran = plot(folder.path(), &["memory.csv", "--limit", "4GiB"]);
    assert!(ran.good && ran.err.is_empty(), "{}", ran.err);
    let svg = ran.out;
    for part in ["role=\"img\"", "<title>memory.csv</title>", "peak 2 GiB", ">limit 4 GiB</text>", "1 min"] {
        assert!(svg.contains(part), "{part} is not in {svg}");
    }
    let again = plot(folder.path(), &["memory.csv", "--limit", "4GiB", "--output", "memory.svg"]);
    assert!(again.good && again.out.is_empty(), "{}{}", again.out, again.err);
    let written = std::fs::read_to_string(folder.path().join("memory.svg")).unwrap();
    assert_eq!(written, svg, "the same input gives the same bytes");
}

#[test]
fn a_picture_can_be_png() {
    let folder = folder(&[("memory.csv", CSV)]);
    let ran = plot(folder.path(), &["memory.csv", "-o", "out.png", "--width", "640", "--theme", "dark"]);
    assert!(ran.good, "{}", ran.err);
    let png = std::fs::read(folder.path().join("out.png")).unwrap();
    assert_eq!(&png[..8], b"\x89PNG\r\n\x1a\n");
    assert_eq!(png[16..24], [0, 0, 2, 128, 0, 0, 2, 88], "640 by 600");
}

#[test]
fn logs_and_reports_are_found_by_their_content() {
    let log = "2025-06-24 11:27:22,5 - INFO - Virtual Memory: 2.00 GB | Process Memory: 1.00 GB\n\
               2025-06-24 11:27:23,5 - INFO - Virtual Memory: 3.00 GB | Process Memory: 1.00 GB\n";
    let report = br#"{"schema": "memwarden.report/1", "title": "oom", "series": [
        {"name": "GPU 0", "unit": "bytes", "points": [[0, 1e9], [10, 2e9]], "limit_bytes": 4e9}],
        "forecast": {"t_s": 10, "tte": {"p10": 10, "p50": 20, "p90": 30}, "limit_bytes": 4e9}}"#;
    let folder = folder(&[("host.log", log.as_bytes()), ("oom.json", report), ("memory.csv", CSV)]);
    let svg = plot(folder.path(), &["host.log", "-o", "-"]).out;
    assert!(
        svg.contains("logged by MindRLHF host monitor") && svg.contains("host used (peak 3 GiB)"),
        "{svg}"
    );
    let svg = plot(folder.path(), &["oom.json", "-o", "-"]).out;
    assert!(svg.contains("limit reached in 20 s (p10 10 s, p90 30 s)"), "{svg}");
    let svg = plot(folder.path(), &["host.log", "memory.csv", "oom.json", "-o", "-"]).out;
    for panel in ["host.log", "memory.csv", "oom"] {
        assert!(svg.contains(&format!(">{panel}</text>")), "{panel} is not in {svg}");
    }
}

#[test]
fn what_is_wrong_names_the_file_and_the_line() {
    let folder = folder(&[
        ("empty.csv", b""),
        ("bare.csv", b"t_s,bytes\n"),
        ("bad.csv", b"t_s,bytes\n1,2\n3,many\n"),
        ("latin.csv", b"t_s,bytes\n1,2\n3,\xe9\n"),
        ("cut.json", b"{\"schema\": 1,\n\"series\": [{\"points\": [[0"),
        ("other.txt", b"nothing that is known\n"),
        ("memory.csv", CSV),
    ]);
    for (args, expected) in [
        (&["empty.csv"][..], "memwarden: empty.csv: the file is empty\n"),
        (&["bare.csv"], "memwarden: bare.csv: there are no rows after the header\n"),
        (&["bad.csv"], "memwarden: bad.csv: line 3, column bytes: \"many\" is not a number\n"),
        (&["latin.csv"], "memwarden: latin.csv: line 3: not UTF-8 text\n"),
        (&["cut.json"], "memwarden: cut.json: EOF while parsing a list at line 2 column 25\n"),
        (
            &["memory.csv", "-o", "memory.jpg"],
            "memwarden: memory.jpg: the name of a picture ends in .svg or .png\n",
        ),
        (
            &["memory.csv", "--columns", "rss"],
            "memwarden: memory.csv: there is no column \"rss\"; there are bytes\n",
        ),
    ] {
        let ran = plot(folder.path(), args);
        assert!(!ran.good, "{args:?} succeeded");
        assert_eq!(ran.err, expected);
    }
    let ran = plot(folder.path(), &["other.txt"]);
    assert!(ran.err.starts_with("memwarden: other.txt: no line is of a known form"), "{}", ran.err);
    let ran = plot(folder.path(), &["missing.csv"]);
    assert!(ran.err.starts_with("memwarden: cannot read missing.csv: No such file"), "{}", ran.err);
    let ran = plot(folder.path(), &["memory.csv", "--limit", "80"]);
    assert!(ran.err.contains("`80` has no unit"), "{}", ran.err);
    assert!(!folder.path().join("empty.svg").exists());
}

#[test]
fn every_recorded_trace_is_drawn() {
    let traces = Path::new(env!("CARGO_MANIFEST_DIR")).join("../shared/data/traces");
    let Ok(entries) = std::fs::read_dir(&traces) else {
        return skip("the recorded traces are not here: no trace was drawn");
    };
    let mut drawn = 0;
    for entry in entries {
        let file = entry.unwrap().path();
        if file.file_name().is_some_and(|name| name == "labels.csv") {
            continue;
        }
        let ran = plot(&traces, &[file.to_str().unwrap(), "-o", "-"]);
        assert!(ran.good && ran.out.contains("peak"), "{}: {}", file.display(), ran.err);
        drawn += 1;
    }
    assert!(drawn > 0, "{} is empty", traces.display());
}

#[test]
fn a_report_is_known_wherever_its_schema_stands() {
    let report = |schema: &str| {
        let title = "x".repeat(10_000);
        format!(
            "{{\"about\": \"{title}\", \"series\": [{{\"name\": \"GPU 0\", \"unit\": \"bytes\", \
             \"points\": [[0, 1e9], [10, 2e9]]}}], \"schema\" : \"{schema}\", \"title\": \"oom\"}}"
        )
    };
    let (ours, other) = (report("memwarden.report/1"), report("somebody.else/1"));
    let folder = folder(&[("ours.json", ours.as_bytes()), ("other.json", other.as_bytes())]);
    let ran = plot(folder.path(), &["ours.json", "-o", "-"]);
    assert!(ran.good && ran.out.contains("GPU 0"), "{}", ran.err);
    assert!(!plot(folder.path(), &["other.json", "-o", "-"]).good);
}

#[test]
fn the_outlines_that_are_built_in_are_those_of_the_font() {
    let Some(python) = python_with("fontTools") else { return };
    let tree = Path::new(env!("CARGO_MANIFEST_DIR"));
    let read = program(python).arg(tree.join("tests/outlines.py")).output().unwrap();
    assert!(read.status.success(), "{}", String::from_utf8_lossy(&read.stderr));
    let built_in = std::fs::read(tree.join("crates/plot/src/font/DejaVuSans.outlines")).unwrap();
    assert!(read.stdout == built_in, "tests/outlines.py --write writes them anew");
}
