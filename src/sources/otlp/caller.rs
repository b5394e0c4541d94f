//! One connection: who has it, by the kernel, and when its requests have their turn.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use opentelemetry_proto::tonic::collector::metrics::v1::ExportMetricsServiceRequest;
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore};

use super::intake::Tally;
use super::speakers::{Asks, Shared, Speaker};
use crate::host::clock;
use crate::host::connection::{self, Socket};
use crate::model::ids::ProcessKey;
use crate::model::lock::lock;
use crate::model::time::Timestamp;

/// Requests whose bodies are read at once.
const AT_ONCE: usize = 8;
/// Of one user.
const OF_ONE: usize = 2;
/// Times that the process behind a socket is looked for: its workload may be found some ticks after it began.
const LOOKS: u32 = 8;
/// Between two of them.
const BETWEEN: Duration = Duration::from_secs(1);

/// A rest is so many times as long as the work before it, so that nobody makes the thread take more than a quarter of a
/// core for long.
const SHARE: u32 = 3;
/// The longest rest.
pub(super) const LONGEST_REST: Duration = Duration::from_millis(400);

/// Rests after what began then.
pub(super) async fn rest(begun: Timestamp) {
    let took = clock::now().since(begun);
    tokio::time::sleep((took * SHARE).min(LONGEST_REST)).await;
}

/// What all connections share.
#[derive(Clone, Debug)]
pub(super) struct Hall {
    pub(super) shared: Arc<Shared>,
    /// Places for requests whose bodies are read.
    places: Arc<Semaphore>,
    /// Those that each user who is connected may have.
    own_places: Arc<Mutex<HashMap<Option<u32>, Weak<Semaphore>>>>,
    /// Where one request at a time is taken in.
    desk: Arc<tokio::sync::Mutex<()>>,
}

impl Hall {
    /// An empty one.
    pub(super) fn new(shared: Arc<Shared>) -> Self {
        let places = Arc::new(Semaphore::new(AT_ONCE));
        Self { shared, places, own_places: Arc::default(), desk: Arc::default() }
    }

    /// The places of a user, which all its connections share.
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

/// One connection.
#[derive(Debug)]
pub(super) struct Caller {
    pub(super) shared: Arc<Shared>,
    hall: Hall,
    own_places: Arc<Semaphore>,
    socket: Option<Socket>,
    payer: Option<u32>,
    found: Mutex<Found>,
    /// When it connected, or a little later.
    connected: Timestamp,
    /// Tells that its place is given to another user.
    close: Notify,
    /// Requests so far.
    requests: AtomicU64,
    /// When one was last begun or answered, in milliseconds of the monotonic clock.
    active: AtomicU64,
}

#[derive(Debug)]
struct Found {
    process: Option<ProcessKey>,
    looks: u32,
    looked: Timestamp,
    /// Whether the last request was of a user whose process was not known.
    by_user: bool,
}

/// A request's turn; what it holds is given back when dropped.
#[derive(Debug)]
pub(super) struct Turn {
    _place: OwnedSemaphorePermit,
    _own: OwnedSemaphorePermit,
}

impl Caller {
    /// Asks the kernel who connects from `peer` to our `local`.
    pub(super) fn new(hall: &Hall, peer: SocketAddr, local: SocketAddr) -> Self {
        let now = clock::now();
        let socket = connection::socket(&hall.shared.proc, peer, local).ok().flatten();
        let payer = socket.map(|socket| hall.shared.payer(socket.uid, now));
        let caller = Self {
            shared: Arc::clone(&hall.shared),
            hall: hall.clone(),
            own_places: hall.places_of(payer),
            payer,
            socket,
            connected: now,
            close: Notify::new(),
            found: Mutex::new(Found { process: None, looks: 0, looked: now, by_user: false }),
            requests: AtomicU64::new(0),
            active: AtomicU64::new(0),
        };
        caller.touch(now);
        caller.look(now);
        caller
    }

    /// The user whose places it takes, where the kernel says.
    pub(super) const fn payer(&self) -> Option<u32> {
        self.payer
    }

    /// Gives its place to another user.
    pub(super) fn close(&self) {
        self.close.notify_one();
    }

    /// Returns once its place is given to another user.
    pub(super) async fn closed(&self) {
        self.close.notified().await;
    }

    /// Whether its process is known.
    pub(super) fn is_known(&self) -> bool {
        lock(&self.found).process.is_some()
    }

    /// How many requests there were, and when there was the last.
    pub(super) fn activity(&self) -> (u64, Duration) {
        (self.requests.load(Ordering::Relaxed), Duration::from_millis(self.active.load(Ordering::Relaxed)))
    }

    fn touch(&self, now: Timestamp) {
        let millis = u64::try_from(now.monotonic().as_millis()).unwrap_or(u64::MAX);
        self.active.store(millis, Ordering::Relaxed);
    }

    /// Waits for a place; nothing where there is none in time.
    pub(super) async fn turn(&self, in_time: Duration) -> Option<Turn> {
        self.requests.fetch_add(1, Ordering::Relaxed);
        self.touch(clock::now());
        let wait = async {
            let own = Arc::clone(&self.own_places).acquire_owned().await.ok()?;
            let place = Arc::clone(&self.hall.places).acquire_owned().await.ok()?;
            Some(Turn { _place: place, _own: own })
        };
        tokio::time::timeout(in_time, wait).await.ok().flatten()
    }

    /// Does what is to be done for a request, one at a time among all.
    pub(super) async fn at_desk<T>(&self, work: impl Future<Output = T>) -> T {
        let _desk = self.hall.desk.lock().await;
        let begun = clock::now();
        let done = work.await;
        rest(begun).await;
        done
    }

    /// Takes a request in.
    pub(super) fn hear(&self, request: &ExportMetricsServiceRequest) -> Tally {
        let now = clock::now();
        self.touch(now);
        let known_before = self.is_known();
        if !known_before {
            self.look(now);
        }
        let user = self.socket.map_or(Speaker::Nobody, |socket| Speaker::User(socket.uid));
        let mut found = lock(&self.found);
        let speaker = found.process.map_or(user, Speaker::Process);
        // What it pushed before its process was known is the process' own.
        let formerly = (found.by_user && speaker != user).then_some(user);
        found.by_user = speaker == user;
        drop(found);
        let asks = Asks { user: self.payer, speaker, formerly };
        self.shared.hear(request, asks, now)
    }

    /// Looks which process has the socket.
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
