//! A collector on loopback with a separate runtime, so that dropping it closes every connection.

use std::net::SocketAddr;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, Request, Response};
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use opentelemetry_proto::tonic::collector::logs::v1::ExportLogsServiceRequest;
use opentelemetry_proto::tonic::collector::metrics::v1::metrics_service_server::{
    MetricsService, MetricsServiceServer,
};
use opentelemetry_proto::tonic::collector::metrics::v1::{
    ExportMetricsPartialSuccess, ExportMetricsServiceRequest, ExportMetricsServiceResponse,
};
use prost::Message as _;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;
use tonic::codec::CompressionEncoding;
use tonic::transport::server::TcpIncoming;

use super::secure::Authority;
use crate::config::OtlpProtocol;

#[derive(Clone, Debug)]
pub(super) enum Behavior {
    Takes,
    TakesPart,
    /// An HTTP status or a gRPC code.
    Refuses(u16, i32),
    Garbage,
    Endless,
    Silent,
}

/// One push as received.
#[derive(Debug)]
pub(super) struct Push {
    pub(super) path: String,
    pub(super) headers: HeaderMap,
    pub(super) request: ExportMetricsServiceRequest,
}

pub(super) struct Collector {
    pub(super) address: SocketAddr,
    pub(super) pushes: Receiver<Push>,
    pub(super) logs: Receiver<(HeaderMap, ExportLogsServiceRequest)>,
    pub(super) behavior: Arc<Mutex<Behavior>>,
    runtime: Option<tokio::runtime::Runtime>,
}

#[derive(Clone)]
struct CollectorState {
    out: Sender<Push>,
    logs: Sender<(HeaderMap, ExportLogsServiceRequest)>,
    behavior: Arc<Mutex<Behavior>>,
}

impl Collector {
    pub(super) fn start(protocol: OtlpProtocol) -> Self {
        Self::at("127.0.0.1:0".parse().unwrap(), protocol, None)
    }

    pub(super) fn at(address: SocketAddr, protocol: OtlpProtocol, tls: Option<&Authority>) -> Self {
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let listener = runtime.block_on(TcpListener::bind(address)).unwrap();
        let address = listener.local_addr().unwrap();
        let (out, pushes) = channel();
        let behavior = Arc::new(Mutex::new(Behavior::Takes));
        let (log_out, logs) = channel();
        let desk = CollectorState { out, logs: log_out, behavior: Arc::clone(&behavior) };
        match protocol {
            OtlpProtocol::Grpc => {
                let mut server = tonic::transport::Server::builder();
                if let Some(authority) = tls {
                    server = server.tls_config(authority.tonic_server()).unwrap();
                }
                let service = MetricsServiceServer::new(desk).accept_compressed(CompressionEncoding::Gzip);
                let serving = server.add_service(service).serve_with_incoming(TcpIncoming::from(listener));
                runtime.spawn(serving);
            }
            OtlpProtocol::HttpProtobuf => {
                drop(runtime.spawn(http(listener, tls.map(Authority::acceptor), desk)))
            }
        }
        Self { address, pushes, logs, behavior, runtime: Some(runtime) }
    }

    pub(super) fn is(&self, behavior: Behavior) {
        *self.behavior.lock().unwrap() = behavior;
    }

    pub(super) fn next(&self) -> Push {
        self.pushes.recv_timeout(Duration::from_secs(20)).expect("a push arrives")
    }

    /// The next push that `wanted` accepts.
    pub(super) fn next_where(&self, wanted: impl Fn(&Push) -> bool) -> Push {
        for _ in 0..200 {
            let push = self.next();
            if wanted(&push) {
                return push;
            }
        }
        panic!("200 pushes, none of them as expected");
    }
}

impl Drop for Collector {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_timeout(Duration::from_secs(5));
        }
    }
}

fn partial() -> ExportMetricsServiceResponse {
    let partial =
        ExportMetricsPartialSuccess { rejected_data_points: 3, error_message: "too old".to_owned() };
    ExportMetricsServiceResponse { partial_success: Some(partial) }
}

#[tonic::async_trait]
impl MetricsService for CollectorState {
    async fn export(
        &self,
        request: tonic::Request<ExportMetricsServiceRequest>,
    ) -> Result<tonic::Response<ExportMetricsServiceResponse>, tonic::Status> {
        let behavior = self.behavior.lock().unwrap().clone();
        let (metadata, _, request) = request.into_parts();
        let _ = self.out.send(Push { path: String::new(), headers: metadata.into_headers(), request });
        match behavior {
            Behavior::Takes => Ok(tonic::Response::new(ExportMetricsServiceResponse::default())),
            Behavior::TakesPart => Ok(tonic::Response::new(partial())),
            Behavior::Refuses(_, code) => Err(tonic::Status::new(code.into(), "refused by test")),
            Behavior::Garbage | Behavior::Endless | Behavior::Silent => std::future::pending().await,
        }
    }
}

async fn http(listener: TcpListener, tls: Option<TlsAcceptor>, desk: CollectorState) {
    while let Ok((stream, _)) = listener.accept().await {
        let (desk, tls) = (desk.clone(), tls.clone());
        tokio::spawn(async move {
            match tls {
                None => connection(stream, desk).await,
                Some(tls) => {
                    if let Ok(stream) = tls.accept(stream).await {
                        connection(stream, desk).await;
                    }
                }
            }
        });
    }
}

async fn connection(stream: impl AsyncRead + AsyncWrite + Unpin + 'static, desk: CollectorState) {
    let service = service_fn(|request| answer(request, &desk));
    let _ = hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(stream), service).await;
}

async fn answer(
    request: Request<Incoming>,
    desk: &CollectorState,
) -> Result<Response<Full<Bytes>>, hyper::Error> {
    let behavior = desk.behavior.lock().unwrap().clone();
    let (parts, body) = request.into_parts();
    let mut body = body.collect().await?.to_bytes();
    if parts.headers.get("content-encoding").is_some_and(|encoding| encoding == "gzip") {
        let mut plain = Vec::new();
        std::io::Read::read_to_end(&mut flate2::read::GzDecoder::new(&body[..]), &mut plain).unwrap();
        body = plain.into();
    }
    if parts.uri.path() == "/v1/logs" {
        let _ = desk.logs.send((parts.headers, ExportLogsServiceRequest::decode(body).unwrap()));
    } else {
        let request = ExportMetricsServiceRequest::decode(body).unwrap();
        let _ = desk.out.send(Push { path: parts.uri.path().to_owned(), headers: parts.headers, request });
    }
    let (status, body) = match behavior {
        Behavior::Takes => (200, Bytes::new()),
        Behavior::TakesPart => (200, partial().encode_to_vec().into()),
        Behavior::Refuses(status, _) => (status, Bytes::from_static(b"no access with s3cret")),
        Behavior::Garbage => (200, Bytes::from_static(b"<html>please sign in</html>")),
        Behavior::Endless => (200, vec![b'x'; 16 << 20].into()),
        Behavior::Silent => std::future::pending().await,
    };
    Ok(Response::builder().status(status).body(Full::new(body)).unwrap())
}
