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
use http::header::{CONTENT_ENCODING, CONTENT_TYPE, USER_AGENT};
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
use crate::model::error_chain::error_chain;
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
            let failure = Failure::default();
            let transport = Transport {
                resolved: Arc::clone(resolved),
                runtime: runtime.clone(),
                failure: Arc::clone(&failure),
            };
            let mut builder = LogExporter::builder()
                .with_http()
                .with_http_client(transport)
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
            Some((exporter, Arc::clone(resolved), failure))
        });
        let active = export.map(|(exporter, resolved, failure)| {
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
            let (waits, events) = (Arc::clone(&waiting), Arc::clone(events));
            let exporter =
                Counted { exporter, resolved, failure, waiting: waits, events: Arc::clone(&events) };
            let processor = BatchLogProcessor::builder(exporter).with_batch_config(config).build();
            let provider =
                SdkLoggerProvider::builder().with_resource(resource).with_log_processor(processor).build();
            let logger = provider.logger(env!("CARGO_PKG_NAME"));
            (Arc::new(Active { logger, waiting, events }), LogExport(provider))
        });
        let (active, export) = active.unzip();
        *lock(&self.0) = active;
        export
    }
}

/// Why the last request failed, which the exporter does not pass on; absent where it was answered.
type Failure = Arc<Mutex<Option<String>>>;

/// Counts what was exported.
#[derive(Debug)]
struct Counted {
    exporter: LogExporter,
    resolved: Arc<Resolved>,
    failure: Failure,
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
            Err(error) => {
                let why = lock(&self.failure).take().unwrap_or_else(|| error.to_string());
                self.events.otlp_logs_failed(count, &self.resolved.hide(&why));
            }
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

/// Sends a request as pushes of metrics are sent: with their certificates and limits. Certificates are read for each
/// request, so that renewed ones are used.
struct Transport {
    resolved: Arc<Resolved>,
    runtime: Handle,
    failure: Failure,
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
            let Resolved { trust, identity, timeout, log_headers, .. } = &*resolved;
            let uri = request.uri().clone();
            let client =
                HttpClient::of(&uri, trust, identity.as_ref(), Version::Http1Once, LARGEST_ANSWER, *timeout)?;
            // The exporter has added those of the environment, without the checks of `env`.
            let mut headers = std::mem::replace(request.headers_mut(), log_headers.clone());
            for name in [CONTENT_TYPE, CONTENT_ENCODING, USER_AGENT] {
                if let Some(value) = headers.remove(&name) {
                    request.headers_mut().entry(name).or_insert(value);
                }
            }
            let (head, body) = client.answer(request.map(Full::new)).await?;
            Ok::<_, HttpError>(Response::from_parts(head, body?.to_bytes()))
        });
        let failure = Arc::clone(&self.failure);
        Box::pin(async move {
            let answer = answer.await.unwrap_or_else(|error| Err(error.into()));
            *lock(&failure) = answer.as_ref().err().map(|error| error_chain(&**error));
            answer
        })
    }
}

#[cfg(test)]
mod tests {
    use opentelemetry_http::HttpClient as _;

    use super::super::resolve::resolve;
    use super::*;
    use crate::config::Otlp;

    #[test]
    fn the_reason_of_a_failed_request_is_kept_until_one_is_answered() {
        let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
        let resolved = resolve(&Otlp { enabled: true, ..Otlp::default() }, &|_| None).unwrap().0.unwrap();
        let failure = Failure::default();
        let transport = Transport {
            resolved: Arc::new(resolved),
            runtime: runtime.handle().clone(),
            failure: Arc::clone(&failure),
        };
        // Nothing listens on port 1.
        let request = Request::post("http://127.0.0.1:1/v1/logs").body(Bytes::new()).unwrap();
        assert!(runtime.block_on(transport.send_bytes(request)).is_err());
        let why = lock(&failure).clone().unwrap();
        assert!(why.contains("refused"), "{why}");
    }
}
