//! Parses the text of a web-config file and checks it without reading the files it names.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use http::{HeaderName, HeaderValue};
use tokio_rustls::rustls::{NamedGroup, SupportedCipherSuite};

use super::{names, options};
use crate::model::setting;
use crate::model::setting::problem::ConfigError;
use crate::model::setting::reader::parse_section;

/// A checked web-config file.
#[derive(Debug)]
pub(super) struct Document {
    pub(super) tls: Option<Tls>,
    pub(super) http2: bool,
    pub(super) headers: Vec<(HeaderName, HeaderValue)>,
    pub(super) users: BTreeMap<String, String>,
    pub(super) rate: Option<Rate>,
}

#[derive(Debug)]
pub(super) struct Tls {
    pub(super) cert: Pem,
    pub(super) key: Pem,
    pub(super) client_ca: Option<Pem>,
    pub(super) clients: Clients,
    pub(super) allowed_sans: Vec<String>,
    pub(super) versions: names::Versions,
    pub(super) cipher_suites: Vec<SupportedCipherSuite>,
    pub(super) server_order: bool,
    /// Empty for the defaults of the library.
    pub(super) curves: Vec<NamedGroup>,
}

/// Location of PEM text.
#[derive(Clone, Debug)]
pub(super) enum Pem {
    /// In the document itself.
    Inline(String),
    File(PathBuf),
}

/// Client certificate policy (`client_auth_type`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Clients {
    /// No certificate is requested (`NoClientCert`).
    Anybody,
    /// An optional certificate, not verified (`RequestClientCert`).
    Ask,
    /// A required certificate, not verified (`RequireAnyClientCert`).
    RequireAny,
    /// An optional certificate, verified against the CAs (`VerifyClientCertIfGiven`).
    VerifyGiven,
    /// A required certificate, verified against the CAs (`RequireAndVerifyClientCert`).
    RequireVerified,
}

impl Clients {
    /// Whether a certificate that a client presents is verified.
    pub(super) const fn verifies(self) -> bool {
        matches!(self, Self::VerifyGiven | Self::RequireVerified)
    }
}

/// Rate limit: one request per `interval`, at most `burst` at once.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rate {
    pub(super) interval: Duration,
    pub(super) burst: u64,
}

/// Parses the text; `path` is used in messages and to resolve relative paths.
pub(super) fn parse(text: &str, path: &Path) -> Result<Document, ConfigError> {
    parse_section(text, path, |file: options::File, complain| Document {
        tls: tls(file.tls_server_config, complain),
        http2: file.http_server_config.http2,
        headers: headers(&file.http_server_config.headers, complain),
        users: users(file.basic_auth_users, complain),
        rate: rate(&file.rate_limit, complain),
    })
}

type Complain<'a> = &'a mut dyn FnMut(&str, String);

fn tls(keys: options::Tls, complain: Complain<'_>) -> Option<Tls> {
    let mut pem = |key: &str, inline: Option<String>, file: Option<PathBuf>| match (inline, file) {
        (Some(_), Some(_)) => {
            complain(&tls_key(key), format!("conflicts with {key}_file; set only one of them"));
            None
        }
        (Some(text), None) => Some(Pem::Inline(text)),
        (None, path) => path.map(Pem::File),
    };
    let cert = pem("cert", keys.cert, keys.cert_file);
    let key_pem = pem("key", keys.key, keys.key_file);
    let client_ca = pem("client_ca", keys.client_ca, keys.client_ca_file);
    let auth_type = keys.client_auth_type;
    let clients = match auth_type.as_deref() {
        None | Some("NoClientCert") => Clients::Anybody,
        Some("RequestClientCert") => Clients::Ask,
        Some("RequireAnyClientCert" | "RequireClientCert") => Clients::RequireAny,
        Some("VerifyClientCertIfGiven") => Clients::VerifyGiven,
        Some("RequireAndVerifyClientCert") => Clients::RequireVerified,
        Some(other) => {
            let what = format!(
                "`{other}` is not one of NoClientCert, RequestClientCert, RequireAnyClientCert, \
                 VerifyClientCertIfGiven, RequireAndVerifyClientCert"
            );
            complain(&tls_key("client_auth_type"), what);
            Clients::Anybody
        }
    };
    let versions =
        names::versions(&keys.min_version, &keys.max_version, &mut |key, what| complain(&tls_key(key), what));
    let mut named = |key: &str, place: usize, what| complain(&format!("{}[{place}]", tls_key(key)), what);
    let cipher_suites = names::cipher_suites(&keys.cipher_suites, &mut |place, what| {
        named("cipher_suites", place, what);
    });
    let curves = names::curves(&keys.curve_preferences, &mut |place, what| {
        named("curve_preferences", place, what);
    });
    // As in exporter-toolkit, TLS is enabled by any of these keys, not by the presence of the section.
    if cert.is_none() && key_pem.is_none() && client_ca.is_none() && auth_type.is_none() {
        return None;
    }
    if client_ca.is_some() && clients == Clients::Anybody {
        complain(
            &tls_key("client_auth_type"),
            "must be set because client_ca or client_ca_file is set, for example to RequireAndVerifyClientCert".to_owned(),
        );
    }
    if client_ca.is_none() && matches!(clients, Clients::VerifyGiven | Clients::RequireVerified) {
        complain(
            &tls_key("client_auth_type"),
            "verifies client certificates and requires client_ca or client_ca_file".to_owned(),
        );
    }
    match (cert, key_pem) {
        (Some(cert), Some(key)) => Some(Tls {
            cert,
            key,
            client_ca,
            clients,
            allowed_sans: keys.client_allowed_sans,
            versions,
            cipher_suites,
            server_order: keys.prefer_server_cipher_suites,
            curves,
        }),
        (None, _) => {
            complain("tls_server_config", "has neither cert nor cert_file".to_owned());
            None
        }
        (_, None) => {
            complain("tls_server_config", "has neither key nor key_file".to_owned());
            None
        }
    }
}

fn headers(written: &BTreeMap<String, String>, complain: Complain<'_>) -> Vec<(HeaderName, HeaderValue)> {
    let mut found = Vec::new();
    for (name, text) in written {
        let key = format!("http_server_config.headers.{name}");
        let Some((_, allowed)) = options::HEADER_VALUES.iter().find(|(known, _)| known == name) else {
            let known = options::HEADER_VALUES.map(|(known, _)| known).join(", ");
            complain(&key, format!("unknown key; known here: {known}"));
            continue;
        };
        // A map keeps YAML's null values as text.
        if matches!(text.as_str(), "" | "~" | "null") {
            complain(&key, "is empty; remove the header instead".to_owned());
            continue;
        }
        if !allowed.is_empty() && !allowed.contains(&text.as_str()) {
            complain(&key, format!("expected {}, found `{text}`", allowed.join(" or ")));
            continue;
        }
        match (HeaderName::try_from(name), HeaderValue::try_from(text)) {
            (Ok(name), Ok(value)) => found.push((name, value)),
            _ => complain(&key, "has characters that are not valid in a header".to_owned()),
        }
    }
    found
}

fn users(users: BTreeMap<String, String>, complain: Complain<'_>) -> BTreeMap<String, String> {
    for (user, hash) in &users {
        // The message does not include the hash, because it is logged.
        if hash.parse::<bcrypt::HashParts>().is_err() {
            complain(
                &format!("basic_auth_users.{user}"),
                "is not a bcrypt hash; make one with: htpasswd -nBC 10 \"\"".to_owned(),
            );
        }
    }
    users
}

fn rate(keys: &options::Rate, complain: Complain<'_>) -> Option<Rate> {
    let text = &keys.interval;
    let Some(interval) = go_duration(text) else {
        let what =
            format!("`{text}` is not a duration; write one such as 1s, 500ms or 1m30s, or 0 for no limit");
        complain("rate_limit.interval", what);
        return None;
    };
    let burst = keys.burst;
    if interval.is_zero() {
        return None;
    }
    if burst == 0 {
        complain("rate_limit.burst", "is 0, so that every request would be refused".to_owned());
    }
    Some(Rate { interval, burst })
}

/// Parses a duration in Go's syntax: a sequence of numbers with units.
fn go_duration(text: &str) -> Option<Duration> {
    if text == "0" {
        return Some(Duration::ZERO);
    }
    let scale = |unit: &str| match unit {
        "ns" => Some(1e-9),
        "us" | "µs" | "μs" => Some(1e-6),
        "ms" => Some(1e-3),
        "s" => Some(1.0),
        "m" => Some(60.0),
        "h" => Some(3600.0),
        _ => None,
    };
    setting::time_span(text, scale).filter(|_| !text.is_empty() && !text.contains(char::is_whitespace))
}

fn tls_key(key: &str) -> String {
    format!("tls_server_config.{key}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use expect_test::{Expect, expect};

    fn refused(text: &str, expected: Expect) {
        expected.assert_eq(&parse(text, Path::new("web.yml")).unwrap_err().to_string());
    }

    #[test]
    fn mistakes_are_named_with_their_lines() {
        refused(
            "tls_server_config:\n  cert_file: c.pem\n  min_version: TLS11\n  cipher_suites:\n    - TLS_ECDHE_RSA_WITH_AES_128_CBC_SHA\n    - NONSENSE\n  curve_preferences: [CurveP521]\n  client_auth_type: Maybe\n",
            expect![[r#"
                web.yml:1: tls_server_config: has neither key nor key_file
                web.yml:3: tls_server_config.min_version: TLS11 is insecure and not supported; the oldest supported version is TLS12
                web.yml:5: tls_server_config.cipher_suites[0]: TLS_ECDHE_RSA_WITH_AES_128_CBC_SHA is weak and not supported; use a suite with ECDHE and GCM or CHACHA20
                web.yml:6: tls_server_config.cipher_suites[1]: `NONSENSE` is not a supported cipher suite
                web.yml:7: tls_server_config.curve_preferences[0]: CurveP521 is not supported; use X25519, CurveP256 or CurveP384
                web.yml:8: tls_server_config.client_auth_type: `Maybe` is not one of NoClientCert, RequestClientCert, RequireAnyClientCert, VerifyClientCertIfGiven, RequireAndVerifyClientCert"#]],
        );
        refused(
            "http_server_config:\n  headers:\n    X-Frame-Options: allow\n    Server: x\nbasic_auth_users:\n  alice: secret\nrate_limit:\n  interval: 5\n  burst: -1\n",
            expect![[r#"
                web.yml:3: http_server_config.headers.X-Frame-Options: expected deny or sameorigin, found `allow`
                web.yml:4: http_server_config.headers.Server: unknown key; known here: Content-Security-Policy, X-Frame-Options, X-Content-Type-Options, X-XSS-Protection, Strict-Transport-Security
                web.yml:6: basic_auth_users.alice: is not a bcrypt hash; make one with: htpasswd -nBC 10 ""
                web.yml:8: rate_limit.interval: `5` is not a duration; write one such as 1s, 500ms or 1m30s, or 0 for no limit
                web.yml:9: rate_limit.burst: expected a whole number, found `-1`"#]],
        );
    }

    #[test]
    fn durations_are_those_of_go() {
        for (text, ms) in
            [("0", 0), ("1s", 1000), ("500ms", 500), ("1m30s", 90_000), ("1.5s", 1500), ("1000us", 1)]
        {
            assert_eq!(go_duration(text), Some(Duration::from_millis(ms)), "{text}");
        }
        for text in ["", "5", "s", "1d", "-1s", "1s5", "1..5s", "1e400h"] {
            assert_eq!(go_duration(text), None, "{text}");
        }
    }

    proptest::proptest! {
        #[test]
        fn no_text_panics(text in "((tls_server_config|rate_limit|headers|http2|cert|interval|burst|alice)(: |:\n  )|[a-z0-9{}\\[\\]&*'\"-]{0,4}|\n){0,20}") {
            let _ = parse(&text, Path::new("web.yml"));
            let _ = go_duration(&text);
        }
    }
}
