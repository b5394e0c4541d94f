//! Alertmanager asks for a checkpoint, and is heard only where somebody vouches for it.

use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::process::{Child, Stdio};

use super::SOON;
use super::job::{Job, witness};
use super::room::Room;
use crate::harness::{Daemon, free_port, program, request, tool, wait_for};

fn post(daemon: &Daemon, token: Option<&str>, status: &str, name: &str) -> u16 {
    post_for(daemon, token, status, name, "")
}

/// An alert with more labels, which follow a comma.
fn post_for(daemon: &Daemon, token: Option<&str>, status: &str, name: &str, labels: &str) -> u16 {
    let body = format!(
        r#"{{"version":"4","groupKey":"g","status":"{status}","receiver":"node","alerts":[{{"status":"{status}","labels":{{"alertname":"{name}","instance":"a:1"{labels}}},"annotations":{{}},"startsAt":"2026-01-01T00:00:00Z","endsAt":"0001-01-01T00:00:00Z","generatorURL":"","fingerprint":"1"}}]}}"#
    );
    let token = token.map_or_else(String::new, |token| format!("Authorization: Bearer {token}\r\n"));
    let head = format!(
        "POST /api/v1/alerts HTTP/1.1\r\nHost: localhost\r\n{token}Content-Type: application/json\r\n"
    );
    let text = format!("{head}Content-Length: {}\r\nConnection: close\r\n\r\n{body}", body.len());
    request(daemon.address, &text).code
}

#[test]
fn an_alert_of_who_is_known_asks_for_a_checkpoint_and_no_more() {
    let room = Room::staged();
    let mut job = Job::start(&room, &witness());
    let token = room.secret("token", "a secret that is long\n");
    let keys = "host: {soft: 5%}, checkpoint: {grace: 100ms}, term_grace: 100ms, \
                alert: {labels: {alertname: Node*}}";
    let protection = format!("mode: enforce, alert_token_file: {}", token.display());
    room.configure(&protection, &[room.target("train", keys)], "");
    let daemon = room.start();
    room.wait_members(&daemon, "train", 1.0);
    assert_eq!(post(&daemon, None, "firing", "NodeMemoryLow"), 401);
    assert_eq!(post(&daemon, Some("a guess which is long"), "firing", "NodeMemoryLow"), 401);
    assert_eq!(post(&daemon, Some("a secret that is long"), "firing", "SomethingElse"), 200);
    daemon.wait_frames(3.0);
    assert_eq!(job.said(), ["up"], "nobody was asked for who is not known, or for what is for others");
    let told =
        |status, labels| post_for(&daemon, Some("a secret that is long"), status, "NodeMemoryLow", labels);
    assert_eq!(told("firing", r#","workload":"other""#), 200);
    daemon.wait_frames(3.0);
    assert!(room.audit().moves("train").is_empty(), "the alert is for another job");
    assert_eq!(told("firing", ""), 200);
    wait_for("the warning", SOON, || (room.audit().moves("train") == ["warn"]).then_some(()));
    daemon.wait_frames(3.0);
    assert_eq!((job.said(), room.audit().moves("train")), (vec!["up".to_owned()], vec!["warn"]));
    assert_eq!(told("firing", r#","workload":"train""#), 200);
    job.wait_said("signal 10");
    // Far longer than its grace.
    daemon.wait_frames(5.0);
    for labels in ["", r#","workload":"other""#, r#","workload":"train""#] {
        assert_eq!(told("resolved", labels), 200);
    }
    wait_for("the end of the incident", SOON, || {
        room.audit().moves("train").ends_with(&["cooldown", "ok"]).then_some(())
    });
    assert_eq!((job.said(), job.ended()), (vec!["up".to_owned(), "signal 10".to_owned()], None));
    let page = daemon.page();
    let count = |outcome| page.get("memwarden_protection_alerts_total", &[("outcome", outcome)]);
    assert_eq!((count("matched"), count("unmatched"), count("refused")), (Some(3.0), Some(1.0), Some(2.0)));
}

#[test]
fn without_authentication_no_alert_is_accepted() {
    let room = Room::staged();
    let daemon = room.guard("host: {soft: 5%}, alert: {labels: {alertname: x}}");
    assert_eq!(post(&daemon, None, "firing", "x"), 403);
    assert_eq!(post(&daemon, Some("x"), "firing", "x"), 403);
}

/// The real Alertmanager, which sends everything to the daemon.
struct Alertmanager {
    child: Child,
    address: SocketAddr,
}

impl Alertmanager {
    /// Starts it; nothing where it is not installed.
    fn start(room: &Room, daemon: &Daemon, token: &Path) -> Option<Self> {
        let binary = tool("prometheus-alertmanager")?;
        let config = format!(
            "route: {{receiver: node, group_wait: 100ms, group_interval: 1s}}\n\
             receivers:\n  - name: node\n    webhook_configs:\n      - url: http://{}/api/v1/alerts\n        \
             http_config: {{authorization: {{credentials_file: {}}}}}\n",
            daemon.address,
            token.display()
        );
        let file = room.path("alertmanager.yml");
        std::fs::write(&file, config).unwrap();
        let address: SocketAddr = format!("127.0.0.1:{}", free_port()).parse().unwrap();
        let child = program(binary)
            .arg(format!("--config.file={}", file.display()))
            .arg(format!("--storage.path={}", room.path("alertmanager").display()))
            .arg(format!("--web.listen-address={address}"))
            .arg("--cluster.listen-address=")
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let started = Self { child, address };
        wait_for("Alertmanager", SOON, || TcpStream::connect(address).ok());
        Some(started)
    }

    /// Tells it of an alert, as Prometheus does; it has ended where it says so.
    fn tell(&self, alert: &str) {
        let body = format!("[{alert}]");
        let head = "POST /api/v2/alerts HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nConnection: close";
        let answer =
            request(self.address, &format!("{head}\r\nContent-Length: {}\r\n\r\n{body}", body.len()));
        assert_eq!(answer.code, 200, "{}", answer.body);
    }
}

impl Drop for Alertmanager {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn alerts_of_the_real_alertmanager_are_accepted() {
    let room = Room::staged();
    let mut job = Job::start(&room, &witness());
    let token = room.secret("token", "a secret that is long");
    let keys = "host: {soft: 5%}, checkpoint: {grace: 60s}, \
                alert: {labels: {alertname: Node*}, all_jobs: true}";
    let protection = format!("mode: enforce, alert_token_file: {}", token.display());
    room.configure(&protection, &[room.target("train", keys)], "");
    let daemon = room.start();
    let Some(manager) = Alertmanager::start(&room, &daemon, &token) else { return };
    room.wait_members(&daemon, "train", 1.0);
    manager.tell(r#"{"labels": {"alertname": "SomethingElse"}}"#);
    manager.tell(r#"{"labels": {"alertname": "NodeMemoryLow"}, "startsAt": "2026-01-01T00:00:00Z"}"#);
    job.wait_said("signal 10");
    manager.tell(
        r#"{"labels": {"alertname": "NodeMemoryLow"}, "startsAt": "2026-01-01T00:00:00Z",
            "endsAt": "2026-01-02T00:00:00Z"}"#,
    );
    wait_for("the end of the incident", SOON, || {
        room.audit().moves("train").ends_with(&["cooldown", "ok"]).then_some(())
    });
    assert_eq!((job.said(), job.ended()), (vec!["up".to_owned(), "signal 10".to_owned()], None));
}
