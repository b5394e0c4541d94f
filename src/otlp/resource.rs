//! The resource attributes of the export.

use std::collections::BTreeMap;

use opentelemetry_proto::tonic::common::v1::any_value::Value;
use opentelemetry_proto::tonic::resource::v1::Resource;

use super::stream::attribute;

/// The resource of pushed metrics.
pub(super) fn resource(configured: &BTreeMap<String, String>, instance: String) -> Resource {
    let all = attributes(configured, instance).into_iter();
    let attributes = all.map(|(key, value)| attribute(&key, Value::StringValue(value))).collect();
    Resource { attributes, ..Resource::default() }
}

/// The attributes of this daemon; `configured` ones take precedence.
pub(super) fn attributes(
    configured: &BTreeMap<String, String>,
    instance: String,
) -> BTreeMap<String, String> {
    let arch = match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    };
    let own = [
        ("service.name", Some("memwarden".to_owned())),
        ("service.version", Some(env!("CARGO_PKG_VERSION").to_owned())),
        ("service.instance.id", Some(instance)),
        ("host.name", sysinfo::System::host_name()),
        ("host.arch", Some(arch.to_owned())),
        // Required by the specification for exporters that do not use an OpenTelemetry SDK.
        ("telemetry.sdk.name", Some("memwarden".to_owned())),
        ("telemetry.sdk.language", Some("rust".to_owned())),
        ("telemetry.sdk.version", Some(env!("CARGO_PKG_VERSION").to_owned())),
    ];
    let own = own.into_iter().filter_map(|(key, value)| Some((key.to_owned(), value?)));
    let mut all: BTreeMap<String, String> = own.collect();
    all.extend(configured.clone());
    all
}
