//! Go's names of TLS versions, cipher suites and curves that rustls supports.

use tokio_rustls::rustls::crypto::ring::{ALL_CIPHER_SUITES, ALL_KX_GROUPS};
use tokio_rustls::rustls::version::{TLS12, TLS13};
use tokio_rustls::rustls::{CipherSuite, NamedGroup, SupportedCipherSuite, SupportedProtocolVersion};

/// TLS versions as rustls values.
pub(super) type Versions = &'static [&'static SupportedProtocolVersion];

const ONLY_12: Versions = &[&TLS12];
const ONLY_13: Versions = &[&TLS13];
const BOTH: Versions = &[&TLS13, &TLS12];

/// The versions from `min` to `max`; mistakes are reported by option.
pub(super) fn versions(min: &str, max: &str, complain: &mut dyn FnMut(&'static str, String)) -> Versions {
    let mut new = |opt, text| match text {
        "TLS12" => false,
        "TLS13" => true,
        "TLS10" | "TLS11" => {
            complain(
                opt,
                format!("{text} is insecure and not supported; the oldest supported version is TLS12"),
            );
            false
        }
        other => {
            complain(opt, format!("`{other}` is not a TLS version; use TLS12 or TLS13"));
            true
        }
    };
    match (new("min_version", min), new("max_version", max)) {
        (false, false) => ONLY_12,
        (true, true) => ONLY_13,
        (false, true) => BOTH,
        (true, false) => {
            complain("max_version", "is older than min_version".to_owned());
            BOTH
        }
    }
}

/// Go's names of the TLS 1.2 suites that rustls supports.
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
/// The TLS 1.3 suites: as in Go, they may be named and are always enabled.
const ALWAYS: [&str; 3] =
    ["TLS_AES_128_GCM_SHA256", "TLS_AES_256_GCM_SHA384", "TLS_CHACHA20_POLY1305_SHA256"];

/// The TLS 1.3 suites, then the named TLS 1.2 suites in their order; all suites if none is named.
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
                    format!("{name} is weak and not supported; use a suite with ECDHE and GCM or CHACHA20"),
                );
            }
            None => complain(place, format!("`{name}` is not a supported cipher suite")),
        }
    }
    found
}

/// The named curves, in their order.
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
            None => complain(place, format!("{name} is not supported; use X25519, CurveP256 or CurveP384")),
        }
    }
    found
}
