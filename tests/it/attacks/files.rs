//! Files that a user names: links, FIFOs, devices, terminals; and text with control characters.

use std::fs::Permissions;
use std::os::unix::fs::{PermissionsExt as _, chown, symlink};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::Duration;

use serde_json::json;

use super::people::{ALICE, MALLORY, as_user};
use super::sampler::Fuse;
use crate::harness::{Daemon, lab, memwarden, wait_for};
use crate::protection::job::{Job, witness};
use crate::protection::room::Room;
use crate::skip::skip;
use crate::training_job::{hello, say, step};

const SOON: Duration = Duration::from_secs(30);
const CSV: &str = "t_s,bytes\n0,1073741824\n60,2147483648\n120,1610612736\n";

/// A folder that Alice owns; nothing without root.
fn alices() -> Option<tempfile::TempDir> {
    if !rustix::process::geteuid().is_root() {
        skip("files of other users need root");
        return None;
    }
    let folder = tempfile::tempdir().unwrap();
    std::fs::set_permissions(folder.path(), Permissions::from_mode(0o755)).unwrap();
    chown(folder.path(), Some(ALICE), Some(ALICE)).unwrap();
    Some(folder)
}

fn fifo(path: &Path) {
    rustix::fs::mknodat(rustix::fs::CWD, path, rustix::fs::FileType::Fifo, 0o666.into(), 0).unwrap();
}

fn snapshot() -> Vec<u8> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/snapshots/leak.pickle");
    std::fs::read(path).unwrap()
}

/// Runs a command, which must exit without help.
#[track_caller]
fn run(folder: &Path, args: &[&str]) -> Output {
    wait(memwarden(args).current_dir(folder), args)
}

#[track_caller]
fn wait(command: &mut Command, args: &[&str]) -> Output {
    let mut child = command.spawn().unwrap();
    // The output of these commands fits into their pipes.
    let ended = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        wait_for(&format!("the end of {args:?}"), SOON, || child.try_wait().unwrap())
    }));
    if ended.is_err() {
        child.kill().unwrap();
        panic!("{args:?} hangs");
    }
    child.wait_with_output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[test]
fn a_snapshot_is_neither_read_through_a_link_nor_waited_for() {
    let Some(folder) = alices() else { return };
    let secret = folder.path().join("secret");
    std::fs::write(&secret, snapshot()).unwrap();
    std::fs::set_permissions(&secret, Permissions::from_mode(0o600)).unwrap();
    let link = folder.path().join("rank0.pickle");
    symlink(&secret, &link).unwrap();
    let second = folder.path().join("rank1.pickle");
    std::fs::hard_link(&secret, &second).unwrap();
    let pipe = folder.path().join("rank2.pickle");
    fifo(&pipe);
    let digest = |file: &Path, owner: Option<u32>| {
        let request = json!({"file": file, "owner": owner, "max_memory": 1_000_000_000, "proc": "/proc"});
        let args = ["snapshot-digest", &request.to_string()];
        wait(lab().args(args).current_dir(folder.path()), &args)
    };
    for (path, why) in [(&link, "symbolic link"), (&second, "private file"), (&pipe, "not a regular file")] {
        // As the daemon starts it, if the file was replaced since the check.
        let done = digest(path, None);
        let output: serde_json::Value = serde_json::from_slice(&done.stdout).unwrap();
        assert!(
            output["Err"].as_str().is_some_and(|text| text.contains(why)),
            "{}: {output}",
            path.display()
        );
    }
    chown(&second, Some(ALICE), None).unwrap();
    std::fs::remove_file(&secret).unwrap();
    let done = digest(&second, None);
    assert!(text(&done.stdout).contains("\"Ok\""), "her own is read: {}", text(&done.stdout));
    for (owner, output) in [(ALICE, "\"Ok\""), (ALICE + 1, "belongs to another user")] {
        // The file belonged to another user when the daemon checked it, and was replaced since.
        let done = digest(&second, Some(owner));
        assert!(text(&done.stdout).contains(output), "{}", text(&done.stdout));
    }
}

#[test]
fn performance_logs_are_not_written_through_a_linked_folder() {
    let Some(folder) = alices() else { return };
    let victim = tempfile::tempdir().unwrap();
    let logs = folder.path().join("logs");
    std::fs::create_dir(&logs).unwrap();
    chown(&logs, Some(ALICE), None).unwrap();
    symlink(victim.path(), logs.join("our_run")).unwrap();
    let config = victim.path().with_extension("yaml");
    let settings = json!({
        "sampling": {"interval": "200ms"},
        "perf_logs": {"folder": logs, "every_steps": 1},
        "sources": {"gpu": {"enabled": false}, "workload": {"trees": [format!("{} our/run", std::process::id())]}},
    });
    std::fs::write(&config, settings.to_string()).unwrap();
    let daemon = Daemon::start(&["--config.file", config.to_str().unwrap()]);
    let mut job = wait_for("the job socket", SOON, || UnixStream::connect(daemon.job_socket()).ok());
    assert!(say(&mut job, &[hello(0)]));
    let mut number = 0;
    wait_for("the refusal in the log", SOON, || {
        number += 1;
        say(&mut job, &step(number, 0.25));
        std::thread::sleep(Duration::from_millis(50));
        let output = daemon.logged(&["Performance logs cannot be written", "symbolic link"]);
        (!output.is_empty() || std::fs::read_dir(victim.path()).unwrap().count() > 0).then_some(())
    });
    assert_eq!(std::fs::read_dir(victim.path()).unwrap().count(), 0, "written through the link");
    std::fs::remove_file(&config).unwrap();
}

#[test]
fn a_log_is_not_followed_through_a_users_link() {
    let Some(folder) = alices() else { return };
    let secret = tempfile::tempdir().unwrap();
    let line = "iter 300: loss 2.4512, time 135.22ms, mfu 37.29%\n";
    let private = secret.path().join("private");
    std::fs::write(&private, line).unwrap();
    std::fs::set_permissions(&private, Permissions::from_mode(0o600)).unwrap();
    let at = |name: &str| folder.path().join(name);
    symlink(&private, at("link.log")).unwrap();
    symlink(secret.path(), at("folder")).unwrap();
    std::fs::hard_link(&private, at("hard.log")).unwrap();
    symlink("/dev/kmsg", at("kmsg.log")).unwrap();
    symlink("/dev/ptmx", at("terminal.log")).unwrap();
    fifo(&at("pipe.log"));
    std::fs::write(at("good.log"), "").unwrap();
    // A private file of Alice that she put there herself is read.
    std::fs::set_permissions(at("good.log"), Permissions::from_mode(0o600)).unwrap();
    chown(at("good.log"), Some(ALICE), None).unwrap();
    let names = [
        "link.log",
        "folder/private",
        "hard.log",
        "kmsg.log",
        "terminal.log",
        "pipe.log",
        "good.log",
        "li*.log",
    ];
    let files: Vec<_> = names.iter().map(|name| json!({"path": at(name), "workload": name})).collect();
    let config = secret.path().join("memwarden.yaml");
    let settings = json!({
        "sampling": {"interval": "200ms"},
        "sources": {"gpu": {"enabled": false}, "logs": {"interval": "100ms", "files": files}},
    });
    std::fs::write(&config, settings.to_string()).unwrap();
    let daemon = Daemon::start(&["--config.file", config.to_str().unwrap()]);
    daemon.wait_page("the refusals", SOON, |page| {
        page.sum("memwarden_log_errors_total", &[("kind", "untrusted")]) == 6.0
            && page.sum("memwarden_log_errors_total", &[("kind", "not_regular")]) == 1.0
    });
    // A refused file stays refused while another log is read.
    std::fs::write(&private, format!("{line}{line}")).unwrap();
    std::fs::write(at("good.log"), line.replace("2.4512", "1.5")).unwrap();
    let page = daemon.wait_page("the log that is none of these", SOON, |page| {
        page.get("memwarden_training_loss", &[("workload", "good.log")]) == Some(1.5)
    });
    let losses = page.0.iter().filter(|series| series.name == "memwarden_training_loss").count();
    assert_eq!(losses, 1, "{}", daemon.metrics());
}

#[test]
fn commands_write_through_no_link_and_into_no_pipe() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    std::fs::write(at("run.csv"), CSV).unwrap();
    std::fs::write(at("leak.pickle"), snapshot()).unwrap();
    std::fs::write(at("target"), "precious").unwrap();
    for name in ["link.svg", "link.json"] {
        symlink("target", at(name)).unwrap();
    }
    for name in ["pipe.svg", "pipe.json"] {
        fifo(&at(name));
    }
    for kind in ["link", "pipe"] {
        let (svg, json) = (format!("{kind}.svg"), format!("{kind}.json"));
        for args in [
            ["plot", "run.csv", "-o", &svg].as_slice(),
            &["replay", "run.csv", "--plot", &svg],
            &["snapshot", "leak.pickle", "--plot", &svg],
            &["snapshot", "leak.pickle", "--output", &json],
        ] {
            let done = run(folder.path(), args);
            let output = text(&done.stderr);
            assert!(!done.status.success() && output.contains("cannot write"), "{args:?}: {output}");
        }
    }
    assert_eq!(std::fs::read(at("target")).unwrap(), b"precious");
    if let Some(alices) = alices() {
        // Root writes to a path where Alice has replaced a folder by a link.
        symlink(folder.path(), alices.path().join("out")).unwrap();
        let path = alices.path().join("out/new.svg");
        let done = run(folder.path(), &["plot", "run.csv", "-o", path.to_str().unwrap()]);
        assert!(!done.status.success() && !at("new.svg").exists(), "{}", text(&done.stderr));
    }
}

#[test]
fn run_follows_no_path_of_an_option_or_a_variable_and_returns_the_code_of_its_command() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    std::fs::write(at("target"), "precious").unwrap();
    std::fs::File::create(at("large")).unwrap().set_len(1 << 40).unwrap();
    for ending in ["", ".svg"] {
        symlink("target", at(&format!("link{ending}"))).unwrap();
        fifo(&at(&format!("pipe{ending}")));
    }
    for name in ["link", "pipe", "large"] {
        for (option, ending, variable) in [
            (Some("--termination-log"), "", None),
            (Some("--output"), "", None),
            (Some("--plot"), ".svg", None),
            (None, "", Some("TORCHELASTIC_ERROR_FILE")),
        ] {
            // What is appended to or replaced may have any size.
            if name == "large" && option.is_some() {
                continue;
            }
            let path = format!("{name}{ending}");
            let mut command = memwarden(&["run"]);
            command
                .current_dir(folder.path())
                .args(option.map(|option| [option, &path]).into_iter().flatten());
            command.envs(variable.map(|variable| (variable, at(&path))));
            let done = command.args(["--", "sh", "-c", "exit 3"]).output().unwrap();
            let said = text(&done.stderr);
            assert_eq!(done.status.code(), Some(3), "{option:?} {variable:?} {path}: {said}");
            assert!(said.contains("cannot write"), "{option:?} {variable:?} {path}: {said}");
        }
    }
    assert_eq!(std::fs::read(at("target")).unwrap(), b"precious");
    let done = memwarden(&["run", "--quiet", "--termination-log"])
        .arg(at("why"))
        .env("TORCHELASTIC_ERROR_FILE", at("error.json"))
        .args(["--", "sh", "-c", "exit 3"])
        .output()
        .unwrap();
    assert_eq!(done.status.code(), Some(3));
    assert!(at("why").is_file() && at("error.json").is_file(), "{}", text(&done.stderr));
}

/// A table of so many columns and rows, of which each row has so many cells.
fn grid(
    (header, dashes, cell): (impl Fn(usize) -> String, &str, impl Fn(usize, usize) -> String),
    delimiter: &str,
    (columns, rows, cells): (usize, usize, usize),
) -> String {
    let line = |count: usize, cell: &dyn Fn(usize) -> String| {
        (0..count).map(cell).collect::<Vec<_>>().join(delimiter) + "\n"
    };
    let mut text = line(columns, &header);
    if !dashes.is_empty() {
        text += &line(columns, &|_| dashes.to_owned());
    }
    (0..rows).for_each(|row| text += &line(cells, &|column| cell(row, column)));
    text
}

#[test]
fn the_memory_and_time_of_an_importer_are_bounded_by_the_size_of_the_file() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("file");
    // Many rows, many columns, both, and many columns with rows of one cell.
    let shapes = [(4, 5_000, 4), (10_000, 4, 10_000), (1_000, 2, 1_000), (10_000, 30_000, 1)];
    let sacct = |column: usize| ["JobID", "State", "MaxRSS", "ReqMem"].get(column % 4).unwrap().to_string();
    let csv = |column: usize| if column == 0 { "t_s".to_owned() } else { format!("m{column}_bytes") };
    let gpus = |column: usize| {
        ["timestamp", "index", "memory.used [MiB]", "memory.total [MiB]"][column % 4].to_owned()
    };
    let (one, far) =
        (|_: usize, _: usize| "1".to_owned(), |row: usize, _: usize| (row * 1_000_000).to_string());
    let lines = |_: usize| "Virtual Memory: 1 GB | Process Memory: 1 GB".to_owned();
    for shape in shapes {
        for (what, text) in [
            ("sacct", grid((sacct, "", one), "|", shape)),
            ("sacct of fixed widths", grid((sacct, "---", one), " ", shape)),
            ("csv", grid((csv, "", far), ",", shape)),
            ("nvidia-smi", grid((gpus, "", one), ", ", shape)),
            ("lines", grid((lines, "", |_, _| lines(0)), " ", (shape.0.min(9), shape.1, shape.2.min(9)))),
            ("json", format!("[{}]", grid((|_| "{}".to_owned(), "", |_, _| "{}".to_owned()), ",", shape))),
        ] {
            std::fs::write(&path, text).unwrap();
            for command in [&["replay"][..], &["what-if", "--limit", "1GiB"]] {
                // 640 MiB of addresses and two minutes of CPU: each file has less than 500 KB.
                let limits = "ulimit -v 655360; ulimit -t 120; exec \"$@\"";
                let mut limited = crate::harness::program("sh");
                limited.args(["-c", limits, "sh", env!("CARGO_BIN_EXE_memwarden")]).args(command).arg(&path);
                let done = limited.output().unwrap();
                let said = text_of_end(&done);
                assert!(
                    done.status.code().is_some_and(|code| code < 100),
                    "{what} {shape:?} {command:?}: {said}"
                );
            }
        }
    }
}

/// How a command ended, and what it said.
fn text_of_end(done: &Output) -> String {
    let said: String = text(&done.stderr).chars().take(500).collect();
    format!("{}: {said}", done.status)
}

#[test]
fn a_command_writes_no_unnamed_file() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    std::fs::write(at("run.csv"), CSV).unwrap();
    std::fs::write(at("run.svg"), "mine").unwrap();
    let done = run(folder.path(), &["plot", "run.csv"]);
    assert!(done.status.success() && done.stdout.starts_with(b"<svg"), "{}", text(&done.stderr));
    assert_eq!(std::fs::read(at("run.svg")).unwrap(), b"mine");
    // A path that is named explicitly is used.
    assert!(run(folder.path(), &["plot", "run.csv", "-o", "run.svg"]).status.success());
    assert!(std::fs::read(at("run.svg")).unwrap().starts_with(b"<svg"));
    let done = run(folder.path(), &["snapshot", "--help"]);
    assert!(done.status.success());
    std::fs::write(at("leak.pickle"), snapshot()).unwrap();
    let done = run(folder.path(), &["snapshot", "leak.pickle", "--output", "/dev/null"]);
    assert!(done.status.success(), "{}", text(&done.stderr));
    let names: Vec<PathBuf> =
        std::fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().path()).collect();
    assert_eq!(names.len(), 3, "nothing is left beside: {names:?}");
}

/// Moves cursors, rings the bell, returns to the start of the line, reorders, hides, and starts a new line.
const HOSTILE: &str = "h\u{1b}[2J\u{1b}]0;x\u{7}\r\u{9b}2J\u{7f}\u{202e}\u{200b}\u{2028}\nFORGED";

#[track_caller]
fn is_printable(what: &str, shown: &str) {
    let raw = shown.chars().find(|letter| {
        (letter.is_control() && *letter != '\n')
            || matches!(letter, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
    });
    let begin: String = shown.chars().take(2_000).collect();
    assert_eq!(raw, None, "{what}: {}", begin.escape_debug());
    let forged = shown.lines().any(|line| line.trim_start().starts_with("FORGED"));
    assert!(!forged, "{what} has a line that is none of its own:\n{begin}");
}

/// A pickle whose innermost frame has a hostile name, of the same length as before.
fn hostile_snapshot() -> Vec<u8> {
    let mut bytes = snapshot();
    let places: Vec<usize> =
        bytes.windows(9).enumerate().filter(|(_, part)| part == b"keep_loss").map(|(at, _)| at).collect();
    assert!(!places.is_empty());
    for at in places {
        bytes[at..at + 9].copy_from_slice(b"\nFORGED\x1bc");
    }
    bytes
}

fn safetensors() -> Vec<u8> {
    let header = json!({ HOSTILE: {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]} }).to_string();
    let length = (header.len() as u64).to_le_bytes();
    [&length[..], header.as_bytes(), &[0; 4]].concat()
}

#[test]
fn no_command_prints_terminal_escapes() {
    let folder = tempfile::tempdir().unwrap();
    let write = |end: &str, bytes: &[u8]| {
        let name = format!("{HOSTILE}{end}");
        std::fs::write(folder.path().join(&name), bytes).unwrap();
        name
    };
    let csv = write(".csv", CSV.as_bytes());
    let columns = write("2.csv", format!("t_s,{},bytes\n0,1,x\n", HOSTILE.replace('\n', "")).as_bytes());
    let pickle = write(".pickle", &hostile_snapshot());
    let wrong = write(".yaml", json!({ HOSTILE: 1, "log": {"level": HOSTILE} }).to_string().as_bytes());
    let hook = json!({"name": "a", "workload": "x", "hook": {"program": format!("/{HOSTILE}")}});
    let good =
        write("2.yaml", json!({"protection": {"mode": "observe", "targets": [hook]}}).to_string().as_bytes());
    let report = write(
        ".json",
        json!({"schema": "memwarden.report/1", "title": HOSTILE, "subtitle": HOSTILE,
            "series": [{"name": HOSTILE, "points": [[1, 10], [2, 20]]}]})
        .to_string()
        .as_bytes(),
    );
    let tensors = write(".safetensors", &safetensors());
    let incident = folder.path().join("incidents/20260101T120000.000Z-job");
    std::fs::create_dir_all(&incident).unwrap();
    let record = json!({"id": "20260101T120000.000Z-job", "host": HOSTILE, "target": HOSTILE, "mode": HOSTILE,
        "summary": HOSTILE, "cause": "policy"});
    std::fs::write(incident.join("incident.json"), record.to_string()).unwrap();
    let nothing = format!("none{HOSTILE}");
    let picture = format!("{HOSTILE}.gif");
    let comment = format!("# {HOSTILE}");
    let still = "sources.gpu.enabled=false";
    let commands: &[&[&str]] = &[
        &["snapshot", &pickle],
        &["snapshot", "--format", "json", &pickle],
        &["snapshot", "--compare", &pickle, &pickle],
        &["snapshot", &nothing],
        &["snapshot", &nothing, &pickle],
        &["snapshot", "--plot", &picture, &pickle],
        &["replay", &csv],
        &["replay", &report],
        &["replay", "--format", "json", &report],
        &["replay", &columns],
        &["replay", &nothing],
        &["plot", &csv, "-o", "-"],
        &["plot", &report, "-o", "-"],
        &["plot", &csv],
        &["plot", &columns, "--columns", &nothing],
        &["plot", &nothing],
        &["params", &tensors],
        &["params", "--format", "json", &tensors],
        &["params", &nothing],
        &["check-config", &wrong],
        &["check-config", &good],
        &["check-config", &nothing],
        &["incidents", "--folder", "incidents"],
        &["incidents", "--folder", "incidents", "--format", "json"],
        &["incidents", "--folder", "incidents", "20260101T120000.000Z-job"],
        &["incidents", "--folder", "incidents", "--format", "json", "20260101T120000.000Z-job"],
        &["incidents", "--folder", &nothing, &nothing],
        &["drill", "--config.file", &good, "--target", &nothing],
        &["drill", "--config.file", &nothing, "--target", "a"],
        &["oom", "--duration", "0.3", "--set", still, "--workload", &nothing],
        &["oom", "--url", &nothing],
        &["run", "--set", still, "--", "sh", "-c", "true", &comment],
        &["run", "--set", still, "--name", HOSTILE, "--", "true"],
        &["run", "--set", still, "--", &nothing],
        &["metrics", "--format", &nothing],
        &[&nothing],
    ];
    for args in commands {
        let done = run(folder.path(), args);
        assert!(!done.stdout.is_empty() || !done.stderr.is_empty(), "{args:?} says nothing");
        is_printable(&format!("{args:?}"), &text(&done.stdout));
        is_printable(&format!("{args:?}, on standard error,"), &text(&done.stderr));
    }
    for (command, input) in [("snapshot", &pickle), ("replay", &report)] {
        let page = if command == "snapshot" { "page.html" } else { "page.svg" };
        let done = run(folder.path(), &[command, input, "--plot", page]);
        assert!(done.status.success(), "{}", text(&done.stderr));
        is_printable(page, &std::fs::read_to_string(folder.path().join(page)).unwrap());
    }
}

#[test]
fn no_log_page_or_answer_has_terminal_escapes() {
    let folder = tempfile::tempdir().unwrap();
    let log = folder.path().join(format!("{HOSTILE}.log"));
    fifo(&log);
    let config = folder.path().join("memwarden.yaml");
    let files = json!([{"path": log, "workload": "a\u{202e}b"}]);
    let settings = json!({
        "sampling": {"interval": "200ms"},
        "sources": {"gpu": {"enabled": false}, "logs": {"interval": "100ms", "files": files}},
    });
    std::fs::write(&config, settings.to_string()).unwrap();
    let daemon = Daemon::start(&["--config.file", config.to_str().unwrap()]);
    daemon.wait_page("the refusal", SOON, |page| {
        page.sum("memwarden_log_errors_total", &[("kind", "not_regular")]) == 1.0
    });
    wait_for("the line of the log", SOON, || {
        Some(()).filter(|()| !daemon.logged(&["is not a regular file"]).is_empty())
    });
    is_printable("the log", &daemon.log());
    for path in [
        "/",
        "/workloads",
        "/events",
        "/api/v1/node",
        "/api/v1/history",
        "/api/v1/frame",
        "/api/v1/findings",
        "/api/v1/timeline",
    ] {
        is_printable(path, &daemon.get(path).body);
    }
    assert!(daemon.get("/api/v1/frame").body.contains("\\u202e"), "JSON has it escaped");
}

#[test]
fn a_state_folder_that_others_can_write_is_not_used() {
    let folder = tempfile::tempdir().unwrap();
    let state = folder.path().join("state");
    std::fs::create_dir(&state).unwrap();
    std::fs::set_permissions(&state, Permissions::from_mode(0o777)).unwrap();
    // As another user would place them.
    let elsewhere = folder.path().join("elsewhere");
    std::fs::write(&elsewhere, "mine").unwrap();
    for name in ["state.json", "audit.jsonl", "protection.jsonl", "incidents"] {
        symlink(&elsewhere, state.join(name)).unwrap();
    }
    let set = format!("state.file={}", state.join("state.json").display());
    let mut daemon = Daemon::start(&["--set", &set]);
    daemon.wait_frames(2.0);
    daemon.logs_once(&["The state directory is not used", "other users can write to"]);
    daemon.signal("TERM");
    assert!(daemon.wait(SOON).success());
    assert_eq!(std::fs::read_to_string(&elsewhere).unwrap(), "mine");
    let left = std::fs::read_dir(&state).unwrap().flatten();
    assert!(left.into_iter().all(|entry| entry.path().is_symlink()), "nothing was written");
}

#[test]
fn root_runs_no_code_in_a_folder_of_another_user() {
    if as_user(MALLORY, "true").is_none() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let theirs = folder.path().join("theirs");
    std::fs::create_dir(&theirs).unwrap();
    chown(&theirs, Some(MALLORY), Some(MALLORY)).unwrap();
    let run = |folder: &Path| {
        let args = ["run", "--quiet", "--", "sh", "-c", "echo \"$PYTHONPATH\""];
        let output = memwarden(&args).env("TMPDIR", folder).env_remove("PYTHONPATH").output().unwrap();
        assert!(output.status.success());
        (String::from_utf8(output.stdout).unwrap(), String::from_utf8(output.stderr).unwrap())
    };
    let (path, why) = run(&theirs);
    assert_eq!(path, "\n", "{why}");
    assert!(why.contains("are not instrumented") && why.contains("belongs to user 61002"), "{why}");
    let (path, why) = run(folder.path());
    assert!(path.starts_with(folder.path().to_str().unwrap()), "{path}{why}");
    // Nor does a user in a folder in which others can rename files.
    std::fs::set_permissions(folder.path(), Permissions::from_mode(0o755)).unwrap();
    for (mode, is_used) in [(0o777, false), (0o1777, true)] {
        std::fs::set_permissions(&theirs, Permissions::from_mode(mode)).unwrap();
        let mut command = as_user(MALLORY, env!("CARGO_BIN_EXE_memwarden")).unwrap();
        let args = ["run", "--quiet", "--", "sh", "-c", "echo \"$PYTHONPATH\""];
        let output = command.args(args).env("TMPDIR", &theirs).env_remove("PYTHONPATH").output().unwrap();
        let path = String::from_utf8(output.stdout).unwrap();
        assert_eq!(path.starts_with(theirs.to_str().unwrap()), is_used, "{path}{}", text(&output.stderr));
    }
}

/// The processes for files of checkpoints that this daemon has started, and that wait for a file system.
fn waiting_helpers(daemon: u32) -> Vec<PathBuf> {
    let parent = format!("PPid:\t{daemon}\n");
    let waits = |process: &PathBuf| {
        let read = |name: &str| std::fs::read_to_string(process.join(name)).unwrap_or_default();
        read("status").contains(&parent)
            && read("cmdline").contains("checkpoint-file")
            && read("wchan") == "request_wait_answer"
    };
    std::fs::read_dir("/proc").unwrap().flatten().map(|entry| entry.path()).filter(waits).collect()
}

#[test]
fn a_file_system_that_never_answers_for_files_of_checkpoints_does_not_keep_the_daemon_from_ending() {
    let room = Room::staged();
    let _jobs = ["train", "other"].map(|name| Job::named(&room, name, &witness()));
    let mut daemon;
    // Dropped first: what hangs then ends.
    let (Some(fuse), Some(second)) = (Fuse::mount(0, "mute"), Fuse::mount(0, "mute")) else { return };
    let target = |name: &str, how: &str, fuse: &Fuse| {
        let path = fuse.folder.path().join(name);
        let ask = format!("{how}: {}, grace: 1h, longest_grace: 1h", path.display());
        room.target(name, &format!("host: {{soft: 30%}}, checkpoint: {{{ask}}}"))
    };
    room.configure("mode: enforce", &[target("train", "touch", &fuse), target("other", "file", &second)], "");
    daemon = room.start();
    room.wait_members(&daemon, "train", 1.0);
    room.wait_members(&daemon, "other", 1.0);
    room.available(100);
    let helpers = wait_for("processes that wait", SOON, || {
        Some(waiting_helpers(daemon.pid())).filter(|helpers| helpers.len() == 2)
    });
    daemon.signal("TERM");
    assert!(daemon.wait(SOON).success(), "{}", daemon.log());
    // SIGKILL has not ended them: a thread of the daemon in their place would still be there.
    for helper in helpers {
        let stat = std::fs::read_to_string(helper.join("stat")).unwrap();
        assert!(stat.contains(") D "), "{stat}");
    }
    drop((fuse, second));
}
