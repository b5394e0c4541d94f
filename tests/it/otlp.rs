//! The memory that pushing over OTLP takes.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::time::Duration;

use crate::harness::Daemon;

const SOON: Duration = Duration::from_secs(60);

/// A collector that accepts everything; returns its port.
fn collector() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            // A daemon that exits in between is not an error.
            let _ = take(stream);
        }
    });
    port
}

fn take(stream: TcpStream) -> std::io::Result<()> {
    let mut reader = BufReader::new(&stream);
    let mut length = 0;
    loop {
        let mut line = String::new();
        if reader.read_line(&mut line)? <= 2 {
            break;
        }
        if let Some(value) = line.to_ascii_lowercase().strip_prefix("content-length:") {
            length = value.trim().parse().unwrap_or(0);
        }
    }
    std::io::copy(&mut reader.take(length), &mut std::io::sink())?;
    (&stream).write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n")
}

/// The anonymous memory of a process, in KiB.
fn anonymous(pid: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:")).unwrap();
    line.trim().trim_end_matches(" kB").parse().unwrap()
}

#[test]
fn a_daemon_that_pushes_takes_little_more_memory() {
    let endpoint = format!("otlp.endpoint=http://127.0.0.1:{}", collector());
    let sets = ["otlp.enabled=true", "otlp.protocol=http/protobuf", "otlp.interval=200ms", &endpoint];
    let pushing = Daemon::start(&sets.map(|set| ["--set", set]).concat());
    let silent = Daemon::start(&[]);
    pushing.wait_page("30 pushes", SOON, |page| page.sum("memwarden_otlp_exports_total", &[]) >= 30.0);
    // Both are equally old, and both were scraped.
    let frames = pushing.value("memwarden_frames_total").unwrap();
    silent.wait_page("as many frames", SOON, |page| page.sum("memwarden_frames_total", &[]) >= frames);
    let (with, without) = (anonymous(pushing.pid()), anonymous(silent.pid()));
    // The SDK of OpenTelemetry took 6,500 KiB.
    assert!(with < without + 3_000, "{with} KiB with pushing, {without} KiB without");
}
