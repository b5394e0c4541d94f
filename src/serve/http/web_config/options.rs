//! The keys of a web-config file, with the names of exporter-toolkit.

use crate::model::setting::{Opt, OptKind};

macro_rules! opts {
    ($($(#[doc = $help:literal])+ $id:ident: $key:literal, $kind:expr, $default:literal;)+) => {
        $(pub(super) static $id: Opt = Opt { key: $key, help: concat!($($help),+), kind: $kind, default: $default };)+
    };
}

/// The whole file.
pub(super) static FILE: &[&Opt] = &[&TLS, &HTTP, &USERS, &RATE];
/// The headers that may be set, with their allowed values; an empty list allows any value.
pub(super) static HEADER_VALUES: [(&str, &[&str]); 5] = [
    ("Content-Security-Policy", &[]),
    ("X-Frame-Options", &["deny", "sameorigin"]),
    ("X-Content-Type-Options", &["nosniff"]),
    ("X-XSS-Protection", &[]),
    ("Strict-Transport-Security", &[]),
];

opts! {
    /// TLS; without it connections are not encrypted.
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
    /// The CA certificates that verify clients, PEM.
    CA: "client_ca", OptKind::Text, "\"\"";
    /// A file with the CA certificates that verify clients.
    CA_FILE: "client_ca_file", OptKind::Path, "\"\"";
    /// Client certificate policy.
    AUTH_TYPE: "client_auth_type", OptKind::Text, "\"\"";
    /// Subject alternative names, one of which a client's certificate must have.
    ALLOWED_SANS: "client_allowed_sans", OptKind::Texts, "[]";
    /// Minimum TLS version.
    MIN_VERSION: "min_version", OptKind::Text, "TLS12";
    /// Maximum TLS version.
    MAX_VERSION: "max_version", OptKind::Text, "TLS13";
    /// TLS 1.2 cipher suites; those of TLS 1.3 are always enabled.
    CIPHER_SUITES: "cipher_suites", OptKind::Texts, "[]";
    /// Whether the server's order of cipher suites is preferred.
    PREFER_SERVER: "prefer_server_cipher_suites", OptKind::Bool, "true";
    /// Curves of the key exchange, in the order of preference.
    CURVES: "curve_preferences", OptKind::Texts, "[]";

    /// HTTP.
    HTTP: "http_server_config", OptKind::Section(&[&HTTP2, &HEADERS]), "";
    /// Whether HTTP/2 is offered; it requires TLS.
    HTTP2: "http2", OptKind::Bool, "true";
    /// Headers added to every response.
    HEADERS: "headers", OptKind::Map, "{}";

    /// Users and the bcrypt hashes of their passwords.
    USERS: "basic_auth_users", OptKind::Map, "{}";

    /// Rate limit of requests.
    RATE: "rate_limit", OptKind::Section(&[&INTERVAL, &BURST]), "";
    /// Interval at which one request is allowed; 0 disables the limit.
    INTERVAL: "interval", OptKind::Text, "\"0\"";
    /// Number of requests that may arrive at once.
    BURST: "burst", OptKind::Count(0, 1_000_000), "0";
}
