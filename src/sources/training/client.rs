//! State shared by the listener's thread and the sampler: the clients and the state of the socket.

use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock};

use super::answers::Answers;
use super::commands::CommandLine;
use super::counts::{Counts, Wrong};
use super::rank::Rank;
use crate::formats::messages::{self, Body, Problem};
use crate::host::peer::Peer;
use crate::host::pidfd;
use crate::host::subordinate::Subordinates;
use crate::model::checkpoint::Checkpoints;
use crate::model::fit::Answer;
use crate::model::ids::ProcessKey;
use crate::model::lock::lock;
use crate::model::shortage::{Refusals, Shortage};
use crate::model::source::SourceError;
use crate::model::time::Timestamp;

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ClientState {
    Opening,
    Listening,
    /// It cannot be opened; opening is retried.
    Failed(SourceError),
}

#[derive(Debug, Default)]
pub struct Client {
    /// The connection's number, counted from the start of the listener.
    pub number: u64,
    /// The pid in the daemon's pid namespace; absent where it is not certain which process connected.
    pub pid: Option<u32>,
    pub uid: u32,
    /// The user whose connection limit it counts against.
    pub(super) payer: u32,
    /// Pid and start time; absent where it is not certain which process connected.
    pub key: Option<ProcessKey>,
    /// Its command line; empty until it was read, absent where it cannot be read.
    pub(super) line: Arc<OnceLock<Option<CommandLine>>>,
    /// Absent where the process is not certain, and before Linux 6.5.
    process: Option<OwnedFd>,
    pub rank: Mutex<Rank>,
    ended: AtomicBool,
    answers: Answers,
}

impl Client {
    /// A connection that has reported nothing.
    fn of(number: u64, key: Option<ProcessKey>, uid: u32, payer: u32) -> Self {
        Self { number, pid: key.map(|key| key.pid), uid, payer, key, ..Self::default() }
    }

    pub fn ended(&self) -> bool {
        self.ended.load(Ordering::Acquire)
    }

    /// The exit status of its process (wait(2)); absent until it was reaped, and before Linux 6.15.
    pub(super) fn exit_status(&self) -> Option<i32> {
        pidfd::exit_status(self.process.as_ref()?.as_fd()).ok().flatten()
    }

    /// Parses and applies one line.
    pub(super) fn receive(
        &self,
        line: &[u8],
        now: Timestamp,
        counts: &Counts,
        checkpoints: &Checkpoints,
    ) -> Result<(), (Wrong, String)> {
        if line.iter().all(u8::is_ascii_whitespace) {
            return Ok(());
        }
        let message = messages::parse(line).map_err(|problem| (kind(&problem), problem.to_string()))?;
        counts.message(&message.body);
        let saved = match &message.body {
            Body::Checkpoint(checkpoint) => checkpoint.state,
            _ => None,
        };
        lock(&self.rank).apply(message, now)?;
        if let (Some(key), Some(state)) = (self.key, saved) {
            let nanos = u64::try_from(now.monotonic().as_nanos()).unwrap_or(u64::MAX);
            if !checkpoints.note(key, state, nanos) {
                return Err((Wrong::Excess, "too many processes have saved checkpoints".to_owned()));
            }
        }
        Ok(())
    }

    /// Sends the verdict of its predictions, where the client reads verdicts and this is not the last one.
    pub(super) fn answer(&self, answer: &Answer) {
        if self.reads_answers() {
            self.answers.send(answer);
        }
    }

    /// Sends what is to be said of the earlier runs of its command, likewise.
    pub(super) fn tell_past(&self, past: &str) {
        if self.reads_answers() {
            self.answers.tell_past(past);
        }
    }

    fn reads_answers(&self) -> bool {
        let reads = lock(&self.rank).hello.as_ref().is_some_and(|hello| hello.verdicts == Some(true));
        reads && !self.ended()
    }

    /// Marks the connection as ended.
    pub(super) fn part(&self, checkpoints: &Checkpoints) {
        if let Some(key) = self.key {
            checkpoints.forget(key);
        }
        self.ended.store(true, Ordering::Release);
    }
}

const fn kind(problem: &Problem) -> Wrong {
    match problem {
        Problem::TooLong(_) => Wrong::Length,
        Problem::Encoding(_) => Wrong::Encoding,
        Problem::Json(_) => Wrong::Json,
        Problem::Key { .. } => Wrong::Key,
    }
}

/// State shared by the listener's thread and the sampler.
#[derive(Debug)]
pub struct Shared {
    pub counts: Counts,
    pub(super) proc: PathBuf,
    pub(super) most: usize,
    state: Mutex<ClientState>,
    /// In the order of connecting; ended ones stay until the sampler has read them.
    clients: Mutex<Vec<Arc<Client>>>,
    /// The users whose connections were refused or closed.
    refusals: Mutex<Refusals>,
    pub(super) subordinates: Subordinates,
}

impl Shared {
    /// No clients yet; `proc` is the procfs used to identify them, `most` the maximum number of connections.
    pub fn new(proc: PathBuf, subordinates: Subordinates, most: usize) -> Self {
        Self {
            counts: Counts::default(),
            proc,
            most,
            state: Mutex::new(ClientState::Opening),
            clients: Mutex::default(),
            refusals: Mutex::new(Refusals::new("job_connections")),
            subordinates,
        }
    }

    /// Records that a connection of this user was refused or closed.
    pub(super) fn note_refusal(&self, user: u32, now: Timestamp) {
        lock(&self.refusals).note(Some(user), now);
    }

    /// The users whose connections were recently refused or closed.
    pub(super) fn shortages(&self, now: Timestamp) -> Vec<Shortage> {
        lock(&self.refusals).shortages(self.most, now).collect()
    }

    pub fn state(&self) -> ClientState {
        lock(&self.state).clone()
    }

    pub(super) fn set_state(&self, state: ClientState) {
        *lock(&self.state) = state;
    }

    /// Registers the process at the other end of this stream. `quiet` is when the queue was last seen empty.
    pub(super) fn greet(
        &self,
        number: u64,
        peer: Peer,
        payer: u32,
        stream: &Arc<UnixStream>,
        quiet: Timestamp,
    ) -> Arc<Client> {
        let (key, process) = peer.process_and_pidfd(stream, &self.proc, quiet).unzip();
        if key.is_none() {
            self.counts.unproven.fetch_add(1, Ordering::Relaxed);
        }
        let mut clients = lock(&self.clients);
        // A process with several connections has one command line.
        let other = clients.iter().find(|other| key.is_some() && other.key == key);
        let line = other.map_or_else(Arc::default, |other| Arc::clone(&other.line));
        let client = Arc::new(Client {
            line,
            process: process.flatten(),
            answers: Answers::new(stream),
            ..Client::of(number, key, peer.uid, payer)
        });
        if clients.len() > 2 * self.most {
            // The sampler has not run for long: clients that ended meanwhile are not reported.
            clients.retain(|client| !client.ended());
        }
        clients.push(Arc::clone(&client));
        client
    }

    /// Registers a process without a socket, whose command line is not read.
    pub(super) fn greet_simulated(&self, number: u64, key: ProcessKey, uid: u32) -> Arc<Client> {
        let client = Arc::new(Client {
            line: Arc::new(OnceLock::from(None)),
            ..Client::of(number, Some(key), uid, uid)
        });
        lock(&self.clients).push(Arc::clone(&client));
        client
    }

    /// Every client and whether it has ended; ended clients are returned once.
    pub fn clients(&self) -> Vec<(Arc<Client>, bool)> {
        let mut clients = lock(&self.clients);
        let all: Vec<_> = clients.iter().map(|client| (Arc::clone(client), client.ended())).collect();
        *clients = all.iter().filter(|(_, ended)| !ended).map(|(client, _)| Arc::clone(client)).collect();
        all
    }
}
