//! One connection: its process and user according to the kernel, and the scheduling of its requests.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use opentelemetry_proto::tonic::collector::metrics::v1::ExportMetricsServiceRequest;
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore};

use super::intake::Tally;
use super::senders::{PushSender, RequestOrigin, SendersShared};
use crate::host::clock;
use crate::host::connection::{self, Socket};
use crate::model::ids::ProcessKey;
use crate::model::lock::lock;
use crate::model::time::Timestamp;

/// Most requests whose bodies are read at the same time.
const AT_ONCE: usize = 8;
/// Most of these requests per user.
const OF_ONE: usize = 2;
/// Most attempts to find the process of a socket: its workload may be known only some ticks after it connected.
const LOOKS: u32 = 8;
/// Interval between two attempts.
const BETWEEN: Duration = Duration::from_secs(1);

/// A pause is this many times as long as the work before it, so that the thread uses at most a quarter of a core over
/// time.
const SHARE: u32 = 3;
/// The longest pause.
pub(super) const LONGEST_REST: Duration = Duration::from_millis(400);

/// Pauses after work that began at this time.
pub(super) async fn rest(begun: Timestamp) {
    let took = clock::now().since(begun);
    tokio::time::sleep((took * SHARE).min(LONGEST_REST)).await;
}

#[derive(Clone, Debug)]
pub(super) struct ConnectionContext {
    pub(super) shared: Arc<SendersShared>,
    /// Permits to read the body of a request.
    places: Arc<Semaphore>,
    /// Permits of each connected user.
    own_places: Arc<Mutex<HashMap<Option<u32>, Weak<Semaphore>>>>,
    /// Held while one request is applied.
    intake_lock: Arc<tokio::sync::Mutex<()>>,
}

impl ConnectionContext {
    /// State without connections.
    pub(super) fn new(shared: Arc<SendersShared>) -> Self {
        let places = Arc::new(Semaphore::new(AT_ONCE));
        Self { shared, places, own_places: Arc::default(), intake_lock: Arc::default() }
    }

    /// The permits of a user, shared by all its connections.
    fn places_of(&self, user: Option<u32>) -> Arc<Semaphore> {
        let mut all = lock(&self.own_places);
        if let Some(known) = all.get(&user).and_then(Weak::upgrade) {
            return known;
        }
        all.retain(|_, places| places.strong_count() > 0);
        let places = Arc::new(Semaphore::new(OF_ONE));
        all.insert(user, Arc::downgrade(&places));
        places
    }
}

#[derive(Debug)]
pub(super) struct Caller {
    pub(super) shared: Arc<SendersShared>,
    context: ConnectionContext,
    own_places: Arc<Semaphore>,
    socket: Option<Socket>,
    pub(super) payer: Option<u32>,
    found: Mutex<ProcessLookup>,
    /// When it connected, approximately.
    connected: Timestamp,
    /// Notified when it must close in favor of another user.
    close: Notify,
    /// Number of requests so far.
    requests: AtomicU64,
    /// When the last request began or was answered, in milliseconds of the monotonic clock.
    active: AtomicU64,
}

#[derive(Debug)]
struct ProcessLookup {
    process: Option<ProcessKey>,
    looks: u32,
    looked: Timestamp,
    /// Whether the last request was attributed to the user because the process was not known.
    by_user: bool,
}

/// Permits of one request, released when dropped.
#[derive(Debug)]
pub(super) struct Turn {
    _place: OwnedSemaphorePermit,
    _own: OwnedSemaphorePermit,
}

impl Caller {
    /// Asks the kernel which process connects from `peer` to `local`.
    pub(super) fn new(context: &ConnectionContext, peer: SocketAddr, local: SocketAddr) -> Self {
        let now = clock::now();
        let socket = connection::socket(&context.shared.proc, peer, local).ok().flatten();
        let payer = socket.map(|socket| context.shared.subordinates.owner(socket.uid, now));
        let caller = Self {
            shared: Arc::clone(&context.shared),
            context: context.clone(),
            own_places: context.places_of(payer),
            payer,
            socket,
            connected: now,
            close: Notify::new(),
            found: Mutex::new(ProcessLookup { process: None, looks: 0, looked: now, by_user: false }),
            requests: AtomicU64::new(0),
            active: AtomicU64::new(0),
        };
        caller.touch(now);
        caller.look(now);
        caller
    }

    /// Closes the connection in favor of another user.
    pub(super) fn close(&self) {
        self.close.notify_one();
    }

    /// Returns once the connection must close in favor of another user.
    pub(super) async fn closed(&self) {
        self.close.notified().await;
    }

    pub(super) fn is_known(&self) -> bool {
        lock(&self.found).process.is_some()
    }

    /// Number of requests, and the time of the last one.
    pub(super) fn activity(&self) -> (u64, Duration) {
        (self.requests.load(Ordering::Relaxed), Duration::from_millis(self.active.load(Ordering::Relaxed)))
    }

    fn touch(&self, now: Timestamp) {
        let millis = u64::try_from(now.monotonic().as_millis()).unwrap_or(u64::MAX);
        self.active.store(millis, Ordering::Relaxed);
    }

    /// Waits for permission to read a body; nothing if there is none in time.
    pub(super) async fn turn(&self, in_time: Duration) -> Option<Turn> {
        self.requests.fetch_add(1, Ordering::Relaxed);
        self.touch(clock::now());
        let wait = async {
            let own = Arc::clone(&self.own_places).acquire_owned().await.ok()?;
            let place = Arc::clone(&self.context.places).acquire_owned().await.ok()?;
            Some(Turn { _place: place, _own: own })
        };
        tokio::time::timeout(in_time, wait).await.ok().flatten()
    }

    /// Runs the work of a request, one request at a time over all connections.
    pub(super) async fn one_at_a_time<T>(&self, work: impl Future<Output = T>) -> T {
        let _intake_lock = self.context.intake_lock.lock().await;
        let begun = clock::now();
        let done = work.await;
        rest(begun).await;
        done
    }

    pub(super) fn receive(&self, request: &ExportMetricsServiceRequest) -> Tally {
        let now = clock::now();
        self.touch(now);
        let known_before = self.is_known();
        if !known_before {
            self.look(now);
        }
        let user = self.socket.map_or(PushSender::Unknown, |socket| PushSender::User(socket.uid));
        let mut found = lock(&self.found);
        let sender = found.process.map_or(user, PushSender::Process);
        // What was pushed before the process was known belongs to the process.
        let previous_sender = (found.by_user && sender != user).then_some(user);
        found.by_user = sender == user;
        drop(found);
        let origin = RequestOrigin { user: self.payer, sender, previous_sender };
        self.shared.receive(request, origin, now)
    }

    /// Looks up which process owns the socket.
    fn look(&self, now: Timestamp) {
        let Some(socket) = self.socket else { return };
        let mut found = lock(&self.found);
        let due = found.looks == 0 || (found.looks < LOOKS && now.since(found.looked) >= BETWEEN);
        if found.process.is_none() && due {
            let members = self.shared.members();
            found.process = connection::holder(&self.shared.proc, socket, &members, self.connected);
            (found.looks, found.looked) = (found.looks + 1, now);
        }
    }
}
