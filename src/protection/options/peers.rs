//! The section `protection.peers`: the daemons of the other nodes of a run.

use std::time::Duration;

use super::KeyProblem;
use crate::model::setting::{Opt, OptKind, Settings};
use crate::protection::types::run_request::{PeerSource, Peers};

macro_rules! opts {
    ($($(#[doc = $help:literal])+ $id:ident: $key:literal, $kind:expr, $default:literal;)+) => {
        $(pub(super) static $id: Opt = Opt { key: $key, help: concat!($($help),+), kind: $kind, default: $default };)+
    };
}

opts! {
    /// Daemons of the other nodes of a run, which are asked for a checkpoint too where a target has the scope `run`, and whose requests are accepted. Without a token or accepted certificates, every request is refused.
    PEERS: "peers", OptKind::Section(&[
        &FROM, &HOSTS, &NAME, &SQUEUE, &URL, &PORT, &TOKEN, &TLS, &AUTHORITY, &CERTIFICATE, &KEY, &ACCEPT, &TIMEOUT,
    ]), "";
    /// Where they are found: `none`, the `static` list `hosts`, all addresses of a `dns` name, the node list of the `slurm` job, or the instances that have the run according to `prometheus`.
    FROM: "from", OptKind::Choice(&["none", "static", "dns", "slurm", "prometheus"]), "none";
    /// Hosts for `static`, each as `HOST` or `HOST:PORT`; IPv6 addresses in brackets.
    HOSTS: "hosts", OptKind::Texts, "[]";
    /// Name for `dns`, such as that of a headless service of Kubernetes.
    NAME: "name", OptKind::Text, "\"\"";
    /// Program for `slurm` that prints the node list of a job.
    SQUEUE: "squeue", OptKind::Path, "/usr/bin/squeue";
    /// URL for `prometheus`, of a server with the query API of Prometheus.
    URL: "url", OptKind::Text, "\"\"";
    /// Port of the daemons, where the hosts state none.
    PORT: "port", OptKind::Count(1, 65_535), "10636";
    /// File with the token of at least 16 bytes that the daemons of all nodes share. Requests are signed with it, and it is not sent. The file must be readable and writable by its owner only, and is read for each request.
    TOKEN: "token_file", OptKind::Path, "\"\"";
    /// Whether the daemons are asked over https. Without it, requests and answers can be read and answers can be changed on the network.
    TLS: "tls", OptKind::Bool, "false";
    /// File with the certificates of the authorities that certify the daemons, PEM; empty uses the distribution's.
    AUTHORITY: "certificate_authority", OptKind::Path, "\"\"";
    /// File with the certificate that this daemon presents to the others, PEM; empty presents none.
    CERTIFICATE: "client_certificate", OptKind::Path, "\"\"";
    /// File with the key of client_certificate, PEM.
    KEY: "client_key", OptKind::Path, "\"\"";
    /// Whether a client certificate that the file of web.config_file trusts authorizes requests, in place of the token. Every holder of such a certificate can then request checkpoints.
    ACCEPT: "accept_client_certificates", OptKind::Bool, "false";
    /// Time limit for finding the daemons, and for each of them.
    TIMEOUT: "timeout", OptKind::Duration(Duration::from_millis(100), Duration::from_secs(60)), "2s";
}

/// How other nodes are found and asked; absent where they are not.
pub(super) fn peers(section: &Settings) -> Result<Option<Peers>, KeyProblem> {
    let needs = |key, what: &str| Err((key, format!("is empty; peers.from needs {what}")));
    let source = match section.choice(&FROM).as_str() {
        "static" => match section.texts(&HOSTS) {
            hosts if hosts.is_empty() => return needs(HOSTS.key, "hosts"),
            hosts => PeerSource::Static(hosts),
        },
        "dns" => match section.text(&NAME) {
            Some(name) => PeerSource::Dns(name),
            None => return needs(NAME.key, "a name"),
        },
        "slurm" => match section.path(&SQUEUE) {
            Some(program) if program.is_absolute() => PeerSource::Slurm(program),
            _ => return needs(SQUEUE.key, "the absolute path of squeue"),
        },
        "prometheus" => match section.text(&URL) {
            Some(url) if url.starts_with("http://") || url.starts_with("https://") => {
                PeerSource::Prometheus(url.trim_end_matches('/').to_owned())
            }
            Some(url) => return Err((URL.key, format!("`{url}` does not begin with http:// or https://"))),
            None => return needs(URL.key, "a URL"),
        },
        _ => return Ok(None),
    };
    let identity = match (section.path(&CERTIFICATE), section.path(&KEY)) {
        (Some(certificate), Some(key)) => Some((certificate, key)),
        (None, None) => None,
        (Some(_), None) => return Err((KEY.key, "is empty beside client_certificate".to_owned())),
        (None, Some(_)) => return Err((CERTIFICATE.key, "is empty beside client_key".to_owned())),
    };
    let (token, tls) = (section.path(&TOKEN), section.bool(&TLS));
    if token.is_none() && identity.is_none() {
        let what = "is empty and so is client_certificate, so every node would refuse the request";
        return Err((TOKEN.key, what.to_owned()));
    }
    if identity.is_some() && !tls {
        return Err((TLS.key, "is false, and client_certificate needs it".to_owned()));
    }
    Ok(Some(Peers {
        source,
        port: u16::try_from(section.count(&PORT)).unwrap_or(u16::MAX),
        tls,
        token,
        authority: section.path(&AUTHORITY),
        identity,
        timeout: section.duration(&TIMEOUT),
    }))
}
