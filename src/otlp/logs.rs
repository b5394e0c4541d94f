//! Events of the daemon's log as OpenTelemetry log records.
//!
//! The log is the only source: an event whose name begins with [`PREFIX`] is a record too. The batch processor of the SDK
//! exports on a thread of its own; what it has no room for is dropped and counted, so that no thread waits for a collector.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, UNIX_EPOCH};

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::Full;
use opentelemetry::logs::{AnyValue, LogRecord as _, Logger as _, LoggerProvider as _, Severity};
use opentelemetry::{Key, KeyValue};
use opentelemetry_http::HttpError;
use opentelemetry_otlp::{Compression, LogExporter, Protocol, WithExportConfig as _, WithHttpConfig as _};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::error::OTelSdkResult;
use opentelemetry_sdk::logs::{
    BatchConfigBuilder, BatchLogProcessor, LogBatch, SdkLogger, SdkLoggerProvider,
};
use tokio::runtime::Handle;
use tracing::field::{Field, Visit};
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::Layer;
use tracing_subscriber::layer::Context;

use super::client::LARGEST_ANSWER;
use super::resolve::Resolved;
use super::resource;
use crate::events::{Events, LogRecords};
use crate::host::clock;
use crate::host::http_client::{HttpClient, Version};
use crate::model::finding;
use crate::model::lock::lock;
use crate::model::printable;

/// How the names of the events that are records begin.
const PREFIX: &str = "memwarden.";
/// Records that wait for the export at most.
const QUEUE: usize = 2048;
/// Time between two exports.
const INTERVAL: Duration = Duration::from_secs(1);

/// Passes named events of the log to the exporter that runs, if any.
#[derive(Clone, Debug, Default)]
pub struct LogTap(Arc<Mutex<Option<Arc<Active>>>>);

struct Active {
    logger: SdkLogger,
    waiting: Arc<AtomicUsize>,
    events: Arc<Events>,
}

impl fmt::Debug for Active {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Active").field("waiting", &self.waiting).finish_non_exhaustive()
    }
}

impl<S: Subscriber> Layer<S> for LogTap {
    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        let metadata = event.metadata();
        if !metadata.name().starts_with(PREFIX) {
            return;
        }
        let Some(active) = lock(&self.0).clone() else { return };
        if active.waiting.fetch_add(1, Ordering::Relaxed) >= QUEUE {
            active.waiting.fetch_sub(1, Ordering::Relaxed);
            active.events.otlp_logs(LogRecords::Dropped, 1);
            return;
        }
        let mut record = active.logger.create_log_record();
        record.set_event_name(metadata.name());
        record.set_timestamp(UNIX_EPOCH + clock::now().unix());
        record.set_severity_text(metadata.level().as_str());
        record.set_severity_number(severity(*metadata.level()));
        event.record(&mut Fields(&mut record));
        active.logger.emit(record);
    }
}

const fn severity(level: Level) -> Severity {
    match level {
        Level::ERROR => Severity::Error,
        Level::WARN => Severity::Warn,
        Level::INFO => Severity::Info,
        Level::DEBUG => Severity::Debug,
        Level::TRACE => Severity::Trace,
    }
}

/// The attribute of a field: that of the semantic conventions, else the field below memwarden's own name.
fn attribute(field: &str) -> Key {
    match field {
        "pid" => Key::from_static_str("process.pid"),
        "user" => Key::from_static_str("process.user.id"),
        "error" => Key::from_static_str("error.message"),
        "file" => Key::from_static_str("file.path"),
        own => Key::from(format!("{PREFIX}{own}")),
    }
}

/// Adds the fields of an event to a record; the message is its body.
struct Fields<'a, R>(&'a mut R);

impl<R: opentelemetry::logs::LogRecord> Fields<'_, R> {
    fn put(&mut self, field: &Field, value: impl Into<AnyValue>) {
        if field.name() == "message" {
            self.0.set_body(value.into());
        } else {
            self.0.add_attribute(attribute(field.name()), value);
        }
    }
}

impl<R: opentelemetry::logs::LogRecord> Visit for Fields<'_, R> {
    fn record_f64(&mut self, field: &Field, value: f64) {
        self.put(field, value);
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        self.put(field, value);
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        match i64::try_from(value) {
            Ok(value) => self.put(field, value),
            Err(_) => self.put(field, value.to_string()),
        }
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        self.put(field, value);
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        // A critical finding is a warning in the log, whose errors are those of memwarden itself.
        if (field.name(), value) == ("severity", finding::Severity::Critical.label()) {
            self.0.set_severity_text("ERROR");
            self.0.set_severity_number(Severity::Error);
        }
        self.put(field, printable::escaped(value).into_owned());
    }

    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.record_str(field, &format!("{value:?}"));
    }
}

/// The export of log records; ended by [`LogExport::shutdown`].
#[derive(Debug)]
pub(super) struct LogExport(SdkLoggerProvider);

impl LogExport {
    /// Exports what waits, for at most `deadline`.
    pub(super) fn shutdown(self, deadline: Duration) {
        // What could not be sent is counted by the exporter.
        let _ = self.0.shutdown_with_timeout(deadline);
    }
}

impl LogTap {
    /// Starts the export to the endpoint for logs, which replaces an earlier one; without an endpoint, nothing is passed on.
    pub(super) fn start(
        &self,
        resolved: Option<&Arc<Resolved>>,
        events: &Arc<Events>,
        runtime: &Handle,
        instance: &str,
    ) -> Option<LogExport> {
        let export = resolved.and_then(|resolved| {
            let endpoint = resolved.logs.as_ref()?;
            let mut builder = LogExporter::builder()
                .with_http()
                .with_http_client(Transport { resolved: Arc::clone(resolved), runtime: runtime.clone() })
                .with_endpoint(endpoint.to_string())
                .with_protocol(Protocol::HttpBinary)
                .with_timeout(resolved.timeout);
            if resolved.gzip {
                builder = builder.with_compression(Compression::Gzip);
            }
            let exporter = builder
                .build()
                .inspect_err(|error| events.otlp_logs_failed(0, &resolved.hide(&error.to_string())))
                .ok()?;
            Some((exporter, Arc::clone(resolved)))
        });
        let active = export.map(|(exporter, resolved)| {
            let waiting = Arc::default();
            let attributes = resource::attributes(&resolved.resource, instance.to_owned());
            let attributes = attributes.into_iter().filter(|(key, _)| !key.starts_with("telemetry.sdk."));
            let resource = Resource::builder()
                .with_attributes(attributes.map(|(key, value)| KeyValue::new(key, value)))
                .build();
            let config = BatchConfigBuilder::default()
                .with_max_queue_size(QUEUE)
                .with_scheduled_delay(INTERVAL)
                .build();
            let exporter =
                Counted { exporter, resolved, waiting: Arc::clone(&waiting), events: Arc::clone(events) };
            let processor = BatchLogProcessor::builder(exporter).with_batch_config(config).build();
            let provider =
                SdkLoggerProvider::builder().with_resource(resource).with_log_processor(processor).build();
            let logger = provider.logger(env!("CARGO_PKG_NAME"));
            (Arc::new(Active { logger, waiting, events: Arc::clone(events) }), LogExport(provider))
        });
        let (active, export) = active.unzip();
        *lock(&self.0) = active;
        export
    }
}

/// Counts what was exported.
#[derive(Debug)]
struct Counted {
    exporter: LogExporter,
    resolved: Arc<Resolved>,
    waiting: Arc<AtomicUsize>,
    events: Arc<Events>,
}

impl opentelemetry_sdk::logs::LogExporter for Counted {
    async fn export(&self, batch: LogBatch<'_>) -> OTelSdkResult {
        let count = batch.iter().count();
        let result = self.exporter.export(batch).await;
        self.waiting.fetch_sub(count, Ordering::Relaxed);
        match &result {
            Ok(()) => self.events.otlp_logs(LogRecords::Exported, count),
            Err(error) => self.events.otlp_logs_failed(count, &self.resolved.hide(&error.to_string())),
        }
        result
    }

    fn shutdown_with_timeout(&self, timeout: Duration) -> OTelSdkResult {
        self.exporter.shutdown_with_timeout(timeout)
    }

    fn set_resource(&mut self, resource: &Resource) {
        self.exporter.set_resource(resource);
    }
}

/// Sends a request as pushes of metrics are sent: with their headers, certificates and limits. Certificates are read for
/// each request, so that renewed ones are used.
struct Transport {
    resolved: Arc<Resolved>,
    runtime: Handle,
}

impl fmt::Debug for Transport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Transport").finish_non_exhaustive()
    }
}

impl opentelemetry_http::HttpClient for Transport {
    fn send_bytes<'a, 'f>(
        &'a self,
        mut request: Request<Bytes>,
    ) -> Pin<Box<dyn Future<Output = Result<Response<Bytes>, HttpError>> + Send + 'f>>
    where
        'a: 'f,
        Self: 'f,
    {
        let resolved = Arc::clone(&self.resolved);
        // The thread of the batch processor has no runtime.
        let answer = self.runtime.spawn(async move {
            let Resolved { trust, identity, timeout, headers, .. } = &*resolved;
            let uri = request.uri().clone();
            let client =
                HttpClient::of(&uri, trust, identity.as_ref(), Version::Http1Once, LARGEST_ANSWER, *timeout)?;
            for (name, value) in headers {
                request.headers_mut().insert(name, value.clone());
            }
            let (head, body) = client.answer(request.map(Full::new)).await?;
            Ok::<_, HttpError>(Response::from_parts(head, body?.to_bytes()))
        });
        Box::pin(async move { answer.await? })
    }
}
