//! `memwarden doctor`: what of this machine memwarden cannot use, and the command that repairs it.

mod guards;

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use serde::Serialize;

use self::guards::Guards;
use super::fetch;
use super::output::{Format, Output};
use super::report::load;
use crate::app::serve;
use crate::config::Config;
use crate::host::clock;
use crate::host::sent_signals::SentSignals;
use crate::model::format;
use crate::model::frame::SourceReport;
use crate::model::health::Health;
use crate::model::printable::escaped;
use crate::model::source::Status;
use crate::model::units::real;
use crate::node_view::table::{Cell, Row};
use crate::report::Page;
use crate::report::text::rows;

/// Examine whether this machine has what memwarden reads, and print the command that repairs what is missing.
///
/// Samples each source of the configuration for 3 s as the user that runs it, without a daemon: run it as root for what the daemon
/// can read. Nothing is changed. Exit codes: 0 nothing is missing, 1 an error, 2 something is missing.
#[derive(Debug, clap::Args)]
#[command(after_long_help = "Examples:
  sudo memwarden doctor
  memwarden doctor --format json")]
pub(super) struct Args {
    /// Configuration file, in place of the default configuration.
    #[arg(long = "config.file", value_name = "FILE")]
    config_file: Option<PathBuf>,
    #[command(flatten)]
    output: Output<Format>,
}

/// Time between two samples, in seconds; sources with a thread of their own answer in a later one.
const INTERVAL: f64 = 1.0;
const SAMPLES: usize = 4;
const ANSWER_TIMEOUT: Duration = Duration::from_secs(3);
/// The size of `/dev/shm` in a container of Docker and of Kubernetes by default, in bytes.
const SMALL: u64 = 64 << 20;

/// What is lost without a source that is not available, and how it is repaired; sources that are optional are not in it.
const REPAIRS: &[(&str, &str, &str)] = &[
    (
        "kmsg",
        "OOM kills with their victims, and XIDs of GPUs",
        "run as root; in a container: docker run --device=/dev/kmsg --cap-add=SYSLOG",
    ),
    (
        "pressure",
        "memory pressure",
        "sudo grubby --update-kernel=ALL --args=psi=1 (Debian: psi=1 in GRUB_CMDLINE_LINUX of /etc/default/grub, then \
         sudo update-grub), then reboot",
    ),
    (
        "exits",
        "exit statuses, and so why jobs ended",
        "run as root on the host; in a container: docker run --pid=host --network=host --cap-add=NET_ADMIN",
    ),
    (
        "tmpfs",
        "how full /dev/shm is, and so whether SIGBUS ended a job for it",
        "boot Linux 5.12 or later; in a container: docker run --security-opt seccomp=unconfined",
    ),
    ("cgroup", "limits and use of cgroups", "sudo mount -t cgroup2 none /sys/fs/cgroup"),
    ("process", "processes", "sudo mount -o remount,hidepid=0 /proc"),
    ("memory", "the memory of the host", "in a container: docker run --volume=/proc:/proc:ro"),
    ("vmstat", "reclaim", "in a container: docker run --volume=/proc:/proc:ro"),
    ("buddyinfo", "fragmentation of the host's memory", "in a container: docker run --volume=/proc:/proc:ro"),
    (
        "perf",
        "performance counters",
        "sudo install -D -m 644 /usr/share/memwarden/memwarden-perf.conf /etc/systemd/system/memwarden.service.d/perf.conf && \
         sudo systemctl daemon-reload && sudo systemctl restart memwarden",
    ),
];

/// One thing that was examined.
#[derive(Debug, Serialize)]
struct Examined {
    what: String,
    health: Health,
    found: String,
    /// What to do; absent where nothing is missing.
    repair: Option<String>,
}

impl Examined {
    fn good(what: &str, found: impl Into<String>) -> Self {
        Self { what: what.to_owned(), health: Health::Ok, found: found.into(), repair: None }
    }

    fn unknown(what: &str, found: impl Into<String>, repair: impl Into<String>) -> Self {
        Self { health: Health::Unknown, ..Self::missing(what, found, repair) }
    }

    fn missing(what: &str, found: impl Into<String>, repair: impl Into<String>) -> Self {
        let repair = Some(repair.into());
        Self { what: what.to_owned(), health: Health::Warning, found: found.into(), repair }
    }
}

impl Args {
    pub(super) fn run(self) -> anyhow::Result<ExitCode> {
        let config = load(self.config_file.clone(), &[], INTERVAL, &[])?;
        let mut engine = serve::own_engine(&config);
        let mut frame = engine.tick(clock::now());
        for _ in 1..SAMPLES {
            std::thread::sleep(Duration::from_secs_f64(INTERVAL));
            frame = engine.tick(clock::now());
        }
        let mut all = vec![user(), daemon(&config)];
        all.extend(frame.sources.iter().map(|report| source(report, &config.paths.proc)));
        all.push(senders(&config.paths.sys));
        all.extend(shared_memory());
        let protection = serve::protection(&config);
        if !protection.targets.is_empty() {
            all.extend(Guards::of(&protection, &config.paths.proc, Path::new("/")).examine(engine.facts()));
        }
        let is_missing = all.iter().any(|examined| examined.health != Health::Ok);
        self.output.report(|page| text(&all, page), &all)?;
        Ok(if is_missing { ExitCode::from(2) } else { ExitCode::SUCCESS })
    }
}

fn text(all: &[Examined], page: Page) -> String {
    let row = |examined: &Examined| {
        Row::new(&*examined.what, examined.health)
            .text("examined", 0, &*examined.what)
            .text("result", 0, Cell::text(examined.health.label()).of(examined.health))
            .text("found", 0, escaped(&examined.found).into_owned())
    };
    let mut out = "Machine\n".to_owned();
    rows(&mut out, all.iter().map(row), page);
    for examined in all {
        if let Some(repair) = &examined.repair {
            out.push_str(&format!("\n{}: {}\n", examined.what, repair));
        }
    }
    out
}

fn user() -> Examined {
    let user = rustix::process::geteuid();
    if user.is_root() {
        return Examined::good("user", "root");
    }
    let found = format!("user {}: the memory of other users' processes cannot be read", user.as_raw());
    Examined::missing("user", found, "sudo memwarden doctor")
}

fn daemon(config: &Config) -> Examined {
    let url = config.web.socket.as_ref().map(|socket| format!("unix:{}", socket.display()));
    let url = url.unwrap_or_else(fetch::local);
    match fetch::json::<serde_json::Value>(&url, "/api/v1/node", ANSWER_TIMEOUT) {
        Ok(_) => Examined::good("memwarden serve", "answers"),
        Err(error) => {
            let repair = "sudo systemctl enable --now memwarden (without systemd: sudo memwarden serve)";
            Examined::missing("memwarden serve", format!("{error:#}"), repair)
        }
    }
}

/// A source after its last sample.
fn source(report: &SourceReport, proc: &Path) -> Examined {
    let why = report.why.as_deref().unwrap_or("no sample");
    if report.status == Status::Ok {
        return Examined::good(report.source, "read");
    }
    if let Some((_, lost, repair)) = REPAIRS.iter().find(|(source, ..)| *source == report.source) {
        return Examined::missing(report.source, format!("{why}; without it: {lost}"), *repair);
    }
    let has_nvidia = report.source == "gpu" && proc.join("driver/nvidia").exists();
    if has_nvidia || report.status != Status::Unavailable {
        let repair = match report.source {
            "gpu" if has_nvidia => {
                "install the driver's library libnvidia-ml.so.1, of the version in /proc/driver/nvidia/version; in a container: docker run --gpus all"
            }
            "gpu" => {
                "if the driver's kernel module is not loaded: sudo modprobe nvidia (dmesg says why it failed); else see the log of memwarden"
            }
            _ => "see the log of memwarden",
        };
        return Examined::missing(report.source, why, repair);
    }
    Examined::good(report.source, format!("not used: {why}"))
}

/// Whether the senders of signals can be known.
fn senders(sys: &Path) -> Examined {
    const WHAT: &str = "senders of signals";
    match SentSignals::open(sys) {
        Ok(_) => Examined::good(WHAT, "read here; for the service see memwarden_host_signal_senders_known"),
        Err(error) => {
            let is_absent = error.kind() == std::io::ErrorKind::NotFound;
            let perf =
                REPAIRS.iter().find(|(source, ..)| *source == "perf").map_or("", |(.., repair)| *repair);
            let repair = if is_absent { "sudo mount -t tracefs none /sys/kernel/tracing" } else { perf };
            let found = format!("{error}; without it, `memwarden why` does not know who ended a job");
            Examined::missing(WHAT, found, repair)
        }
    }
}

/// The size of `/dev/shm`; absent where there is none.
fn shared_memory() -> Option<Examined> {
    const WHAT: &str = "/dev/shm";
    let known = rustix::fs::statvfs(WHAT).ok()?;
    let size = known.f_blocks.saturating_mul(known.f_frsize);
    let shown = format::bytes(real(size));
    Some(if size > SMALL {
        Examined::good(WHAT, shown)
    } else {
        let found = format!("{shown}: loader workers of PyTorch end with a bus error when it is full");
        let repair =
            "docker run --shm-size=8g or --ipc=host; in a pod: an emptyDir of medium Memory at /dev/shm";
        Examined::missing(WHAT, found, repair)
    })
}
