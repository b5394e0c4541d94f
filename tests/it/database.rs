//! Real databases that answer PromQL, a node that is busy with everything that the dashboards show, and their queries.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Child, Stdio};
use std::time::Duration;

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::harness::{Daemon, fake_nvml, free_port, program, request, try_get, wait_for};
use crate::shipped::DASHBOARDS;
use crate::training_job;

const SOON: Duration = Duration::from_secs(60);

/// A database; killed when dropped.
pub(crate) struct Database {
    child: Child,
    pub(crate) address: SocketAddr,
    _folder: TempDir,
}

impl Database {
    /// Starts `binary` with the arguments that `arguments` gives for a folder of its own and an address, and waits until
    /// it is ready.
    pub(crate) fn start(
        binary: &Path,
        ready: &str,
        arguments: impl FnOnce(&Path, SocketAddr) -> Vec<String>,
    ) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let address: SocketAddr = format!("127.0.0.1:{}", free_port()).parse().unwrap();
        let child = program(binary)
            .args(arguments(folder.path(), address))
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let database = Self { child, address, _folder: folder };
        wait_for("the database", SOON, || try_get(address, ready));
        database
    }

    /// Starts a Prometheus with our rules and this configuration.
    pub(crate) fn prometheus(binary: &Path, configuration: &str, arguments: &[&str]) -> Self {
        Self::start(binary, "/-/ready", |folder, address| {
            let rules = Path::new(env!("CARGO_MANIFEST_DIR")).join("alerts/*.rules.yaml");
            let all = format!(
                "global: {{scrape_interval: 1s, scrape_timeout: 1s, evaluation_interval: 1s}}\n\
                 rule_files: [{}]\n{configuration}",
                rules.display()
            );
            let file = folder.join("prometheus.yml");
            std::fs::write(&file, all).unwrap();
            let own = [
                format!("--config.file={}", file.display()),
                format!("--storage.tsdb.path={}", folder.join("data").display()),
                format!("--web.listen-address={address}"),
            ];
            own.into_iter().chain(arguments.iter().map(|&argument| argument.to_owned())).collect()
        })
    }

    pub(crate) fn ask(&self, path: &str) -> Value {
        let answer = request(self.address, &format!("GET /api/v1/{path} HTTP/1.0\r\n\r\n"));
        let body: Value = serde_json::from_str(&answer.body).unwrap_or_else(|_| panic!("{}", answer.body));
        assert_eq!(body["status"], "success", "{path}: {body}");
        body["data"].clone()
    }

    /// The result of an instant query: each series' labels and value.
    pub(crate) fn query(&self, expression: &str) -> Vec<(Value, f64)> {
        let encoded: String = expression.bytes().map(|byte| format!("%{byte:02X}")).collect();
        let answer = self.ask(&format!("query?query={encoded}"));
        let results = answer["result"].as_array().unwrap().iter();
        results
            .map(|result| (result["metric"].clone(), result["value"][1].as_str().unwrap().parse().unwrap()))
            .collect()
    }

    /// The names of the rules whose last evaluation failed, with the reason.
    pub(crate) fn failed_rules(&self) -> Vec<String> {
        let groups = self.ask("rules");
        let groups = groups["groups"].as_array().unwrap().iter();
        let rules: Vec<&Value> = groups.flat_map(|group| group["rules"].as_array().unwrap()).collect();
        assert!(rules.len() > 25, "only {} rules", rules.len());
        let failed = rules.into_iter().filter(|rule| rule["health"] == "err");
        failed.map(|rule| format!("{}: {}", rule["name"], rule["lastError"])).collect()
    }

    /// Waits until each of these queries returns something.
    pub(crate) fn wait_for_all(&self, mut missing: BTreeSet<String>) {
        let begun = crate::harness::now();
        // We grow, so that a process does.
        let mut held = Vec::new();
        while !missing.is_empty() && begun.elapsed() < SOON {
            std::thread::sleep(Duration::from_millis(200));
            held.push(vec![1_u8; 1 << 19]);
            missing.retain(|query| self.query(query).is_empty());
        }
        let missing: Vec<_> = missing.into_iter().collect();
        assert!(missing.is_empty(), "these return nothing:\n{}", missing.join("\n"));
    }
}

impl Drop for Database {
    fn drop(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

/// Every query of the dashboards, with the variables as Grafana fills them in for "All".
pub(crate) fn dashboard_queries() -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    for file in DASHBOARDS {
        let file = Path::new(env!("CARGO_MANIFEST_DIR")).join(file);
        let board: Value = serde_json::from_str(&std::fs::read_to_string(file).unwrap()).unwrap();
        for panel in crate::shipped::panels(&board) {
            for target in panel["targets"].as_array().into_iter().flatten() {
                let query = target["expr"].as_str().unwrap();
                let filled = ["instance", "gpu", "workload", "rank", "run"]
                    .iter()
                    .fold(query.to_owned(), |query, name| query.replace(&format!("${name}"), ".*"));
                found.insert(filled.replace("$__rate_interval", "10s"));
            }
        }
    }
    assert!(found.len() > 80, "only {} queries", found.len());
    found
}

/// Whether a query asks for what not every host has (PSI, a cgroup with a limit, reclaim), and this one has not,
/// or for fragmentation, the growth of a step or idle memory, which are exposed after minutes only.
pub(crate) fn may_be_empty(query: &str, page: &str) -> bool {
    let absent_on_some_hosts = [
        "pressure",
        "allocation_stalls",
        "refaulted",
        "headroom",
        "cgroup",
        "fragmentation",
        "growth_bytes_per_step",
        "memwarden_idle_",
        "memwarden_tmpfs_",
    ];
    // What a target has only once something was done for it, or is wrong with it.
    let at_times = ["disarmed_reason", "overdue", "signal_latency", "orphaned", "tmpfs_files"];
    let metric = query
        .split(|c: char| !c.is_ascii_alphanumeric() && c != '_')
        .find(|word| crate::tables::is_ours(word));
    let metric = metric.expect("every query names a metric");
    absent_on_some_hosts.iter().chain(&at_times).any(|word| metric.contains(word))
        && !page.contains(&format!("\n{metric}{{"))
}

/// A node whose daemon has something to tell of everything that the dashboards show.
pub(crate) struct BusyNode {
    pub(crate) daemon: Daemon,
    _ranks: [training_job::Rank; 2],
    _folder: TempDir,
}

impl BusyNode {
    /// One whose daemon also has these arguments.
    pub(crate) fn start(more: &[&str]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let scenario = folder.path().join("scenario.json");
        // Two ranks of a job, each on a GPU. The first takes ever more of its GPU, which is full after a minute, so
        // that there is a forecast.
        let mut ranks = [0, 1].map(training_job::Rank::start);
        let memory = [
            json!({"ramp": {"from": 20_u64 << 30, "per_second": 1 << 30, "max": 79_u64 << 30}}),
            json!(1 << 30),
        ];
        let devices: Vec<Value> = (0..2)
            .map(|gpu| {
                json!({
                    "uuid": training_job::uuid(gpu as u64),
                    "minor": gpu,
                    "pci": format!("0000:{gpu:02x}:00.0"),
                    "utilization": 50, "gpm": {"2": 45, "5": 20, "10": 30},
                    "throttle": 4,
                    "processes": [{"pid": ranks[gpu].pid(), "memory": memory[gpu], "type": "compute", "sm": 40}],
                })
            })
            .collect();
        std::fs::write(&scenario, json!({"devices": devices}).to_string()).unwrap();
        let snapshots = folder.path().join("snapshots");
        std::fs::create_dir(&snapshots).unwrap();
        let leak = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/snapshots/leak.pickle");
        std::fs::copy(leak, snapshots.join("rank0.pickle")).unwrap();
        let library = fake_nvml();
        // Both ranks are ours, and with us one workload. The analyzers want 60 samples.
        let config = folder.path().join("memwarden.yaml");
        let settings = json!({
            "sampling": {"interval": "100ms"},
            "sources": {
                "gpu": {"interval": "100ms", "nvml_library": library},
                "snapshots": {"scan_interval": "1s", "folders": [{"name": "runs", "path": snapshots}]},
                "workload": {"trees": [format!("{} run", std::process::id())]},
            },
            "protection": {"mode": "observe", "targets": [{"name": "job", "workload": "run", "allow_users": ["0"]}]},
        });
        std::fs::write(&config, settings.to_string()).unwrap();
        let arguments = [&["--config.file", config.to_str().unwrap()], more].concat();
        let daemon = Daemon::start_with(&arguments, |command| {
            command.env("FAKE_NVML_SCENARIO", &scenario);
        });
        for rank in &mut ranks {
            rank.speak(&daemon.job_socket());
        }
        Self { daemon, _ranks: ranks, _folder: folder }
    }

    /// The queries that must return something here.
    pub(crate) fn queries(&self) -> BTreeSet<String> {
        let page = self.daemon.metrics();
        dashboard_queries().into_iter().filter(|query| !may_be_empty(query, &page)).collect()
    }
}
