//! Events of the log as log records.

use std::time::Duration;

use opentelemetry_proto::tonic::common::v1::{KeyValue, any_value::Value};
use opentelemetry_proto::tonic::logs::v1::LogRecord;
use tracing_subscriber::layer::SubscriberExt as _;

use super::collector::{Behavior, Collector};
use super::world::{World, pushing};
use crate::config::{Otlp, OtlpProtocol};
use crate::model::finding::{Finding, Severity, Subject};
use crate::otlp::resolve::resolve;

const LONG: Duration = Duration::from_secs(20);

/// A world that pushes to the collector, and the subscriber of its log.
fn world(collector: &Collector) -> (World, super::super::Pusher, impl tracing::Subscriber + Send + Sync) {
    let world = World::new();
    let config = pushing(OtlpProtocol::HttpProtobuf, format!("http://{}", collector.address));
    let config = Otlp { headers: [("x-tenant".to_owned(), "12".to_owned())].into(), ..config };
    let pusher = world.start(&config).unwrap().unwrap();
    let log = tracing_subscriber::registry().with(world.logs.clone());
    (world, pusher, log)
}

fn text(attributes: &[KeyValue], key: &str) -> Option<String> {
    let found = attributes.iter().find(|attribute| attribute.key == key)?;
    match found.value.clone()?.value? {
        Value::StringValue(text) => Some(text),
        Value::IntValue(number) => Some(number.to_string()),
        other => Some(format!("{other:?}")),
    }
}

/// Name, severity and body of a record.
fn shown(record: &LogRecord) -> (String, i32, String) {
    let body = record.body.clone().and_then(|body| body.value);
    let Some(Value::StringValue(body)) = body else { panic!("{record:?}") };
    (record.event_name.clone(), record.severity_number, body)
}

#[test]
fn named_events_arrive_once_and_others_do_not() {
    let collector = Collector::start(OtlpProtocol::HttpProtobuf);
    let (world, pusher, log) = world(&collector);
    let finding = |severity| Finding {
        analyzer: "leak",
        subject: Subject::source("memory"),
        severity,
        state: "leaking",
        since_unix_seconds: 1.0,
        summary: "It leaks \u{1b}[2J.".to_owned(),
        evidence: Vec::new(),
        advice: "",
    };
    tracing::subscriber::with_default(log, || {
        world.events.found(&[finding(Severity::Critical)]);
        world.events.found(&[finding(Severity::Critical)]);
        world.events.found(&[]);
        world.events.config_refused("line 3");
        world.events.otlp_failed("not an event");
        tracing::info!(name: "memwarden.test", pid = 17_u32, share = 0.5, "A test.");
    });
    pusher.shutdown(LONG);
    let (headers, request) = collector.logs.recv_timeout(LONG).unwrap();
    assert_eq!(headers["x-tenant"], "12");
    let [resource] = &request.resource_logs[..] else { panic!("{request:?}") };
    let about = &resource.resource.as_ref().unwrap().attributes;
    assert_eq!(text(about, "service.name").as_deref(), Some("memwarden"));
    assert_eq!(text(about, "service.instance.id").as_deref(), Some("127.0.0.1:10636"));
    assert_eq!(text(about, "telemetry.sdk.name").as_deref(), Some("opentelemetry"));
    let records = &resource.scope_logs[0].log_records;
    let expected = [
        ("memwarden.finding", 17, "It leaks \\x1b[2J."),
        ("memwarden.finding.resolved", 9, "A finding was resolved."),
        ("memwarden.config.rejected", 17, "Configuration rejected; the previous one remains active."),
        ("memwarden.test", 9, "A test."),
    ];
    let expected = expected.map(|(name, number, body)| (name.to_owned(), number, body.to_owned()));
    assert_eq!(records.iter().map(shown).collect::<Vec<_>>(), expected);
    assert_eq!(text(&records[0].attributes, "memwarden.analyzer").as_deref(), Some("leak"));
    assert_eq!(text(&records[0].attributes, "memwarden.state").as_deref(), Some("leaking"));
    assert_eq!(text(&records[2].attributes, "error.message").as_deref(), Some("line 3"));
    assert_eq!(text(&records[3].attributes, "process.pid").as_deref(), Some("17"));
    assert!(records.iter().all(|record| record.time_unix_nano > 1_600_000_000_000_000_000));
    assert_eq!((world.records("exported"), world.records("dropped")), (4.0, 0.0));
}

#[test]
fn headers_of_metrics_are_not_sent_with_log_records() {
    let collector = Collector::start(OtlpProtocol::HttpProtobuf);
    let world = World::new();
    let variables = |name: &str| {
        let value = match name {
            "OTEL_EXPORTER_OTLP_HEADERS" => "general=1",
            "OTEL_EXPORTER_OTLP_METRICS_HEADERS" => "authorization=for-metrics",
            "OTEL_EXPORTER_OTLP_LOGS_HEADERS" => "authorization=for-logs",
            _ => return None,
        };
        Some(value.to_owned())
    };
    let config = pushing(OtlpProtocol::HttpProtobuf, format!("http://{}", collector.address));
    let config = Otlp { headers: [("x-tenant".to_owned(), "12".to_owned())].into(), ..config };
    let pusher = world.start_with(&config, &variables).unwrap().unwrap();
    let log = tracing_subscriber::registry().with(world.logs.clone());
    tracing::subscriber::with_default(log, || world.events.config_refused("line 3"));
    pusher.shutdown(LONG);
    let (headers, _) = collector.logs.recv_timeout(LONG).unwrap();
    assert_eq!(headers["authorization"], "for-logs");
    assert_eq!(headers["x-tenant"], "12");
    assert_eq!(headers["content-type"], "application/x-protobuf");
    assert!(!headers.contains_key("general"));

    let (resolved, _) = resolve(&config, &variables).unwrap();
    let resolved = resolved.unwrap();
    assert_eq!(resolved.headers["authorization"], "for-metrics");
    assert_eq!(resolved.hide("no for-logs, no for-metrics"), "no (hidden), no (hidden)");
    let general = |name: &str| variables(name).filter(|_| name != "OTEL_EXPORTER_OTLP_LOGS_HEADERS");
    let log_headers = resolve(&config, &general).unwrap().0.unwrap().log_headers;
    assert_eq!(log_headers["general"], "1");
    assert!(!log_headers.contains_key("authorization"));
}

#[test]
fn records_that_a_collector_refuses_are_counted() {
    let collector = Collector::start(OtlpProtocol::HttpProtobuf);
    collector.is(Behavior::Refuses(400, 3));
    let (world, pusher, log) = world(&collector);
    tracing::subscriber::with_default(log, || world.events.config_refused("line 3"));
    pusher.shutdown(LONG);
    assert_eq!((world.records("exported"), world.records("failed")), (0.0, 1.0));
}

#[test]
fn a_collector_that_does_not_answer_holds_no_thread_and_what_is_lost_is_counted() {
    let collector = Collector::start(OtlpProtocol::HttpProtobuf);
    collector.is(Behavior::Silent);
    let (world, pusher, log) = world(&collector);
    tracing::subscriber::with_default(log, || {
        for _ in 0..10_000 {
            world.events.config_refused("line 3");
        }
    });
    // Nothing was answered yet, so that all that the queue cannot hold is dropped.
    assert_eq!(world.records("dropped"), 10_000.0 - 2_048.0);
    assert_eq!(world.records("exported"), 0.0);
    drop(collector);
    pusher.shutdown(Duration::from_millis(10));
}

#[test]
fn log_records_go_beside_the_metrics() {
    let at = |config: &Otlp, variables: &[(&str, &str)]| {
        let read =
            |name: &str| variables.iter().find(|(key, _)| *key == name).map(|(_, value)| (*value).to_owned());
        resolve(config, &read).unwrap().0.unwrap().logs.map(|uri| uri.to_string())
    };
    let on = |endpoint: Option<&str>| Otlp {
        enabled: true,
        endpoint: endpoint.map(str::to_owned),
        ..Otlp::default()
    };
    let there = |text: &str| Some(text.to_owned());
    assert_eq!(at(&on(None), &[]), there("http://localhost:4318/v1/logs"));
    assert_eq!(at(&on(Some("http://c:1/otlp/v1/metrics")), &[]), there("http://c:1/otlp/v1/logs"));
    let own = ("OTEL_EXPORTER_OTLP_LOGS_ENDPOINT", "http://loki:1/otlp/v1/logs");
    assert_eq!(at(&on(None), &[own]), there("http://loki:1/otlp/v1/logs"));
    assert_eq!(at(&on(Some("http://c:1")), &[own]), there("http://c:1/v1/logs"));
    let metrics = ("OTEL_EXPORTER_OTLP_METRICS_ENDPOINT", "http://c:1/write");
    assert_eq!(at(&on(None), &[metrics]), None);
    let general = ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://all:1/otlp");
    let beside = ("OTEL_EXPORTER_OTLP_METRICS_ENDPOINT", "http://c:1/v1/metrics");
    assert_eq!(at(&on(None), &[beside]), there("http://c:1/v1/logs"));
    assert_eq!(at(&on(None), &[beside, general]), there("http://all:1/otlp/v1/logs"));
    assert_eq!(at(&on(None), &[beside, general, own]), there("http://loki:1/otlp/v1/logs"));
    assert_eq!(at(&on(Some("http://c:1")), &[general]), there("http://c:1/v1/logs"));
    assert_eq!(at(&on(None), &[("OTEL_LOGS_EXPORTER", "none")]), None);
    assert_eq!(at(&Otlp { logs: false, ..on(None) }, &[own]), None);
    let grpc = Otlp { protocol: Some(OtlpProtocol::Grpc), ..on(None) };
    assert_eq!(at(&grpc, &[]), None);
    assert_eq!(at(&grpc, &[own]), there("http://loki:1/otlp/v1/logs"));
}
