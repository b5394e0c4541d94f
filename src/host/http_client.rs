//! The HTTP client of commands and webhooks: `http`, `https` and the socket of the daemon, with limits of response size and
//! time.

use std::error::Error;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use bytes::{Buf, Bytes};
use http::response::Parts;
use http::uri::Scheme;
use http::{Request, StatusCode, Uri};
use http_body_util::{BodyExt as _, Collected, Full, Limited};
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::net::UnixStream;
use tokio_rustls::rustls::{self, CertificateError, RootCertStore};

use super::local_socket;
use super::tls::{self, Trust, TrustError};
use crate::model::error_chain::error_chain;

/// The version of HTTP, and whether a connection is kept for the next request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Version {
    /// HTTP/1.1; a connection to each server is kept.
    Http1,
    /// HTTP/1.1; each request has its own connection.
    Http1Once,
    /// HTTP/2, also without TLS; each request has its own connection.
    Http2,
}

/// Sends requests with bodies of `B`.
#[derive(Debug)]
pub struct HttpClient<B = Bytes> {
    server: Server<B>,
    /// Maximum size of a response, in bytes.
    largest: usize,
    patience: Duration,
}

#[derive(Debug)]
enum Server<B> {
    Net(Box<Client<HttpsConnector<HttpConnector>, Full<B>>>),
    /// The socket of the daemon of this node.
    Local(PathBuf),
}

/// Why a client could not be created or a request failed.
#[derive(Debug, thiserror::Error)]
pub enum HttpError {
    /// The trusted certificates cannot be read.
    #[error(transparent)]
    Trust(#[from] TrustError),
    #[error("cannot set up TLS: {0}")]
    Tls(rustls::Error),
    /// The server's certificate is not issued by a trusted authority, is for another name, or has expired.
    #[error("the server's certificate is not trusted: {0}")]
    Certificate(CertificateError),
    /// The connection failed.
    #[error("{0}")]
    Connect(String),
    /// The request failed after connecting.
    #[error("{0}")]
    Request(String),
    /// The response ended before it was complete, or is too large.
    #[error("the response is incomplete: {0}")]
    Answer(String),
    /// The time limit was exceeded.
    #[error("no response within {0:?}")]
    Late(Duration),
}

/// Parses the URL of a server.
///
/// # Errors
/// The error, as the end of a sentence.
pub fn address(text: &str) -> Result<Uri, &'static str> {
    let (scheme, _) = text.split_once("://").ok_or("has no scheme; write http:// or https:// before it")?;
    if !["http", "https"].iter().any(|known| scheme.eq_ignore_ascii_case(known)) {
        return Err("has a scheme other than http and https");
    }
    let uri: Uri = text.parse().map_err(|_| "is not a valid URL")?;
    if uri.host().is_some_and(|host| !host.is_empty()) { Ok(uri) } else { Err("has no host") }
}

impl HttpClient {
    /// As [`HttpClient::of`], by HTTP/1 and without a certificate of its own.
    ///
    /// # Errors
    /// Trusted certificates that cannot be read.
    pub fn new(uri: &Uri, trust: &Trust, largest: usize, patience: Duration) -> Result<Self, HttpError> {
        Self::of(uri, trust, None, Version::Http1, largest, patience)
    }

    /// Creates a client for the socket of the daemon of this node, whose user is checked.
    pub fn local(socket: PathBuf, largest: usize, patience: Duration) -> Self {
        Self { server: Server::Local(socket), largest, patience }
    }

    /// The status and the body of the response; the body is an error if it is incomplete.
    ///
    /// # Errors
    /// No response, or none in time.
    pub async fn exchange(
        &self,
        request: Request<Full<Bytes>>,
    ) -> Result<(StatusCode, Result<Bytes, HttpError>), HttpError> {
        let (head, body) = self.answer(request).await?;
        Ok((head.status, body.map(Collected::to_bytes)))
    }
}

impl<B: Buf + Send + 'static> HttpClient<B> {
    /// Creates a client for servers like that of `uri`. Trusted certificates are only read for `https`, so
    /// that `http` works without them. Presents a certificate of its own to `https` servers, if given with its key. Responses
    /// are limited to `largest` bytes and to `patience`.
    ///
    /// # Errors
    /// Certificates or a key that cannot be read.
    pub fn of(
        uri: &Uri,
        trust: &Trust,
        identity: Option<&(PathBuf, PathBuf)>,
        version: Version,
        largest: usize,
        patience: Duration,
    ) -> Result<Self, HttpError> {
        let secure = uri.scheme() == Some(&Scheme::HTTPS);
        let roots = if secure { trust.roots()? } else { RootCertStore::empty() };
        let own = match identity.filter(|_| secure) {
            Some((certificate, key)) => Some(tls::identity(certificate, key)?),
            None => None,
        };
        let config = tls::client(roots, own).map_err(HttpError::Tls)?;
        let builder = HttpsConnectorBuilder::new().with_tls_config(config).https_or_http();
        let mut http = HttpConnector::new();
        http.enforce_http(false);
        // Divided between the addresses of a name.
        http.set_connect_timeout(Some(patience));
        let connector = match version {
            Version::Http1 | Version::Http1Once => builder.enable_http1().wrap_connector(http),
            Version::Http2 => builder.enable_http2().wrap_connector(http),
        };
        let mut client = Client::builder(TokioExecutor::new());
        client.http2_only(version == Version::Http2);
        if version != Version::Http1 {
            client.pool_max_idle_per_host(0);
        }
        Ok(Self { server: Server::Net(Box::new(client.build(connector))), largest, patience })
    }

    /// The response; its body is an error if it is incomplete.
    ///
    /// # Errors
    /// No response, or none in time.
    pub async fn answer(
        &self,
        request: Request<Full<B>>,
    ) -> Result<(Parts, Result<Collected<Bytes>, HttpError>), HttpError> {
        let response = async {
            let answer = match &self.server {
                Server::Net(client) => {
                    client.request(request).await.map_err(|error| match (untrusted(&error), error.source()) {
                        (Some(why), _) => HttpError::Certificate(why),
                        (None, Some(cause)) if error.is_connect() => HttpError::Connect(error_chain(cause)),
                        _ => HttpError::Request(error_chain(&error)),
                    })
                }
                Server::Local(socket) => ask_local(socket, request).await,
            }?;
            let (head, body) = answer.into_parts();
            let body = Limited::new(body, self.largest).collect().await;
            Ok((head, body.map_err(|error| HttpError::Answer(error.to_string()))))
        };
        tokio::time::timeout(self.patience, response).await.unwrap_or(Err(HttpError::Late(self.patience)))
    }
}

/// Sends a request to the socket of the daemon of this node, on a connection of its own.
async fn ask_local<B: Buf + Send + 'static>(
    socket: &Path,
    request: Request<Full<B>>,
) -> Result<http::Response<hyper::body::Incoming>, HttpError> {
    let refused = |error: io::Error| match error.kind() {
        io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused => {
            HttpError::Connect(format!("nothing listens on {}", socket.display()))
        }
        _ => HttpError::Connect(format!("{}: {error}", socket.display())),
    };
    let stream = UnixStream::connect(socket).await.map_err(refused)?;
    local_socket::check_server(&stream, socket).map_err(refused)?;
    let failed = |error: hyper::Error| HttpError::Request(error_chain(&error));
    let (mut sender, connection) =
        hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.map_err(failed)?;
    tokio::spawn(connection);
    sender.send_request(request).await.map_err(failed)
}

/// The error in the server's certificate, if that is the cause.
fn untrusted(error: &(dyn Error + 'static)) -> Option<CertificateError> {
    if let Some(rustls::Error::InvalidCertificate(why)) = error.downcast_ref() {
        return Some(why.clone());
    }
    // An I/O error contains another error that is not its source.
    let inner = error.downcast_ref::<io::Error>().and_then(io::Error::get_ref);
    inner.and_then(|inner| untrusted(inner)).or_else(|| untrusted(error.source()?))
}
