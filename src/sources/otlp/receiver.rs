//! The receiver's thread with a tokio runtime, separate from the sampler and the daemon's HTTP server.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::convert::Infallible;
use std::net::SocketAddr;
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::Receiver;
use std::sync::{Arc, Mutex, Weak};
use std::task::{Context, Poll};
use std::time::Duration;

use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::time::sleep;

use super::answer;
use super::caller::{Caller, ConnectionContext, LONGEST_REST, rest};
use super::counts::Closed;
use super::options::Options;
use super::senders::{Limit, ListenState, SendersShared};
use crate::host::{clock, process};
use crate::model::fair::{Room, Table};
use crate::model::lock::lock;
use crate::model::source::Failure;

/// Maximum size of a request's line and headers, and maximum number of headers.
const HEADER_BYTES: usize = 16 * 1024;
const HEADERS: usize = 64;
/// How long the head of a request may take, and how long a connection may wait with its first request.
const IN_TIME: Duration = Duration::from_secs(10);
/// How long a connection may be idle between two requests; OpenTelemetry pushes once a minute.
const IDLE: Duration = Duration::from_secs(300);
/// Most concurrent requests on one HTTP/2 connection.
const STREAMS: u32 = 4;
/// Most control frames of HTTP/2 before the first request, and for each request; a client sends fewer than ten.
const CONTROL_FRAMES: u64 = 1_000;
/// Interval between attempts to listen after an error.
const AGAIN: Duration = Duration::from_secs(5);
/// How long the daemon's shutdown waits for the thread.
const FAREWELL: Duration = Duration::from_millis(900);

/// The source's handle of the thread; dropping it stops the thread.
#[derive(Debug)]
pub(super) struct Hold {
    stop: watch::Sender<bool>,
    ended: Receiver<()>,
}

impl Drop for Hold {
    fn drop(&mut self) {
        self.stop.send_replace(true);
        let _ = self.ended.recv_timeout(FAREWELL);
    }
}

/// Open connections, by number.
#[derive(Debug, Default)]
struct Callers {
    here: Mutex<BTreeMap<u64, Weak<Caller>>>,
    next: AtomicU64,
}

/// Starts the thread.
///
/// # Errors
/// The operating system's error if no thread or descriptor can be created.
pub(super) fn start(options: &Options, shared: Arc<SendersShared>) -> std::io::Result<Hold> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let (stop, stopped) = watch::channel(false);
    let (end, ended) = std::sync::mpsc::channel();
    let options = options.clone();
    std::thread::Builder::new().name("otlp-receiver".to_owned()).spawn(move || {
        runtime.block_on(receive(&options, shared, stopped));
        runtime.shutdown_background();
        // The receiver may have been dropped.
        let _ = end.send(());
    })?;
    Ok(Hold { stop, ended })
}

/// Maximum number of connections: the configured one, and at most an eighth of the daemon's limit on open files.
pub(super) fn places(options: &Options) -> usize {
    options.max_connections.min((process::descriptor_limit() / 8).max(2))
}

async fn receive(options: &Options, shared: Arc<SendersShared>, mut stopped: watch::Receiver<bool>) {
    let context = ConnectionContext::new(shared);
    let callers = Arc::new(Callers::default());
    let most = places(options);
    for address in options.listen.iter().filter_map(|text| text.parse().ok()) {
        tokio::spawn(listen(address, most, context.clone(), Arc::clone(&callers)));
    }
    // An error means that the sender was dropped, which also means to stop.
    let _ = stopped.wait_for(|stop| *stop).await;
}

/// Listens on one address, and retries after errors.
async fn listen(address: SocketAddr, most: usize, context: ConnectionContext, callers: Arc<Callers>) -> ! {
    let name = address.to_string();
    loop {
        match TcpListener::bind(address).await {
            Ok(listener) => {
                let bound = listener.local_addr().unwrap_or(address);
                context.shared.set_state(&name, ListenState::Listening(bound));
                accept(&listener, most, &context, &callers).await
            }
            Err(error) => {
                let why = format!("cannot listen for OTLP on {address}: {error}");
                context.shared.set_state(&name, ListenState::Failed(Failure::of(&error), why));
                sleep(AGAIN).await;
            }
        }
    }
}

async fn accept(
    listener: &TcpListener,
    most: usize,
    context: &ConnectionContext,
    callers: &Arc<Callers>,
) -> ! {
    loop {
        let (stream, peer) = match listener.accept().await {
            Ok(accepted) => accepted,
            Err(error) => {
                tracing::debug!(error = %error, "Cannot accept a connection to the OTLP receiver; retrying.");
                // Without a free descriptor the same connection would be reported again at once.
                sleep(LONGEST_REST).await;
                continue;
            }
        };
        let Ok(local) = stream.local_addr() else { continue };
        let begun = clock::now();
        let caller = Arc::new(Caller::new(context, peer, local));
        match callers.admit(&caller, most, &context.shared) {
            Ok(()) => drop(tokio::spawn(serve(stream, caller, Arc::clone(callers)))),
            Err(why) => {
                context.shared.counts.closed(why);
                context.shared.note_refusal(Limit::Connections, caller.payer(), begun);
            }
        }
        rest(begun).await;
    }
}

impl Callers {
    /// Admits a connection, if necessary by closing one of a user with more connections.
    fn admit(&self, caller: &Arc<Caller>, most: usize, shared: &SendersShared) -> Result<(), Closed> {
        let user = caller.payer();
        let mut here = lock(&self.here);
        // Who pays for a connection can become known after it was admitted.
        let mut connected = Table::new(most);
        for (number, other) in here.iter().filter_map(|(number, other)| Some((*number, other.upgrade()?))) {
            connected.insert(other.payer(), number, other);
        }
        if connected.of(user) >= most.div_ceil(2) {
            return Err(Closed::User);
        }
        match connected.make_room(user, |number, _| Reverse(*number)) {
            Room::Free => {}
            Room::Refused => return Err(Closed::Connections),
            Room::Evicted(other, number, newest) => {
                newest.close();
                here.remove(&number);
                shared.counts.closed(Closed::Share);
                shared.note_refusal(Limit::Connections, other, clock::now());
            }
        }
        drop(here);
        self.add(caller, shared);
        Ok(())
    }

    fn add(&self, caller: &Arc<Caller>, shared: &SendersShared) {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        lock(&self.here).insert(number, Arc::downgrade(caller));
        self.update_counts(shared);
    }

    /// Removes ended connections and publishes the number of open ones.
    fn update_counts(&self, shared: &SendersShared) {
        let mut callers = lock(&self.here);
        callers.retain(|_, caller| caller.strong_count() > 0);
        let known =
            callers.values().filter(|caller| caller.upgrade().is_some_and(|caller| caller.is_known()));
        let (known, all) = (known.count() as u64, callers.len() as u64);
        drop(callers);
        shared.set_connections(known, all);
    }
}

/// Serves one connection until it ends.
async fn serve(stream: TcpStream, caller: Arc<Caller>, callers: Arc<Callers>) {
    let shared = Arc::clone(&caller.shared);
    // A response is written at once, so waiting to fill a packet is of no use.
    let _ = stream.set_nodelay(true);
    let service = {
        let (caller, callers) = (Arc::clone(&caller), Arc::clone(&callers));
        service_fn(move |request| {
            let (caller, callers) = (Arc::clone(&caller), Arc::clone(&callers));
            async move {
                let response = answer::answer(request, Arc::clone(&caller)).await;
                callers.update_counts(&caller.shared);
                Ok::<_, Infallible>(response)
            }
        })
    };
    let mut server = auto::Builder::new(TokioExecutor::new());
    server
        .http1()
        .timer(TokioTimer::new())
        .header_read_timeout(IN_TIME)
        .max_headers(HEADERS)
        .max_buf_size(HEADER_BYTES);
    server
        .http2()
        .timer(TokioTimer::new())
        .max_concurrent_streams(STREAMS)
        .max_header_list_size(u32::try_from(HEADER_BYTES).unwrap_or(u32::MAX));
    {
        let stream = Counted { stream, caller: Arc::clone(&caller), frames: ControlFrames::default() };
        let connection = pin!(server.serve_connection(TokioIo::new(stream), service));
        tokio::select! {
            ended = connection => {
                if let Err(error) = ended {
                    tracing::debug!(error = %error, "A connection to the OTLP receiver failed.");
                }
            }
            () = idle(&caller) => shared.counts.closed(Closed::Idle),
            () = caller.closed() => {}
        }
    }
    drop(caller);
    callers.update_counts(&shared);
}

/// Frames of HTTP/2 that belong to no request: a client can send them without end, and each is answered.
#[derive(Debug, Default)]
struct ControlFrames {
    head: [u8; 9],
    filled: usize,
    /// Bytes that remain of the payload.
    skip: usize,
    /// Whether the connection has begun; it is of HTTP/1 if not with the preface of HTTP/2.
    begun: bool,
    is_http1: bool,
    count: u64,
}

impl ControlFrames {
    /// Follows received bytes (RFC 9113, sections 3.4 and 4.1).
    fn receive(&mut self, mut bytes: &[u8]) {
        while !self.is_http1 && !bytes.is_empty() {
            if self.skip > 0 {
                let skipped = self.skip.min(bytes.len());
                self.skip -= skipped;
                bytes = &bytes[skipped..];
                continue;
            }
            self.head[self.filled] = bytes[0];
            self.filled += 1;
            bytes = &bytes[1..];
            if !self.begun && self.filled == 3 {
                // No method of HTTP/1 begins so; 21 bytes of the preface follow.
                self.is_http1 = self.head[..3] != *b"PRI";
                (self.begun, self.skip, self.filled) = (true, 21, 0);
            } else if self.begun && self.filled == self.head.len() {
                let [high, middle, low, kind, ..] = self.head;
                self.skip = usize::from(high) << 16 | usize::from(middle) << 8 | usize::from(low);
                self.filled = 0;
                // DATA, HEADERS and CONTINUATION are parts of a request.
                self.count += u64::from(!matches!(kind, 0 | 1 | 9));
            }
        }
    }
}

/// A stream that ends with too many control frames.
#[derive(Debug)]
struct Counted {
    stream: TcpStream,
    caller: Arc<Caller>,
    frames: ControlFrames,
}

impl AsyncRead for Counted {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<std::io::Result<()>> {
        let before = buffer.filled().len();
        let read = Pin::new(&mut self.stream).poll_read(cx, buffer);
        let Self { frames, caller, .. } = &mut *self;
        frames.receive(&buffer.filled()[before..]);
        if frames.count > CONTROL_FRAMES * (1 + caller.activity().0) {
            return Poll::Ready(Err(std::io::Error::other("too many control frames")));
        }
        read
    }
}

impl AsyncWrite for Counted {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<std::io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

/// Returns once nothing was received for too long.
async fn idle(caller: &Caller) {
    loop {
        let (requests, active) = caller.activity();
        let allowed = if requests == 0 { IN_TIME } else { IDLE };
        let silent = clock::now().monotonic().saturating_sub(active);
        match allowed.checked_sub(silent).filter(|left| !left.is_zero()) {
            Some(left) => sleep(left).await,
            None => return,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_frames_are_counted_however_they_arrive() {
        let frame = |kind: u8, length: u8| {
            let mut frame = vec![0, 0, length, kind, 0, 0, 0, 0, 0];
            frame.resize(9 + usize::from(length), 4);
            frame
        };
        // SETTINGS, PING, HEADERS, DATA, SETTINGS.
        let frames = [frame(4, 6), frame(6, 8), frame(1, 20), frame(0, 200), frame(4, 0)].concat();
        let bytes = [&b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"[..], &frames].concat();
        for length in [1, 2, 7, 64, bytes.len()] {
            let mut counted = ControlFrames::default();
            bytes.chunks(length).for_each(|part| counted.receive(part));
            assert_eq!((counted.count, counted.skip, counted.filled), (3, 0, 0), "{length}");
        }
        let mut counted = ControlFrames::default();
        counted.receive(b"POST /v1/metrics HTTP/1.1\r\n\r\n");
        counted.receive(&frames.repeat(100));
        assert_eq!(counted.count, 0);
    }
}
