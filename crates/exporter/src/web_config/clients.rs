//! Verification of client certificates: the five policies of Go's `crypto/tls`, and allowed names.

use std::net::IpAddr;
use std::sync::Arc;

use tokio_rustls::rustls::client::danger::HandshakeSignatureValid;
use tokio_rustls::rustls::crypto::{self, WebPkiSupportedAlgorithms};
use tokio_rustls::rustls::pki_types::{CertificateDer, UnixTime};
use tokio_rustls::rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use tokio_rustls::rustls::{
    CertificateError, DigitallySignedStruct, DistinguishedName, Error, SignatureScheme,
};
use x509_parser::extensions::GeneralName;

use super::document::Clients;

/// The client certificate policy of a server.
#[derive(Debug)]
pub(super) struct ClientRule {
    pub(super) clients: Clients,
    /// Verifies certificates against the configured CAs, where the policy requires it.
    pub(super) verified: Option<Arc<dyn ClientCertVerifier>>,
    /// Allowed subject alternative names; empty allows any. Checked for every presented certificate, whatever the
    /// policy.
    pub(super) allowed_sans: Vec<String>,
    pub(super) algorithms: WebPkiSupportedAlgorithms,
}

impl ClientCertVerifier for ClientRule {
    fn offer_client_auth(&self) -> bool {
        self.clients != Clients::Anybody
    }

    fn client_auth_mandatory(&self) -> bool {
        matches!(self.clients, Clients::RequireAny | Clients::RequireVerified)
    }

    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        self.verified.as_ref().map_or(&[], |verified| verified.root_hint_subjects())
    }

    fn verify_client_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        if let Some(verified) = &self.verified {
            verified.verify_client_cert(end_entity, intermediates, now)?;
        }
        if self.allowed_sans.is_empty()
            || names(end_entity)?.iter().any(|name| self.allowed_sans.contains(name))
        {
            Ok(ClientCertVerified::assertion())
        } else {
            Err(CertificateError::ApplicationVerificationFailure.into())
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        crypto::verify_tls12_signature(message, certificate, signature, &self.algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        crypto::verify_tls13_signature(message, certificate, signature, &self.algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.algorithms.supported_schemes()
    }
}

/// The DNS, e-mail, IP address and URI names of a certificate, as text.
fn names(certificate: &CertificateDer<'_>) -> Result<Vec<String>, Error> {
    let bad = || Error::InvalidCertificate(CertificateError::BadEncoding);
    let (_, certificate) = x509_parser::parse_x509_certificate(certificate).map_err(|_| bad())?;
    let Some(extension) = certificate.subject_alternative_name().map_err(|_| bad())? else {
        return Ok(Vec::new());
    };
    let name = |name: &GeneralName<'_>| match name {
        GeneralName::DNSName(text) | GeneralName::RFC822Name(text) | GeneralName::URI(text) => {
            Some((*text).to_owned())
        }
        GeneralName::IPAddress(bytes) => match bytes.len() {
            4 => <[u8; 4]>::try_from(*bytes).ok().map(|bytes| IpAddr::from(bytes).to_string()),
            16 => <[u8; 16]>::try_from(*bytes).ok().map(|bytes| IpAddr::from(bytes).to_string()),
            _ => None,
        },
        _ => None,
    };
    Ok(extension.value.general_names.iter().filter_map(name).collect())
}
