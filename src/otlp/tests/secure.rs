//! TLS with authorities and client certificates of the test.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use rcgen::{BasicConstraints, Certificate, CertificateParams, IsCa, Issuer, KeyPair};
use tempfile::TempDir;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::server::WebPkiClientVerifier;
use tokio_rustls::rustls::{RootCertStore, ServerConfig, crypto};
use tonic::transport::{Identity, ServerTlsConfig};

use super::super::OtlpError;
use super::collector::Collector;
use super::world::{BOTH, SHARE, World, eventually, pushing};
use crate::config::{Otlp, OtlpProtocol};
use crate::model::units::Ratio;

/// An authority, and the server and the client that it certifies.
pub(super) struct Authority {
    folder: TempDir,
    root: Certificate,
    server: (String, KeyPair),
}

impl Authority {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let root = params.self_signed(&key).unwrap();
        let issuer = Issuer::new(params, key);
        let leaf = |names: &[&str]| {
            let key = KeyPair::generate().unwrap();
            let names: Vec<_> = names.iter().map(|name| (*name).to_owned()).collect();
            let certificate = CertificateParams::new(names).unwrap().signed_by(&key, &issuer).unwrap();
            (certificate.pem(), key)
        };
        let server = leaf(&["127.0.0.1", "localhost"]);
        let client = leaf(&["node-1"]);
        std::fs::write(folder.path().join("ca.pem"), root.pem()).unwrap();
        std::fs::write(folder.path().join("client.pem"), client.0).unwrap();
        std::fs::write(folder.path().join("client.key"), client.1.serialize_pem()).unwrap();
        Self { folder, root, server }
    }

    fn file(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    pub(super) fn tonic_server(&self) -> ServerTlsConfig {
        let (certificate, key) = &self.server;
        ServerTlsConfig::new()
            .identity(Identity::from_pem(certificate, key.serialize_pem()))
            .client_ca_root(tonic::transport::Certificate::from_pem(self.root.pem()))
    }

    pub(super) fn acceptor(&self) -> TlsAcceptor {
        use tokio_rustls::rustls::pki_types::pem::PemObject as _;
        use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};

        let provider = Arc::new(crypto::ring::default_provider());
        let mut roots = RootCertStore::empty();
        roots.add(self.root.der().clone()).unwrap();
        let clients = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), Arc::clone(&provider))
            .build()
            .unwrap();
        let chain = vec![CertificateDer::from_pem_slice(self.server.0.as_bytes()).unwrap()];
        let key = PrivateKeyDer::from_pem_slice(self.server.1.serialize_pem().as_bytes()).unwrap();
        let config = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_client_cert_verifier(clients)
            .with_single_cert(chain, key)
            .unwrap();
        TlsAcceptor::from(Arc::new(config))
    }

    /// A file that trusts this authority and presents its client certificate.
    fn config(&self, protocol: OtlpProtocol, endpoint: String) -> Otlp {
        Otlp {
            certificate: Some(self.file("ca.pem")),
            client_certificate: Some(self.file("client.pem")),
            client_key: Some(self.file("client.key")),
            timeout: Some(Duration::from_millis(500)),
            ..pushing(protocol, endpoint)
        }
    }
}

#[test]
fn both_transports_push_through_mutual_tls() {
    for protocol in BOTH {
        let authority = Authority::new();
        let other = Authority::new();
        let collector = Collector::at("127.0.0.1:0".parse().unwrap(), protocol, Some(&authority));
        let endpoint = format!("https://{}", collector.address);
        let good = authority.config(protocol, endpoint.clone());
        let distrusting = Otlp { certificate: Some(other.file("ca.pem")), ..good.clone() };
        let anonymous = Otlp { client_certificate: None, client_key: None, ..good.clone() };
        let foreign = Otlp {
            client_certificate: Some(other.file("client.pem")),
            client_key: Some(other.file("client.key")),
            ..good.clone()
        };
        let plain = Otlp { endpoint: Some(endpoint.replace("https", "http")), ..good.clone() };
        for (config, works) in
            [(good, true), (distrusting, false), (anonymous, false), (foreign, false), (plain, false)]
        {
            let world = World::new();
            world.show(|batch| batch.put_some(&SHARE, &[], Ratio::new(1.0)));
            let pusher = world.start(&config).unwrap().unwrap();
            if works {
                eventually("a push is taken", || world.taken() > 0.0);
            } else {
                eventually("a push fails", || world.failed() > 0.0);
                assert_eq!(world.taken(), 0.0, "{config:?}");
            }
            pusher.shutdown(Duration::ZERO);
        }
    }
}

#[test]
fn the_environment_names_the_certificates_too() {
    for protocol in BOTH {
        let authority = Authority::new();
        let collector = Collector::at("127.0.0.1:0".parse().unwrap(), protocol, Some(&authority));
        let env = |name: &str| {
            let file = |name| authority.file(name).display().to_string();
            Some(match name {
                "OTEL_EXPORTER_OTLP_METRICS_ENDPOINT" => {
                    format!("https://localhost:{}", collector.address.port())
                }
                "OTEL_EXPORTER_OTLP_METRICS_PROTOCOL" if protocol == OtlpProtocol::Grpc => "grpc".to_owned(),
                // Without a configured file, the authority is found among those of the distribution.
                "SSL_CERT_FILE" if protocol == OtlpProtocol::Grpc => file("ca.pem"),
                "OTEL_EXPORTER_OTLP_CERTIFICATE" if protocol == OtlpProtocol::HttpProtobuf => file("ca.pem"),
                "OTEL_EXPORTER_OTLP_METRICS_CLIENT_CERTIFICATE" => file("client.pem"),
                "OTEL_EXPORTER_OTLP_CLIENT_KEY" => file("client.key"),
                "OTEL_METRIC_EXPORT_INTERVAL" => "50".to_owned(),
                _ => return None,
            })
        };
        let world = World::new();
        world.show(|batch| batch.put_some(&SHARE, &[], Ratio::new(1.0)));
        let pusher = world.start_with(&Otlp::default(), &env).unwrap().unwrap();
        eventually("a push is taken", || world.taken() > 0.0);
        pusher.shutdown(Duration::from_secs(5));
    }
}

#[test]
fn files_that_cannot_be_used_are_named() {
    let authority = Authority::new();
    let empty = authority.file("empty.pem");
    std::fs::write(&empty, "nothing here").unwrap();
    let world = World::new();
    for protocol in BOTH {
        let good = authority.config(protocol, "https://127.0.0.1:1".to_owned());
        let message = |config: Otlp| world.start(&config).unwrap_err().to_string();
        let missing = Otlp { certificate: Some(authority.file("gone.pem")), ..good.clone() };
        assert!(message(missing).ends_with("gone.pem"));
        let without = Otlp { certificate: Some(empty.clone()), ..good.clone() };
        assert!(message(without).ends_with("empty.pem contains no CA certificate in PEM format"));
        let keyless = Otlp { client_key: Some(empty.clone()), ..good.clone() };
        assert!(message(keyless).ends_with("empty.pem contains no private key in PEM format"));
        let other = Authority::new();
        let mixed = Otlp { client_key: Some(other.file("client.key")), ..good };
        assert!(
            matches!(
                world.start(&mixed),
                Err(OtlpError::Client(crate::host::http_client::HttpError::Tls(_)))
            ),
            "{protocol:?}"
        );
    }
}
