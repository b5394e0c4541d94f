//! Clients that are slow, large, many, or gone.

use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout};

use super::client::{Reply, again, ask, closed, crowd, get, served};
use super::{PATIENCE, Running, frames, web};
use crate::config::Web;

const SHORT: Duration = Duration::from_millis(300);

async fn connect(server: &Running) -> TcpStream {
    TcpStream::connect(server.address).await.unwrap()
}

#[tokio::test]
async fn a_truncated_request_ends_quietly() {
    let server = Running::start(web());
    for part in ["", "G", "GET /metrics HTTP/1.1\r\n", "GET /metrics HTTP/1.1\r\nHost: localhost\r\nAccep"] {
        let mut stream = connect(&server).await;
        stream.write_all(part.as_bytes()).await.unwrap();
        stream.shutdown().await.unwrap();
        closed(&mut stream).await;
    }
    for garbage in
        ["\0\0\0\0\r\n\r\n", "GET\r\n\r\n", "GET / HTTP/9.9\r\n\r\n", "GET / HTTP/1.1\r\nno colon\r\n\r\n"]
    {
        assert_eq!(ask(server.address, garbage).await.status, 400, "{garbage:?}");
    }
    assert_eq!(ask(server.address, get("/metrics", "")).await.status, 200);
}

#[tokio::test]
async fn headers_byte_by_byte_run_out_of_time() {
    let server = Running::start(Web { header_timeout: SHORT, ..web() });
    let mut stream = connect(&server).await;
    let begun = Instant::now();
    let (mut reader, mut writer) = stream.split();
    tokio::select! {
        () = closed(&mut reader) => {}
        () = async {
            for byte in b"GET /metrics HTTP/1.1\r\nX: ".iter().chain(std::iter::repeat(&b'x')) {
                let _ = writer.write_all(&[*byte]).await;
                tokio::time::sleep(SHORT / 10).await;
            }
        } => {}
    }
    assert!(begun.elapsed() >= SHORT);
    assert_eq!(server.limited("time"), 1.0);
    // The time between two requests is not the time for headers.
    let mut stream = connect(&server).await;
    again(&mut stream, &get("/-/healthy", "")).await.unwrap();
    tokio::time::sleep(SHORT * 2).await;
    assert_eq!(again(&mut stream, &get("/-/healthy", "")).await.unwrap().status, 200);
}

#[tokio::test]
async fn an_idle_connection_is_closed() {
    let server = Running::start(Web { idle_timeout: SHORT, ..web() });
    let mut stream = connect(&server).await;
    again(&mut stream, &get("/-/healthy", "")).await.unwrap();
    closed(&mut stream).await;
    closed(&mut connect(&server).await).await;
    assert_eq!(server.limited("time"), 0.0, "that is no fault of the client");
}

#[tokio::test]
async fn huge_headers_and_bodies_are_refused() {
    let server = Running::start(web());
    let long = format!("X-Long: {}\r\n", "x".repeat(20_000));
    assert_eq!(ask(server.address, get("/metrics", &long)).await.status, 431);
    let many = (0..100).map(|n| format!("X-{n}: y\r\n")).collect::<String>();
    assert_eq!(ask(server.address, get("/metrics", &many)).await.status, 431);
    let fits = format!("X-Long: {}\r\n", "x".repeat(8_000));
    assert_eq!(ask(server.address, get("/metrics", &fits)).await.status, 200);
    let body = "x".repeat(5_000);
    let announced =
        format!("POST /-/reload HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5000\r\n\r\n{body}");
    let reply = ask(server.address, announced).await;
    assert_eq!((reply.status, reply.headers["connection"].as_str()), (413, "close"));
    let chunked = format!(
        "POST /-/reload HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n1388\r\n{body}\r\n0\r\n\r\n"
    );
    assert_eq!(ask(server.address, chunked).await.status, 413);
    let small = "GET /metrics HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5\r\n\r\nhello";
    assert_eq!(ask(server.address, small).await.status, 200, "a small one is read and dropped");
    assert_eq!(server.limited("size"), 4.0);
}

#[tokio::test]
async fn a_body_that_does_not_come_runs_out_of_time() {
    let server = Running::start(Web { header_timeout: SHORT, ..web() });
    let request = "POST /-/reload HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5\r\n\r\nhel";
    assert_eq!(ask(server.address, request).await.status, 408);
    assert_eq!(server.limited("time"), 1.0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn five_hundred_scrapes_at_once_all_succeed() {
    let server = Running::start(web());
    server.frames.send(Some(frames::large(2, 2_000))).unwrap();
    let mut tasks = JoinSet::new();
    for _ in 0..500 {
        let address = server.address;
        tasks.spawn(async move {
            let reply = ask(address, get("/metrics", "Accept-Encoding: gzip\r\n")).await;
            (reply.status, reply.body.len())
        });
    }
    let replies = tasks.join_all().await;
    assert_eq!(replies.len(), 500);
    assert!(replies.iter().all(|reply| *reply == replies[0] && reply.0 == 200));
    assert_eq!(server.limited("requests"), 0.0);
}

#[tokio::test]
async fn a_thousand_idle_connections_do_not_stop_a_scrape() {
    let server = Running::start(Web { max_connections: 64, ..web() });
    let mut idle = Vec::new();
    for n in 0..1_000 {
        let mut stream = connect(&server).await;
        // Half of them have begun a request that never ends.
        if n % 2 == 0 {
            stream.write_all(b"GET /metrics HT").await.unwrap();
        }
        idle.push(stream);
    }
    let begun = Instant::now();
    assert_eq!(ask(server.address, get("/metrics", "")).await.status, 200);
    assert!(begun.elapsed() < PATIENCE / 2, "{:?}", begun.elapsed());
    assert!(server.limited("connections") >= 937.0, "{}", server.limited("connections"));
    closed(&mut idle[0]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bodies_that_never_come_do_not_stop_a_scrape() {
    let server = Running::start(web());
    let request = get("/metrics", "Content-Length: 10\r\n");
    let _crowd = crowd(server.address, 600, &request).await;
    served(server.address, &get("/metrics", ""), 32).await;
    assert!(server.limited("connections") >= 88.0, "{}", server.limited("connections"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn requests_that_wait_for_a_place_do_not_keep_out_others() {
    // No place is ever free.
    let server = Running::start(Web { max_requests: 0, ..web() });
    let _crowd = crowd(server.address, 600, &get("/metrics", "")).await;
    served(server.address, &get("/-/healthy", ""), 32).await;
    assert!(server.limited("connections") >= 88.0, "{}", server.limited("connections"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn reloads_that_hang_do_not_stop_a_scrape() {
    let server = Running::with_hung_reloads(web());
    let post = "POST /-/reload HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\n\r\n";
    let _crowd = crowd(server.address, 600, post).await;
    served(server.address, &get("/metrics", ""), 32).await;
    assert!(server.limited("connections") >= 88.0, "{}", server.limited("connections"));
}

/// A connection whose client takes next to nothing, though its answer has begun: small buffers, and nobody reads.
async fn deaf(server: &Running) -> TcpStream {
    let socket = TcpSocket::new_v4().unwrap();
    socket.set_recv_buffer_size(4096).unwrap();
    let mut stream = socket.connect(server.address).await.unwrap();
    stream.write_all(get("/metrics", "").as_bytes()).await.unwrap();
    timeout(PATIENCE, stream.peek(&mut [0])).await.expect("an answer in time").unwrap();
    stream
}

/// A server that has rendered a page too large for a deaf client's buffers, however long that took.
async fn with_large_page(web: Web) -> Running {
    let server = Running::start(web);
    server.frames.send(Some(frames::large(2, 100_000))).unwrap();
    let begun = Instant::now();
    let rendered = |reply: Option<Reply>| reply.is_some_and(|reply| reply.status == 200);
    while !rendered(again(&mut connect(&server).await, &get("/metrics", "")).await) {
        assert!(begun.elapsed() < PATIENCE);
    }
    server
}

#[tokio::test]
async fn a_client_that_never_reads_is_let_go() {
    let server = with_large_page(Web { request_timeout: SHORT * 40, max_requests: 1, ..web() }).await;
    let before = server.limited("time");
    let mut stream = deaf(&server).await;
    let begun = Instant::now();
    // The page is large and its reader deaf, yet the only place for requests is free again.
    assert_eq!(ask(server.address, get("/-/ready", "")).await.status, 200);
    assert_eq!(ask(server.address, get("/", "")).await.status, 200);
    while server.limited("time") == before {
        assert!(begun.elapsed() < PATIENCE);
        tokio::time::sleep(SHORT / 10).await;
    }
    let mut rest = Vec::new();
    let _ = stream.read_to_end(&mut rest).await;
    assert!(rest.len() < 6_000_000, "cut off after {}", rest.len());
}

#[tokio::test]
async fn deaf_clients_make_room() {
    let server = with_large_page(Web { max_connections: 8, ..web() }).await;
    let mut streams = Vec::new();
    for _ in 0..8 {
        streams.push(deaf(&server).await);
    }
    let before = server.limited("connections");
    tokio::time::sleep(Duration::from_millis(2_500)).await;
    assert_eq!(ask(server.address, get("/-/healthy", "")).await.status, 200);
    assert_eq!(server.limited("connections"), before + 1.0);
}

#[tokio::test]
async fn a_request_without_a_place_in_time_gets_503() {
    // No place is ever free, so the waiting itself is what is tested.
    let server = Running::start(Web { max_requests: 0, request_timeout: SHORT * 10, ..web() });
    let mut stream = connect(&server).await;
    let reply = again(&mut stream, &get("/metrics", "")).await.unwrap();
    assert_eq!((reply.status, reply.headers["retry-after"].as_str()), (503, "1"));
    assert_eq!(server.limited("requests"), 1.0);
    assert_eq!(ask(server.address, get("/-/healthy", "")).await.status, 200, "health needs no place");
    assert_eq!(again(&mut stream, &get("/-/ready", "")).await.unwrap().status, 200, "on the same connection");
}
