//! The thread that hears jobs: it accepts, reads and parses, and waits for nobody but the kernel.
//!
//! It rests between two rounds, so that what many clients send in that time
//! costs one call each, and so that a flood takes a quarter of a core at most.
//! A round reads a bounded amount, for which users take turns (`queue`).
//! A client that sends too much is not read for a while: its socket fills, and
//! its own client drops what does not fit.

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

use super::client::{Client, Shared, State};
use super::counts::{Refused, Wrong};
use super::lines::{Lines, Room};
use super::options::Rules;
use super::queue::{self, Read, Ready};
use crate::host::clock;
use crate::host::job_socket::{self, Bound};
use crate::host::peer;
use crate::model::checkpoint::Checkpoints;
use crate::model::fair::{Answer, Shares};
use crate::model::source::Failure;
use crate::model::time::Timestamp;

/// The least rest between two rounds.
const REST: Duration = Duration::from_millis(20);
/// The longest, whatever a round took.
const LONGEST_REST: Duration = Duration::from_millis(400);
/// A rest is so many times as long as the round before it.
const SHARE: u32 = 3;
/// What is read of one client at once.
const PIECE: usize = 16 * 1024;
/// How often one client is read in one round at most, where everybody else has had a turn.
const PIECES: usize = 4;
/// What reading may cost in one round, in bytes; one read may go beyond. 64 ranks that send a thousand messages of 150 bytes
/// a second need less than half of it.
pub(super) const BUDGET: usize = 1 << 20;
/// What a read and what each line in it costs beside its bytes.
const READ_COST: usize = 512;
const LINE_COST: usize = 128;
/// Clients accepted in one round; those that are turned away cost little.
const ACCEPTED: usize = 256;
/// How long nobody is accepted where there was no descriptor for one.
const WITHOUT: Duration = Duration::from_secs(1);
/// How often it is seen that nobody waits to be accepted, where the kernel is too old to tell who connected: only a
/// process that is older than that is known.
const QUIET: Duration = Duration::from_secs(1);
/// How long a client that sends too much is left alone at most, so that its end is noticed.
const LONGEST_PAUSE: f64 = 5.0;
/// How often it tries to listen where it cannot, sees whether clients still find it, and looks for lines that stalled.
const AGAIN: Duration = Duration::from_secs(5);
/// How long the end of the daemon waits for the thread.
const FAREWELL: Duration = Duration::from_millis(900);
/// What epoll tells of the listener and of the wish to end; clients count from above.
const LISTENER: u64 = 0;
const WAKE: u64 = 1;

/// The source's hold on the thread; it ends with this.
#[derive(Debug)]
pub struct Hold {
    wake: Arc<OwnedFd>,
    ended: Receiver<()>,
}

impl Hold {
    /// Asks the thread to end.
    pub(super) fn wake(&self) {
        // The counter is full only where this was done before.
        let _ = rustix::io::write(&*self.wake, &1_u64.to_ne_bytes());
    }

    /// Whether the thread has ended, which it does by itself only where it failed.
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
/// The operating system's, where it gives no thread or no descriptor.
pub fn start(
    path: PathBuf,
    rules: Rules,
    shared: Arc<Shared>,
    checkpoints: Arc<Checkpoints>,
) -> std::io::Result<Hold> {
    let mut listener = Listener::new(path, rules, shared, checkpoints, clock::now)?;
    let (end, ended) = channel::<()>();
    let wake = Arc::clone(&listener.wake);
    std::thread::Builder::new().name("job-socket".to_owned()).spawn(move || {
        while let Some(took) = listener.turn(listener.timeout()) {
            std::thread::sleep((took * SHARE).clamp(REST, LONGEST_REST));
        }
        drop(listener);
        // Its end of the channel closes, which stays so; a word would be heard once.
        drop(end);
    })?;
    Ok(Hold { wake, ended })
}

struct Connection {
    stream: UnixStream,
    client: Arc<Client>,
    lines: Lines,
    /// Messages that may be sent now; less than none after too many.
    credit: f64,
    refilled: Timestamp,
    /// What was wrong with its messages, each logged once.
    logged: u32,
    /// Which read of all was its last one.
    last_read: u64,
}

/// What the thread does, a turn at a time.
pub(super) struct Listener {
    wake: Arc<OwnedFd>,
    clock: fn() -> Timestamp,
    path: PathBuf,
    rules: Rules,
    shared: Arc<Shared>,
    checkpoints: Arc<Checkpoints>,
    epoll: OwnedFd,
    bound: Option<Bound>,
    /// When nobody waited to be accepted.
    quiet: Timestamp,
    /// How often that is to be seen.
    look: Duration,
    /// Until when nobody is accepted, for want of descriptors.
    without: Option<Timestamp>,
    /// When it was last seen that the socket's file is there.
    seen: Timestamp,
    connections: HashMap<u64, Connection>,
    shares: Shares<u32>,
    /// Bytes of unfinished lines by user.
    kept: HashMap<u32, usize>,
    /// Clients that are left alone, and until when.
    paused: Vec<(Timestamp, u64)>,
    next: u64,
    /// Reads so far.
    reads: u64,
    buffer: Box<[u8]>,
}

impl Listener {
    pub(super) fn new(
        path: PathBuf,
        rules: Rules,
        shared: Arc<Shared>,
        checkpoints: Arc<Checkpoints>,
        clock: fn() -> Timestamp,
    ) -> std::io::Result<Self> {
        let wake = Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?);
        let epoll = epoll::create(CreateFlags::CLOEXEC)?;
        epoll::add(&epoll, &*wake, EventData::new_u64(WAKE), EventFlags::IN)?;
        let certain = UnixStream::pair().is_ok_and(|(one, _)| peer::is_certain(one));
        Ok(Self {
            wake,
            clock,
            path,
            shares: Shares::new(shared.most()),
            rules,
            shared,
            checkpoints,
            epoll,
            bound: None,
            quiet: clock(),
            look: if certain { AGAIN } else { QUIET },
            without: None,
            seen: clock(),
            connections: HashMap::new(),
            kept: HashMap::new(),
            paused: Vec::new(),
            next: WAKE + 1,
            reads: 0,
            buffer: vec![0; PIECE].into_boxed_slice(),
        })
    }

    /// Waits for something to do and does it; how long it took, or nothing where the thread is to end.
    pub(super) fn turn(&mut self, timeout: Option<Duration>) -> Option<Duration> {
        self.listen();
        let before = (self.clock)();
        // There is room for all of them, so that who is ready is known of everybody, and more.
        let room = self.connections.len() + 3;
        let mut events: Vec<Event> = Vec::with_capacity(room);
        let timeout = timeout.map(|timeout| Timespec {
            tv_sec: i64::try_from(timeout.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: timeout.subsec_nanos().into(),
        });
        let waited = epoll::wait(&self.epoll, rustix::buffer::spare_capacity(&mut events), timeout.as_ref());
        if waited.is_err_and(|error| error != rustix::io::Errno::INTR) {
            self.shared.say(State::Failed(Failure::Io, "cannot wait for jobs".to_owned()));
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
        queue::take_turns(ready, PIECES, BUDGET, |number| self.hear(number));
        self.look_after(begun);
        Some((self.clock)().since(begun))
    }

    /// Listens where it does not yet, or where nobody would find it: who cleans up folders may remove the file.
    fn listen(&mut self) {
        if let Some(bound) = &self.bound {
            let now = (self.clock)();
            if now.since(self.seen) < AGAIN {
                return;
            }
            self.seen = now;
            if bound.in_place() {
                return;
            }
            tracing::warn!(path = %self.path.display(), "The file of the job socket is gone; it is made again.");
            self.bound = None;
        }
        self.quiet = (self.clock)();
        let bound = job_socket::bind(&self.path, self.rules.access).and_then(|bound| {
            epoll::add(&self.epoll, &bound.listener, EventData::new_u64(LISTENER), EventFlags::IN).map_err(
                |error| job_socket::Problem::System {
                    what: "wait at",
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
                self.shared.say(State::Listening);
            }
            Err(problem) => self.shared.say(State::Failed(problem.kind(), problem.to_string())),
        }
    }

    /// How long there is nothing to do but to wait for the kernel.
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
                    // Without a free descriptor the same client is there again at once.
                    let (bound, shared) = (&bound.listener, &self.shared);
                    if epoll::delete(&self.epoll, bound).is_ok() {
                        self.without = Some(now.plus(WITHOUT));
                    }
                    if shared.counts.may_log(now) {
                        tracing::warn!(%error, "A training job cannot be accepted; it is tried again.");
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
        let payer = self.shared.payer(peer.uid, now);
        if self.shares.of(payer) >= self.rules.clients_per_user {
            self.shared.turned_away(payer, now);
            return Err(Refused::User);
        }
        match self.shares.ask(payer) {
            Answer::Free => {}
            Answer::TakeFrom(other) => self.take_from(other, now),
            Answer::Refused => {
                self.shared.turned_away(payer, now);
                return Err(Refused::Clients);
            }
        }
        let number = self.next;
        epoll::add(&self.epoll, &stream, EventData::new_u64(number), EventFlags::IN)
            .map_err(|_| Refused::System)?;
        self.shares.take(payer);
        self.next += 1;
        let client = self.shared.greet(number, peer, payer, &stream, self.quiet);
        let connection = Connection {
            stream,
            client,
            lines: Lines::default(),
            credit: 2.0 * self.rules.rate,
            refilled: now,
            logged: 0,
            last_read: self.reads,
        };
        self.connections.insert(number, connection);
        Ok(())
    }

    /// Closes the newest connection of a user who has more than another who wants one.
    fn take_from(&mut self, user: u32, now: Timestamp) {
        let own = self.connections.iter().filter(|(_, connection)| connection.client.payer == user);
        let Some(newest) = own.map(|(number, _)| *number).max() else { return };
        self.part(newest);
        self.shared.counts.refused(Refused::Share);
        self.shared.turned_away(user, now);
    }

    /// Whose the connection is that can be read; nothing where it has been closed.
    fn ready(&self, number: u64) -> Option<Ready> {
        let Connection { client, last_read, .. } = self.connections.get(&number)?;
        Some(Ready { user: client.payer, process: client.key, number, last_read: *last_read })
    }

    /// Reads a piece of what a client has sent.
    fn hear(&mut self, number: u64) -> Read {
        let nothing = Read { cost: READ_COST, more: false };
        let Some(connection) = self.connections.get_mut(&number) else { return nothing };
        self.reads += 1;
        connection.last_read = self.reads;
        let read = match connection.stream.read(&mut self.buffer) {
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
        let room = Room { line: self.rules.line, tail: self.rules.memory.saturating_sub(taken) };
        let mut lines = std::mem::take(&mut connection.lines);
        let (mut count, mut cost) = (0.0, READ_COST + read);
        lines.feed(&self.buffer[..read], room, now, |line| {
            count += 1.0;
            cost += LINE_COST;
            let outcome = match line {
                Ok(line) => connection.client.hear(line, now, &self.shared.counts, &self.checkpoints),
                Err(wrong) => Err((wrong, "a line is too long to be kept".to_owned())),
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
        connection.credit =
            (connection.credit + elapsed * self.rules.rate).min(2.0 * self.rules.rate) - count;
        if connection.credit < 0.0 {
            let pause = (-connection.credit / self.rules.rate).min(LONGEST_PAUSE);
            if epoll::delete(&self.epoll, &connection.stream).is_ok() {
                self.paused.push((now.plus(Duration::from_secs_f64(pause)), number));
                self.shared.counts.paused.fetch_add(1, Ordering::Relaxed);
                return Read { cost, more: false };
            }
        }
        Read { cost, more: read == self.buffer.len() }
    }

    /// Takes up clients that were left alone, and lets go of lines that are never finished.
    fn look_after(&mut self, now: Timestamp) {
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
                remark(connection, Wrong::Stalled, "a line was not finished", now, &self.shared);
            }
        }
    }

    fn part(&mut self, number: u64) {
        let Some(connection) = self.connections.remove(&number) else { return };
        if connection.lines.torn() {
            self.shared.counts.wrong(Wrong::Torn);
        }
        let user = connection.client.payer;
        self.shares.give_back(user);
        if self.shares.of(user) == 0 {
            self.kept.remove(&user);
        } else if let Some(kept) = self.kept.get_mut(&user) {
            *kept = kept.saturating_sub(connection.lines.kept());
        }
        connection.client.part(&self.checkpoints);
    }
}

#[cfg(test)]
impl Listener {
    /// Makes the newest connection one of another user, as if the kernel had said so.
    pub(super) fn give_newest_to(&mut self, user: u32) {
        let newest = self.connections.keys().max().copied().unwrap();
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

/// Logs what was wrong, once a kind and connection, and not for ever.
fn remark(connection: &mut Connection, wrong: Wrong, why: &str, now: Timestamp, shared: &Shared) {
    let bit = 1 << wrong as u32;
    if connection.logged & bit == 0 && shared.counts.may_log(now) {
        connection.logged |= bit;
        let Client { pid, uid, .. } = &*connection.client;
        let kind = wrong.label();
        tracing::warn!(pid, uid, kind, why, "A training job sent what is not understood.");
    }
}
