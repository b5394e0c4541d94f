//! Who pushes, what each rank of theirs pushed, and what the receiver's thread and the sampler share.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use opentelemetry_proto::tonic::collector::metrics::v1::ExportMetricsServiceRequest;

use super::counts::{Counts, Outcome};
use super::figures::Figures;
use super::intake::{self, Tally, Told};
use super::options::Rules;
use super::receiver;
use crate::host::subordinate::Subordinates;
use crate::model::fair::{Answer, Shares};
use crate::model::ids::ProcessKey;
use crate::model::lock::lock;
use crate::model::shortage::{Shortage, TurnedAway};
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
    /// Whose connection it came by; absent where the kernel does not say.
    pub(super) user: Option<u32>,
}

/// Who asks for its figures to be kept.
#[derive(Clone, Copy, Debug)]
pub(super) struct Asks {
    /// The user, where the kernel says.
    pub(super) user: Option<u32>,
    pub(super) speaker: Speaker,
    /// As whom it pushed before.
    pub(super) formerly: Option<Speaker>,
}

/// What there are so many places of.
#[derive(Clone, Copy, Debug)]
pub(super) enum Limit {
    Ranks,
    Connections,
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
    /// For whom there was no place, by [`Limit`], and how many places there are.
    turned: Mutex<[(TurnedAway, usize); 2]>,
    subordinates: Subordinates,
}

impl Shared {
    /// Nobody connected yet.
    pub(super) fn new(proc: PathBuf, subordinates: Subordinates, rules: &Rules) -> Self {
        Self {
            counts: Counts::default(),
            proc,
            most: rules.most,
            stale_after: rules.stale_after,
            ranks: Mutex::default(),
            members: Mutex::new(Arc::from([])),
            states: Mutex::default(),
            connections: Mutex::default(),
            turned: Mutex::new([
                (TurnedAway::new("otlp_ranks"), rules.most),
                (TurnedAway::new("otlp_connections"), receiver::places(rules)),
            ]),
            subordinates,
        }
    }

    /// The user whose places a process of this user id takes.
    pub(super) fn payer(&self, uid: u32, now: Timestamp) -> u32 {
        self.subordinates.owner(uid, now)
    }

    /// Something of this user had no place, or lost it.
    pub(super) fn turned_away(&self, limit: Limit, user: Option<u32>, now: Timestamp) {
        lock(&self.turned)[limit as usize].0.note(user, now);
    }

    /// For whom there was no place lately.
    pub(super) fn shortages(&self, now: Timestamp) -> Vec<Shortage> {
        lock(&self.turned).iter_mut().flat_map(|(turned, most)| turned.shortages(*most, now)).collect()
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

    /// Takes a request in; what was pushed before under another name of who asks is its own.
    pub(super) fn hear(&self, request: &ExportMetricsServiceRequest, asks: Asks, now: Timestamp) -> Tally {
        let (most, stale_after) = (self.most, self.stale_after);
        let mut ranks = lock(&self.ranks);
        let mut desk = Desk { ranks: &mut ranks, asks, most, stale_after, now, left_out: None };
        let tally = intake::take(request, &mut desk);
        if let Some(user) = desk.left_out {
            self.turned_away(Limit::Ranks, user, now);
        }
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
    asks: Asks,
    most: usize,
    stale_after: Duration,
    now: Timestamp,
    /// Of whom a rank was left out.
    left_out: Option<Option<u32>>,
}

impl Desk<'_> {
    /// Makes room for one more rank of who asks; false where there is none.
    fn make_room(&mut self) -> bool {
        let user = self.asks.user;
        if self.ranks.len() >= self.most {
            let (now, stale_after) = (self.now, self.stale_after);
            self.ranks.retain(|_, rank| now.since(rank.heard) <= stale_after);
        }
        let own = self.ranks.keys().filter(|(speaker, _)| *speaker == self.asks.speaker).count();
        if own >= OF_ONE {
            self.left_out = Some(user);
            return false;
        }
        let mut shares = Shares::new(self.most);
        self.ranks.values().for_each(|rank| shares.take(rank.user));
        match shares.ask(user) {
            Answer::Free => true,
            Answer::Refused => {
                self.left_out = Some(user);
                false
            }
            Answer::TakeFrom(other) => {
                self.left_out = Some(other);
                let theirs = self.ranks.iter().filter(|(_, rank)| rank.user == other);
                let newest = theirs.max_by_key(|(_, rank)| rank.since.monotonic()).map(|(key, _)| *key);
                newest.is_some_and(|key| self.ranks.remove(&key).is_some())
            }
        }
    }
}

impl intake::Room for Desk<'_> {
    fn figures(&mut self, told: &Told) -> Option<&mut Figures> {
        let number = told.rank.unwrap_or(0);
        let Asks { user, speaker, formerly } = self.asks;
        let key = (speaker, number);
        if !self.ranks.contains_key(&key) {
            let before = formerly.and_then(|formerly| self.ranks.remove(&(formerly, number)));
            if before.is_none() && !self.make_room() {
                return None;
            }
            let now = self.now;
            let new = || Rank { figures: Figures::default(), since: now, heard: now, user };
            self.ranks.insert(key, before.unwrap_or_else(new));
        }
        let rank = self.ranks.get_mut(&key)?;
        rank.heard = self.now;
        Some(&mut rank.figures)
    }
}
