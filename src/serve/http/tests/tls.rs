//! TLS: versions, HTTP/2, client certificates by every policy, certificates that change on disk.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;

use http_body_util::{BodyExt, Empty};
use hyper_util::rt::{TokioExecutor, TokioIo};
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair, SanType};
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use tokio_rustls::rustls::version::{TLS12, TLS13};
use tokio_rustls::rustls::{ClientConfig, RootCertStore, SupportedProtocolVersion, crypto};

use super::client::{ask, closed, get, read};
use super::{Running, web};
use crate::config::Web;
use crate::serve::http::check_web_config;

/// An authority and the folder its certificates go to.
pub(super) struct Authority {
    issuer: CertifiedIssuer<'static, KeyPair>,
}

impl Authority {
    pub(super) fn new(name: &str) -> Self {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.distinguished_name.push(rcgen::DnType::CommonName, name);
        Self { issuer: CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap() }
    }

    pub(super) fn pem(&self) -> String {
        self.issuer.pem()
    }

    /// Certificate and key for these names.
    pub(super) fn issue(&self, names: &[SanType]) -> (String, String) {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.subject_alt_names = names.to_vec();
        let key = KeyPair::generate().unwrap();
        (params.signed_by(&key, &self.issuer).unwrap().pem(), key.serialize_pem())
    }

    pub(super) fn server(&self) -> (String, String) {
        self.issue(&[SanType::DnsName("localhost".try_into().unwrap())])
    }

    fn client(&self, name: &str) -> (String, String) {
        self.issue(&[SanType::DnsName(name.try_into().unwrap())])
    }
}

fn write(folder: &Path, (cert, key): &(String, String)) {
    std::fs::write(folder.join("key.pem"), key).unwrap();
    std::fs::write(folder.join("cert.pem"), cert).unwrap();
}

/// A server with certificates of a fresh authority and these further lines of its TLS section.
fn server(lines: &str) -> (Running, Authority, tempfile::TempDir) {
    server_with(lines, web())
}

/// The same with other limits.
pub(super) fn server_with(lines: &str, web: Web) -> (Running, Authority, tempfile::TempDir) {
    let folder = tempfile::tempdir().unwrap();
    let authority = Authority::new("test");
    write(folder.path(), &authority.server());
    std::fs::write(folder.path().join("ca.pem"), authority.pem()).unwrap();
    let path = folder.path().join("web.yml");
    std::fs::write(&path, format!("tls_server_config:\n  cert_file: cert.pem\n  key_file: key.pem\n{lines}"))
        .unwrap();
    check_web_config(&path).unwrap();
    (Running::start(Web { config_file: Some(path), ..web }), authority, folder)
}

/// A client that trusts this authority.
pub(super) fn client(
    authority: &Authority,
    versions: &[&'static SupportedProtocolVersion],
    identity: Option<&(String, String)>,
    alpn: &[&str],
) -> TlsConnector {
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_slice(authority.pem().as_bytes()).unwrap()).unwrap();
    let builder = ClientConfig::builder_with_provider(Arc::new(crypto::ring::default_provider()))
        .with_protocol_versions(versions)
        .unwrap()
        .with_root_certificates(roots);
    let mut config = match identity {
        None => builder.with_no_client_auth(),
        Some((cert, key)) => builder
            .with_client_auth_cert(
                vec![CertificateDer::from_pem_slice(cert.as_bytes()).unwrap()],
                PrivateKeyDer::from_pem_slice(key.as_bytes()).unwrap(),
            )
            .unwrap(),
    };
    config.alpn_protocols = alpn.iter().map(|name| name.as_bytes().to_vec()).collect();
    TlsConnector::from(Arc::new(config))
}

pub(super) async fn connect(
    address: SocketAddr,
    connector: &TlsConnector,
) -> std::io::Result<TlsStream<TcpStream>> {
    let stream = TcpStream::connect(address).await.unwrap();
    connector.connect(ServerName::try_from("localhost").unwrap(), stream).await
}

/// The status of a scrape; nothing where the handshake or the connection fails.
pub(super) async fn scrape(address: SocketAddr, connector: &TlsConnector) -> Option<u16> {
    let mut stream = connect(address, connector).await.ok()?;
    stream.write_all(get("/metrics", "").as_bytes()).await.ok()?;
    // With TLS 1.3 a refused certificate shows only at the first read.
    Some(read(&mut stream, false).await?.status)
}

#[tokio::test]
async fn both_versions_are_spoken_and_the_range_is_kept() {
    let (both, authority, _folder) = server("");
    let (new, new_authority, _folder) = server("  min_version: TLS13\n");
    let (old, old_authority, _folder) = server(
        "  max_version: TLS12\n  cipher_suites: [TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256]\n  curve_preferences: [CurveP256]\n",
    );
    for (version, expected) in [(&TLS12, [true, false, true]), (&TLS13, [true, true, false])] {
        let served = [(&both, &authority), (&new, &new_authority), (&old, &old_authority)];
        for ((server, authority), expected) in served.into_iter().zip(expected) {
            let status = scrape(server.address, &client(authority, &[version], None, &[])).await;
            assert_eq!(status == Some(200), expected, "{version:?}");
        }
    }
    assert_eq!((new.limited("handshake"), old.limited("handshake")), (1.0, 1.0));
    let mut plain = TcpStream::connect(both.address).await.unwrap();
    plain.write_all(get("/metrics", "").as_bytes()).await.unwrap();
    closed(&mut plain).await;
}

#[tokio::test]
async fn http2_is_offered_and_can_be_switched_off() {
    let (server_on, authority, _folder) = server("");
    let stream =
        connect(server_on.address, &client(&authority, &[&TLS13], None, &["h2", "http/1.1"])).await.unwrap();
    assert_eq!(stream.get_ref().1.alpn_protocol(), Some(b"h2".as_slice()));
    let (mut sender, connection) =
        hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(stream)).await.unwrap();
    tokio::spawn(connection);
    for (method, path, status) in
        [("GET", "/metrics", 200), ("HEAD", "/metrics", 200), ("GET", "/nothing", 404)]
    {
        let request = http::Request::builder()
            .method(method)
            .uri(format!("https://localhost{path}"))
            .body(Empty::<bytes::Bytes>::new())
            .unwrap();
        let response = sender.send_request(request).await.unwrap();
        assert_eq!(response.status(), status);
        let length: usize = response.headers()["content-length"].to_str().unwrap().parse().unwrap();
        let body = response.into_body().collect().await.unwrap().to_bytes();
        assert_eq!(body.len(), if method == "HEAD" { 0 } else { length });
    }
    let (server_off, authority, _folder) = server("http_server_config:\n  http2: false\n");
    let stream =
        connect(server_off.address, &client(&authority, &[&TLS13], None, &["h2", "http/1.1"])).await.unwrap();
    assert_eq!(stream.get_ref().1.alpn_protocol(), Some(b"http/1.1".as_slice()));
}

#[tokio::test]
async fn each_policy_asks_what_it_says() {
    // Whether it lets in: no certificate, a stranger's, one of our authority's.
    for (policy, expected) in [
        ("NoClientCert", [true, true, true]),
        ("RequestClientCert", [true, true, true]),
        ("RequireAnyClientCert", [false, true, true]),
        ("RequireClientCert", [false, true, true]),
        ("VerifyClientCertIfGiven", [true, false, true]),
        ("RequireAndVerifyClientCert", [false, false, true]),
    ] {
        let ca = if policy.contains("Verify") { "  client_ca_file: ca.pem\n" } else { "" };
        let (server, authority, _folder) = server(&format!("  client_auth_type: {policy}\n{ca}"));
        let stranger = Authority::new("stranger").client("scraper");
        let known = authority.client("scraper");
        for version in [&TLS12, &TLS13] {
            for (identity, expected) in [None, Some(&stranger), Some(&known)].into_iter().zip(expected) {
                let status = scrape(server.address, &client(&authority, &[version], identity, &[])).await;
                assert_eq!(status == Some(200), expected, "{policy} {version:?} {}", identity.is_some());
            }
        }
    }
}

#[tokio::test]
async fn only_allowed_names_come_in() {
    let (server, authority, _folder) = server(
        "  client_auth_type: RequireAndVerifyClientCert\n  client_ca_file: ca.pem\n  client_allowed_sans: [prometheus.example, ops@example.com, 10.0.0.7, 'fd00::7', 'spiffe://a/b']\n",
    );
    for (name, expected) in [
        (SanType::DnsName("prometheus.example".try_into().unwrap()), true),
        (SanType::Rfc822Name("ops@example.com".try_into().unwrap()), true),
        (SanType::IpAddress([10, 0, 0, 7].into()), true),
        (SanType::IpAddress("fd00::7".parse().unwrap()), true),
        (SanType::URI("spiffe://a/b".try_into().unwrap()), true),
        (SanType::DnsName("other.example".try_into().unwrap()), false),
        (SanType::DnsName("prometheus.example.evil".try_into().unwrap()), false),
    ] {
        let identity = authority.issue(std::slice::from_ref(&name));
        let status = scrape(server.address, &client(&authority, &[&TLS13], Some(&identity), &[])).await;
        assert_eq!(status == Some(200), expected, "{name:?}");
    }
    let nameless = authority.issue(&[]);
    assert_eq!(scrape(server.address, &client(&authority, &[&TLS13], Some(&nameless), &[])).await, None);
}

#[tokio::test]
async fn a_new_certificate_is_used_without_a_restart() {
    let (server, first, folder) = server("");
    let second = Authority::new("second");
    let (by_first, by_second) = (client(&first, &[&TLS13], None, &[]), client(&second, &[&TLS13], None, &[]));
    assert_eq!(scrape(server.address, &by_first).await, Some(200));
    let mut kept = connect(server.address, &by_first).await.unwrap();
    write(folder.path(), &second.server());
    assert_eq!(scrape(server.address, &by_second).await, Some(200));
    assert_eq!(scrape(server.address, &by_first).await, None, "the old one is gone");
    kept.write_all(get("/metrics", "").as_bytes()).await.unwrap();
    assert_eq!(read(&mut kept, false).await.unwrap().status, 200, "a connection outlives its certificate");
    std::fs::write(folder.path().join("key.pem"), "nothing").unwrap();
    assert_eq!(scrape(server.address, &by_second).await, Some(500), "by the last good pair, to say so");
    write(folder.path(), &first.server());
    assert_eq!(scrape(server.address, &by_first).await, Some(200));
}

#[tokio::test]
async fn an_authority_that_is_replaced_is_not_trusted_any_more() {
    let (server, authority, folder) =
        server("  client_auth_type: RequireAndVerifyClientCert\n  client_ca_file: ca.pem\n");
    // One connector for both, so that it has a session to resume.
    let old = client(&authority, &[&TLS13], Some(&authority.client("a")), &[]);
    assert_eq!(scrape(server.address, &old).await, Some(200));
    let other = Authority::new("other");
    std::fs::write(folder.path().join("ca.pem"), other.pem()).unwrap();
    assert_eq!(scrape(server.address, &old).await, None);
    let new = client(&authority, &[&TLS13], Some(&other.client("a")), &[]);
    assert_eq!(scrape(server.address, &new).await, Some(200));
}

#[tokio::test]
async fn a_handshake_that_does_not_go_on_is_ended() {
    let folder = tempfile::tempdir().unwrap();
    write(folder.path(), &Authority::new("test").server());
    let path = folder.path().join("web.yml");
    std::fs::write(&path, "tls_server_config:\n  cert_file: cert.pem\n  key_file: key.pem\n").unwrap();
    let header_timeout = std::time::Duration::from_millis(300);
    let server = Running::start(Web { config_file: Some(path), header_timeout, ..web() });
    let mut silent = TcpStream::connect(server.address).await.unwrap();
    silent.write_all(&[0x16, 0x03, 0x01]).await.unwrap();
    closed(&mut silent).await;
    assert_eq!(server.limited("handshake"), 1.0);
}

#[tokio::test]
async fn passwords_work_without_tls_and_switching_tls_takes_a_restart() {
    let folder = tempfile::tempdir().unwrap();
    write(folder.path(), &Authority::new("test").server());
    let path = folder.path().join("web.yml");
    std::fs::write(&path, "").unwrap();
    let server = Running::with_web_config(path.clone());
    assert_eq!(ask(server.address, get("/metrics", "")).await.status, 200);
    std::fs::write(&path, "tls_server_config:\n  cert_file: cert.pem\n  key_file: key.pem\n").unwrap();
    assert_eq!(ask(server.address, get("/metrics", "")).await.status, 200, "still in the clear");
}
