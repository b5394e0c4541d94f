//! The web-config file of Prometheus exporters: TLS, users, headers, rate limit.
//!
//! The files are checked for changes at every request and every handshake. Whether TLS, HTTP/2 and a rate limit are
//! enabled is fixed at start. While the files are invalid every request is answered with status 500, and handshakes
//! use the last valid certificates so that clients can read that response.

mod clients;
mod document;
mod names;
mod options;
mod tls;
mod watched;

use std::error::Error as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard};

use http::{HeaderName, HeaderValue};
use tokio::net::TcpStream;
use tokio::time::Instant;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::server::TlsStream;

use super::auth::{Memory, Users};
use crate::model::lock::lock;
use crate::model::setting::problem::ConfigError;
use document::Rate;
use watched::Files;

/// Errors of a web-config file.
#[derive(Debug, thiserror::Error)]
pub enum WebConfigError {
    /// The text is invalid.
    #[error(transparent)]
    Refused(#[from] ConfigError),
    /// The file, or a file it names, cannot be read.
    #[error("cannot read {}", .path.display())]
    Unreadable { path: PathBuf, source: std::io::Error },
    /// The file, or a file it names, has unusable content.
    #[error("{}: {what}", .path.display())]
    Unusable { path: PathBuf, what: String },
}

/// The files are invalid, which has been logged.
#[derive(Clone, Copy, Debug, thiserror::Error)]
#[error("the web-config file is invalid; see the log")]
pub struct Invalid;

impl WebConfigError {
    fn unusable(path: &Path, what: impl Into<String>) -> Self {
        Self::Unusable { path: path.to_owned(), what: what.into() }
    }
}

/// Checks a web-config file and the files it names, without using them.
///
/// # Errors
/// [`WebConfigError`]; for an invalid text with all mistakes.
pub fn check_web_config(path: &Path) -> Result<(), WebConfigError> {
    load(path, &mut Files::default(), &Arc::new(Memory::new()), None).map(|_| ())
}

/// Rules for one request.
#[derive(Debug)]
pub struct Rules {
    pub users: Users,
    pub headers: Vec<(HeaderName, HeaderValue)>,
    /// Whether certificates of clients are verified.
    pub verifies: bool,
}

/// How a TLS handshake is made.
#[derive(Clone, Debug)]
pub struct Tls {
    pub config: Arc<ServerConfig>,
    /// Whether a certificate that a client presents is verified by a CA that the file names.
    pub verifies: bool,
}

#[derive(Debug)]
struct Loaded {
    rules: Arc<Rules>,
    tls: Option<Tls>,
    http2: bool,
    rate: Option<Rate>,
}

/// A web-config file in use.
#[derive(Debug)]
pub struct WebConfig {
    /// Absent without a web-config file.
    path: Option<PathBuf>,
    tls_on: bool,
    http2: bool,
    live: Mutex<Live>,
    bucket: Option<Bucket>,
    memory: Arc<Memory>,
}

#[derive(Debug)]
struct Live {
    files: Files,
    rules: Arc<Rules>,
    /// The last valid TLS configuration.
    tls: Option<Tls>,
    /// The current error of the files, as logged.
    broken: Option<String>,
}

impl WebConfig {
    /// The rules without a web-config file: no TLS, no users, no headers.
    pub fn none() -> Self {
        let memory = Arc::new(Memory::new());
        let rules = Rules {
            users: Users::new(Default::default(), Arc::clone(&memory)),
            headers: Vec::new(),
            verifies: false,
        };
        let loaded = Loaded { rules: Arc::new(rules), tls: None, http2: false, rate: None };
        Self::new(None, loaded, Files::default(), memory)
    }

    /// Reads the file for the first time.
    pub fn read(path: &Path) -> Result<Self, WebConfigError> {
        let (mut files, memory) = (Files::default(), Arc::new(Memory::new()));
        let loaded = load(path, &mut files, &memory, None)?;
        Ok(Self::new(Some(path.to_owned()), loaded, files, memory))
    }

    fn new(path: Option<PathBuf>, loaded: Loaded, files: Files, memory: Arc<Memory>) -> Self {
        Self {
            path,
            tls_on: loaded.tls.is_some(),
            http2: loaded.http2,
            bucket: loaded.rate.map(Bucket::new),
            live: Mutex::new(Live { files, rules: loaded.rules, tls: loaded.tls, broken: None }),
            memory,
        }
    }

    /// Whether connections begin with a TLS handshake.
    pub fn tls_on(&self) -> bool {
        self.tls_on
    }

    /// The rules of the current files; an error if they are invalid, which has been logged.
    pub fn current(&self) -> Result<Arc<Rules>, Invalid> {
        let live = self.refreshed();
        if live.broken.is_some() { Err(Invalid) } else { Ok(Arc::clone(&live.rules)) }
    }

    /// The TLS configuration of the current files, or of the last valid ones.
    pub fn tls(&self) -> Option<Tls> {
        self.refreshed().tls.clone()
    }

    /// Performs the TLS handshake with the certificates that are currently on disk. Returns the stream, and whether the
    /// client presented a certificate that was verified.
    pub async fn handshake(&self, stream: TcpStream) -> std::io::Result<(TlsStream<TcpStream>, bool)> {
        let Some(tls) = self.tls() else {
            return Err(std::io::Error::other("no certificate was ever loaded"));
        };
        let stream = tokio_rustls::TlsAcceptor::from(tls.config).accept(stream).await?;
        let presented = stream.get_ref().1.peer_certificates().is_some_and(|chain| !chain.is_empty());
        Ok((stream, tls.verifies && presented))
    }

    /// Counts one request against the rate limit; false if the limit is exceeded.
    pub fn within_rate(&self) -> bool {
        self.bucket.as_ref().is_none_or(Bucket::take)
    }

    fn refreshed(&self) -> MutexGuard<'_, Live> {
        let mut live = lock(&self.live);
        let Some(path) = &self.path else { return live };
        if !live.files.changed() {
            return live;
        }
        let mut files = Files::default();
        let loaded = load(path, &mut files, &self.memory, Some(self.http2));
        live.files = files;
        match loaded {
            Ok(loaded) => {
                tracing::info!(file = %path.display(), "Reloaded the web-config file and its certificates.");
                if loaded.tls.is_some() != self.tls_on {
                    tracing::warn!(
                        "TLS was enabled or disabled in the web-config file; restart memwarden to apply this."
                    );
                }
                live.rules = loaded.rules;
                live.tls = loaded.tls.or(live.tls.take());
                live.broken = None;
            }
            Err(error) => {
                let text = match error.source() {
                    Some(source) => format!("{error}: {source}"),
                    None => error.to_string(),
                };
                if live.broken.as_ref() != Some(&text) {
                    tracing::error!(error = %text, "The web-config file is invalid; every request is answered with status 500.");
                }
                live.broken = Some(text);
            }
        }
        live
    }
}

/// Reads all files. `http2` is the value that was set at start; absent at the start itself.
fn load(
    path: &Path,
    files: &mut Files,
    memory: &Arc<Memory>,
    http2: Option<bool>,
) -> Result<Loaded, WebConfigError> {
    let unreadable = |source| WebConfigError::Unreadable { path: path.to_owned(), source };
    let text = String::from_utf8(files.read(path).map_err(unreadable)?)
        .map_err(|_| WebConfigError::unusable(path, "is not UTF-8"))?;
    let document = document::parse(&text, path)?;
    let http2 = http2.unwrap_or(document.http2);
    let verifies = document.tls.as_ref().is_some_and(|tls| tls.clients.verifies());
    let tls = match &document.tls {
        Some(section) => Some(Tls { config: tls::build(section, http2, path, files)?, verifies }),
        None => None,
    };
    let users = Users::new(document.users, Arc::clone(memory));
    let rules = Arc::new(Rules { users, headers: document.headers, verifies });
    Ok(Loaded { rules, tls, http2, rate: document.rate })
}

/// A token bucket: one token per interval, at most `burst`.
#[derive(Debug)]
struct Bucket {
    rate: Rate,
    /// When the bucket is full again; if in the past, it is full.
    full_at: Mutex<Instant>,
}

impl Bucket {
    fn new(rate: Rate) -> Self {
        Self { rate, full_at: Mutex::new(Instant::now()) }
    }

    fn take(&self) -> bool {
        let mut full_at = lock(&self.full_at);
        let now = Instant::now();
        let burst = self.rate.interval.saturating_mul(u32::try_from(self.rate.burst).unwrap_or(u32::MAX));
        let after = (*full_at).max(now) + self.rate.interval;
        let allowed = after.duration_since(now) <= burst;
        if allowed {
            *full_at = after;
        }
        allowed
    }
}

/// Parses the text of a web-config file, for fuzzing.
#[cfg(any(fuzzing, test, feature = "testing"))]
pub fn fuzz_document(text: &str) {
    let _ = document::parse(text, Path::new("web.yml"));
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[tokio::test(start_paused = true)]
    async fn the_rate_is_one_each_interval_after_a_burst() {
        let interval = Duration::from_secs(1);
        let bucket = Bucket::new(Rate { interval, burst: 3 });
        let took = || (0..5).filter(|_| bucket.take()).count();
        assert_eq!(took(), 3);
        tokio::time::advance(interval).await;
        assert_eq!(took(), 1);
        tokio::time::advance(interval * 100).await;
        assert_eq!(took(), 3, "no more than the burst is saved");
    }
}
