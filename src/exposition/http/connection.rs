//! One client, from the handshake to the end of its connection.

use std::convert::Infallible;
use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::Poll;

use hyper::server::conn::{http1, http2};
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio::time::timeout;

use super::lobby::{Admission, Lobby};
use super::meter::{Meter, Metered, Phase, Times};
use super::routes::Routes;
use crate::config::Web;
use crate::events::{Events, HttpLimit};

/// The most bytes of one request's line and headers. Prometheus sends 400, browsers with cookies 4 KiB.
const HEADER_BYTES: usize = 16 * 1024;
/// The most headers of one request.
const HEADERS: usize = 64;
/// The most requests at once on one HTTP/2 connection.
const STREAMS: u32 = 16;

/// What clients are held to.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limits {
    times: Times,
}

impl Limits {
    pub(super) fn of(web: &Web) -> Self {
        let times =
            Times { header: web.header_timeout, request: web.request_timeout, idle: web.idle_timeout };
        Self { times }
    }
}

/// What all connections share.
#[derive(Debug)]
pub(super) struct Shared {
    pub(super) limits: Limits,
    pub(super) lobby: Lobby,
    pub(super) events: Arc<Events>,
    pub(super) routes: Routes,
}

/// A place in the lobby, given back when dropped.
#[derive(Debug)]
pub(super) struct Guest {
    shared: Arc<Shared>,
    number: u64,
    meter: Arc<Meter>,
}

impl Drop for Guest {
    fn drop(&mut self) {
        self.shared.lobby.leave(self.number);
    }
}

impl Shared {
    /// A place for a new connection; nothing where every connection is being served.
    pub(super) fn admit(self: &Arc<Self>) -> Option<Guest> {
        let meter = Arc::new(Meter::new(self.limits.times));
        let number = match self.lobby.admit(&meter) {
            Admission::Free(number) => number,
            Admission::Instead(number) => {
                self.events.http_limited(HttpLimit::Connections);
                number
            }
            Admission::Full => {
                self.events.http_limited(HttpLimit::Connections);
                return None;
            }
        };
        Some(Guest { shared: Arc::clone(self), number, meter })
    }

    /// Closes an idle connection, because the process has no descriptor left for a new one.
    pub(super) fn make_room(&self) {
        if self.lobby.make_room() {
            self.events.http_limited(HttpLimit::Connections);
        }
    }
}

/// Returns once the server is to stop.
pub(super) async fn stopped(shutdown: &mut watch::Receiver<bool>) {
    // An error means that nobody is left to say so, which says so too.
    let _ = shutdown.wait_for(|stop| *stop).await;
}

/// Serves one connection to its end.
pub(super) async fn serve(
    stream: TcpStream,
    guest: Guest,
    shared: Arc<Shared>,
    mut shutdown: watch::Receiver<bool>,
) {
    // An answer is written at once, so there is nothing to wait for to fill a packet.
    let _ = stream.set_nodelay(true);
    let meter = Arc::clone(&guest.meter);
    if !shared.routes.tls_on() {
        plain(stream, meter, shared, shutdown).await;
        return;
    }
    meter.handshake();
    let handshake = timeout(shared.limits.times.header, shared.routes.handshake(stream));
    let accepted = tokio::select! {
        accepted = handshake => accepted,
        () = meter.evicted() => return,
        () = stopped(&mut shutdown) => return,
    };
    let stream = match accepted {
        Ok(Ok(stream)) => stream,
        Ok(Err(error)) => {
            tracing::debug!(error = %error, "A TLS handshake failed.");
            shared.events.http_limited(HttpLimit::Handshake);
            return;
        }
        Err(_) => {
            shared.events.http_limited(HttpLimit::Handshake);
            return;
        }
    };
    if stream.get_ref().1.alpn_protocol() != Some(b"h2") {
        meter.established(false);
        plain(stream, meter, shared, shutdown).await;
        return;
    }
    meter.established(true);
    let service = service_fn(|request| {
        let (shared, answered) = (Arc::clone(&shared), meter.request());
        async move { Ok::<_, Infallible>(shared.routes.answer(request, answered).await) }
    });
    let io = TokioIo::new(Metered::new(stream, Arc::clone(&meter)));
    let connection = http2::Builder::new(TokioExecutor::new())
        .timer(TokioTimer::new())
        .max_concurrent_streams(STREAMS)
        .max_header_list_size(u32::try_from(HEADER_BYTES).unwrap_or(u32::MAX))
        .serve_connection(io, service);
    drive(connection, http2::Connection::graceful_shutdown, &meter, &shared, shutdown).await;
}

/// HTTP/1.1 over TCP or TLS.
async fn plain(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send,
    meter: Arc<Meter>,
    shared: Arc<Shared>,
    shutdown: watch::Receiver<bool>,
) {
    let service = service_fn(|request| {
        let (shared, answered) = (Arc::clone(&shared), meter.request());
        async move { Ok::<_, Infallible>(shared.routes.answer(request, answered).await) }
    });
    let io = TokioIo::new(Metered::new(stream, Arc::clone(&meter)));
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        // The meter has its own, which also counts the time before the first byte rightly.
        .header_read_timeout(None)
        .max_headers(HEADERS)
        .max_buf_size(HEADER_BYTES)
        .pipeline_flush(true)
        .serve_connection(io, service);
    drive(connection, http1::Connection::graceful_shutdown, &meter, &shared, shutdown).await;
}

/// Polls a connection until it ends, is too slow, has to make room, or the server stops.
async fn drive<C: Future<Output = hyper::Result<()>>>(
    connection: C,
    graceful: impl FnOnce(Pin<&mut C>),
    meter: &Arc<Meter>,
    shared: &Shared,
    mut shutdown: watch::Receiver<bool>,
) {
    let mut connection = pin!(connection);
    let mut graceful = Some(graceful);
    let mut alarm = pin!(tokio::time::sleep_until(meter.deadline()));
    loop {
        let step = poll_fn(|cx| {
            if let Poll::Ready(ended) = connection.as_mut().poll(cx) {
                return Poll::Ready(Some(ended));
            }
            // Polling may have moved the deadline either way.
            let deadline = meter.deadline();
            if alarm.deadline() != deadline {
                alarm.as_mut().reset(deadline);
            }
            alarm.as_mut().poll(cx).map(|()| None)
        });
        tokio::select! {
            biased;
            ended = step => {
                match ended {
                    Some(ended) => note(ended, &shared.events),
                    // A connection kept open in vain is no client held to a limit.
                    None if meter.phase().0 == Phase::Idle => {}
                    None => shared.events.http_limited(HttpLimit::Time),
                }
                return;
            }
            () = meter.evicted() => return,
            () = stopped(&mut shutdown), if graceful.is_some() => {
                if let Some(graceful) = graceful.take() {
                    graceful(connection.as_mut());
                }
            }
        }
    }
}

/// Counts what hyper answered by itself: requests it could not read.
fn note(ended: hyper::Result<()>, events: &Events) {
    let Err(error) = ended else { return };
    tracing::debug!(error = %error, "A connection ended.");
    if error.is_parse_too_large() {
        events.http_limited(HttpLimit::Size);
        events.http_answered(431);
    } else if error.is_parse() {
        events.http_answered(400);
    }
}
