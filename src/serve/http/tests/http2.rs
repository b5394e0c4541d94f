//! HTTP/2 clients that ask and then take nothing, because they never open their window.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout};
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_rustls::rustls::version::TLS13;

use super::client::closed;
use super::tls::{client, connect, scrape, server_with};
use super::{PATIENCE, web};
use crate::config::Web;

const DATA: u8 = 0;
const HEADERS: u8 = 1;
const RST_STREAM: u8 = 3;
const SETTINGS: u8 = 4;
const PING: u8 = 6;
const END_OF_STREAM_AND_HEADERS: u8 = 5;

/// A frame as in section 4.1 of RFC 9113.
fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
    [&length[1..], &[kind, flags], &stream.to_be_bytes(), payload].concat()
}

/// `GET path` on a stream, in HPACK: two headers of the static table, and two with its names.
fn ask_for(path: &str, stream: u32) -> Vec<u8> {
    let length = u8::try_from(path.len()).unwrap();
    let headers = [&[0x82, 0x87, 0x01, 1, b'x', 0x04, length], path.as_bytes()].concat();
    frame(HEADERS, END_OF_STREAM_AND_HEADERS, stream, &headers)
}

/// The beginning of a connection whose streams may be sent nothing (`SETTINGS_INITIAL_WINDOW_SIZE` is 0).
fn shut() -> Vec<u8> {
    let window = [0, 4, 0, 0, 0, 0];
    [b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec(), frame(SETTINGS, 0, 0, &window)].concat()
}

/// Reads frames until the headers of so many answers; nothing where the server closes first.
async fn answered(stream: &mut TlsStream<TcpStream>, mut answers: usize) -> Option<()> {
    while answers > 0 {
        let mut head = [0; 9];
        stream.read_exact(&mut head).await.ok()?;
        let length = usize::from(head[0]) << 16 | usize::from(head[1]) << 8 | usize::from(head[2]);
        stream.read_exact(&mut vec![0; length]).await.ok()?;
        answers -= usize::from(head[3] == HEADERS);
    }
    Some(())
}

/// A client that asked for these pages, has their headers, and lets no byte of a body come.
async fn deaf(address: SocketAddr, connector: &TlsConnector, paths: &[&str]) -> Option<TlsStream<TcpStream>> {
    let mut stream = connect(address, connector).await.ok()?;
    let asked = paths.iter().zip((1..).step_by(2)).flat_map(|(path, number)| ask_for(path, number));
    stream.write_all(&shut().into_iter().chain(asked).collect::<Vec<_>>()).await.ok()?;
    answered(&mut stream, paths.len()).await?;
    Some(stream)
}

/// So many of them, each of which comes back when it is let go; returns once that many got their headers.
async fn crowd(address: SocketAddr, connector: &TlsConnector, clients: usize) -> JoinSet<()> {
    let (mut crowd, heard) = (JoinSet::new(), Arc::new(Semaphore::new(0)));
    for _ in 0..clients {
        let (connector, heard) = (connector.clone(), Arc::clone(&heard));
        crowd.spawn(async move {
            loop {
                if let Some(mut stream) = deaf(address, &connector, &["/metrics"]).await {
                    heard.add_permits(1);
                    let _ = stream.read_to_end(&mut Vec::new()).await;
                }
                // Those that find no place must not spend the machine on handshakes.
                tokio::time::sleep(Duration::from_millis(250)).await;
            }
        });
    }
    let all = u32::try_from(clients).unwrap();
    // That many handshakes take a while where other tests run beside.
    let _ = timeout(PATIENCE * 4, heard.acquire_many(all)).await.expect("answers in time").unwrap();
    crowd
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn clients_that_take_nothing_do_not_stop_a_scrape() {
    let (server, authority, _folder) = server_with("", web());
    let connector = client(&authority, &[&TLS13], None, &["h2"]);
    let _crowd = crowd(server.address, &connector, 600).await;
    let scraper = client(&authority, &[&TLS13], None, &[]);
    let mut answers = Vec::new();
    while answers.len() < 32 {
        answers.push(scrape(server.address, &scraper).await);
    }
    // A connection that a busy machine delays may be closed for a newer one.
    assert!(answers.iter().all(|answer| answer.is_none_or(|status| status == 200)), "{answers:?}");
    assert!(answers.iter().flatten().count() >= 24, "{answers:?}");
    assert!(server.limited("connections") >= 88.0, "{}", server.limited("connections"));
}

#[tokio::test]
async fn asking_for_more_keeps_no_place() {
    let (server, authority, _folder) = server_with("", Web { max_connections: 2, ..web() });
    let connector = client(&authority, &[&TLS13], None, &["h2"]);
    let mut crowd = Vec::new();
    for _ in 0..2 {
        let mut stream = deaf(server.address, &connector, &["/metrics"]).await.unwrap();
        stream.write_all(&ask_for("/-/healthy", 3)).await.unwrap();
        answered(&mut stream, 1).await.unwrap();
        crowd.push(stream);
    }
    let scraper = client(&authority, &[&TLS13], None, &[]);
    assert_eq!(scrape(server.address, &scraper).await, Some(200));
    closed(&mut crowd[0]).await;
}

#[tokio::test]
async fn a_client_that_takes_nothing_is_let_go() {
    const SHORT: Duration = Duration::from_secs(3);
    let limits = Web { request_timeout: SHORT, max_requests: 1, ..web() };
    let (server, authority, _folder) = server_with("", limits);
    let connector = client(&authority, &[&TLS13], None, &["h2"]);
    let begun = Instant::now();
    let mut stream = deaf(server.address, &connector, &["/metrics", "/"]).await.unwrap();
    closed(&mut stream).await;
    assert!(begun.elapsed() >= SHORT);
    assert_eq!(server.limited("time"), 1.0);
    let scraper = client(&authority, &[&TLS13], None, &[]);
    assert_eq!(scrape(server.address, &scraper).await, Some(200), "the place for requests is free");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn frames_without_end_close_the_connection() {
    let (server, authority, _folder) = server_with("", web());
    let connector = client(&authority, &[&TLS13], None, &["h2"]);
    let begin = [shut(), ask_for("/-/healthy", 1)].concat();
    let kinds: [(&str, Vec<u8>); 5] = [
        ("SETTINGS", frame(SETTINGS, 0, 0, &[])),
        ("PING", frame(PING, 0, 0, &[7; 8])),
        ("empty DATA", frame(DATA, 0, 1, &[])),
        ("RST_STREAM", frame(RST_STREAM, 0, 1, &[0, 0, 0, 8])),
        ("an acknowledged PING", frame(PING, 1, 0, &[7; 8])),
    ];
    for (kind, flood) in kinds {
        let stream = connect(server.address, &connector).await.unwrap();
        let (mut reader, mut writer) = tokio::io::split(stream);
        let answers = tokio::spawn(async move { tokio::io::copy(&mut reader, &mut tokio::io::sink()).await });
        writer.write_all(&begin).await.unwrap();
        let flood = flood.repeat(100);
        let endless = async { while writer.write_all(&flood).await.is_ok() {} };
        timeout(PATIENCE, endless).await.unwrap_or_else(|_| panic!("{kind}: the connection is open"));
        // It has ended, with or without an error.
        let _ = answers.await.unwrap();
    }
    // One of the kinds can be ended by the library first.
    assert!(server.limited("frames") >= 4.0);
    let scraper = client(&authority, &[&TLS13], None, &[]);
    assert_eq!(scrape(server.address, &scraper).await, Some(200));
}
