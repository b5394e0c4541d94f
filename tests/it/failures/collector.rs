//! A collector that is down, sends invalid answers or none, and recovers.

use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

use super::SOON;
use crate::harness::{Daemon, Page, free_port, wait_for};
use crate::receiver::Receiver;

const PROTOCOLS: [&str; 2] = ["grpc", "http/protobuf"];

fn pushing(protocol: &str, port: u16) -> Daemon {
    let sets = [
        &format!("otlp.endpoint=http://127.0.0.1:{port}"),
        &format!("otlp.protocol={protocol}"),
        "otlp.enabled=true",
        "otlp.interval=300ms",
        "otlp.timeout=300ms",
    ];
    let args: Vec<&str> = sets.iter().flat_map(|set| ["--set", set]).collect();
    Daemon::start(&args)
}

// The first frame may have been taken before pushing began, and has neither.
fn failures(page: &Page) -> Option<f64> {
    page.get("memwarden_otlp_export_failures_total", &[])
}

fn exports(page: &Page) -> Option<f64> {
    page.get("memwarden_otlp_exports_total", &[])
}

/// Three failures, counted but logged once, while pulling goes on.
#[track_caller]
fn fails_quietly(daemon: &Daemon) {
    let page = daemon.wait_page("three failures", SOON, |page| failures(page) >= Some(3.0));
    assert_eq!(exports(&page), Some(0.0));
    assert_eq!(page.get("memwarden_otlp_last_success_timestamp_seconds", &[]), None);
    assert!(page.get("memwarden_host_memory_total_bytes", &[]).is_some());
    assert_eq!(daemon.get("/-/healthy").code, 200);
    daemon.logs_once(&["OTLP export failed"]);
}

/// A receiver at the daemon's port receives pushes, without a restart.
#[track_caller]
fn recovers(daemon: &Daemon, protocol: &str, port: u16) {
    let ports = if protocol == "grpc" { (port, free_port()) } else { (free_port(), port) };
    let Some(receiver) = Receiver::start_at(ports.0, ports.1) else { return };
    let page = daemon.wait_page("two pushes", SOON, |page| exports(page) >= Some(2.0));
    assert!(page.get("memwarden_otlp_last_success_timestamp_seconds", &[]).is_some());
    let push = wait_for("what was counted as taken", SOON, || receiver.last_push());
    assert!(push.iter().any(|metric| !metric.points.is_empty()));
    // Again for each push that exceeds its short timeout on a busy machine.
    wait_for("the end of the failures in the log", SOON, || {
        (!daemon.logged(&["OTLP export succeeds again"]).is_empty()).then_some(())
    });
}

/// A listener that is not a collector, until it is dropped.
struct Impostor {
    port: u16,
    over: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Impostor {
    /// Answers every connection with `nonsense`, or not at all where that is empty.
    fn start(nonsense: &'static [u8]) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let over = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&over);
        let thread = std::thread::spawn(move || {
            let mut held: Vec<TcpStream> = Vec::new();
            for stream in listener.incoming() {
                if stopped.load(Ordering::Relaxed) {
                    return;
                }
                let mut stream = stream.unwrap();
                if nonsense.is_empty() {
                    held.push(stream);
                    continue;
                }
                // A client that has disconnected already is not an error.
                let _ = stream.read(&mut [0; 1024]);
                let _ = stream.write_all(nonsense);
            }
        });
        Self { port, over, thread: Some(thread) }
    }
}

impl Drop for Impostor {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Relaxed);
        // Ends the accept call.
        drop(TcpStream::connect(("127.0.0.1", self.port)));
        self.thread.take().unwrap().join().unwrap();
    }
}

#[test]
fn a_collector_that_is_down_at_the_start_is_found_later() {
    for protocol in PROTOCOLS {
        let port = free_port();
        let daemon = pushing(protocol, port);
        fails_quietly(&daemon);
        recovers(&daemon, protocol, port);
    }
}

#[test]
fn invalid_or_missing_answers_of_a_collector_are_failures() {
    let nonsense: [&[u8]; 3] = [
        b"\x00\xff\x13\x37 220 mail.example.org ESMTP\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 999999999999\r\nContent-Type: application/x-protobuf\r\n\r\n\xff\xff\xff",
        b"",
    ];
    for protocol in PROTOCOLS {
        for words in nonsense {
            let impostor = Impostor::start(words);
            let port = impostor.port;
            let daemon = pushing(protocol, port);
            fails_quietly(&daemon);
            drop(impostor);
            recovers(&daemon, protocol, port);
        }
    }
}
