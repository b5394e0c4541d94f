//! The client of both transports: HTTP/1.1 for HTTP, HTTP/2 for gRPC; one connection per export.
//!
//! With one export a minute a persistent connection saves little, and a new one cannot be stale. The caller enforces
//! the time limit.

use std::error::Error as _;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::header::HOST;
use http::{HeaderMap, HeaderValue, Request, Response, Uri};
use http_body_util::{BodyExt as _, Full, Limited};
use hyper::body::Incoming;
use hyper::client::conn::{http1, http2};
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::pki_types::ServerName;

use super::OtlpError;
use super::body::Body;
use super::resolve::Resolved;
use super::trust::{self, Material};
use crate::config::OtlpProtocol;
use crate::host::tls;

/// Maximum size of a response in bytes; the longest known ones are error pages of a few KiB.
const LARGEST_ANSWER: usize = 4 << 20;

/// Sends requests to the collector.
pub(super) struct Client {
    protocol: OtlpProtocol,
    endpoint: Uri,
    host: String,
    port: u16,
    tls: Option<(TlsConnector, ServerName<'static>)>,
    timeout: Duration,
}

/// The response of the collector.
#[derive(Debug)]
pub(super) struct Answer {
    pub(super) head: http::response::Parts,
    pub(super) body: Bytes,
    pub(super) trailers: HeaderMap,
}

impl Client {
    /// Reads the certificate files; opens no connection.
    pub(super) fn new(resolved: &Resolved) -> Result<Self, OtlpError> {
        let host = resolved.endpoint.host().unwrap_or_default();
        let host = host.trim_start_matches('[').trim_end_matches(']').to_owned();
        let port = resolved.endpoint.port_u16().unwrap_or(if resolved.tls() { 443 } else { 80 });
        let alpn: &[u8] = match resolved.protocol {
            OtlpProtocol::Grpc => b"h2",
            OtlpProtocol::HttpProtobuf => b"http/1.1",
        };
        let tls = trust::load(resolved)?.map(|material| connector(material, &host, alpn)).transpose()?;
        let (protocol, endpoint, timeout) = (resolved.protocol, resolved.endpoint.clone(), resolved.timeout);
        Ok(Self { protocol, endpoint, host, port, tls, timeout })
    }

    /// Sends one request to the endpoint and reads the response; an error is the reason why there is none.
    pub(super) async fn exchange(&self, request: Request<Full<Body>>) -> Result<Answer, String> {
        let stream = self.connect().await.map_err(|error| {
            let Self { host, port, .. } = self;
            format!("cannot connect to {host} port {port}: {error}")
        })?;
        let answered = match &self.tls {
            None => self.exchange_over(stream, request).await,
            Some((connector, name)) => {
                let stream = connector
                    .connect(name.clone(), stream)
                    .await
                    .map_err(|error| format!("TLS with {} failed: {error}", self.host))?;
                self.exchange_over(stream, request).await
            }
        };
        let answer = answered.map_err(|error| match error.source() {
            Some(cause) => format!("{error}: {cause}"),
            None => error.to_string(),
        })?;
        let (head, body) = answer.into_parts();
        let body = Limited::new(body.0, LARGEST_ANSWER).collect().await;
        let body = body.map_err(|error| format!("cannot read the response: {error}"))?;
        let trailers = body.trailers().cloned().unwrap_or_default();
        Ok(Answer { head, body: body.to_bytes(), trailers })
    }

    /// Tries each address of the host for an equal share of the time.
    async fn connect(&self) -> io::Result<TcpStream> {
        let addresses: Vec<_> = tokio::net::lookup_host((self.host.as_str(), self.port)).await?.collect();
        let share = self.timeout / u32::try_from(addresses.len().max(1)).unwrap_or(u32::MAX);
        let mut last = io::Error::new(io::ErrorKind::NotFound, "the host name has no address");
        for address in addresses {
            match tokio::time::timeout(share, TcpStream::connect(address)).await {
                Ok(Ok(stream)) => return Ok(stream),
                Ok(Err(error)) => last = error,
                Err(_) => last = io::Error::new(io::ErrorKind::TimedOut, "no response"),
            }
        }
        Err(last)
    }

    /// Sends the request over a connection and reads the response.
    async fn exchange_over<S>(
        &self,
        stream: S,
        mut request: Request<Full<Body>>,
    ) -> hyper::Result<Response<(Incoming, AbortOnDrop<hyper::Result<()>>)>>
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let stream = TokioIo::new(stream);
        let (response, connection) = match self.protocol {
            OtlpProtocol::Grpc => {
                let (mut sender, connection) = http2::handshake(TokioExecutor::new(), stream).await?;
                let connection = AbortOnDrop(tokio::spawn(connection));
                (sender.send_request(request).await?, connection)
            }
            OtlpProtocol::HttpProtobuf => {
                if let Some(authority) = self.endpoint.authority()
                    && let Ok(authority) = HeaderValue::from_str(authority.as_str())
                {
                    request.headers_mut().insert(HOST, authority);
                }
                let path = self.endpoint.path_and_query().cloned();
                *request.uri_mut() = path.map_or_else(|| Uri::from_static("/"), Uri::from);
                let (mut sender, connection) = http1::handshake(stream).await?;
                let connection = AbortOnDrop(tokio::spawn(connection));
                (sender.send_request(request).await?, connection)
            }
        };
        Ok(response.map(|body| (body, connection)))
    }
}

/// A task that is aborted when this is dropped.
pub(super) struct AbortOnDrop<T>(pub(super) tokio::task::JoinHandle<T>);

impl<T> Drop for AbortOnDrop<T> {
    fn drop(&mut self) {
        self.0.abort();
    }
}

fn connector(
    material: Material,
    host: &str,
    alpn: &[u8],
) -> Result<(TlsConnector, ServerName<'static>), OtlpError> {
    let own = material.identity.as_ref().and_then(|identity| Some((identity.chain(), identity.key()?)));
    let mut config = tls::client(material.roots, own).map_err(OtlpError::Tls)?;
    config.alpn_protocols = vec![alpn.to_vec()];
    let name = ServerName::try_from(host.to_owned()).map_err(|_| OtlpError::Endpoint {
        endpoint: host.to_owned(),
        why: "is not a valid server name for TLS".to_owned(),
    })?;
    Ok((TlsConnector::from(Arc::new(config)), name))
}
