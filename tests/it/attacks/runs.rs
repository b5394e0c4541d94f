//! Requests for a checkpoint of a run from those who may not ask.

use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt as _;
use std::time::{Duration, SystemTime};

use base64::Engine as _;
use ring::hmac;

use crate::harness::{Daemon, memwarden, request, wait_for};
use crate::protection::job::{Job, witness};
use crate::protection::room::Room;

const TOKEN: &str = "a long shared secret";

/// A node with a job of the run `alpha`.
fn node(peers: &str) -> (Room, Job, Daemon) {
    let room = Room::staged();
    let job = Job::start(&room, &witness());
    let peers = peers.replace("TOKEN", room.secret("token", TOKEN).to_str().unwrap());
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

/// The clock of another node, in seconds since 1970.
#[expect(clippy::disallowed_methods, reason = "the clock of another node")]
fn now() -> u64 {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap().as_secs()
}

fn body(number: u32, user: &str) -> String {
    body_of(number, user, now())
}

fn body_of(number: u32, user: &str, time: u64) -> String {
    format!(
        r#"{{"incident":"incident-{number}@x","from":"x","user":"{user}","reason":"soft_level","unix_seconds":{time},"nonce":"{number:032x}"}}"#
    )
}

const PATH: &str = "/api/v1/runs/alpha/checkpoint";

/// The `Authorization` header of a request to `path` that is signed with `token`.
fn signature(token: &str, path: &str, body: &str) -> String {
    let key = hmac::Key::new(hmac::HMAC_SHA256, token.as_bytes());
    let tag = hmac::sign(&key, format!("POST {path}\n{body}").as_bytes());
    let tag = base64::engine::general_purpose::STANDARD.encode(tag);
    format!("Authorization: Memwarden-HMAC-SHA256 {tag}\r\n")
}

/// Posts a request, signed with the token if there is one.
fn post(daemon: &Daemon, token: Option<&str>, body: &str) -> (u16, String) {
    post_with(daemon, &token.map_or_else(String::new, |token| signature(token, PATH, body)), body)
}

fn post_with(daemon: &Daemon, authorization: &str, body: &str) -> (u16, String) {
    let head = format!(
        "POST {PATH} HTTP/1.1\r\nHost: localhost\r\n{authorization}Content-Type: application/json\r\n"
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
        assert_eq!(post(&daemon, Some(wrong), &own).0, 401, "{wrong}");
    }
    // The token alone, and the signature of a request for another run and of one of another user, authorize nothing.
    let bearer = format!("Authorization: Bearer {TOKEN}\r\n");
    let other_run = signature(TOKEN, "/api/v1/runs/beta/checkpoint", &own);
    for wrong in [bearer, other_run, signature(TOKEN, PATH, &body(1, "mallory"))] {
        assert_eq!(post_with(&daemon, &wrong, &own).0, 401, "{wrong}");
    }
    daemon.wait_frames(3.0);
    assert_eq!(job.said(), ["up"]);
    let refused = daemon.page().get("memwarden_run_requests_received_total", &[("outcome", "refused")]);
    assert_eq!(refused, Some(9.0));
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
    // One that was recorded an hour ago is too old, and with another time its signature is another.
    let recorded = body_of(3, &user(), now() - 3600);
    let (code, answer) = post(&daemon, Some(TOKEN), &recorded);
    assert!(code == 400 && answer.contains("clock"), "{answer}");
    assert_eq!(post_with(&daemon, &signature(TOKEN, PATH, &recorded), &body(3, &user())).0, 401);
    // With another id and nonce, it is the request that is under way already.
    let (code, answer) = post(&daemon, Some(TOKEN), &body(2, &user()));
    assert!(code == 200 && answer.contains("already"), "{answer}");
    daemon.wait_frames(3.0);
    assert_eq!(job.count("signal 10"), 1);
}

/// A server that lists every name as an instance of every run, and what it was sent.
fn false_node(requests: usize) -> (u16, std::thread::JoinHandle<Vec<String>>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let serve = move || {
        let mut heard = Vec::new();
        for stream in listener.incoming().take(requests) {
            let mut stream = stream.unwrap();
            let (mut request, mut part) = (Vec::new(), [0; 4096]);
            // A request of GET ends with an empty line, and the body of POST is one JSON object.
            while !request.ends_with(b"\r\n\r\n") && !request.ends_with(b"}") {
                let read = stream.read(&mut part).unwrap();
                assert!(read > 0, "{request:?}");
                request.extend_from_slice(&part[..read]);
            }
            let request = String::from_utf8(request).unwrap();
            let list = format!(r#"{{"data":{{"result":[{{"metric":{{"instance":"127.0.0.1:{port}"}}}}]}}}}"#);
            let body = if request.starts_with("GET ") { &list } else { "{}" };
            write!(
                stream,
                "HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: {}\r\n\r\n{body}",
                body.len()
            )
            .unwrap();
            heard.push(request);
        }
        heard
    };
    (port, std::thread::spawn(serve))
}

#[test]
fn a_node_that_names_itself_as_one_of_the_run_does_not_get_the_token() {
    let (port, heard) = false_node(2);
    let peers = format!("peers: {{from: prometheus, url: 'http://127.0.0.1:{port}', token_file: TOKEN}}");
    let (room, job, daemon) = node(&peers);
    let file = room.path("memwarden.yaml");
    let drill = ["drill", "--config.file", file.to_str().unwrap(), "--run", "alpha"];
    assert!(memwarden(&drill).output().unwrap().status.code().is_some());
    let heard = heard.join().unwrap();
    let request = &heard[1];
    assert!(request.starts_with(&format!("POST {PATH} ")), "{request}");
    assert!(heard.iter().all(|request| !request.contains(TOKEN)), "{heard:?}");
    // What it has been sent is a dry run of this run, and nothing else is signed by it.
    let authorization = request.lines().find(|line| line.to_lowercase().starts_with("authorization: "));
    let authorization = format!("{}\r\n", authorization.unwrap());
    let body = request.split_once("\r\n\r\n").unwrap().1;
    assert_eq!(
        post_with(&daemon, &authorization, &body.replace("\"dry_run\":true", "\"dry_run\":false")).0,
        401
    );
    let (code, answer) = post_with(&daemon, &authorization, body);
    assert!(code == 200 && answer.contains("would_ask"), "{answer}");
    assert_eq!(post_with(&daemon, &authorization, body).0, 409);
    daemon.wait_frames(3.0);
    assert_eq!(job.said(), ["up"]);
}

#[test]
fn a_token_file_that_others_can_read_is_not_used() {
    let (room, job, daemon) = node(PEERS);
    let mode =
        |mode| std::fs::set_permissions(room.path("token"), std::fs::Permissions::from_mode(mode)).unwrap();
    for others in [0o644, 0o602] {
        mode(others);
        for _ in 0..2 {
            assert_eq!(post(&daemon, Some(TOKEN), &body(1, &user())).0, 401, "{others:o}");
        }
        let file = room.path("memwarden.yaml");
        let drill = ["drill", "--config.file", file.to_str().unwrap(), "--run", "alpha"];
        let output = memwarden(&drill).output().unwrap();
        let text = String::from_utf8_lossy(&output.stderr);
        assert!(text.contains("other users can read or write it"), "{text}");
        assert_eq!(output.status.code(), Some(1));
    }
    wait_for("one line in the log for each mode", Duration::from_secs(20), || {
        (daemon.logged(&["other users can read or write it"]).len() == 2).then_some(())
    });
    mode(0o600);
    assert_eq!(post(&daemon, Some(TOKEN), &body(2, &user())).0, 200);
    job.wait_said("signal 10");
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
