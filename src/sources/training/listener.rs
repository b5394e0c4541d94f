//! The thread of the job socket: accepts connections, reads and parses messages, and blocks only in the kernel.
//!
//! It pauses between two rounds, so that the messages that many clients send
//! in that time need one call each, and so that a flood of messages uses at
//! most a quarter of a core. A round reads a bounded amount, for which users
//! take turns (`queue`). A client that exceeds the message rate is not read for
//! a while: its socket fills up, and its own client drops further messages.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::io::{ErrorKind, Read as _};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, TryRecvError, channel};
use std::time::Duration;

use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};
use rustix::event::{EventfdFlags, Timespec, eventfd};

use super::client::{Client, ClientState, Shared};
use super::commands::CommandLines;
use super::counts::{Refused, Wrong};
use super::options::Options;
use super::queue::{self, Read, Ready};
use crate::formats::lines::{LineLimits, Lines};
use crate::host::clock;
use crate::host::local_socket::{self, Bound};
use crate::host::peer;
use crate::model::checkpoint::Checkpoints;
use crate::model::fair::{Room, Table};
use crate::model::source::{Failure, SourceError};
use crate::model::time::Timestamp;
use crate::model::units::Bytes;

/// The shortest pause between two rounds.
const REST: Duration = Duration::from_millis(20);
/// The longest pause between two rounds.
const LONGEST_REST: Duration = Duration::from_millis(400);
/// A pause is this many times as long as the round before it.
const SHARE: u32 = 3;
/// Bytes per read of one client.
const PIECE: usize = 16 * 1024;
/// Most reads of one client in one round; it gets more than one only after all others had a turn.
const PIECES: usize = 4;
/// Budget of reads in one round, in bytes; the last read may exceed it. 64 ranks that send a thousand messages of
/// 150 bytes per second need less than half of it.
pub(super) const BUDGET: usize = 1 << 20;
/// Cost of each read and of each line, in addition to the bytes.
const READ_COST: usize = 512;
const LINE_COST: usize = 128;
/// Most clients accepted in one round; a refused client costs little.
const ACCEPTED: usize = 256;
/// How long no client is accepted after file descriptors ran out.
const WITHOUT: Duration = Duration::from_secs(1);
/// Why a line is left out.
const LEFT_OUT: &str =
    "the line is too long, or the incomplete lines of the user's processes take too much memory";
/// Interval between two checks that no client waits to be accepted, on kernels that do not report who connected:
/// there a process is only verified if it is older than the last such check.
const QUIET: Duration = Duration::from_secs(1);
/// Longest pause of a client that exceeds the message rate, so that its end is noticed.
const LONGEST_PAUSE: f64 = 5.0;
/// Interval between attempts to listen, checks of the socket's file, and checks for stalled lines.
const AGAIN: Duration = Duration::from_secs(5);
/// How long the daemon's shutdown waits for the thread.
const FAREWELL: Duration = Duration::from_millis(900);
/// Epoll data of the listener and of the wake-up descriptor; connections are numbered from above.
const LISTENER: u64 = 0;
const WAKE: u64 = 1;

/// The source's handle of the thread; dropping it stops the thread.
#[derive(Debug)]
pub struct Hold {
    wake: Arc<OwnedFd>,
    ended: Receiver<()>,
}

impl Hold {
    /// Stops the thread.
    pub(super) fn wake(&self) {
        // The counter is full only if this was called before.
        let _ = rustix::io::write(&*self.wake, &1_u64.to_ne_bytes());
    }

    /// Whether the thread has ended, which happens without a request only if it failed.
    pub fn has_ended(&self) -> bool {
        !matches!(self.ended.try_recv(), Err(TryRecvError::Empty))
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        self.wake();
        let _ = self.ended.recv_timeout(FAREWELL);
    }
}

/// Starts the thread.
///
/// # Errors
/// The operating system's error if no thread or descriptor can be created.
pub fn start(
    path: PathBuf,
    options: Options,
    shared: Arc<Shared>,
    checkpoints: Arc<Checkpoints>,
) -> std::io::Result<Hold> {
    let mut listener = Listener::new(path, options, shared, checkpoints, clock::now)?;
    let (end, ended) = channel::<()>();
    let wake = Arc::clone(&listener.wake);
    std::thread::Builder::new().name("job-socket".to_owned()).spawn(move || {
        while let Some(took) = listener.turn(listener.timeout()) {
            std::thread::sleep((took * SHARE).clamp(REST, LONGEST_REST));
        }
        drop(listener);
        // The closed channel stays closed, whereas a message would be received only once.
        drop(end);
    })?;
    Ok(Hold { wake, ended })
}

struct Connection {
    /// The last strong reference: the descriptor is closed with the connection.
    stream: Arc<UnixStream>,
    client: Arc<Client>,
    lines: Lines,
    /// Messages that may be received now; negative after too many.
    credit: f64,
    refilled: Timestamp,
    /// Kinds of errors already logged for this connection, one bit each.
    logged: u32,
    /// The number of its last read, counted over all connections.
    last_read: u64,
}

/// State of the thread; [`Listener::turn`] runs one round.
pub(super) struct Listener {
    wake: Arc<OwnedFd>,
    clock: fn() -> Timestamp,
    path: PathBuf,
    options: Options,
    shared: Arc<Shared>,
    checkpoints: Arc<Checkpoints>,
    epoll: OwnedFd,
    bound: Option<Bound>,
    /// When the queue of the listener was last seen empty.
    quiet: Timestamp,
    /// Interval between two checks that the queue is empty.
    look: Duration,
    /// Until when no client is accepted, for lack of descriptors.
    without: Option<Timestamp>,
    /// When the socket's file was last checked.
    checked: Timestamp,
    connections: Table<u32, u64, Connection>,
    /// The command lines of processes that have connected.
    command_lines: CommandLines,
    /// Bytes of incomplete lines by user.
    kept: HashMap<u32, usize>,
    /// Paused clients, and until when.
    paused: Vec<(Timestamp, u64)>,
    next: u64,
    /// Number of reads so far.
    reads: u64,
    buffer: Box<[u8]>,
}

impl Listener {
    pub(super) fn new(
        path: PathBuf,
        options: Options,
        shared: Arc<Shared>,
        checkpoints: Arc<Checkpoints>,
        clock: fn() -> Timestamp,
    ) -> std::io::Result<Self> {
        let wake = Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?);
        let epoll = epoll::create(CreateFlags::CLOEXEC)?;
        epoll::add(&epoll, &*wake, EventData::new_u64(WAKE), EventFlags::IN)?;
        let certain = UnixStream::pair().is_ok_and(|(one, _)| peer::is_certain(one));
        let (connections, command_lines) = (Table::new(shared.most), CommandLines::new(shared.proc.clone()));
        Ok(Self {
            wake,
            clock,
            path,
            options,
            shared,
            checkpoints,
            epoll,
            bound: None,
            quiet: clock(),
            look: if certain { AGAIN } else { QUIET },
            without: None,
            checked: clock(),
            connections,
            command_lines,
            kept: HashMap::new(),
            paused: Vec::new(),
            next: WAKE + 1,
            reads: 0,
            buffer: vec![0; PIECE].into_boxed_slice(),
        })
    }

    /// Waits for events and handles them; returns how long it took, or nothing if the thread must stop.
    pub(super) fn turn(&mut self, timeout: Option<Duration>) -> Option<Duration> {
        self.listen();
        let before = (self.clock)();
        // Large enough for all connections, so that one call returns everything that is ready.
        let capacity = self.connections.len() + 3;
        let mut events: Vec<Event> = Vec::with_capacity(capacity);
        let timeout = timeout.map(|timeout| Timespec {
            tv_sec: i64::try_from(timeout.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: timeout.subsec_nanos().into(),
        });
        let waited = epoll::wait(&self.epoll, rustix::buffer::spare_capacity(&mut events), timeout.as_ref());
        if waited.is_err_and(|error| error != rustix::io::Errno::INTR) {
            let why = "cannot wait for events of the job socket";
            self.shared.set_state(ClientState::Failed(SourceError::failed(Failure::Io, why)));
            return None;
        }
        let begun = (self.clock)();
        let waiting = events.iter().any(|event| event.data.u64() == LISTENER);
        if waited.is_ok() && !waiting && self.without.is_none() {
            self.quiet = before;
        }
        if events.iter().any(|event| event.data.u64() == WAKE) {
            return None;
        }
        if waiting {
            self.accept(begun);
        }
        let ready = events.iter().filter_map(|event| self.ready(event.data.u64())).collect();
        queue::take_turns(ready, PIECES, BUDGET, |number| self.receive(number));
        self.look_after(begun);
        Some((self.clock)().since(begun))
    }

    /// Listens if it does not yet, or if the socket's file was removed, for example by a cleanup of temporary files.
    fn listen(&mut self) {
        if let Some(bound) = &self.bound {
            let now = (self.clock)();
            if now.since(self.checked) < AGAIN {
                return;
            }
            self.checked = now;
            if bound.in_place() {
                return;
            }
            tracing::warn!(path = %self.path.display(), "The socket file of the job socket was removed; creating it again.");
            self.bound = None;
        }
        self.quiet = (self.clock)();
        let bound = local_socket::bind(&self.path, self.options.access()).and_then(|bound| {
            epoll::add(&self.epoll, &bound.listener, EventData::new_u64(LISTENER), EventFlags::IN).map_err(
                |error| local_socket::Problem::System {
                    what: "wait for connections at",
                    path: self.path.clone(),
                    error: error.into(),
                },
            )?;
            Ok(bound)
        });
        match bound {
            Ok(bound) => {
                self.bound = Some(bound);
                self.without = None;
                self.shared.set_state(ClientState::Listening);
            }
            Err(problem) => {
                let error = SourceError::failed(problem.kind(), problem.to_string());
                self.shared.set_state(ClientState::Failed(error));
            }
        }
    }

    /// Longest wait for the kernel until something else is due.
    fn timeout(&self) -> Option<Duration> {
        let now = (self.clock)();
        let due = self.paused.iter().map(|(until, _)| *until).chain(self.without);
        due.map(|until| until.since(now)).chain([self.look]).min()
    }

    fn accept(&mut self, now: Timestamp) {
        for _ in 0..ACCEPTED {
            let Some(bound) = &self.bound else { return };
            let before = (self.clock)();
            let stream = match bound.listener.accept() {
                Ok((stream, _)) => stream,
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    self.quiet = before;
                    return;
                }
                Err(error) => {
                    self.shared.counts.refused(Refused::System);
                    // Without a free descriptor the same client would be reported again at once.
                    let (bound, shared) = (&bound.listener, &self.shared);
                    if epoll::delete(&self.epoll, bound).is_ok() {
                        self.without = Some(now.plus(WITHOUT));
                    }
                    if shared.counts.may_log(now) {
                        tracing::warn!(%error, "Cannot accept a connection to the job socket; retrying.");
                    }
                    return;
                }
            };
            if let Err(why) = self.welcome(stream, now) {
                self.shared.counts.refused(why);
            }
        }
    }

    fn welcome(&mut self, stream: UnixStream, now: Timestamp) -> Result<(), Refused> {
        stream.set_nonblocking(true).map_err(|_| Refused::System)?;
        let peer = peer::peer(&stream).map_err(|_| Refused::System)?;
        let payer = self.shared.subordinates.owner(peer.uid, now);
        if self.connections.of(payer) >= self.options.max_clients_per_user {
            self.shared.note_refusal(payer, now);
            return Err(Refused::User);
        }
        match self.connections.make_room(payer, |number, _| Reverse(*number)) {
            Room::Free => {}
            Room::Evicted(other, _, newest) => {
                self.parted(&newest);
                self.shared.counts.refused(Refused::Share);
                self.shared.note_refusal(other, now);
            }
            Room::Refused => {
                self.shared.note_refusal(payer, now);
                return Err(Refused::Clients);
            }
        }
        let number = self.next;
        epoll::add(&self.epoll, &stream, EventData::new_u64(number), EventFlags::IN)
            .map_err(|_| Refused::System)?;
        self.next += 1;
        let stream = Arc::new(stream);
        let client = self.shared.greet(number, peer, payer, &stream, self.quiet);
        self.command_lines.request(&client);
        let connection = Connection {
            stream,
            client,
            lines: Lines::default(),
            credit: 2.0 * f64::from(self.options.messages_per_second),
            refilled: now,
            logged: 0,
            last_read: self.reads,
        };
        self.connections.insert(payer, number, connection);
        Ok(())
    }

    /// The connection that can be read; nothing if it has been closed.
    fn ready(&self, number: u64) -> Option<Ready> {
        let Connection { client, last_read, .. } = self.connections.get(&number)?;
        Some(Ready { user: client.payer, process: client.key, number, last_read: *last_read })
    }

    /// Reads one piece of a client's data.
    fn receive(&mut self, number: u64) -> Read {
        let nothing = Read { cost: READ_COST, more: false };
        let Some(connection) = self.connections.get_mut(&number) else { return nothing };
        self.reads += 1;
        connection.last_read = self.reads;
        let read = match (&*connection.stream).read(&mut self.buffer) {
            Ok(read) => read,
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => {
                return nothing;
            }
            Err(_) => 0,
        };
        if read == 0 {
            self.part(number);
            return nothing;
        }
        self.shared.counts.bytes.fetch_add(read as u64, Ordering::Relaxed);
        let now = (self.clock)();
        let kept = self.kept.entry(connection.client.payer).or_default();
        let taken = kept.saturating_sub(connection.lines.kept());
        let size = |bytes: Bytes| usize::try_from(bytes.get()).unwrap_or(usize::MAX);
        let tail = size(self.options.memory_per_user).saturating_sub(taken);
        let limits = LineLimits { line: size(self.options.max_line_size), tail };
        let mut lines = std::mem::take(&mut connection.lines);
        let (mut count, mut cost) = (0.0, READ_COST + read);
        lines.feed(&self.buffer[..read], limits, now, |line| {
            count += 1.0;
            cost += LINE_COST;
            let outcome = match line {
                Ok(line) => connection.client.receive(line, now, &self.shared.counts, &self.checkpoints),
                Err(error) => Err((error.into(), LEFT_OUT.to_owned())),
            };
            if let Err((wrong, why)) = outcome {
                self.shared.counts.wrong(wrong);
                remark(connection, wrong, &why, now, &self.shared);
            }
        });
        connection.lines = lines;
        *kept = taken + connection.lines.kept();
        let elapsed = now.since(connection.refilled).as_secs_f64();
        connection.refilled = now;
        let rate = f64::from(self.options.messages_per_second);
        connection.credit = (connection.credit + elapsed * rate).min(2.0 * rate) - count;
        if connection.credit < 0.0 {
            let pause = (-connection.credit / rate).min(LONGEST_PAUSE);
            if epoll::delete(&self.epoll, &connection.stream).is_ok() {
                self.paused.push((now.plus(Duration::from_secs_f64(pause)), number));
                self.shared.counts.paused.fetch_add(1, Ordering::Relaxed);
                return Read { cost, more: false };
            }
        }
        Read { cost, more: read == self.buffer.len() }
    }

    /// Resumes paused clients and discards lines that were never completed.
    fn look_after(&mut self, now: Timestamp) {
        let connected = self.connections.values().filter_map(|connection| connection.client.key);
        self.command_lines.turn(|| connected.collect());
        let (due, paused): (Vec<_>, Vec<_>) =
            std::mem::take(&mut self.paused).into_iter().partition(|(until, _)| until.since(now).is_zero());
        self.paused = paused;
        if self.without.is_some_and(|until| until.since(now).is_zero())
            && let Some(bound) = &self.bound
        {
            let data = EventData::new_u64(LISTENER);
            let listens = epoll::add(&self.epoll, &bound.listener, data, EventFlags::IN).is_ok();
            self.without = (!listens).then(|| now.plus(WITHOUT));
        }
        for (_, number) in due {
            let Some(connection) = self.connections.get_mut(&number) else { continue };
            connection.credit = connection.credit.max(0.0);
            let data = EventData::new_u64(number);
            if epoll::add(&self.epoll, &connection.stream, data, EventFlags::IN).is_err() {
                self.part(number);
            }
        }
        for connection in self.connections.values_mut().filter(|connection| connection.lines.torn()) {
            let before = connection.lines.kept();
            if connection.lines.stalled(now) {
                if let Some(kept) = self.kept.get_mut(&connection.client.payer) {
                    *kept = kept.saturating_sub(before);
                }
                self.shared.counts.wrong(Wrong::Stalled);
                remark(connection, Wrong::Stalled, "a line was not completed in time", now, &self.shared);
            }
        }
    }

    fn part(&mut self, number: u64) {
        if let Some(connection) = self.connections.remove(&number) {
            self.parted(&connection);
        }
    }

    /// Takes leave of a connection that was removed.
    fn parted(&mut self, connection: &Connection) {
        if connection.lines.torn() {
            self.shared.counts.wrong(Wrong::Torn);
        }
        let user = connection.client.payer;
        if self.connections.of(user) == 0 {
            self.kept.remove(&user);
        } else if let Some(kept) = self.kept.get_mut(&user) {
            *kept = kept.saturating_sub(connection.lines.kept());
        }
        connection.client.part(&self.checkpoints);
    }
}

#[cfg(test)]
impl Listener {
    /// Makes the newest connection one of another user, as if the kernel had reported it.
    pub(super) fn give_newest_to(&mut self, user: u32) {
        let newest = self.connections.iter().map(|(number, _)| *number).max().unwrap();
        let connection = self.connections.get_mut(&newest).unwrap();
        let peer = peer::Peer { pid: None, uid: user };
        let client = self.shared.greet(newest, peer, user, &connection.stream, self.quiet);
        std::mem::replace(&mut connection.client, client).part(&self.checkpoints);
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        for connection in self.connections.values() {
            connection.client.part(&self.checkpoints);
        }
    }
}

/// Logs an error of a client, once for each kind and connection, within the rate limit.
fn remark(connection: &mut Connection, wrong: Wrong, why: &str, now: Timestamp, shared: &Shared) {
    let bit = 1 << wrong as u32;
    if connection.logged & bit == 0 && shared.counts.may_log(now) {
        connection.logged |= bit;
        let Client { pid, uid, .. } = &*connection.client;
        let kind = wrong.label();
        tracing::warn!(pid, uid, kind, why, "A training job sent an invalid message.");
    }
}
