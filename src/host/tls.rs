//! Certificates that the daemon's TLS clients trust.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use tokio_rustls::rustls::pki_types::pem::PemObject as _;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::rustls::{self, ClientConfig, RootCertStore};

use super::fs;

/// Paths of the distributions' bundles of public certificate authorities.
const BUNDLES: [&str; 4] = [
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/ca-bundle.pem",
    "/etc/ssl/cert.pem",
];

/// Maximum size of a file; the distributions' bundles have about 220 KiB.
const LARGEST: u64 = 4 << 20;

/// The trusted certificate authorities.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Trust {
    /// Those in this PEM file.
    File(PathBuf),
    /// The distribution's: the first of these files that can be read.
    Bundle(Vec<PathBuf>),
}

/// Why trusted certificates could not be loaded.
#[derive(Debug, thiserror::Error)]
pub enum TrustError {
    /// A file cannot be read.
    #[error("cannot read {}", path.display())]
    Read {
        path: PathBuf,
        /// The error of the operating system.
        source: io::Error,
    },
    /// A file does not contain what is expected.
    #[error("{} contains no {what} in PEM format", path.display())]
    Pem {
        path: PathBuf,
        /// What is expected.
        what: &'static str,
    },
    /// The host has no certificate authorities.
    #[error("no CA certificates found to verify an https server; tried {tried:?}")]
    NoAuthorities { tried: Vec<PathBuf> },
}

impl Trust {
    /// The given file, otherwise that of `SSL_CERT_FILE`, otherwise the distribution's.
    pub fn new(file: Option<PathBuf>, ssl_cert_file: Option<PathBuf>) -> Self {
        file.map_or_else(
            || Self::Bundle(ssl_cert_file.into_iter().chain(BUNDLES.map(PathBuf::from)).collect()),
            Self::File,
        )
    }

    /// Like [`Trust::new`], with `SSL_CERT_FILE` from the environment.
    pub fn of(file: Option<PathBuf>) -> Self {
        let set = std::env::var_os("SSL_CERT_FILE").filter(|path| !path.is_empty());
        Self::new(file, set.map(PathBuf::from))
    }

    /// Reads the certificates.
    ///
    /// # Errors
    /// See [`TrustError`].
    pub fn roots(&self) -> Result<RootCertStore, TrustError> {
        match self {
            Self::File(path) => roots(path, &read(path)?),
            Self::Bundle(paths) => {
                let (path, bytes) = paths
                    .iter()
                    .find_map(|path| Some((path, read(path).ok()?)))
                    .ok_or_else(|| TrustError::NoAuthorities { tried: paths.clone() })?;
                roots(path, &bytes)
            }
        }
    }
}

fn roots(path: &Path, pem: &[u8]) -> Result<RootCertStore, TrustError> {
    let mut roots = RootCertStore::empty();
    // A bundle may contain a certificate that rustls rejects; the others are used.
    roots.add_parsable_certificates(CertificateDer::pem_slice_iter(pem).filter_map(Result::ok));
    if roots.is_empty() {
        return Err(TrustError::Pem { path: path.to_owned(), what: "CA certificate" });
    }
    Ok(roots)
}

/// Reads a file of certificates or keys; links are followed.
///
/// # Errors
/// Errors of the operating system, or a file of more than 4 MiB.
pub fn read(path: &Path) -> Result<Vec<u8>, TrustError> {
    fs::read_bounded(path, LARGEST).map_err(|source| TrustError::Read { path: path.to_owned(), source })
}

/// A certificate with its chain, and its key.
///
/// # Errors
/// Files that cannot be read, or that contain no certificate or key.
pub fn identity(
    certificate: &Path,
    key: &Path,
) -> Result<(Vec<CertificateDer<'static>>, PrivateKeyDer<'static>), TrustError> {
    let pem = read(certificate)?;
    let chain: Vec<_> = CertificateDer::pem_slice_iter(&pem).filter_map(Result::ok).collect();
    let nothing = |path: &Path, what| TrustError::Pem { path: path.to_owned(), what };
    if chain.is_empty() {
        return Err(nothing(certificate, "certificate"));
    }
    let key_pem = read(key)?;
    let parsed = PrivateKeyDer::from_pem_slice(&key_pem).map_err(|_| nothing(key, "private key"))?;
    Ok((chain, parsed))
}

/// The configuration of a client that trusts `roots` and presents a certificate of its own, if given.
///
/// # Errors
/// A certificate that does not match its key.
pub fn client(
    roots: RootCertStore,
    own: Option<(Vec<CertificateDer<'static>>, PrivateKeyDer<'static>)>,
) -> Result<ClientConfig, rustls::Error> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()?
        .with_root_certificates(roots);
    match own {
        None => Ok(config.with_no_client_auth()),
        Some((chain, key)) => config.with_client_auth_cert(chain, key),
    }
}
