//! A run on two nodes: daemons on loopback ports, each with its own job, state and memory.

use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::path::PathBuf;

use super::SOON;
use super::job::{Job, witness};
use super::room::{HOST, Room};
use crate::harness::{Daemon, Page, free_port, memwarden, wait_for};

/// The token of all nodes.
const TOKEN: &str = "a long shared secret";

/// Configures a node of the run `alpha` with these peers.
fn configure(room: &Room, mode: &str, peers: &[String], keys: &str) -> PathBuf {
    let peers: Vec<String> = peers.iter().map(|peer| format!("\"{peer}\"")).collect();
    configure_peers(room, mode, &format!("from: static, hosts: [{}], timeout: 5s", peers.join(", ")), keys)
}

/// Configures a node of the run `alpha` with these keys of `peers` beside the token.
pub(super) fn configure_peers(room: &Room, mode: &str, peers: &str, keys: &str) -> PathBuf {
    let token = room.secret("token", TOKEN);
    let protection = format!("mode: {mode}, peers: {{{peers}, token_file: {}}}", token.display());
    let keys = format!("host: {{soft: 20%, hard: \"\"}}, max_state: checkpoint, {keys}");
    let file = room.configure(&protection, &[room.target("train", &keys)], "");
    let text = std::fs::read_to_string(&file).unwrap();
    let text = text.replace("{name: train, command_line", "{name: train, run: alpha, command_line");
    std::fs::write(&file, text).unwrap();
    file
}

/// A node with a job of the run.
pub(super) struct Node {
    room: Room,
    job: Job,
    pub(super) daemon: Daemon,
}

impl Node {
    pub(super) fn start(mode: &str, peers: &[String], keys: &str) -> Self {
        Self::start_as(|room| configure(room, mode, peers, keys))
    }

    fn start_as(configure: impl FnOnce(&Room) -> PathBuf) -> Self {
        let room = Room::staged();
        let job = Job::start(&room, &witness());
        configure(&room);
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

pub(super) const SCOPE: &str = "checkpoint: {scope: run, grace: 2s, longest_grace: 2s}";

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
    let audit = asking.room.audit_with_end("ask_run");
    let asked = audit.begun("ask_run").next().unwrap();
    let id = asked["step"]["request"]["incident"].as_str().unwrap().to_owned();
    assert_eq!(asked["step"]["run"], "alpha");
    let end = audit.end(asked);
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
    let entry = of_train(&list);
    assert_eq!(entry["run_incident"], id.as_str());
    let report = shown(&[entry["id"].as_str().unwrap()]);
    assert!(report.contains(&id) && report.contains("Another node of its run asked"), "{report}");
}

/// The first entry of the target in a list of incidents. Every daemon on the machine records what the kernel kills.
fn of_train(list: &serde_json::Value) -> &serde_json::Value {
    let entries = list["incidents"].as_array().unwrap();
    entries.iter().find(|entry| entry["target"] == "train").unwrap_or(&serde_json::Value::Null)
}

/// A node that takes one request, and answers it when it is told to.
struct SlowPeer {
    listener: TcpListener,
}

impl SlowPeer {
    fn new() -> Self {
        Self { listener: TcpListener::bind("127.0.0.1:0").unwrap() }
    }

    fn address(&self) -> String {
        self.listener.local_addr().unwrap().to_string()
    }

    /// Waits for the request.
    fn asked(&self) -> TcpStream {
        let (mut stream, _) = self.listener.accept().unwrap();
        let (mut request, mut part) = (Vec::new(), [0; 4096]);
        while !request.ends_with(b"}") {
            let read = stream.read(&mut part).unwrap();
            assert!(read > 0, "the request ends early");
            request.extend_from_slice(&part[..read]);
        }
        stream
    }
}

#[test]
fn an_answer_after_the_end_of_the_incident_is_recorded() {
    let slow = SlowPeer::new();
    let peers = format!("from: static, hosts: ['{}'], timeout: 60s", slow.address());
    let asking = Node::start_as(|room| configure_peers(room, "enforce", &peers, SCOPE));
    asking.room.available(HOST / 10);
    let mut stream = slow.asked();
    asking.room.available(HOST);
    wait_for("the end of the incident", SOON, || {
        asking.room.audit().moves("train").ends_with(&["cooldown", "ok"]).then_some(())
    });
    let folder = asking.room.state().join("incidents");
    let shown = |args: &[&str]| {
        let output =
            memwarden(&["incidents", "--folder", folder.to_str().unwrap()]).args(args).output().unwrap();
        String::from_utf8(output.stdout).unwrap()
    };
    let entry = || {
        let list: serde_json::Value = serde_json::from_str(&shown(&["--format", "json"])).unwrap();
        of_train(&list).clone()
    };
    wait_for("the record", SOON, || entry()["ended_unix_seconds"].is_number().then_some(()));
    assert!(entry()["answers"].is_null() && entry()["asked_run"] == "alpha", "{}", entry());
    let body = r#"{"outcome":"asked","host":"late","processes":1}"#;
    write!(stream, "HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{body}", body.len()).unwrap();
    let answers = wait_for("the answer", SOON, || Some(entry()["answers"].as_str()?.to_owned()));
    assert!(answers.starts_with("1 node, asked 1; "), "{answers}");
    let audit = asking.room.audit_with_end("ask_run");
    let step = audit.begun("ask_run").next().unwrap();
    assert_eq!(audit.end(step)["incident"], step["incident"]);
    let text = shown(&[]).split_whitespace().collect::<Vec<_>>().join(" ");
    let id = step["step"]["request"]["incident"].as_str().unwrap();
    assert!(text.contains("Asked the other nodes of alpha: 1 node, asked 1") && text.contains(id), "{text}");
}

#[test]
fn the_other_nodes_go_on_when_the_asking_node_is_killed() {
    let other = Node::start("enforce", &["127.0.0.1:1".to_owned()], SCOPE);
    let slow = SlowPeer::new();
    let mut asking = Node::start("enforce", &[slow.address(), other.address()], SCOPE);
    asking.room.available(HOST / 10);
    // The request is on its way, and one answer is missing.
    let stream = slow.asked();
    other.job.wait_said("signal 10");
    asking.daemon.signal("KILL");
    asking.daemon.wait(SOON);
    drop(stream);
    wait_for("the end of the incident", SOON, || {
        let audit = other.room.audit();
        (audit.moves("train") == ["checkpoint", "cooldown", "ok"]).then_some(())
    });
    assert_eq!(other.job.said(), ["up", "signal 10"]);
    other.room.paired_audit();
    other.daemon.wait_frames(1.0);
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
    let audit = asking.room.audit_with("ask_run");
    let step = audit.begun("ask_run").next().unwrap();
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
    other.room.audit_with("run_requested");
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
