//! The interface by which the HTTP server hands alerts of Alertmanager to protection.

use std::collections::BTreeMap;

/// Takes the alerts that the HTTP server receives.
pub trait ReceiveAlerts: Send + Sync {
    /// The bearer token that senders of alerts need; absent where none is configured.
    ///
    /// It may read a file.
    ///
    /// # Errors
    /// Why the token cannot be read; all alerts are refused then.
    fn token(&self) -> Result<Option<String>, String>;

    /// Takes an alert that fires or is resolved; returns whether it matches a target.
    fn receive(&self, labels: BTreeMap<String, String>, fires: bool) -> bool;

    /// Counts a message that was refused for lack of the token.
    fn refused(&self);
}
