//! Go's names of TLS versions, cipher suites and curves, as far as rustls has the thing.

use tokio_rustls::rustls::crypto::ring::{ALL_CIPHER_SUITES, ALL_KX_GROUPS};
use tokio_rustls::rustls::version::{TLS12, TLS13};
use tokio_rustls::rustls::{CipherSuite, NamedGroup, SupportedCipherSuite, SupportedProtocolVersion};

use super::options;
use crate::model::setting::Opt;

/// The versions of TLS that are spoken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Versions {
    /// 1.2 only.
    Only12,
    /// 1.3 only.
    Only13,
    /// Both.
    Both,
}

impl Versions {
    /// As rustls wants them.
    pub(super) fn list(self) -> Vec<&'static SupportedProtocolVersion> {
        match self {
            Self::Only12 => vec![&TLS12],
            Self::Only13 => vec![&TLS13],
            Self::Both => vec![&TLS13, &TLS12],
        }
    }
}

/// The range of `min` and `max`, complaining by option.
pub(super) fn versions(min: &str, max: &str, complain: &mut dyn FnMut(&'static Opt, String)) -> Versions {
    let mut new = |opt, text| match text {
        "TLS12" => false,
        "TLS13" => true,
        "TLS10" | "TLS11" => {
            complain(opt, format!("{text} is broken and not supported; the oldest is TLS12"));
            false
        }
        other => {
            complain(opt, format!("`{other}` is not a version of TLS; write TLS12 or TLS13"));
            true
        }
    };
    match (new(&options::MIN_VERSION, min), new(&options::MAX_VERSION, max)) {
        (false, false) => Versions::Only12,
        (true, true) => Versions::Only13,
        (false, true) => Versions::Both,
        (true, false) => {
            complain(&options::MAX_VERSION, "is older than min_version".to_owned());
            Versions::Both
        }
    }
}

/// Go's names of the suites of TLS 1.2 that rustls has.
const SUITES: [(&str, CipherSuite); 6] = [
    ("TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256", CipherSuite::TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256),
    ("TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384", CipherSuite::TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384),
    (
        "TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256",
        CipherSuite::TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256,
    ),
    ("TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256", CipherSuite::TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256),
    ("TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384", CipherSuite::TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384),
    ("TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256", CipherSuite::TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256),
];
/// The suites of TLS 1.3: Go lets them be named and uses all three in any case, and so do we.
const ALWAYS: [&str; 3] =
    ["TLS_AES_128_GCM_SHA256", "TLS_AES_256_GCM_SHA384", "TLS_CHACHA20_POLY1305_SHA256"];

/// The suites of TLS 1.3, and those of TLS 1.2 that are named, in that order; all where none is.
pub(super) fn cipher_suites(
    names: &[String],
    complain: &mut dyn FnMut(usize, String),
) -> Vec<SupportedCipherSuite> {
    if names.is_empty() {
        return ALL_CIPHER_SUITES.to_vec();
    }
    let mut found: Vec<SupportedCipherSuite> =
        ALL_CIPHER_SUITES.iter().filter(|suite| suite.tls13().is_some()).copied().collect();
    for (place, name) in names.iter().enumerate() {
        if ALWAYS.contains(&name.as_str()) {
            continue;
        }
        let suite = SUITES.iter().find(|(known, _)| known == name).and_then(|(_, suite)| {
            ALL_CIPHER_SUITES.iter().find(|supported| supported.suite() == *suite).copied()
        });
        match suite {
            Some(suite) => found.push(suite),
            None if name.contains("_CBC_") || name.contains("_RC4_") || name.starts_with("TLS_RSA_") => {
                complain(
                    place,
                    format!("{name} is weak and not supported; take one with ECDHE and GCM or CHACHA20"),
                );
            }
            None => complain(place, format!("`{name}` is not a supported cipher suite")),
        }
    }
    found
}

/// The curves that are named, in that order.
pub(super) fn curves(names: &[String], complain: &mut dyn FnMut(usize, String)) -> Vec<NamedGroup> {
    let mut found = Vec::new();
    for (place, name) in names.iter().enumerate() {
        let group = match name.as_str() {
            "CurveP256" => Some(NamedGroup::secp256r1),
            "CurveP384" => Some(NamedGroup::secp384r1),
            "X25519" => Some(NamedGroup::X25519),
            _ => None,
        };
        match group.filter(|group| ALL_KX_GROUPS.iter().any(|known| known.name() == *group)) {
            Some(group) => found.push(group),
            None => complain(place, format!("{name} is not supported; take X25519, CurveP256 or CurveP384")),
        }
    }
    found
}
