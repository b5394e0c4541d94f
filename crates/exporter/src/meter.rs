//! Phase of one connection, with its start and its deadline.
//!
//! Updated by reads, writes and requests, so that one deadline covers a client that sends its headers byte by byte,
//! one that never reads its response, and one that is silent.

use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::Notify;
use tokio::time::Instant;

use crate::model::lock::lock;

/// Time limits of the phases.
#[derive(Clone, Copy, Debug)]
pub struct Times {
    /// The TLS handshake, and the headers of one request.
    pub header: Duration,
    /// One request, from its first byte to the last byte of its response.
    pub request: Duration,
    /// A connection without a request.
    pub idle: Duration,
}

/// Phase of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// The TLS handshake.
    Handshake,
    /// Waiting for a request.
    Idle,
    /// A request has begun to arrive.
    Head,
    /// This many requests are being answered.
    Busy(usize),
    /// Every open request waits: for the client, for other requests, or for its share of a processor.
    Waiting,
    /// The responses are ready and not yet sent.
    Sending,
}

/// One connection's phase.
#[derive(Debug)]
pub struct Meter {
    state: Mutex<MeterState>,
    times: Times,
    evicted: Notify,
    requests: AtomicU64,
}

#[derive(Clone, Copy, Debug)]
struct MeterState {
    /// Never `Waiting`, which is derived: all open requests wait.
    phase: Phase,
    since: Instant,
    /// Number of the requests being answered that wait.
    waiting: usize,
    /// Whether it is not served, as its client has taken more than its share of a processor.
    paused: bool,
    /// Whether received bytes begin a request; false for HTTP/2, whose control frames arrive at any time.
    bytes_begin: bool,
}

impl Meter {
    pub fn new(times: Times) -> Self {
        let (phase, since) = (Phase::Idle, Instant::now());
        let state = MeterState { phase, since, waiting: 0, paused: false, bytes_begin: true };
        Self { state: Mutex::new(state), times, evicted: Notify::new(), requests: AtomicU64::new(0) }
    }

    /// The phase, and when it began.
    pub fn phase(&self) -> (Phase, Instant) {
        let state = self.state();
        let phase = match state.phase {
            Phase::Busy(open) if open == state.waiting || state.paused => Phase::Waiting,
            phase => phase,
        };
        (phase, state.since)
    }

    /// The deadline of the current phase.
    pub fn deadline(&self) -> Instant {
        let (phase, since) = self.phase();
        since
            + match phase {
                Phase::Handshake | Phase::Head => self.times.header,
                Phase::Idle => self.times.idle,
                Phase::Busy(_) | Phase::Waiting | Phase::Sending => self.times.request,
            }
    }

    pub fn handshake(&self) {
        self.enter(Phase::Handshake);
    }

    pub fn established(&self, http2: bool) {
        self.state().bytes_begin = !http2;
        self.enter(Phase::Idle);
    }

    /// Whether it is served.
    pub fn pause(&self, paused: bool) {
        self.state().paused = paused;
    }

    /// Tells the connection to close, because its slot is needed.
    pub fn evict(&self) {
        self.evicted.notify_one();
    }

    /// Returns when the connection is told to close.
    pub async fn evicted(&self) {
        self.evicted.notified().await;
    }

    /// Begins a request whose headers are complete; it ends when the body of its response is dropped.
    pub fn request(self: &Arc<Self>) -> Request {
        self.requests.fetch_add(1, Ordering::Relaxed);
        let mut state = self.state();
        match state.phase {
            Phase::Busy(open) => state.phase = Phase::Busy(open + 1),
            // The time for one request counts from its first byte.
            Phase::Head => state.phase = Phase::Busy(1),
            _ => (state.phase, state.since) = (Phase::Busy(1), Instant::now()),
        }
        drop(state);
        Request { meter: Arc::clone(self), made: false }
    }

    /// Number of requests so far.
    pub fn requests(&self) -> u64 {
        self.requests.load(Ordering::Relaxed)
    }

    fn read(&self) {
        let mut state = self.state();
        if state.phase == Phase::Idle && state.bytes_begin {
            (state.phase, state.since) = (Phase::Head, Instant::now());
        }
    }

    fn flushed(&self) {
        let mut state = self.state();
        if state.phase == Phase::Sending {
            (state.phase, state.since) = (Phase::Idle, Instant::now());
        }
    }

    fn enter(&self, phase: Phase) {
        let mut state = self.state();
        (state.phase, state.since) = (phase, Instant::now());
    }

    fn state(&self) -> MutexGuard<'_, MeterState> {
        lock(&self.state)
    }
}

/// A request that is being answered.
#[derive(Debug)]
pub struct Request {
    meter: Arc<Meter>,
    /// Whether it waits for its client to read the response.
    made: bool,
}

impl Request {
    /// Marks the request as waiting until the result is dropped, so that its connection can be evicted.
    pub fn waits(&self) -> Waiting<'_> {
        self.meter.state().waiting += 1;
        Waiting(&self.meter)
    }

    /// The response is ready, and the request ends when the client reads it.
    pub fn made(&mut self) {
        if !std::mem::replace(&mut self.made, true) {
            self.meter.state().waiting += 1;
        }
    }
}

/// A waiting request; dropping it ends the wait.
#[derive(Debug)]
pub struct Waiting<'a>(&'a Meter);

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        let mut state = self.0.state();
        state.waiting = state.waiting.saturating_sub(1);
    }
}

impl Drop for Request {
    fn drop(&mut self) {
        let mut state = self.meter.state();
        state.waiting = state.waiting.saturating_sub(usize::from(self.made));
        match state.phase {
            // One of several streams has ended, so the connection makes progress.
            Phase::Busy(open) if open > 1 => {
                (state.phase, state.since) = (Phase::Busy(open - 1), Instant::now())
            }
            _ => state.phase = Phase::Sending,
        }
    }
}

/// A stream that reports reads and writes to its meter.
#[derive(Debug)]
pub struct Metered<S> {
    stream: S,
    meter: Arc<Meter>,
}

impl<S> Metered<S> {
    pub fn new(stream: S, meter: Arc<Meter>) -> Self {
        Self { stream, meter }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Metered<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<std::io::Result<()>> {
        let before = buffer.filled().len();
        let polled = Pin::new(&mut self.stream).poll_read(cx, buffer);
        if buffer.filled().len() > before {
            self.meter.read();
        }
        polled
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Metered<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<std::io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffers: &[std::io::IoSlice<'_>],
    ) -> Poll<std::io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(cx, buffers)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    /// hyper flushes only when all buffered bytes are written, so this is the end of a response.
    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        let polled = Pin::new(&mut self.stream).poll_flush(cx);
        if let Poll::Ready(Ok(())) = polled {
            self.meter.flushed();
        }
        polled
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn each_phase_has_its_deadline() {
        let second = Duration::from_secs(1);
        let times = Times { header: second, request: second * 2, idle: second * 10 };
        let meter = Arc::new(Meter::new(times));
        let start = Instant::now();
        let left = || meter.deadline() - start;
        assert_eq!(left(), second * 10);
        tokio::time::advance(second).await;
        meter.read();
        assert_eq!(left(), second * 2, "headers");
        let request = meter.request();
        assert_eq!(left(), second * 3, "counted from the first byte");
        meter.flushed();
        assert_eq!(meter.phase().0, Phase::Busy(1), "a flush of something else");
        drop(request);
        assert_eq!((meter.phase().0, left()), (Phase::Sending, second * 3), "not sent, so not over");
        meter.flushed();
        assert_eq!((meter.phase().0, left()), (Phase::Idle, second * 11));
    }

    #[tokio::test(start_paused = true)]
    async fn streams_of_one_connection_count_together() {
        let second = Duration::from_secs(1);
        let meter = Arc::new(Meter::new(Times { header: second, request: second, idle: second }));
        meter.established(true);
        meter.read();
        assert_eq!(meter.phase().0, Phase::Idle, "a control frame begins nothing");
        let (one, two) = (meter.request(), meter.request());
        drop(one);
        assert_eq!(meter.phase().0, Phase::Busy(1));
        drop(two);
        assert_eq!(meter.phase().0, Phase::Sending);
    }

    #[tokio::test(start_paused = true)]
    async fn a_connection_waits_when_all_its_requests_do() {
        let second = Duration::from_secs(1);
        let meter = Arc::new(Meter::new(Times { header: second, request: second, idle: second }));
        let (one, two) = (meter.request(), meter.request());
        let begun = meter.phase().1;
        tokio::time::advance(second / 2).await;
        let waits = one.waits();
        assert_eq!(meter.phase().0, Phase::Busy(2));
        let waits_too = two.waits();
        assert_eq!(meter.phase(), (Phase::Waiting, begun));
        assert_eq!(meter.deadline(), begun + second, "waiting gives no more time");
        drop(waits_too);
        assert_eq!(meter.phase().0, Phase::Busy(2));
        drop(two);
        assert_eq!(meter.phase().0, Phase::Waiting);
        drop(waits);
        assert_eq!(meter.phase().0, Phase::Busy(1));
    }

    #[tokio::test(start_paused = true)]
    async fn an_answer_that_is_made_waits_for_its_client() {
        let second = Duration::from_secs(1);
        let meter = Arc::new(Meter::new(Times { header: second, request: second, idle: second }));
        let (mut one, two) = (meter.request(), meter.request());
        one.made();
        one.made();
        assert_eq!(meter.phase().0, Phase::Busy(2), "the other is still being answered");
        drop(two);
        assert_eq!(meter.phase().0, Phase::Waiting);
        drop(one);
        assert_eq!(meter.phase().0, Phase::Sending);
        let _request = meter.request();
        assert_eq!(meter.phase().0, Phase::Busy(1), "nothing is left of those before");
    }
}
