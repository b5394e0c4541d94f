//! From the resolved settings to the crate's exporter, for both transports.

use std::time::Duration;

use http::HeaderMap;
use opentelemetry_otlp::{Compression, MetricExporter, Protocol};
use opentelemetry_otlp::{WithExportConfig as _, WithHttpConfig as _, WithTonicConfig as _};
use tokio::runtime::Handle;
use tonic::metadata::MetadataMap;
use tonic::transport::{Channel, ClientTlsConfig, Endpoint, Identity};

use super::OtlpError;
use super::client::Client;
use super::remark::Remark;
use super::resolve::Resolved;
use super::trust::{self, Material};
use crate::config::OtlpProtocol;

/// Builds the exporter; reads the certificate files, opens no connection.
pub(super) fn exporter(
    resolved: &Resolved,
    runtime: &Handle,
    remark: &Remark,
) -> Result<MetricExporter, OtlpError> {
    // tonic takes the runtime it will run on from where it is built.
    let _runtime = runtime.enter();
    let material = trust::load(resolved)?;
    let gzip = resolved.gzip.then_some(Compression::Gzip);
    let builder = MetricExporter::builder().with_temporality(resolved.temporality);
    let built = match resolved.protocol {
        OtlpProtocol::Grpc => {
            let headers = resolved.headers.clone();
            let builder = builder
                .with_tonic()
                .with_protocol(Protocol::Grpc)
                .with_timeout(resolved.timeout)
                .with_channel(channel(resolved, material)?)
                .with_interceptor(move |request| Ok(with_only(&headers, request)));
            match gzip {
                Some(gzip) => builder.with_compression(gzip).build(),
                None => builder.build(),
            }
        }
        OtlpProtocol::HttpProtobuf => {
            let client = Client::new(resolved, material, runtime.clone(), remark.clone())?;
            let builder = builder
                .with_http()
                .with_protocol(Protocol::HttpBinary)
                .with_timeout(resolved.timeout)
                .with_endpoint(resolved.endpoint.to_string())
                .with_http_client(client);
            match gzip {
                Some(gzip) => builder.with_compression(gzip).build(),
                None => builder.build(),
            }
        }
    };
    built.map_err(OtlpError::Build)
}

/// Replaces what the crate took from the environment by itself.
fn with_only(headers: &HeaderMap, mut request: tonic::Request<()>) -> tonic::Request<()> {
    *request.metadata_mut() = MetadataMap::from_headers(headers.clone());
    request
}

fn channel(resolved: &Resolved, material: Option<Material>) -> Result<Channel, OtlpError> {
    /// A collector that vanished without a word is noticed between two pushes.
    const KEEPALIVE: Duration = Duration::from_secs(20);
    let mut endpoint = Endpoint::from(resolved.endpoint.clone())
        .user_agent(concat!("memwarden/", env!("CARGO_PKG_VERSION")))
        .map_err(OtlpError::Channel)?
        .connect_timeout(resolved.timeout)
        .tcp_keepalive(Some(KEEPALIVE));
    if let Some(Material { roots, identity }) = material {
        let mut tls = ClientTlsConfig::new().trust_anchors(roots.roots);
        if let Some(identity) = identity {
            tls = tls.identity(Identity::from_pem(&identity.certificate, &identity.key));
        }
        endpoint = endpoint.tls_config(tls).map_err(OtlpError::Channel)?;
    }
    Ok(endpoint.connect_lazy())
}
