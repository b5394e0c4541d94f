//! The HTTP/1.1 client of the HTTP transport: one connection a push.
//!
//! A push a minute gains little from a kept connection, and a fresh one
//! cannot have died in between. The request runs as a task of the tokio
//! runtime, so that any executor can await it; the exporter that awaits it
//! holds the time limit, and dropping the future ends the task.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::header::{HOST, USER_AGENT};
use http::{HeaderMap, HeaderValue, Request, Response, StatusCode, Uri, header};
use http_body_util::{BodyExt as _, Full, Limited};
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use opentelemetry_http::{HttpClient, HttpError};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::runtime::Handle;
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::pki_types::ServerName;
use tokio_rustls::rustls::{self, ClientConfig};

use super::OtlpError;
use super::answer;
use super::remark::Remark;
use super::resolve::Resolved;
use super::trust::Material;

/// The most that is read of an answer; the longest we know of are error pages of a few KiB.
const LARGEST_ANSWER: usize = 4 << 20;

/// Sends the bodies that the OTLP exporter encodes.
#[derive(Debug)]
pub(super) struct Client {
    runtime: Handle,
    remark: Remark,
    target: Arc<Target>,
}

/// Where, and how.
struct Target {
    endpoint: Uri,
    host: String,
    port: u16,
    /// All that is sent beside the framing.
    headers: HeaderMap,
    tls: Option<(TlsConnector, ServerName<'static>)>,
    timeout: Duration,
}

impl std::fmt::Debug for Target {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Target").field("endpoint", &self.endpoint).finish_non_exhaustive()
    }
}

impl Client {
    pub(super) fn new(
        resolved: &Resolved,
        material: Option<Material>,
        runtime: Handle,
        remark: Remark,
    ) -> Result<Self, OtlpError> {
        let host = resolved.endpoint.host().unwrap_or_default();
        let host = host.trim_start_matches('[').trim_end_matches(']').to_owned();
        let port = resolved.endpoint.port_u16().unwrap_or(if resolved.tls() { 443 } else { 80 });
        let tls = material.map(|material| connector(material, &host)).transpose()?;
        let mut headers = HeaderMap::new();
        headers
            .insert(USER_AGENT, HeaderValue::from_static(concat!("memwarden/", env!("CARGO_PKG_VERSION"))));
        headers.extend(resolved.headers.clone());
        if let Some(authority) = resolved.endpoint.authority()
            && let Ok(authority) = HeaderValue::from_str(authority.as_str())
        {
            headers.insert(HOST, authority);
        }
        let endpoint = resolved.endpoint.clone();
        let target = Target { endpoint, host, port, headers, tls, timeout: resolved.timeout };
        Ok(Self { runtime, remark, target: Arc::new(target) })
    }

    async fn send(&self, request: Request<Bytes>) -> Result<Response<Bytes>, HttpError> {
        let target = Arc::clone(&self.target);
        let mut task = AbortOnDrop(self.runtime.spawn(async move { target.exchange(request).await }));
        let answered = (&mut task.0).await.unwrap_or_else(|stopped| Err(stopped.into()));
        // Of several attempts the last one that ended has the word.
        match &answered {
            Err(error) => self.remark.set(Some(error.to_string())),
            Ok(response) => self.judge(response.status(), response.body()),
        }
        answered
    }

    fn judge(&self, status: StatusCode, body: &[u8]) {
        if !status.is_success() {
            self.remark.set(Some(format!("the collector answered {status}: {}", answer::refused(body))));
            return;
        }
        match answer::taken(body) {
            Ok(None) => self.remark.set(None),
            Ok(Some(partial)) => self.remark.partial(&partial.rejected.to_string(), &partial.message),
            Err(answer::Garbage) => {
                self.remark.set(Some(format!(
                    "what answered {status} is no OTLP collector: its answer is not OTLP"
                )));
            }
        }
    }
}

struct AbortOnDrop<T>(tokio::task::JoinHandle<T>);

impl<T> Drop for AbortOnDrop<T> {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl HttpClient for Client {
    // What `async_trait` would write.
    fn send_bytes<'client, 'future>(
        &'client self,
        request: Request<Bytes>,
    ) -> Pin<Box<dyn Future<Output = Result<Response<Bytes>, HttpError>> + Send + 'future>>
    where
        'client: 'future,
        Self: 'future,
    {
        Box::pin(self.send(request))
    }
}

impl Target {
    async fn exchange(&self, request: Request<Bytes>) -> Result<Response<Bytes>, HttpError> {
        let stream = self.connect().await.map_err(|error| {
            let Self { host, port, .. } = self;
            HttpError::from(format!("cannot connect to {host} port {port}: {error}"))
        })?;
        match &self.tls {
            None => self.exchange_over(stream, request).await,
            Some((connector, name)) => {
                let stream = connector
                    .connect(name.clone(), stream)
                    .await
                    .map_err(|error| format!("TLS with {} failed: {error}", self.host))?;
                self.exchange_over(stream, request).await
            }
        }
    }

    /// Tries each address of the host, none longer than its share of the time.
    async fn connect(&self) -> io::Result<TcpStream> {
        let addresses: Vec<_> = tokio::net::lookup_host((self.host.as_str(), self.port)).await?.collect();
        let share = self.timeout / u32::try_from(addresses.len().max(1)).unwrap_or(u32::MAX);
        let mut last = io::Error::new(io::ErrorKind::NotFound, "the host has no address");
        for address in addresses {
            match tokio::time::timeout(share, TcpStream::connect(address)).await {
                Ok(Ok(stream)) => return Ok(stream),
                Ok(Err(error)) => last = error,
                Err(_) => last = io::Error::new(io::ErrorKind::TimedOut, "no answer"),
            }
        }
        Err(last)
    }

    async fn exchange_over<S>(&self, stream: S, request: Request<Bytes>) -> Result<Response<Bytes>, HttpError>
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
        let connection = AbortOnDrop(tokio::spawn(connection));
        let response = sender.send_request(self.framed(request)).await?;
        let (parts, body) = response.into_parts();
        let body = Limited::new(body, LARGEST_ANSWER).collect().await?.to_bytes();
        drop(connection);
        Ok(Response::from_parts(parts, body))
    }

    /// The crate's body and framing with our headers only: it adds those of the environment by itself.
    fn framed(&self, request: Request<Bytes>) -> Request<Full<Bytes>> {
        let (mut parts, body) = request.into_parts();
        let mut headers = self.headers.clone();
        for name in [header::CONTENT_TYPE, header::CONTENT_ENCODING] {
            if let Some(value) = parts.headers.remove(&name) {
                headers.insert(name, value);
            }
        }
        parts.headers = headers;
        let path = self.endpoint.path_and_query().cloned();
        parts.uri = path.map_or_else(|| Uri::from_static("/"), Uri::from);
        Request::from_parts(parts, Full::new(body))
    }
}

fn connector(material: Material, host: &str) -> Result<(TlsConnector, ServerName<'static>), OtlpError> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(OtlpError::Tls)?
        .with_root_certificates(material.roots);
    let mut config =
        match material.identity.as_ref().and_then(|identity| Some((identity.chain(), identity.key()?))) {
            None => config.with_no_client_auth(),
            Some((chain, key)) => config.with_client_auth_cert(chain, key).map_err(OtlpError::Tls)?,
        };
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    let name = ServerName::try_from(host.to_owned()).map_err(|_| OtlpError::Endpoint {
        endpoint: host.to_owned(),
        why: "is no name that a certificate can have".to_owned(),
    })?;
    Ok((TlsConnector::from(Arc::new(config)), name))
}
