//! A running daemon, asked for its newest frame.

use std::time::Duration;

use anyhow::{Context as _, bail};
use bytes::Bytes;
use http::{Request, Uri, header};
use http_body_util::{BodyExt as _, Empty, Limited};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;

use crate::exposition::report::Sight;

/// The largest answer that is read, in bytes: 40 times the frame of a busy node.
const LARGEST: usize = 64 << 20;
const PATIENCE: Duration = Duration::from_secs(5);

/// A daemon by its address.
pub(super) struct Daemon {
    frame: Uri,
    client: Client<HttpConnector, Empty<Bytes>>,
}

impl Daemon {
    /// One at `http://host:port`, with or without a path before `/api`.
    pub(super) fn at(url: &str) -> anyhow::Result<Self> {
        let base = url.trim_end_matches('/');
        let frame: Uri =
            format!("{base}/api/v1/frame").parse().with_context(|| format!("--url {url} is no address"))?;
        if frame.scheme_str() != Some("http") || frame.host().is_none() {
            bail!("--url {url}: write http://HOST:PORT");
        }
        Ok(Self { frame, client: Client::builder(TokioExecutor::new()).build_http() })
    }

    /// The newest frame.
    pub(super) async fn look(&self) -> anyhow::Result<Sight> {
        let answer = tokio::time::timeout(PATIENCE, self.fetch()).await;
        let what = || format!("cannot ask the daemon at {}", self.frame);
        answer
            .map_err(|_| anyhow::anyhow!("no answer within {} s", PATIENCE.as_secs()))
            .and_then(|read| read)
            .with_context(what)
    }

    async fn fetch(&self) -> anyhow::Result<Sight> {
        let request =
            Request::get(self.frame.clone()).header(header::ACCEPT, "application/json").body(Empty::new())?;
        let response =
            self.client.request(request).await.map_err(|error| match std::error::Error::source(&error) {
                Some(cause) if error.is_connect() => {
                    anyhow::anyhow!("{cause} (is `memwarden serve` running there?)")
                }
                _ => anyhow::Error::new(error),
            })?;
        let status = response.status();
        if !status.is_success() {
            bail!("it answers {status}");
        }
        let body = Limited::new(response.into_body(), LARGEST).collect().await;
        let body = body.map_err(|error| anyhow::anyhow!("{error}"))?.to_bytes();
        Sight::read(&body).context("this is no frame of memwarden")
    }
}
