//! Every key there is. Sources bring their own; the rest is declared here.

use std::time::Duration;

use crate::model::setting::{Opt, OptKind, Settings, seconds};

/// The keys of a configuration file.
#[derive(Debug)]
pub struct Schema {
    /// The fixed sections, each of kind [`OptKind::Section`].
    pub sections: &'static [&'static Opt],
    /// The groups of parts that come from a registry.
    pub groups: Vec<GroupSchema>,
    /// The sections that a room of its own declares and checks.
    pub rooms: Vec<RoomSchema>,
}

impl Schema {
    /// Every fixed section, those of rooms included.
    pub fn sections(&self) -> impl Iterator<Item = &'static Opt> {
        self.sections.iter().copied().chain(self.rooms.iter().map(|room| room.section))
    }
}

/// A section that a room declares and checks.
#[derive(Debug)]
pub struct RoomSchema {
    /// Its key and its options: of kind [`OptKind::Section`].
    pub section: &'static Opt,
    /// What is wrong with settings whose values are each right: a key within the section and a sentence.
    pub check: fn(&Settings) -> Vec<(String, String)>,
}

/// A section whose sections are the parts of one registry.
#[derive(Debug)]
pub struct GroupSchema {
    /// Its key.
    pub key: &'static str,
    /// What its parts have in common.
    pub about: &'static str,
    /// Its parts, in the registry's order.
    pub parts: Vec<PartSchema>,
}

/// The key of the group of sources.
pub const SOURCES: &str = "sources";
/// The key of the group of analyzers.
pub const ANALYZERS: &str = "analyzers";

/// The section of one source or analyzer.
#[derive(Debug)]
pub struct PartSchema {
    /// The name in the registry.
    pub key: &'static str,
    /// What it measures or says.
    pub about: &'static str,
    /// Whether it runs when the file is silent.
    pub on_by_default: bool,
    /// Its own keys.
    pub options: &'static [&'static Opt],
    /// The parts of its group that must run beside it.
    pub needs: &'static [&'static str],
    /// What is wrong with settings whose values are each right: a key within the section and a sentence.
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
pub static SECTIONS: &[&Opt] = &[&SAMPLING, &PATHS, &STATE, &WEB, &OTLP, &PERF_LOGS, &LOG];

macro_rules! opts {
    ($($(#[doc = $help:literal])+ $id:ident: $key:literal, $kind:expr, $default:literal;)+) => {
        $(pub(super) static $id: Opt = Opt { key: $key, help: concat!($($help),+), kind: $kind, default: $default };)+
    };
}

opts! {
    /// Whether it runs.
    ENABLED: "enabled", OptKind::Bool, "true";
    /// Whether it runs.
    ENABLED_OFF: "enabled", OptKind::Bool, "false";

    /// How often the node is measured.
    SAMPLING: "sampling", OptKind::Section(&[&INTERVAL, &PEAK_WINDOW]), "";
    /// Time between two samples. A late one is skipped and counted, never queued.
    INTERVAL: "interval", OptKind::Duration(Duration::from_millis(100), Duration::from_secs(60)), "1s";
    /// How long the `_max` gauges remember a peak; at least the longest scrape interval.
    PEAK_WINDOW: "peak_window", seconds(1, 3600), "60s";

    /// Where the kernel's files are; other places are for containers and tests.
    PATHS: "paths", OptKind::Section(&[&PROC, &SYS, &CGROUP, &KMSG, &PASSWD]), "";
    /// The process file system.
    PROC: "proc", OptKind::Path, "/proc";
    /// The device file system.
    SYS: "sys", OptKind::Path, "/sys";
    /// The root of the cgroup hierarchies.
    CGROUP: "cgroup", OptKind::Path, "/sys/fs/cgroup";
    /// The kernel log.
    KMSG: "kmsg", OptKind::Path, "/dev/kmsg";
    /// The names of users.
    PASSWD: "passwd", OptKind::Path, "/etc/passwd";

    /// What outlives the daemon.
    STATE: "state", OptKind::Section(&[&STATE_FILE]), "";
    /// Where the analyzers keep what they know over a restart of the daemon; read at the start only. Empty takes
    /// state.json in the folder that systemd gives (StateDirectory=), and without one keeps nothing.
    STATE_FILE: "file", OptKind::Path, "\"\"";

    /// The HTTP server.
    WEB: "web", OptKind::Section(&[
        &LISTEN, &WEB_CONFIG, &LIFECYCLE, &MAX_REQUESTS, &MAX_CONNECTIONS, &HEADER_TIMEOUT, &REQUEST_TIMEOUT,
        &IDLE_TIMEOUT, &OPENMETRICS, &ALLOWED_HOSTS,
    ]), "";
    /// Addresses to listen on, each `host:port`. Loopback by default: what it serves names users and jobs.
    LISTEN: "listen_addresses", OptKind::Texts, "[\"127.0.0.1:10636\"]";
    /// Host names that requests may name in their Host header, beside addresses, localhost and the host's own name.
    /// Empty takes any name on addresses that other hosts can reach, and no other name on loopback addresses.
    ALLOWED_HOSTS: "allowed_hosts", OptKind::Texts, "[]";
    /// A Prometheus web-config file: TLS, basic authentication, headers.
    WEB_CONFIG: "config_file", OptKind::Path, "\"\"";
    /// Whether `POST /-/reload` is allowed.
    LIFECYCLE: "enable_lifecycle", OptKind::Bool, "false";
    /// The most requests served at once; more are answered 503.
    MAX_REQUESTS: "max_requests", OptKind::Count(1, 10_000), "40";
    /// The most connections held at once; at the limit the one idle longest is closed.
    MAX_CONNECTIONS: "max_connections", OptKind::Count(8, 100_000), "512";
    /// How long a client may take to send its request's headers.
    HEADER_TIMEOUT: "header_timeout", seconds(1, 300), "5s";
    /// How long one request may take, reading and writing.
    REQUEST_TIMEOUT: "request_timeout", seconds(1, 300), "10s";
    /// How long an idle connection is kept.
    IDLE_TIMEOUT: "idle_timeout", seconds(1, 3600), "60s";
    /// Whether OpenMetrics is offered; Prometheus prefers it where it is.
    OPENMETRICS: "openmetrics", OptKind::Bool, "true";

    /// Pushing over OTLP. What is empty here follows the `OTEL_*` variables, then their defaults.
    OTLP: "otlp", OptKind::Section(&[
        &OTLP_ENABLED, &ENDPOINT, &PROTOCOL, &OTLP_INTERVAL, &OTLP_TIMEOUT, &COMPRESSION, &HEADERS, &CA, &CERT, &KEY, &NAMES,
        &RESOURCE,
    ]), "";
    /// Whether to push. Also on when `OTEL_EXPORTER_OTLP_ENDPOINT` or `OTEL_EXPORTER_OTLP_METRICS_ENDPOINT` is set.
    OTLP_ENABLED: "enabled", OptKind::Bool, "false";
    /// The collector, as `http://host:4318` (HTTP; `/v1/metrics` is appended) or `http://host:4317` (gRPC).
    ENDPOINT: "endpoint", OptKind::Text, "\"\"";
    /// `grpc` or `http/protobuf`.
    PROTOCOL: "protocol", OptKind::Choice(&["", "grpc", "http/protobuf"]), "";
    /// Time between two pushes; empty follows OTEL_METRIC_EXPORT_INTERVAL, then 60s.
    OTLP_INTERVAL: "interval", OptKind::Text, "\"\"";
    /// How long one push may take; empty follows OTEL_EXPORTER_OTLP_TIMEOUT, then 10s.
    OTLP_TIMEOUT: "timeout", OptKind::Text, "\"\"";
    /// `gzip` or `none`.
    COMPRESSION: "compression", OptKind::Choice(&["", "gzip", "none"]), "";
    /// Headers sent with each push, such as an authorization.
    HEADERS: "headers", OptKind::Map, "{}";
    /// Certificates of the authorities to trust, PEM; empty takes SSL_CERT_FILE, then the distribution's.
    CA: "certificate", OptKind::Path, "\"\"";
    /// Our own certificate for mutual TLS, PEM.
    CERT: "client_certificate", OptKind::Path, "\"\"";
    /// The key of our own certificate, PEM.
    KEY: "client_key", OptKind::Path, "\"\"";
    /// Which names to send where the semantic conventions have one for the same thing.
    NAMES: "names", OptKind::Choice(&["memwarden", "semconv", "both"]), "both";
    /// Resource attributes, beside those of OTEL_RESOURCE_ATTRIBUTES.
    RESOURCE: "resource_attributes", OptKind::Map, "{}";

    /// Performance logs of training jobs, a folder for each workload; for people and tools that read files.
    PERF_LOGS: "perf_logs", OptKind::Section(&[
        &PERF_FOLDER, &PERF_EVERY, &PERF_FORMATS, &PERF_SIZE, &PERF_FILES,
    ]), "";
    /// The folder; empty writes none.
    PERF_FOLDER: "folder", OptKind::Path, "\"\"";
    /// A line for every so many steps; where steps are shorter than sampling, for every sample at most.
    PERF_EVERY: "every_steps", OptKind::Count(1, 1_000_000), "10";
    /// What is written: text (perf.log), table (perf_realtime.log), summary (perf_summary.json) and tensorboard (event files).
    PERF_FORMATS: "formats", OptKind::Texts, "[text, table, summary, tensorboard]";
    /// The size at which a file is turned over.
    PERF_SIZE: "max_size", OptKind::Size, "10MiB";
    /// How many older files are kept of each.
    PERF_FILES: "max_files", OptKind::Count(0, 1000), "10";

    /// The daemon's own log, on standard error.
    LOG: "log", OptKind::Section(&[&LEVEL, &FORMAT]), "";
    /// How much is logged.
    LEVEL: "level", OptKind::Choice(&["error", "warn", "info", "debug"]), "info";
    /// How it is written.
    FORMAT: "format", OptKind::Choice(&["logfmt", "json"]), "logfmt";
}
