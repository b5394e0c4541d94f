//! The request of one node to the others of a run, to save a checkpoint, and what comes back.

use crate::model::label::Label;
use crate::model::names::named;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use ring::hmac;
use serde::{Deserialize, Serialize};

/// Maximum length of the texts of a request in bytes.
pub const LONGEST: usize = 256;

/// The body of `POST /api/v1/runs/RUN/checkpoint`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RunRequest {
    /// The id of the incident, the same on all nodes of the run: that of the asking node, `@`, and its name.
    pub incident: String,
    /// The name of the asking node.
    pub from: String,
    /// The user of the job on the asking node. Jobs of other users are not asked.
    pub user: String,
    /// The namespace of the job's pod on the asking node; empty where it has none. Must be the same.
    #[serde(default)]
    pub namespace: String,
    /// The reason of the request, as an identifier.
    pub reason: String,
    /// The time of the asking node, in seconds since 1970.
    pub unix_seconds: u64,
    /// A random text that no other request has.
    pub nonce: String,
    /// Whether to check with signal 0 what would be done, and to do nothing. The user may be empty then, for any.
    #[serde(default)]
    pub dry_run: bool,
}

impl RunRequest {
    /// Whether its texts are present, short and printable.
    pub fn is_sound(&self) -> bool {
        let plain = |text: &str| text.len() <= LONGEST && !text.contains(|c: char| c.is_control());
        let word = |text: &str| {
            !text.is_empty()
                && text.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-' | '@'))
        };
        let texts = [&self.incident, &self.from, &self.user, &self.namespace, &self.reason, &self.nonce];
        texts.into_iter().all(|text| plain(text))
            && word(&self.incident)
            && word(&self.from)
            && self.nonce.len() >= 16
            && word(&self.nonce)
            && (self.dry_run || !self.user.is_empty())
    }
}

/// Which run is asked for what.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RunQuery {
    pub run: Label,
    /// The id of its Slurm job; empty where it has none.
    pub slurm_job_id: Label,
    /// The request; the sender adds the time and the nonce.
    pub request: RunRequest,
}

named! {
    /// What became of a request on one node.
    #[derive(Serialize, Deserialize)]
    #[serde(rename_all = "snake_case")]
    pub enum RunOutcome {
        /// At least one process received the signal, or signals are still being sent.
        Asked = "asked",
        /// Mode `observe`, or a dry run: a process would have received the signal.
        WouldAsk = "would_ask",
        /// No process of the job has a handler for the signal.
        NoHandler = "no_handler",
        /// A checkpoint of the job was requested shortly before.
        Already = "already",
        /// The node has no protected job of the run.
        NoJob = "no_job",
        /// The jobs of that run name belong to another user or namespace.
        OtherUser = "other_user",
        /// The target does not allow the state `checkpoint`.
        NotAllowed = "not_allowed",
        /// The target is disarmed, or blind.
        Disarmed = "disarmed",
        /// The request was received before, or is from before the daemon started.
        Replayed = "replayed",
        /// The clocks of the nodes differ too much.
        Clock = "clock",
        /// Too many requests, or the guard does not respond.
        Busy = "busy",
        /// The request is not valid.
        Invalid = "invalid",
        /// The sender is not authenticated.
        Refused = "refused",
        /// The node did not respond in time, or cannot be reached.
        NoAnswer = "no_answer",
    }
}

/// The answer of one node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RunAnswer {
    /// What became of the request.
    pub outcome: RunOutcome,
    /// The name of the node.
    pub host: String,
    /// Number of processes that received the signal, or would have.
    pub processes: u32,
}

/// Counts outcomes.
#[derive(Debug, Default)]
pub struct RunCounts([AtomicU64; RunOutcome::ALL.len()]);

impl RunCounts {
    /// Counts one.
    pub fn add(&self, outcome: RunOutcome) {
        self.0[outcome as usize].fetch_add(1, Ordering::Relaxed);
    }

    /// Each outcome with its count.
    pub fn all(&self) -> impl Iterator<Item = (RunOutcome, u64)> + '_ {
        RunOutcome::ALL.iter().map(|outcome| (*outcome, self.0[*outcome as usize].load(Ordering::Relaxed)))
    }
}

/// The scheme of the `Authorization` header that has a signature.
const SCHEME: &str = "Memwarden-HMAC-SHA256 ";

/// Signs a request: the value of its `Authorization` header, from which the token cannot be computed. The time and the
/// nonce of the request are in the body.
pub fn sign(token: &str, path: &str, body: &[u8]) -> String {
    let key = hmac::Key::new(hmac::HMAC_SHA256, token.as_bytes());
    format!("{SCHEME}{}", STANDARD.encode(hmac::sign(&key, &signed(path, body))))
}

/// Whether this value of the `Authorization` header signs the request with the token.
pub fn is_signed(authorization: &str, token: &str, path: &str, body: &[u8]) -> bool {
    let key = hmac::Key::new(hmac::HMAC_SHA256, token.as_bytes());
    let tag = authorization.strip_prefix(SCHEME).and_then(|tag| STANDARD.decode(tag).ok());
    tag.is_some_and(|tag| hmac::verify(&key, &signed(path, body), &tag).is_ok())
}

/// The signed content: method, path and body. No path contains a line break.
fn signed(path: &str, body: &[u8]) -> Vec<u8> {
    [b"POST ", path.as_bytes(), b"\n", body].concat()
}

/// What authenticates a received request.
#[derive(Clone, Copy, Debug)]
pub struct Credentials<'r> {
    /// The `Authorization` header.
    pub authorization: Option<&'r str>,
    /// The path of the request, as it was received.
    pub path: &'r str,
    /// The body of the request.
    pub body: &'r [u8],
    /// Whether the client has a certificate that the web-config file trusts.
    pub certificate: bool,
}

/// Takes the requests that the HTTP server receives.
pub trait ReceiveRunRequests: Send + Sync {
    /// Whether the sender of a request may ask. Reads the token file; a refusal is counted.
    ///
    /// # Errors
    /// Why not, as a sentence.
    fn authorize(&self, request: Credentials<'_>) -> Result<(), &'static str>;

    /// Applies a request to the jobs of a run. May block for 2 s.
    fn receive(&self, run: &str, request: RunRequest) -> RunAnswer;
}

/// Where the daemons of a run's other nodes are found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PeerSource {
    /// These hosts, each with a port or without.
    Static(Vec<String>),
    /// All addresses of this name.
    Dns(String),
    /// The node list of the Slurm job, which this program, squeue(1), prints.
    Slurm(PathBuf),
    /// The instances that have the run, from this Prometheus-compatible server.
    Prometheus(String),
}

/// How the daemons of other nodes are asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Peers {
    /// Where they are found.
    pub source: PeerSource,
    /// Their port, where the source states none.
    pub port: u16,
    /// Whether they are asked over https.
    pub tls: bool,
    /// The file with the token that signs requests.
    pub token: Option<PathBuf>,
    /// The authorities that certify them; without it the distribution's.
    pub authority: Option<PathBuf>,
    /// Our certificate and its key.
    pub identity: Option<(PathBuf, PathBuf)>,
    /// Time limit for each node.
    pub timeout: Duration,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_plain_texts_are_sound() {
        let sound = RunRequest {
            incident: "20260101T000000.000Z-train@node-1".to_owned(),
            from: "node-1".to_owned(),
            user: "alice".to_owned(),
            reason: "soft_level".to_owned(),
            nonce: "0123456789abcdef".to_owned(),
            ..RunRequest::default()
        };
        assert!(sound.is_sound());
        for wrong in [
            RunRequest { incident: "a/../b".to_owned(), ..sound.clone() },
            RunRequest { incident: String::new(), ..sound.clone() },
            RunRequest { user: String::new(), ..sound.clone() },
            RunRequest { from: "a\nb".to_owned(), ..sound.clone() },
            RunRequest { reason: "\u{1b}[2J".to_owned(), ..sound.clone() },
            RunRequest { nonce: "short".to_owned(), ..sound.clone() },
            RunRequest { namespace: "x".repeat(LONGEST + 1), ..sound.clone() },
        ] {
            assert!(!wrong.is_sound(), "{wrong:?}");
        }
        assert!(RunRequest { user: String::new(), dry_run: true, ..sound }.is_sound());
    }

    #[test]
    fn a_signature_is_of_one_request_and_one_token() {
        let body = br#"{"nonce":"1"}"#;
        let signature = sign("a token of all nodes", "/a", body);
        let check = |token, path, body: &[u8]| is_signed(&signature, token, path, body);
        assert!(check("a token of all nodes", "/a", body));
        assert!(!check("a token of all node", "/a", body) && !check("", "/a", body));
        assert!(!check("a token of all nodes", "/b", body));
        assert!(!check("a token of all nodes", "/a", br#"{"nonce":"2"}"#));
        let tag = signature.strip_prefix(SCHEME).unwrap();
        for wrong in ["", "Bearer a token of all nodes", tag, &signature[..signature.len() - 4], SCHEME] {
            assert!(!is_signed(wrong, "a token of all nodes", "/a", body), "{wrong}");
        }
    }

    #[test]
    fn each_outcome_is_counted_under_its_label() {
        let counts = RunCounts::default();
        counts.add(RunOutcome::NoAnswer);
        let found: Vec<_> = counts.all().filter(|(_, count)| *count > 0).collect();
        assert_eq!(found, [(RunOutcome::NoAnswer, 1)]);
        for outcome in RunOutcome::ALL {
            assert_eq!(serde_json::to_value(outcome).unwrap(), outcome.label());
        }
    }
}
