//! The thread that receives: a runtime of its own, that neither the sampler nor the daemon's HTTP waits for.

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
use super::caller::{Caller, Hall, LONGEST_REST, rest};
use super::counts::Closed;
use super::options::Rules;
use super::speakers::{Limit, Shared, State};
use crate::host::{clock, process};
use crate::model::fair::{Answer, Shares};
use crate::model::lock::lock;
use crate::model::source::Failure;

/// The most bytes of a request's line and headers, and the most headers.
const HEADER_BYTES: usize = 16 * 1024;
const HEADERS: usize = 64;
/// How long a request's head may take, and how long the first request may be waited for.
const IN_TIME: Duration = Duration::from_secs(10);
/// How long nothing may come between two requests; OpenTelemetry pushes once a minute.
const IDLE: Duration = Duration::from_secs(300);
/// Requests at once on one connection of HTTP/2.
const STREAMS: u32 = 4;
/// How often it tries to listen where it cannot.
const AGAIN: Duration = Duration::from_secs(5);
/// How long the end of the daemon waits for the thread.
const FAREWELL: Duration = Duration::from_millis(900);

/// The source's hold on the thread; it ends with this.
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

/// Everybody who is connected, by number.
#[derive(Debug, Default)]
struct Callers {
    here: Mutex<BTreeMap<u64, Weak<Caller>>>,
    next: AtomicU64,
}

/// Starts the thread.
///
/// # Errors
/// The operating system's, where it gives no thread or no descriptor.
pub(super) fn start(rules: &Rules, shared: Arc<Shared>) -> std::io::Result<Hold> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let (stop, stopped) = watch::channel(false);
    let (end, ended) = std::sync::mpsc::channel();
    let rules = rules.clone();
    std::thread::Builder::new().name("otlp-receiver".to_owned()).spawn(move || {
        runtime.block_on(receive(&rules, shared, stopped));
        runtime.shutdown_background();
        // Nobody may be waiting.
        let _ = end.send(());
    })?;
    Ok(Hold { stop, ended })
}

/// The connections there is room for: an eighth of the descriptors that the daemon may have open, at most.
pub(super) fn places(rules: &Rules) -> usize {
    rules.connections.min((process::descriptor_limit() / 8).max(2))
}

async fn receive(rules: &Rules, shared: Arc<Shared>, mut stopped: watch::Receiver<bool>) {
    let hall = Hall::new(shared);
    let callers = Arc::new(Callers::default());
    let most = places(rules);
    for address in &rules.listen {
        tokio::spawn(listen(*address, most, hall.clone(), Arc::clone(&callers)));
    }
    // An error means that nobody is left to say so, which says so too.
    let _ = stopped.wait_for(|stop| *stop).await;
}

/// Listens at one address, and again where that fails.
async fn listen(address: SocketAddr, most: usize, hall: Hall, callers: Arc<Callers>) -> ! {
    let name = address.to_string();
    loop {
        match TcpListener::bind(address).await {
            Ok(listener) => {
                let bound = listener.local_addr().unwrap_or(address);
                hall.shared.say(&name, State::Listening(bound));
                accept(&listener, most, &hall, &callers).await
            }
            Err(error) => {
                let why = format!("cannot receive OTLP at {address}: {error}");
                hall.shared.say(&name, State::Failed(Failure::of(&error), why));
                sleep(AGAIN).await;
            }
        }
    }
}

async fn accept(listener: &TcpListener, most: usize, hall: &Hall, callers: &Arc<Callers>) -> ! {
    loop {
        let (stream, peer) = match listener.accept().await {
            Ok(accepted) => accepted,
            Err(error) => {
                tracing::debug!(error = %error, "A connection to the OTLP receiver could not be accepted.");
                // Without a free descriptor the same one is there again at once.
                sleep(LONGEST_REST).await;
                continue;
            }
        };
        let Ok(local) = stream.local_addr() else { continue };
        let begun = clock::now();
        let caller = Arc::new(Caller::new(hall, peer, local));
        match callers.admit(&caller, most, &hall.shared) {
            Ok(()) => drop(tokio::spawn(serve(stream, caller, Arc::clone(callers)))),
            Err(why) => {
                hall.shared.counts.closed(why);
                hall.shared.turned_away(Limit::Connections, caller.payer(), begun);
            }
        }
        rest(begun).await;
    }
}

impl Callers {
    /// Gives a connection its place, which may have been that of a user who has more.
    fn admit(&self, caller: &Arc<Caller>, most: usize, shared: &Shared) -> Result<(), Closed> {
        let user = caller.payer();
        let mut here = lock(&self.here);
        let mut shares = Shares::new(most);
        let living = here.iter().filter_map(|(number, caller)| Some((*number, caller.upgrade()?)));
        let living: Vec<(u64, Arc<Caller>)> = living.collect();
        living.iter().for_each(|(_, other)| shares.take(other.payer()));
        if shares.of(user) >= most.div_ceil(2) {
            return Err(Closed::User);
        }
        match shares.ask(user) {
            Answer::Free => {}
            Answer::Refused => return Err(Closed::Connections),
            Answer::TakeFrom(other) => {
                if let Some((number, newest)) = living.iter().rfind(|(_, caller)| caller.payer() == other) {
                    newest.close();
                    here.remove(number);
                    shared.counts.closed(Closed::Share);
                    shared.turned_away(Limit::Connections, other, clock::now());
                }
            }
        }
        drop(here);
        self.add(caller, shared);
        Ok(())
    }

    fn add(&self, caller: &Arc<Caller>, shared: &Shared) {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        lock(&self.here).insert(number, Arc::downgrade(caller));
        self.tell(shared);
    }

    /// Lets go of those that have ended, and says how many there are.
    fn tell(&self, shared: &Shared) {
        let mut callers = lock(&self.here);
        callers.retain(|_, caller| caller.strong_count() > 0);
        let known =
            callers.values().filter(|caller| caller.upgrade().is_some_and(|caller| caller.is_known()));
        let (known, all) = (known.count() as u64, callers.len() as u64);
        drop(callers);
        shared.set_connections(known, all);
    }
}

/// Serves one connection to its end.
async fn serve(stream: TcpStream, caller: Arc<Caller>, callers: Arc<Callers>) {
    let shared = Arc::clone(&caller.shared);
    // An answer is written at once, so there is nothing to wait for to fill a packet.
    let _ = stream.set_nodelay(true);
    let service = {
        let (caller, callers) = (Arc::clone(&caller), Arc::clone(&callers));
        service_fn(move |request| {
            let (caller, callers) = (Arc::clone(&caller), Arc::clone(&callers));
            async move {
                let response = answer::answer(request, Arc::clone(&caller)).await;
                callers.tell(&caller.shared);
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
        let connection = pin!(server.serve_connection(TokioIo::new(stream), service));
        tokio::select! {
            ended = connection => {
                if let Err(error) = ended {
                    tracing::debug!(error = %error, "A connection to the OTLP receiver ended.");
                }
            }
            () = idle(&caller) => shared.counts.closed(Closed::Idle),
            () = caller.closed() => {}
        }
    }
    drop(caller);
    callers.tell(&shared);
}

/// Returns once nothing came for too long.
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
