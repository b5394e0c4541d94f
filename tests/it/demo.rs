//! `memwarden demo`: what a person sees of a simulated node.

use std::io::{BufRead as _, BufReader};
use std::net::SocketAddr;
use std::process::Child;
use std::time::Duration;

use serde_json::Value;

use crate::harness::{memwarden, request, signal, wait_for};

/// The address of the page, from the first lines.
fn address(lines: &mut impl Iterator<Item = String>) -> SocketAddr {
    let line = lines.find(|line| line.starts_with("page:")).unwrap();
    let (_, address) = line.split_once("http://").unwrap();
    address.split_once('/').unwrap().0.parse().unwrap()
}

fn start(args: &[&str]) -> (Child, impl Iterator<Item = String> + use<>) {
    let mut child = memwarden(&[&["demo"], args].concat()).spawn().unwrap();
    let lines = BufReader::new(child.stdout.take().unwrap()).lines();
    (child, lines.map_while(Result::ok))
}

fn get(address: SocketAddr, path: &str) -> Option<String> {
    let answer =
        request(address, &format!("GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"));
    Some(answer.body).filter(|_| answer.code == 200)
}

/// What the scene has, in this order: a part of the printed line, and whether `/api/v1/node` has it.
type Shown = (&'static str, fn(&Value) -> bool);

fn any(list: &Value, is_it: impl Fn(&Value) -> bool) -> bool {
    list.as_array().is_some_and(|list| list.iter().any(is_it))
}

const SCENE: [Shown; 5] = [
    ("warning   Memory of process 5000000 of slurm-4711 on GPU 0 is leaking.", |node| {
        let leaks = |finding: &Value| finding["analyzer"] == "leak" && finding["subject"]["gpu"] == "0";
        any(&node["findings"], leaks)
    }),
    ("critical  Rank 0 of slurm-4720: evaluation", |node| {
        any(&node["fits"], |fit| fit["verdict"] == "will_not_fit" && fit["phase"] == "evaluation")
    }),
    ("critical  Memory of GPU 0 may run out: exhaustion within 15 minutes", |node| {
        any(&node["problems"], |problem| problem["gpu"] == "0" && problem["seconds_left"].is_f64())
    }),
    ("critical  GPU 6 does not respond: a driver call for it does not return", |node| {
        node["gpus"][6]["status"] == "hung" && node["gpus"][6]["used"].is_null()
    }),
    ("slurm-4711 rank 0: checkpoint saved at step 295.", |node| {
        any(&node["job_events"], |event| event["what"] == "checkpoint saved at step 295")
    }),
];

#[test]
fn the_scene_shows_what_it_promises_and_nothing_else() {
    let (mut child, mut lines) = start(&["--speed", "60"]);
    let address = address(&mut lines);
    assert!(address.ip().is_loopback());
    let metrics = wait_for("a sample", Duration::from_secs(60), || get(address, "/metrics"));
    assert!(metrics.contains("memwarden_host_info{hostname=\"demo (simulated)\""), "{metrics}");
    assert!(metrics.contains("name=\"NVIDIA H100 80GB HBM3 (simulated)\""));
    let node = || serde_json::from_str::<Value>(&get(address, "/api/v1/node")?).ok();
    let first = node().unwrap();
    // Unless this machine is so slow that the scene has begun.
    if first["sequence"].as_u64() < Some(100) {
        assert!(SCENE.iter().all(|(line, is_shown)| !is_shown(&first) || panic!("{line} at once: {first}")));
    }

    let mut seen = Vec::new();
    let mut next = SCENE.iter().peekable();
    for line in lines.by_ref() {
        // The run that is started again does not leak.
        let has_ended = seen.iter().any(|line: &String| line.contains("slurm-4711 rank 0: ended"));
        let of_scene = ["slurm-4720: evaluation", "GPU 6 ", "process 5000000 of slurm-4711", "GPU 0 "];
        let of_scene = &of_scene[..if has_ended { 2 } else { 4 }];
        let is_wrong = line.contains("warning") || line.contains("critical") || line.contains("unknown");
        assert!(!is_wrong || of_scene.iter().any(|part| line.contains(part)), "a false event: {line}");
        if let Some((_, is_shown)) = next.next_if(|(part, _)| line.contains(part)) {
            wait_for(&line, Duration::from_secs(60), || is_shown(&node()?).then_some(()));
        }
        seen.push(line);
        if seen.last().is_some_and(|line| line.contains("rank 0: finished its first step at step 296")) {
            break;
        }
    }
    assert_eq!(next.next().map(|(line, _)| *line), None, "not printed: {seen:#?}");
    // The run goes on from the checkpoint, and no message of a rank was wrong.
    let metrics = get(address, "/metrics").unwrap();
    let steps =
        metrics.lines().find(|line| line.starts_with("memwarden_training_step{workload=\"slurm-4711\""));
    let step = steps.and_then(|line| line.rsplit(' ').next()?.parse::<f64>().ok()).unwrap();
    assert!(step >= 296.0, "{step}");
    let errors = metrics.lines().filter(|line| line.starts_with("memwarden_training_errors_total"));
    assert!(errors.clone().count() > 0 && errors.clone().all(|line| line.ends_with(" 0")), "{metrics}");
    for line in lines {
        seen.push(line);
        if seen.last().is_some_and(|line| line.contains("The scene is over")) {
            break;
        }
    }
    let last = seen.last().unwrap();
    assert!(last.contains("The scene is over") && last.contains("GPU 6 does not respond"), "{seen:#?}");
    assert!(seen.iter().any(|line| line.contains("gpu 0: the finding \"")), "{seen:#?}");
    // The node at the end of the scene stays, and does not count as one that is not sampled.
    std::thread::sleep(Duration::from_secs(6));
    let last = node().unwrap();
    assert!(
        last["sequence"].as_u64() > Some(1_200) && !last["verdict"]["sentence"].to_string().contains("stale"),
        "{last}"
    );
    assert!(child.try_wait().unwrap().is_none());
    signal(child.id(), "INT");
    assert!(child.wait().unwrap().success());
}

#[test]
fn ctrl_c_ends_it() {
    let (mut child, mut lines) = start(&["--speed", "1"]);
    address(&mut lines);
    signal(child.id(), "INT");
    let status = wait_for("the end", Duration::from_secs(60), || child.try_wait().unwrap());
    assert!(status.success(), "{status}");
}

#[test]
fn only_loopback_is_listened_on() {
    let output = memwarden(&["demo", "--listen", "0.0.0.0:0"]).output().unwrap();
    let error = String::from_utf8(output.stderr).unwrap();
    assert!(!output.status.success() && error.contains("is not an address of loopback"), "{error}");
}
