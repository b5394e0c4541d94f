//! Receives requests of other nodes from the HTTP server for the running guard.

use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use super::run_requests::RunRequests;
use crate::host::{clock, fs};
use crate::model::lock::lock;
use crate::protection::types::run_request::{ReceiveRunRequests, RunAnswer, RunOutcome, RunRequest};

/// Time that the guard has to respond; its rounds are at most 1 s apart, and a request wakes it.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(2);

/// The receiver of requests; its configuration changes at a reload.
#[derive(Debug)]
pub struct RunReceiver {
    requests: Arc<RunRequests>,
    /// The file with the token, and whether client certificates are accepted.
    permits: Mutex<(Option<PathBuf>, bool)>,
    host: String,
}

impl Default for RunReceiver {
    /// A receiver that authorizes nobody.
    fn default() -> Self {
        Self::new(Arc::default())
    }
}

impl RunReceiver {
    pub(super) fn new(requests: Arc<RunRequests>) -> Self {
        let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
        Self { requests, permits: Mutex::default(), host }
    }

    /// Replaces the token and whether client certificates are accepted.
    pub(super) fn configure(&self, token: Option<PathBuf>, certificates: bool) {
        *lock(&self.permits) = (token, certificates);
    }
}

impl ReceiveRunRequests for RunReceiver {
    fn authorize(&self, bearer: Option<&str>, certificate: bool) -> Result<(), &'static str> {
        let (token, certificates) = lock(&self.permits).clone();
        if certificate && certificates {
            return Ok(());
        }
        let refusal = match token.as_deref().map(fs::read_token) {
            Some(Ok(token)) if bearer.is_some_and(|given| is_same(given, &token)) => return Ok(()),
            Some(Ok(_)) => "Unauthorized.",
            Some(Err(error)) => {
                tracing::error!(%error, "Cannot read the file protection.peers.token_file; requests of other nodes are refused.");
                "The token file cannot be read; see the log."
            }
            None if certificates => {
                "Unauthorized: a client certificate that web.config_file verifies is required."
            }
            None => {
                "Requests for runs are refused: set protection.peers.token_file or protection.peers.accept_client_certificates."
            }
        };
        self.requests.received.add(RunOutcome::Refused);
        Err(refusal)
    }

    fn receive(&self, run: &str, request: RunRequest) -> RunAnswer {
        let taken = self.requests.take(run, request, clock::now());
        let (outcome, processes) = match taken {
            Err(outcome) => (outcome, 0),
            Ok(answer) => answer.recv_timeout(ANSWER_TIMEOUT).unwrap_or((RunOutcome::Busy, 0)),
        };
        self.requests.received.add(outcome);
        RunAnswer { outcome, host: self.host.clone(), processes }
    }
}

/// Compares in a time that does not depend on the number of equal bytes.
fn is_same(given: &str, wanted: &str) -> bool {
    let differs = given.bytes().zip(wanted.bytes()).fold(0, |differs, (a, b)| differs | (a ^ b));
    !wanted.is_empty() && given.len() == wanted.len() && differs == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_token_or_an_accepted_certificate_authorizes() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("token");
        std::fs::write(&path, "s3cret\n").unwrap();
        let receiver = RunReceiver::new(Arc::default());
        let check = |bearer, certificate| receiver.authorize(bearer, certificate).is_ok();
        // Without a configuration nobody is authorized.
        assert!(!check(None, true) && !check(Some(""), true) && !check(Some("s3cret"), false));
        receiver.configure(Some(path.clone()), false);
        assert!(check(Some("s3cret"), false));
        for wrong in [None, Some(""), Some("s3cre"), Some("s3creT"), Some("s3cret\n"), Some("s3crets")] {
            assert!(!check(wrong, true), "{wrong:?}");
        }
        receiver.configure(None, true);
        assert!(check(None, true) && !check(None, false));
        // An empty or missing file authorizes nobody.
        std::fs::write(&path, " \n").unwrap();
        receiver.configure(Some(path.clone()), false);
        assert!(!check(Some(""), false));
        std::fs::remove_file(&path).unwrap();
        assert!(!check(Some("s3cret"), false));
        let refused = receiver.requests.received.all().find(|(outcome, _)| *outcome == RunOutcome::Refused);
        assert_eq!(refused.map(|(_, count)| count), Some(12));
    }
}
