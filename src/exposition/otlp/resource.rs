//! Who pushes: the resource attributes.

use std::collections::BTreeMap;

use opentelemetry::KeyValue;
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::resource::TelemetryResourceDetector;

/// The attributes of this daemon, those that were `configured` winning.
pub(super) fn resource(configured: &BTreeMap<String, String>, instance: String) -> Resource {
    let arch = match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    };
    let own = [
        ("service.name", Some("memwarden".to_owned())),
        ("service.version", Some(env!("CARGO_PKG_VERSION").to_owned())),
        ("service.instance.id", Some(instance)),
        ("host.name", sysinfo::System::host_name().ok()),
        ("host.arch", Some(arch.to_owned())),
    ];
    let own = own.into_iter().filter_map(|(key, value)| Some(KeyValue::new(key, value?)));
    let configured = configured.iter().map(|(key, value)| KeyValue::new(key.clone(), value.clone()));
    Resource::builder_empty()
        .with_detector(Box::new(TelemetryResourceDetector))
        .with_attributes(own)
        .with_attributes(configured)
        .build()
}
