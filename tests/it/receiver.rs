//! A real OTLP receiver, and its log of received pushes.

use std::collections::BTreeMap;
use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::harness::{free_port, program, wait_for};

const SOON: Duration = Duration::from_secs(30);

/// The first line of a push in the receiver's log.
const PUSH: &str = "ResourceMetrics #0\n";

/// One metric of a push.
#[derive(Debug, Default)]
pub(crate) struct Metric {
    pub(crate) name: String,
    /// In UCUM.
    pub(crate) unit: String,
    /// `Gauge` or `Sum`.
    pub(crate) shape: String,
    /// Whether a sum is monotonic.
    pub(crate) monotonic: bool,
    /// Attributes and value of each point.
    pub(crate) points: Vec<(BTreeMap<String, String>, f64)>,
}

pub(crate) struct Receiver {
    child: Child,
    pub(crate) grpc: u16,
    pub(crate) http: u16,
    log: Arc<Mutex<Vec<u8>>>,
}

impl Receiver {
    pub(crate) fn start() -> Option<Self> {
        Self::start_at(free_port(), free_port())
    }

    /// Starts a receiver on these ports.
    pub(crate) fn start_at(grpc: u16, http: u16) -> Option<Self> {
        if crate::harness::is_left() {
            return None;
        }
        let Some(binary) = rotel() else {
            crate::skip::skip("the OTLP receiver rotel is not installed (tests/real installs it)");
            return None;
        };
        let mut child = program(binary)
            .args([
                "start",
                "--exporter",
                "blackhole",
                "--debug-log",
                "metrics",
                "--debug-log-verbosity",
                "detailed",
            ])
            .arg(format!("--otlp-grpc-endpoint=127.0.0.1:{grpc}"))
            .arg(format!("--otlp-http-endpoint=127.0.0.1:{http}"))
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let log = Arc::new(Mutex::new(Vec::new()));
        let (mut pipe, shared) = (child.stdout.take().unwrap(), Arc::clone(&log));
        std::thread::spawn(move || {
            let mut buffer = [0; 65536];
            while let Ok(length @ 1..) = pipe.read(&mut buffer) {
                shared.lock().unwrap().extend_from_slice(&buffer[..length]);
            }
        });
        let receiver = Self { child, grpc, http, log };
        for port in [grpc, http] {
            wait_for("the receiver", SOON, || std::net::TcpStream::connect(("127.0.0.1", port)).ok());
        }
        Some(receiver)
    }

    /// The last push that is logged completely.
    pub(crate) fn last_push(&self) -> Option<Vec<Metric>> {
        let log = self.log.lock().unwrap();
        let log = String::from_utf8_lossy(&log);
        // A push is complete when the next one begins.
        let (before, _) = log.rsplit_once(PUSH)?;
        let (_, push) = before.rsplit_once(PUSH)?;
        Some(parse(push))
    }

    /// Clears the log.
    pub(crate) fn forget(&self) {
        self.log.lock().unwrap().clear();
    }
}

impl Drop for Receiver {
    fn drop(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

/// The receiver's binary inside the tests' Python environment.
fn rotel() -> Option<PathBuf> {
    let lib = Path::new(env!("CARGO_MANIFEST_DIR")).join(".venv/lib");
    let versions = std::fs::read_dir(lib).ok()?;
    versions
        .filter_map(Result::ok)
        .map(|version| version.path().join("site-packages/rotel/rotel-agent"))
        .find(|path| path.is_file())
}

/// The receiver's log of one push.
fn parse(text: &str) -> Vec<Metric> {
    let mut metrics: Vec<Metric> = Vec::new();
    let mut attributes = BTreeMap::new();
    let mut in_attributes = false;
    for line in text.lines().map(str::trim) {
        if line.starts_with("Metric #") {
            metrics.push(Metric::default());
            in_attributes = false;
        }
        // The lines before are about the sender.
        let Some(metric) = metrics.last_mut() else { continue };
        if line.starts_with("NumberDataPoints") {
            attributes = BTreeMap::new();
            in_attributes = false;
        } else if line == "Data point attributes:" {
            in_attributes = true;
        } else if let Some(value) = line.strip_prefix("Value: ") {
            metric.points.push((std::mem::take(&mut attributes), value.parse().unwrap()));
            in_attributes = false;
        } else if let Some((key, value)) = line.strip_prefix("-> ").and_then(|pair| pair.split_once(": ")) {
            match key {
                _ if in_attributes => {
                    // As in `Str(text)`.
                    let value = value.split_once('(').and_then(|(_, rest)| rest.strip_suffix(')')).unwrap();
                    attributes.insert(key.to_owned(), value.to_owned());
                }
                "Name" => value.clone_into(&mut metric.name),
                "Unit" => value.clone_into(&mut metric.unit),
                "DataType" => value.clone_into(&mut metric.shape),
                "IsMonotonic" => metric.monotonic = value == "true",
                _ => {}
            }
        }
    }
    metrics
}
