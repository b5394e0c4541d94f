//! Training metrics that jobs push over OTLP on loopback, by gRPC or HTTP, with Megatron-LM's names or our own.
//!
//! A separate thread receives them; a sample exposes the newest values, under the
//! workload of the process that the kernel reports for the connection, whatever
//! the message contains. A rank expires when it is silent for too long or its process ends.

mod answer;
mod caller;
mod counts;
mod figures;
mod intake;
pub mod metrics;
mod names;
mod options;
mod receiver;
mod senders;
#[cfg(test)]
mod testing;
#[cfg(test)]
mod tests;
mod weigh;

use std::collections::{BTreeMap, HashMap, HashSet};
use std::path::PathBuf;
use std::sync::Arc;

use options::Options;
use receiver::Hold;
use senders::{PushSender, Rank, SendersShared};

use crate::host::subordinate::Subordinates;
use crate::model::desc::{Desc, Metric as _};
use crate::model::facts::{Allocator, Facts};
use crate::model::fair;
use crate::model::ids::{ProcessKey, WorkloadKey};
use crate::model::label::Label;
use crate::model::point::Batch;
use crate::model::source::{Source, SourceError};
use crate::model::time::Timestamp;
use crate::model::units::{Bytes, Count, Seconds};
use crate::sources::Registration;
use crate::sources::training::metrics as shown;

/// The source of metrics that jobs push over OTLP.
pub static REGISTRATION: Registration = Registration {
    name: "otlp",
    about: "Training metrics that jobs push over OTLP to a loopback address of this host, by gRPC or HTTP: those of Megatron-LM, and memwarden's own names.",
    on_by_default: false,
    options: Options::OPTIONS,
    metrics: metrics::METRICS,
    check: |settings| Options::read(settings).check(),
    ..Registration::built_by(|settings, context| {
        let roots = &context.roots;
        Box::new(Otlp::new(Options::read(settings), roots.proc.clone(), roots.passwd.clone()))
    })
};

/// Handles one push of arbitrary bytes, for the fuzzer.
#[cfg(any(fuzzing, test))]
pub(crate) fn fuzz_push(bytes: &[u8]) {
    answer::fuzz(bytes);
}

struct Otlp {
    options: Options,
    proc: PathBuf,
    passwd: PathBuf,
    /// Started by the first sample.
    thread: Option<(Arc<SendersShared>, Option<Hold>)>,
}

impl Otlp {
    const fn new(options: Options, proc: PathBuf, passwd: PathBuf) -> Self {
        Self { options, proc, passwd, thread: None }
    }

    fn shared(&mut self) -> Result<Arc<SendersShared>, SourceError> {
        if let Some((shared, _)) = &self.thread {
            return Ok(Arc::clone(shared));
        }
        let shared =
            Arc::new(SendersShared::new(self.proc.clone(), Subordinates::new(&self.passwd), &self.options));
        let hold = receiver::start(&self.options, Arc::clone(&shared))
            .map_err(|error| SourceError::io("cannot create the thread of the OTLP receiver", &error))?;
        self.thread = Some((Arc::clone(&shared), Some(hold)));
        Ok(shared)
    }
}

impl Source for Otlp {
    fn sample(&mut self, at: Timestamp, out: &mut Batch) -> Result<(), SourceError> {
        let shared = self.shared()?;
        shared.set_members(out.facts.members.iter().map(|member| member.process));
        put_ranks(&shared, at, out);
        let (known, all) = shared.connections();
        put_peers(&metrics::CONNECTIONS, known, all.saturating_sub(known), out);
        shared.counts.put(out);
        shared.trouble().map_or(Ok(()), Err)
    }

    fn finish(&mut self) {
        self.thread = None;
    }
}

fn put_peers(metric: &'static crate::model::desc::Gauge<Count>, known: u64, unknown: u64, out: &mut Batch) {
    out.put(metric, &["workload".into()], Count(known));
    out.put(metric, &["none".into()], Count(unknown));
}

/// Puts every rank that pushes, except those that also report over the job socket.
fn put_ranks(shared: &SendersShared, at: Timestamp, out: &mut Batch) {
    let facts = std::mem::take(&mut out.facts);
    let table = facts.processes.clone();
    let is_running = |key: ProcessKey| {
        table.as_ref().is_none_or(|table| table.get(key.pid).is_some_and(|row| row.key == key))
    };
    let by_socket: HashSet<(&Label, &Label)> =
        facts.ranks.iter().map(|rank| (&rank.workload, &rank.rank)).collect();
    let socket_keys: HashSet<ProcessKey> = facts.ranks.iter().filter_map(|rank| rank.key).collect();
    let ranks = shared.ranks(at, is_running);
    let mut sorted: Vec<_> = ranks.iter().collect();
    // The process that first had a rank keeps it.
    sorted.sort_by_key(|((sender, number), rank)| (rank.since.monotonic(), order(*sender), *number));
    let (mut known, mut unknown, mut hidden) = (0, 0, 0);
    let mut taken: HashMap<(Label, u64), ()> = HashMap::new();
    let mut shown = Vec::with_capacity(sorted.len());
    let mut pushed_allocators = Vec::new();
    for ((sender, number), rank) in sorted {
        let identity = identity(*sender, &facts);
        match sender {
            PushSender::Process(_) => known += 1,
            PushSender::User(_) | PushSender::Unknown => unknown += 1,
        }
        let first = taken.insert((identity.workload.clone(), *number), ()).is_none();
        let label = if first { Label::from(*number) } else { format!("{number}@{}", identity.name).into() };
        let same_process = matches!(sender, PushSender::Process(key) if socket_keys.contains(key));
        if same_process || by_socket.contains(&(&identity.workload, &label)) {
            hidden += 1;
            continue;
        }
        if let Some(key) = &identity.key {
            pushed_allocators.extend(allocators(rank, key));
        }
        shown.push((rank, [identity.workload, label], identity.gpu));
    }
    // If a metric exceeds its maximum number of series, the first ranks of each user are kept.
    for place in fair::turns(shown.iter().map(|(rank, ..)| rank.user)) {
        let (rank, labels, gpu) = &shown[place];
        put(rank, labels, gpu, at, out);
    }
    drop(shown);
    drop(ranks);
    put_peers(&metrics::RANKS, known, unknown, out);
    out.put(&metrics::HIDDEN, &[], Count(hidden));
    out.facts = facts;
    out.facts.allocators.append(&mut pushed_allocators);
    out.facts.shortages.extend(shared.shortages(at));
}

fn put(rank: &Rank, labels: &[Label; 2], gpu: &Label, at: Timestamp, out: &mut Batch) {
    let [workload, name] = labels;
    out.put(&shown::MESSAGE_AGE, labels, at.since(rank.last_push).into());
    for (desc, extra, value) in rank.figures.numbers() {
        match desc.labels.len() {
            2 => out.add(desc, labels, value),
            3 => out.add(desc, &[workload.clone(), name.clone(), extra.clone()], value),
            _ => out.add(desc, &[workload.clone(), name.clone(), extra.clone(), gpu.clone()], value),
        }
    }
    if let Some(durations) = rank.figures.durations() {
        out.put_histogram(&shown::STEP_DURATION, labels, durations);
    }
    out.put_some(&shown::STEP_LAST, labels, rank.figures.last_step().and_then(Seconds::new));
}

/// The allocators that a rank pushed. Pushed values are not confirmed by the process every second, so no process is
/// named for them.
fn allocators(rank: &Rank, workload: &WorkloadKey) -> impl Iterator<Item = Allocator> {
    let of = |desc: &'static Desc| {
        let pushed = rank.figures.numbers().filter(move |(known, ..)| std::ptr::eq(*known, desc));
        pushed.map(|(_, device, value)| (device, Bytes::of(value)))
    };
    of(shown::ALLOCATED.desc()).map(move |(device, allocated)| {
        let same = |desc| of(desc).find(|(other, _)| *other == device).map(|(_, bytes)| bytes);
        let (reserved, free) = (same(shown::RESERVED.desc()), same(shown::DEVICE_FREE.desc()));
        Allocator { process: None, workload: Some(workload.clone()), allocated, reserved, free, age: None }
    })
}

/// The identity of a peer in this tick.
struct RankIdentity {
    /// The name of its workload; empty if it belongs to none.
    workload: Label,
    key: Option<WorkloadKey>,
    /// Distinguishes it from others with the same rank.
    name: String,
    /// The index of the GPU on which the driver lists it; empty for none or several.
    gpu: Label,
}

fn identity(sender: PushSender, facts: &Facts) -> RankIdentity {
    let PushSender::Process(key) = sender else {
        let name = match sender {
            PushSender::User(uid) => format!("u{uid}"),
            _ => "unknown".to_owned(),
        };
        return RankIdentity { workload: Label::default(), key: None, name, gpu: Label::default() };
    };
    let known = facts.member(key);
    let workload = known.map(|workload| workload.name.clone()).unwrap_or_default();
    let on = facts.gpu_processes.iter().filter(|process| process.pid == key.pid);
    let gpus: BTreeMap<&Label, ()> = on.map(|process| (&process.gpu, ())).collect();
    let gpu = match gpus.into_keys().collect::<Vec<_>>()[..] {
        [gpu] => gpu.clone(),
        _ => Label::default(),
    };
    let known = known.map(|workload| workload.key.clone());
    RankIdentity { workload, key: known, name: key.pid.to_string(), gpu }
}

/// Sorts peers in an order that does not change between ticks.
const fn order(sender: PushSender) -> (u8, u32, u64) {
    match sender {
        PushSender::Process(key) => (0, key.pid, key.start),
        PushSender::User(uid) => (1, uid, 0),
        PushSender::Unknown => (2, 0, 0),
    }
}
