//! The checked configuration of the daemon: typed and free of contradictions.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use super::perf_logs::PerfLogs;
use super::read::Tables;
use super::schema::{self, Schema};
use super::value;
use crate::model::setting::{OptKind, Settings, Value};

/// The configuration.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    pub sampling: Sampling,
    /// Paths of the kernel's files.
    pub paths: Paths,
    /// File of the analyzers' state; absent for the default in the service manager's folder, if any.
    pub state_file: Option<PathBuf>,
    /// The HTTP server.
    pub web: Web,
    /// Names of other exporters.
    pub compatibility: Compatibility,
    /// Export over OTLP.
    pub otlp: Otlp,
    /// Performance logs of training jobs.
    pub perf_logs: PerfLogs,
    pub log: Log,
    /// Each registered source's section.
    pub sources: BTreeMap<&'static str, PartConfig>,
    /// Each registered analyzer's section.
    pub analyzers: BTreeMap<&'static str, PartConfig>,
    /// The sections that other modules declare and check, by key.
    pub modules: BTreeMap<&'static str, Settings>,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Sampling {
    /// Time between two samples.
    pub interval: Duration,
    /// Length of the window of the `_max` gauges.
    pub peak_window: Duration,
}

/// Paths of the kernel's files.
#[derive(Clone, Debug, PartialEq)]
pub struct Paths {
    pub proc: PathBuf,
    pub sys: PathBuf,
    /// `/sys/fs/cgroup`.
    pub cgroup: PathBuf,
    /// `/dev/kmsg`.
    pub kmsg: PathBuf,
    /// `/etc/passwd`.
    pub passwd: PathBuf,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listen(pub SocketAddr);

/// The HTTP server.
#[derive(Clone, Debug, PartialEq)]
pub struct Web {
    /// At least one address.
    pub listen: Vec<Listen>,
    /// The socket for commands of this node; absent where there is none.
    pub socket: Option<PathBuf>,
    pub config_file: Option<PathBuf>,
    /// Whether `POST /-/reload` is allowed.
    pub enable_lifecycle: bool,
    /// Maximum number of concurrent requests.
    pub max_requests: usize,
    /// Maximum number of open connections.
    pub max_connections: usize,
    /// Time limit for the headers of one request.
    pub header_timeout: Duration,
    /// Time limit for one request.
    pub request_timeout: Duration,
    /// Time limit for an idle connection.
    pub idle_timeout: Duration,
    pub openmetrics: bool,
    /// Additional accepted host names.
    pub allowed_hosts: Vec<String>,
}

/// Names of other exporters at `/metrics`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Compatibility {
    /// Whether the names of dcgm-exporter are exposed too.
    pub dcgm: bool,
}

/// The OTLP transport.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OtlpProtocol {
    Grpc,
    HttpProtobuf,
}

/// Which names are sent over OTLP for metrics that have one in the semantic conventions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OtlpNames {
    /// Names of memwarden only.
    Memwarden,
    /// Names of the conventions only, where there is one.
    Semconv,
    Both,
}

/// Export over OTLP; `None` takes the value of the environment.
#[derive(Clone, Debug, PartialEq)]
pub struct Otlp {
    pub enabled: bool,
    pub endpoint: Option<String>,
    /// The transport.
    pub protocol: Option<OtlpProtocol>,
    /// Time between two exports.
    pub interval: Option<Duration>,
    /// Time limit of one export.
    pub timeout: Option<Duration>,
    pub gzip: Option<bool>,
    pub headers: BTreeMap<String, String>,
    /// File of the trusted CA certificates.
    pub certificate: Option<PathBuf>,
    pub client_certificate: Option<PathBuf>,
    pub client_key: Option<PathBuf>,
    /// Which names are sent.
    pub names: OtlpNames,
    pub resource_attributes: BTreeMap<String, String>,
}

/// How log lines are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogFormat {
    Logfmt,
    /// One JSON object a line.
    Json,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Log {
    /// `error`, `warn`, `info` or `debug`.
    pub level: String,
    /// How lines are written.
    pub format: LogFormat,
}

/// One source's or analyzer's section.
#[derive(Clone, Debug, PartialEq)]
pub struct PartConfig {
    pub enabled: bool,
    pub settings: Settings,
}

impl Config {
    /// Converts the sections to types and reports contradictions through `complain(key, what)`.
    ///
    /// Absent where a mistake leaves no value to continue with.
    pub(super) fn check(
        tables: &Tables,
        schema: &Schema,
        complain: &mut dyn FnMut(&str, String),
    ) -> Option<Self> {
        let sections = &tables.sections;
        let sampling = &sections[schema::SAMPLING.key];
        let sampling = Sampling {
            interval: sampling.duration(&schema::INTERVAL),
            peak_window: sampling.duration(&schema::PEAK_WINDOW),
        };
        if sampling.peak_window < sampling.interval {
            complain(
                "sampling.peak_window",
                "is shorter than sampling.interval, so that the window would have no samples".to_owned(),
            );
        }
        let paths = &sections[schema::PATHS.key];
        let mut path = |opt| {
            paths.path(opt).or_else(|| {
                complain(&format!("paths.{}", opt.key), "is empty".to_owned());
                None
            })
        };
        let paths = Paths {
            proc: path(&schema::PROC)?,
            sys: path(&schema::SYS)?,
            cgroup: path(&schema::CGROUP)?,
            kmsg: path(&schema::KMSG)?,
            passwd: path(&schema::PASSWD)?,
        };
        let web = web(&sections[schema::WEB.key], complain);
        let compatibility = Compatibility { dcgm: sections[schema::COMPATIBILITY.key].bool(&schema::DCGM) };
        let otlp = otlp(&sections[schema::OTLP.key], complain);
        let perf_logs = PerfLogs::check(&sections[schema::PERF_LOGS.key], complain);
        let log = &sections[schema::LOG.key];
        let log = Log {
            level: log.choice(&schema::LEVEL),
            format: if log.choice(&schema::FORMAT) == "json" { LogFormat::Json } else { LogFormat::Logfmt },
        };
        let mut group = |key| {
            let group = schema.groups.iter().find(|group| group.key == key);
            group.map_or_else(BTreeMap::new, |group| parts(tables, group, complain))
        };
        let (sources, analyzers) = (group(schema::SOURCES), group(schema::ANALYZERS));
        let state_file = sections[schema::STATE.key].path(&schema::STATE_FILE);
        let mut modules = BTreeMap::new();
        for module in &schema.modules {
            let settings = sections[module.section.key].clone();
            for (of, what) in (module.check)(&settings) {
                complain(&format!("{}.{of}", module.section.key), what);
            }
            modules.insert(module.section.key, settings);
        }
        Some(Self {
            sampling,
            paths,
            state_file,
            web,
            compatibility,
            otlp,
            perf_logs,
            log,
            sources,
            analyzers,
            modules,
        })
    }
}

/// The subsections of one group, by name.
fn parts(
    tables: &Tables,
    group: &schema::GroupSchema,
    complain: &mut dyn FnMut(&str, String),
) -> BTreeMap<&'static str, PartConfig> {
    let written = &tables.groups[group.key];
    let enabled = |name: &str| written.get(name).is_some_and(|settings| settings.bool(&schema::ENABLED));
    let mut found = BTreeMap::new();
    for part in &group.parts {
        let settings = written[part.key].clone();
        let enabled_itself = settings.bool(&schema::ENABLED);
        let key = format!("{}.{}", group.key, part.key);
        if enabled_itself {
            for missing in part.needs.iter().filter(|needed| !enabled(needed)) {
                complain(
                    &format!("{}.{missing}.enabled", group.key),
                    format!("is false, but {key} needs it; disable that as well"),
                );
            }
            for (of, what) in (part.check)(&settings) {
                complain(&format!("{key}.{of}"), what);
            }
        }
        found.insert(part.key, PartConfig { enabled: enabled_itself, settings });
    }
    found
}

fn web(settings: &Settings, complain: &mut dyn FnMut(&str, String)) -> Web {
    let mut listen = Vec::new();
    for (place, text) in settings.texts(&schema::LISTEN).iter().enumerate() {
        match Listen::parse(text) {
            Ok(address) if listen.contains(&address) && address.0.port() != 0 => {
                complain(&format!("web.listen_addresses[{place}]"), format!("`{text}` is listed twice"));
            }
            Ok(address) => listen.push(address),
            Err(what) => complain(&format!("web.listen_addresses[{place}]"), what),
        }
    }
    if settings.texts(&schema::LISTEN).is_empty() {
        complain("web.listen_addresses", "is empty; the daemon would not be reachable".to_owned());
    }
    let count = |opt| usize::try_from(settings.count(opt)).unwrap_or(usize::MAX);
    let web = Web {
        listen,
        socket: settings.path(&schema::SOCKET),
        config_file: settings.path(&schema::WEB_CONFIG),
        enable_lifecycle: settings.bool(&schema::LIFECYCLE),
        max_requests: count(&schema::MAX_REQUESTS),
        max_connections: count(&schema::MAX_CONNECTIONS),
        header_timeout: settings.duration(&schema::HEADER_TIMEOUT),
        request_timeout: settings.duration(&schema::REQUEST_TIMEOUT),
        idle_timeout: settings.duration(&schema::IDLE_TIMEOUT),
        openmetrics: settings.bool(&schema::OPENMETRICS),
        allowed_hosts: settings.texts(&schema::ALLOWED_HOSTS),
    };
    if web.max_requests > web.max_connections {
        complain("web.max_requests", format!("is more than web.max_connections ({})", web.max_connections));
    }
    if web.header_timeout > web.request_timeout {
        complain("web.header_timeout", "is longer than web.request_timeout".to_owned());
    }
    web
}

fn otlp(settings: &Settings, complain: &mut dyn FnMut(&str, String)) -> Otlp {
    let mut duration = |opt: &'static crate::model::setting::Opt| {
        let text = settings.text(opt)?;
        let range = OptKind::Duration(Duration::from_millis(10), Duration::from_secs(86_400));
        match value::parse(range, &text, false) {
            Ok(Value::Duration(found)) => Some(found),
            Ok(_) => None,
            Err(what) => {
                complain(&format!("otlp.{}", opt.key), what);
                None
            }
        }
    };
    let interval = duration(&schema::OTLP_INTERVAL);
    let timeout = duration(&schema::OTLP_TIMEOUT);
    let otlp = Otlp {
        enabled: settings.bool(&schema::OTLP_ENABLED),
        endpoint: settings.text(&schema::ENDPOINT),
        protocol: match settings.choice(&schema::PROTOCOL).as_str() {
            "grpc" => Some(OtlpProtocol::Grpc),
            "http/protobuf" => Some(OtlpProtocol::HttpProtobuf),
            _ => None,
        },
        interval,
        timeout,
        gzip: settings.text(&schema::COMPRESSION).map(|word| word == "gzip"),
        headers: settings.map(&schema::HEADERS),
        certificate: settings.path(&schema::CA),
        client_certificate: settings.path(&schema::CERT),
        client_key: settings.path(&schema::KEY),
        names: match settings.choice(&schema::NAMES).as_str() {
            "memwarden" => OtlpNames::Memwarden,
            "semconv" => OtlpNames::Semconv,
            _ => OtlpNames::Both,
        },
        resource_attributes: settings.map(&schema::RESOURCE),
    };
    if let Some(endpoint) = &otlp.endpoint
        && !endpoint.starts_with("http://")
        && !endpoint.starts_with("https://")
    {
        complain("otlp.endpoint", format!("`{endpoint}` has no scheme; write http:// or https:// before it"));
    }
    match (&otlp.client_certificate, &otlp.client_key) {
        (Some(_), None) => complain("otlp.client_certificate", "requires otlp.client_key".to_owned()),
        (None, Some(_)) => complain("otlp.client_key", "requires otlp.client_certificate".to_owned()),
        _ => {}
    }
    otlp
}

impl Listen {
    /// An address from `host:port`, where the host is empty (all), `localhost`, or an IP address.
    ///
    /// # Errors
    /// A sentence on the problem.
    pub fn parse(text: &str) -> Result<Self, String> {
        let wrong =
            || format!("`{text}` is not an address; write host:port, such as 127.0.0.1:10636 or [::1]:10636");
        let (host, port) = text.rsplit_once(':').ok_or_else(wrong)?;
        if !port.bytes().all(|digit| digit.is_ascii_digit()) {
            return Err(wrong());
        }
        let port = port.parse().map_err(|_| wrong())?;
        let ip = match host {
            "" => IpAddr::V6(Ipv6Addr::UNSPECIFIED),
            "localhost" => IpAddr::from([127, 0, 0, 1]),
            _ => match host.strip_prefix('[').and_then(|host| host.strip_suffix(']')) {
                Some(host) => IpAddr::V6(host.parse().map_err(|_| wrong())?),
                None => IpAddr::V4(host.parse().map_err(|_| wrong())?),
            },
        };
        Ok(Self(SocketAddr::new(ip, port)))
    }
}
