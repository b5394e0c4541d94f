//! Users, headers, rate limit, and a web-config file that changes under the server.

use std::path::PathBuf;
use std::sync::Arc;

use tokio::net::TcpStream;

use super::client::{again, ask, basic, crowd, get};
use super::{Running, ServeError, web};
use crate::config::Web;
use crate::protection::record::store::Store;
use crate::protection::types::incidents::RECORD;

struct File {
    folder: tempfile::TempDir,
}

impl File {
    fn new(text: &str) -> Self {
        let file = Self { folder: tempfile::tempdir().unwrap() };
        file.write(text);
        file
    }

    fn path(&self) -> PathBuf {
        self.folder.path().join("web.yml")
    }

    fn write(&self, text: &str) {
        std::fs::write(self.path(), text).unwrap();
    }
}

fn users(list: &[(&str, &str)]) -> String {
    let line =
        |(user, password): &(&str, &str)| format!("  {user}: {}\n", bcrypt::hash(password, 4).unwrap());
    format!("basic_auth_users:\n{}", list.iter().map(line).collect::<String>())
}

#[tokio::test]
async fn every_page_asks_who_it_is() {
    let file = File::new(&users(&[("alice", "secret")]));
    let server = Running::with_web_config(file.path());
    for path in ["/", "/metrics", "/api/v1/frame", "/-/healthy", "/-/ready", "/nothing"] {
        let reply = ask(server.address, get(path, "")).await;
        assert_eq!(reply.status, 401, "{path}");
        assert!(reply.headers["www-authenticate"].starts_with("Basic "), "{path}");
        assert!(!reply.text().contains("memwarden_"));
    }
    for (user, password, expected) in
        [("alice", "secret", 200), ("alice", "wrong", 401), ("bob", "secret", 401), ("alice", "", 401)]
    {
        let reply = ask(server.address, get("/metrics", &basic(user, password))).await;
        assert_eq!(reply.status, expected, "{user}:{password}");
    }
    for wrong in ["Authorization: Bearer x\r\n", "Authorization: Basic ###\r\n", "Authorization:\r\n"] {
        assert_eq!(ask(server.address, get("/metrics", wrong)).await.status, 401);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn guessing_passwords_does_not_stop_a_scrape() {
    // So slow a hash that those who wait for their turn would still do at the end of the test.
    let hash = bcrypt::hash("secret", 9).unwrap();
    let file = File::new(&format!("basic_auth_users:\n  alice: {hash}\n"));
    let server = Running::with_web_config(file.path());
    let scrape = get("/metrics", &basic("alice", "secret"));
    assert_eq!(ask(server.address, &scrape).await.status, 200);
    let _crowd = crowd(server.address, 600, &get("/metrics", &basic("alice", "wrong"))).await;
    for _ in 0..32 {
        assert_eq!(ask(server.address, &scrape).await.status, 200);
    }
    assert!(server.limited("rate") > 0.0);
    // One that waits for its turn may get it, or be closed for those who need the room; in the end it is turned away.
    let bob = get("/metrics", &basic("bob", "secret"));
    let turned_away = loop {
        let mut stream = TcpStream::connect(server.address).await.unwrap();
        match again(&mut stream, &bob).await {
            Some(reply) if reply.status != 401 => break reply,
            _ => {}
        }
    };
    assert_eq!((turned_away.status, turned_away.headers["connection"].as_str()), (429, "close"));
}

#[tokio::test]
async fn a_file_that_breaks_is_500_until_it_is_repaired() {
    let file = File::new(&users(&[("alice", "secret")]));
    let server = Running::with_web_config(file.path());
    let secret = get("/metrics", &basic("alice", "secret"));
    let fresh = get("/metrics", &basic("bob", "fresh"));
    assert_eq!(ask(server.address, &secret).await.status, 200);
    file.write("basic_auth_users: [");
    for request in [&secret, &get("/-/healthy", "")] {
        let reply = ask(server.address, request).await;
        assert_eq!((reply.status, reply.text()), (500, "The web-config file is invalid; see the log.\n"));
    }
    file.write(&users(&[("bob", "fresh")]));
    assert_eq!(ask(server.address, &fresh).await.status, 200);
    assert_eq!(ask(server.address, &secret).await.status, 401, "no longer a user");
    std::fs::remove_file(file.path()).unwrap();
    assert_eq!(ask(server.address, &fresh).await.status, 500);
    file.write("");
    let mut stream = TcpStream::connect(server.address).await.unwrap();
    assert_eq!(again(&mut stream, &get("/metrics", "")).await.unwrap().status, 200, "no users, no question");
    file.write(&users(&[("bob", "fresh")]));
    assert_eq!(
        again(&mut stream, &get("/metrics", "")).await.unwrap().status,
        401,
        "on a kept connection too"
    );
}

#[tokio::test]
async fn configured_headers_are_added_and_win() {
    let file = File::new(
        "http_server_config:\n  headers:\n    Content-Security-Policy: default-src 'self'\n    X-Frame-Options: deny\n",
    );
    let server = Running::with_web_config(file.path());
    for path in ["/", "/metrics", "/nothing"] {
        let reply = ask(server.address, get(path, "")).await;
        assert_eq!(reply.headers["content-security-policy"], "default-src 'self'", "{path}");
        assert_eq!(reply.headers["x-frame-options"], "deny", "{path}");
    }
}

#[tokio::test]
async fn more_than_the_rate_is_429() {
    let file = File::new("rate_limit:\n  interval: 1h\n  burst: 3\n");
    let server = Running::with_web_config(file.path());
    let mut codes = Vec::new();
    for _ in 0..5 {
        codes.push(ask(server.address, get("/metrics", "")).await.status);
    }
    assert_eq!(codes, [200, 200, 200, 429, 429]);
    assert_eq!(server.limited("rate"), 2.0);
}

#[tokio::test]
async fn a_broken_file_is_refused_at_the_start() {
    let file = File::new("basic_auth_users:\n  alice: secret\n");
    let setup = Web { config_file: Some(file.path()), ..web() };
    let error = Running::try_start(setup, None, Ok(()), super::PATIENCE).err().unwrap();
    assert!(matches!(&error, ServeError::WebConfig { path, .. } if *path == file.path()));
    let source = std::error::Error::source(&error).unwrap().to_string();
    assert!(source.contains(":2: basic_auth_users.alice: is not a bcrypt hash"), "{source}");
    assert!(!source.contains("secret"), "{source}");
}

#[tokio::test]
async fn alerts_are_accepted_from_known_senders() {
    let message = r#"{"version":"4","alerts":[{"status":"firing","labels":{"alertname":"x"}}]}"#;
    let post = |headers: &str, body: &str| {
        let length = body.len();
        format!(
            "POST /api/v1/alerts HTTP/1.1\r\nHost: test\r\nContent-Type: application/json\r\n\
             Content-Length: {length}\r\n{headers}\r\n{body}"
        )
    };
    let open = Running::start(web());
    for (headers, expected) in [
        ("", 401),
        ("Authorization: Bearer s3crex\r\n", 401),
        ("Authorization: Bearer s3cret\r\n", 200),
        ("Authorization: bearer s3cret\r\n", 200),
    ] {
        assert_eq!(ask(open.address, post(headers, message)).await.status, expected, "{headers}");
    }
    let token = "Authorization: Bearer s3cret\r\n";
    assert_eq!(ask(open.address, post(token, message)).await.text(), "Accepted alerts: 1.\n");
    assert_eq!(ask(open.address, get("/api/v1/alerts", token)).await.status, 405);
    let large = format!("{}{message}", " ".repeat(100_000));
    assert_eq!(ask(open.address, post(token, &large)).await.status, 200, "more than other pages take");
    assert_eq!(ask(open.address, post(token, &" ".repeat(600_000))).await.status, 413);
    let file = File::new(&users(&[("alice", "secret")]));
    let guarded = Running::with_web_config(file.path());
    assert_eq!(ask(guarded.address, post("", message)).await.status, 401);
    let known = basic("alice", "secret");
    let text = post(&known, message).replace("application/json", "text/plain");
    assert_eq!(ask(guarded.address, text).await.status, 415, "what a page of another site can send");
    let foreign = post(&format!("{known}Origin: http://evil.example\r\n"), message);
    assert_eq!(ask(guarded.address, foreign).await.status, 403);
    assert_eq!(ask(guarded.address, post(&basic("alice", "secret"), message)).await.status, 200);
}

#[tokio::test]
async fn incidents_are_for_who_is_authenticated() {
    let folder = tempfile::tempdir().unwrap();
    let store = Store::new(folder.path().join("incidents"));
    let open = Running::with_incidents(Some(Arc::new(store.clone())), web());
    for path in ["/api/v1/incidents", "/api/v1/incidents/i1", "/api/v1/incidents/i1/memory.svg"] {
        let reply = ask(open.address, get(path, "")).await;
        assert_eq!(reply.status, 403, "{path}");
        assert!(reply.text().contains("web.config_file"), "{}", reply.text());
    }
    let file = File::new(&users(&[("alice", "secret")]));
    let web = Web { config_file: Some(file.path()), ..web() };
    let empty = r#"{"schema_version":1,"incidents":[]}"#;
    let known = basic("alice", "secret");
    let without = Running::with_incidents(None, web.clone());
    assert_eq!(ask(without.address, get("/api/v1/incidents", &known)).await.text(), empty);
    let server = Running::with_incidents(Some(Arc::new(store.clone())), web);
    let asked = |path: &str| ask(server.address, get(&format!("/api/v1/incidents{path}"), &known));
    assert_eq!(asked("").await.text(), empty);
    assert_eq!(ask(server.address, get("/api/v1/incidents", "")).await.status, 401);
    let files =
        [(RECORD.to_owned(), b"{\"schema\":1}".to_vec()), ("memory.svg".to_owned(), b"<svg/>".to_vec())];
    store.write("i1", &files).unwrap();
    std::fs::write(folder.path().join("secret"), "not for anybody").unwrap();
    let reply = asked("").await;
    assert_eq!((reply.status, reply.headers["content-type"].as_str()), (200, "application/json"));
    assert!(reply.text().contains("\"id\":\"i1\""), "{}", reply.text());
    let one = asked("/i1").await;
    assert_eq!((one.status, one.text()), (200, "{\"schema\":1}"));
    let chart = asked("/i1/memory.svg").await;
    assert_eq!((chart.status, chart.text()), (200, "<svg/>"));
    assert_eq!(chart.headers["content-type"], "image/svg+xml");
    for path in ["i2", "", "../secret", "..%2fsecret", ".", "i1/none.csv", "i1/../../secret", "i1/"] {
        assert_eq!(asked(&format!("/{path}")).await.status, 404, "{path}");
    }
}

#[tokio::test]
async fn requests_of_other_sites_are_refused() {
    let server = Running::start(web());
    let rebound = get("/metrics", "").replace("Host: test", "Host: evil.example");
    assert_eq!(ask(server.address, rebound).await.status, 421);
    let reload = "POST /-/reload HTTP/1.1\r\nHost: test\r\nContent-Length: 0\r\n";
    for headers in ["Origin: http://evil.example\r\n", "Origin: null\r\n", "Sec-Fetch-Site: cross-site\r\n"] {
        assert_eq!(ask(server.address, format!("{reload}{headers}\r\n")).await.status, 403, "{headers}");
    }
    assert_eq!(ask(server.address, format!("{reload}Origin: http://test\r\n\r\n")).await.status, 200);
}
