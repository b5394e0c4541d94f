//! The receiver's thread with a tokio runtime, separate from the sampler and the daemon's HTTP server.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::convert::Infallible;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::Receiver;
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::time::sleep;

use super::answer;
use super::caller::{Caller, ConnectionContext, LONGEST_REST, rest};
use super::counts::Closed;
use super::options::Options;
use super::senders::{Limit, SendersShared};
use crate::host::frame_limit::LimitedFrames;
use crate::host::{clock, process};
use crate::model::fair::{Room, Table};
use crate::model::lock::lock;
use crate::model::source::SourceError;

/// Maximum size of a request's line and headers, and maximum number of headers.
const HEADER_BYTES: usize = 16 * 1024;
const HEADERS: usize = 64;
/// How long the head of a request may take, and how long a connection may wait with its first request.
const IN_TIME: Duration = Duration::from_secs(10);
/// How long a connection may be idle between two requests; OpenTelemetry pushes once a minute.
const IDLE: Duration = Duration::from_secs(300);
/// Most concurrent requests on one HTTP/2 connection.
const STREAMS: u32 = 4;
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
                context.shared.set_state(&name, Ok(bound));
                accept(&listener, most, &context, &callers).await
            }
            Err(error) => {
                let what = format!("cannot listen for OTLP on {address}");
                context.shared.set_state(&name, Err(SourceError::io(what, &error)));
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
                context.shared.note_refusal(Limit::Connections, caller.payer, begun);
            }
        }
        rest(begun).await;
    }
}

impl Callers {
    /// Admits a connection, if necessary by closing one of a user with more connections.
    fn admit(&self, caller: &Arc<Caller>, most: usize, shared: &SendersShared) -> Result<(), Closed> {
        let user = caller.payer;
        let mut here = lock(&self.here);
        // Who pays for a connection can become known after it was admitted.
        let mut connected = Table::new(most);
        for (number, other) in here.iter().filter_map(|(number, other)| Some((*number, other.upgrade()?))) {
            connected.insert(other.payer, number, other);
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
        here.insert(self.next.fetch_add(1, Ordering::Relaxed), Arc::downgrade(caller));
        drop(here);
        self.update_counts(shared);
        Ok(())
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
        let requests = Arc::clone(&caller);
        let limited = Arc::clone(&shared);
        let exceeded = move || limited.counts.closed(Closed::Frames);
        let stream = LimitedFrames::new(stream, move || requests.activity().0, exceeded);
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
