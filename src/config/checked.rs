//! The checked configuration of the daemon: typed and free of contradictions.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::path::PathBuf;

use super::read::Tables;
use super::schema::{self, Compatibility, Fixed, Log, On, Otlp, Paths, PerfLogs, Sampling, Schema, Web};
use crate::model::setting::Settings;

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

/// One source's or analyzer's section.
#[derive(Clone, Debug, PartialEq)]
pub struct PartConfig {
    pub enabled: bool,
    pub settings: Settings,
}

impl Config {
    /// Converts the sections to types and reports contradictions through `complain(key, what)`.
    pub(super) fn check(tables: &Tables, schema: &Schema, complain: &mut dyn FnMut(&str, String)) -> Self {
        let Fixed { sampling, paths, state, web, compatibility, otlp, perf_logs, log } =
            Fixed::read(&tables.sections);
        if sampling.peak_window < sampling.interval {
            complain(
                "sampling.peak_window",
                "is shorter than sampling.interval, so that the window would have no samples".to_owned(),
            );
        }
        web.check(complain);
        otlp.check(complain);
        let mut group = |key| {
            let group = schema.groups.iter().find(|group| group.key == key);
            group.map_or_else(BTreeMap::new, |group| parts(tables, group, complain))
        };
        let (sources, analyzers) = (group(schema::SOURCES), group(schema::ANALYZERS));
        let mut modules = BTreeMap::new();
        for module in &schema.modules {
            let settings = tables.section(module.section);
            for (of, what) in (module.check)(&settings) {
                complain(&format!("{}.{of}", module.section.key), what);
            }
            modules.insert(module.section.key, settings);
        }
        Self {
            sampling,
            paths,
            state_file: state.file,
            web,
            compatibility,
            otlp,
            perf_logs,
            log,
            sources,
            analyzers,
            modules,
        }
    }
}

/// The subsections of one group, by name.
fn parts(
    tables: &Tables,
    group: &schema::GroupSchema,
    complain: &mut dyn FnMut(&str, String),
) -> BTreeMap<&'static str, PartConfig> {
    let none = BTreeMap::new();
    let written = tables.groups.get(group.key).unwrap_or(&none);
    let is_on = |settings: &Settings| On::read(settings).enabled;
    let enabled = |name: &str| written.get(name).is_some_and(is_on);
    let mut found = BTreeMap::new();
    for part in &group.parts {
        let settings = written.get(part.key).cloned().unwrap_or_default();
        let enabled_itself = is_on(&settings);
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

impl Web {
    /// The addresses of `listen_addresses`; one that is refused is left out.
    pub fn listen(&self) -> Vec<SocketAddr> {
        self.listen_addresses.iter().filter_map(|text| listen_address(text).ok()).collect()
    }

    fn check(&self, complain: &mut dyn FnMut(&str, String)) {
        let mut listen = Vec::new();
        for (place, text) in self.listen_addresses.iter().enumerate() {
            match listen_address(text) {
                Ok(address) if listen.contains(&address) && address.port() != 0 => {
                    complain(&format!("web.listen_addresses[{place}]"), format!("`{text}` is listed twice"));
                }
                Ok(address) => listen.push(address),
                Err(what) => complain(&format!("web.listen_addresses[{place}]"), what),
            }
        }
        if self.listen_addresses.is_empty() {
            complain("web.listen_addresses", "is empty; the daemon would not be reachable".to_owned());
        }
        if self.max_requests > self.max_connections {
            let what = format!("is more than web.max_connections ({})", self.max_connections);
            complain("web.max_requests", what);
        }
        if self.header_timeout > self.request_timeout {
            complain("web.header_timeout", "is longer than web.request_timeout".to_owned());
        }
    }
}

impl Otlp {
    fn check(&self, complain: &mut dyn FnMut(&str, String)) {
        if let Some(endpoint) = &self.endpoint
            && !endpoint.starts_with("http://")
            && !endpoint.starts_with("https://")
        {
            complain(
                "otlp.endpoint",
                format!("`{endpoint}` has no scheme; write http:// or https:// before it"),
            );
        }
        match (&self.client_certificate, &self.client_key) {
            (Some(_), None) => complain("otlp.client_certificate", "requires otlp.client_key".to_owned()),
            (None, Some(_)) => complain("otlp.client_key", "requires otlp.client_certificate".to_owned()),
            _ => {}
        }
    }
}

/// An address from `host:port`, where the host is empty (all), `localhost`, or an IP address.
fn listen_address(text: &str) -> Result<SocketAddr, String> {
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
    Ok(SocketAddr::new(ip, port))
}
