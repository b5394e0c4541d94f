//! A run on two nodes: daemons on loopback ports, each with its own job, state and memory.

use std::path::PathBuf;

use super::SOON;
use super::job::{Job, witness};
use super::room::{HOST, Room};
use crate::harness::{Daemon, Page, free_port, memwarden, wait_for};

/// The token of all nodes.
const TOKEN: &str = "a long shared secret";

/// Configures a node of the run `alpha` with these peers.
fn configure(room: &Room, mode: &str, peers: &[String], keys: &str) -> PathBuf {
    let token = room.path("token");
    std::fs::write(&token, TOKEN).unwrap();
    let peers: Vec<String> = peers.iter().map(|peer| format!("\"{peer}\"")).collect();
    let protection = format!(
        "mode: {mode}, peers: {{from: static, hosts: [{}], token_file: {}, timeout: 5s}}",
        peers.join(", "),
        token.display()
    );
    let keys = format!("host: {{soft: 20%, hard: \"\"}}, max_state: checkpoint, {keys}");
    let file = room.configure(&protection, &[room.target("train", &keys)], "");
    let text = std::fs::read_to_string(&file).unwrap();
    let text = text.replace("{name: train, command_line", "{name: train, run: alpha, command_line");
    std::fs::write(&file, text).unwrap();
    file
}

/// A node with a job of the run.
struct Node {
    room: Room,
    job: Job,
    daemon: Daemon,
}

impl Node {
    fn start(mode: &str, peers: &[String], keys: &str) -> Self {
        let room = Room::staged();
        let job = Job::start(&room, &witness());
        configure(&room, mode, peers, keys);
        let daemon = room.start();
        room.wait_members(&daemon, "train", 1.0);
        Self { room, job, daemon }
    }

    fn address(&self) -> String {
        self.daemon.address.to_string()
    }

    fn count(page: &Page, direction: &str, outcome: &str) -> f64 {
        let name = format!("memwarden_run_requests_{direction}_total");
        page.get(&name, &[("outcome", outcome)]).unwrap_or(0.0)
    }

    #[track_caller]
    fn wait_count(&self, direction: &str, outcome: &str, least: f64) {
        self.daemon.wait_page(&format!("{direction} {outcome}"), SOON, |page| {
            Self::count(page, direction, outcome) >= least
        });
    }
}

const SCOPE: &str = "checkpoint: {scope: run, grace: 2s, longest_grace: 2s}";

#[test]
fn a_shortage_on_one_node_asks_the_ranks_of_all() {
    let other = Node::start("enforce", &["127.0.0.1:1".to_owned()], SCOPE);
    let down = format!("127.0.0.1:{}", free_port());
    let asking = Node::start("enforce", &[other.address(), down.clone()], SCOPE);
    asking.room.available(HOST / 10);
    asking.job.wait_said("signal 10");
    other.job.wait_said("signal 10");
    asking.wait_count("sent", "asked", 1.0);
    asking.wait_count("sent", "no_answer", 1.0);
    other.wait_count("received", "asked", 1.0);

    // Both records have one id; that of the asking node names the node that is down.
    let audit = asking.room.audit();
    let asked = audit.begun("ask_run").next().unwrap();
    let id = asked["step"]["request"]["incident"].as_str().unwrap().to_owned();
    assert_eq!(asked["step"]["run"], "alpha");
    let end = wait_for("the end of the request", SOON, || {
        let audit = asking.room.audit();
        let step = audit.begun("ask_run").next().unwrap();
        let end = audit.end(step).clone();
        (end["entry"] == "ended").then_some(end)
    });
    let said = end["output"].as_str().unwrap();
    assert!(said.starts_with("2 nodes, asked 1, no_answer 1; ") && said.contains(&down), "{said}");
    wait_for("the end of the incident", SOON, || {
        other.room.audit().moves("train").ends_with(&["cooldown", "ok"]).then_some(())
    });
    let received = other.room.audit();
    assert_eq!(received.begun("run_requested").next().unwrap()["step"]["request"]["incident"], id.as_str());
    assert_eq!(received.moves("train"), ["checkpoint", "cooldown", "ok"], "nothing beyond the request");
    assert_eq!(other.job.said(), ["up", "signal 10"]);
    received.is_paired();

    // Any node shows who asked whom.
    let folder = other.room.state().join("incidents");
    let shown = |args: &[&str]| {
        let output =
            memwarden(&["incidents", "--folder", folder.to_str().unwrap()]).args(args).output().unwrap();
        String::from_utf8(output.stdout).unwrap()
    };
    let list: serde_json::Value = serde_json::from_str(&shown(&["--format", "json"])).unwrap();
    let entry = &list["incidents"][0];
    assert_eq!(entry["run_incident"], id.as_str());
    let report = shown(&[entry["id"].as_str().unwrap()]);
    assert!(report.contains(&id) && report.contains("Another node of its run asked"), "{report}");
}

#[test]
fn two_nodes_that_ask_at_once_send_one_signal_to_each_job() {
    let nodes = [0, 1].map(|_| Node::start("enforce", &["127.0.0.1:1".to_owned()], SCOPE));
    // Each knows the address of the other only now.
    for (own, peer) in [(0, 1), (1, 0)] {
        configure(&nodes[own].room, "enforce", &[nodes[peer].address()], SCOPE);
        nodes[own].daemon.signal("HUP");
        wait_for("the new guard", SOON, || {
            (nodes[own].daemon.log().matches("Protection of train").count() >= 2).then_some(())
        });
        nodes[own].room.wait_members(&nodes[own].daemon, "train", 1.0);
        nodes[own].daemon.wait_frames(2.0);
    }
    for node in &nodes {
        node.room.available(HOST / 10);
    }
    for node in &nodes {
        node.job.wait_said("signal 10");
        node.daemon.wait_page("an answer", SOON, |page| {
            page.sum("memwarden_run_requests_sent_total", &[]) >= 1.0
                || page.sum("memwarden_run_requests_received_total", &[]) >= 1.0
        });
    }
    for node in &nodes {
        node.room.available(HOST);
        node.room.wait_move("cooldown");
        assert_eq!(node.job.said(), ["up", "signal 10"]);
    }
}

#[test]
fn observe_computes_the_request_and_sends_nothing() {
    let other = Node::start("enforce", &["127.0.0.1:1".to_owned()], SCOPE);
    let asking = Node::start("observe", &[other.address()], SCOPE);
    asking.room.available(HOST / 10);
    asking.room.wait_move("checkpoint");
    asking.daemon.wait_frames(3.0);
    let audit = asking.room.audit();
    let step = audit.begun("ask_run").next().expect("it is audited");
    assert_eq!(audit.end(step)["outcome"], "would_have");
    let page = other.daemon.page();
    assert_eq!(page.sum("memwarden_run_requests_received_total", &[]), 0.0);
    assert_eq!((asking.job.said(), other.job.said()), (vec!["up".to_owned()], vec!["up".to_owned()]));
}

#[test]
fn a_node_in_observe_acknowledges_and_sends_nothing() {
    let other = Node::start("observe", &["127.0.0.1:1".to_owned()], SCOPE);
    let asking = Node::start("enforce", &[other.address()], SCOPE);
    asking.room.available(HOST / 10);
    asking.job.wait_said("signal 10");
    asking.wait_count("sent", "would_ask", 1.0);
    assert!(other.room.audit().begun("run_requested").next().is_some());
    assert_eq!(other.job.said(), ["up"]);
}

#[test]
fn a_drill_walks_all_nodes_and_signals_nobody() {
    let other = Node::start("enforce", &["127.0.0.1:1".to_owned()], SCOPE);
    let room = Room::staged();
    let drill = |peers: &[String], run: &str| {
        let file = configure(&room, "enforce", peers, SCOPE);
        let args = ["drill", "--config.file", file.to_str().unwrap(), "--run", run];
        let output = memwarden(&args).output().unwrap();
        (output.status.code(), String::from_utf8(output.stdout).unwrap())
    };
    let (code, table) = drill(&[other.address()], "alpha");
    assert!(code == Some(0) && table.contains("would_ask"), "{table}");
    let (code, table) = drill(&[other.address(), "127.0.0.1:1".to_owned()], "alpha");
    assert!(code == Some(1) && table.contains("no_answer"), "{table}");
    let (code, table) = drill(&[other.address()], "beta");
    assert!(code == Some(1) && table.contains("no_job"), "{table}");
    other.daemon.wait_frames(2.0);
    assert_eq!(other.job.said(), ["up"]);
    assert!(!other.room.audit().went("train", "checkpoint"));
}
