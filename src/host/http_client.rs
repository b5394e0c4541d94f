//! The HTTP client of commands and webhooks: `http`, `https` and the socket of the daemon, with limits of response size and
//! time.

use std::error::Error;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use bytes::Bytes;
use http::uri::Scheme;
use http::{Request, StatusCode, Uri};
use http_body_util::{BodyExt as _, Full, Limited};
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::net::UnixStream;
use tokio_rustls::rustls::{self, CertificateError, RootCertStore};

use super::local_socket;
use super::tls::{self, Trust, TrustError};
use crate::model::error_chain::error_chain;

/// Sends requests; keeps a connection to each server.
#[derive(Debug)]
pub struct HttpClient {
    server: Server,
    /// Maximum size of a response, in bytes.
    largest: usize,
    patience: Duration,
}

#[derive(Debug)]
enum Server {
    Net(Box<Client<HttpsConnector<HttpConnector>, Full<Bytes>>>),
    /// The socket of the daemon of this node.
    Local(PathBuf),
}

/// Why a client could not be created or a request failed.
#[derive(Debug, thiserror::Error)]
pub enum HttpError {
    /// The trusted certificates cannot be read.
    #[error(transparent)]
    Trust(#[from] TrustError),
    /// TLS cannot be set up.
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
    #[error("no response within {} s", .0.as_secs())]
    Late(Duration),
}

/// Parses the URL of a server.
///
/// # Errors
/// The error, as the end of a sentence.
pub fn address(text: &str) -> Result<Uri, &'static str> {
    let uri: Uri = text.parse().map_err(|_| "is not a valid URL")?;
    match uri.scheme_str() {
        Some("http" | "https") if uri.host().is_some_and(|host| !host.is_empty()) => Ok(uri),
        _ => Err("has no scheme; write http:// or https:// before it"),
    }
}

impl HttpClient {
    /// Creates a client for servers like that of `uri`. Trusted certificates are only read for `https`, so
    /// that `http` works without them. Responses are limited to `largest` bytes and to `patience`.
    ///
    /// # Errors
    /// Trusted certificates that cannot be read.
    pub fn new(uri: &Uri, trust: &Trust, largest: usize, patience: Duration) -> Result<Self, HttpError> {
        Self::identified(uri, trust, None, largest, patience)
    }

    /// Like [`HttpClient::new`]; presents a certificate of its own to `https` servers, if given with its key.
    ///
    /// # Errors
    /// Certificates or a key that cannot be read.
    pub fn identified(
        uri: &Uri,
        trust: &Trust,
        identity: Option<&(PathBuf, PathBuf)>,
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
        let connector = HttpsConnectorBuilder::new().with_tls_config(config).https_or_http().enable_http1();
        let client = Client::builder(TokioExecutor::new()).build(connector.build());
        Ok(Self { server: Server::Net(Box::new(client)), largest, patience })
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
            let status = answer.status();
            let body = Limited::new(answer.into_body(), self.largest).collect().await;
            let body = body.map(|body| body.to_bytes()).map_err(|error| HttpError::Answer(error.to_string()));
            Ok((status, body))
        };
        tokio::time::timeout(self.patience, response).await.unwrap_or(Err(HttpError::Late(self.patience)))
    }
}

/// Sends a request to the socket of the daemon of this node, on a connection of its own.
async fn ask_local(
    socket: &Path,
    request: Request<Full<Bytes>>,
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
