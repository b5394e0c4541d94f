//! What the HTTP server hands to protection: alerts of Alertmanager.

use std::collections::BTreeMap;

/// Takes the alerts that the HTTP server receives.
pub trait ReceiveAlerts: Send + Sync {
    /// The bearer token that must come with an alert; nothing where none was configured.
    ///
    /// It may read a file.
    ///
    /// # Errors
    /// Why the token cannot be had; all alerts are refused then.
    fn token(&self) -> Result<Option<String>, String>;

    /// An alert fires, or is resolved; whether a target names it.
    fn receive(&self, labels: BTreeMap<String, String>, fires: bool) -> bool;

    /// A message was refused: it came without the token.
    fn refused(&self);
}
