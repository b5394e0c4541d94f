//! A client that sends exactly what it is told, and reads one answer.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio::time::timeout;

use super::PATIENCE;

/// What came back.
#[derive(Debug)]
pub(crate) struct Reply {
    pub(crate) status: u16,
    pub(crate) headers: HashMap<String, String>,
    pub(crate) body: Vec<u8>,
}

impl Reply {
    pub(crate) fn text(&self) -> &str {
        std::str::from_utf8(&self.body).unwrap()
    }
}

/// `GET path` with more header lines, each ending in CRLF.
pub(crate) fn get(path: &str, headers: &str) -> String {
    format!("GET {path} HTTP/1.1\r\nHost: test\r\n{headers}\r\n")
}

/// One request on a connection of its own.
pub(crate) async fn ask(address: SocketAddr, request: impl AsRef<[u8]>) -> Reply {
    let mut stream = TcpStream::connect(address).await.unwrap();
    stream.write_all(request.as_ref()).await.unwrap();
    let reply = read(&mut stream, request.as_ref().starts_with(b"HEAD")).await;
    reply.unwrap_or_else(|| panic!("no answer to {:?}", String::from_utf8_lossy(request.as_ref())))
}

/// So many requests, each on a connection of its own: each is answered with 200, except at most a quarter, whose connections a
/// busy machine delays, so that they are closed for newer ones.
pub(crate) async fn served(address: SocketAddr, request: &str, times: usize) {
    let (mut served, mut closed) = (0, 0);
    while served < times {
        let mut stream = TcpStream::connect(address).await.unwrap();
        match again(&mut stream, request).await {
            Some(reply) => {
                assert_eq!(reply.status, 200);
                served += 1;
            }
            None => closed += 1,
        }
        assert!(closed <= times / 4, "{closed} closed, {served} served");
    }
}

/// One request on a connection that stays.
pub(crate) async fn again(
    stream: &mut (impl AsyncRead + AsyncWrite + Unpin),
    request: &str,
) -> Option<Reply> {
    stream.write_all(request.as_bytes()).await.ok()?;
    read(stream, request.starts_with("HEAD")).await
}

/// The next answer; nothing where the server closes first.
pub(crate) async fn read(stream: &mut (impl AsyncRead + Unpin), head: bool) -> Option<Reply> {
    timeout(PATIENCE, async {
        let mut bytes = Vec::new();
        while !bytes.ends_with(b"\r\n\r\n") {
            bytes.push(stream.read_u8().await.ok()?);
        }
        let text = String::from_utf8(bytes).unwrap();
        let mut lines = text.trim_end().split("\r\n");
        let status = lines.next().unwrap().split(' ').nth(1).unwrap().parse().unwrap();
        let headers: HashMap<String, String> = lines
            .map(|line| line.split_once(": ").unwrap())
            .map(|(name, value)| (name.to_ascii_lowercase(), value.to_owned()))
            .collect();
        let length: usize = headers.get("content-length").map_or(0, |length| length.parse().unwrap());
        let mut body = vec![0; if head { 0 } else { length }];
        stream.read_exact(&mut body).await.ok()?;
        Some(Reply { status, headers, body })
    })
    .await
    .expect("an answer or an end in time")
}

/// Waits until the server has closed the connection.
pub(crate) async fn closed(stream: &mut (impl AsyncRead + Unpin)) {
    let mut sink = Vec::new();
    // A reset is an end as well.
    let _ = timeout(PATIENCE, stream.read_to_end(&mut sink)).await.expect("the server closes");
}

/// So many clients that send a request and nothing more, and come back when they are let go; dropped, they leave.
///
/// Returns once each has sent it.
pub(crate) async fn crowd(address: SocketAddr, clients: usize, request: &str) -> JoinSet<()> {
    let (mut crowd, sent) = (JoinSet::new(), Arc::new(Semaphore::new(0)));
    for _ in 0..clients {
        let (request, sent) = (request.to_owned(), Arc::clone(&sent));
        crowd.spawn(async move {
            loop {
                // Whoever is turned away at once finds a reset.
                if let Ok(mut stream) = TcpStream::connect(address).await
                    && stream.write_all(request.as_bytes()).await.is_ok()
                {
                    sent.add_permits(1);
                    let _ = stream.read_to_end(&mut Vec::new()).await;
                }
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        });
    }
    let all = u32::try_from(clients).unwrap();
    let _ = timeout(PATIENCE, sent.acquire_many(all)).await.expect("connections in time").unwrap();
    crowd
}

/// The header line of a user and a password.
pub(crate) fn basic(user: &str, password: &str) -> String {
    format!("Authorization: Basic {}\r\n", STANDARD.encode(format!("{user}:{password}")))
}
