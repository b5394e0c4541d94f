//! All configuration keys. Sources and analyzers declare their own; the others are declared here. Paths of kernel files
//! are literals only here and in the default of one flag.

use std::time::Duration;

use crate::model::setting::{Opt, OptKind, Settings, seconds};

/// The keys of a configuration file.
#[derive(Debug)]
pub struct Schema {
    /// The fixed sections, each of kind [`OptKind::Section`].
    pub sections: &'static [&'static Opt],
    /// The groups of sections that come from a registry.
    pub groups: Vec<GroupSchema>,
    /// The sections that another module declares and checks.
    pub modules: Vec<ModuleSchema>,
}

impl Schema {
    /// Every fixed section, including those of other modules.
    pub fn sections(&self) -> impl Iterator<Item = &'static Opt> {
        self.sections.iter().copied().chain(self.modules.iter().map(|module| module.section))
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
    pub options: &'static [&'static Opt],
    /// The other entries of its group that it requires.
    pub needs: &'static [&'static str],
    /// Checks settings for contradictions: returns a key within the section and a sentence for each.
    pub check: fn(&Settings) -> Vec<(String, String)>,
}

impl PartSchema {
    /// `enabled`, then the part's own keys.
    pub fn options(&self) -> impl Iterator<Item = &'static Opt> + use<> {
        let enabled = if self.on_by_default { &ENABLED } else { &ENABLED_OFF };
        std::iter::once(enabled).chain(self.options.iter().copied())
    }
}

/// The fixed sections, in the order of the default file.
pub static SECTIONS: &[&Opt] = &[&SAMPLING, &PATHS, &STATE, &WEB, &COMPATIBILITY, &OTLP, &PERF_LOGS, &LOG];

macro_rules! opts {
    ($($(#[doc = $help:literal])+ $id:ident: $key:literal, $kind:expr, $default:literal;)+) => {
        $(pub(super) static $id: Opt = Opt { key: $key, help: concat!($($help),+), kind: $kind, default: $default };)+
    };
}

opts! {
    /// Whether it is enabled.
    ENABLED: "enabled", OptKind::Bool, "true";
    /// Whether it is enabled.
    ENABLED_OFF: "enabled", OptKind::Bool, "false";

    /// Sampling of the node.
    SAMPLING: "sampling", OptKind::Section(&[&INTERVAL, &PEAK_WINDOW]), "";
    /// Time between two samples. A sample that cannot start in time is skipped and counted, never queued.
    INTERVAL: "interval", OptKind::Duration(Duration::from_millis(100), Duration::from_secs(60)), "1s";
    /// Length of the window whose largest value the `_max` gauges expose; at least the longest scrape interval.
    PEAK_WINDOW: "peak_window", seconds(1, 3600), "60s";

    /// Paths of the kernel's files; other values are for containers and tests.
    PATHS: "paths", OptKind::Section(&[&PROC, &SYS, &CGROUP, &KMSG, &PASSWD]), "";
    /// Mount point of the process file system (procfs).
    PROC: "proc", OptKind::Path, "/proc";
    /// Mount point of the device file system (sysfs).
    SYS: "sys", OptKind::Path, "/sys";
    /// Mount point of the cgroup hierarchies.
    CGROUP: "cgroup", OptKind::Path, "/sys/fs/cgroup";
    /// Device file of the kernel log.
    KMSG: "kmsg", OptKind::Path, "/dev/kmsg";
    /// File with the names and numbers of users.
    PASSWD: "passwd", OptKind::Path, "/etc/passwd";

    /// State that is kept over a restart of the daemon.
    STATE: "state", OptKind::Section(&[&STATE_FILE]), "";
    /// File in which the analyzers keep their state over a restart of the daemon; read only when the daemon starts. Empty means state.json in systemd's StateDirectory=, and no file without one.
    STATE_FILE: "file", OptKind::Path, "\"\"";

    /// HTTP server.
    WEB: "web", OptKind::Section(&[
        &LISTEN, &SOCKET, &WEB_CONFIG, &LIFECYCLE, &MAX_REQUESTS, &MAX_CONNECTIONS, &HEADER_TIMEOUT, &REQUEST_TIMEOUT,
        &IDLE_TIMEOUT, &OPENMETRICS, &ALLOWED_HOSTS,
    ]), "";
    /// Addresses to listen on, each `host:port`. Loopback by default, because the metrics name users and jobs.
    LISTEN: "listen_addresses", OptKind::Texts, "[\"127.0.0.1:10636\"]";
    /// Unix socket on which commands of this node ask the daemon, in a folder that only root or the daemon's user can change; empty serves none. Every user can connect and read what the default address shows. Details of a job are for its user and root.
    SOCKET: "socket", OptKind::Path, "/run/memwarden/api.sock";
    /// Host names accepted in the Host header of requests, in addition to IP addresses, localhost and the host's own name. Empty accepts any name on addresses that other hosts can reach, and no additional name on loopback addresses.
    ALLOWED_HOSTS: "allowed_hosts", OptKind::Texts, "[]";
    /// Prometheus web-config file with TLS, basic authentication and headers; empty uses none.
    WEB_CONFIG: "config_file", OptKind::Path, "\"\"";
    /// Whether `POST /-/reload` reloads the configuration.
    LIFECYCLE: "enable_lifecycle", OptKind::Bool, "false";
    /// Maximum number of requests served at once; further requests are answered with status 503.
    MAX_REQUESTS: "max_requests", OptKind::Count(1, 10_000), "40";
    /// Maximum number of open connections; at the limit, the connection that has been idle longest is closed.
    MAX_CONNECTIONS: "max_connections", OptKind::Count(8, 100_000), "512";
    /// Time limit for a client to send the headers of a request.
    HEADER_TIMEOUT: "header_timeout", seconds(1, 300), "5s";
    /// Time limit for one request, from reading it to writing the response.
    REQUEST_TIMEOUT: "request_timeout", seconds(1, 300), "10s";
    /// Time after which an idle connection is closed.
    IDLE_TIMEOUT: "idle_timeout", seconds(1, 3600), "60s";
    /// Whether OpenMetrics is offered as a format; Prometheus prefers it over its text format.
    OPENMETRICS: "openmetrics", OptKind::Bool, "true";

    /// Names of other exporters, for dashboards and alerts that already exist.
    COMPATIBILITY: "compatibility", OptKind::Section(&[&DCGM]), "";
    /// Whether `/metrics` also exposes values of NVIDIA GPUs under the names and with the labels and units of dcgm-exporter. They are not exported over OTLP.
    DCGM: "dcgm", OptKind::Bool, "false";

    /// Export of metrics over OTLP. Empty options take their value from the `OTEL_*` environment variables, then from the defaults of OpenTelemetry.
    OTLP: "otlp", OptKind::Section(&[
        &OTLP_ENABLED, &ENDPOINT, &PROTOCOL, &OTLP_INTERVAL, &OTLP_TIMEOUT, &COMPRESSION, &HEADERS, &CA, &CERT, &KEY, &NAMES,
        &RESOURCE,
    ]), "";
    /// Whether metrics are exported over OTLP. The environment variables `OTEL_EXPORTER_OTLP_ENDPOINT` and `OTEL_EXPORTER_OTLP_METRICS_ENDPOINT` enable it too.
    OTLP_ENABLED: "enabled", OptKind::Bool, "false";
    /// URL of the collector: `http://host:4318` for HTTP (`/v1/metrics` is appended) or `http://host:4317` for gRPC.
    ENDPOINT: "endpoint", OptKind::Text, "\"\"";
    /// Protocol of the export: `grpc` or `http/protobuf`.
    PROTOCOL: "protocol", OptKind::Choice(&["", "grpc", "http/protobuf"]), "";
    /// Time between two exports, such as 10s; empty uses OTEL_METRIC_EXPORT_INTERVAL, then 60s.
    OTLP_INTERVAL: "interval", OptKind::Text, "\"\"";
    /// Time limit for one export, such as 5s; empty uses OTEL_EXPORTER_OTLP_TIMEOUT, then 10s.
    OTLP_TIMEOUT: "timeout", OptKind::Text, "\"\"";
    /// Compression of the export: `gzip` or `none`.
    COMPRESSION: "compression", OptKind::Choice(&["", "gzip", "none"]), "";
    /// HTTP headers or gRPC metadata sent with each export, such as an authorization.
    HEADERS: "headers", OptKind::Map, "{}";
    /// PEM file with the certificates of trusted authorities; empty uses SSL_CERT_FILE, then the distribution's.
    CA: "certificate", OptKind::Path, "\"\"";
    /// PEM file with the client certificate for mutual TLS; empty uses none.
    CERT: "client_certificate", OptKind::Path, "\"\"";
    /// PEM file with the private key of the client certificate for mutual TLS.
    KEY: "client_key", OptKind::Path, "\"\"";
    /// Names to send for metrics that have a name in the OpenTelemetry semantic conventions: `memwarden` (own names), `semconv` (names of the conventions) or `both`.
    NAMES: "names", OptKind::Choice(&["memwarden", "semconv", "both"]), "both";
    /// Resource attributes of the export, in addition to OTEL_RESOURCE_ATTRIBUTES.
    RESOURCE: "resource_attributes", OptKind::Map, "{}";

    /// Performance logs of training jobs: files for people and tools, one folder for each workload.
    PERF_LOGS: "perf_logs", OptKind::Section(&[
        &PERF_FOLDER, &PERF_EVERY, &PERF_FORMATS, &PERF_SIZE, &PERF_FILES,
    ]), "";
    /// Folder of the performance logs; empty disables them.
    PERF_FOLDER: "folder", OptKind::Path, "\"\"";
    /// Number of training steps between two lines; where a step is shorter than the sampling interval, at most one line for each sample.
    PERF_EVERY: "every_steps", OptKind::Count(1, 1_000_000), "10";
    /// Files to write: text (perf.log), table (perf_realtime.log), summary (perf_summary.json) and tensorboard (event files).
    PERF_FORMATS: "formats", OptKind::Texts, "[text, table, summary, tensorboard]";
    /// Size at which a file is rotated.
    PERF_SIZE: "max_size", OptKind::Size, "10MiB";
    /// Number of rotated files kept for each file.
    PERF_FILES: "max_files", OptKind::Count(0, 1000), "10";

    /// Log of the daemon, written to standard error.
    LOG: "log", OptKind::Section(&[&LEVEL, &FORMAT]), "";
    /// Least severe level that is logged: error, warn, info or debug.
    LEVEL: "level", OptKind::Choice(&["error", "warn", "info", "debug"]), "info";
    /// Format of the log: logfmt or json.
    FORMAT: "format", OptKind::Choice(&["logfmt", "json"]), "logfmt";
}
