//! The keys of a web-config file, with the names of exporter-toolkit.

use std::collections::BTreeMap;
use std::path::PathBuf;

/// The headers that may be set, with their allowed values; an empty list allows any value.
pub(super) static HEADER_VALUES: [(&str, &[&str]); 5] = [
    ("Content-Security-Policy", &[]),
    ("X-Frame-Options", &["deny", "sameorigin"]),
    ("X-Content-Type-Options", &["nosniff"]),
    ("X-XSS-Protection", &[]),
    ("Strict-Transport-Security", &[]),
];

crate::options! {
    /// The whole file.
    pub(super) struct File {
        /// TLS; without it connections are not encrypted.
        tls_server_config: Tls;
        /// HTTP.
        http_server_config: Http;
        /// Users and the bcrypt hashes of their passwords.
        basic_auth_users: BTreeMap<String, String>;
        /// Rate limit of requests.
        rate_limit: Rate;
    }

    /// TLS.
    pub(super) struct Tls {
        /// The server's certificate chain, PEM.
        cert: Option<String>;
        /// A file with the server's certificate chain.
        cert_file: Option<PathBuf>;
        /// The server's key, PEM.
        key: Option<String>;
        /// A file with the server's key.
        key_file: Option<PathBuf>;
        /// The CA certificates that verify clients, PEM.
        client_ca: Option<String>;
        /// A file with the CA certificates that verify clients.
        client_ca_file: Option<PathBuf>;
        /// Client certificate policy.
        client_auth_type: Option<String>;
        /// Subject alternative names, one of which a client's certificate must have.
        client_allowed_sans: Vec<String>;
        /// Minimum TLS version.
        min_version: String = TLS12;
        /// Maximum TLS version.
        max_version: String = TLS13;
        /// TLS 1.2 cipher suites; those of TLS 1.3 are always enabled.
        cipher_suites: Vec<String>;
        /// Whether the server's order of cipher suites is preferred.
        prefer_server_cipher_suites: bool = true;
        /// Curves of the key exchange, in the order of preference.
        curve_preferences: Vec<String>;
    }

    /// HTTP.
    pub(super) struct Http {
        /// Whether HTTP/2 is offered; it requires TLS.
        http2: bool = true;
        /// Headers added to every response.
        headers: BTreeMap<String, String>;
    }

    /// A rate limit.
    pub(super) struct Rate {
        /// Interval at which one request is allowed; 0 disables the limit.
        interval: String = "0";
        /// Number of requests that may arrive at once.
        burst: u64 = 0 in 0..=1000000;
    }
}
