//! Asks the daemons of the other nodes of a run for a checkpoint, on a thread with its own runtime.
//!
//! All nodes are asked at the same time, each within the time limit, so that a node that is down or slow delays no other.

mod find;

use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use http::{Request, StatusCode, Uri, header};
use http_body_util::Full;
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use tokio::sync::{Semaphore, mpsc};
use tokio::task::JoinSet;
use tokio_rustls::rustls::crypto;

use super::executor::BackgroundExecutor;
use crate::host::http_client::{HttpClient, Version};
use crate::host::tls::Trust;
use crate::host::{clock, fs};
use crate::model::error_chain::error_chain;
use crate::model::format::counted;
use crate::model::printable::escaped;
use crate::protection::types::run_request::{
    Peers, RunAnswer, RunCounts, RunOutcome, RunQuery, RunRequest, sign,
};
use crate::protection::types::step::{Finished, Outcome, Step, StepDone, StepError, Ticket, Work};

/// Capacity of the queue of requests.
const QUEUE: usize = 32;
/// Maximum number of nodes that are asked; a run has at most a few thousand.
const MOST: usize = 4096;
/// Maximum number of nodes that are asked at the same moment.
const AT_ONCE: usize = 1024;
/// Bytes that are read of a response.
const LARGEST: usize = 4096;
/// Bytes of the result in the audit log.
const REPORT: usize = 3000;

/// The executor of requests to other nodes.
#[derive(Debug)]
pub struct RunAsker {
    requests: mpsc::Sender<(Ticket, Arc<RunQuery>)>,
    ended: std::sync::mpsc::Receiver<Finished>,
}

/// What came back from one node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PeerAnswer {
    /// Its address, as it was found.
    pub peer: String,
    /// The answer; [`RunOutcome::NoAnswer`] where there is none.
    pub answer: RunAnswer,
    /// Why there is no answer, or why the node refuses.
    pub why: String,
}

impl RunAsker {
    /// Starts the thread, which ends when this is dropped.
    pub fn start(peers: Peers, counts: Arc<RunCounts>) -> io::Result<Self> {
        let (requests, mut inbox) = mpsc::channel::<(Ticket, Arc<RunQuery>)>(QUEUE);
        let (report, ended) = std::sync::mpsc::sync_channel(2 * QUEUE);
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let peers = Arc::new(peers);
        let serve = async move {
            while let Some((ticket, query)) = inbox.recv().await {
                let (peers, counts, report) = (Arc::clone(&peers), Arc::clone(&counts), report.clone());
                tokio::spawn(async move {
                    let answers = ask(&peers, &query).await;
                    // A full report channel means that the result is no longer needed.
                    let _ = report.try_send(finished(ticket, &query, answers, &counts));
                });
            }
        };
        std::thread::Builder::new().name("run-requests".to_owned()).spawn(move || {
            runtime.block_on(serve);
            // A node or a program that does not respond must not delay the end.
            runtime.shutdown_background();
        })?;
        Ok(Self { requests, ended })
    }
}

impl BackgroundExecutor for RunAsker {
    fn begin(&mut self, ticket: Ticket, step: &Step) -> bool {
        let Work::AskRun(query) = &step.work else { return false };
        self.requests.try_send((ticket, Arc::clone(query))).is_ok()
    }

    fn poll(&mut self, finished: &mut Vec<Finished>) {
        finished.extend(self.ended.try_iter());
    }
}

/// Asks all other nodes of a run, and waits for their answers within the time limits.
///
/// # Errors
/// Why the nodes cannot be determined, or none can be asked.
pub async fn ask(peers: &Peers, query: &RunQuery) -> Result<Vec<PeerAnswer>, String> {
    let token = |path: &PathBuf| {
        let unusable = |error| format!("cannot use the token file {}: {error}", path.display());
        fs::read_token(path).map_err(unusable)
    };
    let token = peers.token.as_ref().map(token).transpose()?;
    let found = find::hosts(peers, query).await;
    let mut hosts =
        found.map_err(|error| format!("cannot find the other nodes of the run: {}", error_chain(&*error)))?;
    hosts.sort_unstable();
    hosts.dedup();
    hosts.truncate(MOST);
    let scheme = if peers.tls { "https" } else { "http" };
    let example = if peers.tls { Uri::from_static("https://peer") } else { Uri::from_static("http://peer") };
    let trust = Trust::of(peers.authority.clone());
    let identity = peers.identity.as_ref();
    let client = HttpClient::of(&example, &trust, identity, Version::Http1, LARGEST, peers.timeout);
    let client = Arc::new(client.map_err(|error| error_chain(&error))?);
    let (path, body, signature) = sealed(query, token.as_deref(), nonce());
    let (mut asked, places) = (JoinSet::new(), Arc::new(Semaphore::new(AT_ONCE)));
    for peer in hosts {
        let authority = with_port(&peer, peers.port);
        let url = format!("{scheme}://{authority}{path}");
        let (client, body, places) = (Arc::clone(&client), body.clone(), Arc::clone(&places));
        let signature = signature.clone();
        asked.spawn(async move {
            let _place = places.acquire_owned().await;
            let (answer, why) = match ask_one(&client, &url, signature, body).await {
                Ok(answer) => (answer, String::new()),
                Err((outcome, why)) => (RunAnswer { outcome, host: peer.clone(), processes: 0 }, why),
            };
            PeerAnswer { peer, answer, why }
        });
    }
    let mut answers = asked.join_all().await;
    answers.sort_by(|a, b| a.peer.cmp(&b.peer));
    Ok(answers)
}

/// The path, the body and the signature of a request that is sent now.
pub fn sealed(
    query: &RunQuery,
    token: Option<&str>,
    nonce: String,
) -> (String, bytes::Bytes, Option<String>) {
    let run = utf8_percent_encode(query.run.as_str(), NON_ALPHANUMERIC);
    let path = format!("/api/v1/runs/{run}/checkpoint");
    let unix_seconds = clock::now().unix().as_secs();
    let request = RunRequest { unix_seconds, nonce, ..query.request.clone() };
    let body: bytes::Bytes = serde_json::to_vec(&request).unwrap_or_default().into();
    let signature = token.map(|token| sign(token, &path, &body));
    (path, body, signature)
}

async fn ask_one(
    client: &HttpClient,
    url: &str,
    signature: Option<String>,
    body: bytes::Bytes,
) -> Result<RunAnswer, (RunOutcome, String)> {
    let none = |why: String| (RunOutcome::NoAnswer, why);
    let mut request = Request::post(url)
        .header(header::CONTENT_TYPE, "application/json")
        .header(header::USER_AGENT, concat!("memwarden/", env!("CARGO_PKG_VERSION")));
    if let Some(signature) = signature {
        request = request.header(header::AUTHORIZATION, signature);
    }
    let request = request.body(Full::from(body)).map_err(|error| none(error.to_string()))?;
    let (status, body) = client.exchange(request).await.map_err(|error| none(error_chain(&error)))?;
    let body = body.map_err(|error| none(error_chain(&error)))?;
    if let Ok(answer) = serde_json::from_slice::<RunAnswer>(&body) {
        return Ok(answer);
    }
    let text: String = String::from_utf8_lossy(&body).trim().chars().take(100).collect();
    let refused = matches!(status, StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN);
    let outcome = if refused { RunOutcome::Refused } else { RunOutcome::NoAnswer };
    Err((outcome, format!("{status}: {text}")))
}

fn with_port(host: &str, port: u16) -> String {
    let bare = host.rsplit_once(':').is_none_or(|(before, after)| {
        after.ends_with(']') || (before.contains(':') && !before.ends_with(']'))
    });
    let brackets = bare && host.contains(':') && !host.starts_with('[');
    match (bare, brackets) {
        (true, true) => format!("[{host}]:{port}"),
        (true, false) => format!("{host}:{port}"),
        (false, _) => host.to_owned(),
    }
}

/// The name of this node, with which a request begins.
pub fn node_name() -> String {
    let name = rustix::system::uname().nodename().to_string_lossy().into_owned();
    let plain = |c: char| if c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_') { c } else { '-' };
    name.chars().map(plain).take(100).collect()
}

/// 16 random bytes as hexadecimal digits.
fn nonce() -> String {
    let mut bytes = [0; 16];
    crypto::ring::default_provider()
        .secure_random
        .fill(&mut bytes)
        .expect("the kernel's random numbers cannot fail once the system has started");
    format!("{:032x}", u128::from_be_bytes(bytes))
}

/// The result of the step: how many nodes answered what, and the names of those that did not ask their job.
pub fn finished(
    ticket: Ticket,
    query: &RunQuery,
    answers: Result<Vec<PeerAnswer>, String>,
    counts: &RunCounts,
) -> Finished {
    let run = query.run.as_str();
    let answers = match answers {
        Ok(answers) => answers,
        Err(error) => {
            let what: String = error.chars().take(300).collect();
            tracing::warn!(run, error = what, "The other nodes of a run were not asked for a checkpoint.");
            return Finished::new(ticket, Err(StepError::Outside { what: what.into() }));
        }
    };
    let reached = answers.iter().filter(|peer| peer.answer.outcome == RunOutcome::Asked).count();
    for peer in &answers {
        counts.add(peer.answer.outcome);
    }
    let report = report(&answers);
    tracing::info!(
        run,
        incident = query.request.incident,
        answers = report,
        "Asked the other nodes of a run for a checkpoint."
    );
    let processes = u32::try_from(reached).unwrap_or(u32::MAX);
    let done = StepDone { outcome: Outcome::Done, processes };
    Finished { output: report.into(), ..Finished::new(ticket, Ok(done)) }
}

/// The answers as one line.
fn report(answers: &[PeerAnswer]) -> String {
    let mut text = counted(answers.len(), "node");
    for outcome in RunOutcome::ALL {
        let count = answers.iter().filter(|peer| peer.answer.outcome == outcome).count();
        if count > 0 {
            text.push_str(&format!(", {} {count}", outcome.label()));
        }
    }
    let well = |outcome| matches!(outcome, RunOutcome::Asked | RunOutcome::Already | RunOutcome::WouldAsk);
    let (mut shown, mut left) = (String::new(), 0);
    // Those that did not ask come first, since the text is limited.
    let (done, others): (Vec<_>, Vec<_>) = answers.iter().partition(|peer| well(peer.answer.outcome));
    for PeerAnswer { peer, answer, why } in others.into_iter().chain(done) {
        let why = if why.is_empty() { String::new() } else { format!(" ({why})") };
        let part = format!("; {peer}: {}{why}", answer.outcome.label());
        if shown.len() + part.len() > REPORT {
            left += 1;
        } else {
            shown.push_str(&part);
        }
    }
    text.push_str(&escaped(&shown));
    if left > 0 {
        text.push_str(&format!("; {left} more"));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_is_added_where_none_is_given() {
        for (host, expected) in [
            ("node1", "node1:7"),
            ("node1:80", "node1:80"),
            ("10.0.0.1", "10.0.0.1:7"),
            ("::1", "[::1]:7"),
            ("[::1]", "[::1]:7"),
            ("[::1]:80", "[::1]:80"),
        ] {
            assert_eq!(with_port(host, 7), expected);
        }
    }

    #[test]
    fn nodes_that_were_not_asked_are_named_first_and_the_text_is_limited() {
        let peer = |peer: String, outcome| PeerAnswer {
            answer: RunAnswer { outcome, host: peer.clone(), processes: 1 },
            peer,
            why: String::new(),
        };
        let mut answers =
            vec![peer("a".to_owned(), RunOutcome::Asked), peer("b\n".to_owned(), RunOutcome::NoAnswer)];
        let text = report(&answers);
        assert!(
            text.starts_with("2 nodes, asked 1, no_answer 1; b") && text.ends_with("; a: asked"),
            "{text}"
        );
        assert!(!text.contains('\n'));
        answers.extend((0..1000).map(|number| peer(format!("node{number}"), RunOutcome::NoAnswer)));
        let text = report(&answers);
        assert!(text.len() < 4096 && text.contains(" more"), "{text}");
        assert_ne!(nonce(), nonce());
        assert!(nonce().len() >= 16);
    }
}
