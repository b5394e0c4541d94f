//! The instructions of `docs/otlp.md` for databases: with them, every query of the dashboards returns data.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{Read as _, Write as _};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use memwarden::catalog;
use opentelemetry_proto::tonic::collector::metrics::v1::ExportMetricsServiceRequest;
use opentelemetry_proto::tonic::common::v1::any_value::Value;
use prost::Message as _;
use serde_yaml::Value as Yaml;

use crate::database::{BusyNode, Database};
use crate::harness::{Daemon, on_path, program, tool, wait_for};
use crate::skip::skip;

const SOON: Duration = Duration::from_secs(60);

fn root(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(name)
}

type Labels = BTreeMap<String, String>;

/// The labels of the resource of a real push, as `-opentelemetry.usePrometheusNaming` names them.
fn pushed_resource(attributes: &str) -> Labels {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let endpoint = format!("otlp.endpoint=http://{}", listener.local_addr().unwrap());
    let own = ["otlp.enabled=true", "otlp.protocol=http/protobuf", "otlp.interval=200ms", &endpoint];
    let arguments = own.map(|set| ["--set", set]).concat();
    let _daemon = Daemon::start_with(&arguments, |command| {
        command.env("OTEL_RESOURCE_ATTRIBUTES", attributes);
    });
    let (mut stream, _) = listener.accept().unwrap();
    stream.set_read_timeout(Some(SOON)).unwrap();
    let mut text = Vec::new();
    let request = wait_for("a push", SOON, || {
        let mut buffer = [0; 65536];
        let length = stream.read(&mut buffer).unwrap();
        text.extend_from_slice(&buffer[..length]);
        let end = text.windows(4).position(|window| window == b"\r\n\r\n")? + 4;
        let head = String::from_utf8_lossy(&text[..end]).to_lowercase();
        let length = head.split("content-length: ").nth(1)?.split("\r\n").next()?.parse::<usize>().ok()?;
        let body = text.get(end..end + length)?;
        Some(ExportMetricsServiceRequest::decode(body).unwrap())
    });
    let _ = stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n");
    let resource = request.resource_metrics[0].resource.clone().unwrap();
    let text = |value| match value {
        Some(Value::StringValue(text)) => text,
        other => panic!("{other:?}"),
    };
    let attributes = resource.attributes.into_iter();
    attributes
        .map(|pair| (pair.key.replace('.', "_"), text(pair.value.and_then(|value| value.value))))
        .collect()
}

/// Applies the shipped rules to the labels of a series, as VictoriaMetrics does.
fn relabeled(mut labels: Labels) -> Labels {
    let text = std::fs::read_to_string(root("deploy/victoria-metrics-relabel.yaml")).unwrap();
    let rules: Yaml = serde_yaml::from_str(&text).unwrap();
    for rule in rules.as_sequence().unwrap() {
        let pattern = rule["regex"].as_str().unwrap();
        match rule["action"].as_str() {
            Some("labeldrop") => {
                let names: Vec<&str> = catalog::all().map(|desc| desc.name).collect();
                let standard = names.into_iter().filter_map(|name| name.strip_prefix("process_"));
                let standard = standard.collect::<BTreeSet<_>>().into_iter().collect::<Vec<_>>().join("|");
                let expected = format!(r#"{{__name__=~"memwarden_.+|process_({standard})"}}"#);
                assert_eq!(rule["if"].as_str().unwrap(), expected);
                if crate::tables::is_ours(&labels["__name__"]) {
                    labels.retain(|name, _| !pattern.split('|').any(|part| drops(part, name)));
                }
            }
            None => {
                let sources = rule["source_labels"].as_sequence().unwrap().iter();
                let values: Vec<&str> = sources
                    .map(|name| labels.get(name.as_str().unwrap()).map_or("", String::as_str))
                    .collect();
                // All these rules apply if the label is empty and the others are not.
                let wanted = if values.len() == 3 { ";([^;]+);([^;]+)" } else { ";(.+)" };
                assert_eq!(pattern, wanted);
                assert_eq!(rule["replacement"].as_str(), (values.len() == 3).then_some("$1/$2"));
                if values[0].is_empty() && values[1..].iter().all(|value| !value.is_empty()) {
                    let value = values[1..].join("/");
                    labels.insert(rule["target_label"].as_str().unwrap().to_owned(), value);
                }
            }
            other => panic!("{other:?}"),
        }
    }
    labels
}

/// Whether a part of the last rule's pattern is about this label.
fn drops(part: &str, name: &str) -> bool {
    match part.strip_suffix(".+") {
        Some(beginning) => name.len() > beginning.len() && name.starts_with(beginning),
        None => name == part,
    }
}

#[test]
fn the_shipped_relabeling_sets_job_and_instance_from_the_resource() {
    let series = |metric: &str, mut labels: Labels| {
        labels.insert("__name__".to_owned(), metric.to_owned());
        labels.insert("otel_scope_name".to_owned(), "memwarden".to_owned());
        labels.insert("scope_version".to_owned(), "1".to_owned());
        labels.insert("gpu".to_owned(), "0".to_owned());
        relabeled(labels)
    };
    let names = |labels: &Labels| labels.keys().cloned().collect::<Vec<_>>();
    let resource = pushed_resource("");
    for name in ["service_name", "service_instance_id", "host_name"] {
        assert!(resource.get(name).is_some_and(|value| !value.is_empty()), "{name}: {resource:?}");
    }
    let found = series("memwarden_gpu_memory_used_bytes", resource.clone());
    assert_eq!(found["job"], "memwarden");
    assert_eq!(found["instance"], resource["service_instance_id"]);
    assert_eq!(names(&found), ["__name__", "gpu", "host_name", "instance", "job"]);

    let own = series("process_cpu_seconds_total", resource.clone());
    assert_eq!(names(&own), names(&found));

    // A configured resource.
    let named = pushed_resource("service.name=node,service.namespace=training");
    assert_eq!(series("memwarden_gpu_memory_used_bytes", named)["job"], "training/node");
    // Without an instance the host is the instance, and labels of a sample are kept.
    let host: Labels = [("host_name".to_owned(), "node7".to_owned())].into();
    assert_eq!(series("memwarden_up", host)["instance"], "node7");
    let mut scraped = resource.clone();
    scraped.extend(
        [("job", "scraped"), ("instance", "a:1")].map(|(name, value)| (name.to_owned(), value.to_owned())),
    );
    let found = series("memwarden_up", scraped);
    assert_eq!((found["job"].as_str(), found["instance"].as_str()), ("scraped", "a:1"));
    // Labels of other series are kept.
    assert!(series("http_requests_total", resource).contains_key("service_version"));
}

/// The binary of VictoriaMetrics, if one is installed that gives OTLP the names of Prometheus.
fn victoria_metrics() -> Option<PathBuf> {
    let named = std::env::var_os("MEMWARDEN_TEST_VICTORIA_METRICS").map(PathBuf::from);
    let Some(binary) = named.or_else(|| on_path("victoria-metrics")) else {
        skip("no VictoriaMetrics on the path, nor one named by MEMWARDEN_TEST_VICTORIA_METRICS");
        return None;
    };
    let help = program(&binary).arg("-help").stdin(Stdio::null()).output().unwrap();
    let known = [help.stdout, help.stderr].concat();
    if !String::from_utf8_lossy(&known).contains("-opentelemetry.usePrometheusNaming") {
        skip(&format!("{} has no -opentelemetry.usePrometheusNaming", binary.display()));
        return None;
    }
    Some(binary)
}

#[test]
fn every_dashboard_query_returns_data_from_victoria_metrics() {
    let Some(binary) = victoria_metrics() else { return };
    let database = Database::start(&binary, "/health", |folder, address| {
        vec![
            format!("-storageDataPath={}", folder.join("data").display()),
            format!("-httpListenAddr={address}"),
            "-opentelemetry.usePrometheusNaming".to_owned(),
            format!("-relabelConfig={}", root("deploy/victoria-metrics-relabel.yaml").display()),
            // Queries are for the current time.
            "-search.latencyOffset=0s".to_owned(),
            "-search.disableCache".to_owned(),
        ]
    });
    let endpoint = format!("otlp.endpoint=http://{}/opentelemetry", database.address);
    let node = pushing_node(&endpoint);
    // Recorded series are computed by vmalert, which is another program.
    let mut queries = node.queries();
    queries.retain(|query| !query.contains(":memwarden_"));
    assert!(queries.len() > 150, "only {} queries", queries.len());
    database.wait_for_all(queries);
    check_identity(&database, &node);
    for rule in crate::shipped::expressions() {
        database.query(&rule);
    }
}

#[test]
fn every_dashboard_query_returns_data_from_a_prometheus_that_is_pushed_to() {
    let Some(binary) = tool("prometheus") else { return };
    let help = program(&binary).arg("--help-long").stdin(Stdio::null()).output().unwrap();
    let help = String::from_utf8_lossy(&[help.stdout, help.stderr].concat()).into_owned();
    let receiver = if help.contains("--web.enable-otlp-receiver") {
        "--web.enable-otlp-receiver"
    } else if help.contains("otlp-write-receiver") {
        "--enable-feature=otlp-write-receiver"
    } else {
        skip("this prometheus has no OTLP receiver (Debian builds it without)");
        return;
    };
    let database = Database::prometheus(&binary, "", &[receiver]);
    let node = pushing_node(&format!("otlp.endpoint=http://{}/api/v1/otlp", database.address));
    database.wait_for_all(node.queries());
    check_identity(&database, &node);
    let failed = database.failed_rules();
    assert!(failed.is_empty(), "{failed:?}");
}

fn pushing_node(endpoint: &str) -> BusyNode {
    let sets = ["otlp.enabled=true", "otlp.protocol=http/protobuf", "otlp.interval=1s", endpoint];
    BusyNode::start(&sets.iter().flat_map(|set| ["--set", *set]).collect::<Vec<_>>())
}

/// Stored series have the names, `job` and `instance` that a scrape would give them.
fn check_identity(database: &Database, node: &BusyNode) {
    let found = database.query("memwarden_build_info");
    assert_eq!(found.len(), 1, "{found:?}");
    assert_eq!(found[0].0["job"], "memwarden");
    let instance = found[0].0["instance"].as_str().unwrap();
    assert!(instance.ends_with(&format!(":{}", node.daemon.address.port())), "{instance}");
}
