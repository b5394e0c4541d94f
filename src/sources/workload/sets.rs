//! The memory of workloads that are configured by a pid, with the pages that their processes share counted once.
//!
//! `smaps_rollup` is read where a workload has several processes; those of one process are in `status`.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use super::seen::Seen;
use crate::host::clock;
use crate::host::process::readers::{Pool, ReadRequests, ReadTarget};
use crate::host::process::{ProcRoot, SetMemory, set_memory};
use crate::host::room::processes::{Exact, SetState};
use crate::model::facts::ProcessTable;
use crate::model::ids::ProcessKey;
use crate::model::time::Timestamp;
use crate::model::units::Bytes;

/// Time between two readings of a workload, as a multiple of what the first took, and the least.
const REST: u32 = 50;
const PAUSE: Duration = Duration::from_millis(200);
/// The multiple where new processes hold more than this share of the memory.
const REST_WITH_NEW: u32 = 10;
const NEW: u64 = 16;
/// Longest time for one reading.
const LONGEST: Duration = Duration::from_secs(10);

/// The exact readings of these workloads.
pub(super) struct Sets {
    requests: ReadRequests<(SetMemory, Duration)>,
    known: BTreeMap<u32, Known>,
}

/// What is known of one workload.
#[derive(Default)]
struct Known {
    exact: Option<Exact>,
    /// The processes of the exact reading with their memory then; absent where another has the same address space.
    bases: BTreeMap<ProcessKey, Option<Bytes>>,
    /// The process by which the last reading was asked for.
    asked: Option<ProcessKey>,
}

/// The processes of a workload that have memory, with their anonymous and shared memory as far as it is known.
type Members = BTreeMap<ProcessKey, Bytes>;

impl Sets {
    pub(super) fn new(pool: &Arc<Pool>) -> Self {
        Self { requests: ReadRequests::new(Arc::clone(pool)), known: BTreeMap::new() }
    }

    /// The memory of each of the workloads `wanted`, by its number; without those of which it is not known.
    pub(super) fn turn(
        &mut self,
        wanted: &BTreeSet<u32>,
        seen: &[Seen],
        table: &ProcessTable,
        root: &Arc<ProcRoot>,
        at: Timestamp,
    ) -> Vec<(u32, Bytes)> {
        if wanted.is_empty() {
            return Vec::new();
        }
        let mut found: BTreeMap<u32, Members> = wanted.iter().map(|id| (*id, Members::new())).collect();
        for seen in seen {
            let Some(members) = seen.assignment.and_then(|own| found.get_mut(&own.id)) else { continue };
            let Some(status) = seen.member.as_ref().map(|member| member.status) else { continue };
            if let Some(anon) = status.anon {
                members.insert(seen.key, anon.saturating_add(status.shmem.unwrap_or_default()));
            }
        }
        for (id, members) in &found {
            self.known.entry(*id).or_default().ask(members, table, root, &mut self.requests, at);
        }
        for (key, answer) in self.requests.answers() {
            let asked = self.known.iter_mut().find(|(_, known)| known.asked == Some(key));
            let Some((id, known)) = asked else { continue };
            known.asked = None;
            if let (Some((set, took)), Some(members)) = (answer, found.get(id)) {
                known.take(set, took, members, at);
            }
        }
        let used = found.iter().filter_map(|(id, members)| Some((*id, self.known.get(id)?.used(members)?)));
        used.collect()
    }
}

impl Known {
    /// Asks for a reading where several processes may share pages, and the last one is long enough ago.
    fn ask(
        &mut self,
        members: &Members,
        table: &ProcessTable,
        root: &Arc<ProcRoot>,
        requests: &mut ReadRequests<(SetMemory, Duration)>,
        at: Timestamp,
    ) {
        if let (1, Some((key, memory))) = (members.len(), members.first_key_value()) {
            // Nobody shares with it.
            self.exact =
                Some(Exact { at, took: Duration::ZERO, used: *memory, file: Bytes::ZERO, complete: true });
            self.bases = [(*key, Some(*memory))].into();
            return;
        }
        let new = members.iter().filter(|(key, _)| !self.bases.contains_key(key));
        let new = new.fold(Bytes::ZERO, |sum, (_, memory)| sum.saturating_add(*memory));
        let rest = |exact: &Exact| {
            let has_new = new.get() > exact.used.get() / NEW;
            let pause = if has_new { exact.took * REST_WITH_NEW } else { (exact.took * REST).max(PAUSE) };
            at.since(exact.at) < pause
        };
        if self.asked.is_some() || self.exact.as_ref().is_some_and(rest) {
            return;
        }
        let mut keys: Vec<ProcessKey> = members.keys().copied().collect();
        keys.sort_unstable_by_key(|key| (key.start, key.pid));
        let row = keys.first().and_then(|first| table.get(first.pid));
        let Some(target) = row.map(|row| ReadTarget::of(row, "smaps_rollup")) else { return };
        self.asked = Some(target.key);
        let root = Arc::clone(root);
        requests.request(target, move || {
            let begun = clock::now();
            let set = set_memory(&root, &keys, begun.plus(LONGEST));
            (set, clock::now().since(begun))
        });
    }

    /// Takes a reading. One that is not complete says nothing: some processes may not be read at all.
    fn take(&mut self, set: SetMemory, took: Duration, members: &Members, at: Timestamp) {
        let SetMemory { used, file, complete, found } = set;
        self.exact = complete.then_some(Exact { at, took, used, file, complete });
        self.bases = found
            .into_iter()
            .map(|(key, first)| (key, members.get(&key).copied().filter(|_| first)))
            .collect();
    }

    /// The memory now: that of the exact reading, and what its processes have taken since.
    fn used(&self, members: &Members) -> Option<Bytes> {
        let exact = self.exact?;
        let mut growth = 0_i64;
        for (key, memory) in members {
            if let Some(Some(base)) = self.bases.get(key) {
                growth = growth.saturating_add_unsigned(memory.get()).saturating_sub_unsigned(base.get());
            }
        }
        let bound = members.values().fold(Bytes::ZERO, |sum, memory| sum.saturating_add(*memory));
        Some(SetState { exact: self.exact, bound, growth, unread: Bytes::ZERO }.estimate(&exact))
    }
}
