//! Whom a client of ours trusts: the authorities that a TLS server must be certified by.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use tokio_rustls::rustls::pki_types::pem::PemObject as _;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::rustls::{self, ClientConfig, RootCertStore};

use super::fs;

/// Where the distributions keep the certificates of the public authorities.
const BUNDLES: [&str; 4] = [
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/ca-bundle.pem",
    "/etc/ssl/cert.pem",
];

/// The distributions' bundles have about 220 KiB.
const LARGEST: u64 = 4 << 20;

/// Whom a server must be certified by.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Trust {
    /// One of the authorities in this PEM file.
    File(PathBuf),
    /// One of the distribution's; the first of these files that can be read.
    Bundle(Vec<PathBuf>),
}

/// Why nobody can be trusted.
#[derive(Debug, thiserror::Error)]
pub enum TrustError {
    /// A file could not be read.
    #[error("cannot read {}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The operating system's reason.
        source: io::Error,
    },
    /// A file has none of what it should have.
    #[error("{} holds no {what} in PEM form", path.display())]
    Pem {
        /// The file.
        path: PathBuf,
        /// What it should hold.
        what: &'static str,
    },
    /// The machine has no authorities.
    #[error("there are no certificates of authorities to verify an https server by; tried {tried:?}")]
    NoAuthorities {
        /// Where the distributions keep them.
        tried: Vec<PathBuf>,
    },
}

impl Trust {
    /// The file given, or else the distribution's, before which a file of `SSL_CERT_FILE` goes.
    pub fn new(file: Option<PathBuf>, ssl_cert_file: Option<PathBuf>) -> Self {
        file.map_or_else(
            || Self::Bundle(ssl_cert_file.into_iter().chain(BUNDLES.map(PathBuf::from)).collect()),
            Self::File,
        )
    }

    /// As [`Trust::new`], with `SSL_CERT_FILE` from the environment.
    pub fn of(file: Option<PathBuf>) -> Self {
        let set = std::env::var_os("SSL_CERT_FILE").filter(|path| !path.is_empty());
        Self::new(file, set.map(PathBuf::from))
    }

    /// Reads the authorities.
    ///
    /// # Errors
    /// What [`TrustError`] lists.
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
    // A bundle may hold one that rustls does not take; the others still count.
    roots.add_parsable_certificates(CertificateDer::pem_slice_iter(pem).filter_map(Result::ok));
    if roots.is_empty() {
        return Err(TrustError::Pem { path: path.to_owned(), what: "certificate of an authority" });
    }
    Ok(roots)
}

/// Reads a file of certificates or keys; links are followed.
///
/// # Errors
/// The operating system's, or more than 4 MiB.
pub fn read(path: &Path) -> Result<Vec<u8>, TrustError> {
    fs::read_bounded(path, LARGEST).map_err(|source| TrustError::Read { path: path.to_owned(), source })
}

/// A client that trusts `roots` and shows the certificate, where there is one.
///
/// # Errors
/// A certificate that does not go with its key.
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
