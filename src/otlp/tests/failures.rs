//! Collectors that are down, slow, refusing, or not collectors.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use super::super::begin;
use super::super::framing::Verdict;
use super::super::resolve::resolve;
use super::collector::{Behavior, Collector};
use super::world::{BOTH, SHARE, World, eventually, pushing};
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
fn refusals_and_invalid_answers_are_failures_and_pushing_continues() {
    for protocol in BOTH {
        let collector = Collector::start(protocol);
        let world = world();
        let config = Otlp {
            timeout: Some(Duration::from_millis(300)),
            ..pushing(protocol, format!("http://{}", collector.address))
        };
        let pusher = world.start(&config).unwrap().unwrap();
        for behavior in [
            Behavior::Refuses(400, tonic::Code::InvalidArgument.into()),
            Behavior::Refuses(503, tonic::Code::Unavailable.into()),
            Behavior::Refuses(302, tonic::Code::Unauthenticated.into()),
            Behavior::TakesPart,
            Behavior::Garbage,
            Behavior::Endless,
            Behavior::Silent,
        ] {
            collector.is(behavior.clone());
            // A push in progress may still be accepted.
            let failed = world.failed();
            eventually(&format!("{protocol:?} {behavior:?} is counted"), || world.failed() >= failed + 2.0);
            collector.is(Behavior::Takes);
            let taken = world.taken();
            eventually(&format!("{protocol:?} works after {behavior:?}"), || world.taken() > taken);
        }
        pusher.shutdown(Duration::from_secs(5));
    }
}

#[test]
fn the_reason_of_a_failure_is_reported() {
    let reasons = |protocol: OtlpProtocol, behavior: Behavior| {
        let collector = Collector::start(protocol);
        let patience = if matches!(behavior, Behavior::Silent) { 200 } else { 20_000 };
        collector.is(behavior);
        let world = world();
        let config = Otlp {
            timeout: Some(Duration::from_millis(patience)),
            headers: [("authorization".to_owned(), "Bearer s3cret".to_owned())].into(),
            ..pushing(protocol, format!("http://{}", collector.address))
        };
        let verdict = world.runtime.block_on(world.sender(&config).push());
        let Some(Verdict::Refused { why, .. } | Verdict::Partly(why)) = verdict else {
            panic!("{verdict:?}");
        };
        resolve(&config, &|_| None).unwrap().0.unwrap().hide(&why)
    };
    for (protocol, behavior, reason) in [
        (BOTH[0], Behavior::TakesPart, "the collector rejected 3 points of the export: too old"),
        (BOTH[1], Behavior::TakesPart, "the collector rejected 3 points of the export: too old"),
        (
            BOTH[1],
            Behavior::Refuses(400, 3),
            "the collector responded 400 Bad Request: no access with (hidden)",
        ),
        (BOTH[0], Behavior::Refuses(400, 3), "InvalidArgument"),
        (BOTH[1], Behavior::Garbage, "is not an OTLP collector"),
        (BOTH[0], Behavior::Silent, "no response within 200ms"),
        (BOTH[1], Behavior::Silent, "no response within 200ms"),
    ] {
        let text = reasons(protocol, behavior.clone());
        assert!(text.contains(reason), "{protocol:?} {behavior:?}: {text}");
        assert!(!text.contains("s3cret"), "{text}");
    }
}

#[test]
fn a_server_of_another_protocol_is_a_failure() {
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
fn shutdown_ends_within_its_deadline() {
    for protocol in BOTH {
        let collector = Collector::start(protocol);
        collector.is(Behavior::Silent);
        let world = world();
        let pusher =
            world.start(&pushing(protocol, format!("http://{}", collector.address))).unwrap().unwrap();
        collector.next();
        let begun = clock::now();
        pusher.shutdown(Duration::from_millis(200));
        let took = clock::now().since(begun);
        // Before the 10 s of the push are over.
        assert!(took < Duration::from_secs(8), "{took:?}");
        eventually("the push that ran is given up", || world.failed() >= 1.0);
    }
}

#[test]
fn a_push_that_panics_is_counted_and_pushing_continues() {
    let world = world();
    let resolved = resolve(&pushing(BOTH[1], "http://127.0.0.1:1".to_owned()), &|_| None).unwrap().0.unwrap();
    let pushes = Arc::new(AtomicU32::new(0));
    let counted = Arc::clone(&pushes);
    let push = move || {
        let pushes = Arc::clone(&counted);
        async move {
            assert!(pushes.fetch_add(1, Ordering::SeqCst) > 0, "as a defect would");
            Some(Verdict::Taken)
        }
    };
    world.events.otlp_started("test", "test");
    let pusher = begin(push, Arc::new(resolved), Arc::clone(&world.events), world.runtime.handle());
    eventually("pushing continues", || pushes.load(Ordering::SeqCst) > 2 && world.taken() > 0.0);
    assert_eq!(world.failed(), 1.0);
    pusher.shutdown(Duration::from_secs(5));
}

/// Pushes with the given results; returns the start of each in milliseconds on a paused clock.
async fn times(interval: Duration, verdicts: Vec<Verdict>) -> Vec<Duration> {
    let config = Otlp { interval: Some(interval), ..pushing(BOTH[1], "http://127.0.0.1:1".to_owned()) };
    let resolved = resolve(&config, &|_| None).unwrap().0.unwrap();
    let begun = tokio::time::Instant::now();
    let (out, mut times) = tokio::sync::mpsc::unbounded_channel();
    let verdicts = std::sync::Mutex::new(verdicts.into_iter());
    let push = move || {
        let verdict = verdicts.lock().unwrap().next();
        let _ = out.send(begun.elapsed());
        async move { verdict }
    };
    let pusher = begin(push, Arc::new(resolved), Arc::default(), &tokio::runtime::Handle::current());
    let mut found = Vec::new();
    while found.len() < 4 {
        found.extend(times.recv().await);
    }
    drop(pusher);
    found
}

#[tokio::test(start_paused = true)]
async fn transient_failures_are_retried_before_the_next_push() {
    let seconds = Duration::from_secs;
    let refused = |again| Verdict::Refused { why: "no".to_owned(), again };
    let at =
        times(seconds(60), vec![refused(Some(seconds(0))), refused(Some(seconds(0))), Verdict::Taken]).await;
    assert!(!at[0].is_zero() && at[0] <= seconds(60), "{at:?}");
    let waits = [at[1] - at[0], at[2] - at[1]];
    assert!((seconds(1) / 2..=seconds(2)).contains(&waits[0]), "{at:?}");
    assert!((seconds(1)..=seconds(3)).contains(&waits[1]), "{at:?}");
    // Later pushes follow the regular interval.
    let later = |at: &[Duration], place: usize| (at[place] - at[0]).as_secs_f64().round();
    assert_eq!(later(&at, 3), 60.0, "{at:?}");
    // The delay that a collector requests is kept, and failures that cannot succeed are not retried.
    let at = times(seconds(10), vec![refused(Some(seconds(25))), refused(None), Verdict::Taken]).await;
    assert_eq!([1, 2].map(|place| later(&at, place)), [25.0, 35.0], "{at:?}");
    let at = times(seconds(10), vec![refused(Some(seconds(86_400)))]).await;
    assert_eq!(later(&at, 1), 300.0, "{at:?}");
}
