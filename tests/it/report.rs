//! The report commands and `run`, as a user runs them.

use std::path::Path;
use std::process::Output;
use std::time::Duration;

use serde_json::Value;

use crate::harness::{Daemon, free_port, memwarden, program, signal, wait_for};

fn ran(args: &[&str]) -> Output {
    memwarden(args).output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

fn json(path: &Path) -> Value {
    serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap()
}

#[test]
fn every_report_has_text_json_and_a_chart() {
    let folder = tempfile::tempdir().unwrap();
    for kind in ["profile", "oom", "leak", "fragmentation"] {
        let (output, plot) =
            (folder.path().join(format!("{kind}.json")), folder.path().join(format!("{kind}.svg")));
        let done = ran(&[
            kind,
            "--duration",
            "1.2",
            "--interval",
            "0.2",
            "--output",
            output.to_str().unwrap(),
            "--plot",
            plot.to_str().unwrap(),
        ]);
        let (out, err) = (text(&done.stdout), text(&done.stderr));
        let judges = matches!(kind, "oom" | "leak");
        // So short an observation gives no verdict, which is not a healthy one; a node that is full is known at once.
        let codes: &[i32] = if judges { &[2, 3] } else { &[0, 2] };
        assert!(done.status.code().is_some_and(|code| codes.contains(&code)), "{kind}: {out}{err}");
        assert_eq!(out, "", "the report is in the file");
        assert_eq!((err.lines().count() == 1, err.starts_with("note: ")), (judges, judges), "{kind}: {err}");
        let report = json(&output);
        assert_eq!((&report["schema"], &report["kind"]), (&"memwarden.report/1".into(), &kind.into()));
        assert!(report["samples"].as_u64().unwrap() >= 2, "{report}");
        assert!(std::fs::read_to_string(&plot).unwrap().contains("<svg"));
        let again = ran(&["plot", output.to_str().unwrap(), "-o", "-"]);
        assert!(again.status.success(), "{kind}: {}", text(&again.stderr));
        let told = text(&ran(&[kind, "--duration", "0.2"]).stdout);
        assert!(told.starts_with(&format!("memwarden {kind}")), "{kind}: {told}");
        let told = ran(&[kind, "--duration", "0.2", "--format", "json"]).stdout;
        assert_eq!(serde_json::from_slice::<Value>(&told).unwrap()["kind"], kind);
    }
}

#[test]
fn above_the_threshold_is_an_exit_code() {
    let code = |args: &[&str]| {
        let mut all = vec!["profile", "--duration", "0.2"];
        all.extend_from_slice(args);
        let done = ran(&all);
        (done.status.code(), text(&done.stdout))
    };
    let (above, out) = code(&["--threshold", "0"]);
    assert!(above == Some(2) && out.contains("above the threshold of 0 %"), "{out}");
    assert_eq!(code(&["--threshold", "100%"]).0, Some(0));
    assert_eq!(code(&["--threshold", "x"]).0, Some(2), "clap's own code for what it does not understand");
}

#[test]
fn what_is_not_there_is_an_error() {
    let url = format!("http://127.0.0.1:{}", free_port());
    for (args, expected) in [
        (&["oom", "--url", url.as_str(), "--duration", "1"][..], "(is it running there?)"),
        (&["oom", "--url", "ftp://x"], "has a scheme other than http and https"),
        (&["leak", "--pid", "4194305", "--duration", "0.2"], "there is no process 4194305"),
        (&["profile", "--workload", "none", "--duration", "0.2"], "nothing was seen of workload none"),
        (&["profile", "--set", "sources.nothing.x=1", "--duration", "0.2"], "sources.nothing.x"),
    ] {
        let done = ran(args);
        assert_eq!(done.status.code(), Some(1), "{args:?}");
        assert!(text(&done.stderr).contains(expected), "{args:?}: {}", text(&done.stderr));
        assert!(done.stdout.is_empty());
    }
}

#[test]
fn a_daemon_can_be_asked_instead() {
    let daemon = Daemon::start(&["--set", "sampling.interval=100ms"]);
    daemon.metrics();
    let url = format!("http://{}/", daemon.address);
    let done = ran(&["profile", "--url", &url, "--duration", "0.6", "--interval", "0.1"]);
    let out = text(&done.stdout);
    assert!(
        done.status.success() && out.contains("host used") && out.contains(&url),
        "{out}{}",
        text(&done.stderr)
    );
}

#[test]
fn several_daemons_are_reported_and_one_that_does_not_answer_is_unknown() {
    let [first, second] = [(); 2].map(|()| Daemon::start(&["--set", "sampling.interval=100ms"]));
    first.metrics();
    second.metrics();
    let urls = [&first, &second].map(|daemon| format!("http://{}", daemon.address));
    let dead = format!("http://127.0.0.1:{}", free_port());
    let folder = tempfile::tempdir().unwrap();
    let chart = folder.path().join("chart.svg");
    let short = ["--duration", "0.6", "--interval", "0.1"];

    let both =
        [&["profile", "--url", &urls[0], "--url", &urls[1], "--plot", chart.to_str().unwrap()], &short[..]];
    let done = ran(&both.concat());
    let out = text(&done.stdout);
    assert!(done.status.success(), "{out}{}", text(&done.stderr));
    assert!(urls.iter().all(|url| out.contains(&format!("from {url}"))), "{out}");
    assert_eq!(out.matches("host used").count(), 2, "{out}");
    let drawn = std::fs::read_to_string(&chart).unwrap();
    assert!(drawn.matches("memwarden profile: ").count() >= 2, "a panel of each node is named");

    let output = folder.path().join("reports.json");
    let partly = ["profile", "--url", &dead, "--url", &urls[1], "--output", output.to_str().unwrap()];
    let done = ran(&[&partly, &short[..]].concat());
    assert_eq!(done.status.code(), Some(3), "{}", text(&done.stderr));
    let reports = json(&output);
    assert_eq!(reports["schema"], "memwarden.reports/1");
    assert_eq!(reports["nodes"][0]["daemon"], dead.as_str());
    assert!(reports["nodes"][0]["error"].as_str().unwrap().contains("is it running there?"));
    assert_eq!(reports["nodes"][1]["daemon"], urls[1].as_str());
    let drawn = ran(&["plot", output.to_str().unwrap()]);
    assert!(drawn.status.success() && text(&drawn.stdout).contains("<svg"), "{}", text(&drawn.stderr));

    let done = ran(&[&["profile", "--url", &dead, "--url", &urls[0]], &short[..]].concat());
    let out = text(&done.stdout);
    assert!(out.starts_with("No report of 1 of 2 nodes.\n") && out.contains(&format!("{dead}: ")), "{out}");

    let none = ran(&["oom", "--url", &dead, "--url", &dead, "--duration", "0.2"]);
    assert_eq!(none.status.code(), Some(1));
    assert!(text(&none.stderr).contains("no report of any of 2 nodes"), "{}", text(&none.stderr));
}

#[test]
fn a_process_is_reported_with_its_tree() {
    let own = std::process::id().to_string();
    let done = ran(&["profile", "--pid", &own, "--duration", "0.3", "--interval", "0.1"]);
    let out = text(&done.stdout);
    // The report's own process is a child of this one.
    assert!(
        done.status.success() && out.contains(&format!("-{own} resident")),
        "{out}{}",
        text(&done.stderr)
    );
    assert!(!out.contains("host used"), "{out}");
}

#[test]
fn a_watch_without_end_ends_on_request_and_still_reports() {
    let folder = tempfile::tempdir().unwrap();
    let output = folder.path().join("out.json");
    let mut command =
        memwarden(&["leak", "--monitor", "--interval", "0.1", "--output", output.to_str().unwrap()]);
    command.stderr(std::process::Stdio::piped());
    let mut child = command.spawn().unwrap();
    let mut lines = std::io::BufReader::new(child.stderr.take().unwrap());
    let mut first = String::new();
    std::io::BufRead::read_line(&mut lines, &mut first).unwrap();
    assert!(first.starts_with("0 s: "), "{first}");
    signal(child.id(), "INT");
    let status = wait_for("the end", Duration::from_secs(10), || child.try_wait().unwrap());
    assert_eq!(status.code(), Some(3), "too few samples for a verdict");
    assert_eq!(json(&output)["kind"], "leak");
}

#[test]
fn a_command_keeps_its_output_its_code_and_its_signals() {
    for (script, code, out, told) in [
        ("echo out; exit 7", 7, "out\n", "ended with code 7"),
        ("kill -SEGV $$", 139, "", "was ended by SIGSEGV"),
        ("cat", 0, "", "succeeded"),
    ] {
        let done = ran(&["run", "--", "sh", "-c", script]);
        assert_eq!(done.status.code(), Some(code), "{script}");
        assert_eq!(text(&done.stdout), out);
        assert!(text(&done.stderr).contains(told), "{script}: {}", text(&done.stderr));
    }
    for (command, code, told) in [
        ("no-such-command", 127, "no-such-command: command not found"),
        ("/etc/passwd", 126, "cannot run /etc/passwd"),
    ] {
        let done = ran(&["run", "--", command]);
        assert_eq!(done.status.code(), Some(code));
        assert!(text(&done.stderr).contains(told), "{}", text(&done.stderr));
    }
}

#[test]
fn each_signal_reaches_the_command_once() {
    for name in ["HUP", "INT", "TERM", "USR1", "USR2"] {
        // Once it has come, it is waited for a second one.
        let script = format!(
            "trap 'echo got; g=1' {name}; echo ready; i=0; \
             while [ -z \"$g\" ] && [ $i -lt 500 ]; do sleep 0.02; i=$((i+1)); done; sleep 0.2"
        );
        let mut child = memwarden(&["run", "--quiet", "--", "sh", "-c", &script]).spawn().unwrap();
        let mut lines = std::io::BufReader::new(child.stdout.take().unwrap());
        let mut first = String::new();
        std::io::BufRead::read_line(&mut lines, &mut first).unwrap();
        signal(child.id(), name);
        let mut rest = String::new();
        std::io::Read::read_to_string(&mut lines, &mut rest).unwrap();
        assert_eq!((first.as_str(), rest.as_str()), ("ready\n", "got\n"), "{name}");
        assert!(child.wait().unwrap().success(), "{name}");
    }
}

#[test]
fn a_command_and_its_children_are_measured() {
    let folder = tempfile::tempdir().unwrap();
    let output = folder.path().join("run.json");
    // The shell's own child holds 64 MiB for a while: tr reads, tail keeps.
    let script = "head -c 67108864 /dev/zero | tail -c 67108864 | (sleep 3; cat >/dev/null)";
    let done =
        ran(&["run", "--output", output.to_str().unwrap(), "--name", "mine", "--", "sh", "-c", script]);
    assert!(done.status.success(), "{}", text(&done.stderr));
    let report = json(&output);
    assert_eq!(
        (&report["kind"], &report["workload"], &report["exit_code"]),
        (&"run".into(), &"mine".into(), &0.into())
    );
    let peak = report["memory"]["anonymous_bytes"]["max"].as_f64().unwrap();
    assert!(peak > 60e6, "{report}");
    assert_eq!(text(&done.stderr), "", "the report is in the file");
    assert!(report["cpu_seconds"].as_f64().is_some() && report["duration_seconds"].as_f64().unwrap() > 0.9);
}

#[test]
fn the_report_of_a_command_is_text_or_json_on_standard_error() {
    let done = ran(&["run", "--format", "json", "--", "sh", "-c", "echo out"]);
    assert_eq!(text(&done.stdout), "out\n");
    assert_eq!(serde_json::from_slice::<Value>(&done.stderr).unwrap()["kind"], "run");
    let done = ran(&["run", "--output", "-", "--", "sh", "-c", "true"]);
    assert!(text(&done.stdout).starts_with("memwarden run: "), "{done:?}");
    assert!(done.stderr.is_empty(), "{done:?}");
}

#[test]
fn a_command_runs_where_sampling_cannot() {
    let done = ran(&["run", "--set", "paths.proc=/nonexistent", "--", "sh", "-c", "echo out; exit 3"]);
    assert_eq!((done.status.code(), text(&done.stdout).as_str()), (Some(3), "out\n"));
    assert!(text(&done.stderr).contains("could be sampled"), "{}", text(&done.stderr));
}

/// Fills memory by fifty megabytes per second, and saves when it is asked.
const FILLS: &str = "
import os, signal, sys, time
asked = []
signal.signal(signal.SIGUSR1, lambda *_: asked.append(1))
held = []
for _ in range(1000):
    held.append(os.urandom(1) * (1 << 20))
    time.sleep(0.02)
    if asked and len(sys.argv) > 1:
        open(sys.argv[1], 'w').write('saved')
        sys.exit(7)
";

#[test]
fn a_command_is_protected_without_a_daemon() {
    let folder = tempfile::tempdir().unwrap();
    let saved = folder.path().join("saved");
    let guarded = |arguments: &[&str]| {
        let run =
            ["run", "--guard", "--limit", "300MiB", "--no-instrument", "--", "python3", "-S", "-c", FILLS];
        let done = memwarden(&run).args(arguments).env("XDG_STATE_HOME", folder.path()).output().unwrap();
        (done.status.code(), text(&done.stderr))
    };
    let (code, said) = guarded(&[saved.to_str().unwrap()]);
    assert_eq!(code, Some(7), "it has saved and ended: {said}");
    assert_eq!(std::fs::read_to_string(&saved).unwrap(), "saved");
    let shown = said.lines().find_map(|line| line.split_once("Report: memwarden ")).expect(&said).1;
    let shown: Vec<&str> = shown.split_whitespace().collect();
    let shown = memwarden(&shown).output().unwrap();
    assert!(shown.status.success(), "{}", text(&shown.stderr));
    let report = text(&shown.stdout);
    // On a busy machine, its memory is free again long before it has ended.
    let is_asked = |then: &str| report.contains(&format!("it received a checkpoint request and {then}"));
    assert!(is_asked("ended") || is_asked("recovered"), "{report}");
    // Without a handler of its own for the file, it is asked, does not end, and is killed at the hard level.
    let (code, said) = guarded(&[]);
    assert_eq!(code, Some(137), "{said}");
    assert!(said.contains("was ended by memory protection"), "{said}");
    let folders = std::fs::read_dir(folder.path().join("memwarden")).unwrap().count();
    assert_eq!(folders, 2);
    // Nothing remains of a run without an incident.
    let args = ["run", "--guard", "--limit", "300MiB", "--", "true"];
    assert!(memwarden(&args).env("XDG_STATE_HOME", folder.path()).status().unwrap().success());
    assert_eq!(std::fs::read_dir(folder.path().join("memwarden")).unwrap().count(), folders);
}

#[test]
fn a_command_that_runs_as_another_user_is_said_to_be_without_protection() {
    if !rustix::process::geteuid().is_root() {
        return crate::skip::skip("becoming another user needs root");
    }
    let folder = tempfile::tempdir().unwrap();
    // The user of a process that was there at the first sample is read again within 64 samples, a tenth of a second each.
    let becomes = "import os, time; os.setgid(61001); os.setuid(61001); time.sleep(8)";
    let run = ["run", "--guard", "--no-instrument", "--", "python3", "-S", "-c", becomes];
    let done = memwarden(&run).env("XDG_STATE_HOME", folder.path()).output().unwrap();
    let said = text(&done.stderr);
    assert!(done.status.success() && said.contains("are not protected") && said.contains("61001"), "{said}");
}

/// Trains for a while, with a stand-in for torch.
const TRAINS: &str = r#"
import sys, time, torch
weight = torch.Tensor([1.0] * 4, (2, 2), requires_grad=True)
model = torch.nn.Module(**{"wte.weight": weight})
model.config = {"model_type": "gpt", "n_layer": 2, "n_embd": 2, "n_head": 1, "vocab_size": 2}
optimizer = torch.optim.AdamW(model.parameters())
for _ in range(int(sys.argv[1])):
    model(torch.Tensor([1] * 6, (2, 3), torch.int64))
    torch.Tensor([1.0]).backward()
    optimizer.step()
    time.sleep(0.02)
print("memwarden" in sys.modules)
"#;

fn trained(options: &[&str]) -> Option<(Output, Value)> {
    let (done, report) = ran_python(options, TRAINS)?;
    assert!(done.status.success(), "{}", text(&done.stderr));
    Some((done, report))
}

/// Runs a program with a stand-in for torch; with the report.
fn ran_python(options: &[&str], script: &str) -> Option<(Output, Value)> {
    if !program("python3").arg("--version").output().is_ok_and(|done| done.status.success()) {
        crate::skip::skip("python3 is not installed");
        return None;
    }
    let folder = tempfile::tempdir().unwrap();
    let output = folder.path().join("run.json");
    let mut args = vec!["run", "--name", "job", "--output", output.to_str().unwrap()];
    args.extend_from_slice(options);
    args.extend_from_slice(&["--", "python3", "-c", script, "120"]);
    let fake = concat!(env!("CARGO_MANIFEST_DIR"), "/clients/python/tests/fake_torch");
    let mut command = memwarden(&args);
    // Nobody else is to hear of it.
    command.env("PYTHONPATH", fake).env("MEMWARDEN_JOB_SOCKET", folder.path().join("nobody"));
    command.env("TMPDIR", folder.path()).env_remove("MEMWARDEN_AUTO").env_remove("MEMWARDEN_DISABLE");
    let done = command.env_remove("MEMWARDEN_FIT").output().unwrap();
    let left: Vec<_> =
        std::fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(left, [output.file_name().unwrap()], "what was unpacked is gone");
    let report = json(&output);
    Some((done, report))
}

#[test]
fn training_is_seen_without_a_line_of_ours() {
    let Some((done, report)) = trained(&[]) else { return };
    assert_eq!(text(&done.stdout), "True\n");
    let training = &report["training"];
    assert_eq!((&training["step"], &training["ranks"]), (&120.0.into(), &1.into()), "{report}");
    // 6 tokens a step, of 20 ms at least.
    let rate = training["tokens_per_second"].as_f64().unwrap();
    assert!(rate > 1.0 && rate < 300.0, "{training}");
    for phase in ["forward", "backward", "optimizer"] {
        assert_eq!(training["phases"][phase]["count"], 120.0, "all of them: {training}");
    }
}

#[test]
fn a_program_that_will_not_fit_ends_itself_where_that_is_wanted() {
    // Gradients and state of a parameter of 16 TiB.
    let large = TRAINS.replace("(2, 2)", "(1 << 21, 1 << 21)");
    let Some((done, report)) = ran_python(&["--fit", "abort"], &large) else { return };
    assert_eq!(done.status.code(), Some(80), "{}", text(&done.stderr));
    let said = text(&done.stderr);
    assert!(said.contains("memwarden: ") && said.contains("will not fit"), "{said}");
    let why = report["end"].as_str().unwrap();
    assert!(why.starts_with("ended itself: the first optimizer step "), "{why}");
    assert!(why.ends_with(" will not fit (exit status 80)"), "{why}");
    let (done, report) = ran_python(&["--fit", "abort", "--no-retry-code", "3"], &large).unwrap();
    assert_eq!(
        (done.status.code(), &report["cause"]["cause"]),
        (Some(3), &"will_not_fit".into()),
        "{report}"
    );
    for mode in ["say", "off"] {
        let (done, report) = ran_python(&["--fit", mode], &large).unwrap();
        let said = text(&done.stderr);
        assert_eq!((done.status.code(), &report["end"]), (Some(0), &"succeeded".into()), "{said}");
        assert_eq!(said.contains("memwarden: "), mode == "say", "{said}");
    }
}

#[test]
fn a_program_is_left_alone_where_that_is_wanted() {
    let Some((done, report)) = trained(&["--no-instrument"]) else { return };
    assert_eq!(text(&done.stdout), "False\n");
    assert_eq!(report["training"], Value::Null);
}
