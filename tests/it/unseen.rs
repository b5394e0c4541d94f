//! What cannot be seen is said, and is never taken for health.

use std::process::Output;

use crate::harness::{Daemon, fake_nvml, memwarden};

/// GPU 1 answers to nothing.
const SECOND_HANGS: &str = r#"{"devices": [{"utilization": 9}, {"hang": ["*"]}]}"#;

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

/// A command that samples here, on a node whose GPUs are what a scenario says.
fn ran(scenario: &str, args: &[&str]) -> Output {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("scenario.json");
    std::fs::write(&file, scenario).unwrap();
    let library = format!("sources.gpu.nvml_library={}", fake_nvml().display());
    let mut all = args.to_vec();
    all.extend(["--set", &library]);
    memwarden(&all).env("FAKE_NVML_SCENARIO", &file).output().unwrap()
}

#[test]
fn a_gpu_that_hangs_is_a_row_and_an_exit_code() {
    for args in [&["oom", "--devices", "1"][..], &["leak"], &["profile"]] {
        // On a busy machine NVML may be started late.
        let long_enough = ["3", "10", "30", "60"].into_iter().find_map(|duration| {
            let done = ran(SECOND_HANGS, &[args, &["--interval", "0.5", "--duration", duration]].concat());
            text(&done.stdout).contains("  gpu 1  unknown: no answer for ").then_some(done)
        });
        let done = long_enough.unwrap();
        let (out, err) = (text(&done.stdout), text(&done.stderr));
        assert!(!out.contains("No exhaustion is predicted.") && !out.contains("No leak was found."), "{out}");
        // A test machine that is nearly full may be above the threshold, which comes first.
        assert!(matches!(done.status.code(), Some(2 | 3)), "{args:?}: {:?} {out}{err}", done.status);
    }
}

#[test]
fn a_gpu_that_is_not_there_is_an_error_with_those_that_are() {
    let two = r#"{"devices": [{}, {}]}"#;
    let done = ran(two, &["oom", "--devices", "0,7", "--duration", "60"]);
    let err = text(&done.stderr);
    assert_eq!(done.status.code(), Some(1), "{err}");
    assert!(err.contains("GPU 7 was not found; available: 0 ("), "{err}");
    assert!(done.stdout.is_empty());
}

#[test]
fn a_daemon_states_a_gpu_that_hangs() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("scenario.json");
    std::fs::write(&file, SECOND_HANGS).unwrap();
    let library = format!("sources.gpu.nvml_library={}", fake_nvml().display());
    let sets = ["--set", &library, "--set", "sampling.interval=200ms", "--set", "sources.gpu.interval=200ms"];
    let daemon = Daemon::start_with(&sets, |command| {
        command.env("FAKE_NVML_SCENARIO", &file);
    });
    let critical = "memwarden_findings{analyzer=\"visibility\",severity=\"critical\"}";
    daemon.wait_value(critical, |count| count >= 1.0);
    let findings = daemon.get("/api/v1/findings").body;
    assert!(findings.contains("GPU 1 does not respond"), "{findings}");
    let page = daemon.get("/").body;
    assert!(page.contains("class=\"verdict critical\""), "{page}");
    assert!(
        page.contains("GPU 1 does not respond") && page.contains("<span class=\"tag critical\">hung</span>"),
        "{page}"
    );
    let url = format!("http://{}", daemon.address);
    // The daemon has the answer: nothing is waited for, and one look is enough.
    let plot = folder.path().join("oom.svg");
    let done = memwarden(&["oom", "--url", &url, "--plot", plot.to_str().unwrap()]).output().unwrap();
    assert!(std::fs::read_to_string(&plot).unwrap().contains("<svg"));
    let out = text(&done.stdout);
    assert!(out.contains("  gpu 1  unknown: no answer for "), "{out}{}", text(&done.stderr));
    assert!(out.contains(", 1 sample in "), "{out}");
    assert!(matches!(done.status.code(), Some(2 | 3)), "{:?} {out}", done.status);
}

#[test]
fn a_missing_gpu_library_is_reported_once() {
    let args = [
        "oom",
        "--duration",
        "1",
        "--interval",
        "0.5",
        "--set",
        "sources.gpu.nvml_library=/nonexistent/nvml.so",
    ];
    let done = memwarden(&args).output().unwrap();
    let out = text(&done.stdout);
    assert_eq!(out.matches("GPUs: not visible: ").count(), 1, "{out}{}", text(&done.stderr));
    assert!(matches!(done.status.code(), Some(2 | 3)), "{:?} {out}", done.status);
}

#[test]
fn a_host_of_which_nothing_is_seen_is_not_called_healthy() {
    let args = ["profile", "--duration", "0.2", "--set", "paths.proc=/nonexistent"];
    let done = memwarden(&args).output().unwrap();
    assert_eq!(done.status.code(), Some(3), "{}{}", text(&done.stdout), text(&done.stderr));
}

#[test]
fn a_watch_too_short_for_a_verdict_is_reported_before_it_begins() {
    let note = |args: &[&str]| text(&memwarden(args).output().unwrap().stderr);
    let short = note(&["oom", "--duration", "1", "--interval", "0.5"]);
    assert!(
        short.starts_with("note: a verdict requires 60 samples") && short.contains("--duration 33"),
        "{short}"
    );
    assert!(!note(&["profile", "--duration", "1", "--interval", "0.5"]).contains("note: "));
}

#[test]
fn a_mistake_on_the_command_line_says_what_is_wrong() {
    let folder = tempfile::tempdir().unwrap();
    let file = |name: &str, content: &[u8]| {
        let path = folder.path().join(name);
        std::fs::write(&path, content).unwrap();
        path.to_str().unwrap().to_owned()
    };
    let [csv, config] = [file("run.csv", b"t_s,bytes\n0,100\n1,200\n"), file("c.yaml", b"{}\n")];
    let damaged = file("run.wandb", b"x,y\n");
    let busy = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let busy = busy.local_addr().unwrap().to_string();
    let what_if = ["what-if", &csv, "--limit"];
    let what_if = |more: &[&'static str]| [&what_if[..], more].concat();
    let negative = what_if(&["1GiB", "--save", "-3s"]);
    let tiny = what_if(&["12"]);
    let no_gpus = what_if(&["1GiB", "--gpus", "0"]);
    let never = what_if(&["1GiB", "--checkpoint-every", "0"]);
    for (args, code, part) in [
        (&["run", "--bogus", "--", "true"][..], 2, "unexpected argument '--bogus' found"),
        (&["gpu", "release", "--pid", "1"], 1, "--pid 1: that process is no `memwarden serve`; leave"),
        (
            &["drill", "--config.file", &config, "--target", "x"],
            1,
            "protection.targets has no target `x` in mode observe or enforce; it has none",
        ),
        (&["leak", "--duration", "-5"], 2, "invalid value '-5' for '--duration': it is negative"),
        (&["leak", "--duration=-5"], 2, "'--duration <DURATION>': must be more than 0 s, as in 30s"),
        (&negative, 2, "invalid value '-3s' for '--save': it is negative"),
        (&tiny, 2, "'--limit <SIZE>': is less than 1 MiB; write a unit, as in 12GiB"),
        (&no_gpus, 2, "'0' for '--gpus <N>': 0 is not in 1.."),
        (&never, 2, "'--checkpoint-every <DURATION>': must be more than 0 s, as in 15m"),
        (&["serve", "--set", "samplng.interval=1s"], 1, "memwarden: --set samplng.interval: unknown option"),
        (&["serve", "--set", "=1s"], 1, "write KEY=VALUE, such as sampling.interval=5s"),
        (&["why", "--pid", "4711"], 2, "write the pid without an option: `memwarden why 4711`"),
        (&["why", "--last", "3"], 2, "`memwarden why --all` lists all ends"),
        (&["fit"], 2, "`memwarden run --fit say -- CMD`"),
        (
            &["history", "--user", "root"],
            2,
            "'--user <UID>': is not the ID of a user; `id -u root` prints it",
        ),
        (&["compare", "a", "b"], 2, "'<BEFORE>': is not the number of a run, as `memwarden history` lists"),
        (&["incidents", "--url", "http://node/"], 2, "name a copy of them with --folder"),
        (&["replay", &damaged], 1, "run.wandb: no run file of W&B: it does not begin with `:W&B`"),
        (&["demo", "--listen", &busy], 1, "--listen: cannot listen on 127.0.0.1:"),
        (
            &["run", "--quiet", "--no-instrument", "--termination-log", "/nonexistent/log", "--", "false"],
            1,
            "--termination-log: cannot write /nonexistent/log: No such file",
        ),
        (&["run", "--bogus"][..], 2, "unexpected argument '--bogus' found"),
        (&["incidents", "--folder", "/nonexistent"], 1, "there is no folder /nonexistent"),
        (&["oom", "--url", "ftp://node/"], 1, "has a scheme other than http and https"),
        (&["oom", "--url", "127.0.0.1:21000"], 1, "has no scheme; write http://"),
        (&["serve", "--nvml-library", "/nonexistent/nvml.so"], 1, "there is no file /nonexistent/nvml.so"),
        (&["serve", "--set", "sampling.intervall=1s"], 1, "did you mean `interval`?"),
        (&["serve", "--set", "samplng.interval=1s"], 1, "did you mean `sampling`?"),
        (&["serve", "--set", "sources.gpuu.interval=1s"], 1, "did you mean `gpu`?"),
        (
            &["acknowledge", "xid/gpu/0", "--url", "unix:/nonexistent/api.sock"],
            1,
            "nothing listens on /nonexistent/",
        ),
    ] {
        let done = memwarden(args).output().unwrap();
        let err = text(&done.stderr);
        assert!(done.status.code() == Some(code) && err.contains(part), "{args:?}: {} {err}", done.status);
    }
    // A command of such a name is possible.
    assert_eq!(memwarden(&["run", "--", "--bogus"]).output().unwrap().status.code(), Some(127));
}

#[test]
fn the_recommended_duration_is_enough() {
    let done = memwarden(&["oom", "--duration", "6"]).output().unwrap();
    let (out, err) = (text(&done.stdout), text(&done.stderr));
    assert!(err.contains("6 s with an interval of 0.100 s give 61: use --duration 7 or longer"), "{err}");
    if done.status.code() == Some(3) && out.contains("Too few samples") {
        assert!(out.contains("Observe for at least 7 s") || !out.contains(", 61 samples in"), "{out}");
    }
}

#[test]
fn fragment_refuses_what_it_cannot_choose() {
    for args in [&["--pid", "1"][..], &["--workload", "x"], &["--devices", "0"]] {
        let done = memwarden(&[&["fragmentation", "--duration", "0.2"], args].concat()).output().unwrap();
        assert_eq!(done.status.code(), Some(2));
        assert!(text(&done.stderr).contains("--url <URL>"), "{}", text(&done.stderr));
    }
}
