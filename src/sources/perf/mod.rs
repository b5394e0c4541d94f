//! Kernel and hardware counters of perf_event, for each workload and for the host.
//!
//! A process is counted from the tick that finds it in a workload, by counters
//! on its threads that new threads inherit and new processes do not (Linux 5.13):
//! new processes are found and counted on their own, so nothing is counted twice. Opening a counter waits for a
//! process that is in execve, so the threads of [`readers`] do it.

pub mod metrics;
mod options;
mod tally;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, HashMap, HashSet};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use options::Options;
use tally::{Open, Tally};

use crate::host::perf::{Event, Kernel, Perf, Refusal, Target, online};
use crate::host::process::readers::{self, Pool, ReadRequests, ReadTarget};
use crate::host::roots::Roots;
use crate::host::{fs, process};
use crate::model::desc::Counter;
use crate::model::facts::{Membership, ProcessTable, Workload};
use crate::model::fair;
use crate::model::ids::ProcessKey;
use crate::model::label::Label;
use crate::model::point::Batch;
use crate::model::shortage::Shortage;
use crate::model::source::{Source, SourceError};
use crate::model::time::Timestamp;
use crate::model::units::{Count, Flag, Seconds};
use crate::sources::Registration;

pub static REGISTRATION: Registration = Registration {
    name: "perf",
    about: "Hardware and kernel counters of perf_event for each workload and the host: context switches, migrations, page faults, cycles, instructions and cache misses.",
    // Each thread needs a descriptor per event, and each descriptor is read at each tick.
    on_by_default: false,
    options: Options::OPTIONS,
    metrics: metrics::METRICS,
    needs: &["workload", "process"],
    ..Registration::built_by(|settings, context| {
        let mut options = Options::read(settings);
        // The rest is needed by other sources and connections.
        options.max_descriptors = options.max_descriptors.min(process::descriptor_limit() / 4);
        Box::new(Counters::new(options, Arc::clone(&context.roots), Arc::new(Kernel), readers::shared()))
    })
};

/// The events that are counted, each with the metrics of a workload and of the host.
const COUNTERS: [(Event, &Counter<Count>, &Counter<Count>); 8] = [
    (Event::ContextSwitches, &metrics::CONTEXT_SWITCHES, &metrics::HOST_CONTEXT_SWITCHES),
    (Event::Migrations, &metrics::MIGRATIONS, &metrics::HOST_MIGRATIONS),
    (Event::PageFaults, &metrics::PAGE_FAULTS, &metrics::HOST_PAGE_FAULTS),
    (Event::Cycles, &metrics::CYCLES, &metrics::HOST_CYCLES),
    (Event::Instructions, &metrics::INSTRUCTIONS, &metrics::HOST_INSTRUCTIONS),
    (Event::CacheReferences, &metrics::CACHE_REFERENCES, &metrics::HOST_CACHE_REFERENCES),
    (Event::CacheMisses, &metrics::CACHE_MISSES, &metrics::HOST_CACHE_MISSES),
    (Event::BranchMisses, &metrics::BRANCH_MISSES, &metrics::HOST_BRANCH_MISSES),
];

struct Counters {
    options: Options,
    roots: Arc<Roots>,
    kernel: Arc<dyn Perf>,
    openings: ReadRequests<Result<Vec<Open>, NoRoom>>,
    /// The events that can be counted for a process; absent until they were tried.
    events: Option<Vec<(Event, Result<(), Refusal>)>>,
    host: Vec<Open>,
    host_tally: Tally,
    /// Whether the host's counters were tried: a refused counter is not tried again.
    host_tried: bool,
    processes: HashMap<ProcessKey, Attached>,
    tallies: BTreeMap<Label, Tally>,
    /// Processes that are not counted because the descriptors are used up, by workload and by user.
    left_out: BTreeMap<(Label, u32), u64>,
    /// Number of counters that are open or are being opened.
    descriptors: Arc<AtomicUsize>,
}

/// Fewer descriptors were left than the process needs.
struct NoRoom;

/// A process that is counted, or cannot be.
struct Attached {
    workload: Label,
    /// Empty if it was refused; it is not tried again.
    counters: Vec<Open>,
}

impl Counters {
    fn new(options: Options, roots: Arc<Roots>, kernel: Arc<dyn Perf>, pool: Arc<Pool>) -> Self {
        Self {
            options,
            roots,
            kernel,
            openings: ReadRequests::new(pool),
            events: None,
            host: Vec::new(),
            host_tally: Tally::default(),
            host_tried: false,
            processes: HashMap::new(),
            tallies: BTreeMap::new(),
            left_out: BTreeMap::new(),
            descriptors: Arc::default(),
        }
    }

    fn wanted(&self) -> impl Iterator<Item = Event> {
        let hardware = self.options.hardware;
        Event::ALL.into_iter().filter(move |event| hardware || !event.is_hardware())
    }

    /// Tries each event on the daemon's own process.
    fn probe(&mut self) -> Vec<(Event, Result<(), Refusal>)> {
        let own = Target::Thread(std::process::id());
        let tried = self.wanted().map(|event| {
            let opened = self.kernel.open(event, own);
            (event, opened.map(drop).map_err(|error| Refusal::of(&error)))
        });
        tried.collect()
    }

    fn open_host(&mut self, events: &[Event]) {
        self.host_tried = true;
        for cpu in online(&self.roots.sys) {
            // The task clock of a CPU also runs while it is idle, so it is meaningless for the host.
            for event in events.iter().filter(|event| **event != Event::TaskClock) {
                if self.descriptors.load(Ordering::Relaxed) >= self.options.max_descriptors {
                    return;
                }
                if let Ok(counter) = self.kernel.open(*event, Target::Cpu(cpu)) {
                    self.host.push(Open::new(*event, counter));
                    self.descriptors.fetch_add(1, Ordering::Relaxed);
                }
            }
        }
    }

    /// Stops counting processes that have ended or left a workload, and starts counting new ones.
    fn follow(&mut self, members: &[Membership], table: Option<&ProcessTable>, events: &Arc<[Event]>) {
        let present: HashMap<ProcessKey, &Label> =
            members.iter().map(|member| (member.process, &member.workload.name)).collect();
        let gone: Vec<ProcessKey> =
            self.processes.keys().filter(|key| !present.contains_key(key)).copied().collect();
        gone.into_iter().for_each(|key| self.close(key));
        self.openings.keep(|key| present.contains_key(&key));
        for (Membership { process, workload }, fits) in self.divide(members, table, events) {
            if !fits {
                self.close(*process);
                self.count_left_out(workload);
            } else if let Some(attached) = self.processes.get_mut(process) {
                attached.workload.clone_from(&workload.name);
            } else if !self.openings.waits_for(*process) {
                self.open_counters(*process, table, events);
            }
        }
        for (key, counters) in self.openings.answers() {
            // If none was tried, it is tried again at the next tick.
            let Some(counters) = counters else { continue };
            let counters = match counters {
                Ok(counters) => counters,
                // It has more threads now than before, or other counters are not closed yet: it is tried again.
                Err(NoRoom) => {
                    let member = members.iter().find(|member| member.process == key);
                    member.into_iter().for_each(|member| self.count_left_out(&member.workload));
                    continue;
                }
            };
            match present.get(&key) {
                Some(workload) => {
                    let workload = Label::clone(workload);
                    self.processes.insert(key, Attached { workload, counters });
                }
                // It ended or left meanwhile.
                None => {
                    self.descriptors.fetch_sub(counters.len(), Ordering::Relaxed);
                }
            }
        }
    }

    /// Closes the counters of a process that has ended or left, or that is displaced by another user.
    fn close(&mut self, key: ProcessKey) {
        let Some(mut attached) = self.processes.remove(&key) else { return };
        // The counters of an ended process keep their last values.
        let tally = self.tallies.entry(attached.workload).or_default();
        attached.counters.iter_mut().for_each(|open| tally.add(open));
        self.descriptors.fetch_sub(attached.counters.len(), Ordering::Relaxed);
    }

    /// Records that a process of this workload is not counted for lack of descriptors.
    fn count_left_out(&mut self, workload: &Workload) {
        // A workload without any counted process is still exposed, with its uncounted processes.
        self.tallies.entry(workload.name.clone()).or_default();
        *self.left_out.entry((workload.name.clone(), workload.user)).or_default() += 1;
    }

    /// Selects the processes that fit into their users' shares of the descriptors; counted ones come first.
    fn divide<'m>(
        &mut self,
        members: &'m [Membership],
        table: Option<&ProcessTable>,
        events: &[Event],
    ) -> Vec<(&'m Membership, bool)> {
        self.left_out.clear();
        let known = |key: &ProcessKey| self.processes.contains_key(key) || self.openings.waits_for(*key);
        let (mut order, new): (Vec<&Membership>, Vec<&Membership>) =
            members.iter().partition(|member| known(&member.process));
        order.extend(new);
        let need = |Membership { process, workload }: &Membership| {
            let row = table.and_then(|table| table.get(process.pid)).filter(|row| row.key == *process);
            let threads = row.map_or(1, |row| usize::try_from(row.threads).unwrap_or(usize::MAX).max(1));
            let counted = self.processes.get(process).map(|attached| attached.counters.len());
            (workload.user, counted.unwrap_or_else(|| threads.saturating_mul(events.len())))
        };
        let needs: Vec<(u32, usize)> = order.iter().map(|member| need(member)).collect();
        let most = self.options.max_descriptors.saturating_sub(self.host.len());
        order.into_iter().zip(fair::divide_sizes(&needs, most)).collect()
    }

    fn open_counters(&mut self, key: ProcessKey, table: Option<&ProcessTable>, events: &Arc<[Event]>) {
        let row = table.and_then(|table| table.get(key.pid));
        let target = ReadTarget {
            key,
            uid: row.map_or(0, |row| row.uid),
            comm: row.map_or_else(Label::default, |row| row.comm.clone()),
            what: "perf_event_open",
        };
        let folder = self.roots.proc.join(key.pid.to_string());
        let (kernel, events) = (Arc::clone(&self.kernel), Arc::clone(events));
        let (open, most) = (Arc::clone(&self.descriptors), self.options.max_descriptors);
        self.openings.request(target, move || {
            let counters =
                attach(&*kernel, &folder, key, &events, most.saturating_sub(open.load(Ordering::Relaxed)));
            open.fetch_add(counters.as_ref().map_or(0, Vec::len), Ordering::Relaxed);
            counters
        });
    }

    fn expose(&self, out: &mut Batch) {
        let uncounted = self.processes.values().filter(|attached| attached.counters.is_empty());
        let mut missing: BTreeMap<&Label, u64> = self.tallies.keys().map(|name| (name, 0)).collect();
        for attached in uncounted {
            *missing.entry(&attached.workload).or_default() += 1;
        }
        for ((workload, user), left_out) in &self.left_out {
            *missing.entry(workload).or_default() += left_out;
            out.facts.shortages.push(Shortage {
                limit: "perf_descriptors",
                user: Some(*user),
                left_out: *left_out,
                most: self.options.max_descriptors as u64,
            });
        }
        for (workload, tally) in &self.tallies {
            let labels = std::slice::from_ref(workload);
            let clock = tally.total(Event::TaskClock).map(Seconds::from_nanos);
            out.put_some(&metrics::TASK_CLOCK, labels, clock);
            for (event, metric, _) in COUNTERS {
                out.put_some(metric, labels, tally.total(event).map(Count));
            }
            out.put_some(&metrics::IPC, labels, tally.instructions_per_cycle());
            out.put_some(&metrics::COUNTING, labels, tally.counting());
            out.put(&metrics::UNCOUNTED, labels, Count(missing.get(workload).copied().unwrap_or(0)));
        }
        for (event, _, metric) in COUNTERS {
            out.put_some(metric, &[], self.host_tally.total(event).map(Count));
        }
        out.put_some(&metrics::HOST_IPC, &[], self.host_tally.instructions_per_cycle());
        out.put_some(&metrics::HOST_COUNTING, &[], self.host_tally.counting());
        out.put(&metrics::DESCRIPTORS, &[], Count(self.descriptors.load(Ordering::Relaxed) as u64));
    }
}

impl Source for Counters {
    fn sample(&mut self, _at: Timestamp, out: &mut Batch) -> Result<(), SourceError> {
        let path = self.roots.proc.join("sys/kernel/perf_event_paranoid");
        let Ok(paranoid) = fs::read_text(&path) else {
            let why = format!("the kernel does not support perf_event: {} does not exist", path.display());
            return Err(SourceError::unavailable(why));
        };
        let paranoid = paranoid.trim();
        if paranoid.parse::<i32>().is_ok() {
            out.put(&metrics::PARANOID, &[paranoid.into()], Flag(true));
        }
        let tried = match self.events.take() {
            Some(tried) => tried,
            None => self.probe(),
        };
        for (event, outcome) in &tried {
            let labels = [event.label().into(), "workload".into()];
            out.put(&metrics::AVAILABLE, &labels, Flag(outcome.is_ok()));
        }
        let events: Vec<Event> =
            tried.iter().filter(|(_, outcome)| outcome.is_ok()).map(|(event, _)| *event).collect();
        let refused = tried.iter().find_map(|(_, outcome)| outcome.err());
        self.events = Some(tried);
        if let (true, Some(refused)) = (events.is_empty(), refused) {
            let why = match refused {
                Refusal::NotPermitted => format!(
                    "perf_event_open is not permitted: kernel.perf_event_paranoid is {paranoid} and CAP_PERFMON is missing"
                ),
                _ => "no perf_event event can be counted; counting processes requires Linux 5.13 or later"
                    .to_owned(),
            };
            return Err(SourceError::unavailable(why));
        }
        if self.options.host && !self.host_tried {
            self.open_host(&events);
        }
        if self.options.host {
            for (event, _) in self.events.iter().flatten().filter(|(event, _)| *event != Event::TaskClock) {
                let counted = self.host.iter().any(|open| open.event == *event);
                let labels = [event.label().into(), "host".into()];
                out.put(&metrics::AVAILABLE, &labels, Flag(counted));
            }
        }
        self.host_tally.turn();
        self.host.iter_mut().for_each(|open| self.host_tally.add(open));
        self.tallies.values_mut().for_each(Tally::turn);
        let members = std::mem::take(&mut out.facts.members);
        if self.options.workloads {
            self.follow(&members, out.facts.processes.as_deref(), &events.as_slice().into());
        }
        for attached in self.processes.values_mut() {
            let tally = self.tallies.entry(attached.workload.clone()).or_default();
            attached.counters.iter_mut().for_each(|open| tally.add(open));
        }
        let live: HashSet<&Label> = members.iter().map(|member| &member.workload.name).collect();
        self.tallies.retain(|workload, _| live.contains(workload));
        out.facts.members = members;
        self.expose(out);
        Ok(())
    }
}

/// Opens counters on every thread of a process, at most `most`: on all threads or on none. This may hang.
fn attach(
    kernel: &dyn Perf,
    folder: &Path,
    key: ProcessKey,
    events: &[Event],
    most: usize,
) -> Result<Vec<Open>, NoRoom> {
    let mut counters = Vec::new();
    let mut known = HashSet::new();
    // A thread may start while the others are opened; threads that it starts later inherit the counters.
    loop {
        let fresh: Vec<u32> = threads(folder).into_iter().filter(|thread| known.insert(*thread)).collect();
        if fresh.is_empty() {
            break;
        }
        if counters.len() + fresh.len() * events.len() > most {
            return Err(NoRoom);
        }
        for thread in fresh {
            for event in events {
                match kernel.open(*event, Target::Thread(thread)) {
                    Ok(counter) => counters.push(Open::new(*event, counter)),
                    Err(error) if Refusal::of(&error) == Refusal::Gone => break,
                    Err(_) => return Ok(Vec::new()),
                }
            }
        }
    }
    // The pid may belong to another process by now.
    let stat = fs::read_text(&folder.join("stat")).unwrap_or_default();
    let same = process::stat(stat.as_bytes()).is_some_and(|stat| stat.start == key.start);
    Ok(if same { counters } else { Vec::new() })
}

/// The threads in a process's folder; none if it has ended.
fn threads(folder: &Path) -> Vec<u32> {
    let Ok(entries) = std::fs::read_dir(folder.join("task")) else { return Vec::new() };
    entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok()).collect()
}
