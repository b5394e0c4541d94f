//! One push: bounded in time, given up at shutdown, counted.
//!
//! After a failure the crate's exporter is built anew for the next push, so
//! that a half-dead connection or a renewed certificate never outlives one.

use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use opentelemetry_otlp::MetricExporter;
use opentelemetry_sdk::error::{OTelSdkError, OTelSdkResult};
use opentelemetry_sdk::metrics::Temporality;
use opentelemetry_sdk::metrics::data::ResourceMetrics;
use opentelemetry_sdk::metrics::exporter::PushMetricExporter;
use tokio::runtime::Handle;
use tokio::sync::watch;
use tracing::Dispatch;

use super::remark::Remark;
use super::resolve::Resolved;
use super::{OtlpError, transport};
use crate::events::Events;
use crate::host::clock;

/// Shows that the thread that pushes is alive.
#[derive(Debug, Default)]
pub(super) struct Pulse {
    /// Milliseconds on the monotonic clock.
    last: AtomicU64,
    pushing: AtomicBool,
}

impl Pulse {
    pub(super) fn beat(&self) {
        self.last.store(now_milliseconds(), Ordering::Relaxed);
    }

    /// How long nothing has been collected or pushed.
    pub(super) fn silence(&self) -> Duration {
        Duration::from_millis(now_milliseconds().saturating_sub(self.last.load(Ordering::Relaxed)))
    }

    pub(super) fn pushing(&self) -> bool {
        self.pushing.load(Ordering::Relaxed)
    }

    fn push(&self, on: bool) {
        self.pushing.store(on, Ordering::Relaxed);
        self.beat();
    }
}

fn now_milliseconds() -> u64 {
    u64::try_from(clock::now().monotonic().as_millis()).unwrap_or(u64::MAX)
}

/// Counts, bounds and renews the crate's exporter.
pub(super) struct Exporter {
    resolved: Arc<Resolved>,
    runtime: Handle,
    events: Arc<Events>,
    pulse: Arc<Pulse>,
    stop: watch::Receiver<bool>,
    remark: Remark,
    listener: Dispatch,
    built: Mutex<Option<Arc<MetricExporter>>>,
}

impl Exporter {
    pub(super) fn new(
        resolved: Arc<Resolved>,
        runtime: Handle,
        events: Arc<Events>,
        pulse: Arc<Pulse>,
        stop: watch::Receiver<bool>,
    ) -> Result<Self, OtlpError> {
        let remark = Remark::default();
        let built = transport::exporter(&resolved, &runtime, &remark)?;
        let listener = remark.listener();
        let built = Mutex::new(Some(Arc::new(built)));
        Ok(Self { resolved, runtime, events, pulse, stop, remark, listener, built })
    }

    fn built(&self) -> Result<Arc<MetricExporter>, OtlpError> {
        let mut built = self.built.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(built) = &*built {
            return Ok(Arc::clone(built));
        }
        let new = Arc::new(transport::exporter(&self.resolved, &self.runtime, &self.remark)?);
        Ok(Arc::clone(built.insert(new)))
    }

    async fn push(&self, metrics: &ResourceMetrics) -> Result<(), String> {
        let exporter = self.built().map_err(|error| chain(&error))?;
        self.remark.set(None);
        let mut stop = self.stop.clone();
        let limit = self.resolved.timeout;
        let pushed = tokio::select! {
            // First, because a runtime that ends must not be asked for the time.
            biased;
            _ = stop.wait_for(|stop| *stop) => return Err("given up, because memwarden ends".to_owned()),
            pushed = tokio::time::timeout(limit, exporter.export(metrics)) => pushed,
        };
        match (pushed, self.remark.take()) {
            (Ok(Ok(())), None) => Ok(()),
            (Err(_), None) => Err(format!("no answer within {limit:?}")),
            (Err(_), Some(remark)) => Err(format!("{remark} (tried for {limit:?})")),
            (Ok(_), Some(remark)) => Err(remark),
            (Ok(Err(OTelSdkError::InternalFailure(why))), None) => Err(why),
            (Ok(Err(error)), None) => Err(error.to_string()),
        }
    }
}

impl PushMetricExporter for Exporter {
    async fn export(&self, metrics: &ResourceMetrics) -> OTelSdkResult {
        self.pulse.push(true);
        let (runtime, listener) = (&self.runtime, &self.listener);
        let outcome = Within { runtime, listener, work: Box::pin(self.push(metrics)) }.await;
        self.pulse.push(false);
        match outcome {
            Ok(()) => {
                self.events.otlp_exported(clock::now());
                Ok(())
            }
            Err(why) => {
                *self.built.lock().unwrap_or_else(PoisonError::into_inner) = None;
                let why = self.resolved.hide(&why);
                self.events.otlp_failed(&why);
                Err(OTelSdkError::InternalFailure(why))
            }
        }
    }

    fn force_flush(&self) -> OTelSdkResult {
        Ok(())
    }

    fn shutdown_with_timeout(&self, _timeout: Duration) -> OTelSdkResult {
        *self.built.lock().unwrap_or_else(PoisonError::into_inner) = None;
        Ok(())
    }

    fn temporality(&self) -> Temporality {
        self.resolved.temporality
    }
}

/// An error with its causes.
pub(super) fn chain(error: &impl std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text.push_str(": ");
        text.push_str(&error.to_string());
        cause = error.source();
    }
    text
}

/// Polls work as if on the runtime, with the crates' log events going to the listener.
///
/// The SDK polls on a thread of its own, where tokio's timers find no runtime
/// and the crate would retry with the thread asleep, deaf to the time limit.
struct Within<'w, T> {
    runtime: &'w Handle,
    listener: &'w Dispatch,
    work: Pin<Box<dyn Future<Output = T> + Send + 'w>>,
}

impl<T> Future for Within<'_, T> {
    type Output = T;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<T> {
        let _runtime = self.runtime.enter();
        let listener = self.listener;
        tracing::dispatcher::with_default(listener, || self.work.as_mut().poll(context))
    }
}
