//! Finds the daemons of the other nodes of a run.

use std::error::Error;
use std::time::Duration;

use http::{Request, Uri};
use http_body_util::Full;
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use serde::Deserialize;

use super::MOST;
use crate::host::child::{self, WorkerCommand};
use crate::host::http_client::HttpClient;
use crate::host::tls::Trust;
use crate::protection::types::hostlist;
use crate::protection::types::run_request::{PeerSource, Peers, RunQuery};

type Found = Result<Vec<String>, Box<dyn Error + Send + Sync>>;

/// Maximum size of an answer of a Prometheus server, or of squeue, in bytes.
const LARGEST: usize = 4 << 20;

/// The other nodes, each as a host with a port or without; the own node is left out where it is known by its name.
pub(super) async fn hosts(peers: &Peers, query: &RunQuery) -> Found {
    let found = match &peers.source {
        PeerSource::Static(hosts) => hosts.clone(),
        PeerSource::Dns(name) => dns(name, peers.port, peers.timeout).await?,
        PeerSource::Slurm(program) => {
            let (program, job, within) = (program.clone(), query.slurm_job_id.to_string(), peers.timeout);
            tokio::task::spawn_blocking(move || slurm(program, &job, within)).await??
        }
        PeerSource::Prometheus(url) => prometheus(url, peers, query.run.as_str()).await?,
    };
    let own = short(query.request.from.as_str()).to_owned();
    // The port is part of the name where daemons share a host, so that only a bare name is the own node.
    Ok(found
        .into_iter()
        .filter(|host| query.request.dry_run || host.contains(':') || short(host) != own)
        .collect())
}

/// A name without its domain.
fn short(host: &str) -> &str {
    match host.parse::<std::net::IpAddr>() {
        Ok(_) => host,
        Err(_) => host.split('.').next().unwrap_or(host),
    }
}

async fn dns(name: &str, port: u16, within: Duration) -> Found {
    let addresses = tokio::time::timeout(within, tokio::net::lookup_host((name, port))).await??;
    Ok(addresses.map(|address| address.to_string()).collect())
}

fn slurm(program: std::path::PathBuf, job: &str, within: Duration) -> Found {
    if job.is_empty() || !job.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_') {
        return Err("the Slurm job of the run is not known".into());
    }
    let command = WorkerCommand { program, arguments: Vec::new() };
    let arguments = ["--noheader".into(), format!("--jobs={job}").into(), "--format=%N".into()];
    let output = child::read_output(&command, &arguments, LARGEST, within)?;
    let text = String::from_utf8(output)?;
    let list: Vec<&str> = text.split_whitespace().collect();
    Ok(hostlist::expand(&list.join(","), MOST).ok_or("squeue printed no list of nodes")?)
}

/// The part of an answer of Prometheus that is used.
#[derive(Debug, Deserialize)]
struct QueryAnswer {
    data: Data,
}

#[derive(Debug, Deserialize)]
struct Data {
    result: Vec<Series>,
}

#[derive(Debug, Deserialize)]
struct Series {
    metric: Instance,
}

#[derive(Debug, Deserialize)]
struct Instance {
    instance: String,
}

async fn prometheus(url: &str, peers: &Peers, run: &str) -> Found {
    let run = run.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
    // Five minutes: the nodes that were not scraped last are asked too.
    let query = format!("count by (instance) (last_over_time(memwarden_workload_info{{run=\"{run}\"}}[5m]))");
    let query = utf8_percent_encode(&query, NON_ALPHANUMERIC);
    let uri: Uri = format!("{url}/api/v1/query?query={query}").parse()?;
    let client = HttpClient::new(&uri, &Trust::of(peers.authority.clone()), LARGEST, peers.timeout)?;
    let (status, body) = client.exchange(Request::get(uri).body(Full::default())?).await?;
    if !status.is_success() {
        return Err(format!("Prometheus answers {status}").into());
    }
    let answer: QueryAnswer = serde_json::from_slice(&body?)?;
    Ok(answer.data.result.into_iter().map(|series| series.metric.instance).collect())
}
