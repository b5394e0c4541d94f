//! The section `protection.peers`: the daemons of the other nodes of a run.

use std::path::PathBuf;
use std::time::Duration;

use super::KeyProblem;
use crate::types::run_request::{self, PeerSource};

crate::options! {
    /// How other nodes are found and asked.
    pub(super) struct Peers {
        /// Where they are found: `none`, the `static` list `hosts`, all addresses of a `dns` name, the node list of the
        /// `slurm` job, or the instances that have the run according to `prometheus`.
        from: From = none;
        /// Hosts for `static`, each as `HOST` or `HOST:PORT`; IPv6 addresses in brackets.
        hosts: Vec<String>;
        /// Name for `dns`, such as that of a headless service of Kubernetes.
        name: Option<String>;
        /// Program for `slurm` that prints the node list of a job.
        squeue: Option<PathBuf> = "/usr/bin/squeue";
        /// URL for `prometheus`, of a server with the query API of Prometheus.
        url: Option<String>;
        /// Port of the daemons, where the hosts state none.
        port: u16 = 10636 in 1..=65535;
        /// File with the token of at least 16 bytes that the daemons of all nodes share. Requests are signed with it, and
        /// it is not sent. The file must be readable and writable by its owner only, and is read for each request.
        token_file: Option<PathBuf>;
        /// Whether the daemons are asked over https. Without it, requests and answers can be read and answers can be
        /// changed on the network.
        tls: bool = false;
        /// File with the certificates of the authorities that certify the daemons, PEM; empty uses the distribution's.
        certificate_authority: Option<PathBuf>;
        /// File with the certificate that this daemon presents to the others, PEM; empty presents none.
        client_certificate: Option<PathBuf>;
        /// File with the key of client_certificate, PEM.
        client_key: Option<PathBuf>;
        /// Whether a client certificate that the file of web.config_file trusts authorizes requests, in place of the
        /// token. Every holder of such a certificate can then request checkpoints.
        accept_client_certificates: bool = false;
        /// Time limit for finding the daemons, and for each of them.
        timeout: Duration = 2s in 100ms..=1m;
    }
}

crate::choice! {
    /// Where the daemons are found.
    pub(super) enum From {
        #[default]
        None = "none",
        Static = "static",
        Dns = "dns",
        Slurm = "slurm",
        Prometheus = "prometheus",
    }
}

impl Peers {
    /// How other nodes are found and asked; absent where they are not.
    pub(super) fn resolve(self) -> Result<Option<run_request::Peers>, KeyProblem> {
        let needs = |key, what: &str| Err((key, format!("is empty; peers.from needs {what}")));
        let source = match self.from {
            From::None => return Ok(None),
            From::Static if self.hosts.is_empty() => return needs("hosts", "hosts"),
            From::Static => PeerSource::Static(self.hosts),
            From::Dns => match self.name {
                Some(name) => PeerSource::Dns(name),
                None => return needs("name", "a name"),
            },
            From::Slurm => match self.squeue {
                Some(program) if program.is_absolute() => PeerSource::Slurm(program),
                _ => return needs("squeue", "the absolute path of squeue"),
            },
            From::Prometheus => match self.url {
                Some(url) if url.starts_with("http://") || url.starts_with("https://") => {
                    PeerSource::Prometheus(url.trim_end_matches('/').to_owned())
                }
                Some(url) => return Err(("url", format!("`{url}` does not begin with http:// or https://"))),
                None => return needs("url", "a URL"),
            },
        };
        let identity = match (self.client_certificate, self.client_key) {
            (Some(certificate), Some(key)) => Some((certificate, key)),
            (None, None) => None,
            (Some(_), None) => return Err(("client_key", "is empty beside client_certificate".to_owned())),
            (None, Some(_)) => return Err(("client_certificate", "is empty beside client_key".to_owned())),
        };
        if self.token_file.is_none() && identity.is_none() {
            let what = "is empty and so is client_certificate, so every node would refuse the request";
            return Err(("token_file", what.to_owned()));
        }
        if identity.is_some() && !self.tls {
            return Err(("tls", "is false, and client_certificate needs it".to_owned()));
        }
        Ok(Some(run_request::Peers {
            source,
            port: self.port,
            tls: self.tls,
            token: self.token_file,
            authority: self.certificate_authority,
            identity,
            timeout: self.timeout,
        }))
    }
}
