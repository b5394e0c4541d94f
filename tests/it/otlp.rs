//! The OTLP receiver of the daemon: the daemon pushes to itself over both protocols. Also the memory cost of pushing.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::time::Duration;

use crate::harness::{Daemon, free_port};

const SOON: Duration = Duration::from_secs(60);

#[test]
fn a_daemon_that_pushes_to_itself_ignores_its_own_metrics() {
    for (protocol, name) in [("grpc", "grpc"), ("http/protobuf", "http")] {
        let port = free_port();
        let daemon = Daemon::start(&[
            "--set",
            "sources.otlp.enabled=true",
            "--set",
            &format!("sources.otlp.listen=127.0.0.1:{port}"),
            "--set",
            "otlp.enabled=true",
            "--set",
            &format!("otlp.endpoint=http://127.0.0.1:{port}"),
            "--set",
            &format!("otlp.protocol={protocol}"),
            "--set",
            "otlp.interval=500ms",
        ]);
        let page = daemon.wait_page("two pushes", SOON, |page| {
            let labels = [("protocol", name), ("outcome", "taken")];
            page.sum("memwarden_otlp_receiver_requests_total", &labels) >= 2.0
        });
        let points = |outcome| page.get("memwarden_otlp_receiver_points_total", &[("outcome", outcome)]);
        assert!(points("unknown").unwrap() > 100.0);
        assert_eq!((points("taken"), points("refused")), (Some(0.0), Some(0.0)));
        // The client may close its connection between two pushes.
        assert!(page.sum("memwarden_otlp_receiver_connections", &[]) <= 1.0);
        assert_eq!(page.sum("memwarden_otlp_receiver_ranks", &[]), 0.0);
        assert_eq!(page.get("memwarden_source_status", &[("source", "otlp"), ("status", "ok")]), Some(1.0));
        // The first push may come before the receiver listens.
        assert!(daemon.value("memwarden_otlp_export_failures_total").is_some_and(|failures| failures <= 1.0));
    }
}

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
fn a_daemon_that_pushes_to_itself_has_each_series_once() {
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
