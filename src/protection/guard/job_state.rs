//! What the guard knows of the job in one seat.

use std::sync::Arc;
use std::time::Duration;

use super::input::{JobInput, Known};
use super::journal::Moved;
use crate::model::checkpoint::{self, Checkpoints};
use crate::model::time::Timestamp;
use crate::model::units::Bytes;
use crate::protection::enforce::levels::{GroupMeter, Left};
use crate::protection::options::target::Victims;
use crate::protection::plan::victim::Roster;
use crate::protection::policy::{
    Ack, AckKind, Aged, Flow, Forecast, Members, Observed, Reading, Resource, State,
};
use crate::protection::status::Unfit;
use crate::protection::words::step::{Group, Ticket};

/// Steps of one job that can go on at once.
const PENDING: usize = 32;

/// How soon it is tried again to wait for victims, where that failed.
const AGAIN: Duration = Duration::from_secs(1);

/// The label of the step that waits for the end of victims.
pub(super) const WAITS: &str = "await_end";

/// A step that goes on.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pending {
    pub(super) ticket: Ticket,
    pub(super) step: &'static str,
    /// Whether another wait has taken its place: it tells of those who were to end before.
    pub(super) replaced: bool,
}

/// One job.
#[derive(Debug)]
pub(super) struct JobState {
    pub(super) serial: u64,
    pub(super) target: usize,
    /// Whose job it is.
    pub(super) user: Option<u32>,
    pub(super) roster: Arc<Roster>,
    /// Whether there are bounds for it: without them nobody is touched.
    pub(super) bounded: bool,
    meter: Option<GroupMeter>,
    flow: Flow,
    /// The newest reading of the group; none where it has no limit.
    group: Option<(Timestamp, Reading)>,
    unlimited: bool,
    gpu: Known,
    allocator: Known,
    members: Option<Members>,
    forecast: Option<Option<Forecast>>,
    leak: Option<bool>,
    alert: Option<Timestamp>,
    pub(super) unfit: Option<Unfit>,
    told: Timestamp,
    pub(super) ack: Option<Ack>,
    /// Whom this incident ends, once somebody was asked to.
    pub(super) struck: Option<Arc<Roster>>,
    /// The group that was stopped and did not go on yet.
    pub(super) paused: Option<Group>,
    /// When it was stopped; nothing where it goes on, or was tried to.
    pub(super) stopped: Option<Timestamp>,
    pub(super) alive: Option<u32>,
    /// When it was begun last to wait for their end, or tried.
    pub(super) waited: Option<Timestamp>,
    pub(super) victims: Bytes,
    /// How many caught the checkpoint signal, once it was sent.
    pub(super) catching: Option<u32>,
    pub(super) killed: Option<Timestamp>,
    pub(super) pending: Vec<Pending>,
    /// Its last move, which later steps belong to.
    pub(super) moved: Option<Moved>,
}

impl JobState {
    pub(super) fn new(facts: &JobInput, at: Timestamp) -> Self {
        Self {
            serial: facts.serial,
            target: facts.target,
            user: facts.user,
            roster: Arc::clone(&facts.roster),
            bounded: false,
            meter: None,
            flow: Flow::default(),
            group: None,
            unlimited: true,
            gpu: Known::Absent,
            allocator: Known::Absent,
            members: None,
            forecast: None,
            leak: None,
            alert: None,
            unfit: None,
            told: at,
            ack: None,
            struck: None,
            paused: None,
            stopped: None,
            alive: None,
            waited: None,
            victims: Bytes::ZERO,
            catching: None,
            killed: None,
            pending: Vec::with_capacity(PENDING),
            moved: None,
        }
    }

    /// Takes over what is newer; what it was goes back with the facts, to be freed elsewhere.
    pub(super) fn receive(&mut self, facts: &mut JobInput, at: Timestamp) {
        std::mem::swap(&mut self.roster, &mut facts.roster);
        if let Some(meter) = &mut facts.meter {
            std::mem::swap(&mut self.meter, meter);
            (self.group, self.unlimited) = (None, self.meter.is_none());
            self.flow = Flow::default();
        }
        (self.gpu, self.allocator) = (facts.gpu, facts.allocator);
        (self.members, self.forecast, self.leak) = (facts.members, facts.forecast, facts.leak);
        (self.alert, self.unfit, self.told) = (facts.alert, facts.unfit, at);
    }

    /// Listens to what its processes have said over the job socket since it was asked to save: it has saved once one of
    /// them has and nobody is still at it.
    pub(super) fn read_acknowledgements(&mut self, heard: &Checkpoints, now: Timestamp) {
        let asked = self.moved.map(|moved| moved.transition).filter(|moved| moved.to == State::Checkpoint);
        let Some(asked) = asked.map(|moved| moved.at.monotonic().as_nanos()) else { return };
        let mut said = None;
        for (key, word) in heard.all().filter(|(_, word)| u128::from(word.heard_nanos) >= asked) {
            let ours = self.roster.end.contains(&key) || self.roster.ask.iter().any(|ask| ask.key == key);
            said = match (word.state, said) {
                _ if !ours => said,
                (checkpoint::State::Saving, _) | (_, Some(AckKind::Saving)) => Some(AckKind::Saving),
                (checkpoint::State::Saved, _) | (_, Some(AckKind::Saved)) => Some(AckKind::Saved),
                (checkpoint::State::Failed, _) => Some(AckKind::Failed),
            };
        }
        if let Some(kind) = said.filter(|kind| self.ack.is_none_or(|before| before.kind != *kind)) {
            self.acknowledge(Ack { kind, at: now });
        }
    }

    /// Takes the newest word of the job.
    pub(super) fn acknowledge(&mut self, ack: Ack) {
        if self.ack.is_none_or(|before| before.at.monotonic() <= ack.at.monotonic()) {
            self.ack = Some(ack);
        }
    }

    /// Whom a move is about. Who was asked to end is who is ended: the largest or newest may be another by then.
    pub(super) fn meant(&mut self, to: State, victims: Victims) -> Arc<Roster> {
        if matches!(to, State::Term | State::Kill) && (victims == Victims::Whole || self.struck.is_none()) {
            self.struck = Some(Arc::clone(&self.roster));
        }
        let ending = matches!(to, State::Term | State::Kill | State::Verify);
        Arc::clone(self.struck.as_ref().filter(|_| ending).unwrap_or(&self.roster))
    }

    /// Reads what is left below the limits of its group; what cannot be read grows old.
    pub(super) fn read(&mut self, now: Timestamp, host: Bytes) {
        let Some(meter) = &self.meter else { return };
        match meter.read(host) {
            Ok(Some(left)) => {
                self.unlimited = false;
                self.group = Some((now, flowing(&mut self.flow, now, left)));
            }
            Ok(None) => (self.group, self.unlimited) = (None, true),
            Err(_) => {}
        }
    }

    /// What is left below the limits of its group.
    pub(super) fn group(&self) -> Option<Reading> {
        self.group.map(|(_, reading)| reading)
    }

    /// How fast it ever went, in bytes per second.
    pub(super) const fn fastest(&self) -> f64 {
        self.flow.fastest()
    }

    /// What its ladder is told.
    pub(super) fn observed(&self, now: Timestamp, host: Option<(Timestamp, Reading)>, fit: bool) -> Observed {
        let age = now.since(self.told);
        let own =
            |read: Option<(Timestamp, Reading)>| read.map(|(at, reading)| Aged::of(reading, now.since(at)));
        let other = |known: Known| match known {
            Known::Read(reading) => Some(Aged::of(reading, age)),
            Known::Absent | Known::Unknown => None,
        };
        let members =
            self.members.map(|members| Aged::of(Members { catching: self.catching, ..members }, age));
        Observed {
            readings: [own(host), own(self.group), other(self.gpu), other(self.allocator)],
            absent: [false, self.unlimited, self.gpu == Known::Absent, self.allocator == Known::Absent],
            forecast: self.forecast.map(|forecast| Aged::of(forecast, age)),
            leak: self.leak.map(|leak| Aged::of(leak, age)),
            alert: Some(match self.alert {
                Some(at) => Aged::of(true, now.since(at)),
                None => Aged::of(false, Duration::ZERO),
            }),
            members,
            ack: self.ack,
            alive: self.alive,
            victims: self.victims,
            busy: self.pending.iter().any(|pending| pending.step.starts_with("kill")),
            fit: fit
                && self.unfit.is_none()
                && (self.bounded || self.members.is_none_or(|members| members.count == 0)),
        }
    }

    /// Whether victims are to be waited for, and nobody waits: that failed a second ago or more.
    pub(super) fn lost_sight(&self, now: Timestamp) -> bool {
        let waits = self.pending.iter().any(|pending| pending.step == WAITS && !pending.replaced);
        let due = self.waited.is_some_and(|before| now.since(before) >= AGAIN);
        self.struck.is_some() && self.alive != Some(0) && !waits && due
    }

    /// A step goes on. The end of its victims is what the newest wait for it says.
    pub(super) fn goes_on(&mut self, ticket: Ticket, step: &'static str) -> bool {
        if self.pending.len() == self.pending.capacity() {
            // Nothing is decided by the others but by the end of victims and the word of a job.
            let other = self.pending.iter().position(|pending| !matches!(pending.step, WAITS | "await"));
            let Some(other) = other.filter(|_| step == WAITS) else { return false };
            self.pending.swap_remove(other);
        }
        if step == WAITS {
            self.pending
                .iter_mut()
                .filter(|pending| pending.step == WAITS)
                .for_each(|old| old.replaced = true);
        }
        self.pending.push(Pending { ticket, step, replaced: false });
        true
    }

    /// Its incident is over.
    pub(super) fn rest(&mut self) {
        self.pending.clear();
        (self.ack, self.alive, self.catching, self.killed) = (None, None, None, None);
        self.waited = None;
        self.struck = None;
    }
}

/// A reading with its rates.
pub(super) fn flowing(flow: &mut Flow, now: Timestamp, left: Left) -> Reading {
    let (fast, slow) = flow.record(now, left.total.saturating_sub(left.headroom));
    Reading { headroom: left.headroom, total: left.total, fast, slow }
}

/// The age of the oldest reading that a policy watches and has.
pub(super) fn oldest(observed: &Observed, watched: impl Fn(Resource) -> bool) -> Option<Duration> {
    let read = Resource::ALL.into_iter().filter(|resource| watched(*resource));
    read.filter_map(|resource| observed.reading(resource).map(|reading| reading.age)).max()
}
