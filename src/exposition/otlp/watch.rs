//! The thread beside the SDK's: it ends pushing, and replaces the SDK's thread should that die.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender};
use std::time::Duration;

use opentelemetry_sdk::metrics::SdkMeterProvider;
use tokio::sync::watch;

use super::OtlpError;
use super::exporter::{Pulse, chain};
use crate::events::Events;

/// A request to push once more and end; the answer says that it is done.
pub(super) struct End(pub(super) Sender<()>);

/// Owns the provider until the end.
pub(super) struct Watch {
    /// Starts a provider with a thread of its own.
    pub(super) start: Box<dyn Fn() -> Result<SdkMeterProvider, OtlpError> + Send>,
    pub(super) provider: SdkMeterProvider,
    pub(super) events: Arc<Events>,
    pub(super) pulse: Arc<Pulse>,
    /// Ends a push that runs.
    pub(super) stop: watch::Sender<bool>,
    pub(super) interval: Duration,
    /// For one push.
    pub(super) limit: Duration,
}

impl Watch {
    /// Returns when asked to end, or when nobody is left to ask.
    pub(super) fn run(mut self, requests: &Receiver<End>) {
        /// A thread that starts or a machine that is short of CPU may be that late.
        const SLACK: Duration = Duration::from_secs(1);
        let look = self.interval.clamp(Duration::from_millis(50), Duration::from_secs(60));
        let mut patience = 1_u32;
        loop {
            match requests.recv_timeout(look) {
                Ok(End(done)) => {
                    // An error says that the collector did not take the last push, which is counted.
                    let _ = self.provider.shutdown();
                    let _ = done.send(());
                    return;
                }
                Err(RecvTimeoutError::Disconnected) => {
                    self.stop.send_replace(true);
                    let _ = self.provider.shutdown();
                    return;
                }
                Err(RecvTimeoutError::Timeout) => {}
            }
            let push = if self.pulse.pushing() { self.limit } else { Duration::ZERO };
            if self.pulse.silence() > self.interval * 3 * patience + push + SLACK {
                self.replace();
                // A thread that dies again and again is replaced ever more rarely, at last every 768 intervals.
                patience = (patience * 2).min(256);
            }
        }
    }

    fn replace(&mut self) {
        match (self.start)() {
            Ok(provider) => {
                self.events.otlp_failed("the thread that pushes had stopped, and was started anew");
                let _ = std::mem::replace(&mut self.provider, provider).shutdown();
            }
            Err(error) => self.events.otlp_failed(&chain(&error)),
        }
        self.pulse.beat();
    }
}
