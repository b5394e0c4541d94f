//! Handles one request, from its head to the response, for both OTLP protocols.
//!
//! The limits are enforced here: the body is read within a time and a size,
//! decompressed within a size, and its decoded size is computed before it is
//! decoded. gRPC requests go to the generated service; HTTP bodies are decoded here.

use std::io::Read as _;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::header::{ALLOW, CONTENT_ENCODING, CONTENT_TYPE, ORIGIN, RETRY_AFTER};
use http::{HeaderMap, Method, Request, Response, StatusCode};
use http_body_util::{BodyExt as _, Full, LengthLimitError, Limited};
use hyper::body::{Body, Incoming};
use opentelemetry_proto::tonic::collector::metrics::v1::metrics_service_server::{
    MetricsService, MetricsServiceServer,
};
use opentelemetry_proto::tonic::collector::metrics::v1::{
    ExportMetricsPartialSuccess, ExportMetricsServiceRequest, ExportMetricsServiceResponse,
};
use prost::Message as _;
use tonic::codegen::Service as _;

use super::caller::Caller;
use super::counts::{Answer, Protocol};
use super::intake::Tally;
use super::weigh;

/// Maximum size of a body, compressed and decompressed: the default of tonic's servers.
pub(super) const BODY: usize = 4 << 20;
/// How long a body may take to arrive, and how long a request may wait for others.
const IN_TIME: Duration = Duration::from_secs(10);
/// Length of the prefix of a message: flag and length (gRPC over HTTP/2, Length-Prefixed-Message).
const PREFIX: usize = 5;
const GRPC_PATH: &str = "/opentelemetry.proto.collector.metrics.v1.MetricsService/Export";
const HTTP_PATH: &str = "/v1/metrics";

/// Why a request is rejected.
#[derive(Debug, thiserror::Error)]
enum Problem {
    #[error("unknown path; metrics are received at {HTTP_PATH} or over gRPC")]
    Path,
    #[error("method not allowed; use POST")]
    Method,
    #[error("unsupported content type; use application/x-protobuf")]
    Type,
    #[error("unsupported content encoding; use gzip or identity")]
    Encoding,
    #[error("the body is larger than {} MiB", BODY >> 20)]
    Size,
    #[error("{0}")]
    Heavy(weigh::Heavy),
    #[error("the body is incomplete")]
    Torn,
    #[error("the body is not an OTLP metrics request")]
    Malformed,
    #[error("the body was not received in time")]
    Slow,
    #[error("too many concurrent requests")]
    Busy,
    #[error("requests of web pages are not accepted")]
    Browser,
}

impl Problem {
    /// How it is counted, and its status over HTTP and over gRPC.
    const fn outcome(&self) -> (Answer, StatusCode, tonic::Code) {
        use tonic::Code;
        match self {
            Self::Path => (Answer::Unsupported, StatusCode::NOT_FOUND, Code::Unimplemented),
            Self::Method => (Answer::Unsupported, StatusCode::METHOD_NOT_ALLOWED, Code::Unimplemented),
            Self::Type | Self::Encoding => {
                (Answer::Unsupported, StatusCode::UNSUPPORTED_MEDIA_TYPE, Code::Unimplemented)
            }
            // Pushing the same request again would fail again.
            Self::Size | Self::Heavy(weigh::Heavy::Memory) => {
                (Answer::TooLarge, StatusCode::PAYLOAD_TOO_LARGE, Code::InvalidArgument)
            }
            Self::Heavy(_) | Self::Torn | Self::Malformed => {
                (Answer::Malformed, StatusCode::BAD_REQUEST, Code::InvalidArgument)
            }
            Self::Slow => (Answer::Slow, StatusCode::REQUEST_TIMEOUT, Code::Unavailable),
            Self::Busy => (Answer::Busy, StatusCode::SERVICE_UNAVAILABLE, Code::Unavailable),
            Self::Browser => (Answer::Unsupported, StatusCode::FORBIDDEN, Code::PermissionDenied),
        }
    }
}

pub(super) async fn answer(request: Request<Incoming>, caller: Arc<Caller>) -> Response<tonic::body::Body> {
    let protocol = if is_grpc(request.headers()) { Protocol::Grpc } else { Protocol::Http };
    let outcome = match protocol {
        _ if is_from_a_page(request.headers()) => Err(Problem::Browser),
        Protocol::Grpc => grpc(request, &caller).await,
        Protocol::Http => http(request, &caller).await,
    };
    outcome.unwrap_or_else(|problem| {
        caller.shared.counts.request(protocol, problem.outcome().0);
        refuse(protocol, &problem)
    })
}

/// Whether a browser sent the request for a web page. Browsers add `Origin` to every POST, also to one to a name that the
/// owner of the page made resolve to this machine (DNS rebinding); exporters add neither header.
fn is_from_a_page(headers: &HeaderMap) -> bool {
    headers.contains_key(ORIGIN) || headers.contains_key("sec-fetch-site")
}

fn is_grpc(headers: &HeaderMap) -> bool {
    let text = headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok());
    text.is_some_and(|text| text.starts_with("application/grpc"))
}

async fn grpc(
    request: Request<Incoming>,
    caller: &Arc<Caller>,
) -> Result<Response<tonic::body::Body>, Problem> {
    let _turn = caller.turn(IN_TIME).await.ok_or(Problem::Busy)?;
    let (mut parts, body) = request.into_parts();
    if parts.uri.path() != GRPC_PATH {
        return Err(Problem::Path);
    }
    let zipped = encoding(&parts.headers, "grpc-encoding");
    let body = read(body, BODY + PREFIX).await?;
    let taken = caller.one_at_a_time(async {
        let message = unframe(&body, zipped)?;
        weigh::weigh(&message).map_err(Problem::Heavy)?;
        let length = u32::try_from(message.len()).map_err(|_| Problem::Size)?;
        let mut framed = Vec::with_capacity(PREFIX + message.len());
        framed.push(0);
        framed.extend(length.to_be_bytes());
        framed.extend(&message[..]);
        parts.headers.remove("grpc-encoding");
        let mut service = MetricsServiceServer::from_arc(Arc::clone(caller));
        match service.call(Request::from_parts(parts, Full::new(Bytes::from(framed)))).await {
            Ok(response) => Ok(response),
            Err(never) => match never {},
        }
    });
    taken.await
}

/// The message in the body of a gRPC request.
fn unframe(body: &Bytes, zipped: Result<bool, Problem>) -> Result<Bytes, Problem> {
    let (prefix, message) = body.split_at_checked(PREFIX).ok_or(Problem::Torn)?;
    let length = prefix.iter().skip(1).fold(0_usize, |length, byte| length << 8 | usize::from(*byte));
    if length != message.len() {
        return Err(Problem::Torn);
    }
    match prefix.first() {
        Some(0) => Ok(body.slice(PREFIX..)),
        Some(1) if zipped? => Ok(unzip(message)?.into()),
        _ => Err(Problem::Malformed),
    }
}

#[tonic::async_trait]
impl MetricsService for Caller {
    async fn export(
        &self,
        request: tonic::Request<ExportMetricsServiceRequest>,
    ) -> Result<tonic::Response<ExportMetricsServiceResponse>, tonic::Status> {
        let tally = self.receive(request.get_ref());
        self.shared.counts.request(Protocol::Grpc, outcome(&tally));
        Ok(tonic::Response::new(success(&tally)))
    }
}

async fn http(request: Request<Incoming>, caller: &Caller) -> Result<Response<tonic::body::Body>, Problem> {
    let _turn = caller.turn(IN_TIME).await.ok_or(Problem::Busy)?;
    if request.uri().path() != HTTP_PATH {
        return Err(Problem::Path);
    }
    if request.method() != Method::POST {
        return Err(Problem::Method);
    }
    let kind = request.headers().get(CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
    if kind.split(';').next().is_none_or(|kind| !kind.trim().eq_ignore_ascii_case("application/x-protobuf")) {
        return Err(Problem::Type);
    }
    let zipped = encoding(request.headers(), CONTENT_ENCODING.as_str())?;
    let body = read(request.into_body(), BODY).await?;
    let taken = caller.one_at_a_time(async {
        let message = if zipped { unzip(&body)?.into() } else { body };
        weigh::weigh(&message).map_err(Problem::Heavy)?;
        let request = ExportMetricsServiceRequest::decode(message).map_err(|_| Problem::Malformed)?;
        Ok(caller.receive(&request))
    });
    let tally = taken.await?;
    caller.shared.counts.request(Protocol::Http, outcome(&tally));
    Ok(protobuf(StatusCode::OK, success(&tally).encode_to_vec()))
}

/// Whether a body is compressed.
fn encoding(headers: &HeaderMap, name: &str) -> Result<bool, Problem> {
    match headers.get(name).map(http::HeaderValue::as_bytes) {
        None | Some(b"" | b"identity") => Ok(false),
        Some(b"gzip") => Ok(true),
        Some(_) => Err(Problem::Encoding),
    }
}

/// Reads a body within the limits of time and size.
async fn read(body: Incoming, most: usize) -> Result<Bytes, Problem> {
    // A request that declares a larger size is rejected without reading it.
    if body.size_hint().lower() > most as u64 {
        return Err(Problem::Size);
    }
    match tokio::time::timeout(IN_TIME, Limited::new(body, most).collect()).await {
        Err(_) => Err(Problem::Slow),
        Ok(Err(error)) if error.is::<LengthLimitError>() => Err(Problem::Size),
        Ok(Err(_)) => Err(Problem::Torn),
        Ok(Ok(collected)) => Ok(collected.to_bytes()),
    }
}

/// Decompresses within the limit of size.
fn unzip(zipped: &[u8]) -> Result<Vec<u8>, Problem> {
    let mut plain = Vec::new();
    let mut reader = flate2::read::GzDecoder::new(zipped).take(BODY as u64 + 1);
    reader.read_to_end(&mut plain).map_err(|_| Problem::Malformed)?;
    if plain.len() > BODY { Err(Problem::Size) } else { Ok(plain) }
}

const fn outcome(tally: &Tally) -> Answer {
    if tally.refused > 0 { Answer::Partial } else { Answer::Taken }
}

/// The response of a successful request; unknown metrics do not count as rejected (OTLP 1.x, Partial Success).
fn success(tally: &Tally) -> ExportMetricsServiceResponse {
    let partial_success = (tally.refused > 0).then(|| ExportMetricsPartialSuccess {
        rejected_data_points: i64::try_from(tally.refused).unwrap_or(i64::MAX),
        error_message: "some points were rejected: not finite, out of range, too old, or beyond the limit of ranks or series"
            .to_owned(),
    });
    ExportMetricsServiceResponse { partial_success }
}

fn protobuf(status: StatusCode, body: Vec<u8>) -> Response<tonic::body::Body> {
    let mut response = Response::new(tonic::body::Body::new(Full::new(Bytes::from(body))));
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, http::HeaderValue::from_static("application/x-protobuf"));
    response
}

fn refuse(protocol: Protocol, problem: &Problem) -> Response<tonic::body::Body> {
    let message = problem.to_string();
    let (_, status, code) = problem.outcome();
    if let Protocol::Grpc = protocol {
        return tonic::Status::new(code, message).into_http();
    }
    // A `google.rpc.Status`, as OTLP requires.
    let mut body = Vec::new();
    prost::encoding::int32::encode(1, &(code as i32), &mut body);
    prost::encoding::string::encode(2, &message, &mut body);
    let mut response = protobuf(status, body);
    match problem {
        Problem::Method => drop(response.headers_mut().insert(ALLOW, http::HeaderValue::from_static("POST"))),
        Problem::Busy => {
            drop(response.headers_mut().insert(RETRY_AFTER, http::HeaderValue::from_static("5")))
        }
        _ => {}
    }
    response
}

/// Decompresses, weighs, decodes and applies arbitrary bytes.
#[cfg(any(fuzzing, test))]
pub(super) fn fuzz(bytes: &[u8]) {
    use super::senders::{PushSender, RequestOrigin, SendersShared};
    use crate::model::time::Timestamp;
    let _ = unzip(bytes);
    if weigh::weigh(bytes).is_err() {
        return;
    }
    let Ok(request) = ExportMetricsServiceRequest::decode(bytes) else { return };
    let options = super::options::Options {
        listen: Vec::new(),
        max_connections: 1,
        max_ranks: 4,
        stale_after: Duration::from_secs(60),
    };
    let shared = SendersShared::new("/".into(), crate::host::subordinate::Subordinates::default(), &options);
    for second in [1, 2] {
        let now = Timestamp::from_secs(second);
        let tally = shared.receive(
            &request,
            RequestOrigin { user: None, sender: PushSender::Unknown, previous_sender: None },
            now,
        );
        let ranks = shared.ranks(now, |_| true);
        assert!(ranks.len() <= 4, "more ranks than the limit");
        let numbers = ranks.values().flat_map(|rank| rank.figures.numbers().map(|(_, _, value)| value));
        assert!(numbers.into_iter().all(f64::is_finite), "a value that is not finite");
        let steps = ranks.values().filter_map(|rank| rank.figures.last_step());
        assert!(steps.into_iter().all(f64::is_finite), "a duration that is not finite");
        assert!(tally.taken > 0 || ranks.is_empty() || tally.refused > 0, "ranks without accepted points");
        assert_eq!(success(&tally).partial_success.is_some(), tally.refused > 0);
    }
}
