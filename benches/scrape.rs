//! Duration of a scrape of 10,000 series, over a real socket.
//!
//! `cargo bench --bench scrape -- 200` makes 200 scrapes in each format, once where each scrape is the first of its
//! frame and once where the frame was scraped before. The last column is the ratio of the median to rendering the same
//! frame as text in the same run, so that results of different machines can be compared.
#![expect(clippy::print_stdout, reason = "a bench prints its result")]

mod series;

use std::hint::black_box;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use memwarden::config::{self, Compatibility, Web};
use memwarden::events::Events;
use memwarden::model::frame::Frame;
use memwarden::serve::http::{Reload, Server, Setup};
use memwarden::serve::prometheus::{Format, encode};
use memwarden::{app, host};
use tokio::sync::{oneshot, watch};

const OPEN: &str = "Accept: application/openmetrics-text;version=1.0.0\r\n";
const GZIP: &str = "Accept-Encoding: gzip\r\n";

fn main() -> anyhow::Result<()> {
    // Cargo adds `--bench`.
    let arguments: Vec<String> = std::env::args().skip(1).filter(|text| !text.starts_with("--")).collect();
    let count = match &arguments[..] {
        [] => 200,
        [count] => count.parse().context("COUNT is a number")?,
        _ => anyhow::bail!("usage: scrape [COUNT]"),
    };
    ensure!(count > 0, "COUNT is at least 1");
    let (frames, receiver) = watch::channel(None);
    let (_shutdown, stop) = watch::channel(false);
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    let server = {
        let _inside = runtime.enter();
        Server::bind(Setup {
            incidents: watch::channel(None).1,
            jobs: Arc::new(memwarden::job_summary::Ledger::new(None)),
            past_runs: Arc::default(),
            web: web()?,
            compatibility: Compatibility::default(),
            frames: receiver,
            events: Arc::new(Events::new()),
            reload: Box::new(NoReload),
            acknowledge: Box::new(NoReload),
            alerts: Arc::new(memwarden::protection::guard::alert_receiver::AlertReceiver::default()),
            run_requests: Arc::new(memwarden::protection::guard::run_receiver::RunReceiver::default()),
            stale_after: watch::channel(Duration::from_secs(60)).1,
            retries_bind: false,
            proc: "/proc".into(),
            host_name: None,
        })?
    };
    let address = *server.addresses().first().context("the server has an address")?;
    runtime.spawn(server.run(stop));

    let rendering = rendering(count);
    println!("10,000 series, {count} scrapes a row; rendering them as text takes {:.2} ms", ms(rendering));
    println!();
    println!("| form | scrape | bytes | p50 ms | p99 ms | p50 / rendering |");
    println!("| --- | --- | ---: | ---: | ---: | ---: |");
    let mut client = Client::connect(address)?;
    for (form, headers) in [
        ("text", String::new()),
        ("text, gzip", GZIP.to_owned()),
        ("OpenMetrics", OPEN.to_owned()),
        ("OpenMetrics, gzip", format!("{OPEN}{GZIP}")),
    ] {
        for first in [true, false] {
            let mut took = Vec::new();
            let mut bytes = 0;
            for sequence in 0..=count {
                if first || sequence == 0 {
                    frames.send_replace(Some(frame(sequence)));
                }
                let begun = host::clock::now();
                bytes = client.scrape(&headers)?;
                // The first frame, which all later ones follow.
                if sequence > 0 {
                    took.push(host::clock::now().since(begun));
                }
            }
            took.sort_unstable();
            let share = |percent: usize| took[(took.len() - 1) * percent / 100];
            let [p50, p99] = [share(50), share(99)];
            let which = if first { "first of its frame" } else { "later" };
            let ratio = p50.as_secs_f64() / rendering.as_secs_f64();
            println!("| {form} | {which} | {bytes} | {:.2} | {:.2} | {ratio:.2} |", ms(p50), ms(p99));
        }
    }
    Ok(())
}

fn ms(time: Duration) -> f64 {
    1e3 * time.as_secs_f64()
}

/// The defaults, on a free port.
fn web() -> anyhow::Result<Web> {
    let config = config::parse_str("", Path::new("bench.yaml"), &app::schema(), &[])?;
    Ok(Web { listen_addresses: vec!["127.0.0.1:0".to_owned()], ..config.web })
}

fn frame(sequence: u64) -> Arc<Frame> {
    Arc::new(Frame {
        sequence,
        at: host::clock::now(),
        families: series::families(),
        sources: Vec::new(),
        findings: Vec::new(),
        outlook: memwarden::model::outlook::Outlook::default(),
        timeline: Arc::default(),
        acknowledged: Arc::default(),
    })
}

/// The median time of one rendering, without server and socket.
fn rendering(count: u64) -> Duration {
    let families = series::families();
    let mut took: Vec<Duration> = (0..count)
        .map(|_| {
            let begun = host::clock::now();
            black_box(encode(&families, Format::Text));
            host::clock::now().since(begun)
        })
        .collect();
    took.sort_unstable();
    took[took.len() / 2]
}

struct NoReload;

impl memwarden::serve::http::Acknowledge for NoReload {
    fn acknowledge(
        &self,
        _: memwarden::model::acknowledged::ProblemId,
        _: memwarden::model::health::Health,
        _: memwarden::model::acknowledged::Acknowledgement,
    ) {
    }
}

impl Reload for NoReload {
    fn request(&self) -> oneshot::Receiver<Result<(), String>> {
        oneshot::channel().1
    }
}

/// One connection that stays open, as a scraper's does.
struct Client {
    writer: TcpStream,
    reader: BufReader<TcpStream>,
    body: Vec<u8>,
}

impl Client {
    fn connect(address: SocketAddr) -> anyhow::Result<Self> {
        let writer = TcpStream::connect(address).context("cannot connect")?;
        writer.set_nodelay(true)?;
        let reader = BufReader::with_capacity(256 * 1024, writer.try_clone()?);
        Ok(Self { writer, reader, body: Vec::new() })
    }

    /// Scrapes once; returns the length of the body.
    fn scrape(&mut self, headers: &str) -> anyhow::Result<usize> {
        let request = format!("GET /metrics HTTP/1.1\r\nHost: bench\r\n{headers}\r\n");
        self.writer.write_all(request.as_bytes())?;
        let mut line = String::new();
        self.reader.read_line(&mut line)?;
        ensure!(line.starts_with("HTTP/1.1 200 "), "the server answered {line:?}");
        let mut length = 0;
        while line != "\r\n" {
            line.clear();
            ensure!(self.reader.read_line(&mut line)? > 0, "the answer ended early");
            if let Some(value) = line.to_ascii_lowercase().strip_prefix("content-length:") {
                length = value.trim().parse().context("the length is a number")?;
            }
        }
        self.body.resize(length, 0);
        self.reader.read_exact(&mut self.body)?;
        Ok(length)
    }
}
