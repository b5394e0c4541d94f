//! Settings of the export, from the configuration file, then the environment, then the defaults.
//!
//! Everything is decided here, once. Headers of the file and of the environment are merged, those of the file take
//! precedence; the TLS key and certificate are taken as a pair.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use http::uri::{PathAndQuery, Scheme};
use http::{HeaderMap, Uri};

use super::OtlpError;
use super::env::{self, Env};
use crate::config::{Otlp, OtlpCompression, OtlpNames, OtlpProtocol};
use crate::host::tls::Trust;

/// The resolved settings of the export.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Resolved {
    pub(super) protocol: OtlpProtocol,
    /// The endpoint with scheme and host; for HTTP with the complete path.
    pub(super) endpoint: Uri,
    /// The endpoint for log records; absent where they are not exported.
    pub(super) logs: Option<Uri>,
    /// All values are marked as sensitive.
    pub(super) headers: HeaderMap,
    /// The headers for log records, marked in the same way.
    pub(super) log_headers: HeaderMap,
    /// Time limit of one export.
    pub(super) timeout: Duration,
    pub(super) interval: Duration,
    pub(super) gzip: bool,
    /// Whether counters are sent as deltas since the last export; sums that may decrease are always cumulative.
    pub(super) delta: bool,
    pub(super) trust: Trust,
    /// The paths of the client certificate and its key.
    pub(super) identity: Option<(PathBuf, PathBuf)>,
    pub(super) names: OtlpNames,
    /// Resource attributes from the file and the environment.
    pub(super) resource: BTreeMap<String, String>,
}

impl Resolved {
    /// The endpoint without its query, which may hold a key.
    pub(super) fn shown(&self) -> String {
        self.endpoint.to_string().split('?').next().unwrap_or_default().to_owned()
    }

    /// `text` without the values of the headers, which a collector may repeat in its response.
    pub(super) fn hide(&self, text: &str) -> String {
        /// Shorter values, such as the number of a tenant, are kept: removing them would make the message unreadable.
        const SHORTEST: usize = 6;
        let values = self.headers.values().chain(self.log_headers.values());
        let values = values.filter_map(|value| value.to_str().ok());
        // The second word of `Bearer TOKEN` is secret on its own.
        let secrets = values.flat_map(|value| std::iter::once(value).chain(value.split_whitespace().skip(1)));
        secrets
            .filter(|secret| secret.len() >= SHORTEST)
            .fold(text.to_owned(), |text, secret| text.replace(secret, "(hidden)"))
    }
}

/// Resolves the settings; the second part has warnings about ignored values. Absent where the export is disabled.
pub(super) fn resolve(
    config: &Otlp,
    read: &dyn Fn(&str) -> Option<String>,
) -> Result<(Option<Resolved>, Vec<String>), OtlpError> {
    let mut env = Env::new(read);
    if !wanted(config, &mut env) {
        return Ok((None, env.warnings));
    }
    let protocol =
        config.protocol.or_else(|| env.option("PROTOCOL", protocol)).unwrap_or(OtlpProtocol::HttpProtobuf);
    let endpoint = endpoint(config, protocol, &mut env)?;
    let logs = logs(config, protocol, &endpoint, &mut env);
    let timeout = config.timeout.unwrap_or_else(|| {
        let push = env.option("TIMEOUT", env::milliseconds).unwrap_or(Duration::from_secs(10));
        let limit = env.first(&["OTEL_METRIC_EXPORT_TIMEOUT"], env::milliseconds);
        push.min(limit.unwrap_or(Duration::from_secs(30)))
    });
    let gzip = config.compression.map(|compression| compression == OtlpCompression::Gzip);
    let gzip = gzip.or_else(|| env.option("COMPRESSION", compression)).unwrap_or(false);
    let interval = config
        .interval
        .or_else(|| env.first(&["OTEL_METRIC_EXPORT_INTERVAL"], env::milliseconds))
        .unwrap_or(Duration::from_secs(60));
    let delta = env.first(&["OTEL_EXPORTER_OTLP_METRICS_TEMPORALITY_PREFERENCE"], delta).unwrap_or(false);
    let certificate = config.certificate.clone().or_else(|| env.option("CERTIFICATE", path));
    let trust = Trust::new(certificate, env.get("SSL_CERT_FILE").map(PathBuf::from));
    let identity = match (&config.client_certificate, &config.client_key) {
        (Some(certificate), Some(key)) => Some((certificate.clone(), key.clone())),
        _ => identity(&mut env),
    };
    let [headers, log_headers] = ["METRICS", "LOGS"].map(|signal| headers(config, signal, &mut env));
    let resource = resource(config, &mut env);
    let resolved = Resolved {
        protocol,
        endpoint,
        logs,
        headers,
        log_headers,
        timeout,
        interval,
        gzip,
        delta,
        trust,
        identity,
        names: config.names,
        resource,
    };
    Ok((Some(resolved), env.warnings))
}

/// Whether the export is enabled: by the file or by an endpoint in the environment, unless the environment disables
/// it.
fn wanted(config: &Otlp, env: &mut Env<'_>) -> bool {
    let on = config.enabled
        || env.get("OTEL_EXPORTER_OTLP_METRICS_ENDPOINT").is_some()
        || env.get(GENERAL).is_some();
    if !on {
        return false;
    }
    if env.first(&["OTEL_SDK_DISABLED"], env::boolean) == Some(true) {
        env.warn("the OTLP export is disabled: OTEL_SDK_DISABLED is true".to_owned());
        return false;
    }
    let Some(exporters) = env.get("OTEL_METRICS_EXPORTER") else { return true };
    let mut on = false;
    for exporter in exporters.split(',').map(str::trim) {
        match exporter {
            "otlp" => on = true,
            "none" | "" => {}
            other => env.warn(format!(
                "OTEL_METRICS_EXPORTER: `{other}` is ignored: memwarden supports otlp and none"
            )),
        }
    }
    if !on {
        env.warn("the OTLP export is disabled: OTEL_METRICS_EXPORTER does not name otlp".to_owned());
    }
    on
}

fn endpoint(config: &Otlp, protocol: OtlpProtocol, env: &mut Env<'_>) -> Result<Uri, OtlpError> {
    let insecure = env.option("INSECURE", env::boolean).unwrap_or(false);
    let http = protocol == OtlpProtocol::HttpProtobuf;
    if let Some(text) = &config.endpoint {
        let append = http && !text.trim_end_matches('/').ends_with("/v1/metrics");
        return address(text, protocol, insecure, append)
            .map_err(|why| OtlpError::Endpoint { endpoint: without_user(text), why });
    }
    let mut first = |name: &str, append: bool| named(name, protocol, insecure, append, env);
    let found = first("OTEL_EXPORTER_OTLP_METRICS_ENDPOINT", false).or_else(|| first(GENERAL, http));
    Ok(found.unwrap_or_else(|| {
        Uri::from_static(if http { "http://localhost:4318/v1/metrics" } else { "http://localhost:4317" })
    }))
}

/// The endpoint for all signals.
const GENERAL: &str = "OTEL_EXPORTER_OTLP_ENDPOINT";

/// The address in a variable; absent where it is unset or cannot be used.
fn named(name: &str, protocol: OtlpProtocol, insecure: bool, append: bool, env: &mut Env<'_>) -> Option<Uri> {
    let text = env.get(name)?;
    address(&text, protocol, insecure, append)
        .map_err(|why| env.warn(format!("{name} is ignored: `{}` {why}", without_user(&text))))
        .ok()
}

/// Where log records go: where the environment says, else beside the metrics. The exporter knows HTTP only.
fn logs(config: &Otlp, protocol: OtlpProtocol, metrics: &Uri, env: &mut Env<'_>) -> Option<Uri> {
    const OWN: &str = "OTEL_EXPORTER_OTLP_LOGS_ENDPOINT";
    let wanted =
        env.get("OTEL_LOGS_EXPORTER").is_none_or(|all| all.split(',').any(|one| one.trim() == "otlp"));
    if !config.logs || !wanted {
        return None;
    }
    let by_variable = config.endpoint.is_none();
    if by_variable && env.get(OWN).is_some() {
        return named(OWN, OtlpProtocol::HttpProtobuf, false, false, env);
    }
    if protocol == OtlpProtocol::Grpc {
        return None;
    }
    let general = by_variable.then(|| named(GENERAL, protocol, false, true, env)).flatten();
    let metrics = general.as_ref().unwrap_or(metrics);
    let mut parts = metrics.clone().into_parts();
    let path = format!("{}/v1/logs", metrics.path().strip_suffix("/v1/metrics")?);
    let path = metrics.query().map_or_else(|| path.clone(), |query| format!("{path}?{query}"));
    parts.path_and_query = Some(path.parse().ok()?);
    Uri::from_parts(parts).ok()
}

/// The part of an address that can be logged, which may contain a password.
fn without_user(text: &str) -> String {
    text.rsplit_once('@').map_or_else(|| text.to_owned(), |(_, host)| format!("(hidden)@{host}"))
}

fn address(text: &str, protocol: OtlpProtocol, insecure: bool, append: bool) -> Result<Uri, String> {
    let grpc = protocol == OtlpProtocol::Grpc;
    let text = match text.contains("://") {
        true => text.to_owned(),
        false if grpc => format!("{}://{text}", if insecure { "http" } else { "https" }),
        false => return Err("has no scheme; write http:// or https:// before it".to_owned()),
    };
    let uri: Uri = text.parse().map_err(|error| format!("is not a valid URL: {error}"))?;
    let mut parts = uri.into_parts();
    if !parts.scheme.as_ref().is_some_and(|scheme| *scheme == Scheme::HTTP || *scheme == Scheme::HTTPS) {
        return Err("has a scheme other than http and https".to_owned());
    }
    let authority = parts.authority.as_ref().filter(|authority| !authority.host().is_empty());
    let authority = authority.ok_or("names no host")?;
    if authority.as_str().contains('@') {
        return Err("contains a user name; use the headers instead".to_owned());
    }
    // The port of an authority is checked only when it is read.
    if authority.as_str() != authority.host() && authority.port_u16().is_none() {
        return Err("has an invalid port".to_owned());
    }
    let path = parts.path_and_query.as_ref().map_or("/", PathAndQuery::as_str);
    let path = match (grpc, append) {
        (true, _) => "/".to_owned(),
        (false, true) => format!("{}/v1/metrics", path.trim_end_matches('/')),
        (false, false) => path.to_owned(),
    };
    parts.path_and_query = Some(path.parse().map_err(|error| format!("has an invalid path: {error}"))?);
    Uri::from_parts(parts).map_err(|error| format!("is not a valid URL: {error}"))
}

fn protocol(text: &str) -> Result<OtlpProtocol, String> {
    let known = [("grpc", OtlpProtocol::Grpc), ("http/protobuf", OtlpProtocol::HttpProtobuf)];
    env::word(text, &known, "is neither grpc nor http/protobuf")
}

fn compression(text: &str) -> Result<bool, String> {
    env::word(text, &[("gzip", true), ("none", false)], "is neither gzip nor none")
}

/// `lowmemory` equals `cumulative` for asynchronous counters, as all of memwarden's are.
fn delta(text: &str) -> Result<bool, String> {
    let known = [("cumulative", false), ("delta", true), ("lowmemory", false)];
    env::word(text, &known, "is not one of cumulative, delta and lowmemory")
}

#[expect(clippy::unnecessary_wraps, reason = "the shape every parser of a variable has")]
fn path(text: &str) -> Result<PathBuf, String> {
    Ok(PathBuf::from(text))
}

fn identity(env: &mut Env<'_>) -> Option<(PathBuf, PathBuf)> {
    match (env.option("CLIENT_CERTIFICATE", path), env.option("CLIENT_KEY", path)) {
        (Some(certificate), Some(key)) => Some((certificate, key)),
        (None, None) => None,
        (certificate, _) => {
            let (set, missing) = match certificate {
                Some(_) => ("CLIENT_CERTIFICATE", "CLIENT_KEY"),
                None => ("CLIENT_KEY", "CLIENT_CERTIFICATE"),
            };
            env.warn(format!(
                "OTEL_EXPORTER_OTLP_{set} is ignored: OTEL_EXPORTER_OTLP_{missing} is required with it"
            ));
            None
        }
    }
}

fn headers(config: &Otlp, signal: &str, env: &mut Env<'_>) -> HeaderMap {
    let mut headers: HeaderMap = env.headers(signal).into_iter().collect();
    for (name, value) in &config.headers {
        match env::header(name, value) {
            Ok((name, value)) => drop(headers.insert(name, value)),
            Err(why) => env.warn(format!("otlp.headers: `{name}` is ignored: it {why}")),
        }
    }
    headers
}

fn resource(config: &Otlp, env: &mut Env<'_>) -> BTreeMap<String, String> {
    let mut attributes: BTreeMap<_, _> = env.pairs("OTEL_RESOURCE_ATTRIBUTES").into_iter().collect();
    if let Some(name) = env.get("OTEL_SERVICE_NAME") {
        attributes.insert("service.name".to_owned(), name);
    }
    attributes.extend(config.resource_attributes.clone());
    attributes
}
