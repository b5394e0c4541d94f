//! The peers that push, the values of their ranks, and the state shared by the receiver's thread and the sampler.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use opentelemetry_proto::tonic::collector::metrics::v1::ExportMetricsServiceRequest;

use super::counts::{Counts, Outcome};
use super::figures::Figures;
use super::intake::{self, RankAttributes, Tally};
use super::options::Options;
use super::receiver;
use crate::host::subordinate::Subordinates;
use crate::model::fair::{Room, Table};
use crate::model::ids::ProcessKey;
use crate::model::lock::lock;
use crate::model::shortage::{Refusals, Shortage};
use crate::model::source::SourceError;
use crate::model::time::Timestamp;

/// Most ranks of one process or user: an agent may forward those of a whole host.
const OF_ONE: usize = 64;

/// The peer of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum PushSender {
    Process(ProcessKey),
    /// A user; no tracked process of it owns the connection.
    User(u32),
    /// Unknown to the kernel.
    Unknown,
}

#[derive(Debug)]
pub(super) struct Rank {
    pub(super) figures: Figures,
    /// When it first pushed.
    pub(super) since: Timestamp,
    pub(super) last_push: Timestamp,
    /// The user of its connection; absent if the kernel does not report it.
    pub(super) user: Option<u32>,
}

/// The peer of a request that is being applied.
#[derive(Clone, Copy, Debug)]
pub(super) struct RequestOrigin {
    /// The user, if the kernel reports it.
    pub(super) user: Option<u32>,
    pub(super) sender: PushSender,
    /// The peer as which it pushed before.
    pub(super) previous_sender: Option<PushSender>,
}

/// Limits that are shared between users.
#[derive(Clone, Copy, Debug)]
pub(super) enum Limit {
    Ranks,
    Connections,
}

/// Ranks by peer and number.
pub(super) type Ranks = Table<Option<u32>, (PushSender, u64), Rank>;

/// Of one address: where the receiver listens, with the actual port for port 0, or the error after which it tries again.
pub(super) type ListenState = Result<SocketAddr, SourceError>;

/// State shared by the receiver's thread and the sampler.
#[derive(Debug)]
pub(super) struct SendersShared {
    pub(super) counts: Counts,
    /// The procfs in which processes are looked up.
    pub(super) proc: PathBuf,
    stale_after: Duration,
    ranks: Mutex<Ranks>,
    members: Mutex<Arc<[ProcessKey]>>,
    /// State by configured address.
    states: Mutex<BTreeMap<String, ListenState>>,
    /// Number of connections whose process is known, and of all connections.
    connections: Mutex<(u64, u64)>,
    /// Users who reached a [`Limit`], with the value of the limit.
    refusals: Mutex<[(Refusals, usize); 2]>,
    pub(super) subordinates: Subordinates,
}

impl SendersShared {
    /// State without connections.
    pub(super) fn new(proc: PathBuf, subordinates: Subordinates, options: &Options) -> Self {
        Self {
            counts: Counts::default(),
            proc,
            stale_after: options.stale_after,
            ranks: Mutex::new(Table::new(options.max_ranks)),
            members: Mutex::new(Arc::from([])),
            states: Mutex::default(),
            connections: Mutex::default(),
            refusals: Mutex::new([
                (Refusals::new("otlp_ranks"), options.max_ranks),
                (Refusals::new("otlp_connections"), receiver::places(options)),
            ]),
            subordinates,
        }
    }

    /// Records that a rank or connection of this user was refused or removed.
    pub(super) fn note_refusal(&self, limit: Limit, user: Option<u32>, now: Timestamp) {
        lock(&self.refusals)[limit as usize].0.note(user, now);
    }

    /// The users whose ranks or connections were recently refused or removed.
    pub(super) fn shortages(&self, now: Timestamp) -> Vec<Shortage> {
        lock(&self.refusals).iter_mut().flat_map(|(refusals, most)| refusals.shortages(*most, now)).collect()
    }

    /// The processes that belonged to a workload at the last tick.
    pub(super) fn members(&self) -> Arc<[ProcessKey]> {
        Arc::clone(&lock(&self.members))
    }

    /// Sets the processes that belong to a workload.
    pub(super) fn set_members(&self, members: impl ExactSizeIterator<Item = ProcessKey> + Clone) {
        let mut known = lock(&self.members);
        if !known.iter().copied().eq(members.clone()) {
            *known = members.collect();
        }
    }

    pub(super) fn set_state(&self, address: &str, state: ListenState) {
        lock(&self.states).insert(address.to_owned(), state);
    }

    #[cfg(test)]
    pub(super) fn addresses(&self) -> Vec<SocketAddr> {
        lock(&self.states).values().filter_map(|state| state.as_ref().ok().copied()).collect()
    }

    /// The first error of listening, if any.
    pub(super) fn trouble(&self) -> Option<SourceError> {
        lock(&self.states).values().find_map(|state| state.as_ref().err().cloned())
    }

    /// Sets the number of connections whose process is known, and of all connections.
    pub(super) fn set_connections(&self, of_processes: u64, all: u64) {
        *lock(&self.connections) = (of_processes, all);
    }

    /// The numbers set by [`SendersShared::set_connections`].
    pub(super) fn connections(&self) -> (u64, u64) {
        *lock(&self.connections)
    }

    /// Applies a request; values that the peer pushed before under its former identity move to it.
    pub(super) fn receive(
        &self,
        request: &ExportMetricsServiceRequest,
        origin: RequestOrigin,
        now: Timestamp,
    ) -> Tally {
        let stale_after = self.stale_after;
        let mut ranks = lock(&self.ranks);
        let mut rank_intake = RankIntake { ranks: &mut ranks, origin, stale_after, now, left_out: None };
        let tally = intake::take(request, &mut rank_intake);
        if let Some(user) = rank_intake.left_out {
            self.note_refusal(Limit::Ranks, user, now);
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

    /// Every rank; removes those that were silent for too long or whose process no longer exists according to `is_running`.
    pub(super) fn ranks(
        &self,
        now: Timestamp,
        is_running: impl Fn(ProcessKey) -> bool,
    ) -> MutexGuard<'_, Ranks> {
        let mut ranks = lock(&self.ranks);
        ranks.retain(|(sender, _), rank| {
            let gone = matches!(sender, PushSender::Process(key) if !is_running(*key));
            !gone && now.since(rank.last_push) <= self.stale_after
        });
        ranks
    }
}

/// The ranks of one peer, while its request is applied.
struct RankIntake<'r> {
    ranks: &'r mut Ranks,
    origin: RequestOrigin,
    stale_after: Duration,
    now: Timestamp,
    /// The user of whom a rank was refused or removed.
    left_out: Option<Option<u32>>,
}

impl RankIntake<'_> {
    /// Reserves a place for one more rank of the peer; false if the limit is reached.
    fn reserve_place(&mut self) -> bool {
        let user = self.origin.user;
        if self.ranks.len() >= self.ranks.most() {
            let (now, stale_after) = (self.now, self.stale_after);
            self.ranks.retain(|_, rank| now.since(rank.last_push) <= stale_after);
        }
        let own = self.ranks.iter().filter(|((sender, _), _)| *sender == self.origin.sender).count();
        if own >= OF_ONE {
            self.left_out = Some(user);
            return false;
        }
        let newest = |_: &_, rank: &Rank| Reverse(rank.since.monotonic());
        match self.ranks.make_room(user, newest) {
            Room::Free => true,
            Room::Evicted(other, ..) => {
                self.left_out = Some(other);
                true
            }
            Room::Refused => {
                self.left_out = Some(user);
                false
            }
        }
    }
}

impl intake::FiguresByRank for RankIntake<'_> {
    fn figures(&mut self, attributes: &RankAttributes) -> Option<&mut Figures> {
        let number = attributes.rank.unwrap_or(0);
        let RequestOrigin { user, sender, previous_sender } = self.origin;
        let key = (sender, number);
        if !self.ranks.contains_key(&key) {
            let before =
                previous_sender.and_then(|previous_sender| self.ranks.remove(&(previous_sender, number)));
            if before.is_none() && !self.reserve_place() {
                return None;
            }
            let now = self.now;
            let new = || Rank { figures: Figures::default(), since: now, last_push: now, user };
            self.ranks.insert(user, key, before.unwrap_or_else(new));
        }
        let rank = self.ranks.get_mut(&key)?;
        rank.last_push = self.now;
        Some(&mut rank.figures)
    }
}
