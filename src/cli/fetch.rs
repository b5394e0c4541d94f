//! One HTTP request of a command: plain HTTP, a bounded answer, a time limit.

use std::time::Duration;

use anyhow::{Context as _, bail};
use http_body_util::{BodyExt as _, Empty, Limited};
use hyper::body::Bytes;
use hyper_util::client::legacy::Client;
use hyper_util::rt::TokioExecutor;

/// A month of a series at 15 s has 7 MB.
const LARGEST: usize = 256 << 20;
/// A server that computes for longer than this is asked for too much.
const PATIENCE: Duration = Duration::from_secs(120);

/// The body of a successful answer to GET.
///
/// # Errors
/// No address, no answer in two minutes, a status that is no success (with what the server said), or too much.
pub(super) fn get(url: &str) -> anyhow::Result<Vec<u8>> {
    let uri: http::Uri = url.parse().with_context(|| format!("{url} is no address"))?;
    match uri.scheme_str() {
        Some("http") => {}
        Some("https") => bail!("{url}: https is not spoken here; use a tunnel or a proxy on this host"),
        _ => bail!("{url} has no scheme; write http:// before it"),
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let asked = runtime.block_on(async { tokio::time::timeout(PATIENCE, ask(uri)).await });
    asked
        .with_context(|| format!("{url} did not answer in {} s", PATIENCE.as_secs()))?
        .with_context(|| format!("cannot get {url}"))
}

async fn ask(uri: http::Uri) -> anyhow::Result<Vec<u8>> {
    let client = Client::builder(TokioExecutor::new()).build_http::<Empty<Bytes>>();
    let answer = client.get(uri).await?;
    let status = answer.status();
    let body = Limited::new(answer.into_body(), LARGEST).collect().await;
    let body = body.map_err(|error| anyhow::anyhow!("the answer broke off: {error}"))?.to_bytes();
    if !status.is_success() {
        let said: String = String::from_utf8_lossy(&body).chars().take(300).collect();
        bail!("{status}: {}", said.trim());
    }
    Ok(body.to_vec())
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
            let error = format!("{:#}", get(url).unwrap_err());
            assert!(error.contains(why), "{url}: {error}");
        }
    }
}
