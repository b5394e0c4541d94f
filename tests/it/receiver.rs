//! A real OTLP receiver gets the same names and values by gRPC, by HTTP and as `/metrics` has them.

use std::collections::BTreeMap;
use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use memwarden::catalog;

use crate::harness::{Daemon, free_port, program, wait_for};

const SOON: Duration = Duration::from_secs(30);

/// What a receiver was sent: name and attributes, to the last value.
pub(crate) type Points = BTreeMap<(String, BTreeMap<String, String>), f64>;

pub(crate) struct Receiver {
    child: Child,
    pub(crate) grpc: u16,
    pub(crate) http: u16,
    said: Arc<Mutex<String>>,
}

impl Receiver {
    pub(crate) fn start() -> Option<Self> {
        Self::start_at(free_port(), free_port())
    }

    /// One that listens on these ports.
    pub(crate) fn start_at(grpc: u16, http: u16) -> Option<Self> {
        let Some(binary) = rotel() else {
            crate::skip::skip("the OTLP receiver rotel is not installed (tests/run installs it)");
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
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let said = Arc::new(Mutex::new(String::new()));
        for mut pipe in [
            Box::new(child.stdout.take().unwrap()) as Box<dyn std::io::Read + Send>,
            Box::new(child.stderr.take().unwrap()),
        ] {
            let said = Arc::clone(&said);
            std::thread::spawn(move || {
                let mut buffer = [0; 65536];
                while let Ok(length @ 1..) = pipe.read(&mut buffer) {
                    said.lock().unwrap().push_str(&String::from_utf8_lossy(&buffer[..length]));
                }
            });
        }
        let receiver = Self { child, grpc, http, said };
        wait_for("the receiver", SOON, || std::net::TcpStream::connect(("127.0.0.1", http)).ok());
        Some(receiver)
    }

    /// Everything it was sent since the last call that is complete.
    pub(crate) fn points(&self) -> Points {
        parse(&self.said.lock().unwrap())
    }

    fn forget(&self) {
        self.said.lock().unwrap().clear();
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

/// The receiver's log of data points.
fn parse(text: &str) -> Points {
    let mut points = Points::new();
    let (mut name, mut attributes, mut in_attributes) = (String::new(), BTreeMap::new(), false);
    for line in text.lines().map(str::trim) {
        if let Some(found) = line.strip_prefix("-> Name: ") {
            name = found.to_owned();
            in_attributes = false;
        } else if line.starts_with("NumberDataPoints") {
            attributes = BTreeMap::new();
            in_attributes = false;
        } else if line == "Data point attributes:" {
            in_attributes = true;
        } else if let Some(value) = line.strip_prefix("Value: ") {
            points.insert((name.clone(), std::mem::take(&mut attributes)), value.parse().unwrap());
            in_attributes = false;
        } else if let Some(pair) = line.strip_prefix("-> ").filter(|_| in_attributes) {
            let (key, value) = pair.split_once(": ").unwrap();
            let value = value.split_once('(').map_or(value, |(_, inner)| inner.trim_end_matches(')'));
            attributes.insert(key.to_owned(), value.to_owned());
        }
    }
    points
}

/// `/metrics` in the same shape, by the names it has over OTLP.
fn pulled(text: &str) -> Points {
    let names: BTreeMap<&str, String> = catalog::all().map(|desc| (desc.name, desc.otlp_name())).collect();
    let mut points = Points::new();
    for line in text.lines().filter(|line| !line.starts_with('#')) {
        let (series, value) = line.rsplit_once(' ').unwrap();
        let (name, labels) = series.split_once('{').unwrap_or((series, ""));
        let labels = labels.trim_end_matches('}').split("\",").filter(|label| !label.is_empty());
        let attributes = labels.map(|label| {
            let (key, value) = label.split_once("=\"").unwrap();
            (key.to_owned(), value.trim_end_matches('"').to_owned())
        });
        points.insert((names[name].clone(), attributes.collect()), value.parse().unwrap());
    }
    points
}

#[test]
fn both_transports_and_the_page_say_the_same() {
    let Some(receiver) = Receiver::start() else { return };
    // A host that stands still, so that two moments can be compared.
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/host/6.18");
    let proc = format!("paths.proc={}", root.join("proc").display());
    let still = |name: &str| name.starts_with("memwarden.host.") && name != "memwarden.host.info";
    let mut seen = Vec::new();
    for (protocol, port) in [("grpc", receiver.grpc), ("http/protobuf", receiver.http)] {
        receiver.forget();
        let endpoint = format!("otlp.endpoint=http://127.0.0.1:{port}");
        let protocol = format!("otlp.protocol={protocol}");
        let sets =
            [&proc, &endpoint, &protocol, "otlp.enabled=true", "otlp.interval=500ms", "otlp.names=memwarden"];
        let args: Vec<&str> = sets.iter().flat_map(|set| ["--set", set]).collect();
        let daemon = Daemon::start(&args);
        let pushed = wait_for("a push", SOON, || {
            let points = receiver.points();
            points.keys().any(|(name, _)| name == "memwarden.otlp.exports").then_some(points)
        });
        let page = pulled(&daemon.metrics());
        let of = |points: &Points| -> Points {
            points
                .iter()
                .filter(|((name, _), _)| still(name))
                .map(|(key, value)| (key.clone(), *value))
                .collect()
        };
        let (pushed, page) = (of(&pushed), of(&page));
        assert!(pushed.len() > 100, "only {} points by {protocol}", pushed.len());
        assert_eq!(pushed, page, "by {protocol}");
        seen.push(pushed);
        assert_eq!(daemon.value("memwarden_otlp_export_failures_total"), Some(0.0));
    }
    assert_eq!(seen[0], seen[1]);
}
