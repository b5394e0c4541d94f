//! What is remembered of running workloads, and of the last seconds of the host, until a process ends.

mod kills;

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;

use self::kills::OomKilled;
use super::classify::{EXHAUSTED, Level, TmpfsState};
use super::episode::{is_supervisor, is_wrapper};
use crate::model::analyzer::View;
use crate::model::ends::{EndEvidence, ExitStatus, Sender};
use crate::model::facts::{Facts, KernelLog, KernelReport, OwnLimits, Tmpfs, TmpfsTable};
use crate::model::finding::Subject;
use crate::model::health::Health;
use crate::model::ids::{ProcessKey, WorkloadKey, within};
use crate::model::label::Label;
use crate::model::time::Timestamp;
use crate::model::units::{GIB, real, whole};
use crate::sources::gpu::metrics::XID_ERRORS;
use crate::sources::{cgroup, training, workload};

/// Most points of the curve of a workload, and how many seconds it covers: two minutes at a sample each second.
const MOST_POINTS: usize = 128;
const CURVE: f64 = 120.0;
/// Seconds for which exit statuses and kills are remembered; the end of a process is seen in the tick after them.
const KEPT: f64 = 10.0;
/// Seconds for which a process that protection sent SIGTERM is remembered: jobs save for minutes before they end.
const SIGNALLED: f64 = 600.0;
/// Seconds before the end of a process in which an XID is the reason of it.
const XID: f64 = 30.0;
/// A contained ECC error: a warning for the GPU, and the end of the job.
const CONTAINED: u32 = 94;
pub(super) const SIGKILL: i32 = 9;
/// Most exit statuses that are remembered, and most signals.
const MOST_STATUSES: usize = 16_384;
/// Most reads of tmpfs that are kept.
const MOST_READS: usize = 4;

/// The pid and the name of a process, and the signal that ended it.
pub(super) type Child = (u32, Label, i32);

/// One GPU of a workload, by index and UUID.
pub(super) type Gpu = (Label, Label);

/// What is known of a running workload.
#[derive(Debug, Default)]
pub(super) struct Observed {
    pub(super) name: Label,
    pub(super) user: Label,
    pub(super) run: Label,
    pub(super) cgroup: Label,
    /// The GPUs that it was last seen on.
    pub(super) gpus: Vec<Gpu>,
    /// When it started, and when its last checkpoint was saved, in seconds since 1970.
    pub(super) started_unix: Option<f64>,
    pub(super) saved_unix: Option<f64>,
    pub(super) saved_step: Option<u64>,
    /// Seconds on the monotonic clock, resident memory and GPU memory, in bytes.
    pub(super) curve: VecDeque<(f64, f64, Option<f64>)>,
    pub(super) seen: f64,
    /// Its oldest process when it was first seen, without those that only start the program.
    pub(super) main: Option<ProcessKey>,
    /// The end of that, by its number, where it was no success and others live on, and when.
    pub(super) main_end: Option<(u64, f64)>,
}

/// Records the workloads that are tracked in this tick.
pub(super) fn record(
    known: &mut HashMap<WorkloadKey, Observed>,
    view: &View<'_>,
    facts: &Facts,
    (now, oldest): (Timestamp, f64),
) {
    use workload::metrics::{GPU_MEMORY, RSS, START};
    let at = now.monotonic().as_secs_f64();
    let (rss, start) = (view.by_label(&RSS, 0), view.by_label(&START, 0));
    let mut gpus: HashMap<&Label, (Vec<Gpu>, f64)> = HashMap::new();
    for point in view.points(&GPU_MEMORY) {
        let [name, gpu, uuid] = &*point.labels else { continue };
        let (all, sum) = gpus.entry(name).or_default();
        all.push((gpu.clone(), uuid.clone()));
        *sum += point.value;
    }
    let mut saved: HashMap<&Label, f64> = HashMap::new();
    for point in view.points(&training::metrics::CHECKPOINT_SAVED) {
        let latest = saved.entry(&point.labels[0]).or_insert(point.value);
        *latest = latest.max(point.value);
    }
    let steps = view.points(&training::metrics::CHECKPOINT_STEP);
    for (workload, names) in facts.workloads.iter().zip(&facts.workload_names) {
        let Some(used) = rss.get(&workload.name).copied() else { continue };
        let own = known.entry(workload.key.clone()).or_default();
        own.seen = at;
        own.main = own.main.or_else(|| {
            let members = facts.workload_of.iter().filter(|member| member.workload.key == workload.key);
            let rows = members.filter_map(|member| facts.row(member.process));
            let keys = rows.filter(|row| !is_supervisor(row) && !is_wrapper(row)).map(|row| row.key);
            keys.min_by_key(|key| (key.start, key.pid))
        });
        if own.name != workload.name {
            own.name.clone_from(&workload.name);
        }
        if own.user != names.user || own.run != names.run.name || own.cgroup != names.cgroup {
            (own.user, own.run, own.cgroup) =
                (names.user.clone(), names.run.name.clone(), names.cgroup.clone());
        }
        let on_gpus = gpus.remove(&workload.name);
        let gpu_memory = on_gpus.as_ref().map(|(_, sum)| *sum);
        if let Some((all, _)) = on_gpus {
            own.gpus = all;
        }
        own.started_unix = start.get(&workload.name).copied().or(own.started_unix);
        if let Some(saved) = saved.get(&workload.name) {
            own.saved_unix = Some(*saved);
            let step = steps.iter().filter(|point| point.labels[0] == workload.name);
            own.saved_step = step.map(|point| whole(point.value)).max();
        }
        while own.curve.len() >= MOST_POINTS || own.curve.front().is_some_and(|point| at - point.0 > CURVE) {
            own.curve.pop_front();
        }
        own.curve.push_back((at, used, gpu_memory));
    }
    known.retain(|_, own| own.seen >= oldest);
}

impl Observed {
    /// By how much its resident memory grew in the time of the curve, and what it was last, in bytes.
    pub(super) fn growth(&self) -> (f64, f64) {
        let least = self.curve.iter().map(|(_, rss, _)| *rss).fold(f64::INFINITY, f64::min);
        self.curve.back().map_or((0.0, 0.0), |(_, rss, _)| (rss - least, *rss))
    }
}

/// The last seconds of the host.
#[derive(Debug, Default)]
pub(super) struct Recent {
    /// The exit statuses, when each was seen, and its place in the order of all.
    statuses: HashMap<ProcessKey, (ExitStatus, f64, u64)>,
    exits: u64,
    /// The parent, the name and the signal of each process that a signal ended.
    child_signals: HashMap<ProcessKey, (u32, Label, i32, f64)>,
    /// OOM kills, the oldest first. A process that no tick has seen can still be seen later, while its memory is freed.
    kills: VecDeque<OomKilled>,
    /// What else the kernel logged of processes, and of cgroups whose forks it rejected.
    reports: Vec<(KernelReport, f64)>,
    /// How much is known of the kernel log, and when it was last incomplete.
    log: KernelLog,
    incomplete: f64,
    /// The label and the run of each process that was connected as a rank: some close their connection before they end.
    ranks: HashMap<ProcessKey, ([Label; 2], f64)>,
    /// The limits of each process that has one, and when they were last known.
    own_limits: HashMap<ProcessKey, (OwnLimits, f64)>,
    /// When protection sent each process a signal that ends it.
    signalled: HashMap<ProcessKey, f64>,
    /// The first signal of each number that each process was sent, and when it was seen.
    signals: HashMap<(ProcessKey, i32), (Option<Sender>, f64)>,
    /// The counter of OOM kills of each cgroup, and when and by how much it rose lately.
    counters: HashMap<Label, (f64, Vec<(f64, f64)>)>,
    /// The count of each XID of a GPU by its severity for the job, and when it last rose.
    xids: BTreeMap<(Gpu, u32, Health), (f64, f64)>,
    /// The last reads of tmpfs, the newest last: one before an end, and one that follows it.
    tmpfs: VecDeque<Arc<TmpfsTable>>,
    now: f64,
    /// From when on statuses and kills are remembered.
    oldest: f64,
}

impl Recent {
    /// Records what the sources reported in this tick.
    pub(super) fn record(&mut self, view: &View<'_>, facts: &Facts, now: Timestamp) {
        let is_first = self.now == 0.0;
        let now = now.monotonic().as_secs_f64();
        // An end is explained in a later tick, however long that takes.
        self.oldest = self.now.min(now - KEPT);
        self.now = now;
        self.statuses.retain(|_, (_, at, _)| *at >= self.oldest);
        self.child_signals.retain(|_, (.., at)| *at >= self.oldest);
        self.signalled.retain(|_, at| now - *at <= SIGNALLED);
        self.signalled.extend(facts.before.signalled.iter().map(|process| (*process, now)));
        let is_there = |key: &ProcessKey| {
            facts.processes.as_ref()?.get(key.pid).filter(|row| row.key == *key).map(|_| ())
        };
        // A process may take long to end after it closed its connection, as when it frees the memory of a GPU.
        self.ranks.retain(|key, (_, at)| {
            if is_there(key).is_some() {
                *at = now;
            }
            *at >= self.oldest
        });
        for rank in facts.before.ranks.iter().chain(&facts.ranks) {
            let names = [&rank.rank, &rank.run].map(Clone::clone);
            self.ranks.extend(rank.key.map(|key| (key, (names, now))));
        }
        for exited in &facts.exited {
            // Many small processes of one user do not displace the ranks of another.
            if self.statuses.len() < MOST_STATUSES
                || self.statuses.contains_key(&exited.process)
                || self.ranks.contains_key(&exited.process)
            {
                let status = ExitStatus::of_wait(exited.status);
                self.exits += 1;
                self.statuses.insert(exited.process, (status, now, self.exits));
                let row = facts.before.row(exited.process.pid).filter(|row| row.key == exited.process);
                if let (ExitStatus::Signal(signal), Some(row)) = (status, row) {
                    self.child_signals.insert(row.key, (row.parent, row.comm.clone(), signal, now));
                }
            }
        }
        // A process that is asked to end may take minutes to save, and then ends by the same signal, sent by itself.
        self.signals.retain(|(_, signal), (_, at)| {
            *at >= self.oldest || (*signal != SIGKILL && now - *at <= SIGNALLED)
        });
        for received in &facts.received_signals {
            if self.signals.len() < MOST_STATUSES || self.ranks.contains_key(&received.process) {
                let own = self.signals.entry((received.process, received.signal));
                own.or_insert_with(|| (received.sender.clone(), now));
            }
        }
        self.own_limits.retain(|_, (_, at)| *at >= self.oldest);
        self.own_limits.extend(facts.own_limits.iter().map(|(process, limits)| (*process, (*limits, now))));
        self.record_kills(facts);
        self.record_tmpfs(facts);
        let mut counters = HashMap::with_capacity(self.counters.len());
        for point in view.points(&cgroup::metrics::EVENTS) {
            let [path, event] = &*point.labels else { continue };
            if event.as_str() == "oom_kill" {
                let (value, mut rises) = self.counters.remove(path).unwrap_or((point.value, Vec::new()));
                rises.retain(|(at, _)| *at >= self.oldest);
                if point.value > value {
                    rises.push((now, point.value - value));
                }
                counters.insert(path.clone(), (point.value, rises));
            }
        }
        self.counters = counters;
        for point in view.points(&XID_ERRORS) {
            let [gpu, uuid, xid, severity] = &*point.labels else { continue };
            let Ok(xid) = xid.as_str().parse() else { continue };
            let severity = match xid {
                CONTAINED => Health::Critical,
                _ => Health::of_word(severity.as_str()),
            };
            // A series appears with the first error.
            let known = self.xids.entry(((gpu.clone(), uuid.clone()), xid, severity));
            let (value, at) = known.or_insert((if is_first { point.value } else { 0.0 }, f64::NEG_INFINITY));
            if point.value > *value {
                (*value, *at) = (point.value, now);
            }
        }
    }

    fn record_tmpfs(&mut self, facts: &Facts) {
        let Some(table) = &facts.tmpfs else { return };
        if self.tmpfs.back().is_some_and(|newest| Arc::ptr_eq(newest, table)) {
            return;
        }
        if self.tmpfs.len() >= MOST_READS {
            self.tmpfs.pop_front();
        }
        self.tmpfs.push_back(Arc::clone(table));
    }

    /// The fullest tmpfs that a process saw which was `alive`, and whose end was `seen` later.
    pub(super) fn tmpfs_of(
        &self,
        process: ProcessKey,
        workload: &WorkloadKey,
        (alive, seen): (Timestamp, Timestamp),
    ) -> Option<TmpfsState> {
        /// Bytes that programs can write in a second: page faults of many threads.
        const FASTEST: f64 = 16.0 * GIB;
        /// Used share from which there is no room for another page.
        const WHOLE: f64 = 0.999;
        let tables = || self.tmpfs.iter().rev();
        let by_process = tables().find_map(|table| Some((table, table.of_process.get(&process)?)));
        // It has started since the last read before its end, or was left out.
        let by_workload = || tables().find_map(|table| Some((table, table.of_workload.get(workload)?)));
        let (table, places) = by_process.or_else(by_workload)?;
        let (mut may_be_missed, mut is_read_after) = (false, true);
        let states = places.iter().filter_map(|place| table.file_systems.get(*place)).map(|own| {
            let mut fullest = None;
            let mut before = None;
            is_read_after &= tables().next().is_some_and(|newest| {
                newest.read_at.monotonic() >= seen.monotonic() && newest.by_device(&own.device).is_some()
            });
            for table in tables() {
                let Some(read) = table.by_device(&own.device) else { continue };
                if fullest.is_none_or(|fullest: &Tmpfs| read.used_share() > fullest.used_share()) {
                    fullest = Some(read);
                }
                if table.read_at.monotonic() <= alive.monotonic() {
                    before = Some((table.read_at, read));
                    break;
                }
            }
            may_be_missed |= before.is_none_or(|(at, read)| {
                let free = real(read.size.saturating_sub(read.used).get());
                free <= FASTEST * seen.since(at).as_secs_f64()
            });
            let own = fullest.unwrap_or(own);
            let workload = own.workload.as_ref().map(|workload| workload.name.clone()).unwrap_or_default();
            let level = Level {
                resource: Subject::tmpfs(&workload, &own.mount),
                used: real(own.used.get()),
                limit: real(own.size.get()),
            };
            (before.is_some_and(|(_, read)| read.used_share() >= WHOLE), level)
        });
        let order = |(was_full_before, level): &(bool, Level)| {
            (level.share() >= EXHAUSTED && !was_full_before, level.share())
        };
        let fullest = states.max_by(|one, other| {
            let ((new, share), (other_new, other_share)) = (order(one), order(other));
            new.cmp(&other_new).then(share.total_cmp(&other_share))
        });
        let (was_full_before, level) = fullest?;
        Some(TmpfsState { level, was_full_before, may_be_missed, is_read_after })
    }

    /// From when on statuses and kills are remembered.
    pub(super) const fn oldest(&self) -> f64 {
        self.oldest
    }

    pub(super) fn status_of(&self, process: ProcessKey) -> Option<ExitStatus> {
        self.statuses.get(&process).map(|(status, ..)| *status)
    }

    /// Whether the end of the first one was reported before that of the second one.
    pub(super) fn ended_before(&self, first: ProcessKey, second: ProcessKey) -> bool {
        let [first, second] = [first, second].map(|process| self.statuses.get(&process));
        first.zip(second).is_some_and(|((.., first), (.., second))| first < second)
    }

    /// Who sent the signal that ended it with this status: absent if that is not known, and for the kernel `Some(None)`.
    pub(super) fn sender_of(&self, process: ProcessKey, status: ExitStatus) -> Option<Option<Sender>> {
        let received = self.signals.get(&(process, status.signal()?));
        received.map(|(sender, _)| sender.clone())
    }

    /// The label of its rank and its run; absent where it reported none.
    pub(super) fn rank_of(&self, process: ProcessKey) -> Option<[Label; 2]> {
        self.ranks.get(&process).map(|(names, _)| names.clone())
    }

    /// Whether protection sent it SIGTERM or SIGKILL.
    pub(super) fn is_signalled(&self, process: ProcessKey) -> bool {
        self.signalled.contains_key(&process)
    }

    /// Its own limits, which no sample can have seen reached.
    pub(super) fn own_limits(&self, process: ProcessKey) -> OwnLimits {
        self.own_limits.get(&process).map(|(limits, _)| *limits).unwrap_or_default()
    }

    /// The last child of this process that a signal ended, if possible one for which its own status stands; and who sent that
    /// signal, as in [`Recent::sender_of`].
    pub(super) fn child_signal(
        &self,
        process: ProcessKey,
        status: Option<ExitStatus>,
    ) -> Option<(Child, Option<Option<Sender>>)> {
        let signal_of_own = status.and_then(ExitStatus::signal);
        let ended = self.child_signals.iter();
        let own = ended.filter(|(key, (parent, ..))| *parent == process.pid && key.start >= process.start);
        let (key, (_, comm, signal, _)) =
            own.max_by(|(key, (.., signal, at)), (other, (.., other_signal, other_at))| {
                let (is_it, is_other) =
                    (Some(*signal) == signal_of_own, Some(*other_signal) == signal_of_own);
                is_it.cmp(&is_other).then(at.total_cmp(other_at)).then(key.cmp(other))
            })?;
        Some(((key.pid, comm.clone(), *signal), self.sender_of(*key, ExitStatus::Signal(*signal))))
    }

    /// What the kernel logged of the process, or of a fork in its cgroup or in one above.
    pub(super) fn report_of(&self, process: ProcessKey, group: &Label) -> Option<EndEvidence> {
        self.reports.iter().rev().find_map(|(report, _)| match report {
            KernelReport::MemoryError(own) if *own == process => Some(EndEvidence::MemoryError),
            KernelReport::HugePages(own) if *own == process => Some(EndEvidence::HugePages),
            KernelReport::ForkRejected(path)
                if !group.is_empty() && within(group.as_str(), path.as_str()) =>
            {
                Some(EndEvidence::ForkRejected { cgroup: path.clone() })
            }
            _ => None,
        })
    }

    /// Whether lines of the kernel log are still to be read.
    pub(super) fn is_behind(&self) -> bool {
        self.log == KernelLog::Behind
    }

    /// Whether OOM kills of the cgroup are counted.
    pub(super) fn counts_kills_of(&self, group: &Label) -> bool {
        self.counters.contains_key(group)
    }

    /// The worst XID of one of these GPUs in the last half minute, and the newest of these.
    pub(super) fn xid_of(&self, gpus: &[Gpu]) -> Option<(Label, u32, Health)> {
        let newest =
            self.xids.iter().filter(|((gpu, ..), (_, at))| self.now - at <= XID && gpus.contains(gpu));
        let worst = newest.max_by(|one, other| one.0.2.cmp(&other.0.2).then(one.1.1.total_cmp(&other.1.1)));
        worst.map(|((gpu, xid, severity), _)| (gpu.0.clone(), *xid, *severity))
    }
}
