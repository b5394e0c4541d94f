//! Requests for a checkpoint of a run from those who may not ask.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::time::{Duration, SystemTime};

use crate::harness::{Daemon, request};
use crate::protection::job::{Job, witness};
use crate::protection::room::Room;

const TOKEN: &str = "a long shared secret";

/// A node with a job of the run `alpha`.
fn node(peers: &str) -> (Room, Job, Daemon) {
    let room = Room::staged();
    let job = Job::start(&room, &witness());
    std::fs::write(room.path("token"), TOKEN).unwrap();
    let peers = peers.replace("TOKEN", room.path("token").to_str().unwrap());
    let keys = "host: {soft: 5%}, checkpoint: {grace: 1s}";
    let file = room.configure(&format!("mode: enforce, {peers}"), &[room.target("train", keys)], "");
    let text = std::fs::read_to_string(&file).unwrap();
    std::fs::write(
        &file,
        text.replace("{name: train, command_line", "{name: train, run: alpha, command_line"),
    )
    .unwrap();
    let daemon = room.start();
    room.wait_members(&daemon, "train", 1.0);
    (room, job, daemon)
}

const PEERS: &str = "peers: {from: static, hosts: [\"127.0.0.1:1\"], token_file: TOKEN}";

fn body(number: u32, user: &str) -> String {
    #[expect(clippy::disallowed_methods, reason = "the clock of another node")]
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap().as_secs();
    format!(
        r#"{{"incident":"incident-{number}@x","from":"x","user":"{user}","reason":"soft_level","unix_seconds":{now},"nonce":"{number:032x}"}}"#
    )
}

fn post(daemon: &Daemon, token: Option<&str>, body: &str) -> (u16, String) {
    let token = token.map_or_else(String::new, |token| format!("Authorization: Bearer {token}\r\n"));
    let head = format!(
        "POST /api/v1/runs/alpha/checkpoint HTTP/1.1\r\nHost: localhost\r\n{token}Content-Type: application/json\r\n"
    );
    let text = format!("{head}Content-Length: {}\r\nConnection: close\r\n\r\n{body}", body.len());
    let answer = request(daemon.address, &text);
    (answer.code, answer.body)
}

/// The name of the user of this test.
fn user() -> String {
    let uid = rustix::process::getuid().as_raw().to_string();
    let passwd = std::fs::read_to_string("/etc/passwd").unwrap();
    let line = passwd.lines().find(|line| line.split(':').nth(2) == Some(&uid));
    line.map_or(uid.clone(), |line| line.split(':').next().unwrap().to_owned())
}

#[test]
fn nobody_without_the_token_asks_a_run_for_a_checkpoint() {
    let (_room, job, daemon) = node(PEERS);
    let own = body(1, &user());
    assert_eq!(post(&daemon, None, &own).0, 403);
    for wrong in ["", "a", "a long shared secre", "a long shared secreT", "a long shared secret2"] {
        let expected = if wrong.is_empty() { 403 } else { 401 };
        assert_eq!(post(&daemon, Some(wrong), &own).0, expected, "{wrong}");
    }
    daemon.wait_frames(3.0);
    assert_eq!(job.said(), ["up"]);
    let refused = daemon.page().get("memwarden_run_requests_received_total", &[("outcome", "refused")]);
    assert_eq!(refused, Some(6.0));
}

#[test]
fn a_node_without_a_token_refuses_every_request_for_a_run() {
    let (_room, job, daemon) = node("max_kills_per_hour: 5");
    for token in [None, Some(""), Some(TOKEN)] {
        assert!(matches!(post(&daemon, token, &body(1, &user())).0, 401 | 403));
    }
    daemon.wait_frames(3.0);
    assert_eq!(job.said(), ["up"]);
}

#[test]
fn a_replayed_request_for_a_run_is_refused() {
    let (_room, job, daemon) = node(PEERS);
    let own = body(1, &user());
    let (code, answer) = post(&daemon, Some(TOKEN), &own);
    assert!(code == 200 && answer.contains(r#""outcome":"asked""#), "{answer}");
    job.wait_said("signal 10");
    for _ in 0..3 {
        let (code, answer) = post(&daemon, Some(TOKEN), &own);
        assert!(code == 409 && answer.contains("replayed"), "{answer}");
    }
    // With another id and nonce, it is the request that is under way already.
    let (code, answer) = post(&daemon, Some(TOKEN), &body(2, &user()));
    assert!(code == 200 && answer.contains("already"), "{answer}");
    daemon.wait_frames(3.0);
    assert_eq!(job.count("signal 10"), 1);
}

#[test]
fn the_name_of_a_run_of_another_user_asks_nobody() {
    let (_room, job, daemon) = node(PEERS);
    let (code, answer) = post(&daemon, Some(TOKEN), &body(1, "mallory"));
    assert!(code == 403 && answer.contains("other_user"), "{answer}");
    daemon.wait_frames(3.0);
    assert_eq!(job.said(), ["up"]);
}

#[test]
fn large_and_malformed_requests_for_a_run_are_refused() {
    let (_room, job, daemon) = node(PEERS);
    let large = format!("{{\"incident\":\"{}\"}}", "x".repeat(64 * 1024));
    assert_eq!(post(&daemon, Some(TOKEN), &large).0, 413);
    for wrong in ["", "[]", "{}", "{\"incident\":1}", "\u{0}"] {
        assert_eq!(post(&daemon, Some(TOKEN), wrong).0, 400, "{wrong}");
    }
    let hidden = body(1, &user()).replace("soft_level", "\\u001b[2J");
    assert_eq!(post(&daemon, Some(TOKEN), &hidden).0, 400);
    assert_eq!(job.said(), ["up"]);
}

#[test]
fn a_slow_request_for_a_run_delays_no_other() {
    let (_room, job, daemon) = node(PEERS);
    let head = "POST /api/v1/runs/alpha/checkpoint HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n\
                Content-Length: 200\r\n\r\n{";
    let mut slow: Vec<TcpStream> = (0..20).map(|_| TcpStream::connect(daemon.address).unwrap()).collect();
    for stream in &mut slow {
        stream.write_all(head.as_bytes()).unwrap();
    }
    let (code, answer) = post(&daemon, Some(TOKEN), &body(1, &user()));
    assert!(code == 200 && answer.contains("asked"), "{answer}");
    job.wait_said("signal 10");
    // The slow ones are ended by the daemon.
    let mut first = slow.swap_remove(0);
    first.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    let mut rest = Vec::new();
    let _ = first.read_to_end(&mut rest);
    assert_eq!(job.count("signal 10"), 1);
}
