//! HTTP requests of commands: to the daemon of this node over its socket, and to other servers.
//!
//! An `https` server must be certified by an authority of the distribution, or one in the file that
//! `SSL_CERT_FILE` names.

use std::time::Duration;

use anyhow::{Context as _, anyhow, bail};
use bytes::Bytes;
use http::{Method, Request, Uri, header};
use http_body_util::Full;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use tokio::runtime::Runtime;

use crate::config;
use crate::host::http_client::{self, HttpClient, HttpError};
use crate::host::tls::Trust;
use crate::node_view::events::Event;

/// Largest answer of a daemon that is read, in bytes: 40 times the view of a busy node.
pub(super) const LARGEST: usize = 64 << 20;
/// The daemon answers at once.
pub(super) const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);

/// The part of an answer of `/api/v1/history` that is read.
#[derive(Deserialize)]
pub(super) struct History {
    /// The first series is memory in use.
    pub(super) series: Vec<KeptSeries>,
    pub(super) events: Vec<Event>,
}

#[derive(Deserialize)]
pub(super) struct KeptSeries {
    /// Start of each step in seconds since 1970, with the smallest and the largest value.
    pub(super) points: Vec<(f64, Option<f64>, Option<f64>)>,
}

/// A runtime for the requests of a command.
pub fn runtime() -> anyhow::Result<Runtime> {
    tokio::runtime::Builder::new_current_thread().enable_all().build().context("cannot start the runtime")
}

/// The answer of the daemon at `url` to GET of a path.
///
/// # Errors
/// As [`Fetcher::new`] and [`Fetcher::json`].
pub(super) fn json<T: DeserializeOwned>(url: &str, path: &str, patience: Duration) -> anyhow::Result<T> {
    let fetcher = Fetcher::new(url, LARGEST, patience)?;
    runtime()?.block_on(fetcher.json(path))
}

/// The URL of the socket of the daemon of this node.
pub(super) fn local() -> String {
    format!("{LOCAL}{}", config::default_socket().display())
}

/// The beginning of the URL of a socket.
const LOCAL: &str = "unix:";

/// Sends requests to one server.
#[derive(Debug)]
pub struct Fetcher {
    /// Its URL, without a slash at its end.
    pub url: String,
    client: HttpClient,
}

impl Fetcher {
    /// Opens the server at `http://host:port`, `https://host:port`, with or without a path before `/api`, or
    /// `unix:/path/of/socket`; reads answers of at most `largest` bytes that arrive within `patience`.
    ///
    /// # Errors
    /// A wrong URL; for `https`, authorities that cannot be read.
    pub fn new(url: &str, largest: usize, patience: Duration) -> anyhow::Result<Self> {
        let url = url.trim_end_matches('/').to_owned();
        let client = match url.strip_prefix(LOCAL) {
            Some(socket) => HttpClient::local(socket.into(), largest, patience),
            None => HttpClient::new(&address(&url)?, &Trust::of(None), largest, patience)
                .with_context(|| format!("cannot get {url}"))?,
        };
        Ok(Self { url, client })
    }

    /// The body of a successful answer to GET of a path below the URL.
    ///
    /// # Errors
    /// No answer in time, a status other than success (with the text of the server), or an answer above the limit.
    pub async fn get(&self, path: &str) -> anyhow::Result<Bytes> {
        self.ask(path, None).await.with_context(|| format!("cannot get {}{path}", self.url))
    }

    /// The body of a successful answer to POST of JSON to a path below the URL.
    ///
    /// # Errors
    /// As [`Fetcher::get`].
    pub(super) async fn post(&self, path: &str, json: Vec<u8>) -> anyhow::Result<Bytes> {
        self.ask(path, Some(json)).await.with_context(|| format!("cannot post to {}{path}", self.url))
    }

    /// The answer of a daemon to GET of a path below its URL.
    ///
    /// # Errors
    /// As [`Fetcher::get`], and an answer of another program.
    pub(super) async fn json<T: DeserializeOwned>(&self, path: &str) -> anyhow::Result<T> {
        let body = self.get(path).await?;
        let answer = serde_json::from_slice(&body);
        answer.map_err(|_| anyhow!("{}{path} does not answer as memwarden does", self.url))
    }

    /// What a daemon keeps of the subject, and in the range, that `query` names.
    ///
    /// # Errors
    /// As [`Fetcher::json`]; a subject of which nothing is kept.
    pub(super) async fn history(&self, query: &str) -> anyhow::Result<History> {
        self.json(&format!("/api/v1/history?{query}")).await
    }

    async fn ask(&self, path: &str, json: Option<Vec<u8>>) -> anyhow::Result<Bytes> {
        let request = match self.url.strip_prefix(LOCAL) {
            // The socket has no name, and HTTP requires one.
            Some(_) => Request::builder().uri(path).header(header::HOST, "localhost"),
            None => Request::builder().uri(address(&format!("{}{path}", self.url))?),
        };
        let request = match &json {
            Some(_) => request.method(Method::POST).header(header::CONTENT_TYPE, "application/json"),
            None => request,
        };
        let body = json.map_or_else(Full::default, Full::from);
        let request = request.header(header::ACCEPT, "application/json").body(body)?;
        let answer = self.client.exchange(request).await.map_err(|error| match error {
            HttpError::Connect(why) => anyhow!("{why} (is it running there?)"),
            HttpError::Certificate(_) => {
                anyhow!("{error}; SSL_CERT_FILE can name a file with its authority")
            }
            error => error.into(),
        });
        let (status, body) = answer?;
        let body = body?;
        if !status.is_success() {
            let message: String = String::from_utf8_lossy(&body).chars().take(300).collect();
            bail!("it answers {status}: {}", message.trim());
        }
        Ok(body)
    }
}

/// Parses an address.
///
/// # Errors
/// No address, no host, or another scheme than http and https.
fn address(text: &str) -> anyhow::Result<Uri> {
    http_client::address(text).map_err(|why| anyhow!("{text} {why}"))
}

/// Characters other than the unreserved ones of RFC 3986 section 2.3.
const RESERVED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');

/// Text as one part of a query: all but unreserved characters are encoded.
pub fn encoded(text: &str) -> String {
    utf8_percent_encode(text, RESERVED).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_query_survives_its_way() {
        assert_eq!(encoded("a{b=\"c d\"} > 1"), "a%7Bb%3D%22c%20d%22%7D%20%3E%201");
    }

    #[test]
    fn a_reply_that_is_not_http_is_reported() {
        assert!(address("https://a/").is_ok());
        for (url, why) in [
            ("localhost:9090", "has no scheme"),
            ("127.0.0.1:21000/api/v1/node", "has no scheme"),
            ("ftp://a/", "a scheme other than http"),
            ("http:///", "not a valid URL"),
            ("http://[", "not a valid URL"),
        ] {
            let error = format!("{:#}", address(url).unwrap_err());
            assert!(error.contains(why), "{url}: {error}");
        }
    }
}
