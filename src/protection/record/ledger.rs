//! Takes the guard's records: each transition, and each step before and after it.
//!
//! Nothing here blocks, except [`Ledger::is_written`], or allocates: lines are written into a preallocated buffer and from there into the audit log's
//! memory; another thread writes the folders.

use std::borrow::Cow;
use std::fmt::Write as _;
use std::sync::Arc;

use super::audit::AuditLog;
use super::recorder::Recorder;
use crate::host::clock;
use crate::model::label::Label;
use crate::model::time::Timestamp;
use crate::protection::policy::{self, Reason, State};
use crate::protection::types::audit::{Entry, Occasion, PROCESSES_A_LINE, Reading};
use crate::protection::types::incident::name_into;
use crate::protection::types::step::{
    Finished, Outcome, Step, StepDone, StepError, TargetId, Ticket, Touched,
};

/// Maximum number of slots with an incident.
const SLOTS: usize = 256;
/// Maximum length of an incident's id in bytes.
const NAME: usize = 96;
/// Capacity for lines that could not be handed over yet, in bytes.
const SPILL: usize = 256 * 1024;
/// Maximum number of pending steps.
const MAX_PENDING: usize = 1024;

/// The id of an incident, stored inline; ids have less than 96 bytes of ASCII.
#[derive(Clone, Copy, Debug)]
pub(super) struct Id {
    bytes: [u8; 96],
    length: usize,
}

impl Id {
    pub(super) fn of(id: &str) -> Self {
        let mut bytes = [0; 96];
        let length = id.len().min(bytes.len());
        bytes[..length].copy_from_slice(&id.as_bytes()[..length]);
        Self { bytes, length }
    }

    pub(super) fn as_str(&self) -> &str {
        std::str::from_utf8(&self.bytes[..self.length]).unwrap_or_default()
    }
}

/// A step that was carried out, and its result.
#[derive(Clone, Copy, Debug)]
pub struct CompletedStep<'d> {
    /// The number from [`Ledger::before`].
    pub number: u64,
    pub step: &'d Step,
    pub result: &'d Result<StepDone, StepError>,
    /// How long it took, in microseconds.
    pub micros: u64,
    /// The processes that it reached.
    pub touched: &'d [Touched],
}

/// A transition for the audit log.
#[derive(Clone, Copy, Debug)]
pub struct LoggedTransition<'a> {
    /// When.
    pub at: Timestamp,
    pub slot: TargetId,
    /// The target's name.
    pub target: &'a Label,
    /// The workload of the job; empty where its processes are in several, or in none.
    pub workload: &'a Label,
    /// The user of the job; absent where the target names no job.
    pub user: Option<u32>,
    /// `observe`, `enforce` or `drill`.
    pub mode: &'static str,
    /// The state before.
    pub from: State,
    /// The state after.
    pub to: State,
    /// Why.
    pub reason: Reason,
    /// The readings that it is based on.
    pub readings: &'a [Reading],
    /// That of the resource that `reason` names; absent where it names none.
    pub reading: Option<policy::Reading>,
    /// Whether an incident is in progress after it.
    pub under_way: bool,
    /// The policy as a sentence.
    pub policy: &'a Arc<str>,
}

#[derive(Debug)]
struct SlotIncident {
    id: TargetId,
    target: Label,
    mode: &'static str,
    /// The incident's id; empty while there is none.
    incident: String,
}

/// The incident that a step belongs to, which can be over when the step ends; the slot may have another job by then.
#[derive(Clone, Debug)]
struct Owner {
    incident: Id,
    target: Label,
    mode: &'static str,
}

/// A step that ends later.
#[derive(Debug)]
struct PendingStep {
    ticket: Ticket,
    number: u64,
    owner: Owner,
}

impl Owner {
    fn of(slot: Option<&SlotIncident>) -> Self {
        Self {
            incident: Id::of(slot.map_or("", |slot| &slot.incident)),
            target: slot.map_or_else(Label::default, |slot| slot.target.clone()),
            mode: slot.map_or("", |slot| slot.mode),
        }
    }
}

/// The ledger of the guard.
#[derive(Debug)]
pub struct Ledger {
    audit: AuditLog,
    recorder: Arc<Recorder>,
    config: String,
    line: Vec<u8>,
    /// Lines that wait until a reader of the log releases the lock.
    spill: Vec<u8>,
    why: String,
    slots: Vec<SlotIncident>,
    /// Memory for ids of incidents.
    names: Vec<String>,
    number: u64,
    /// The steps that are being carried out, by their numbers.
    begun: Vec<(u64, Owner)>,
    going: Vec<PendingStep>,
}

impl Ledger {
    pub(super) fn new(audit: AuditLog, recorder: Arc<Recorder>, config: &str) -> Self {
        Self {
            audit,
            recorder,
            config: config.to_owned(),
            line: Vec::with_capacity(16 * 1024),
            spill: Vec::with_capacity(SPILL),
            why: String::with_capacity(512),
            slots: Vec::with_capacity(SLOTS),
            names: (0..SLOTS).map(|_| String::with_capacity(NAME)).collect(),
            number: 0,
            begun: Vec::with_capacity(SLOTS),
            going: Vec::with_capacity(MAX_PENDING),
        }
    }

    /// Records a transition. An incident begins with the first transition that is in progress, and ends with the first
    /// that is not.
    pub fn moved(&mut self, turn: &LoggedTransition<'_>) {
        let place = self.slot(turn);
        let begins = turn.under_way && self.slots[place].incident.is_empty();
        if begins {
            let mut incident = std::mem::take(&mut self.slots[place].incident);
            name_into(turn.at, turn.target.as_str(), &mut incident);
            if self.slots.iter().any(|other| other.incident == incident) {
                // Two jobs of one target, in the same millisecond. Writing to a text cannot fail.
                let _ = write!(incident, "-{}", turn.slot.0);
            }
            self.slots[place].incident = incident;
            self.recorder.began(turn, &self.slots[place].incident);
        }
        self.why.clear();
        // Writing to a text cannot fail.
        let _ = write!(self.why, "{}", turn.reason);
        let why = std::mem::take(&mut self.why);
        let LoggedTransition { from, to, reason, readings, .. } = *turn;
        let entry =
            Entry::Transition { from, to, reason, why: why.as_str().into(), readings: readings.into() };
        self.put(turn.at, &self.owner(turn.slot), entry);
        self.why = why;
        if !turn.under_way {
            self.left(turn.at, turn.slot);
        }
    }

    /// Ends the incident of a slot whose job has left.
    pub fn left(&mut self, at: Timestamp, slot: TargetId) {
        let slot = self.slots.iter_mut().find(|known| known.id == slot && !known.incident.is_empty());
        if let Some(slot) = slot {
            self.recorder.ended(at, &slot.incident, false);
            slot.incident.clear();
        }
    }

    /// Records a step before it is carried out. Returns its number, for [`Ledger::after`].
    pub fn before(&mut self, at: Timestamp, step: &Step) -> u64 {
        self.number += 1;
        let owner = self.owner(step.target);
        self.put(at, &owner, Entry::Before { number: self.number, step: Cow::Borrowed(step) });
        self.begun.push((self.number, owner));
        self.number
    }

    /// Records the result of a step, for the incident in which it began.
    pub fn after(&mut self, at: Timestamp, completed: &CompletedStep<'_>) {
        let CompletedStep { number, step, result, micros, touched } = *completed;
        let begun = self.begun.iter().position(|(begun, _)| *begun == number);
        let owner = match begun {
            Some(place) => self.begun.swap_remove(place).1,
            None => self.owner(step.target),
        };
        self.put(at, &owner, Entry::After { number, end: result.into(), micros });
        for processes in touched.chunks(PROCESSES_A_LINE) {
            self.put(at, &owner, Entry::Reached { number, processes: processes.into() });
        }
        if let Ok(StepDone { outcome: Outcome::Started(ticket), .. }) = result {
            if self.going.len() == MAX_PENDING {
                // The end of dropped steps is not recorded: the oldest ones are dropped.
                self.going.remove(0);
            }
            self.going.push(PendingStep { ticket: *ticket, number, owner });
        }
    }

    /// Records that a step has ended later, or that the job is saving.
    pub fn ended(&mut self, at: Timestamp, finished: &Finished) {
        let known = self.going.iter().position(|going| going.ticket == finished.ticket);
        let Finished { output, result, .. } = finished;
        let number = known.map(|place| self.going[place].number);
        let owner = known.map_or_else(|| Owner::of(None), |place| self.going[place].owner.clone());
        self.put(at, &owner, Entry::Ended { number, output: (&**output).into(), end: result.into() });
        let continues = matches!(finished.result, Ok(StepDone { outcome: Outcome::Saving(_), .. }));
        if let Some(place) = known.filter(|_| !continues) {
            self.going.remove(place);
        }
    }

    /// The id of the current incident of a slot.
    pub fn incident(&self, slot: TargetId) -> Option<&str> {
        let slot = self.slots.iter().find(|known| known.id == slot)?;
        Some(slot.incident.as_str()).filter(|incident| !incident.is_empty())
    }

    fn slot(&mut self, turn: &LoggedTransition<'_>) -> usize {
        let found = self.slots.iter().position(|slot| slot.id == turn.slot);
        let place = found.unwrap_or_else(|| {
            self.slots.push(SlotIncident {
                id: turn.slot,
                target: turn.target.clone(),
                mode: turn.mode,
                incident: self.names.pop().unwrap_or_default(),
            });
            self.slots.len() - 1
        });
        let slot = &mut self.slots[place];
        slot.target.clone_from(turn.target);
        slot.mode = turn.mode;
        place
    }

    fn owner(&self, slot: TargetId) -> Owner {
        Owner::of(self.slots.iter().find(|known| known.id == slot))
    }

    fn put(&mut self, at: Timestamp, owner: &Owner, entry: Entry<'_>) {
        let occasion = Occasion {
            incident: owner.incident.as_str().into(),
            target: owner.target.as_str().into(),
            mode: owner.mode.into(),
            config: self.config.as_str().into(),
        };
        entry.write(at, occasion, &mut self.line);
        self.hand_over();
    }

    /// Hands the line over to the audit log.
    fn hand_over(&mut self) {
        self.settle();
        let waits = !self.spill.is_empty() || !self.audit.try_put(&self.line);
        if waits && self.spill.len() + self.line.len() <= SPILL {
            self.spill.extend_from_slice(&self.line);
        } else if waits {
            // This requires a reader that holds the lock for long.
            self.audit.put(&self.line);
        }
    }

    /// Whether all lines are in the file of the audit log; waits for it as [`AuditLog::is_written`] does.
    pub fn is_written(&mut self) -> bool {
        self.settle();
        self.spill.is_empty() && self.audit.is_written()
    }

    /// Hands over waiting lines, in order, if that does not block; called in each round.
    pub fn settle(&mut self) {
        let mut done = 0;
        for line in self.spill.split_inclusive(|byte| *byte == b'\n') {
            if !self.audit.try_put(line) {
                break;
            }
            done += line.len();
        }
        if done > 0 {
            self.spill.drain(..done);
        }
    }
}

impl Drop for Ledger {
    /// Incidents in progress are left without an end.
    fn drop(&mut self) {
        for slot in self.slots.iter().filter(|slot| !slot.incident.is_empty()) {
            self.recorder.ended(clock::now(), &slot.incident, true);
        }
    }
}
