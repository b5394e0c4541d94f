//! All configuration keys. Sources and analyzers declare their own; the others are declared here. Paths of kernel files
//! are literals only here and in the default of one flag.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use crate::model::setting::{Opt, OptKind, Setting, Settings, Value};
use crate::model::units::Bytes;

/// The keys of a configuration file.
#[derive(Debug)]
pub struct Schema {
    /// The fixed sections, each of kind [`OptKind::Section`].
    pub sections: &'static [Opt],
    /// The groups of sections that come from a registry.
    pub groups: Vec<GroupSchema>,
    /// The sections that another module declares and checks.
    pub modules: Vec<ModuleSchema>,
}

impl Schema {
    /// Every fixed section, including those of other modules.
    pub fn sections(&self) -> impl Iterator<Item = &'static Opt> {
        self.sections.iter().chain(self.modules.iter().map(|module| module.section))
    }
}

/// A section that another module declares and checks.
#[derive(Debug)]
pub struct ModuleSchema {
    /// Its key and its options: of kind [`OptKind::Section`].
    pub section: &'static Opt,
    /// Checks settings for contradictions: returns a key within the section and a sentence for each.
    pub check: fn(&Settings) -> Vec<(String, String)>,
}

/// A section with one subsection for each entry of a registry.
#[derive(Debug)]
pub struct GroupSchema {
    pub key: &'static str,
    /// What its subsections have in common.
    pub about: &'static str,
    /// Its subsections, in the registry's order.
    pub parts: Vec<PartSchema>,
}

pub const SOURCES: &str = "sources";
pub const ANALYZERS: &str = "analyzers";

/// The section of one source or analyzer.
#[derive(Debug)]
pub struct PartSchema {
    /// The name in the registry.
    pub key: &'static str,
    /// What it measures or reports.
    pub about: &'static str,
    /// Whether it is enabled by default.
    pub on_by_default: bool,
    pub options: &'static [Opt],
    /// The other entries of its group that it requires.
    pub needs: &'static [&'static str],
    /// Checks settings for contradictions: returns a key within the section and a sentence for each.
    pub check: fn(&Settings) -> Vec<(String, String)>,
}

impl PartSchema {
    /// `enabled`, then the part's own keys.
    pub fn options(&self) -> impl Iterator<Item = &'static Opt> + use<> {
        let enabled = if self.on_by_default { On::OPTIONS } else { Off::OPTIONS };
        enabled.iter().chain(self.options)
    }
}

/// The fixed sections, in the order of the default file.
pub static SECTIONS: &[Opt] = Fixed::OPTIONS;

crate::options! {
    /// What each source and analyzer has.
    pub(super) struct On {
        /// Whether it is enabled.
        enabled: bool = true;
    }

    /// What each source has that is disabled by default.
    pub(super) struct Off {
        /// Whether it is enabled.
        enabled: bool = false;
    }

    /// The fixed sections.
    pub(super) struct Fixed {
        /// Sampling of the node.
        sampling: Sampling;
        /// Paths of the kernel's files; other values are for containers and tests.
        paths: Paths;
        /// State that is kept over a restart of the daemon.
        state: StateOptions;
        /// HTTP server.
        web: Web;
        /// Names of other exporters, for dashboards and alerts that already exist.
        compatibility: Compatibility;
        /// Export of metrics and log records over OTLP. Empty options take their value from the `OTEL_*` environment
        /// variables, then from the defaults of OpenTelemetry.
        otlp: Otlp;
        /// Performance logs of training jobs: files for people and tools, one folder for each workload.
        perf_logs: PerfLogs;
        /// Log of the daemon, written to standard error.
        log: Log;
    }

    /// Sampling of the node.
    pub struct Sampling {
        /// Time between two samples. A sample that cannot start in time is skipped and counted, never queued.
        interval: Duration = 1s in 100ms..=1m;
        /// Length of the window whose largest value the `_max` gauges expose; at least the longest scrape interval.
        peak_window: Duration = 60s in 1s..=1h;
    }

    /// Paths of the kernel's files.
    pub struct Paths {
        /// Mount point of the process file system (procfs).
        proc: PathBuf = "/proc";
        /// Mount point of the device file system (sysfs).
        sys: PathBuf = "/sys";
        /// Mount point of the cgroup hierarchies.
        cgroup: PathBuf = "/sys/fs/cgroup";
        /// Device file of the kernel log.
        kmsg: PathBuf = "/dev/kmsg";
        /// File with the names and numbers of users.
        passwd: PathBuf = "/etc/passwd";
    }

    /// State that is kept over a restart.
    pub struct StateOptions {
        /// File in which the analyzers keep their state over a restart of the daemon; read only when the daemon starts.
        /// Empty means state.json in systemd's StateDirectory=, and no file without one.
        file: Option<PathBuf>;
    }

    /// The HTTP server.
    pub struct Web {
        /// Addresses to listen on, each `host:port`. Loopback by default, because the metrics name users and jobs.
        listen_addresses: Vec<String> = ["127.0.0.1:10636"];
        /// Unix socket on which commands of this node ask the daemon, in a folder that only root or the daemon's user can
        /// change; empty serves none. Every user can connect and read what the default address shows. Details of a job
        /// are for its user and root.
        socket: Option<PathBuf> = "/run/memwarden/api.sock";
        /// Prometheus web-config file with TLS, basic authentication and headers; empty uses none.
        config_file: Option<PathBuf>;
        /// Whether `POST /-/reload` reloads the configuration.
        enable_lifecycle: bool = false;
        /// Maximum number of requests served at once; further requests are answered with status 503.
        max_requests: usize = 40 in 1..=10000;
        /// Maximum number of open connections; at the limit, the connection that has been idle longest is closed.
        max_connections: usize = 512 in 8..=100000;
        /// Time limit for a client to send the headers of a request.
        header_timeout: Duration = 5s in 1s..=5m;
        /// Time limit for one request, from reading it to writing the response.
        request_timeout: Duration = 10s in 1s..=5m;
        /// Time after which an idle connection is closed.
        idle_timeout: Duration = 60s in 1s..=1h;
        /// Whether OpenMetrics is offered as a format; Prometheus prefers it over its text format.
        openmetrics: bool = true;
        /// Host names accepted in the Host header of requests, in addition to IP addresses, localhost and the host's own
        /// name. Empty accepts any name on addresses that other hosts can reach, and no additional name on loopback
        /// addresses.
        allowed_hosts: Vec<String>;
    }

    /// Names of other exporters at `/metrics`.
    #[derive(Copy)]
    pub struct Compatibility {
        /// Whether `/metrics` also exposes values of NVIDIA GPUs under the names and with the labels and units of
        /// dcgm-exporter. They are not exported over OTLP.
        dcgm: bool = false;
    }

    /// Export over OTLP; what is not set has the value of the environment.
    pub struct Otlp {
        /// Whether metrics are exported over OTLP. The environment variables `OTEL_EXPORTER_OTLP_ENDPOINT` and
        /// `OTEL_EXPORTER_OTLP_METRICS_ENDPOINT` enable it too.
        enabled: bool = false;
        /// URL of the collector: `http://host:4318` for HTTP (`/v1/metrics` is appended) or `http://host:4317` for gRPC.
        endpoint: Option<String>;
        /// Protocol of the export: `grpc` or `http/protobuf`.
        protocol: Option<OtlpProtocol>;
        /// Time between two exports, such as 10s; empty uses OTEL_METRIC_EXPORT_INTERVAL, then 60s.
        interval: Option<Duration> = "" in 10ms..=1d;
        /// Time limit for one export, such as 5s; empty uses OTEL_EXPORTER_OTLP_TIMEOUT, then 10s.
        timeout: Option<Duration> = "" in 10ms..=1d;
        /// Compression of the export: `gzip` or `none`.
        compression: Option<OtlpCompression>;
        /// HTTP headers or gRPC metadata sent with each export, such as an authorization.
        headers: BTreeMap<String, String>;
        /// PEM file with the certificates of trusted authorities; empty uses SSL_CERT_FILE, then the distribution's.
        certificate: Option<PathBuf>;
        /// PEM file with the client certificate for mutual TLS; empty uses none.
        client_certificate: Option<PathBuf>;
        /// PEM file with the private key of the client certificate for mutual TLS.
        client_key: Option<PathBuf>;
        /// Whether findings, ends, incidents, transitions of protection and reloads are exported as log records too, beside
        /// the metrics (`/v1/logs`); over `http/protobuf` only.
        logs: bool = true;
        /// Names to send for metrics that have a name in the OpenTelemetry semantic conventions: `memwarden` (own
        /// names), `semconv` (names of the conventions) or `both`.
        names: OtlpNames = both;
        /// Resource attributes of the export, in addition to OTEL_RESOURCE_ATTRIBUTES.
        resource_attributes: BTreeMap<String, String>;
    }

    /// Performance logs of training jobs.
    pub struct PerfLogs {
        /// Folder of the performance logs; empty disables them.
        folder: Option<PathBuf>;
        /// Number of training steps between two lines; where a step is shorter than the sampling interval, at most one
        /// line for each sample.
        every_steps: u64 = 10 in 1..=1000000;
        /// Files to write: text (perf.log), table (perf_realtime.log), summary (perf_summary.json) and tensorboard
        /// (event files).
        formats: PerfFormats = [text, table, summary, tensorboard];
        /// Size at which a file is rotated.
        max_size: Bytes = 10MiB in 64KiB..=1TiB;
        /// Number of rotated files kept for each file.
        max_files: u32 = 10 in 0..=1000;
    }

    /// The log of the daemon.
    pub struct Log {
        /// Least severe level that is logged: error, warn, info or debug.
        level: LogLevel = info;
        /// Format of the log: logfmt, json or text (for people, without the time).
        format: LogFormat = logfmt;
    }
}

crate::choice! {
    /// The OTLP transport.
    pub enum OtlpProtocol {
        Grpc = "grpc",
        #[default]
        HttpProtobuf = "http/protobuf",
    }

    /// Compression of an export.
    pub enum OtlpCompression {
        Gzip = "gzip",
        #[default]
        None = "none",
    }

    /// Which names are sent over OTLP for metrics that have one in the semantic conventions.
    pub enum OtlpNames {
        /// Names of memwarden only.
        Memwarden = "memwarden",
        /// Names of the conventions only, where there is one.
        Semconv = "semconv",
        #[default]
        Both = "both",
    }

    /// The least severe level that is logged.
    pub enum LogLevel {
        Error = "error",
        Warn = "warn",
        #[default]
        Info = "info",
        Debug = "debug",
    }

    /// How log lines are written.
    pub enum LogFormat {
        #[default]
        Logfmt = "logfmt",
        /// One JSON object a line.
        Json = "json",
        /// Lines for people: level, message and fields, without the time.
        Text = "text",
    }
}

/// The files of the performance logs that are written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PerfFormats {
    /// `perf.log`.
    pub text: bool,
    /// `perf_realtime.log`.
    pub table: bool,
    /// `perf_summary.json`.
    pub summary: bool,
    /// Event files.
    pub tensorboard: bool,
}

impl Setting for PerfFormats {
    const KIND: OptKind = OptKind::Texts;

    fn of(value: &Value) -> Result<Self, String> {
        let mut formats = Self::default();
        for word in Vec::<String>::of(value)? {
            match word.as_str() {
                "text" => formats.text = true,
                "table" => formats.table = true,
                "summary" => formats.summary = true,
                "tensorboard" => formats.tensorboard = true,
                _ => return Err(format!("`{word}` is not one of text, table, summary, tensorboard")),
            }
        }
        Ok(formats)
    }
}
