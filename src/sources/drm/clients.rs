//! Which processes have a DRM device open, and what each uses of one GPU.

use std::collections::{BTreeMap, HashMap};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use super::fdinfo::{Client, Engine};
use super::files;
use super::vendor::Vendor;
use crate::model::facts::ProcessTable;
use crate::model::ids::ProcessKey;
use crate::model::time::Timestamp;
use crate::model::units::{Count, Ratio, Unit as _};

/// Most descriptors of one process that are looked at.
const MOST_DESCRIPTORS: usize = 16_384;
/// A round ends when it has looked at this many descriptors; the other processes follow in the next round.
const ENOUGH: usize = 4000;
/// Rounds between two looks at the descriptors of a process that has no device: 1, 2, 4, up to this number.
const SELDOM: u32 = 32;
/// Rounds between two looks at the descriptors of a process that has a device.
const OFTEN: u32 = 4;
/// Most descriptors of one GPU that are read in one round.
const MOST_READ: usize = 4096;

/// A process that has DRM devices open.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Holder {
    pub key: ProcessKey,
    /// Its effective user.
    pub user: u32,
    /// Its descriptors with the name of the device.
    pub devices: Vec<(u32, String)>,
}

/// Finds processes that have a DRM device open, without looking at every descriptor each time.
#[derive(Debug, Default)]
pub struct Finder {
    seen: HashMap<ProcessKey, Seen>,
    round: u64,
    /// The process with which the next round begins.
    next: u32,
}

#[derive(Debug)]
struct Seen {
    due: u64,
    pause: u32,
    devices: Vec<(u32, String)>,
}

impl Finder {
    /// One round; the processes that are known to have a device afterwards.
    pub fn round(&mut self, proc: &Path, table: &ProcessTable) -> Vec<Holder> {
        self.round += 1;
        let rows = &table.rows;
        let first = rows.partition_point(|row| row.key.pid < self.next);
        let mut looked_at = 0;
        self.next = 0;
        for row in rows[first..].iter().chain(&rows[..first]).filter(|row| !row.kernel) {
            let round = self.round;
            let seen = self.seen.entry(row.key).or_insert(Seen { due: round, pause: 1, devices: Vec::new() });
            if seen.due > round {
                continue;
            }
            if looked_at >= ENOUGH {
                self.next = row.key.pid;
                break;
            }
            let looked = files::devices(proc, row.key.pid, MOST_DESCRIPTORS);
            let (devices, descriptors) = looked.unwrap_or_default();
            looked_at += descriptors.max(1);
            seen.pause = if devices.is_empty() { (seen.pause * 2).min(SELDOM) } else { OFTEN };
            seen.due = round + u64::from(seen.pause);
            seen.devices = devices;
        }
        let mut holders = Vec::new();
        let mut alive = HashMap::with_capacity(rows.len());
        for row in rows {
            let Some(seen) = self.seen.remove(&row.key) else { continue };
            if !seen.devices.is_empty() {
                holders.push(Holder { key: row.key, user: row.uid, devices: seen.devices.clone() });
            }
            alive.insert(row.key, seen);
        }
        self.seen = alive;
        holders
    }
}

/// What a process uses of one GPU.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Usage {
    pub pid: u32,
    /// The memory that it allocated on the GPU, in bytes; absent where the driver does not report it.
    pub memory: Option<u64>,
    /// Share of time in which it used the compute engines; absent while the driver has counted no time.
    pub busy: Option<Ratio>,
}

/// The processes of one GPU.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Usages {
    /// By pid.
    pub processes: Vec<Usage>,
    /// Whether the memory of every client is attributed to a process.
    pub whole: bool,
}

/// Computes what the clients of one GPU use, from one round to the next.
#[derive(Debug, Default)]
pub struct Accounts {
    before: BTreeMap<u64, BTreeMap<String, Engine>>,
    at: Option<Timestamp>,
}

/// A client, and the processes that have it open.
#[derive(Debug)]
struct Open {
    client: Client,
    holders: Vec<(ProcessKey, u32)>,
}

impl Open {
    /// The process that the client counts for: the oldest of those that share it, which inherited it to the others. A
    /// client that processes of several users share counts for none, because any of them may have sent it to the others.
    fn owner(&self) -> Option<u32> {
        let user = self.holders.first()?.1;
        let oldest = self.holders.iter().map(|(key, _)| (key.start, key.pid)).min()?;
        self.holders.iter().all(|(_, other)| *other == user).then_some(oldest.1)
    }
}

/// The GPU whose clients are read.
#[derive(Clone, Copy, Debug)]
pub struct Of<'a> {
    /// The process file system.
    pub proc: &'a Path,
    pub vendor: &'a Vendor,
    /// See [`super::watch::Sample::uses_host_memory`].
    pub uses_host_memory: bool,
    /// Its PCI address; empty where it has none.
    pub pci: &'a str,
    pub devices: &'a [String],
}

impl Accounts {
    /// One round: reads the clients of a GPU.
    pub fn round(&mut self, of: Of<'_>, holders: &Arc<Vec<Holder>>, now: Timestamp) -> Usages {
        let (open, mut whole) = clients(of, holders);
        let elapsed = self.at.replace(now).map(|before| now.since(before));
        let mut processes: BTreeMap<u32, Usage> = BTreeMap::new();
        let mut after = BTreeMap::new();
        for (id, open) in open {
            let before = self.before.remove(&id);
            let busy = before
                .as_ref()
                .zip(elapsed)
                .and_then(|(before, elapsed)| share(before, &open.client.engines, elapsed));
            let Some(pid) = open.owner() else {
                whole = false;
                continue;
            };
            let usage = processes.entry(pid).or_insert(Usage { pid, ..Usage::default() });
            whole &= open.client.memory.is_some();
            usage.memory = match (usage.memory, open.client.memory) {
                (Some(one), Some(other)) => Some(one.saturating_add(other)),
                (one, other) => one.or(other),
            };
            usage.busy = match (usage.busy, busy) {
                (Some(one), Some(other)) => Ratio::new((one.get() + other.get()).min(1.0)),
                (one, other) => one.or(other),
            };
            let mut engines = open.client.engines;
            for (name, engine) in &mut engines {
                // A value can fall for a short time; until it has caught up, the larger one holds.
                engine.busy = engine.busy.max(before.as_ref().and_then(|before| before.get(name)?.busy));
            }
            after.insert(id, engines);
        }
        self.before = after;
        Usages { processes: processes.into_values().collect(), whole }
    }
}

/// The clients of a GPU by id, and whether all could be read.
fn clients(of: Of<'_>, holders: &[Holder]) -> (BTreeMap<u64, Open>, bool) {
    let mut found: BTreeMap<u64, Open> = BTreeMap::new();
    let mut whole = true;
    let open = holders.iter().flat_map(|holder| holder.devices.iter().map(move |device| (holder, device)));
    let own = open.filter(|(_, (_, device))| of.devices.contains(device));
    for (read, (holder, (descriptor, _))) in own.enumerate() {
        if read == MOST_READ {
            whole = false;
            break;
        }
        let text = match files::fdinfo(of.proc, holder.key.pid, *descriptor) {
            Ok(text) => text,
            Err(error) => {
                // A descriptor that was closed meanwhile is not missing.
                whole &= error.kind() == std::io::ErrorKind::NotFound || error.raw_os_error() == Some(3);
                continue;
            }
        };
        // The descriptor may be another file now, and a user can give any file the name of a device.
        let Some(client) = Client::parse(&text, of.vendor, of.uses_host_memory) else { continue };
        if client.pci.as_deref().is_some_and(|pci| pci != of.pci) {
            continue;
        }
        let open = found.entry(client.id).or_insert(Open { client, holders: Vec::new() });
        open.holders.push((holder.key, holder.user));
    }
    (found, whole)
}

/// Share of time in which the busiest compute engine worked for the client; nothing while the driver has counted no time:
/// amdgpu does not count that of user queues, which ROCm uses.
fn share(
    before: &BTreeMap<String, Engine>,
    after: &BTreeMap<String, Engine>,
    elapsed: Duration,
) -> Option<Ratio> {
    let shares = after.iter().filter_map(|(name, engine)| {
        let before = before.get(name)?;
        let capacity = Count(engine.capacity.max(1)).value();
        let (used, whole) = match (engine.busy.zip(before.busy), engine.cycles.zip(engine.total_cycles)) {
            (Some((busy, earlier)), _) if busy > 0 => {
                (Count(busy.saturating_sub(earlier)).value(), elapsed.as_secs_f64() * 1e9)
            }
            (None, Some((cycles, total))) if cycles > 0 => {
                let (earlier, earlier_total) = before.cycles.zip(before.total_cycles)?;
                (
                    Count(cycles.saturating_sub(earlier)).value(),
                    Count(total.saturating_sub(earlier_total)).value(),
                )
            }
            _ => return None,
        };
        (whole > 0.0).then(|| (used / whole / capacity).min(1.0))
    });
    shares.reduce(f64::max).and_then(Ratio::new)
}
