//! Creates a rustls configuration from the TLS section and the files it names.

use std::path::Path;
use std::sync::Arc;

use tokio_rustls::rustls::crypto::{self, CryptoProvider};
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::rustls::server::WebPkiClientVerifier;
use tokio_rustls::rustls::{RootCertStore, ServerConfig};

use super::WebConfigError;
use super::clients::ClientRule;
use super::document::{Clients, Pem, Tls};
use super::watched::Files;

/// The TLS configuration for new handshakes.
pub(super) fn build(
    tls: &Tls,
    http2: bool,
    path: &Path,
    files: &mut Files,
) -> Result<Arc<ServerConfig>, WebConfigError> {
    let unusable = |what: String| WebConfigError::unusable(path, what);
    let mut provider = crypto::ring::default_provider();
    provider.cipher_suites.clone_from(&tls.cipher_suites);
    if !tls.curves.is_empty() {
        let group = |name| provider.kx_groups.iter().find(move |group| group.name() == name).copied();
        provider.kx_groups = tls.curves.iter().filter_map(|name| group(*name)).collect();
    }
    let provider = Arc::new(provider);
    let chain = certificates(&tls.cert, path, files)?;
    let (text, place) = read(&tls.key, path, files)?;
    let key = PrivateKeyDer::from_pem_slice(&text)
        .map_err(|_| WebConfigError::unusable(&place, "contains no PEM private key"))?;
    let mut config = ServerConfig::builder_with_provider(Arc::clone(&provider))
        .with_protocol_versions(tls.versions)
        .map_err(|error| {
            unusable(format!("the TLS versions and the cipher suites are incompatible: {error}"))
        })?
        .with_client_cert_verifier(clients(tls, path, files, provider)?)
        .with_single_cert(chain, key)
        .map_err(|error| unusable(format!("the certificate and the key do not match: {error}")))?;
    config.ignore_client_order = tls.server_order;
    config.alpn_protocols = if http2 { vec![b"h2".to_vec()] } else { Vec::new() };
    config.alpn_protocols.push(b"http/1.1".to_vec());
    Ok(Arc::new(config))
}

fn clients(
    tls: &Tls,
    path: &Path,
    files: &mut Files,
    provider: Arc<CryptoProvider>,
) -> Result<Arc<ClientRule>, WebConfigError> {
    let verified = match (&tls.client_ca, tls.clients) {
        (Some(pem), Clients::VerifyGiven | Clients::RequireVerified) => {
            let mut roots = RootCertStore::empty();
            for certificate in certificates(pem, path, files)? {
                roots.add(certificate).map_err(|error| {
                    WebConfigError::unusable(path, format!("a client CA certificate is invalid: {error}"))
                })?;
            }
            let verifier =
                WebPkiClientVerifier::builder_with_provider(Arc::new(roots), Arc::clone(&provider)).build();
            Some(verifier.map_err(|error| {
                WebConfigError::unusable(path, format!("the client CA certificates cannot be used: {error}"))
            })?)
        }
        // The certificate is not verified, but the CA file must still be valid.
        (Some(pem), _) => {
            certificates(pem, path, files)?;
            None
        }
        (None, _) => None,
    };
    Ok(Arc::new(ClientRule {
        clients: tls.clients,
        verified,
        allowed_sans: tls.allowed_sans.clone(),
        algorithms: provider.signature_verification_algorithms,
    }))
}

fn certificates(
    pem: &Pem,
    path: &Path,
    files: &mut Files,
) -> Result<Vec<CertificateDer<'static>>, WebConfigError> {
    let (text, place) = read(pem, path, files)?;
    let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&text).collect();
    let found = found.ok().filter(|found| !found.is_empty());
    found.ok_or_else(|| WebConfigError::unusable(&place, "contains no PEM certificate"))
}

/// Returns the PEM text and its location, for messages.
fn read(
    pem: &Pem,
    document: &Path,
    files: &mut Files,
) -> Result<(Vec<u8>, std::path::PathBuf), WebConfigError> {
    match pem {
        Pem::Inline(text) => Ok((text.clone().into_bytes(), document.to_owned())),
        Pem::File(path) => match files.read(path) {
            Ok(text) => Ok((text, path.clone())),
            Err(source) => Err(WebConfigError::Unreadable { path: path.clone(), source }),
        },
    }
}
