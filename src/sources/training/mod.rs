//! Reports of training jobs over the job socket (`clients/PROTOCOL.md`).
//!
//! A thread receives them; a sample exposes the newest state, with the workload and the GPUs that the kernel and
//! the driver give for the process. The end of a connection, or of its process, ends its series. The identity of a
//! job is never taken from its messages: pid and user are the kernel's. Messages are read at most at the permitted
//! rate, and incomplete lines are kept only within the user's share. Only the verdicts of a job's predictions are written to
//! the socket, to clients that state that they read them, and without waiting.

mod answers;
pub mod client;
mod commands;
mod compute;
pub mod counts;
mod device_free;
mod energy;
mod expose;
pub mod listener;
pub mod metrics;
mod names;
mod options;
mod predictions;
mod queue;
pub mod rank;
mod rank_identity;
pub mod rate;
mod ring;
pub mod simulated;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, HashMap};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

pub use options::Options;

use client::{Client, ClientState, Shared};
use commands::Commands;
use device_free::DeviceFree;
use energy::{Effort, Energy};
use listener::Hold;
use names::Names;
use rank::Rank;
use rank_identity::{RankIdentities, RankIdentity};
use ring::Ring;

use crate::formats::messages::Hello;
use crate::host::process;
use crate::host::subordinate::Subordinates;
use crate::model::checkpoint::Checkpoints;
use crate::model::facts::ReportedRank;
use crate::model::fair::{self, Room, Table};
use crate::model::label::Label;
use crate::model::lock::lock;
use crate::model::point::Batch;
use crate::model::shortage::Shortage;
use crate::model::source::{Failure, Source, SourceError};
use crate::model::time::Timestamp;
use crate::model::timeline::Entry;
use crate::model::units::{Bytes, Count};
use crate::past_runs::PastRuns;
use crate::sources::Registration;

/// The source of what training jobs report.
pub static REGISTRATION: Registration = Registration {
    name: "training",
    about: "Steps, tokens, phases, allocator statistics and checkpoints that training jobs report over the job socket.",
    options: Options::OPTIONS,
    metrics: metrics::METRICS,
    ..Registration::built_by(|settings, context| {
        let options = Options::read(settings);
        let (proc, passwd) = (context.roots.proc.clone(), context.roots.passwd.clone());
        let past_runs = Arc::clone(&context.past_runs);
        Box::new(Training::new(options, proc, passwd, Arc::clone(&context.checkpoints), past_runs))
    })
};

/// How long the OOM count of a workload is kept after its last rank ended.
const REMEMBERED: Duration = Duration::from_secs(3_600);
/// Most workloads whose OOM count is kept.
const MOST_REMEMBERED: usize = 1_000;

#[derive(Debug)]
struct Training {
    options: Options,
    proc: PathBuf,
    passwd: PathBuf,
    checkpoints: Arc<Checkpoints>,
    /// Whether the lower limit of connections was logged.
    limit_logged: bool,
    /// Started by the first sample.
    thread: Option<(Arc<Shared>, Option<Hold>)>,
    ring: Ring,
    /// Identity of each connection when it was last seen, and how many of its OOMs are counted.
    known: HashMap<u64, (RankIdentity, u64)>,
    device_free: DeviceFree,
    names: Names,
    energy: Energy,
    commands: Commands,
    /// OOM errors of each workload.
    ooms: Table<u32, Label, Remembered>,
}

/// The OOM errors of one workload.
#[derive(Debug, PartialEq, Eq)]
struct Remembered {
    ooms: u64,
    /// When one of its ranks was last connected.
    last_connected: Timestamp,
}

impl Training {
    fn new(
        options: Options,
        proc: PathBuf,
        passwd: PathBuf,
        checkpoints: Arc<Checkpoints>,
        past_runs: Arc<PastRuns>,
    ) -> Self {
        let ring = Ring::new(options.timeline);
        Self {
            options,
            commands: Commands::new(past_runs),
            proc,
            passwd,
            checkpoints,
            limit_logged: false,
            thread: None,
            ring,
            known: HashMap::new(),
            device_free: DeviceFree::default(),
            names: Names::default(),
            energy: Energy::default(),
            ooms: Table::new(MOST_REMEMBERED),
        }
    }

    fn shared(&mut self) -> Result<Arc<Shared>, SourceError> {
        if let Some((shared, hold)) = &self.thread {
            if !hold.as_ref().is_some_and(Hold::has_ended) {
                return Ok(Arc::clone(shared));
            }
            // Connections are numbered from the start again, and existing ones ended with the thread.
            (self.thread, self.known) = (None, HashMap::new());
            let why = "the thread of the job socket ended; it is restarted";
            return Err(SourceError::failed(Failure::Lost, why));
        }
        let Some(path) = self.options.socket.clone() else {
            return Err(SourceError::unavailable("sources.training.socket is empty"));
        };
        let places = self.places();
        let shared = Arc::new(Shared::new(self.proc.clone(), Subordinates::new(&self.passwd), places));
        let hold =
            listener::start(path, self.options.clone(), Arc::clone(&shared), Arc::clone(&self.checkpoints));
        let hold =
            hold.map_err(|error| SourceError::io("cannot create the thread of the job socket", &error))?;
        self.thread = Some((Arc::clone(&shared), Some(hold)));
        Ok(shared)
    }

    /// Maximum number of connections: the configured one, and at most a quarter of the daemon's limit on open files.
    fn places(&mut self) -> usize {
        let allowed = (process::descriptor_limit() / 4).max(1);
        if allowed < self.options.max_clients && !std::mem::replace(&mut self.limit_logged, true) {
            let wanted = self.options.max_clients;
            tracing::warn!(
                wanted,
                allowed,
                "The limit on open files allows fewer training processes to connect than sources.training.max_clients."
            );
        }
        self.options.max_clients.min(allowed)
    }

    /// Adds the events of one client to the timeline and returns its identity while it is connected.
    fn see(
        &mut self,
        client: &Client,
        ended: bool,
        at: Timestamp,
        identities: &mut RankIdentities,
        out: &mut Batch,
    ) -> Option<RankIdentity> {
        let mut rank = lock(&client.rank);
        let hello = rank.hello.clone()?;
        if let Some(key) = client.key.filter(|key| !ended && rank_identity::is_new(*key, &out.facts)) {
            // Nothing is exposed under an identity that the next sample would change.
            out.facts.ranks.push(ReportedRank {
                key: Some(key),
                workload: Label::default(),
                rank: Label::default(),
                run: Label::default(),
                cannot_save: None,
            });
            return None;
        }
        let known = self.known.remove(&client.number);
        let counted = known.as_ref().map_or(0, |(_, counted)| *counted);
        let shown = known.is_some();
        let current = if ended { None } else { identities.of(client, &hello, &out.facts) };
        let identity = match (&current, known) {
            (Some(identity), _) => identity.clone(),
            (None, Some((identity, _))) => identity,
            // It connected and ended between two samples, so that no other process can have had its rank.
            (None, None) => RankIdentity::of_ended(client, &hello, &out.facts),
        };
        if ended && !shown && client.key.is_some() {
            // How its process ended is explained by what it said.
            let RankIdentity { workload, rank, run, .. } = identity.clone();
            out.facts.ranks.push(ReportedRank { key: client.key, workload, rank, run, cannot_save: None });
        }
        self.remember(&identity.workload, client.payer, rank.ooms.saturating_sub(counted), at);
        let mut events = rank.take_events();
        events.extend(ended.then(|| rank.end(at.unix().as_secs_f64())));
        for event in events {
            let RankIdentity { workload, rank, .. } = identity.clone();
            let (user, pid) = (client.uid, client.pid.unwrap_or(0));
            let entry = Entry { user, workload, rank, pid, ..event };
            self.ring.push(client.payer, entry);
        }
        if ended {
            // What it reported after the previous sample is exposed once, unless another process has its labels now.
            if shown && identities.reserve(&identity) {
                let share = &mut self.names.of(client.payer, !identity.gpus.is_empty(), at);
                expose::put(&rank, &hello, &identity, client.pid, at, share, out);
                // No process has these allocators any more.
                expose::report_allocators(&rank, &identity, None, at, out);
            }
            return None;
        }
        if current.is_some() {
            let RankIdentity { workload, rank, run, .. } = identity.clone();
            let cannot_save = (hello.saves == Some(false))
                .then(|| hello.saves_reason.as_deref().map(Label::printable).unwrap_or_default());
            out.facts.ranks.push(ReportedRank { key: client.key, workload, rank, run, cannot_save });
        }
        if rank.largest_batch.is_some_and(|batch| batch.explains_growth(at))
            || rank.first_pass.is_some_and(|pass| pass.explains_growth(at))
        {
            out.facts.growing_data.insert(identity.workload.clone());
        }
        self.known.insert(client.number, (identity, rank.ooms));
        current
    }

    /// Puts the values that a connected client has reported.
    fn show(
        &mut self,
        client: &Client,
        identity: &RankIdentity,
        at: Timestamp,
        past: Option<&String>,
        efforts: &mut BTreeMap<Label, Effort>,
        out: &mut Batch,
    ) {
        let rank = lock(&client.rank);
        let Some(hello) = &rank.hello else { return };
        let free = self.device_free.read(client.number, client.pid, (&rank, hello, identity), &out.facts);
        let identity = &RankIdentity { free, ..identity.clone() };
        let share = &mut self.names.of(client.payer, !identity.gpus.is_empty(), at);
        expose::put(&rank, hello, identity, client.pid, at, share, out);
        let has_series = share.has_rank(identity);
        expose::report_allocators(&rank, identity, client.key, at, out);
        let memory_age = |device: u16| rank.memory_at.get(&device).map(|reported| at.since(*reported));
        rank.predictions.report(hello, identity, client.key, past, memory_age, out);
        if !has_series {
            return;
        }
        let resident = client.key.and_then(|key| Some(out.facts.row(key)?.rss));
        out.put_some(&metrics::PROCESS_RSS, &identity.labels(), resident);
        compute::put(&rank, hello, identity, at, &self.options.peak_flops.0, out);
        strive(efforts, &rank, hello, identity, client.pid, at);
    }

    fn remember(&mut self, workload: &Label, user: u32, more: u64, at: Timestamp) {
        if !self.ooms.contains_key(workload) {
            let oldest = |_: &Label, known: &Remembered| known.last_connected.monotonic();
            if self.ooms.make_room(user, oldest) == Room::Refused {
                return;
            }
            self.ooms.insert(user, workload.clone(), Remembered { ooms: 0, last_connected: at });
        }
        let Some(known) = self.ooms.get_mut(workload) else { return };
        known.ooms = known.ooms.saturating_add(more);
        known.last_connected = at;
    }
}

impl Source for Training {
    fn sample(&mut self, at: Timestamp, out: &mut Batch) -> Result<(), SourceError> {
        let shared = self.shared()?;
        let mut clients = shared.clients();
        // The process that first reported a rank keeps it; ended connections come last.
        clients.sort_by_cached_key(|(client, ended)| {
            (*ended, lock(&client.rank).since.map(Timestamp::monotonic), client.number)
        });
        let connected = clients.iter().filter(|(_, ended)| !ended).count() as u64;
        let mut identities = RankIdentities::default();
        let mut efforts = BTreeMap::new();
        let mut current = Vec::with_capacity(clients.len());
        let mut left = Vec::new();
        for (client, ended) in &clients {
            let before = self.known.get(&client.number).map(|(identity, _)| identity.clone());
            // One that ended before it had an identity is a run too.
            left.extend(ended.then(|| (client, before.unwrap_or_default())));
            let identity = self.see(client, *ended, at, &mut identities, out);
            current.extend(identity.map(|identity| (client, identity)));
        }
        let past = self.commands.turn(&current, &left, &out.facts, at);
        let mut cut = BTreeMap::<u32, u64>::new();
        self.device_free.begin();
        self.names.begin(at);
        // If a metric exceeds its maximum number of series, the first ranks of each user are kept.
        for place in fair::turns(current.iter().map(|(client, _)| client.payer)) {
            let (client, identity) = &current[place];
            let before = out.over_budget();
            let past = client.key.and_then(|key| past.get(&key));
            past.into_iter().for_each(|past| client.tell_past(past));
            self.show(client, identity, at, past, &mut efforts, out);
            *cut.entry(client.payer).or_default() += out.over_budget() - before;
        }
        for answer in std::mem::take(&mut out.facts.answers) {
            // A process with several connections gets it on each.
            let own = clients.iter().filter(|(client, ended)| !ended && client.key == Some(answer.process));
            own.for_each(|(client, _)| client.answer(&answer));
        }
        put_unconnected(&clients, &mut identities, &mut self.names, at, out);
        out.facts.shortages.extend(self.names.shortages());
        cut.retain(|_, left_out| *left_out > 0);
        out.facts.shortages.extend(Shortage::of_users("training_series", metrics::MOST_SERIES, &cut));
        out.facts.shortages.extend(shared.shortages(at));
        self.known.retain(|number, _| clients.iter().any(|(client, _)| client.number == *number));
        self.ooms.retain(|_, known| at.since(known.last_connected) < REMEMBERED);
        for (workload, ranks) in &identities.ranks {
            out.put(&metrics::RANKS, std::slice::from_ref(workload), Count(*ranks));
        }
        for (workload, world) in &identities.worlds {
            out.put(&metrics::WORLD, std::slice::from_ref(workload), Count(*world));
        }
        for (workload, conflicts) in &identities.conflicts {
            out.put(&metrics::CONFLICTS, std::slice::from_ref(workload), Count(*conflicts));
        }
        for (workload, known) in self.ooms.iter() {
            out.put(&metrics::OOMS, std::slice::from_ref(workload), Count(known.ooms));
        }
        self.energy.put(&efforts, at, out);
        out.facts.timeline = self.ring.timeline();
        out.put(&metrics::CLIENTS, &[], Count(connected));
        put_counts(&shared, out);
        match shared.state() {
            ClientState::Opening | ClientState::Listening => Ok(()),
            ClientState::Failed(error) => Err(error),
        }
    }

    fn finish(&mut self) {
        self.thread = None;
    }
}

/// Adds a rank to the totals of its workload.
fn strive(
    efforts: &mut BTreeMap<Label, Effort>,
    rank: &Rank,
    hello: &Hello,
    identity: &RankIdentity,
    pid: Option<u32>,
    at: Timestamp,
) {
    // All ranks of one replica report its tokens.
    #[expect(clippy::cast_precision_loss, reason = "numbers of GPUs")]
    let share = compute::replicas(hello).map(|replicas| replicas as f64 / hello.world.unwrap_or(1) as f64);
    let tokens = rank.token_rate.per_second(at).zip(share).map(|(tokens, share)| tokens * share);
    let first = !efforts.contains_key(&identity.workload);
    let effort = efforts.entry(identity.workload.clone()).or_default();
    effort.add(first, tokens);
    effort.elsewhere |= identity.gpus.is_empty();
    effort.gpus.extend(identity.gpus.iter().map(|(_, uuid)| uuid.clone()));
    effort.pids.extend(pid);
}

/// Exposes the ranks that launchers have started and that are not connected.
fn put_unconnected(
    clients: &[(Arc<Client>, bool)],
    identities: &mut RankIdentities,
    names: &mut Names,
    at: Timestamp,
    out: &mut Batch,
) {
    let ranks = std::mem::take(&mut out.facts.environment_ranks);
    // If the metric exceeds its maximum number of series, the first ranks of each user are kept.
    for place in fair::turns(ranks.iter().map(|rank| rank.workload.user)) {
        let rank = &ranks[place];
        if clients.iter().any(|(client, ended)| !ended && client.key == Some(rank.process)) {
            continue;
        }
        if let Some(identity) = identities.of_unconnected(rank, &out.facts) {
            let user = out.facts.subordinates.owner(rank.workload.user);
            let share = &mut names.of(user, !identity.gpus.is_empty(), at);
            expose::put_unconnected(rank, &identity, share, out);
        }
    }
    out.facts.environment_ranks = ranks;
}

fn put_counts(shared: &Shared, out: &mut Batch) {
    let counts = &shared.counts;
    for (kind, count) in counts.messages() {
        out.put(&metrics::MESSAGES, &[kind.into()], Count(count));
    }
    for (kind, count) in counts.wrongs() {
        out.put(&metrics::ERRORS, &[kind.label().into()], Count(count));
    }
    for (why, count) in counts.refusals() {
        out.put(&metrics::REFUSED, &[why.label().into()], Count(count));
    }
    out.put(&metrics::RECEIVED, &[], Bytes::new(counts.bytes.load(Ordering::Relaxed)));
    out.put(&metrics::PAUSED, &[], Count(counts.paused.load(Ordering::Relaxed)));
    out.put(&metrics::UNPROVEN, &[], Count(counts.unproven.load(Ordering::Relaxed)));
}
