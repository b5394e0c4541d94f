//! Notifications to systemd: ready, reloading, stopping, and the watchdog.

use std::time::Duration;

use sd_notify::NotifyState;

/// Sampling has begun and the server listens.
pub fn ready() {
    notify(&[NotifyState::Ready]);
}

/// A reload has begun; [`ready`] ends it.
pub fn reloading() {
    match NotifyState::monotonic_usec_now() {
        Ok(now) => notify(&[NotifyState::Reloading, now]),
        Err(error) => tracing::debug!(%error, "The monotonic clock could not be read for systemd."),
    }
}

/// The end has begun.
pub fn stopping() {
    notify(&[NotifyState::Stopping]);
}

/// The sampler has published a recent frame.
pub fn alive() {
    notify(&[NotifyState::Watchdog]);
}

/// How often [`alive`] must be called: half of what the unit's `WatchdogSec` allows; absent where it is not set.
pub fn watchdog_interval() -> Option<Duration> {
    sd_notify::watchdog_enabled().map(|limit| limit / 2)
}

/// Without systemd there is nothing to notify, which is no error.
fn notify(states: &[NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify(states) {
        tracing::debug!(%error, "systemd could not be notified.");
    }
}
