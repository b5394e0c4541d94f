//! The precedence of the file, the environment variables and the defaults.

use std::path::PathBuf;
use std::time::Duration;

use super::super::resolve::{Resolved, resolve};
use crate::config::{Otlp, OtlpCompression, OtlpProtocol};
use crate::host::tls::Trust;

fn resolved(config: &Otlp, variables: &[(&str, &str)]) -> (Option<Resolved>, Vec<String>) {
    let read = |name: &str| {
        let name = name.strip_prefix("OTEL_").unwrap_or(name);
        variables.iter().find(|(key, _)| *key == name).map(|(_, value)| (*value).to_owned())
    };
    resolve(config, &read).unwrap()
}

fn on() -> Otlp {
    Otlp { enabled: true, ..Otlp::default() }
}

/// The differences from the defaults, one per line, then the warnings.
fn show(config: &Otlp, variables: &[(&str, &str)]) -> String {
    let (found, warnings) = resolved(config, variables);
    let mut lines = Vec::new();
    match found {
        None => lines.push("off".to_owned()),
        Some(found) => {
            let protocol = if found.protocol == OtlpProtocol::Grpc { "grpc" } else { "http" };
            lines.push(format!("{protocol} {}", found.endpoint));
            for (name, value) in &found.headers {
                lines.push(format!("{name}: {}", value.to_str().unwrap()));
                assert!(value.is_sensitive());
            }
            if (found.timeout, found.interval) != (Duration::from_secs(10), Duration::from_secs(60)) {
                lines.push(format!("{:?} each {:?}", found.timeout, found.interval));
            }
            if found.gzip {
                lines.push("gzip".to_owned());
            }
            if found.delta {
                lines.push("delta".to_owned());
            }
            match &found.trust {
                Trust::File(path) => lines.push(format!("trusts {}", path.display())),
                Trust::Bundle(paths) => assert!(paths.contains(&"/etc/pki/tls/certs/ca-bundle.crt".into())),
            }
            if let Some((certificate, key)) = &found.identity {
                lines.push(format!("is {} {}", certificate.display(), key.display()));
            }
            lines.extend(found.resource.iter().map(|(key, value)| format!("{key}={value}")));
        }
    }
    lines.extend(warnings.into_iter().map(|warning| format!("! {warning}")));
    lines.join("\n")
}

#[track_caller]
fn check(config: &Otlp, variables: &[(&str, &str)], expected: &str) {
    assert_eq!(show(config, variables), expected, "{variables:?}");
}

const HTTP: &str = "http http://localhost:4318/v1/metrics";

#[test]
fn pushing_is_off_by_default() {
    check(&Otlp::default(), &[], "off");
    check(&Otlp::default(), &[("EXPORTER_OTLP_PROTOCOL", "grpc"), ("EXPORTER_OTLP_ENDPOINT", " ")], "off");
    check(&Otlp::default(), &[("METRICS_EXPORTER", "console")], "off");
    check(&on(), &[], HTTP);
    check(&Otlp::default(), &[("EXPORTER_OTLP_METRICS_ENDPOINT", "http://c:1/x")], "http http://c:1/x");
}

#[test]
fn the_environment_can_disable_pushing() {
    let off = "off\n! the OTLP export is disabled: ";
    check(&on(), &[("SDK_DISABLED", "TRUE")], &format!("{off}OTEL_SDK_DISABLED is true"));
    check(&on(), &[("SDK_DISABLED", "false")], HTTP);
    check(
        &on(),
        &[("SDK_DISABLED", "1")],
        &format!("{HTTP}\n! OTEL_SDK_DISABLED is ignored: `1` is neither true nor false"),
    );
    check(&on(), &[("METRICS_EXPORTER", "none")], &format!("{off}OTEL_METRICS_EXPORTER does not name otlp"));
    check(&on(), &[("METRICS_EXPORTER", "otlp")], HTTP);
    check(
        &on(),
        &[("METRICS_EXPORTER", "otlp, console")],
        &format!("{HTTP}\n! OTEL_METRICS_EXPORTER: `console` is ignored: memwarden supports otlp and none"),
    );
    check(
        &on(),
        &[("METRICS_EXPORTER", "prometheus")],
        "off\n! OTEL_METRICS_EXPORTER: `prometheus` is ignored: memwarden supports otlp and none\n! the OTLP export is disabled: OTEL_METRICS_EXPORTER does not name otlp",
    );
}

#[test]
fn endpoints_are_taken_as_the_specification_says() {
    let generic = |text| vec![("EXPORTER_OTLP_ENDPOINT", text)];
    let own = |text| vec![("EXPORTER_OTLP_METRICS_ENDPOINT", text)];
    check(&Otlp::default(), &generic("http://c:4318"), "http http://c:4318/v1/metrics");
    check(&Otlp::default(), &generic("https://c/base/"), "http https://c/base/v1/metrics");
    check(&Otlp::default(), &own("https://c"), "http https://c/");
    check(&Otlp::default(), &own("http://c:1/v1/metrics?a=b"), "http http://c:1/v1/metrics?a=b");
    check(&Otlp::default(), &[generic("http://a:1"), own("http://b:2/p")].concat(), "http http://b:2/p");
    let file = |text: &str| Otlp { endpoint: Some(text.to_owned()), ..on() };
    check(&file("http://f:1"), &own("http://b:2/p"), "http http://f:1/v1/metrics");
    check(&file("http://f:1/v1/metrics"), &[], "http http://f:1/v1/metrics");
    check(&file("http://[::1]:1"), &[], "http http://[::1]:1/v1/metrics");
    let ignored =
        |text: &str, why: &str| format!("{HTTP}\n! OTEL_EXPORTER_OTLP_ENDPOINT is ignored: `{text}` {why}");
    check(
        &Otlp::default(),
        &generic("c:4318"),
        &ignored("c:4318", "has no scheme; write http:// or https:// before it"),
    );
    check(
        &Otlp::default(),
        &generic("ftp://c"),
        &ignored("ftp://c", "has a scheme other than http and https"),
    );
    check(
        &Otlp::default(),
        &generic("http://u:pw@c"),
        &ignored("(hidden)@c", "contains a user name; use the headers instead"),
    );
    for wrong in ["http://c:99999999", "http://c:", "http://[::1]:x"] {
        assert!(show(&Otlp::default(), &generic(wrong)).starts_with(HTTP), "{wrong}");
    }
    let (found, _) = resolved(&Otlp::default(), &own("http://c/p?api-key=s3cret"));
    assert_eq!(found.unwrap().shown(), "http://c/p");
    assert!(show(&Otlp::default(), &generic("http://")).starts_with(HTTP));
    // An unusable value leaves the next one in effect.
    assert!(
        show(&Otlp::default(), &[own("nonsense"), generic("http://a:1")].concat())
            .starts_with("http http://a:1/v1/metrics\n! OTEL_EXPORTER_OTLP_METRICS_ENDPOINT")
    );
    let error = resolve(&file("http://a b"), &|_| None).unwrap_err().to_string();
    assert!(error.starts_with("otlp.endpoint `http://a b` is not a valid URL"), "{error}");
}

#[test]
fn grpc_endpoints_may_lack_a_scheme() {
    let grpc = ("EXPORTER_OTLP_PROTOCOL", "grpc");
    let at = |text| [grpc, ("EXPORTER_OTLP_ENDPOINT", text)];
    check(&on(), &[grpc], "grpc http://localhost:4317/");
    check(&Otlp::default(), &at("http://c:4317"), "grpc http://c:4317/");
    check(&Otlp::default(), &at("https://c:4317/ignored"), "grpc https://c:4317/");
    check(&Otlp::default(), &at("c:4317"), "grpc https://c:4317/");
    let [a, b] = at("c:4317");
    check(&Otlp::default(), &[a, b, ("EXPORTER_OTLP_INSECURE", "true")], "grpc http://c:4317/");
    check(
        &Otlp::default(),
        &[a, b, ("EXPORTER_OTLP_INSECURE", "true"), ("EXPORTER_OTLP_METRICS_INSECURE", "false")],
        "grpc https://c:4317/",
    );
}

#[test]
fn protocols_times_and_compression_follow_their_order() {
    check(
        &on(),
        &[("EXPORTER_OTLP_PROTOCOL", "grpc"), ("EXPORTER_OTLP_METRICS_PROTOCOL", "http/protobuf")],
        HTTP,
    );
    check(
        &on(),
        &[("EXPORTER_OTLP_PROTOCOL", "http/json")],
        &format!(
            "{HTTP}\n! OTEL_EXPORTER_OTLP_PROTOCOL is ignored: `http/json` is neither grpc nor http/protobuf"
        ),
    );
    let file = Otlp { protocol: Some(OtlpProtocol::Grpc), ..on() };
    check(&file, &[("EXPORTER_OTLP_METRICS_PROTOCOL", "http/protobuf")], "grpc http://localhost:4317/");

    check(
        &on(),
        &[("EXPORTER_OTLP_TIMEOUT", "2000"), ("METRIC_EXPORT_INTERVAL", "5000")],
        &format!("{HTTP}\n2s each 5s"),
    );
    check(
        &on(),
        &[("EXPORTER_OTLP_TIMEOUT", "2000"), ("EXPORTER_OTLP_METRICS_TIMEOUT", "3000")],
        &format!("{HTTP}\n3s each 60s"),
    );
    check(&on(), &[("METRIC_EXPORT_TIMEOUT", "4000")], &format!("{HTTP}\n4s each 60s"));
    check(&on(), &[("EXPORTER_OTLP_TIMEOUT", "50000")], &format!("{HTTP}\n30s each 60s"));
    let times =
        Otlp { timeout: Some(Duration::from_secs(45)), interval: Some(Duration::from_secs(15)), ..on() };
    check(
        &times,
        &[("EXPORTER_OTLP_TIMEOUT", "1"), ("METRIC_EXPORT_INTERVAL", "1")],
        &format!("{HTTP}\n45s each 15s"),
    );
    for wrong in ["10s", "-1", "0", "1e3", "99999999999999999999"] {
        check(
            &on(),
            &[("METRIC_EXPORT_INTERVAL", wrong)],
            &format!(
                "{HTTP}\n! OTEL_METRIC_EXPORT_INTERVAL is ignored: `{wrong}` is not a number of milliseconds from 10 to 86400000"
            ),
        );
    }

    check(&on(), &[("EXPORTER_OTLP_COMPRESSION", "gzip")], &format!("{HTTP}\ngzip"));
    check(
        &on(),
        &[("EXPORTER_OTLP_COMPRESSION", "gzip"), ("EXPORTER_OTLP_METRICS_COMPRESSION", "none")],
        HTTP,
    );
    check(
        &on(),
        &[("EXPORTER_OTLP_COMPRESSION", "zstd")],
        &format!("{HTTP}\n! OTEL_EXPORTER_OTLP_COMPRESSION is ignored: `zstd` is neither gzip nor none"),
    );
    check(
        &Otlp { compression: Some(OtlpCompression::Gzip), ..on() },
        &[("EXPORTER_OTLP_COMPRESSION", "none")],
        &format!("{HTTP}\ngzip"),
    );
    check(
        &Otlp { compression: Some(OtlpCompression::None), ..on() },
        &[("EXPORTER_OTLP_COMPRESSION", "gzip")],
        HTTP,
    );

    let temporality = |text| [("EXPORTER_OTLP_METRICS_TEMPORALITY_PREFERENCE", text)];
    check(&on(), &temporality("Delta"), &format!("{HTTP}\ndelta"));
    check(&on(), &temporality("lowmemory"), HTTP);
    assert!(show(&on(), &temporality("sometimes")).contains("is not one of cumulative, delta and lowmemory"));
}

#[test]
fn headers_are_decoded_merged_and_never_shown() {
    let generic = ("EXPORTER_OTLP_HEADERS", "authorization=Basic%20YTpi, x-tenant = a");
    check(&on(), &[generic], &format!("{HTTP}\nauthorization: Basic YTpi\nx-tenant: a"));
    check(&on(), &[generic, ("EXPORTER_OTLP_METRICS_HEADERS", "only=this")], &format!("{HTTP}\nonly: this"));
    let file = Otlp { headers: [("X-Tenant".to_owned(), "b".to_owned())].into(), ..on() };
    check(&file, &[generic], &format!("{HTTP}\nauthorization: Basic YTpi\nx-tenant: b"));
    check(
        &on(),
        &[("EXPORTER_OTLP_HEADERS", "s3cret,a=s3cret%,b c=s3cret,host=s3cret,d=s3cret%0A,,ok=1")],
        &format!(
            "{HTTP}\nok: 1\n! OTEL_EXPORTER_OTLP_HEADERS: member 1 is ignored: it has no `=`\n! OTEL_EXPORTER_OTLP_HEADERS: member 2 is ignored: it is not percent-encoded\n! OTEL_EXPORTER_OTLP_HEADERS: member 3 is ignored: it has no valid header name\n! OTEL_EXPORTER_OTLP_HEADERS: member 4 is ignored: it sets a header that the transport controls\n! OTEL_EXPORTER_OTLP_HEADERS: member 5 is ignored: it has an invalid header value"
        ),
    );
    let (found, _) = resolved(&on(), &[("EXPORTER_OTLP_HEADERS", "authorization=Bearer%20s3cret")]);
    let found = found.unwrap();
    assert!(!format!("{found:?}").contains("s3cret"));
    assert_eq!(found.hide("no access with Bearer s3cret or s3cret"), "no access with (hidden) or (hidden)");
}

#[test]
fn certificates_follow_their_order() {
    let variables = [
        ("EXPORTER_OTLP_CERTIFICATE", "/all.pem"),
        ("EXPORTER_OTLP_METRICS_CERTIFICATE", "/own.pem"),
        ("EXPORTER_OTLP_CLIENT_CERTIFICATE", "/c.pem"),
        ("EXPORTER_OTLP_CLIENT_KEY", "/k.pem"),
    ];
    check(&on(), &variables, &format!("{HTTP}\ntrusts /own.pem\nis /c.pem /k.pem"));
    let file = Otlp {
        certificate: Some("/f.pem".into()),
        client_certificate: Some("/fc.pem".into()),
        client_key: Some("/fk.pem".into()),
        ..on()
    };
    check(&file, &variables, &format!("{HTTP}\ntrusts /f.pem\nis /fc.pem /fk.pem"));
    check(
        &on(),
        &variables[2..3],
        &format!(
            "{HTTP}\n! OTEL_EXPORTER_OTLP_CLIENT_CERTIFICATE is ignored: OTEL_EXPORTER_OTLP_CLIENT_KEY is required with it"
        ),
    );
    let (found, _) = resolved(&on(), &[("SSL_CERT_FILE", "/mine.pem")]);
    let Trust::Bundle(paths) = found.unwrap().trust else { panic!("a bundle") };
    assert_eq!(paths[0], PathBuf::from("/mine.pem"));
}

#[test]
fn the_resource_follows_its_order() {
    let attributes = ("RESOURCE_ATTRIBUTES", "service.name=r,k8s.node.name=n%3D1");
    check(&on(), &[attributes], &format!("{HTTP}\nk8s.node.name=n=1\nservice.name=r"));
    check(&on(), &[attributes, ("SERVICE_NAME", "s")], &format!("{HTTP}\nk8s.node.name=n=1\nservice.name=s"));
    let file = Otlp { resource_attributes: [("service.name".to_owned(), "f".to_owned())].into(), ..on() };
    check(&file, &[attributes, ("SERVICE_NAME", "s")], &format!("{HTTP}\nk8s.node.name=n=1\nservice.name=f"));
    for wrong in ["a", "a=1,b", "a=%zz", "=1"] {
        check(
            &on(),
            &[("RESOURCE_ATTRIBUTES", wrong)],
            &format!(
                "{HTTP}\n! OTEL_RESOURCE_ATTRIBUTES is ignored: it is not a list of key=value pairs with percent-encoded values"
            ),
        );
    }
}
