//! Collectors that are down, slow, refusing, or no collectors at all.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::time::Duration;

use opentelemetry_sdk::error::OTelSdkResult;
use opentelemetry_sdk::metrics::Temporality;
use opentelemetry_sdk::metrics::data::ResourceMetrics;
use opentelemetry_sdk::metrics::exporter::PushMetricExporter;

use super::super::exporter::Exporter;
use super::super::resolve::resolve;
use super::super::watch::Watch;
use super::super::watched;
use super::collector::{Collector, Mood};
use super::world::{BOTH, METRICS, SHARE, World, eventually, pushing};
use crate::config::{Otlp, OtlpProtocol};
use crate::host::clock;
use crate::model::units::Ratio;

fn world() -> World {
    let world = World::new();
    world.show(|batch| batch.put_some(&SHARE, &[], Ratio::new(1.0)));
    world
}

#[test]
fn pushing_resumes_when_the_collector_is_back() {
    for protocol in BOTH {
        let collector = Collector::start(protocol);
        let address = collector.address;
        let world = world();
        let pusher = world.start(&pushing(protocol, format!("http://{address}"))).unwrap().unwrap();
        eventually("the first push is taken", || world.taken() > 0.0);
        drop(collector);
        eventually("a push fails", || world.failed() > 0.0);
        let before = world.taken();
        let collector = Collector::at(address, protocol, None);
        eventually("a push is taken again", || world.taken() > before);
        drop(collector);
        pusher.shutdown(Duration::from_secs(5));
    }
}

#[test]
fn refusals_and_nonsense_are_failures_and_no_end() {
    for protocol in BOTH {
        let collector = Collector::start(protocol);
        let world = world();
        let config = Otlp {
            timeout: Some(Duration::from_millis(300)),
            ..pushing(protocol, format!("http://{}", collector.address))
        };
        let pusher = world.start(&config).unwrap().unwrap();
        for mood in [
            Mood::Refuses(400, tonic::Code::InvalidArgument.into()),
            Mood::Refuses(503, tonic::Code::Unavailable.into()),
            Mood::Refuses(302, tonic::Code::Unauthenticated.into()),
            Mood::TakesPart,
            Mood::Garbage,
            Mood::Endless,
            Mood::Silent,
        ] {
            collector.is(mood.clone());
            // A push that was on its way may still be taken.
            let failed = world.failed();
            eventually(&format!("{protocol:?} {mood:?} is counted"), || world.failed() >= failed + 2.0);
            collector.is(Mood::Takes);
            let taken = world.taken();
            eventually(&format!("{protocol:?} works after {mood:?}"), || world.taken() > taken);
        }
        pusher.shutdown(Duration::from_secs(5));
    }
}

#[test]
fn the_reason_of_a_failure_is_told() {
    // As the daemon has it: what the crates log is off, and their remarks are heard all the same.
    let quiet = tracing_subscriber::EnvFilter::new("error,opentelemetry=off");
    let _ = tracing_subscriber::fmt().with_env_filter(quiet).try_init();
    let reasons = |protocol: OtlpProtocol, mood: Mood| {
        let collector = Collector::start(protocol);
        let patience = if matches!(mood, Mood::Silent) { 200 } else { 20_000 };
        collector.is(mood);
        let world = world();
        let config = Otlp {
            timeout: Some(Duration::from_millis(patience)),
            headers: [("authorization".to_owned(), "Bearer s3cret".to_owned())].into(),
            ..pushing(protocol, format!("http://{}", collector.address))
        };
        let resolved = Arc::new(resolve(&config, &|_| None).unwrap().0.unwrap());
        let (_stop, stopped) = tokio::sync::watch::channel(false);
        let (runtime, events) = (world.runtime.handle().clone(), Arc::clone(&world.events));
        let inner = Exporter::new(resolved, runtime, events, Arc::default(), stopped).unwrap();
        let (out, told) = channel();
        let provider = world.plan(METRICS.to_vec()).start(Loud { inner, out });
        let text = told.recv_timeout(Duration::from_secs(20)).unwrap();
        let _ = provider.shutdown();
        text
    };
    for (protocol, mood, reason) in [
        (BOTH[0], Mood::TakesPart, "the collector refused 3 points of the push: too old"),
        (BOTH[1], Mood::TakesPart, "the collector refused 3 points of the push: too old"),
        (BOTH[1], Mood::Refuses(400, 3), "the collector answered 400 Bad Request: no access with (hidden)"),
        (BOTH[0], Mood::Refuses(400, 3), "InvalidArgument"),
        (BOTH[1], Mood::Garbage, "is no OTLP collector"),
        (BOTH[0], Mood::Silent, "no answer within 200ms"),
        (BOTH[1], Mood::Silent, "no answer within 200ms"),
    ] {
        let text = reasons(protocol, mood.clone());
        assert!(text.contains(reason), "{protocol:?} {mood:?}: {text}");
        assert!(!text.contains("s3cret"), "{text}");
    }
}

/// Tells the error of each push.
struct Loud {
    inner: Exporter,
    out: Sender<String>,
}

impl PushMetricExporter for Loud {
    async fn export(&self, metrics: &ResourceMetrics) -> OTelSdkResult {
        let outcome = self.inner.export(metrics).await;
        let _ = self.out.send(format!("{outcome:?}"));
        outcome
    }

    fn force_flush(&self) -> OTelSdkResult {
        Ok(())
    }

    fn shutdown_with_timeout(&self, timeout: Duration) -> OTelSdkResult {
        self.inner.shutdown_with_timeout(timeout)
    }

    fn temporality(&self) -> Temporality {
        self.inner.temporality()
    }
}

#[test]
fn something_that_does_not_speak_the_protocol_is_a_failure() {
    for protocol in BOTH {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let _ = std::io::Write::write_all(&mut stream.unwrap(), b"\xff\xfe SSH-2.0-nonsense\r\n\r\n");
            }
        });
        let world = world();
        let pusher = world.start(&pushing(protocol, format!("http://{address}"))).unwrap().unwrap();
        eventually("a push fails", || world.failed() >= 1.0);
        pusher.shutdown(Duration::from_secs(5));
        assert_eq!(world.taken(), 0.0);
    }
}

#[test]
fn shutdown_keeps_its_deadline() {
    for protocol in BOTH {
        let collector = Collector::start(protocol);
        collector.is(Mood::Silent);
        let world = world();
        let pusher =
            world.start(&pushing(protocol, format!("http://{}", collector.address))).unwrap().unwrap();
        collector.next();
        let begun = clock::now();
        pusher.shutdown(Duration::from_millis(200));
        let took = clock::now().since(begun);
        assert!(took < Duration::from_secs(2), "{took:?}");
        eventually("the push that ran is given up", || world.failed() >= 1.0);
    }
}

/// Ends the thread of the SDK at its first push, then takes everything.
struct Fragile {
    pushes: Arc<AtomicU32>,
}

impl PushMetricExporter for Fragile {
    async fn export(&self, _: &ResourceMetrics) -> OTelSdkResult {
        assert!(self.pushes.fetch_add(1, Ordering::SeqCst) > 0, "as a defect would");
        Ok(())
    }

    fn force_flush(&self) -> OTelSdkResult {
        Ok(())
    }

    fn shutdown_with_timeout(&self, _: Duration) -> OTelSdkResult {
        Ok(())
    }

    fn temporality(&self) -> Temporality {
        Temporality::Cumulative
    }
}

#[test]
fn a_thread_that_died_is_replaced() {
    let world = world();
    let plan = world.plan(METRICS.to_vec());
    let (interval, pulse) = (plan.interval, Arc::clone(&plan.pulse));
    let pushes = Arc::new(AtomicU32::new(0));
    let exporter = Arc::clone(&pushes);
    let start = move || Ok(plan.start(Fragile { pushes: Arc::clone(&exporter) }));
    let provider = start().unwrap();
    let (stop, _) = tokio::sync::watch::channel(false);
    let events = Arc::clone(&world.events);
    let limit = Duration::from_millis(100);
    let watch =
        Watch { start: Box::new(start), provider, events, pulse, stop: stop.clone(), interval, limit };
    world.events.otlp_started("test", "test");
    let pusher = watched(watch, stop).unwrap();
    eventually("the second thread pushes", || pushes.load(Ordering::SeqCst) > 2);
    assert!(world.failed() >= 1.0);
    pusher.shutdown(Duration::from_secs(5));
}
