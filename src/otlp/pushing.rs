//! The export task: sends the newest frame each interval, with a time limit, counted, aborted at shutdown.
//!
//! An export that failed temporarily is retried before the next interval with the frame that is newest then: older
//! frames are of no use to the collector.

use std::hash::{BuildHasher as _, RandomState};
use std::sync::{Arc, Mutex, mpsc};
use std::time::Duration;

use tokio::sync::mpsc::UnboundedReceiver;
use tokio::sync::watch;
use tokio::time::Instant;

use super::OtlpError;
use super::body::{Base, Body, Encoder};
use super::client::Client;
use super::framing::{self, Verdict};
use super::resolve::Resolved;
use crate::engine::Frames;
use crate::events::Events;
use crate::host::clock;
use crate::model::error_chain::error_chain;
use crate::model::lock::lock;

/// A request to export once more and end; the sender is used to acknowledge.
pub(super) type End = mpsc::Sender<()>;

/// Sends one frame.
pub(super) struct Sender {
    pub(super) resolved: Arc<Resolved>,
    pub(super) frames: Frames,
    pub(super) encoder: Encoder,
    /// The last accepted export, if deltas are sent.
    base: Mutex<Option<Arc<Base>>>,
    /// Recreated after a failure, so that a renewed certificate is read.
    client: Mutex<Option<Arc<Client>>>,
}

impl Sender {
    pub(super) fn new(resolved: Arc<Resolved>, frames: Frames, encoder: Encoder) -> Result<Self, OtlpError> {
        let client = Mutex::new(Some(Arc::new(Client::new(&resolved)?)));
        Ok(Self { resolved, frames, encoder, base: Mutex::default(), client })
    }

    /// Exports the newest frame; absent where there is none yet.
    pub(super) async fn push(&self) -> Option<Verdict> {
        let frame = self.frames.borrow().clone()?;
        let now = clock::now();
        let base = lock(&self.base).clone();
        let body = self.encoder.encode(&frame, base.as_deref(), now).await;
        drop(base);
        let verdict = self.send(body?).await;
        match &verdict {
            Verdict::Taken | Verdict::Partly(_) if self.encoder.delta => {
                *lock(&self.base) = Some(Arc::new(Base { frame, at: now }));
            }
            Verdict::Taken | Verdict::Partly(_) => {}
            Verdict::Refused { .. } => *lock(&self.client) = None,
        }
        Some(verdict)
    }

    async fn send(&self, body: Body) -> Verdict {
        let client = match self.client() {
            Ok(client) => client,
            Err(error) => return Verdict::refused(error_chain(&error)),
        };
        let request = match framing::request(&self.resolved, body).await {
            Ok(request) => request,
            Err(error) => return Verdict::refused(error_chain(&error)),
        };
        match client.exchange(request).await {
            Ok(answer) => framing::judge(self.resolved.protocol, &answer),
            Err(why) => Verdict::failed(why),
        }
    }

    fn client(&self) -> Result<Arc<Client>, OtlpError> {
        let mut client = lock(&self.client);
        if let Some(client) = &*client {
            return Ok(Arc::clone(client));
        }
        let new = Arc::new(Client::new(&self.resolved)?);
        Ok(Arc::clone(client.insert(new)))
    }
}

/// A task that ends with this.
struct AbortOnDrop<T>(tokio::task::JoinHandle<T>);

impl<T> Drop for AbortOnDrop<T> {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// Exports until it is stopped.
pub(super) struct Pushing<P> {
    pub(super) push: P,
    pub(super) resolved: Arc<Resolved>,
    pub(super) events: Arc<Events>,
    /// Ends the task immediately, and aborts a running export.
    pub(super) stop: watch::Receiver<bool>,
}

impl<P, F> Pushing<P>
where
    P: Fn() -> F,
    F: Future<Output = Option<Verdict>> + Send + 'static,
{
    /// Runs until it is stopped, or until all senders are dropped.
    pub(super) async fn run(self, mut ends: UnboundedReceiver<End>) {
        let mut stop = self.stop.clone();
        let interval = self.resolved.interval;
        let mut regular = Instant::now() + first(interval);
        let (mut due, mut tried) = (regular, 0);
        loop {
            tokio::select! {
                biased;
                () = stopped(&mut stop) => return,
                end = ends.recv() => {
                    if let Some(done) = end {
                        self.pushed(&mut stop).await;
                        let _ = done.send(());
                    }
                    return;
                }
                () = tokio::time::sleep_until(due) => {}
            }
            let again = self.pushed(&mut stop).await;
            let now = Instant::now();
            if now >= regular {
                // Missed intervals are skipped.
                regular = if regular + interval > now { regular } else { now } + interval;
            }
            (due, tried) = match again {
                None => (regular, 0),
                // Not later than the next export, unless the collector requests it.
                Some(least) => {
                    ((now + backoff(tried)).min(regular).max(now + least.min(LONGEST_WAIT)), tried + 1)
                }
            };
        }
    }

    /// Sends and counts one export; returns the minimum delay if it is to be retried.
    async fn pushed(&self, stop: &mut watch::Receiver<bool>) -> Option<Duration> {
        // A separate task, so that a panic ends only this export.
        let mut push = AbortOnDrop(tokio::spawn((self.push)()));
        let verdict = tokio::select! {
            biased;
            () = stopped(stop) => {
                Some(Verdict::refused("aborted, because memwarden is shutting down".to_owned()))
            }
            verdict = &mut push.0 => verdict
                .unwrap_or_else(|_| Some(Verdict::refused("the export panicked, which is a defect of memwarden".to_owned()))),
        };
        match verdict? {
            Verdict::Taken => {
                self.events.otlp_exported(clock::now());
                None
            }
            Verdict::Partly(why) => {
                self.events.otlp_failed(&self.resolved.hide(&why));
                None
            }
            Verdict::Refused { why, again } => {
                self.events.otlp_failed(&self.resolved.hide(&why));
                again
            }
        }
    }
}

/// Returns when the export is to stop immediately, or when the sender is dropped.
async fn stopped(stop: &mut watch::Receiver<bool>) {
    let _ = stop.wait_for(|stop| *stop).await;
}

/// Delay of the first export: a random part of the interval, so that nodes that are started together do not export
/// together.
fn first(interval: Duration) -> Duration {
    interval / 1024 * (chance(interval) + 1)
}

/// A random number below 1024.
fn chance(key: impl std::hash::Hash) -> u32 {
    u32::try_from(RandomState::new().hash_one(key) % 1024).unwrap_or_default()
}

/// Maximum delay that a collector can request.
const LONGEST_WAIT: Duration = Duration::from_secs(300);

/// Delay after `tried` failures: from 1 s, doubled up to a minute, minus a random part of up to a half, so that the
/// nodes of a cluster do not retry at the same time.
fn backoff(tried: u32) -> Duration {
    let most = Duration::from_secs(1 << tried.min(6)).min(Duration::from_secs(60));
    most - most / 2048 * chance(tried)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn retry_delays_grow_and_vary() {
        for (tried, most) in [(0, 1), (1, 2), (3, 8), (6, 60), (u32::MAX, 60)] {
            let most = Duration::from_secs(most);
            let waits: Vec<_> = (0..20).map(|_| backoff(tried)).collect();
            assert!(waits.iter().all(|wait| (most / 2..=most).contains(wait)), "{waits:?}");
            assert!(waits.iter().any(|wait| *wait != waits[0]));
        }
    }

    #[test]
    fn first_exports_are_spread_over_the_interval() {
        let interval = Duration::from_secs(60);
        let delays: Vec<_> = (0..1_000).map(|_| first(interval)).collect();
        assert!(delays.iter().all(|delay| !delay.is_zero() && *delay <= interval), "{delays:?}");
        // 100 are expected in each tenth; 50 are five standard deviations away.
        for tenth in 0..10 {
            let begin = interval / 10 * tenth;
            let tenth = begin..begin + interval / 10;
            let within = delays.iter().filter(|delay| tenth.contains(*delay)).count();
            assert!((50..=160).contains(&within), "{within} in the tenth from {begin:?}");
        }
    }
}
