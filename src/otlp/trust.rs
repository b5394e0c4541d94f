//! The certificates of a push: whom we trust, and who we are.
//!
//! Without a file of authorities an `https` collector must be certified by
//! one of the distribution's, read from where the distributions keep them.

use std::fs::File;
use std::io::{self, Read as _};
use std::path::Path;

use tokio_rustls::rustls::RootCertStore;
use tokio_rustls::rustls::pki_types::pem::PemObject as _;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};

use super::OtlpError;
use super::resolve::{Resolved, Trust};

/// What a TLS connection is made with.
#[derive(Debug)]
pub(super) struct Material {
    pub(super) roots: RootCertStore,
    pub(super) identity: Option<Identity>,
}

/// Our certificate and its key: the text, checked to hold both.
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

/// Reads the files that `resolved` names; nothing for an endpoint without TLS.
pub(super) fn load(resolved: &Resolved) -> Result<Option<Material>, OtlpError> {
    if !resolved.tls() {
        return Ok(None);
    }
    let roots = match &resolved.trust {
        Trust::File(path) => roots(path, read(path)?)?,
        Trust::Bundle(paths) => {
            let (path, bytes) = paths
                .iter()
                .find_map(|path| Some((path, read(path).ok()?)))
                .ok_or_else(|| OtlpError::NoAuthorities { tried: paths.clone() })?;
            roots(path, bytes)?
        }
    };
    let identity = match &resolved.identity {
        None => None,
        Some((certificate, key)) => Some(identity(certificate, key)?),
    };
    Ok(Some(Material { roots, identity }))
}

fn roots(path: &Path, pem: Vec<u8>) -> Result<RootCertStore, OtlpError> {
    let mut roots = RootCertStore::empty();
    // A bundle may hold one that rustls does not take; the others still count.
    roots.add_parsable_certificates(CertificateDer::pem_slice_iter(&pem).filter_map(Result::ok));
    if roots.is_empty() { Err(nothing(path, "certificate of an authority")) } else { Ok(roots) }
}

fn identity(certificate: &Path, key: &Path) -> Result<Identity, OtlpError> {
    let identity = Identity { certificate: read(certificate)?, key: read(key)? };
    if identity.chain().is_empty() {
        return Err(nothing(certificate, "certificate"));
    }
    if identity.key().is_none() {
        return Err(nothing(key, "private key"));
    }
    Ok(identity)
}

fn nothing(path: &Path, what: &'static str) -> OtlpError {
    OtlpError::Pem { path: path.to_owned(), what }
}

fn read(path: &Path) -> Result<Vec<u8>, OtlpError> {
    /// The distributions' bundles have about 220 KiB.
    const LARGEST: u64 = 4 << 20;
    let whole = || -> io::Result<Vec<u8>> {
        let mut bytes = Vec::new();
        File::open(path)?.take(LARGEST).read_to_end(&mut bytes)?;
        Ok(bytes)
    };
    whole().map_err(|source| OtlpError::Read { path: path.to_owned(), source })
}
