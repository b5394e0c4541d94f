//! What training jobs tell over the job socket (`clients/PROTOCOL.md`).
//!
//! A thread hears them; a sample shows what it heard, under the workload and
//! the GPUs that the kernel and the driver give for the process. The end of a
//! stream, or of its process, ends its series.

pub mod client;
mod compute;
pub mod counts;
mod energy;
mod expose;
mod face;
pub mod lines;
pub mod listener;
pub mod metrics;
mod options;
mod queue;
pub mod rank;
pub mod rate;
mod ring;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, HashMap};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

pub use options::Rules;

use serde_json::json;
use serde_json::value::to_raw_value;

use client::{Client, Shared, State};
use energy::{Effort, Energy};
use face::{Face, Faces};
use listener::Hold;
use rank::Rank;
use ring::Ring;

use crate::formats::messages::Hello;
use crate::host::process;
use crate::host::subordinate::Subordinates;
use crate::model::checkpoint::Checkpoints;
use crate::model::facts::{Facts, ToldRank};
use crate::model::fair::{self, Answer, Shares};
use crate::model::label::Label;
use crate::model::lock::lock;
use crate::model::point::Batch;
use crate::model::shortage::Shortage;
use crate::model::source::{Failure, Source, SourceError};
use crate::model::time::Timestamp;
use crate::model::timeline::{Entry, Kind};
use crate::model::units::{Bytes, Count};
use crate::sources::Registration;

/// What training jobs tell.
pub static REGISTRATION: Registration = Registration {
    name: "training",
    about: "Steps, tokens, phases, allocator statistics and checkpoints that training jobs report over the job socket.",
    on_by_default: true,
    options: options::OPTIONS,
    metrics: metrics::METRICS,
    needs: &[],
    check: options::check,
    build: |settings, context| {
        let rules = Rules::read(settings);
        let (proc, passwd) = (context.roots.proc.clone(), context.roots.passwd.clone());
        Box::new(Training::new(rules, proc, passwd, Arc::clone(&context.checkpoints)))
    },
};

/// How long the count of a workload's failures is kept after its last rank ended.
const REMEMBERED: Duration = Duration::from_secs(3_600);
/// The workloads whose count is kept.
const MOST_REMEMBERED: usize = 1_000;

struct Training {
    rules: Rules,
    proc: PathBuf,
    passwd: PathBuf,
    checkpoints: Arc<Checkpoints>,
    /// Whether it was said that there is room for fewer connections than are asked for.
    said: bool,
    /// Started by the first sample.
    thread: Option<(Arc<Shared>, Option<Hold>)>,
    ring: Ring,
    /// Who each connection was when it was last seen, and the failures counted of it.
    known: HashMap<u64, (Face, u64)>,
    energy: Energy,
    /// Failures of each workload, and when one of its ranks was last seen.
    ooms: BTreeMap<Label, Remembered>,
}

/// The failures of one workload.
struct Remembered {
    ooms: u64,
    /// When one of its ranks was last seen.
    seen: Timestamp,
    user: u32,
}

impl Training {
    fn new(rules: Rules, proc: PathBuf, passwd: PathBuf, checkpoints: Arc<Checkpoints>) -> Self {
        let ring = Ring::new(rules.timeline);
        Self {
            rules,
            proc,
            passwd,
            checkpoints,
            said: false,
            thread: None,
            ring,
            known: HashMap::new(),
            energy: Energy::default(),
            ooms: BTreeMap::new(),
        }
    }

    fn shared(&mut self) -> Result<Arc<Shared>, SourceError> {
        if let Some((shared, hold)) = &self.thread {
            if !hold.as_ref().is_some_and(Hold::has_ended) {
                return Ok(Arc::clone(shared));
            }
            // Connections are counted anew, and those there were have ended with it.
            (self.thread, self.known) = (None, HashMap::new());
            let why = "the thread of the job socket ended and is started again";
            return Err(SourceError::failed(Failure::Lost, why));
        }
        let Some(path) = self.rules.socket.clone() else {
            return Err(SourceError::unavailable("sources.training.socket is empty"));
        };
        let places = self.places();
        let shared = Arc::new(Shared::new(self.proc.clone(), Subordinates::new(&self.passwd), places));
        let hold =
            listener::start(path, self.rules.clone(), Arc::clone(&shared), Arc::clone(&self.checkpoints));
        let hold = hold.map_err(|error| {
            SourceError::failed(Failure::of(&error), format!("no thread for the job socket: {error}"))
        })?;
        self.thread = Some((Arc::clone(&shared), Some(hold)));
        Ok(shared)
    }

    /// The connections there is room for: a quarter of the descriptors that the daemon may have open, at most.
    fn places(&mut self) -> usize {
        let allowed = (process::descriptor_limit() / 4).max(1);
        if allowed < self.rules.clients && !std::mem::replace(&mut self.said, true) {
            let wanted = self.rules.clients;
            tracing::warn!(
                wanted,
                allowed,
                "The limit on open files leaves room for fewer training processes."
            );
        }
        self.rules.clients.min(allowed)
    }

    /// Takes what happened to one client to the timeline, and what it told to `out` while it lives.
    fn see(
        &mut self,
        client: &Client,
        ended: bool,
        at: Timestamp,
        faces: &mut Faces,
        out: &mut Batch,
    ) -> Option<Face> {
        let mut rank = lock(&client.rank);
        let hello = rank.hello.clone()?;
        if let Some(key) = client.key.filter(|key| !ended && face::is_new(*key, &out.facts)) {
            // Nothing is told under a name that the next sample takes away.
            out.facts.ranks.push(ToldRank {
                key: Some(key),
                workload: Label::default(),
                rank: Label::default(),
            });
            return None;
        }
        let known = self.known.remove(&client.number);
        let counted = known.as_ref().map_or(0, |(_, counted)| *counted);
        let shown = known.is_some();
        let living = if ended { None } else { faces.of(client, &hello, &out.facts) };
        let face = match (&living, known) {
            (Some(face), _) => face.clone(),
            (None, Some((face, _))) => face,
            // It came and went between two samples, so that nobody else can have had its rank.
            (None, None) => {
                let rank = Label::from(hello.rank.unwrap_or(0));
                Face { workload: Label::default(), key: None, rank, gpus: Vec::new() }
            }
        };
        self.remember(&face.workload, client.payer, rank.ooms.saturating_sub(counted), at);
        let entry = |told: rank::Told| Entry {
            sequence: 0,
            unix_seconds: told.unix_seconds,
            kind: told.kind,
            workload: face.workload.clone(),
            rank: face.rank.clone(),
            pid: client.pid.unwrap_or(0),
            name: told.name,
            step: told.step,
            detail: told.detail,
        };
        for told in rank.take_told() {
            self.ring.push(client.payer, entry(told));
        }
        if ended {
            let unix_seconds = at.unix().as_secs_f64();
            let name = if rank.bye.is_some() { "bye" } else { "end of stream" };
            let why = rank.bye.as_ref().filter(|why| !why.is_empty());
            let told = rank::Told {
                unix_seconds,
                kind: Kind::End,
                name: name.into(),
                step: rank.step,
                detail: why.and_then(|why| to_raw_value(&json!({ "reason": why })).ok()),
            };
            self.ring.push(client.payer, entry(told));
            // What it said since the sample before is told once, where nobody has its names now.
            if shown && faces.claim(&face) {
                expose::put(&rank, &hello, &face, client.pid, at, out);
                // Nobody answers for these any more.
                expose::tell_allocators(&rank, &face, None, at, out);
            }
            return None;
        }
        if living.is_some() {
            let Face { workload, rank, .. } = face.clone();
            out.facts.ranks.push(ToldRank { key: client.key, workload, rank });
        }
        self.known.insert(client.number, (face, rank.ooms));
        living
    }

    /// Puts what a client told that lives.
    fn show(
        &self,
        client: &Client,
        face: &Face,
        at: Timestamp,
        efforts: &mut BTreeMap<Label, Effort>,
        out: &mut Batch,
    ) {
        let rank = lock(&client.rank);
        let Some(hello) = &rank.hello else { return };
        expose::put(&rank, hello, face, client.pid, at, out);
        expose::tell_allocators(&rank, face, client.key, at, out);
        out.put_some(&metrics::PROCESS_RSS, &face.labels(), resident(client, &out.facts));
        compute::put(&rank, hello, face, at, &self.rules.peaks, out);
        strive(efforts, &rank, hello, face, client.pid, at);
    }

    fn remember(&mut self, workload: &Label, user: u32, more: u64, at: Timestamp) {
        if self.ooms.len() >= MOST_REMEMBERED && !self.ooms.contains_key(workload) {
            let mut shares = Shares::new(self.ooms.len());
            self.ooms.values().for_each(|known| shares.take(known.user));
            let Answer::TakeFrom(other) = shares.ask(user) else { return };
            let own = self.ooms.iter().filter(|(_, known)| known.user == other);
            let oldest = own.min_by_key(|(_, known)| known.seen.monotonic()).map(|(label, _)| label.clone());
            oldest.map(|label| self.ooms.remove(&label));
        }
        let known = self.ooms.entry(workload.clone()).or_insert(Remembered { ooms: 0, seen: at, user });
        known.ooms = known.ooms.saturating_add(more);
        known.seen = at;
    }
}

impl Source for Training {
    fn sample(&mut self, at: Timestamp, out: &mut Batch) -> Result<(), SourceError> {
        let shared = self.shared()?;
        let mut clients = shared.clients();
        // Who first said that it has a rank keeps it; who has ended has it no more.
        clients.sort_by_cached_key(|(client, ended)| {
            (*ended, lock(&client.rank).since.map(Timestamp::monotonic), client.number)
        });
        let connected = clients.iter().filter(|(_, ended)| !ended).count() as u64;
        let mut faces = Faces::default();
        let mut efforts = BTreeMap::new();
        let mut living = Vec::with_capacity(clients.len());
        for (client, ended) in &clients {
            let face = self.see(client, *ended, at, &mut faces, out);
            living.extend(face.map(|face| (client, face)));
        }
        let mut cut = BTreeMap::<u32, u64>::new();
        // Where a metric has more series than it may have, each user's first ranks have theirs.
        for place in fair::turns(living.iter().map(|(client, _)| client.payer)) {
            let (client, face) = &living[place];
            let before = out.over_budget();
            self.show(client, face, at, &mut efforts, out);
            *cut.entry(client.payer).or_default() += out.over_budget() - before;
        }
        let cut = cut.into_iter().filter(|(_, left_out)| *left_out > 0);
        let series = metrics::MOST_SERIES as u64;
        out.facts.shortages.extend(cut.map(|(user, left_out)| Shortage {
            limit: "training_series",
            user: Some(user),
            left_out,
            most: series,
        }));
        out.facts.shortages.extend(shared.shortages(at));
        self.known.retain(|number, _| clients.iter().any(|(client, _)| client.number == *number));
        self.ooms.retain(|_, known| at.since(known.seen) < REMEMBERED);
        for (workload, ranks) in &faces.ranks {
            out.put(&metrics::RANKS, std::slice::from_ref(workload), Count(*ranks));
        }
        for (workload, conflicts) in &faces.conflicts {
            out.put(&metrics::CONFLICTS, std::slice::from_ref(workload), Count(*conflicts));
        }
        for (workload, known) in &self.ooms {
            out.put(&metrics::OOMS, std::slice::from_ref(workload), Count(known.ooms));
        }
        self.energy.put(&efforts, at, out);
        out.facts.timeline = self.ring.timeline();
        out.put(&metrics::CLIENTS, &[], Count(connected));
        put_counts(&shared, out);
        match shared.state() {
            State::Opening | State::Listening => Ok(()),
            State::Failed(kind, why) => Err(SourceError::failed(kind, why)),
        }
    }

    fn finish(&mut self) {
        self.thread = None;
    }
}

/// What the process list says of the client's process, which it is known to be the same as.
fn resident(client: &Client, facts: &Facts) -> Option<Bytes> {
    let (table, key) = facts.processes.as_ref().zip(client.key)?;
    table.get(key.pid).filter(|row| row.key == key).map(|row| row.rss)
}

/// Adds a rank to what its workload's ranks do together.
fn strive(
    efforts: &mut BTreeMap<Label, Effort>,
    rank: &Rank,
    hello: &Hello,
    face: &Face,
    pid: Option<u32>,
    at: Timestamp,
) {
    // The ranks of one replica all tell its tokens.
    #[expect(clippy::cast_precision_loss, reason = "numbers of GPUs")]
    let share = compute::replicas(hello).map(|replicas| replicas as f64 / hello.world.unwrap_or(1) as f64);
    let tokens = rank.token_rate.per_second(at).zip(share).map(|(tokens, share)| tokens * share);
    let first = !efforts.contains_key(&face.workload);
    let effort = efforts.entry(face.workload.clone()).or_default();
    effort.add(first, tokens);
    effort.elsewhere |= face.gpus.is_empty();
    effort.gpus.extend(face.gpus.iter().map(|(_, uuid)| uuid.clone()));
    effort.pids.extend(pid);
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
