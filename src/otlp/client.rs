//! The client of both transports: HTTP/1.1 for HTTP, HTTP/2 for gRPC; one connection per export.
//!
//! With one export a minute a persistent connection saves little, and a new one cannot be stale.

use bytes::Bytes;
use http::{HeaderMap, Request};
use http_body_util::Full;

use super::OtlpError;
use super::body::Body;
use super::resolve::Resolved;
use crate::config::OtlpProtocol;
use crate::host::http_client::{HttpClient, Version};

/// Maximum size of a response in bytes.
pub(super) const LARGEST_ANSWER: usize = 4 << 20;

pub(super) struct Client(HttpClient<Body>);

/// A whole response.
#[derive(Debug)]
pub(super) struct PushAnswer {
    pub(super) head: http::response::Parts,
    pub(super) body: Bytes,
    pub(super) trailers: HeaderMap,
}

impl Client {
    /// Reads the certificates that `resolved` names.
    ///
    /// # Errors
    /// Certificates or a key that cannot be read.
    pub(super) fn new(resolved: &Resolved) -> Result<Self, OtlpError> {
        let version = match resolved.protocol {
            OtlpProtocol::Grpc => Version::Http2,
            OtlpProtocol::HttpProtobuf => Version::Http1Once,
        };
        let Resolved { endpoint, trust, identity, timeout, .. } = resolved;
        let client = HttpClient::of(endpoint, trust, identity.as_ref(), version, LARGEST_ANSWER, *timeout)?;
        Ok(Self(client))
    }

    /// Sends a request and reads the whole response, within the time limit of an export.
    pub(super) async fn exchange(&self, request: Request<Full<Body>>) -> Result<PushAnswer, String> {
        let (head, body) = self.0.answer(request).await.map_err(|error| error.to_string())?;
        let body = body.map_err(|error| error.to_string())?;
        let trailers = body.trailers().cloned().unwrap_or_default();
        Ok(PushAnswer { head, body: body.to_bytes(), trailers })
    }
}
