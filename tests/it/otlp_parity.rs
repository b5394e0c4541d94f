//! `/metrics` and OTLP have the same values: every series of `/metrics` arrives at a real OTLP receiver, by gRPC and by
//! HTTP, under the name of the standard translation, with the same labels and value, and no other series arrives.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::time::Duration;

use memwarden::catalog;
use memwarden::model::desc::Instrument;
use serde_json::json;

use crate::harness::{Daemon, Page, fake_nvml, now, program};
use crate::receiver::{Metric, Receiver};

const SOON: Duration = Duration::from_secs(60);

/// Metrics whose values change while nothing happens: memwarden's own activity and cost, and the age of samples.
const MOVING: &[&str] = &[
    "memwarden_frames_total",
    "memwarden_gpu_sample_age_seconds",
    "memwarden_gpu_worker_resident_memory_bytes",
    "memwarden_gpu_worker_last_message_age_seconds",
    "memwarden_http_requests_total",
    "memwarden_last_sample_timestamp_seconds",
    "memwarden_otlp_exports_total",
    "memwarden_otlp_last_success_timestamp_seconds",
    "memwarden_sample_age_seconds",
    "memwarden_source_duration_seconds",
    "memwarden_ticks_skipped_total",
    "process_cpu_seconds_total",
    "process_open_fds",
    "process_resident_memory_bytes",
    "process_threads",
    "process_virtual_memory_bytes",
];

/// Prefixes of names; for each of them something must be compared.
const ROOMS: &[&str] = &[
    "memwarden_cgroup_memory_",
    "memwarden_gpu_memory_",
    "memwarden_gpu_mig_",
    "memwarden_gpu_unattributed_xid_",
    "memwarden_gpu_xid_",
    "memwarden_host_memory_",
    "memwarden_host_pressure_",
    "memwarden_http_",
    "memwarden_kernel_oom_last_victim_",
    "memwarden_otlp_",
    "memwarden_process_",
    "memwarden_source_status",
    "memwarden_workload_gpu_memory_",
    "memwarden_workload_rss_",
    "process_",
];

/// The UID of a pod, and the id of its container.
const POD: [&str; 2] = [
    "2b9c0f4e-0d8b-4a53-8b8a-0b1d6f0c9e11",
    "9f2c8e51d0b7a4639f2c8e51d0b7a4639f2c8e51d0b7a4639f2c8e51d0b7a463",
];

/// A machine without changes: constant files, one Slurm job, one pod, two GPUs.
struct Still {
    folder: tempfile::TempDir,
    jobs: [Child; 2],
}

impl Still {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path();
        copy(&Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/host/6.18"), root);
        let write = |path: &str, text: &str| {
            let path = root.join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        };
        write("kmsg", "");
        write("passwd", "root:x:0:0::/:/bin/sh\n");
        write("proc/stat", "cpu 1 2\nbtime 1700000000\nprocesses 4321\nprocs_running 1\n");
        // memwarden's own cost is real.
        std::os::unix::fs::symlink("/proc/self", root.join("proc/self")).unwrap();

        write("cgroup/cgroup.controllers", "cpu memory pids\n");
        let pod = format!("kubepods-pod{}.slice/cri-containerd-{}.scope", POD[0].replace('-', "_"), POD[1]);
        let groups =
            ["/system.slice/slurmstepd.scope/job_42/step_0/user/task_0", &format!("/kubepods.slice/{pod}")];
        let jobs = groups.map(|group| job(root, group, &write));

        let device = |gpu: u32| {
            json!({
                "uuid": format!("GPU-00000000-0000-0000-0000-{gpu:012}"),
                "minor": gpu,
                "pci": format!("0000:{:02x}:00.0", gpu + 16),
                "utilization": 50,
                "fan_speed": 30,
                "throttle": 4,
                "retired_pages": {"single_bit": [], "double_bit": [], "pending": false},
                "processes": [{"pid": jobs[0].id(), "memory": 1_u64 << 30, "type": "compute", "sm": 40}],
            })
        };
        let instance = json!({"uuid": "MIG-a", "gi": 1, "ci": 0, "name": "1g.10gb"});
        let mut split = device(1);
        split["mig"] = json!({"enabled": true, "instances": [instance]});
        write("scenario.json", &json!({"devices": [device(0), split]}).to_string());
        Self { folder, jobs }
    }

    /// A memwarden on this machine, which pushes to a port of loopback.
    fn daemon(&self, protocol: &str, port: u16) -> Daemon {
        let root = self.folder.path().display();
        let mut sets: Vec<String> =
            ["proc", "cgroup", "kmsg", "passwd"].map(|name| format!("paths.{name}={root}/{name}")).into();
        sets.push(format!("otlp.endpoint=http://127.0.0.1:{port}"));
        sets.push(format!("otlp.protocol={protocol}"));
        sets.extend(["otlp.enabled=true", "otlp.interval=500ms", "otlp.names=both"].map(str::to_owned));
        sets.push(format!("sources.gpu.nvml_library={}", fake_nvml().display()));
        sets.push("sources.gpu.interval=200ms".to_owned());
        let args: Vec<&str> = sets.iter().flat_map(|set| ["--set", set]).collect();
        Daemon::start_with(&args, |command| {
            command.env("FAKE_NVML_SCENARIO", self.folder.path().join("scenario.json"));
        })
    }

    /// Adds a kernel message, the last change.
    fn log(&self) {
        let text = "6,1,77000100,-;oom-kill:constraint=CONSTRAINT_NONE,nodemask=(null),task_memcg=/a\\x5cx2db \"c\",task=x,pid=9,uid=0\n\
            3,2,77000200,-;Out of memory: Killed process 9 (x) total-vm:300kB, anon-rss:200kB, file-rss:20kB, shmem-rss:2kB\n\
            4,3,78000000,-;NVRM: Xid (PCI:0000:10:00.0): 79, pid=9, GPU has fallen off the bus.\n\
            4,4,78000000,-;NVRM: Xid (PCI:0000:99:00.0): 13, pid=9, Graphics Exception\n";
        std::fs::write(self.folder.path().join("kmsg"), text).unwrap();
    }
}

/// A real process in a cgroup, as it is now, which cannot change any more.
fn job(root: &Path, group: &str, write: &impl Fn(&str, &str)) -> Child {
    let job = program("sleep").arg("600").stdin(Stdio::null()).spawn().unwrap();
    let mut path = String::from("cgroup");
    for part in group.split('/') {
        path = format!("{path}/{part}");
        write(&format!("{path}/memory.current"), "5000\n");
        write(&format!("{path}/memory.max"), "8000\n");
        write(&format!("{path}/memory.stat"), "anon 3000\nfile 1500\nshmem 200\ninactive_file 1000\n");
        write(&format!("{path}/memory.events"), "low 1\nhigh 2\nmax 3\noom 4\noom_kill 5\n");
    }
    let own = PathBuf::from(format!("/proc/{}", job.id()));
    for name in ["stat", "status", "statm", "cmdline", "comm", "io", "environ", "smaps_rollup", "limits"] {
        let text = std::fs::read(own.join(name)).unwrap_or_default();
        write(&format!("proc/{}/{name}", job.id()), &String::from_utf8(text).unwrap());
    }
    write(&format!("proc/{}/cgroup", job.id()), &format!("0::{group}\n"));
    let stat = std::fs::read_to_string(own.join("stat")).unwrap();
    write("proc/1/stat", &format!("1 (init) {}", stat.split_once(") ").unwrap().1));
    for number in 0..3 {
        write(&format!("proc/{}/fd/{number}", job.id()), "");
    }
    std::os::unix::fs::symlink("/usr/bin/sleep", root.join(format!("proc/{}/exe", job.id()))).unwrap();
    job
}

impl Drop for Still {
    fn drop(&mut self) {
        for job in &mut self.jobs {
            job.kill().unwrap();
            job.wait().unwrap();
        }
    }
}

fn copy(from: &Path, to: &Path) {
    for entry in std::fs::read_dir(from).unwrap().flatten() {
        let target = to.join(entry.file_name());
        if entry.path().is_dir() {
            std::fs::create_dir_all(&target).unwrap();
            copy(&entry.path(), &target);
        } else {
            std::fs::copy(entry.path(), target).unwrap();
        }
    }
}

/// A series: its name, type and labels; with its value, or nothing if it changes.
type All = BTreeMap<(String, &'static str, BTreeMap<String, String>), Option<f64>>;

fn still(prometheus_name: &str, value: f64) -> Option<f64> {
    (!MOVING.contains(&prometheus_name)).then_some(value)
}

/// The Prometheus name of what was pushed: dots to underscores, the unit spelled out, `_total` for a counter.
///
/// The rules of OpenTelemetry's "Prometheus and OpenMetrics Compatibility".
fn translated(metric: &Metric) -> String {
    let unit = match metric.unit.as_str() {
        "By" => "_bytes",
        "By/s" => "_bytes_per_second",
        "s" => "_seconds",
        "1" => "_ratio",
        "Cel" => "_celsius",
        "W" => "_watts",
        "J" => "_joules",
        "Hz" => "_hertz",
        annotation if annotation.starts_with('{') => "",
        other => panic!("{} has the unit {other}", metric.name),
    };
    let total = if metric.monotonic { "_total" } else { "" };
    format!("{}{unit}{total}", metric.name.replace('.', "_"))
}

fn kind(metric: &Metric) -> &'static str {
    match (metric.shape.as_str(), metric.monotonic) {
        ("Gauge", _) => "gauge",
        ("Sum", true) => "counter",
        ("Sum", false) => "updowncounter",
        other => panic!("{} is {other:?}", metric.name),
    }
}

/// The pushed series with memwarden's names as Prometheus translates them, and those with the names of the conventions.
fn pushed(push: &[Metric]) -> [All; 2] {
    let conventional: BTreeSet<&str> =
        catalog::all().filter_map(|desc| Some(desc.semconv.as_ref()?.name)).collect();
    let mut found = [All::new(), All::new()];
    for metric in push {
        let is_conventional = conventional.contains(metric.name.as_str());
        let name = if is_conventional { metric.name.clone() } else { translated(metric) };
        for (attributes, value) in &metric.points {
            let key = (name.clone(), kind(metric), attributes.clone());
            let before = found[usize::from(is_conventional)].insert(key, still(&name, *value));
            assert!(before.is_none(), "{name} {attributes:?} came twice in one push");
        }
    }
    found
}

/// The corresponding series of `/metrics`, and those that follow for the conventions.
fn pulled(text: &str) -> [All; 2] {
    let types: BTreeMap<&str, &str> =
        text.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.split_once(' ')).collect();
    let mut found = [All::new(), All::new()];
    for series in Page::parse(text).0 {
        let is = if types[series.name.as_str()] == "counter" { "counter" } else { "gauge" };
        let value = still(&series.name, series.value);
        let desc = catalog::all().find(|desc| desc.name == series.name).unwrap();
        let has = |(label, value): (&str, &str)| series.labels.get(label).is_some_and(|own| own == value);
        let is_container =
            series.labels.get("cgroup").is_some_and(|path| path.ends_with(&format!("{}.scope", POD[1])));
        if let Some(semconv) = &desc.semconv
            && semconv.only.is_none_or(has)
            && (is_container || !semconv.name.starts_with("container."))
        {
            let only = semconv.only.map(|(label, _)| label);
            let container = [("k8s.pod.uid", POD[0]), ("container.id", POD[1])];
            let container = container.into_iter().filter(|_| is_container);
            let sent = series.labels.iter().filter(|(label, _)| Some(label.as_str()) != only);
            let renamed = sent.map(|(label, value)| {
                let to = semconv.renamed.iter().find(|(from, _)| from == label);
                (to.map_or(label.as_str(), |(_, to)| to).to_owned(), value.clone())
            });
            let fixed = semconv
                .fixed
                .iter()
                .copied()
                .chain(container)
                .map(|(name, value)| (name.to_owned(), value.to_owned()));
            let is = match semconv.instrument {
                Instrument::Gauge => "gauge",
                Instrument::Counter => "counter",
                Instrument::UpDownCounter => "updowncounter",
            };
            found[1].insert((semconv.name.to_owned(), is, renamed.chain(fixed).collect()), value);
        }
        found[0].insert((series.name, is, series.labels), value);
    }
    found
}

/// The number of the frame that was pushed.
fn frame_of(push: &[Metric]) -> Option<f64> {
    let frames = push.iter().find(|metric| metric.name == "memwarden.frames")?;
    frames.points.first().map(|(_, value)| *value)
}

/// The series that differ or exist on one side only.
fn difference(pushed: &All, pulled: &All) -> Vec<String> {
    let keys: BTreeSet<_> = pushed.keys().chain(pulled.keys()).collect();
    let differ = keys.into_iter().filter(|key| pushed.get(*key) != pulled.get(*key));
    differ.map(|key| format!("{key:?}: pushed {:?}, pulled {:?}", pushed.get(key), pulled.get(key))).collect()
}

#[test]
fn pull_and_push_have_the_same_values() {
    let Some(receiver) = Receiver::start() else { return };
    for (protocol, port) in [("grpc", receiver.grpc), ("http/protobuf", receiver.http)] {
        let machine = Still::new();
        let daemon = machine.daemon(protocol, port);
        daemon.wait_page("the job, the pod and the GPUs", SOON, |page| {
            let job = page.sum("memwarden_workload_processes", &[]) == 2.0;
            let gpus = page.sum("memwarden_gpu_status", &[("status", "ok")]) == 2.0;
            job && gpus
        });
        machine.log();
        daemon.wait_value("memwarden_kernel_log_records_total", |records| records == 4.0);
        receiver.forget();
        let begun = now();
        // A push is complete only when the next one begins, and may be of a frame that is no longer the newest: it is
        // compared with the scrape of the same frame.
        let mut pulls = BTreeMap::new();
        let mut differ = vec!["nothing was pushed of a frame that was pulled".to_owned()];
        let (own, conventional) = loop {
            let text = daemon.metrics();
            let frame = Page::parse(&text).get("memwarden_frames_total", &[]).unwrap();
            pulls.insert(frame.to_bits(), text);
            if let Some(push) = receiver.last_push()
                && let Some(text) = frame_of(&push).and_then(|frame| pulls.get(&frame.to_bits()))
            {
                let [own_pushed, conventional_pushed] = pushed(&push);
                let [own, conventional] = pulled(text);
                differ = difference(&own_pushed, &own);
                differ.extend(difference(&conventional_pushed, &conventional));
                if differ.is_empty() {
                    break (own, conventional);
                }
            }
            // The first pushes may be of a frame before the last change.
            assert!(begun.elapsed() < SOON, "by {protocol}:\n{}", differ.join("\n"));
            std::thread::sleep(Duration::from_millis(100));
        };
        let names: BTreeSet<&str> = own.keys().map(|key| key.0.as_str()).collect();
        for begin in ROOMS {
            assert!(names.iter().any(|name| name.starts_with(begin)), "nothing of {begin} was compared");
        }
        let came: BTreeSet<&str> = conventional.keys().map(|key| key.0.as_str()).collect();
        let declared = catalog::all().filter_map(|desc| Some(desc.semconv.as_ref()?.name));
        assert_eq!(came, declared.collect());
        assert_eq!(daemon.value("memwarden_otlp_export_failures_total"), Some(0.0));
        let constant = own.values().flatten().count();
        assert!(constant * 10 > own.len() * 9, "only {constant} values of {} stand still", own.len());
    }
}
