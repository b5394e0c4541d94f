//! Reports on a terminal: every line fits its width, and nothing is lost by that.

use std::path::Path;

use crate::harness::{memwarden, on_path, program};
use crate::skip::skip;
use crate::tmux::Terminal;

/// Runs a command on a pseudoterminal of so many columns. Returns what it wrote, without color sequences.
fn on_a_terminal(columns: u32, args: &[&str]) -> String {
    let command = memwarden(args);
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    let words = words.map(|word| format!("'{}'", word.to_str().unwrap())).collect::<Vec<_>>().join(" ");
    let output = program("script")
        .args(["-qec", &format!("stty cols {columns} rows 50; exec {words}"), "/dev/null"])
        .env("TERM", "xterm")
        .output()
        .unwrap();
    let text = String::from_utf8(output.stdout).unwrap().replace('\r', "");
    let mut parts = text.split("\x1b[");
    let first = parts.next().unwrap().to_owned();
    parts.fold(first, |text, part| text + part.split_once(|c: char| c.is_ascii_alphabetic()).unwrap().1)
}

/// The symbols of verdicts, and whether there are colors, by the environment.
#[test]
fn verdicts_have_a_symbol_and_a_color_on_a_terminal() {
    if on_path("script").is_none() {
        return skip("verdicts on a pseudoterminal: script (util-linux) is not installed");
    }
    let folder = tempfile::tempdir().unwrap();
    let csv = folder.path().join("run.csv");
    let rows = (0..600).map(|i| format!("{i},{}\n", 1_000_000_000 + i * 1_000_000 + i % 7 * 100_000));
    std::fs::write(&csv, format!("t_s,bytes\n{}", rows.collect::<String>())).unwrap();
    let args = ["replay", csv.to_str().unwrap(), "--limit", "2GiB"];
    let shown = |variables: &[(&str, &str)]| {
        let command = memwarden(&args);
        let words = std::iter::once(command.get_program()).chain(command.get_args());
        let words = words.map(|word| format!("'{}'", word.to_str().unwrap())).collect::<Vec<_>>().join(" ");
        let mut script = program("script");
        script.args(["-qec", &words, "/dev/null"]).env("TERM", "xterm").env_remove("NO_COLOR");
        script.envs(variables.iter().copied());
        String::from_utf8(script.output().unwrap().stdout).unwrap()
    };
    assert!(shown(&[]).contains("  \x1b[33m! leaking since"), "{:?}", shown(&[]));
    for plain in [("NO_COLOR", "1"), ("TERM", "dumb")] {
        let text = shown(&[plain]);
        assert!(text.contains("  ! leaking since") && !text.contains('\x1b'), "{text:?}");
    }
    let piped = memwarden(&args).output().unwrap();
    let piped = String::from_utf8(piped.stdout).unwrap();
    assert!(piped.contains("  leaking since") && !piped.contains('\x1b'), "{piped:?}");
    // The daemon is not there: unknown, in words and in the color of unknown.
    let check = memwarden(&["check", "--url", "http://127.0.0.1:1"]).output().unwrap();
    assert!(String::from_utf8(check.stdout).unwrap().starts_with("unknown: "));
}

fn words(text: &str) -> Vec<&str> {
    text.split_whitespace().collect()
}

#[test]
fn reports_fit_the_terminal() {
    if on_path("script").is_none() {
        return skip("reports on a pseudoterminal: script (util-linux) is not installed");
    }
    let folder = tempfile::tempdir().unwrap();
    let fixture = |name: &str| {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures").join(name);
        path.to_str().unwrap().to_owned()
    };
    let csv = folder.path().join("run.csv");
    let rows = (0..600).map(|i| format!("{i},{}\n", 1_000_000_000 + i * 1_000_000 + i % 7 * 100_000));
    std::fs::write(&csv, format!("t_s,bytes\n{}", rows.collect::<String>())).unwrap();
    let csv = csv.to_str().unwrap();
    let incidents = folder.path().join("incidents");
    let incident = incidents.join("20260101T120000.000Z-train");
    std::fs::create_dir_all(&incident).unwrap();
    let summary = "The kernel killed 3 processes of the workload train, of the user alice, in 2 seconds.";
    let record = serde_json::json!({
        "schema": "memwarden.incident/1", "id": "20260101T120000.000Z-train", "host": "node1", "version": "0",
        "cause": "policy", "target": "train", "mode": "enforce", "config": "ab", "began_unix_seconds": 1.0,
        "ended_unix_seconds": 2.0, "summary": summary, "policy": "", "moves": [], "steps": [], "facts": {},
        "lost_lines": 0,
    });
    std::fs::write(incident.join("incident.json"), record.to_string()).unwrap();
    let incidents = incidents.to_str().unwrap();
    let commands: &[&[&str]] = &[
        &["snapshot", &fixture("snapshots/leak.pickle")],
        &["snapshot", &fixture("snapshots/fragmented.pickle"), "--request-size", "512MiB"],
        &["snapshot", "--compare", &fixture("snapshots/oldest.pickle"), &fixture("snapshots/leak.pickle")],
        &["replay", csv, "--limit", "2GiB"],
        &["incidents", "--folder", incidents],
        &["profile", "--duration", "2s"],
        &["oom", "--duration", "2s"],
    ];
    for command in commands {
        for columns in [60, 80, 200] {
            let text = on_a_terminal(columns, command);
            let widest = text.lines().map(|line| line.chars().count()).max().unwrap();
            assert!(
                widest <= usize::try_from(columns).unwrap(),
                "{command:?} at {columns}: {widest}\n{text}"
            );
            assert!(text.lines().count() > 1 || command[0] == "incidents", "{command:?}: {text}");
        }
    }
    // Prose is wrapped and not cut.
    let listed = on_a_terminal(60, &["incidents", "--folder", incidents]);
    assert!(words(&listed).join(" ").contains(summary), "{listed}");
    let replayed = on_a_terminal(60, &["replay", csv, "--limit", "2GiB"]);
    assert!(words(&replayed).join(" ").contains("slopes in standard errors: floor"), "{replayed}");
}

/// A command that prints a line, waits for a file, prints a line, waits for another file, and fails with 3.
fn waiting(folder: &Path) -> String {
    let wait = |name: &str| format!("until [ -e {}/{name} ]; do sleep 0.1; done", folder.display());
    format!("echo first line; {}; echo second line; {}; exit 3", wait("a"), wait("b"))
}

/// The row below the cursor, which is in the row after `line`.
fn below<'s>(screen: &'s str, line: &str) -> &'s str {
    screen.lines().skip_while(|row| *row != line).nth(2).unwrap_or_default()
}

#[test]
fn run_shows_its_progress_where_the_command_is_silent() {
    let folder = tempfile::tempdir().unwrap();
    let command = memwarden(&[]);
    let binary = command.get_program().to_str().unwrap();
    let Some(terminal) = Terminal::open(&format!(
        "'{binary}' run --no-instrument --set sources.gpu.enabled=false -- sh -c '{}'; echo \"ended with $?\"; sleep 600",
        waiting(folder.path())
    )) else {
        return;
    };
    let screen = terminal.shows(&["first line", "memwarden: 00:00:", "memory ", "(peak "]);
    let row = below(&screen, "first line");
    assert!(row.starts_with("memwarden: 00:00:") && row.contains("iB (peak "), "{screen}");
    assert!(row.contains("no forecast yet") || row.contains("no end predicted"), "{screen}");
    std::fs::write(folder.path().join("a"), "").unwrap();
    // The line is erased at the output, and drawn again below it.
    let screen = terminal.shows(&["first line\nsecond line\n\nmemwarden: 00:00:"]);
    assert_eq!(screen.matches("memwarden").count(), 1, "{screen}");
    std::fs::write(folder.path().join("b"), "").unwrap();
    let screen = terminal.shows(&["second line\n\nmemwarden run: sh -c", "ended with 3"]);
    assert!(!screen.contains("memwarden: 00:"), "{screen}");
}

#[test]
fn run_shows_no_progress_where_standard_error_is_no_terminal() {
    let run = |args: &[&str]| memwarden(&[&["run", "--no-instrument"], args].concat()).output().unwrap();
    let output = run(&["--", "sh", "-c", "echo out; echo err >&2; sleep 4; exit 3"]);
    assert_eq!(output.status.code(), Some(3));
    assert_eq!(String::from_utf8_lossy(&output.stdout), "out\n");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(said.starts_with("err\n\nmemwarden run: sh -c") && !said.contains('\x1b'), "{said:?}");
    if on_path("script").is_some() {
        let sleep = ["--no-instrument", "--", "sleep", "4"];
        for off in ["--no-progress", "--quiet"] {
            let text = on_a_terminal(80, &[&["run", off], &sleep[..]].concat());
            assert!(!text.contains("memwarden: 00:"), "{text:?}");
        }
        // It is drawn after two seconds of silence.
        let drawn = on_a_terminal(80, &["run", "--no-instrument", "--", "sleep", "6"]);
        assert!(drawn.contains("memwarden: 00:00:0"), "{drawn:?}");
    }
}
