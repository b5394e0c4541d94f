//! Receives alerts from the HTTP server for the running guard.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};

use super::GuardState;
use crate::host::{clock, fs};
use crate::model::lock::lock;
use crate::model::seldom::Seldom;
use crate::protection::types::alert::ReceiveAlerts;

/// The receiver of alerts; its guard changes at a reload.
#[derive(Debug, Default)]
pub struct AlertReceiver(Mutex<ReceiverState>, Refusals);

/// When refused alerts, and a token that cannot be used, were logged.
#[derive(Debug, Default)]
struct Refusals {
    sender: Seldom,
    token: Seldom,
}

/// The guard that receives alerts, and the token that senders need.
#[derive(Debug, Default)]
struct ReceiverState {
    shared: Option<Arc<GuardState>>,
    token: Option<PathBuf>,
}

impl AlertReceiver {
    /// Replaces the guard and the token.
    pub(super) fn hand_over(&self, shared: Option<Arc<GuardState>>, token: Option<PathBuf>) {
        let mut behind = lock(&self.0);
        (behind.shared, behind.token) = (shared, token);
    }

    fn shared(&self) -> Option<Arc<GuardState>> {
        lock(&self.0).shared.clone()
    }
}

impl ReceiveAlerts for AlertReceiver {
    /// Reads the file each time, so that a new token is effective immediately.
    fn token(&self) -> Result<Option<String>, String> {
        let path = lock(&self.0).token.clone();
        let Some(path) = path else { return Ok(None) };
        fs::read_token(&path).map(Some).map_err(|error| {
            if self.1.token.is_due(clock::now(), &error.to_string()) {
                tracing::error!(path = %path.display(), %error, "Cannot use the alert token file; alerts are refused.");
            }
            "The token file cannot be used; see the log.".to_owned()
        })
    }

    fn receive(&self, labels: BTreeMap<String, String>, fires: bool) -> bool {
        let Some(shared) = self.shared() else { return false };
        shared.alerts.receive(labels, fires, &shared.targets, clock::now())
    }

    fn refused(&self) {
        if self.1.sender.is_due(clock::now(), "") {
            tracing::warn!("Refused alerts: the sender is not authenticated.");
        }
        if let Some(shared) = self.shared() {
            shared.alerts.refused();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn the_token_is_read_each_time() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("token");
        let desk = AlertReceiver::default();
        assert_eq!(desk.token(), Ok(None));
        desk.hand_over(None, Some(path.clone()));
        assert!(desk.token().is_err());
        std::fs::write(&path, "a secret that is long\n").unwrap();
        assert!(desk.token().is_err(), "others can read it");
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
        assert_eq!(desk.token(), Ok(Some("a secret that is long".to_owned())));
        std::fs::write(&path, "one\n").unwrap();
        assert!(desk.token().is_err());
        assert!(!desk.receive(BTreeMap::new(), true));
    }
}
