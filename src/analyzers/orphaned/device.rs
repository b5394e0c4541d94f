//! What is remembered of one GPU: its listed processes, and those that ended on it.

use std::collections::BTreeMap;

use crate::model::facts::{self, Facts, GpuProcess};
use crate::model::ids::ProcessKey;
use crate::model::label::Label;
use crate::model::time::Timestamp;
use crate::model::units::{Bytes, Unit};

/// Largest amount that the driver itself may use, in bytes: the memory that NVIDIA's drivers before 510 reserve counts as
/// used.
const OWN: f64 = 1_073_741_824.0;
/// Seconds in which a process that the driver no longer lists ends. The driver releases the context first.
const ENDING: f64 = 30.0;

/// A process that the driver lists, or listed lately.
#[derive(Clone, Debug)]
struct Held {
    key: ProcessKey,
    who: Who,
    /// GPU memory, in bytes.
    memory: f64,
    /// The unattributed memory of the GPU while it was listed, in bytes.
    before: f64,
    /// When it was last listed, in seconds on the monotonic clock.
    listed: f64,
}

/// Whose a process is, as far as known.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Who {
    pub(super) comm: Label,
    pub(super) workload: Label,
    pub(super) user: Label,
    pub(super) run: Label,
}

impl Who {
    fn of(key: ProcessKey, comm: &Label, facts: &Facts) -> Self {
        let member = facts::member_of(&facts.workload_of, key.pid).filter(|member| member.process == key);
        let Some(member) = member else { return Self { comm: comm.clone(), ..Self::default() } };
        let names = facts.names_of(&member.workload.key);
        Self {
            comm: comm.clone(),
            workload: member.workload.name.clone(),
            user: names.map(|names| names.user.clone()).unwrap_or_default(),
            run: names.map(|names| names.run.name.clone()).unwrap_or_default(),
        }
    }
}

/// The processes that ended on a GPU since nothing of it was orphaned.
#[derive(Clone, Debug)]
pub(super) struct Ended {
    /// The process with the most memory.
    pub(super) pid: u32,
    pub(super) who: Who,
    pub(super) unix: f64,
    most: f64,
    /// Memory of all of them, in bytes.
    pub(super) memory: f64,
    /// The unattributed memory before the first one ended, in bytes.
    before: f64,
}

#[derive(Debug, Default)]
pub(super) struct Device {
    held: BTreeMap<u32, Held>,
    pub(super) ended: Option<Ended>,
    /// The least unattributed memory that was seen, in bytes.
    least: Option<f64>,
    /// The unattributed memory of the previous tick.
    previous: f64,
    /// From when on there is orphaned memory.
    pub(super) since: Option<Timestamp>,
    pub(super) seen: f64,
}

impl Device {
    /// The orphaned memory of the GPU, in bytes. `all`: no process is hidden from the driver's list, so that what no
    /// process holds is not used.
    pub(super) fn orphaned(
        &mut self,
        listed: &[&GpuProcess],
        unattributed: f64,
        (facts, all): (&Facts, bool),
        now: Timestamp,
    ) -> f64 {
        let at = now.monotonic().as_secs_f64();
        let least = self.least.map_or(unattributed, |least| least.min(unattributed));
        self.least = Some(least);
        let (running, listed_ended) = self.list(listed, facts, at);
        self.end_unlisted(facts, now);
        self.previous = unattributed;
        let unlisted = match &self.ended {
            _ if !running && all => unattributed - least.min(OWN),
            // Managed memory of a running process may be listed for none: only what stayed when another one ended counts.
            Some(ended) => (unattributed - ended.before).min(ended.memory),
            None => 0.0,
        };
        unlisted.max(0.0) + listed_ended
    }

    /// Records the listed processes: whether one of them may run, and the memory of those that have ended.
    fn list(&mut self, listed: &[&GpuProcess], facts: &Facts, at: f64) -> (bool, f64) {
        let (mut running, mut ended) = (false, 0.0);
        for process in listed {
            let memory = process.memory.map_or(0.0, Bytes::value);
            let row = facts.processes.as_ref().and_then(|table| table.get(process.pid));
            let known = self.held.get_mut(&process.pid);
            match (row, known) {
                (Some(row), known) if known.as_ref().is_none_or(|held| held.key != row.key) => {
                    running = true;
                    let who = Who::of(row.key, &row.comm, facts);
                    let held = Held { key: row.key, who, memory, before: self.previous, listed: at };
                    self.held.insert(process.pid, held);
                }
                (Some(row), Some(held)) => {
                    running = true;
                    (held.memory, held.before, held.listed) = (memory, self.previous, at);
                    // Its workload may become known after it.
                    if held.who.workload.is_empty() {
                        held.who = Who::of(row.key, &row.comm, facts);
                    }
                }
                (None, Some(held)) if facts.processes.is_some() => {
                    held.listed = at;
                    ended += memory;
                }
                // A process of another pid namespace, or no list of processes.
                _ => running = true,
            }
        }
        (running, ended)
    }

    /// Moves processes that ended from the listed ones to the ended ones.
    fn end_unlisted(&mut self, facts: &Facts, now: Timestamp) {
        let at = now.monotonic().as_secs_f64();
        let Some(table) = &facts.processes else { return };
        let (ended, last) = (&mut self.ended, at);
        self.held.retain(|pid, held| {
            let row = table.get(*pid).filter(|row| row.key == held.key);
            let is_listed = held.listed >= last;
            if row.is_some_and(|row| is_listed || !matches!(row.state, b'Z' | b'X')) {
                return is_listed || at - held.listed < ENDING;
            }
            let own = ended.get_or_insert_with(|| Ended {
                pid: *pid,
                who: held.who.clone(),
                unix: now.unix().as_secs_f64(),
                most: -1.0,
                memory: 0.0,
                before: held.before,
            });
            if held.memory >= 0.0 {
                own.memory += held.memory;
                if held.memory > own.most {
                    (own.pid, own.who, own.most) = (*pid, held.who.clone(), held.memory);
                }
                own.unix = now.unix().as_secs_f64();
                // One that is still listed is counted once.
                held.memory = -1.0;
            }
            is_listed
        });
    }
}
