//! Received names, values and attributes, and series that are no longer sent.

use std::time::Duration;

use super::collector::Collector;
use super::world::{BOTH, FAULTS, MINOR, SHARE, USED, World, lines, pushing, resource};
use crate::config::{Otlp, OtlpNames};
use crate::model::units::{Bytes, Count, Ratio};

#[test]
fn the_same_names_and_values_arrive_by_both_transports() {
    let expected = expect_test::expect![[r#"
        hw.gpu.memory.usage{gpu="0",hw.id="GPU-a",hw.type="gpu"} 9007199254740991 sum(false, AGGREGATION_TEMPORALITY_CUMULATIVE) By
        memwarden.test.faults{pid="7"} 3 sum(true, AGGREGATION_TEMPORALITY_CUMULATIVE) {fault}
        memwarden.test.memory.used{gpu="0",uuid="GPU-a"} 9007199254740991 gauge By
        memwarden.test.memory.used{} 0.1 gauge 1
        memwarden.test.minor.faults{pid="7"} 4 sum(true, AGGREGATION_TEMPORALITY_CUMULATIVE) {fault}
        process.paging.faults{process.pid=7,type="major"} 3 sum(true, AGGREGATION_TEMPORALITY_CUMULATIVE) {fault}
        process.paging.faults{process.pid=7,type="minor"} 4 sum(true, AGGREGATION_TEMPORALITY_CUMULATIVE) {fault}"#]];
    for protocol in BOTH {
        let collector = Collector::start(protocol);
        let world = World::new();
        world.show(|batch| {
            batch.put(&USED, &["GPU-a".into(), "0".into()], Bytes::new((1 << 53) - 1));
            batch.put_some(&SHARE, &[], Ratio::new(0.1));
            batch.put(&FAULTS, &["7".into()], Count(3));
            batch.put(&MINOR, &["7".into()], Count(4));
        });
        let pusher =
            world.start(&pushing(protocol, format!("http://{}", collector.address))).unwrap().unwrap();
        // The second push has cumulative sums that must not have been added up.
        collector.next();
        let push = collector.next();
        expected.assert_eq(&lines(&push.request).join("\n"));
        let metrics = &push.request.resource_metrics[0].scope_metrics[0].metrics;
        let faults = metrics.iter().find(|metric| metric.name == "memwarden.test.faults").unwrap();
        assert_eq!(faults.description, "Faults.");
        pusher.shutdown(Duration::from_secs(5));
    }
}

#[test]
fn names_follow_the_setting() {
    let protocol = BOTH[1];
    for (names, expected) in [
        (OtlpNames::Memwarden, ["memwarden.test.memory.used", "memwarden.test.memory.used"].as_slice()),
        (OtlpNames::Semconv, &["hw.gpu.memory.usage", "memwarden.test.memory.used"]),
        (
            OtlpNames::Both,
            &["hw.gpu.memory.usage", "memwarden.test.memory.used", "memwarden.test.memory.used"],
        ),
    ] {
        let collector = Collector::start(protocol);
        let world = World::new();
        world.show(|batch| {
            batch.put(&USED, &["a".into(), "0".into()], Bytes::new(1));
            batch.put_some(&SHARE, &[], Ratio::new(0.5));
        });
        let config = Otlp { names, ..pushing(protocol, format!("http://{}", collector.address)) };
        let pusher = world.start(&config).unwrap().unwrap();
        let arrived = lines(&collector.next().request);
        let arrived: Vec<_> = arrived.iter().map(|line| line.split('{').next().unwrap()).collect();
        assert_eq!(arrived, expected);
        pusher.shutdown(Duration::from_secs(5));
    }
}

#[test]
fn a_series_that_disappeared_is_not_sent_again() {
    for protocol in BOTH {
        let collector = Collector::start(protocol);
        let world = World::new();
        let put = |pids: &[u32]| {
            world.show(|batch| {
                for pid in pids {
                    batch.put(&FAULTS, &[(*pid).into()], Count(1));
                    batch.put(&USED, &[(*pid).into(), "0".into()], Bytes::new(1));
                }
            });
        };
        put(&[1, 2]);
        let pusher =
            world.start(&pushing(protocol, format!("http://{}", collector.address))).unwrap().unwrap();
        assert_eq!(lines(&collector.next().request).len(), 8);
        put(&[2]);
        let push = collector.next_where(|push| lines(&push.request).len() != 8);
        let left = lines(&push.request);
        assert_eq!(left.len(), 4, "{left:?}");
        assert!(left.iter().all(|line| line.contains("=2") || line.contains("=\"2\"")), "{left:?}");
        pusher.shutdown(Duration::from_secs(5));
    }
}

#[test]
fn nothing_is_sent_before_the_first_frame() {
    let collector = Collector::start(BOTH[1]);
    let world = World::new();
    let pusher = world.start(&pushing(BOTH[1], format!("http://{}", collector.address))).unwrap().unwrap();
    assert!(collector.pushes.recv_timeout(Duration::from_millis(300)).is_err());
    assert_eq!((world.taken(), world.failed()), (0.0, 0.0));
    world.show(|batch| batch.put_some(&SHARE, &[], Ratio::new(1.0)));
    collector.next();
    pusher.shutdown(Duration::from_secs(5));
}

#[test]
fn a_metric_with_a_large_budget_arrives_complete() {
    let collector = Collector::start(BOTH[1]);
    let world = World::new();
    world.show(|batch| {
        for pid in 0..5_000_u32 {
            batch.put(&FAULTS, &[pid.into()], Count(1));
        }
        for pid in 0..2_000_u32 {
            batch.put(&MINOR, &[pid.into()], Count(1));
        }
    });
    let pusher = world.start(&pushing(BOTH[1], format!("http://{}", collector.address))).unwrap().unwrap();
    let arrived = lines(&collector.next().request);
    assert_eq!(arrived.len(), 2 * 7_000);
    assert!(!arrived.iter().any(|line| line.contains("overflow")));
    pusher.shutdown(Duration::from_secs(20));
}

#[test]
fn the_newest_frame_is_pushed_at_shutdown() {
    for protocol in BOTH {
        let collector = Collector::start(protocol);
        let world = World::new();
        let config = Otlp {
            interval: Some(Duration::from_secs(3600)),
            ..pushing(protocol, format!("http://{}", collector.address))
        };
        let pusher = world.start(&config).unwrap().unwrap();
        world.show(|batch| batch.put_some(&SHARE, &[], Ratio::new(0.25)));
        pusher.shutdown(Duration::from_secs(20));
        assert_eq!(lines(&collector.next().request), ["memwarden.test.memory.used{} 0.25 gauge 1"]);
        assert_eq!(world.taken(), 1.0);
    }
}

#[test]
fn resource_headers_and_gzip_arrive() {
    for protocol in BOTH {
        let collector = Collector::start(protocol);
        let world = World::new();
        world.show(|batch| batch.put_some(&SHARE, &[], Ratio::new(1.0)));
        let address = collector.address;
        let env = move |name: &str| {
            Some(match name {
                "OTEL_EXPORTER_OTLP_ENDPOINT" => format!("http://{address}/base"),
                "OTEL_EXPORTER_OTLP_PROTOCOL" if protocol == BOTH[0] => "grpc".to_owned(),
                "OTEL_METRIC_EXPORT_INTERVAL" => "50".to_owned(),
                "OTEL_EXPORTER_OTLP_HEADERS" => "Authorization=Bearer%20s3cret,tenant=a".to_owned(),
                "OTEL_EXPORTER_OTLP_COMPRESSION" => "gzip".to_owned(),
                "OTEL_RESOURCE_ATTRIBUTES" => {
                    "service.name=x,host.name=node%2C1,deployment.environment.name=prod".to_owned()
                }
                "OTEL_SERVICE_NAME" => "training".to_owned(),
                _ => return None,
            })
        };
        let pusher = world.start_with(&Otlp::default(), &env).unwrap().unwrap();
        let push = collector.next();
        pusher.shutdown(Duration::from_secs(5));
        assert_eq!(push.headers["authorization"], "Bearer s3cret");
        assert_eq!(push.headers["tenant"], "a");
        let (encoding, path) = if protocol == BOTH[0] {
            ("grpc-encoding", "")
        } else {
            ("content-encoding", "/base/v1/metrics")
        };
        assert_eq!((push.headers[encoding].to_str().unwrap(), push.path.as_str()), ("gzip", path));
        assert!(push.headers["user-agent"].to_str().unwrap().starts_with("memwarden/"), "{:?}", push.headers);
        let found = resource(&push.request);
        for wanted in [
            "deployment.environment.name=\"prod\"",
            "host.name=\"node,1\"",
            "service.instance.id=\"127.0.0.1:10636\"",
            "service.name=\"training\"",
            "telemetry.sdk.language=\"rust\"",
        ] {
            assert!(found.iter().any(|pair| pair == wanted), "{wanted} is not in {found:?}");
        }
    }
}

/// Also run by the next test, with contradicting variables of the process.
#[test]
fn only_configured_headers_arrive() {
    for protocol in BOTH {
        let collector = Collector::start(protocol);
        let world = World::new();
        world.show(|batch| batch.put_some(&SHARE, &[], Ratio::new(1.0)));
        let config = Otlp {
            headers: [("tenant".to_owned(), "own".to_owned())].into(),
            ..pushing(protocol, format!("http://{}", collector.address))
        };
        let pusher = world.start(&config).unwrap().unwrap();
        let push = collector.next();
        pusher.shutdown(Duration::from_secs(5));
        assert_eq!(push.headers.get_all("tenant").iter().collect::<Vec<_>>(), ["own"]);
        assert!(!push.headers.contains_key("stray"));
        let names = resource(&push.request);
        assert!(names.contains(&"service.name=\"memwarden\"".to_owned()), "{names:?}");
        assert!(!names.iter().any(|name| name.starts_with("stray")), "{names:?}");
    }
}

#[test]
fn variables_are_read_only_through_the_settings() {
    #[expect(clippy::disallowed_methods, reason = "the environment of this process cannot be changed")]
    let child = std::process::Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "otlp::tests::values::only_configured_headers_arrive"])
        .env("OTEL_EXPORTER_OTLP_HEADERS", "tenant=other,stray=1")
        .env("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:1")
        .env("OTEL_EXPORTER_OTLP_PROTOCOL", "http/json")
        .env("OTEL_EXPORTER_OTLP_TIMEOUT", "1")
        .env("OTEL_METRIC_EXPORT_INTERVAL", "3600000")
        .env("OTEL_SERVICE_NAME", "other")
        .env("OTEL_RESOURCE_ATTRIBUTES", "stray=1")
        .output()
        .unwrap();
    let output = String::from_utf8_lossy(&child.stdout);
    assert!(child.status.success() && output.contains("1 passed"), "{output}");
}

#[test]
fn a_dropped_pusher_stops_pushing() {
    let collector = Collector::start(BOTH[1]);
    let world = World::new();
    world.show(|batch| batch.put_some(&SHARE, &[], Ratio::new(1.0)));
    let pusher = world.start(&pushing(BOTH[1], format!("http://{}", collector.address))).unwrap().unwrap();
    collector.next();
    drop(pusher);
    while collector.pushes.recv_timeout(Duration::from_millis(300)).is_ok() {}
}

#[test]
fn one_push_is_of_one_frame() {
    let collector = Collector::start(BOTH[1]);
    let world = World::new();
    let config = Otlp {
        interval: Some(Duration::from_millis(10)),
        ..pushing(BOTH[1], format!("http://{}", collector.address))
    };
    let pusher = world.start(&config).unwrap().unwrap();
    let (mut pushes, mut frame) = (0, 0_u32);
    while pushes < 20 {
        frame += 1;
        world.show(|batch| {
            batch.put(&USED, &["a".into(), "0".into()], Bytes::new(frame.into()));
            batch.put_some(&SHARE, &[], Ratio::new(frame.into()));
            batch.put(&FAULTS, &["1".into()], Count(frame.into()));
            batch.put(&MINOR, &["1".into()], Count(frame.into()));
        });
        let Ok(push) = collector.pushes.try_recv() else { continue };
        pushes += 1;
        let arrived = lines(&push.request);
        let values: std::collections::BTreeSet<_> =
            arrived.iter().map(|line| line.split("} ").nth(1).unwrap().split(' ').next().unwrap()).collect();
        assert_eq!((arrived.len(), values.len()), (7, 1), "{arrived:?}");
    }
    pusher.shutdown(Duration::from_secs(5));
}

#[test]
fn deltas_are_relative_to_the_last_accepted_push() {
    let collector = Collector::start(BOTH[1]);
    let world = World::new();
    let address = collector.address;
    let env = move |name: &str| {
        Some(match name {
            "OTEL_EXPORTER_OTLP_ENDPOINT" => format!("http://{address}"),
            "OTEL_EXPORTER_OTLP_METRICS_TEMPORALITY_PREFERENCE" => "delta".to_owned(),
            "OTEL_METRIC_EXPORT_INTERVAL" => "50".to_owned(),
            _ => return None,
        })
    };
    let show = |faults: &[(u32, u64)]| {
        world.show(|batch| {
            batch.put(&USED, &["a".into(), "0".into()], Bytes::new(5));
            for (pid, count) in faults {
                batch.put(&FAULTS, &[(*pid).into()], Count(*count));
            }
        });
    };
    show(&[(1, 10)]);
    let pusher = world.start_with(&Otlp::default(), &env).unwrap().unwrap();
    let values = |push: &super::collector::Push| -> Vec<String> {
        let lines = lines(&push.request);
        lines.into_iter().filter(|line| line.starts_with("memwarden.test.faults")).collect()
    };
    let expected = |faults: &[(u32, u64)]| -> Vec<String> {
        let line = |(pid, count): &(u32, u64)| {
            format!(
                "memwarden.test.faults{{pid=\"{pid}\"}} {count} sum(true, AGGREGATION_TEMPORALITY_DELTA) {{fault}}"
            )
        };
        faults.iter().map(line).collect()
    };
    let first = collector.next();
    assert_eq!(values(&first), expected(&[(1, 10)]));
    // A sum that may decrease stays cumulative.
    assert!(lines(&first.request)[0].ends_with("sum(false, AGGREGATION_TEMPORALITY_CUMULATIVE) By"));
    collector.next_where(|push| values(push) == expected(&[(1, 0)]));
    // Rejected deltas are sent again with later ones; a client that restarted counts from zero.
    collector.is(super::collector::Behavior::Refuses(400, 3));
    show(&[(1, 13), (2, 7)]);
    collector.next_where(|push| values(push) == expected(&[(1, 3), (2, 7)]));
    show(&[(1, 4), (2, 9)]);
    collector.next_where(|push| values(push) == expected(&[(1, 4), (2, 9)]));
    collector.is(super::collector::Behavior::Takes);
    collector.next_where(|push| values(push) == expected(&[(1, 0), (2, 0)]));
    pusher.shutdown(Duration::from_secs(5));
}
