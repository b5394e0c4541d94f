//! A budget of new label sets, for each user and hour: a time series database keeps every series that it has seen once for
//! days, so that a user who changes its names all the time would fill the one of the whole cluster.
//!
//! What is over the budget is summed under the name [`OTHER`] where a sum has a meaning, and has no series otherwise.

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::time::Duration;

use super::rank_identity::RankIdentity;
use crate::model::fair::{Room, Table};
use crate::model::label::Label;
use crate::model::shortage::Shortage;
use crate::model::time::Timestamp;

/// The name under which the names over the budget are summed.
pub(super) const OTHER: &str = "other";

/// How long a label set counts after it was last seen.
const HOUR: Duration = Duration::from_secs(3_600);
/// Most label sets of all users.
const MOST: usize = 32_768;

/// What a label set is of, which has a budget of its own: a rank has some 60 series, a phase or a device of it up to 13.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Rank,
    Part,
}

impl Kind {
    /// Label sets of a user in an hour, by whether the driver lists the process on a GPU: 64 restarts of a job on eight GPUs
    /// whose names all change, and four in which every rank has 128 parts.
    const fn budget(self, has_gpu: bool) -> usize {
        match (self, has_gpu) {
            (Self::Rank, true) => 512,
            (Self::Rank, false) => 128,
            (Self::Part, true) => 4_096,
            (Self::Part, false) => 256,
        }
    }
}

/// The label sets of the last hour.
#[derive(Debug)]
pub(super) struct Names {
    /// When each was last seen, those of ranks and those of their parts.
    seen: [Table<u32, (u32, u64), Timestamp>; 2],
    left_out: BTreeMap<u32, u64>,
}

impl Default for Names {
    fn default() -> Self {
        Self { seen: [Table::new(MOST), Table::new(MOST)], left_out: BTreeMap::new() }
    }
}

impl Names {
    /// Begins a sample: forgets what was not seen for an hour.
    pub(super) fn begin(&mut self, at: Timestamp) {
        self.left_out.clear();
        self.seen.iter_mut().for_each(|seen| seen.retain(|_, last| at.since(*last) < HOUR));
    }

    /// The user's share, for what a process of it reports.
    pub(super) fn of(&mut self, user: u32, has_gpu: bool, at: Timestamp) -> Share<'_> {
        Share { names: self, user, has_gpu, at }
    }

    /// The users over their budget in this sample.
    pub(super) fn shortages(&self) -> impl Iterator<Item = Shortage> {
        Shortage::of_users("training_names", MOST, &self.left_out)
    }
}

/// The share of a user.
#[derive(Debug)]
pub(super) struct Share<'n> {
    names: &'n mut Names,
    user: u32,
    has_gpu: bool,
    at: Timestamp,
}

impl Share<'_> {
    /// Whether a rank may have series.
    pub(super) fn has_rank(&mut self, identity: &RankIdentity) -> bool {
        self.admits(Kind::Rank, &identity.labels())
    }

    /// Whether series may have these labels, besides those that only have the labels of a rank.
    pub(super) fn has_part(&mut self, labels: &[Label]) -> bool {
        self.admits(Kind::Part, labels)
    }

    fn admits(&mut self, kind: Kind, labels: &[Label]) -> bool {
        let mut hasher = DefaultHasher::new();
        labels.iter().for_each(|label| label.as_str().hash(&mut hasher));
        let (key, at) = ((self.user, hasher.finish()), self.at);
        let seen = &mut self.names.seen[kind as usize];
        if let Some(last) = seen.get_mut(&key) {
            *last = at;
            return true;
        }
        let has_room = seen.of(self.user) < kind.budget(self.has_gpu)
            && seen.make_room(self.user, |_, last| last.monotonic()) != Room::Refused;
        if has_room {
            seen.insert(self.user, key, at);
        } else {
            *self.names.left_out.entry(self.user).or_default() += 1;
        }
        has_room
    }
}
