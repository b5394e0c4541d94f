//! The keys of a web-config file, by the names exporter-toolkit gave them.

use crate::model::setting::{Opt, OptKind};

macro_rules! opts {
    ($($(#[doc = $help:literal])+ $id:ident: $key:literal, $kind:expr, $default:literal;)+) => {
        $(pub(super) static $id: Opt = Opt { key: $key, help: concat!($($help),+), kind: $kind, default: $default };)+
    };
}

/// The whole file.
pub(super) static FILE: &[&Opt] = &[&TLS, &HTTP, &USERS, &RATE];
/// The headers that may be set, with the values that are allowed where not all are.
pub(super) static HEADER_VALUES: [(&str, &[&str]); 5] = [
    ("Content-Security-Policy", &[]),
    ("X-Frame-Options", &["deny", "sameorigin"]),
    ("X-Content-Type-Options", &["nosniff"]),
    ("X-XSS-Protection", &[]),
    ("Strict-Transport-Security", &[]),
];

opts! {
    /// TLS; without it connections are in the clear.
    TLS: "tls_server_config", OptKind::Section(&[
        &CERT, &CERT_FILE, &KEY, &KEY_FILE, &CA, &CA_FILE, &AUTH_TYPE, &ALLOWED_SANS, &MIN_VERSION, &MAX_VERSION,
        &CIPHER_SUITES, &PREFER_SERVER, &CURVES,
    ]), "";
    /// The server's certificate chain, PEM.
    CERT: "cert", OptKind::Text, "\"\"";
    /// A file with the server's certificate chain.
    CERT_FILE: "cert_file", OptKind::Path, "\"\"";
    /// The server's key, PEM.
    KEY: "key", OptKind::Text, "\"\"";
    /// A file with the server's key.
    KEY_FILE: "key_file", OptKind::Path, "\"\"";
    /// The authorities of client certificates, PEM.
    CA: "client_ca", OptKind::Text, "\"\"";
    /// A file with the authorities of client certificates.
    CA_FILE: "client_ca_file", OptKind::Path, "\"\"";
    /// What is asked of clients.
    AUTH_TYPE: "client_auth_type", OptKind::Text, "\"\"";
    /// Subject alternative names, one of which a client's certificate must have.
    ALLOWED_SANS: "client_allowed_sans", OptKind::Texts, "[]";
    /// The oldest version of TLS.
    MIN_VERSION: "min_version", OptKind::Text, "TLS12";
    /// The newest version of TLS.
    MAX_VERSION: "max_version", OptKind::Text, "TLS13";
    /// Cipher suites of TLS 1.2; those of TLS 1.3 are always on.
    CIPHER_SUITES: "cipher_suites", OptKind::Texts, "[]";
    /// Whether the server's order of cipher suites counts.
    PREFER_SERVER: "prefer_server_cipher_suites", OptKind::Bool, "true";
    /// Curves of the key exchange, in the order of preference.
    CURVES: "curve_preferences", OptKind::Texts, "[]";

    /// HTTP.
    HTTP: "http_server_config", OptKind::Section(&[&HTTP2, &HEADERS]), "";
    /// Whether HTTP/2 is offered, which takes TLS.
    HTTP2: "http2", OptKind::Bool, "true";
    /// Headers added to every answer.
    HEADERS: "headers", OptKind::Map, "{}";

    /// Users and the bcrypt hashes of their passwords.
    USERS: "basic_auth_users", OptKind::Map, "{}";

    /// The most requests over time.
    RATE: "rate_limit", OptKind::Section(&[&INTERVAL, &BURST]), "";
    /// One request is allowed each such time; 0 is no limit.
    INTERVAL: "interval", OptKind::Text, "\"0\"";
    /// So many requests may come at once.
    BURST: "burst", OptKind::Count(0, 1_000_000), "0";
}
