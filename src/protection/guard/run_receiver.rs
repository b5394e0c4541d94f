//! Receives requests of other nodes from the HTTP server for the running guard.

use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use super::run_requests::RunRequests;
use crate::host::{clock, fs};
use crate::model::lock::lock;
use crate::model::seldom::Seldom;
use crate::protection::types::run_request::{
    Credentials, ReceiveRunRequests, RunAnswer, RunOutcome, RunRequest, is_signed,
};

/// Time that the guard has to respond; its rounds are at most 1 s apart, and a request wakes it.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(2);

/// The receiver of requests; its configuration changes at a reload.
#[derive(Debug)]
pub struct RunReceiver {
    pub(super) requests: Arc<RunRequests>,
    /// The file with the token, and whether client certificates are accepted.
    permits: Mutex<(Option<PathBuf>, bool)>,
    host: String,
    /// When a token that cannot be used was logged.
    unusable: Seldom,
}

impl Default for RunReceiver {
    /// A receiver that authorizes nobody.
    fn default() -> Self {
        Self::new(Arc::default())
    }
}

impl RunReceiver {
    pub fn new(requests: Arc<RunRequests>) -> Self {
        let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
        Self { requests, permits: Mutex::default(), host, unusable: Seldom::default() }
    }

    /// Replaces the token and whether client certificates are accepted.
    pub(super) fn configure(&self, token: Option<PathBuf>, certificates: bool) {
        *lock(&self.permits) = (token, certificates);
    }
}

impl ReceiveRunRequests for RunReceiver {
    fn authorize(&self, request: Credentials<'_>) -> Result<(), &'static str> {
        let Credentials { authorization, path, body, certificate } = request;
        let (token, certificates) = lock(&self.permits).clone();
        if certificate && certificates {
            return Ok(());
        }
        let signed = |token: &str| authorization.is_some_and(|given| is_signed(given, token, path, body));
        let refusal = match token.as_deref().map(fs::read_token) {
            Some(Ok(token)) if signed(&token) => return Ok(()),
            Some(Ok(_)) => "Unauthorized: the request is not signed with the token of this node.",
            Some(Err(error)) => {
                if self.unusable.is_due(clock::now(), &error.to_string()) {
                    tracing::error!(%error, "Cannot use the file protection.peers.token_file; requests of other nodes are refused.");
                }
                "The token file cannot be used; see the log."
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

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;
    use crate::protection::types::run_request::sign;

    const TOKEN: &str = "a token of all nodes";

    #[test]
    fn only_a_signature_or_an_accepted_certificate_authorizes() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("token");
        let write = |text: &str, mode: u32| {
            std::fs::write(&path, text).unwrap();
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
        };
        write(&format!("{TOKEN}\n"), 0o600);
        let receiver = RunReceiver::new(Arc::default());
        let check = |token: Option<&str>, certificate| {
            let authorization = token.map(|token| sign(token, "/run", b"{}"));
            let authorization = authorization.as_deref();
            let request = Credentials { authorization, path: "/run", body: b"{}", certificate };
            receiver.authorize(request).is_ok()
        };
        // Without a configuration nobody is authorized.
        assert!(!check(None, true) && !check(Some(""), true) && !check(Some(TOKEN), false));
        receiver.configure(Some(path.clone()), false);
        assert!(check(Some(TOKEN), false));
        for wrong in [None, Some(""), Some("a token of all node"), Some("a token of all nodes\n")] {
            assert!(!check(wrong, true), "{wrong:?}");
        }
        // The token itself is no signature.
        let bearer = format!("Bearer {TOKEN}");
        let request =
            Credentials { authorization: Some(&bearer), path: "/run", body: b"{}", certificate: false };
        assert!(receiver.authorize(request).is_err());
        receiver.configure(None, true);
        assert!(check(None, true) && !check(None, false));
        // An empty file, one that can be guessed, one that others can read or write, and a missing one authorize nobody.
        receiver.configure(Some(path.clone()), false);
        for (text, mode) in
            [(" \n", 0o600), ("s3cret", 0o600), (TOKEN, 0o604), (TOKEN, 0o640), (TOKEN, 0o602)]
        {
            write(text, mode);
            assert!(!check(Some(text.trim()), false), "{text} {mode:o}");
        }
        write(TOKEN, 0o400);
        assert!(check(Some(TOKEN), false));
        std::fs::remove_file(&path).unwrap();
        assert!(!check(Some(TOKEN), false));
        let refused = receiver.requests.received.all().find(|(outcome, _)| *outcome == RunOutcome::Refused);
        assert_eq!(refused.map(|(_, count)| count), Some(15));
    }
}
