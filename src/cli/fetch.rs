//! HTTP requests of commands: plain HTTP, bounded answers, a time limit.

use std::time::Duration;

use anyhow::{Context as _, bail};
use http::{Request, Uri, header};
use http_body_util::{BodyExt as _, Empty, Limited};
use hyper::body::Bytes;
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;

/// Asks servers; keeps its connection to each.
pub(super) struct Fetcher {
    client: Client<HttpConnector, Empty<Bytes>>,
    /// The largest answer that is read, in bytes.
    largest: usize,
    patience: Duration,
}

impl Fetcher {
    /// Reads answers of at most `largest` bytes that come within `patience`.
    pub(super) fn new(largest: usize, patience: Duration) -> Self {
        Self { client: Client::builder(TokioExecutor::new()).build_http(), largest, patience }
    }

    /// The body of a successful answer to GET.
    ///
    /// # Errors
    /// No answer in time, a status that is no success (with what the server said), or too much.
    pub(super) async fn get(&self, uri: &Uri) -> anyhow::Result<Bytes> {
        let answer = tokio::time::timeout(self.patience, self.ask(uri)).await;
        answer
            .map_err(|_| anyhow::anyhow!("no answer within {} s", self.patience.as_secs()))
            .and_then(|read| read)
            .with_context(|| format!("cannot get {uri}"))
    }

    async fn ask(&self, uri: &Uri) -> anyhow::Result<Bytes> {
        let request =
            Request::get(uri.clone()).header(header::ACCEPT, "application/json").body(Empty::new())?;
        let answer =
            self.client.request(request).await.map_err(|error| match std::error::Error::source(&error) {
                Some(cause) if error.is_connect() => anyhow::anyhow!("{cause} (is it running there?)"),
                _ => anyhow::Error::new(error),
            })?;
        let status = answer.status();
        let body = Limited::new(answer.into_body(), self.largest).collect().await;
        let body = body.map_err(|error| anyhow::anyhow!("the answer broke off: {error}"))?.to_bytes();
        if !status.is_success() {
            let said: String = String::from_utf8_lossy(&body).chars().take(300).collect();
            bail!("it answers {status}: {}", said.trim());
        }
        Ok(body)
    }
}

/// The address that `text` is.
///
/// # Errors
/// No address, no host, or another scheme than http.
pub(super) fn address(text: &str) -> anyhow::Result<Uri> {
    let uri: Uri = text.parse().with_context(|| format!("{text} is no address"))?;
    match uri.scheme_str() {
        Some("http") if uri.host().is_some() => Ok(uri),
        Some("https") => bail!("{text}: https is not supported; use a tunnel or a proxy on this host"),
        _ => bail!("{text} has no scheme; write http:// before it"),
    }
}

/// Text as one part of a query (RFC 3986 section 2.3: all but unreserved characters are encoded).
pub(super) fn encoded(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) {
            out.push(char::from(byte));
        } else {
            out.push_str(&format!("%{byte:02X}"));
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_query_survives_its_way() {
        assert_eq!(encoded("a{b=\"c d\"} > 1"), "a%7Bb%3D%22c%20d%22%7D%20%3E%201");
    }

    #[test]
    fn what_is_no_http_is_said() {
        for (url, why) in [("localhost:9090", "scheme"), ("https://a/", "https"), ("http://[", "no address")]
        {
            let error = format!("{:#}", address(url).unwrap_err());
            assert!(error.contains(why), "{url}: {error}");
        }
    }
}
