//! HTTP responses: a status, headers, and a body that is one shared buffer.

use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use http::header::{self, HeaderName, HeaderValue};
use http::{Response, StatusCode};
use http_body_util::Full;
use hyper::body::{Body, Frame, SizeHint};
use tokio::sync::OwnedSemaphorePermit;

use super::meter::Request;

/// A response to the client.
#[derive(Debug)]
pub struct Answer {
    status: StatusCode,
    headers: Vec<(HeaderName, HeaderValue)>,
    body: Bytes,
    close: bool,
    /// What the body takes of the memory of all answers that clients have not read yet.
    held: Option<OwnedSemaphorePermit>,
}

impl Answer {
    /// A response with status 200 and a body of this Content-Type.
    pub fn page(content_type: &'static str, body: Bytes) -> Self {
        let headers = vec![(header::CONTENT_TYPE, HeaderValue::from_static(content_type))];
        Self { status: StatusCode::OK, headers, body, close: false, held: None }
    }

    /// A response with JSON that belongs to one client; `what` names it in the error.
    pub fn own_json(value: &impl serde::Serialize, what: &str) -> Self {
        match serde_json::to_vec(value) {
            Ok(bytes) => Self::page("application/json", bytes.into()).with(header::CACHE_CONTROL, "no-store"),
            Err(error) => {
                tracing::error!(%error, "{what} could not be written.");
                Self::text(StatusCode::INTERNAL_SERVER_ERROR, format!("{what} could not be written."))
            }
        }
    }

    /// A response with one sentence as its text body.
    pub fn text(status: StatusCode, sentence: impl std::fmt::Display) -> Self {
        let body = format!("{sentence}\n").into();
        Self { status, ..Self::page("text/plain; charset=utf-8", body) }
    }

    pub fn with(mut self, name: HeaderName, value: &'static str) -> Self {
        self.headers.push((name, HeaderValue::from_static(value)));
        self
    }

    /// A response without a body.
    pub fn empty(status: StatusCode) -> Self {
        Self { status, headers: Vec::new(), body: Bytes::new(), close: false, held: None }
    }

    pub fn with_status(mut self, status: StatusCode) -> Self {
        self.status = status;
        self
    }

    /// Adds a header with a value that is not constant.
    pub fn with_value(mut self, name: HeaderName, value: HeaderValue) -> Self {
        self.headers.push((name, value));
        self
    }

    /// Sets a header from the web-config file, which replaces memwarden's own.
    pub fn set(&mut self, name: HeaderName, value: HeaderValue) {
        self.headers.retain(|(known, _)| *known != name);
        self.headers.push((name, value));
    }

    /// Closes the connection after this response, without reading what the client still sends.
    pub fn closing(mut self) -> Self {
        self.close = true;
        self
    }

    /// Bytes of the body.
    pub fn length(&self) -> usize {
        self.body.len()
    }

    /// Releases the permit when the body was sent.
    pub fn holding(mut self, permit: OwnedSemaphorePermit) -> Self {
        self.held = Some(permit);
        self
    }

    pub fn code(&self) -> u16 {
        self.status.as_u16()
    }

    /// The response for hyper; for a `HEAD` request without a body but with its length.
    pub fn finish(self, mut request: Request, head: bool, http2: bool) -> Response<Sent> {
        if http2 {
            // HTTP/1 takes the body at once. An HTTP/2 stream takes it when its client opens the window, which may be
            // never.
            request.made();
        }
        let length = self.body.len();
        let body = if head { Bytes::new() } else { self.body };
        let mut response = Response::new(Sent { body: Full::new(body), _request: request, _held: self.held });
        *response.status_mut() = self.status;
        let headers = response.headers_mut();
        headers.extend(self.headers);
        if self.status != StatusCode::NOT_MODIFIED {
            headers.insert(header::CONTENT_LENGTH, length.into());
        }
        headers.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
        if self.close && !http2 {
            headers.insert(header::CONNECTION, HeaderValue::from_static("close"));
        }
        response
    }
}

/// A body that ends its request when it is dropped.
#[derive(Debug)]
pub struct Sent {
    body: Full<Bytes>,
    _request: Request,
    _held: Option<OwnedSemaphorePermit>,
}

impl Body for Sent {
    type Data = Bytes;
    type Error = std::convert::Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        Pin::new(&mut self.body).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// The answer of a thread for blocking work.
pub fn stopping(answer: Result<Answer, tokio::task::JoinError>) -> Answer {
    answer.unwrap_or_else(|error| {
        tracing::error!(%error, "A page could not be rendered.");
        Answer::text(StatusCode::INTERNAL_SERVER_ERROR, "The page could not be rendered.")
    })
}
