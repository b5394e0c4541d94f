//! Requests of both transports, and the interpretation of their responses.
//!
//! OTLP over HTTP is one POST; over gRPC a unary call is one POST too, with a length before the message and the
//! status in the trailers.

use std::io::{self, Write as _};
use std::time::Duration;

use bytes::{Buf as _, Bytes};
use flate2::Compression;
use flate2::write::GzEncoder;
use http::header::{CONTENT_ENCODING, CONTENT_TYPE, RETRY_AFTER, TE, USER_AGENT};
use http::uri::PathAndQuery;
use http::{HeaderMap, HeaderName, HeaderValue, Request, StatusCode};
use http_body_util::Full;
use tonic::{Code, Status};

use super::answer;
use super::body::Body;
use super::client::PushAnswer;
use super::resolve::Resolved;
use crate::config::OtlpProtocol;

/// The method of OTLP's gRPC service.
const EXPORT: &str = "/opentelemetry.proto.collector.metrics.v1.MetricsService/Export";

#[derive(Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// The collector accepted it.
    Taken,
    /// The collector accepted it except for some points, which are not to be sent again.
    Partly(String),
    /// The collector did not accept it.
    Refused {
        /// The reason, lower case, no final period.
        why: String,
        /// Minimum delay before a retry; absent where a retry is of no use.
        again: Option<Duration>,
    },
}

impl Verdict {
    /// Not accepted, and not to be retried before the next export.
    pub(super) fn refused(why: String) -> Self {
        Self::Refused { why, again: None }
    }

    /// Not accepted, to be retried.
    pub(super) fn failed(why: String) -> Self {
        Self::Refused { why, again: Some(Duration::ZERO) }
    }
}

/// The request that carries `body`.
pub(super) async fn request(resolved: &Resolved, body: Body) -> io::Result<Request<Full<Body>>> {
    let grpc = resolved.protocol == OtlpProtocol::Grpc;
    let body = if resolved.gzip { Bytes::new().chain(gzip(body).await?) } else { body };
    let mut request = Request::post(resolved.endpoint.clone());
    if let Some(headers) = request.headers_mut() {
        headers
            .insert(USER_AGENT, HeaderValue::from_static(concat!("memwarden/", env!("CARGO_PKG_VERSION"))));
        headers.extend(resolved.headers.clone());
        let kind = if grpc { "application/grpc" } else { "application/x-protobuf" };
        headers.insert(CONTENT_TYPE, HeaderValue::from_static(kind));
        if grpc {
            headers.insert(TE, HeaderValue::from_static("trailers"));
        }
        if resolved.gzip {
            let encoding = if grpc { HeaderName::from_static("grpc-encoding") } else { CONTENT_ENCODING };
            headers.insert(encoding, HeaderValue::from_static("gzip"));
        }
    }
    let mut request = request
        .body(Full::new(if grpc { framed(body, resolved.gzip) } else { body }))
        .map_err(io::Error::other)?;
    if grpc {
        let mut parts = request.uri().clone().into_parts();
        parts.path_and_query = Some(PathAndQuery::from_static(EXPORT));
        *request.uri_mut() = http::Uri::from_parts(parts).map_err(io::Error::other)?;
    }
    Ok(request)
}

/// A gRPC message: compression flag, length, message.
fn framed(body: Body, compressed: bool) -> Body {
    let length = u32::try_from(body.remaining()).unwrap_or(u32::MAX);
    let mut head = vec![u8::from(compressed)];
    head.extend(length.to_be_bytes());
    let (first, last) = body.into_inner();
    head.extend_from_slice(&first);
    Bytes::from(head).chain(last)
}

/// Compresses in pieces, so that other tasks can run in between.
async fn gzip(mut body: Body) -> io::Result<Bytes> {
    const PIECE: usize = 64 << 10;
    let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
    while body.has_remaining() {
        let piece = body.chunk();
        let piece = &piece[..piece.len().min(PIECE)];
        encoder.write_all(piece)?;
        let length = piece.len();
        body.advance(length);
        tokio::task::yield_now().await;
    }
    Ok(encoder.finish()?.into())
}

/// Interprets the response.
pub(super) fn judge(protocol: OtlpProtocol, answer: &PushAnswer) -> Verdict {
    let status = answer.head.status;
    match protocol {
        OtlpProtocol::HttpProtobuf if status.is_success() => success(&answer.body, status.as_str()),
        OtlpProtocol::HttpProtobuf => Verdict::Refused {
            why: format!("the collector responded {status}: {}", answer::refused(&answer.body)),
            again: passing(status).then(|| retry_after(&answer.head.headers).unwrap_or_default()),
        },
        OtlpProtocol::Grpc => {
            let grpc_status = Status::from_header_map(&answer.trailers)
                .or_else(|| Status::from_header_map(&answer.head.headers));
            match grpc_status {
                Some(grpc_status) => called(&grpc_status, &answer.body),
                None if status.is_success() => Verdict::refused(
                    "the endpoint is not an OTLP collector: its response has no gRPC status".to_owned(),
                ),
                None => Verdict::Refused {
                    why: format!("the collector responded {status} without a gRPC status"),
                    again: passing(status).then(|| retry_after(&answer.head.headers).unwrap_or_default()),
                },
            }
        }
    }
}

fn success(body: &[u8], status: &str) -> Verdict {
    match answer::taken(body) {
        Ok(None) => Verdict::Taken,
        Ok(Some(partial)) => Verdict::Partly(format!(
            "the collector rejected {} points of the export: {}",
            partial.rejected_data_points,
            answer::printable(partial.error_message.as_bytes())
        )),
        Err(_) => Verdict::refused(format!(
            "the endpoint is not an OTLP collector: it responded {status} without an OTLP message"
        )),
    }
}

/// Interprets the status of a gRPC call.
fn called(status: &Status, body: &[u8]) -> Verdict {
    let code = status.code();
    if code == Code::Ok {
        // The length is that of the body; it is not compressed, because the request does not accept compression.
        return success(body.get(5..).unwrap_or_default(), "OK");
    }
    let wait = answer::retry_delay(status.details());
    let again = match code {
        Code::Cancelled
        | Code::DeadlineExceeded
        | Code::Aborted
        | Code::OutOfRange
        | Code::Unavailable
        | Code::DataLoss => Some(wait.unwrap_or_default()),
        // Only the collector knows whether a retry can succeed.
        Code::ResourceExhausted => wait,
        _ => None,
    };
    let message = answer::printable(status.message().as_bytes());
    Verdict::Refused { why: format!("the collector responded {code:?}: {message}"), again }
}

/// Whether the specification requires a retry for this status.
fn passing(status: StatusCode) -> bool {
    matches!(status.as_u16(), 429 | 502 | 503 | 504)
}

/// The seconds of a `Retry-After` header; a date is ignored, because the clocks may differ.
fn retry_after(headers: &HeaderMap) -> Option<Duration> {
    headers.get(RETRY_AFTER)?.to_str().ok()?.trim().parse().ok().map(Duration::from_secs)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(status: u16, headers: &[(&'static str, &str)], body: &[u8]) -> PushAnswer {
        let mut response = http::Response::builder().status(status);
        for (name, value) in headers {
            response = response.header(*name, *value);
        }
        let (head, ()) = response.body(()).unwrap().into_parts();
        PushAnswer { head, body: Bytes::copy_from_slice(body), trailers: HeaderMap::new() }
    }

    fn again(protocol: OtlpProtocol, answer: &PushAnswer) -> Option<Duration> {
        match judge(protocol, answer) {
            Verdict::Refused { again, .. } => again,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn transient_errors_are_retried_as_specified() {
        let http = |status, headers: &[(&'static str, &str)]| {
            again(OtlpProtocol::HttpProtobuf, &answer(status, headers, b"no"))
        };
        let seconds = Duration::from_secs;
        for (status, expected) in
            [(302, None), (400, None), (401, None), (500, None), (429, Some(seconds(0)))]
        {
            assert_eq!(http(status, &[]), expected, "{status}");
        }
        for status in [502, 503, 504] {
            assert_eq!(http(status, &[("retry-after", "7")]), Some(seconds(7)), "{status}");
        }
        assert_eq!(http(503, &[("retry-after", "Wed, 21 Oct 2026 07:28:00 GMT")]), Some(seconds(0)));
        assert_eq!(http(400, &[("retry-after", "7")]), None);

        let grpc = |code: i32, details: &str| {
            let headers =
                [("grpc-status", code.to_string()), ("grpc-status-details-bin", details.to_owned())];
            let headers: Vec<_> = headers.iter().map(|(name, value)| (*name, value.as_str())).collect();
            again(OtlpProtocol::Grpc, &answer(200, &headers, b""))
        };
        for code in [1, 4, 10, 11, 14, 15] {
            assert_eq!(grpc(code, ""), Some(seconds(0)), "{code}");
        }
        for code in [2, 3, 5, 6, 7, 8, 9, 12, 13, 16] {
            assert_eq!(grpc(code, ""), None, "{code}");
        }
        // A Status whose details are a RetryInfo of 7 s, as Base64.
        let seven = "GjAKKHR5cGUuZ29vZ2xlYXBpcy5jb20vZ29vZ2xlLnJwYy5SZXRyeUluZm8SBAoCCAc";
        assert_eq!(
            (grpc(8, seven), grpc(14, seven), grpc(3, seven)),
            (Some(seconds(7)), Some(seconds(7)), None)
        );
        assert_eq!(again(OtlpProtocol::Grpc, &answer(503, &[], b"")), Some(seconds(0)));
        assert_eq!(again(OtlpProtocol::Grpc, &answer(200, &[], b"<html>")), None);
    }

    #[test]
    fn control_characters_of_an_error_text_are_escaped() {
        let refused = answer(200, &[("grpc-status", "3"), ("grpc-message", "a%1B[31m%0Ab")], b"");
        assert_eq!(
            judge(OtlpProtocol::Grpc, &refused),
            Verdict::refused("the collector responded InvalidArgument: a[31mb".to_owned())
        );
    }
}
