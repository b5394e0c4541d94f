//! Routes, methods, formats, encodings, states.

use std::io::Read as _;
use std::time::Duration;

use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;

use super::client::{again, ask, get, read};
use super::{PATIENCE, Running, frames, web};
use crate::config::Web;

#[tokio::test]
async fn every_page_answers() {
    let server = Running::start(web());
    for (path, kind, part) in [
        ("/", "text/html; charset=utf-8", "<h1 class=\"node\"><a href=\"/\">test</a></h1>"),
        ("/gpus/0", "text/html; charset=utf-8", "GPU 0 "),
        ("/workloads", "text/html; charset=utf-8", "train.service"),
        ("/workloads/slurm%2F17?range=2h", "text/html; charset=utf-8", "slurm/17"),
        ("/protection", "text/html; charset=utf-8", "No protection target is configured"),
        ("/incidents", "text/html; charset=utf-8", "to authenticated clients only"),
        ("/incidents/x", "text/html; charset=utf-8", "to authenticated clients only"),
        ("/events", "text/html; charset=utf-8", "Nothing has changed"),
        ("/page.js", "text/javascript; charset=utf-8", "visibilitychange"),
        ("/icon.svg", "image/svg+xml", "<svg"),
        ("/api/v1/node", "application/json", "\"verdict\":"),
        ("/api/v1/history", "application/json", "\"max_series\":208"),
        ("/api/v1/history?subject=gpu&gpu=0", "application/json", "memory_used_bytes"),
        (
            "/metrics",
            "text/plain; version=0.0.4; charset=utf-8",
            "\nmemwarden_host_memory_total_bytes 68719476736\n",
        ),
        ("/metrics?collect[]=memory&x=%ff", "text/plain; version=0.0.4; charset=utf-8", "memwarden_gpu"),
        ("/api/v1/frame", "application/json", "\"schema_version\":1"),
        ("/api/v1/timeline?rank=0", "application/json", "\"entries\":[]"),
        ("/-/healthy", "text/plain; charset=utf-8", "healthy"),
        ("/-/ready", "text/plain; charset=utf-8", "ready"),
    ] {
        let reply = ask(server.address, get(path, "")).await;
        assert_eq!((reply.status, reply.headers["content-type"].as_str()), (200, kind), "{path}");
        assert!(reply.text().contains(part), "{path}: {}", reply.text());
        assert_eq!(reply.headers["x-content-type-options"], "nosniff");
        let head = ask(server.address, get(path, "").replacen("GET", "HEAD", 1)).await;
        assert_eq!((head.status, head.body.len()), (200, 0), "{path}");
        let reply_is_html = kind.starts_with("text/html");
        let but_date = |mut headers: std::collections::HashMap<String, String>| {
            headers.remove("date");
            // Pages say for how long the daemon is up.
            if reply_is_html {
                headers.remove("content-length");
            }
            headers
        };
        assert_eq!(but_date(head.headers), but_date(reply.headers), "{path}");
    }
    assert_eq!(server.count("memwarden_http_requests_total", "2xx"), 38.0);
}

#[tokio::test]
async fn wrong_paths_and_methods_get_their_status() {
    let server = Running::start(web());
    for path in ["/metrics/", "/favicon.ico", "//", "/-/quit", "/metrics%00", "/../metrics", "*"] {
        assert_eq!(ask(server.address, get(path, "")).await.status, 404, "{path}");
    }
    for (method, path, allow) in [
        ("POST", "/metrics", "GET, HEAD"),
        ("DELETE", "/", "GET, HEAD"),
        ("OPTIONS", "/api/v1/frame", "GET, HEAD"),
        ("BREW", "/-/healthy", "GET, HEAD"),
        ("GET", "/-/reload", "POST, PUT"),
        ("HEAD", "/-/reload", "POST, PUT"),
    ] {
        let request = get(path, "Content-Length: 0\r\n").replacen("GET", method, 1);
        let reply = ask(server.address, request).await;
        assert_eq!((reply.status, reply.headers["allow"].as_str()), (405, allow), "{method} {path}");
    }
    assert_eq!(server.count("memwarden_http_requests_total", "4xx"), 13.0);
}

#[tokio::test]
async fn the_format_is_negotiated() {
    let server = Running::start(web());
    let openmetrics =
        "Accept: application/openmetrics-text;version=1.0.0,text/plain;version=0.0.4;q=0.5,*/*;q=0.1\r\n";
    let reply = ask(server.address, get("/metrics", openmetrics)).await;
    assert_eq!(reply.headers["content-type"], "application/openmetrics-text; version=1.0.0; charset=utf-8");
    assert!(reply.text().ends_with("# EOF\n"));
    let zipped =
        ask(server.address, get("/metrics", &format!("{openmetrics}Accept-Encoding: gzip\r\n"))).await;
    assert_eq!(zipped.headers["content-encoding"], "gzip");
    let mut unzipped = Vec::new();
    flate2::read::GzDecoder::new(zipped.body.as_slice()).read_to_end(&mut unzipped).unwrap();
    assert_eq!(unzipped, reply.body);
    let binary =
        ask(server.address, b"GET /metrics HTTP/1.1\r\nHost: localhost\r\nAccept: \xff\xfe\r\n\r\n").await;
    assert!(binary.headers["content-type"].starts_with("text/plain; version=0.0.4"));

    let plain = Running::start(Web { openmetrics: false, ..web() });
    let reply = ask(plain.address, get("/metrics", openmetrics)).await;
    assert_eq!(reply.headers["content-type"], "text/plain; version=0.0.4; charset=utf-8");
    assert!(!reply.text().contains("# EOF"));
}

#[tokio::test]
async fn before_the_first_frame_it_is_healthy_and_not_ready() {
    let server = Running::try_start(web(), None, Ok(()), PATIENCE).unwrap();
    assert_eq!(ask(server.address, get("/-/healthy", "")).await.status, 200);
    assert_eq!(ask(server.address, get("/", "")).await.status, 200);
    for path in ["/-/ready", "/metrics", "/api/v1/frame"] {
        let reply = ask(server.address, get(path, "")).await;
        assert_eq!((reply.status, reply.text()), (503, "No sample has been taken yet.\n"), "{path}");
    }
    server.frames.send(Some(frames::node())).unwrap();
    for path in ["/-/ready", "/metrics", "/api/v1/frame"] {
        assert_eq!(ask(server.address, get(path, "")).await.status, 200, "{path}");
    }
}

#[tokio::test]
async fn a_frame_that_stays_makes_it_unready() {
    let stale_after = Duration::from_millis(300);
    let server = Running::try_start(web(), Some(frames::node()), Ok(()), stale_after).unwrap();
    tokio::time::sleep(stale_after * 2).await;
    let reply = ask(server.address, get("/-/ready", "")).await;
    assert_eq!(reply.status, 503);
    assert!(reply.text().contains("more than 0.3 s: sampling has stalled."), "{}", reply.text());
    assert_eq!(ask(server.address, get("/metrics", "")).await.status, 200, "it still says what it knows");
    // A new one makes it ready, unless that one is old, too, before this asks.
    let begun = tokio::time::Instant::now();
    for sequence in 2.. {
        server.frames.send(Some(frames::large(sequence, 1))).unwrap();
        if ask(server.address, get("/-/ready", "")).await.status == 200 {
            break;
        }
        assert!(begun.elapsed() < PATIENCE);
    }
}

#[tokio::test]
async fn a_reload_answers_its_outcome() {
    let post = "POST /-/reload HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\n\r\n";
    let server = Running::start(web());
    assert_eq!(ask(server.address, post).await.status, 200);
    assert_eq!(ask(server.address, post).await.status, 500, "nobody answered");
    let broken = Running::try_start(web(), None, Err("line 3: unknown key".to_owned()), PATIENCE).unwrap();
    let reply = ask(broken.address, post.replacen("POST", "PUT", 1)).await;
    assert_eq!((reply.status, reply.text()), (500, "line 3: unknown key\n"));
    let off = Running::start(Web { enable_lifecycle: false, ..web() });
    let reply = ask(off.address, post).await;
    assert_eq!(reply.status, 403);
    assert!(reply.text().starts_with("Lifecycle API is not enabled"));
}

#[tokio::test]
async fn a_connection_is_kept_and_pipelined() {
    let server = Running::start(web());
    let mut stream = TcpStream::connect(server.address).await.unwrap();
    for _ in 0..3 {
        assert_eq!(again(&mut stream, &get("/metrics", "")).await.unwrap().status, 200);
    }
    let three =
        [get("/-/healthy", ""), get("/nothing", ""), get("/metrics", "Connection: close\r\n")].concat();
    stream.write_all(three.as_bytes()).await.unwrap();
    for expected in [200, 404, 200] {
        assert_eq!(read(&mut stream, false).await.unwrap().status, expected);
    }
    assert!(read(&mut stream, false).await.is_none(), "closed as asked");
}

#[tokio::test]
async fn a_taken_port_is_named() {
    let server = Running::start(web());
    let taken = Web { listen_addresses: vec![server.address.to_string()], ..web() };
    let error = Running::try_start(taken, None, Ok(()), PATIENCE).err().unwrap();
    let port = server.address.port();
    assert_eq!(
        error.to_string(),
        format!(
            "cannot listen on 127.0.0.1:{port}; port {port} is in use, set web.listen_addresses to another port"
        )
    );
    let task = server.stop();
    task.await.unwrap();
    Running::try_start(
        Web { listen_addresses: vec![format!("127.0.0.1:{port}")], ..web() },
        None,
        Ok(()),
        PATIENCE,
    )
    .expect("free again at once");
}

#[tokio::test]
async fn a_shutdown_ends_idle_connections_and_finishes_requests() {
    let server = Running::start(web());
    let mut idle = TcpStream::connect(server.address).await.unwrap();
    again(&mut idle, &get("/-/healthy", "")).await.unwrap();
    let mut slow = TcpStream::connect(server.address).await.unwrap();
    slow.write_all(b"POST /-/healthy HTTP/1.1\r\nHost: localhost\r\nContent-Length: 4\r\n\r\nab")
        .await
        .unwrap();
    tokio::time::sleep(Duration::from_millis(100)).await;
    let address = server.address;
    let task = server.stop();
    assert!(read(&mut idle, false).await.is_none());
    slow.write_all(b"cd").await.unwrap();
    assert_eq!(read(&mut slow, false).await.unwrap().status, 405, "in flight, so answered");
    tokio::time::timeout(PATIENCE / 2, task).await.expect("before the client's own limits").unwrap();
    assert!(TcpStream::connect(address).await.is_err());
}

#[tokio::test]
async fn a_shutdown_does_not_wait_for_a_client_that_hangs() {
    let server = Running::start(web());
    let mut slow = TcpStream::connect(server.address).await.unwrap();
    slow.write_all(b"POST /-/healthy HTTP/1.1\r\nHost: localhost\r\nContent-Length: 4\r\n\r\nab")
        .await
        .unwrap();
    tokio::time::sleep(Duration::from_millis(100)).await;
    tokio::time::timeout(PATIENCE / 2, server.stop()).await.expect("before the client's own limits").unwrap();
}
