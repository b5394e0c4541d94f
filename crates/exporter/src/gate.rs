//! Refuses requests that a web page of another site makes a browser send.
//!
//! There are two such attacks. In cross-site request forgery the page addresses this server and sends a request whose
//! response it cannot read, but whose effect remains: a browser adds `Origin` to such requests, and `Sec-Fetch-Site`
//! where it supports it. In DNS rebinding the page's own name is resolved to this server's address, and the browser
//! takes both for one site: then `Host` has that name.

use std::net::IpAddr;
use std::str::FromStr as _;

use http::uri::Authority;
use http::{Method, StatusCode, header, request};

use super::answer::Answer;

/// The host names that this server accepts.
#[derive(Debug)]
pub struct Gate {
    /// `web.allowed_hosts`, lower case.
    allowed: Vec<String>,
    /// The host's own name, lower case.
    own: Option<String>,
}

impl Gate {
    pub fn new(allowed: &[String], own: Option<String>) -> Self {
        Self {
            allowed: allowed.iter().map(|name| name.to_ascii_lowercase()).collect(),
            own: own.map(|name| name.to_ascii_lowercase()).filter(|name| !name.is_empty()),
        }
    }

    /// The response to a refused request; absent for an accepted one. `local` is the local address of the connection.
    pub fn refusal(&self, request: &request::Parts, local: IpAddr) -> Option<Answer> {
        let host = match host(request) {
            Ok(host) => host,
            Err(()) => {
                return Some(refuse(
                    StatusCode::BAD_REQUEST,
                    "The Host header must contain exactly one host name.",
                ));
            }
        };
        if let Some(host) = &host
            && !self.answers_to(host.host(), local)
        {
            let sentence = "The host name in the Host header is not allowed; \
                            web.allowed_hosts lists the allowed names.";
            return Some(refuse(StatusCode::MISDIRECTED_REQUEST, sentence));
        }
        let cross_site = request.headers.get_all("sec-fetch-site").iter().any(|site| site == "cross-site")
            && !matches!(request.method, Method::GET | Method::HEAD);
        let foreign = request.headers.get_all(header::ORIGIN).iter().any(|origin| {
            let same = origin.to_str().is_ok_and(|origin| same_site(origin, host.as_ref()));
            !same
        });
        (cross_site || foreign).then(|| refuse(StatusCode::FORBIDDEN, "Cross-site requests are refused."))
    }

    /// Whether `name` can be this server's name.
    ///
    /// An address or `localhost` needs no DNS, so it cannot be the name of a foreign page. Any other name can. On
    /// addresses that other hosts reach, Prometheus may know this node by a name that the node itself does not know,
    /// so that there only a configured list refuses a name.
    fn answers_to(&self, name: &str, local: IpAddr) -> bool {
        let name = name.trim_end_matches('.').to_ascii_lowercase();
        let bare = name.strip_prefix('[').and_then(|name| name.strip_suffix(']')).unwrap_or(&name);
        bare.parse::<IpAddr>().is_ok()
            || name == "localhost"
            || name.ends_with(".localhost")
            || self.own.as_ref() == Some(&name)
            || self.allowed.contains(&name)
            || (self.allowed.is_empty() && !local.to_canonical().is_loopback())
    }
}

/// The host that a request names; absent where it names none, which no browser does.
fn host(request: &request::Parts) -> Result<Option<Authority>, ()> {
    if let Some(authority) = request.uri.authority() {
        return Ok(Some(authority.clone()));
    }
    let mut given = request.headers.get_all(header::HOST).iter();
    let Some(first) = given.next() else { return Ok(None) };
    if given.next().is_some() {
        return Err(());
    }
    let text = first.to_str().map_err(drop)?;
    let authority = Authority::from_str(text).map_err(drop)?;
    // Only a host and an optional port are allowed.
    let port = text.strip_prefix(authority.host()).ok_or(())?;
    let plain = port.is_empty() || port.strip_prefix(':').is_some_and(|port| port.parse::<u16>().is_ok());
    if plain { Ok(Some(authority)) } else { Err(()) }
}

/// Whether an `Origin` is the requested host.
fn same_site(origin: &str, host: Option<&Authority>) -> bool {
    let Some((_, origin)) = origin.split_once("://") else { return false };
    host.is_some_and(|host| host.as_str().eq_ignore_ascii_case(origin))
}

fn refuse(status: StatusCode, sentence: &'static str) -> Answer {
    Answer::text(status, sentence).closing()
}

#[cfg(test)]
mod tests {
    use http::Request;

    use super::*;

    const LOOPBACK: &str = "127.0.0.1";
    const LAN: &str = "10.0.0.7";

    /// The status of the refusal; 0 where the request is let through.
    fn code(gate: &Gate, local: &str, method: &str, headers: &[(&str, &str)]) -> u16 {
        let mut request = Request::builder().method(method).uri("/metrics");
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let (parts, ()) = request.body(()).unwrap().into_parts();
        gate.refusal(&parts, local.parse().unwrap()).map_or(0, |answer| answer.code())
    }

    #[test]
    fn a_foreign_name_is_refused_where_only_this_host_can_connect() {
        let gate = Gate::new(&[], Some("Node7".to_owned()));
        for host in ["localhost:10636", "127.0.0.1:10636", "[::1]:10636", "node7", "NODE7:1", "a.localhost"] {
            assert_eq!(code(&gate, LOOPBACK, "GET", &[("host", host)]), 0, "{host}");
        }
        for host in ["evil.example", "evil.example:10636", "node7.evil.example", "127.0.0.1.evil.example"] {
            assert_eq!(code(&gate, LOOPBACK, "GET", &[("host", host)]), 421, "{host}");
            assert_eq!(code(&gate, "::ffff:127.0.0.1", "GET", &[("host", host)]), 421, "{host}");
            assert_eq!(code(&gate, LAN, "GET", &[("host", host)]), 0, "{host}");
        }
        assert_eq!(code(&gate, LOOPBACK, "GET", &[]), 0, "no browser leaves the name out");
        for host in ["a b", "evil.example@localhost", "[::1].evil.example", "localhost:1x", "localhost:"] {
            assert_eq!(code(&gate, LOOPBACK, "GET", &[("host", host)]), 400, "{host}");
        }
        assert_eq!(code(&gate, LOOPBACK, "GET", &[("host", "localhost"), ("host", "evil.example")]), 400);
    }

    #[test]
    fn a_list_of_names_holds_on_every_address() {
        let gate = Gate::new(&["Metrics.Example".to_owned()], None);
        for local in [LOOPBACK, LAN] {
            assert_eq!(code(&gate, local, "GET", &[("host", "metrics.example:443")]), 0);
            assert_eq!(code(&gate, local, "GET", &[("host", "other.example")]), 421);
            assert_eq!(code(&gate, local, "GET", &[("host", "10.0.0.7")]), 0);
        }
    }

    #[test]
    fn a_page_of_another_site_is_refused() {
        let gate = Gate::new(&[], None);
        let host = ("host", "10.0.0.7:10636");
        for origin in
            ["http://evil.example", "null", "http://10.0.0.7", "http://10.0.0.7:80", "", "10.0.0.7:10636"]
        {
            assert_eq!(code(&gate, LAN, "POST", &[host, ("origin", origin)]), 403, "{origin}");
        }
        assert_eq!(code(&gate, LAN, "POST", &[host, ("origin", "http://10.0.0.7:10636")]), 0);
        assert_eq!(code(&gate, LAN, "POST", &[host]), 0, "curl and Alertmanager send no Origin");
        assert_eq!(code(&gate, LAN, "POST", &[host, ("sec-fetch-site", "cross-site")]), 403);
        assert_eq!(
            code(&gate, LAN, "GET", &[host, ("sec-fetch-site", "cross-site")]),
            0,
            "a link to the page"
        );
    }
}
