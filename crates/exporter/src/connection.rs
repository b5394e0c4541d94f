//! Serves one client connection, from the handshake to its end.

use std::convert::Infallible;
use std::future::poll_fn;
use std::net::IpAddr;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use http::{Request, Response};
use hyper::body::Incoming;
use hyper::server::conn::{http1, http2};
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio::time::{Instant, timeout};

use super::answer::Sent;
use super::connections::{Connections, Owner};
use super::frame_limit::LimitedFrames;
use super::meter::{self, Meter, Metered, Phase, Times};
use super::web_config::WebConfig;
use crate::model::names::named;

/// Maximum bytes of the request line and headers of one request. Prometheus sends 400, browsers with cookies 4 KiB.
const HEADER_BYTES: usize = 16 * 1024;
/// Maximum number of headers of one request.
const HEADERS: usize = 64;
/// Bytes of request bodies that one HTTP/2 connection may send before they are read: the least that the protocol has, as no body is
/// large (RFC 9113, section 6.9.2).
const WINDOW: u32 = 65_535;
/// Maximum number of concurrent requests on one HTTP/2 connection.
const STREAMS: u32 = 16;

named! {
    /// Why a connection was closed, or a request refused.
    pub enum HttpLimit {
        /// Too many connections: the one that was idle longest was closed.
        Connections = "connections",
        /// Too many requests at once: answered 503.
        Requests = "requests",
        /// The headers or the request took too long.
        Time = "time",
        /// The headers or the body were too large.
        Size = "size",
        /// Too many frames of HTTP/2 for the number of requests.
        Frames = "frames",
        /// The TLS handshake failed or took too long.
        Handshake = "handshake",
        /// The rate limit of the web-config file, or too many waiting password checks: answered 429.
        Rate = "rate",
    }
}

/// What answers the requests of the connections.
pub trait Service: std::fmt::Debug + Send + Sync + 'static {
    /// TLS and its certificates.
    fn web_config(&self) -> &WebConfig;

    /// The response to one request, after the checks of the web-config file.
    fn answer(
        &self,
        request: Request<Incoming>,
        open: meter::Request,
        client: Client,
    ) -> impl Future<Output = Response<Sent>> + Send;

    /// Counts a connection that was closed because of a limit.
    fn limited(&self, limit: HttpLimit);

    /// Counts a response that hyper wrote, with its status.
    fn answered(&self, status: u16);
}

/// The client of a connection.
#[derive(Clone, Copy, Debug)]
pub struct Client {
    /// The address of this host that it reached; of loopback for the socket of commands.
    pub local: IpAddr,
    /// Its user, by the kernel; absent over TCP.
    pub uid: Option<u32>,
    /// Whether it presented a certificate that was verified by a CA that the web-config file names.
    pub certificate: bool,
    /// Whose share of connections and of checks of passwords it takes.
    pub owner: Owner,
}

/// What all connections share.
#[derive(Debug)]
pub struct Shared<S> {
    pub times: Times,
    pub connections: Connections,
    pub service: S,
}

/// A slot for one connection, released when dropped.
#[derive(Debug)]
pub struct AdmittedConnection<S> {
    shared: Arc<Shared<S>>,
    number: u64,
    pub meter: Arc<Meter>,
    pub owner: Owner,
}

impl<S> Drop for AdmittedConnection<S> {
    fn drop(&mut self) {
        self.shared.connections.leave(self.number);
    }
}

impl<S: Service> Shared<S> {
    /// A slot for a new connection; absent where every connection is serving a request.
    pub fn admit(self: &Arc<Self>, owner: Owner) -> Option<AdmittedConnection<S>> {
        let meter = Arc::new(Meter::new(self.times));
        let (number, limited) = self.connections.admit(&meter, owner);
        if limited {
            self.service.limited(HttpLimit::Connections);
        }
        Some(AdmittedConnection { shared: Arc::clone(self), number: number?, meter, owner })
    }

    /// Closes an idle connection, because the process has no file descriptor left for a new one.
    pub fn make_room(&self) {
        if self.connections.make_room() {
            self.service.limited(HttpLimit::Connections);
        }
    }
}

/// Returns when the server is to stop.
pub async fn stopped(shutdown: &mut watch::Receiver<bool>) {
    // An error means that the sender was dropped, which also stops the server.
    let _ = shutdown.wait_for(|stop| *stop).await;
}

/// Serves one connection over TCP to its end, with TLS where the web-config file asks for it.
pub async fn serve_tcp<S: Service>(
    stream: TcpStream,
    admitted: AdmittedConnection<S>,
    shared: Arc<Shared<S>>,
    mut shutdown: watch::Receiver<bool>,
) {
    // A response is written at once, so Nagle's algorithm would only delay it.
    let _ = stream.set_nodelay(true);
    let meter = Arc::clone(&admitted.meter);
    let Ok(local) = stream.local_addr().map(|address| address.ip()) else { return };
    if !shared.service.web_config().tls_on() {
        let client = Client { local, uid: None, certificate: false, owner: admitted.owner };
        plain(stream, client, meter, shared, shutdown).await;
        return;
    }
    meter.handshake();
    let handshake = timeout(shared.times.header, shared.service.web_config().handshake(stream));
    let accepted = tokio::select! {
        accepted = handshake => accepted,
        () = meter.evicted() => return,
        () = stopped(&mut shutdown) => return,
    };
    let (stream, certificate) = match accepted {
        Ok(Ok(accepted)) => accepted,
        Ok(Err(error)) => {
            tracing::debug!(error = %error, "A TLS handshake failed.");
            shared.service.limited(HttpLimit::Handshake);
            return;
        }
        Err(_) => {
            shared.service.limited(HttpLimit::Handshake);
            return;
        }
    };
    let client = Client { local, uid: None, certificate, owner: admitted.owner };
    if stream.get_ref().1.alpn_protocol() != Some(b"h2") {
        meter.established(false);
        plain(stream, client, meter, shared, shutdown).await;
        return;
    }
    meter.established(true);
    let service = service_fn(|request| {
        let (shared, answered) = (Arc::clone(&shared), meter.request());
        // Beside the task of the connection.
        async move {
            let answer = shared.service.answer(request, answered, client);
            Ok::<_, Infallible>(charged(answer, &shared, client.owner).await)
        }
    });
    let requests = Arc::clone(&meter);
    let limited = Arc::clone(&shared);
    let exceeded = move || limited.service.limited(HttpLimit::Frames);
    let stream = LimitedFrames::new(stream, move || requests.requests(), exceeded);
    let io = TokioIo::new(Metered::new(stream, Arc::clone(&meter)));
    let connection = http2::Builder::new(TokioExecutor::new())
        .timer(TokioTimer::new())
        .max_concurrent_streams(STREAMS)
        .initial_stream_window_size(WINDOW)
        .initial_connection_window_size(WINDOW)
        .max_header_list_size(u32::try_from(HEADER_BYTES).unwrap_or(u32::MAX))
        .serve_connection(io, service);
    drive(pin!(connection), http2::Connection::graceful_shutdown, (&meter, client.owner), &shared, shutdown)
        .await;
}

/// HTTP/1.1 over TCP or TLS.
pub async fn plain<S: Service>(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send,
    client: Client,
    meter: Arc<Meter>,
    shared: Arc<Shared<S>>,
    shutdown: watch::Receiver<bool>,
) {
    /// Time to read what a client still sends after its response.
    const LINGER: Duration = Duration::from_millis(500);
    let service = service_fn(|request| {
        let (shared, answered) = (Arc::clone(&shared), meter.request());
        async move { Ok::<_, Infallible>(shared.service.answer(request, answered, client).await) }
    });
    let io = TokioIo::new(Metered::new(stream, Arc::clone(&meter)));
    let mut connection = http1::Builder::new()
        .timer(TokioTimer::new())
        // The meter has its own deadline, which also covers the time before the first byte.
        .header_read_timeout(None)
        .max_headers(HEADERS)
        .max_buf_size(HEADER_BYTES)
        .serve_connection(io, service);
    let ended = drive(
        Pin::new(&mut connection),
        http1::Connection::graceful_shutdown,
        (&meter, client.owner),
        &shared,
        shutdown,
    );
    if let End::Closing = ended.await {
        // Closing a socket with unread bytes resets the connection, and the client loses a response that it has not
        // read yet.
        let mut stream = connection.into_parts().io.into_inner();
        tokio::select! {
            _ = timeout(LINGER, discard(&mut stream)) => {}
            () = meter.evicted() => {}
        }
    }
}

/// Reads and discards remaining bytes, up to a limit.
async fn discard(stream: &mut (impl AsyncRead + AsyncWrite + Unpin)) -> std::io::Result<()> {
    /// Many times the accepted headers and body; a client that sends more is not waiting for a response.
    const MOST: u64 = 256 * 1024;
    stream.shutdown().await?;
    tokio::io::copy(&mut stream.take(MOST), &mut tokio::io::sink()).await.map(|_| ())
}

/// What polling a connection has led to.
enum Step {
    Ended(hyper::Result<()>),
    /// Its client has taken more than its share of a processor.
    Paused,
    /// It has missed a deadline.
    Late,
}

/// How a connection ended.
enum End {
    /// The last response is sent; the client may still be sending.
    Closing,
    /// It was interrupted, or the server stops.
    Cut,
}

/// Counts the time that an answer takes as that of its client.
async fn charged<F: Future>(answer: F, shared: &Shared<impl Service>, owner: Owner) -> F::Output {
    let mut answer = pin!(answer);
    poll_fn(|cx| {
        let begun = Instant::now();
        let polled = answer.as_mut().poll(cx);
        shared.connections.charge(owner, begun.elapsed());
        polled
    })
    .await
}

/// Polls a connection until it ends, misses a deadline, is evicted, or the server stops; not while its client has taken more than its
/// share of a processor.
async fn drive<C: Future<Output = hyper::Result<()>>>(
    mut connection: Pin<&mut C>,
    graceful: impl FnOnce(Pin<&mut C>),
    (meter, owner): (&Arc<Meter>, Owner),
    shared: &Shared<impl Service>,
    mut shutdown: watch::Receiver<bool>,
) -> End {
    let mut graceful = Some(graceful);
    let mut alarm = pin!(tokio::time::sleep_until(meter.deadline()));
    let mut pause = Duration::ZERO;
    loop {
        if !pause.is_zero() {
            meter.pause(true);
            tokio::select! {
                () = tokio::time::sleep(std::mem::take(&mut pause)) => {}
                () = meter.evicted() => return End::Cut,
                () = stopped(&mut shutdown), if graceful.is_some() => {}
            }
            meter.pause(false);
        }
        let step = poll_fn(|cx| {
            let begun = Instant::now();
            let polled = connection.as_mut().poll(cx);
            pause = shared.connections.charge(owner, begun.elapsed());
            if let Poll::Ready(ended) = polled {
                return Poll::Ready(Step::Ended(ended));
            }
            if !pause.is_zero() {
                return Poll::Ready(Step::Paused);
            }
            // Polling may have moved the deadline in either direction.
            let deadline = meter.deadline();
            if alarm.deadline() != deadline {
                alarm.as_mut().reset(deadline);
            }
            alarm.as_mut().poll(cx).map(|()| Step::Late)
        });
        tokio::select! {
            biased;
            step = step => {
                match step {
                    Step::Ended(ended) => {
                        note(ended, &shared.service);
                        return if graceful.is_some() { End::Closing } else { End::Cut };
                    }
                    Step::Paused => continue,
                    // Closing an idle connection does not count as a reached limit.
                    Step::Late if meter.phase().0 == Phase::Idle => {}
                    Step::Late => shared.service.limited(HttpLimit::Time),
                }
                return End::Cut;
            }
            () = meter.evicted() => return End::Cut,
            () = stopped(&mut shutdown), if graceful.is_some() => {
                if let Some(graceful) = graceful.take() {
                    graceful(connection.as_mut());
                }
            }
        }
    }
}

/// Counts the requests that hyper could not parse and answered itself.
fn note(ended: hyper::Result<()>, service: &impl Service) {
    let Err(error) = ended else { return };
    tracing::debug!(error = %error, "A connection ended.");
    if error.is_parse_too_large() {
        service.limited(HttpLimit::Size);
        service.answered(431);
    } else if error.is_parse() {
        service.answered(400);
    }
}

#[cfg(test)]
mod tests {
    use http::{StatusCode, Version};
    use tokio::io::AsyncWriteExt as _;

    use super::*;
    use crate::answer::Answer;

    /// Takes three seconds for each answer.
    #[derive(Debug)]
    struct Slow(WebConfig);

    impl Service for Slow {
        fn web_config(&self) -> &WebConfig {
            &self.0
        }

        async fn answer(
            &self,
            request: Request<Incoming>,
            open: meter::Request,
            _: Client,
        ) -> Response<Sent> {
            // The clock moves within this poll, as if it had computed for as long.
            let mut took = pin!(tokio::time::advance(Duration::from_secs(3)));
            poll_fn(|cx| {
                let _ = took.as_mut().poll(cx);
                Poll::Ready(())
            })
            .await;
            let http2 = request.version() == Version::HTTP_2;
            Answer::text(StatusCode::OK, "done").finish(open, false, http2)
        }

        fn limited(&self, _: HttpLimit) {}

        fn answered(&self, _: u16) {}
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_that_takes_much_is_answered_later_and_its_connection_can_be_closed() {
        let second = Duration::from_secs(1);
        let shared = Arc::new(Shared {
            times: Times { header: 60 * second, request: 60 * second, idle: 60 * second },
            connections: Connections::new(8),
            service: Slow(WebConfig::none()),
        });
        let (_stop, stopped) = watch::channel(false);
        let owner = Owner::User(1000);
        let client = Client { local: [127, 0, 0, 1].into(), uid: Some(1000), certificate: false, owner };
        let (mut near, far) = tokio::io::duplex(4096);
        let meter = shared.admit(owner).unwrap().meter.clone();
        let served = plain(far, client, Arc::clone(&meter), Arc::clone(&shared), stopped);
        let served = tokio::spawn(served);
        let ask = b"GET / HTTP/1.1\r\nHost: a\r\n\r\n";
        let begun = Instant::now();
        for seconds in [3, 3 + 10 + 3] {
            near.write_all(ask).await.unwrap();
            let mut answer = [0; 1024];
            let read = near.read(&mut answer).await.unwrap();
            assert!(answer[..read].trim_ascii_end().ends_with(b"done"));
            assert_eq!(
                begun.elapsed().as_secs(),
                seconds,
                "after the first answer it waits for 1 s of a tenth of a processor"
            );
        }
        near.write_all(ask).await.unwrap();
        tokio::task::yield_now().await;
        assert_ne!(meter.phase().0, Phase::Busy(1), "its place can be taken");
        meter.evict();
        assert!(timeout(second, served).await.is_ok());
    }
}
