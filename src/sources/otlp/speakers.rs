//! Who pushes, what each rank of theirs pushed, and what the receiver's thread and the sampler share.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use opentelemetry_proto::tonic::collector::metrics::v1::ExportMetricsServiceRequest;

use super::counts::{Counts, Outcome};
use super::figures::Figures;
use super::intake::{self, Tally, Told};
use super::options::Rules;
use crate::model::ids::ProcessKey;
use crate::model::source::Failure;
use crate::model::time::Timestamp;

/// The ranks of one process or user: an agent may collect those of a host.
const OF_ONE: usize = 64;

/// Who is at the other end of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Speaker {
    /// A process of a workload.
    Process(ProcessKey),
    /// A user, of whose processes none that is watched has the connection.
    User(u32),
    /// The kernel does not say.
    Nobody,
}

/// One rank of one speaker.
#[derive(Debug)]
pub(super) struct Rank {
    /// What it pushed.
    pub(super) figures: Figures,
    /// When it first pushed.
    pub(super) since: Timestamp,
    /// When it last did.
    pub(super) heard: Timestamp,
}

/// Ranks by their speaker and number.
pub(super) type Ranks = HashMap<(Speaker, u64), Rank>;

/// How listening at one address goes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum State {
    /// It is listened at this address, where port 0 has become a number.
    Listening(SocketAddr),
    /// It cannot be; it is tried again.
    Failed(Failure, String),
}

/// What the thread and the sampler share.
#[derive(Debug)]
pub(super) struct Shared {
    /// What was counted.
    pub(super) counts: Counts,
    /// Where to look who somebody is.
    pub(super) proc: PathBuf,
    most: usize,
    stale_after: Duration,
    ranks: Mutex<Ranks>,
    members: Mutex<Arc<[ProcessKey]>>,
    /// By address.
    states: Mutex<HashMap<String, State>>,
    /// Connections that are known to be of a process, and all.
    connections: Mutex<(u64, u64)>,
}

impl Shared {
    /// Nobody connected yet.
    pub(super) fn new(proc: PathBuf, rules: &Rules) -> Self {
        Self {
            counts: Counts::default(),
            proc,
            most: rules.most,
            stale_after: rules.stale_after,
            ranks: Mutex::default(),
            members: Mutex::new(Arc::from([])),
            states: Mutex::default(),
            connections: Mutex::default(),
        }
    }

    /// The processes that belong to a workload, as of the last tick.
    pub(super) fn members(&self) -> Arc<[ProcessKey]> {
        Arc::clone(&lock(&self.members))
    }

    /// Says which processes belong to a workload now.
    pub(super) fn set_members(&self, members: impl ExactSizeIterator<Item = ProcessKey> + Clone) {
        let mut known = lock(&self.members);
        if !known.iter().copied().eq(members.clone()) {
            *known = members.collect();
        }
    }

    /// How listening at an address goes.
    pub(super) fn say(&self, address: &str, state: State) {
        lock(&self.states).insert(address.to_owned(), state);
    }

    /// Where it is listened.
    #[cfg(test)]
    pub(super) fn addresses(&self) -> Vec<SocketAddr> {
        let listening = |state: &State| match state {
            State::Listening(address) => Some(*address),
            State::Failed(..) => None,
        };
        lock(&self.states).values().filter_map(listening).collect()
    }

    /// What is wrong with listening, if anything.
    pub(super) fn trouble(&self) -> Option<(Failure, String)> {
        let states = lock(&self.states);
        let mut failed: Vec<_> = states
            .values()
            .filter_map(|state| match state {
                State::Listening(_) => None,
                State::Failed(kind, why) => Some((*kind, why.clone())),
            })
            .collect();
        failed.sort_by(|one, other| one.1.cmp(&other.1));
        failed.into_iter().next()
    }

    /// Says how many connections there are, and how many of them are of a known process.
    pub(super) fn set_connections(&self, of_processes: u64, all: u64) {
        *lock(&self.connections) = (of_processes, all);
    }

    /// The same.
    pub(super) fn connections(&self) -> (u64, u64) {
        *lock(&self.connections)
    }

    /// Takes a request of `speaker` in; what it pushed before as `formerly` is its own.
    pub(super) fn hear(
        &self,
        request: &ExportMetricsServiceRequest,
        speaker: Speaker,
        formerly: Option<Speaker>,
        now: Timestamp,
    ) -> Tally {
        let (most, stale_after) = (self.most, self.stale_after);
        let mut ranks = lock(&self.ranks);
        let mut desk = Desk { ranks: &mut ranks, speaker, formerly, most, stale_after, now };
        let tally = intake::take(request, &mut desk);
        drop(ranks);
        for (outcome, count) in [
            (Outcome::Taken, tally.taken),
            (Outcome::Unknown, tally.unknown),
            (Outcome::Refused, tally.refused),
        ] {
            self.counts.points(outcome, count);
        }
        tally
    }

    /// Every rank, those left out that were silent for too long or whose process `lives` does not know.
    pub(super) fn ranks(&self, now: Timestamp, lives: impl Fn(ProcessKey) -> bool) -> MutexGuard<'_, Ranks> {
        let mut ranks = lock(&self.ranks);
        ranks.retain(|(speaker, _), rank| {
            let gone = matches!(speaker, Speaker::Process(key) if !lives(*key));
            !gone && now.since(rank.heard) <= self.stale_after
        });
        ranks
    }
}

/// The figures of one speaker's ranks, while its request is taken in.
struct Desk<'r> {
    ranks: &'r mut Ranks,
    speaker: Speaker,
    formerly: Option<Speaker>,
    most: usize,
    stale_after: Duration,
    now: Timestamp,
}

impl Desk<'_> {
    /// Whether one more rank may be remembered.
    fn has_room(&mut self) -> bool {
        if self.ranks.len() >= self.most {
            let (now, stale_after) = (self.now, self.stale_after);
            self.ranks.retain(|_, rank| now.since(rank.heard) <= stale_after);
        }
        let own = self.ranks.keys().filter(|(speaker, _)| *speaker == self.speaker).count();
        self.ranks.len() < self.most && own < OF_ONE
    }
}

impl intake::Room for Desk<'_> {
    fn figures(&mut self, told: &Told) -> Option<&mut Figures> {
        let number = told.rank.unwrap_or(0);
        let key = (self.speaker, number);
        if !self.ranks.contains_key(&key) {
            let before = self.formerly.and_then(|formerly| self.ranks.remove(&(formerly, number)));
            if before.is_none() && !self.has_room() {
                return None;
            }
            let now = self.now;
            let rank = before.unwrap_or_else(|| Rank { figures: Figures::default(), since: now, heard: now });
            self.ranks.insert(key, rank);
        }
        let rank = self.ranks.get_mut(&key)?;
        rank.heard = self.now;
        Some(&mut rank.figures)
    }
}

/// What a lock protects stays whole when a thread panics.
pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
