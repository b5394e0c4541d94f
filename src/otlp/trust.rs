//! Certificates of the export: the trusted CAs and the client certificate.

use std::path::Path;

use tokio_rustls::rustls::RootCertStore;
use tokio_rustls::rustls::pki_types::pem::PemObject as _;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};

use super::OtlpError;
use super::resolve::Resolved;
use crate::host::tls::{self, TrustError};

/// Certificates and key of a TLS connection.
#[derive(Debug)]
pub(super) struct Material {
    pub(super) roots: RootCertStore,
    pub(super) identity: Option<Identity>,
}

/// The client certificate and its key as PEM text.
pub(super) struct Identity {
    pub(super) certificate: Vec<u8>,
    pub(super) key: Vec<u8>,
}

impl std::fmt::Debug for Identity {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Identity")
    }
}

impl Identity {
    pub(super) fn chain(&self) -> Vec<CertificateDer<'static>> {
        CertificateDer::pem_slice_iter(&self.certificate).filter_map(Result::ok).collect()
    }

    pub(super) fn key(&self) -> Option<PrivateKeyDer<'static>> {
        PrivateKeyDer::from_pem_slice(&self.key).ok()
    }
}

/// Reads the files that `resolved` names; absent for an endpoint without TLS.
pub(super) fn load(resolved: &Resolved) -> Result<Option<Material>, OtlpError> {
    if !resolved.tls() {
        return Ok(None);
    }
    let roots = resolved.trust.roots()?;
    let identity = match &resolved.identity {
        None => None,
        Some((certificate, key)) => Some(identity(certificate, key)?),
    };
    Ok(Some(Material { roots, identity }))
}

fn identity(certificate: &Path, key: &Path) -> Result<Identity, OtlpError> {
    let identity = Identity { certificate: tls::read(certificate)?, key: tls::read(key)? };
    if identity.chain().is_empty() {
        return Err(nothing(certificate, "certificate"));
    }
    if identity.key().is_none() {
        return Err(nothing(key, "private key"));
    }
    Ok(identity)
}

fn nothing(path: &Path, what: &'static str) -> OtlpError {
    TrustError::Pem { path: path.to_owned(), what }.into()
}
