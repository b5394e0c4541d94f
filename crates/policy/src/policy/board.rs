//! The escalations of all jobs.
//!
//! Each slot has one escalation: a target that names several jobs has one for each. Slots are stepped in order, and
//! each step sees what the steps before it decided, so that one shortage terminates one job.

use super::condition::{Condition, Truth};
use super::escalation::Escalation;
use super::gate::{Futile, Gate};
use super::observed::{Observed, Resource};
use super::rate::Rate;
use super::transition::{Mode, Reason, Transition};
use crate::model::limited_groups::LimitedGroups;
use crate::model::node_set::NodeSet;
use crate::model::time::Timestamp;
use crate::model::units::{Bytes, Unit as _};
use crate::types::rung::State;

/// The job in a slot.
#[derive(Clone, Debug)]
pub struct Occupied {
    /// The index of its target.
    pub target: usize,
    /// The user of the job; absent where the target names no job.
    pub user: Option<u32>,
    /// The escalation of the job.
    pub escalation: Escalation,
}

/// Which rate limits are used up for a job.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct UsedUp {
    /// The target's, or the user's share of it.
    pub target: bool,
    /// The host's, or the user's share of it.
    pub host: bool,
}

/// What the end of a job gives back, and to which limits.
#[derive(Clone, Copy, Debug)]
struct Gives {
    bytes: Bytes,
    groups: LimitedGroups,
    nodes: Option<NodeSet>,
}

/// All escalations of the host.
#[derive(Clone, Debug)]
pub struct Board {
    slots: Vec<Option<Occupied>>,
    /// The growth of the jobs, as last observed.
    growth: Vec<Option<f64>>,
    /// What the end of the jobs gives back, as last observed.
    gives: Vec<Option<Gives>>,
    /// What it gave back when that was first known in this shortage, which the guard reads itself.
    gave: Vec<Option<(Timestamp, Bytes)>>,
    futile: Futile,
    /// By target, over all its jobs.
    rates: Vec<Rate>,
    host: Rate,
}

impl Board {
    /// A board of `slots` empty slots. `most` is the maximum number of terminations per hour of each target, `host`
    /// that of the host.
    pub fn new(slots: usize, most: impl IntoIterator<Item = u32>, host: u32) -> Self {
        let rates = most.into_iter().map(|most| Rate::new(most, slots)).collect();
        Self {
            slots: vec![None; slots],
            growth: vec![None; slots],
            gives: vec![None; slots],
            gave: vec![None; slots],
            futile: Futile::default(),
            rates,
            host: Rate::new(host, slots),
        }
    }

    /// Fills or empties a slot; returns its former content, so that nothing is freed here.
    ///
    /// # Panics
    /// If there is no such slot or target.
    pub fn set_slot(&mut self, slot: usize, occupied: Option<Occupied>) -> Option<Occupied> {
        assert!(
            occupied.as_ref().is_none_or(|occupied| occupied.target < self.rates.len()),
            "a target of the board"
        );
        (self.growth[slot], self.gives[slot], self.gave[slot]) = (None, None, None);
        let before = std::mem::replace(&mut self.slots[slot], occupied);
        for (target, rate) in self.rates.iter_mut().enumerate() {
            let own = self.slots.iter().flatten().filter(|occupied| occupied.target == target);
            rate.divide(own.filter_map(|occupied| occupied.user));
        }
        let enforced = |occupied: &&Occupied| occupied.escalation.limits().mode == Mode::Enforce;
        self.host.divide(self.slots.iter().flatten().filter(enforced).filter_map(|occupied| occupied.user));
        before
    }

    /// Counts a termination at a time before the board was made: the rate limits outlast a restart.
    pub fn recall(&mut self, target: usize, user: Option<u32>, at: Timestamp) {
        if let Some(rate) = self.rates.get_mut(target) {
            rate.count(at, user);
        }
        self.host.count(at, user);
    }

    pub fn escalation(&self, slot: usize) -> Option<&Escalation> {
        self.slots.get(slot)?.as_ref().map(|occupied| &occupied.escalation)
    }

    /// Terminations left for a target in the current hour.
    pub fn left(&self, target: usize, now: Timestamp) -> u32 {
        self.rates.get(target).map_or(0, |rate| rate.left(now))
    }

    /// Terminations left for the host in the current hour.
    pub fn host_left(&self, now: Timestamp) -> u32 {
        self.host.left(now)
    }

    /// Terminations left for the job in a slot: its user's share of the target's limit, and of the host's. A user that
    /// comes late has its share of the target's limit, but never more than the host has left.
    fn left_for(&self, occupied: &Occupied, now: Timestamp) -> (u32, u32) {
        let target = self.rates[occupied.target].left_for(now, occupied.user);
        (target, self.host.left_for(now, occupied.user).min(self.host.left(now)))
    }

    /// The rate limits that are used up for the job in a slot.
    pub fn used_up(&self, slot: usize, now: Timestamp) -> UsedUp {
        let Some(occupied) = self.slots.get(slot).and_then(Option::as_ref) else { return UsedUp::default() };
        let (target, host) = self.left_for(occupied, now);
        UsedUp { target: target == 0, host: host == 0 }
    }

    /// The escalation in a slot, for what concerns no other one.
    pub fn escalation_mut(&mut self, slot: usize) -> Option<&mut Escalation> {
        self.slots.get_mut(slot)?.as_mut().map(|occupied| &mut occupied.escalation)
    }

    /// What the other slots leave for this one: whether another job is terminating within its time limit, so that memory
    /// will be freed, also below the limit of its cgroup with the least room. In mode observe none is.
    fn gate(&self, but: usize, now: Timestamp, observed: &Observed, left: u32) -> Gate {
        let (least, nodes) = (observed.groups.least(), observed.nodes);
        let mut gate = Gate { left, ..Gate::OPEN };
        gate.host.futile = self.futile.host;
        gate.limit.futile = least.is_some() && self.futile.group == least;
        gate.nodes.futile = nodes.is_some() && self.futile.nodes == nodes;
        let of = self.slots[but].as_ref().map(|own| own.target);
        for (place, slot) in self.slots.iter().enumerate() {
            let Some(Occupied { escalation, target, .. }) = slot else { continue };
            let mode = escalation.limits().mode;
            if let Some(gives) = self.gives[place].filter(|_| mode == Mode::Enforce || place == but) {
                let Gives { bytes, groups, nodes: its } = gives;
                if escalation.limits().levels[Resource::Host.place()].is_some() {
                    gate.host.add(bytes);
                }
                if least.is_some_and(|least| groups.contain(least)) {
                    gate.limit.add(bytes);
                }
                if nodes.zip(its).is_some_and(|(nodes, its)| its.and(nodes) == its) {
                    gate.nodes.add(bytes);
                }
            }
            let asked = matches!(escalation.state(), State::Soft | State::Checkpoint);
            let faster = self.growth[place].zip(self.growth[but]).is_some_and(|(its, own)| its > own);
            gate.yields |= place != but && of == Some(*target) && asked && faster;
            if place != but && escalation.ending(now) && mode == Mode::Enforce {
                gate.busy = true;
                gate.below_the_limit |= least.is_some_and(|group| escalation.is_below(group));
            }
        }
        gate
    }

    /// The growth of a job since the shortage began, in bytes per second, by what its end gives back: a job that is new, or says
    /// that it saves, must not be spared for a growth that no forecast knows yet.
    fn growth_in_shortage(&mut self, slot: usize, now: Timestamp, gives: Option<Bytes>) -> Option<f64> {
        let Some(gives) = gives else {
            self.gave[slot] = None;
            return None;
        };
        let (since, before) = *self.gave[slot].get_or_insert((now, gives));
        let seconds = now.since(since).as_secs_f64();
        (seconds >= 1.0).then(|| (gives.value() - before.value()) / seconds)
    }

    /// Steps the escalation in one slot; an empty slot has no transitions.
    pub fn step(&mut self, slot: usize, now: Timestamp, observed: &Observed) -> Option<Transition> {
        let (of_target, of_host) = self.left_for(self.slots.get(slot)?.as_ref()?, now);
        let occupied = self.slots[slot].as_ref()?;
        let max_age = occupied.escalation.limits().forecast.max_age;
        let growth = observed.growth.filter(|growth| growth.age <= max_age).map(|growth| growth.value);
        // Always, so that what was given in an earlier shortage is forgotten.
        let in_shortage = self.growth_in_shortage(slot, now, observed.gives);
        self.growth[slot] = growth.or(in_shortage);
        let Observed { groups, nodes, .. } = *observed;
        self.gives[slot] = observed.gives.map(|bytes| Gives { bytes, groups, nodes });
        let gate = self.gate(slot, now, observed, of_target.min(of_host));
        let Occupied { target, user, escalation } = self.slots.get_mut(slot)?.as_mut()?;
        let transition = escalation.step(now, observed, gate);
        let over = |resource| escalation.conditions().get(Condition::levels(resource).0) == Truth::NotMet;
        if over(Resource::Host) {
            self.futile.host = false;
        }
        if over(Resource::Cgroup) {
            self.futile.group.take_if(|group| groups.least() == Some(*group));
        }
        if over(Resource::Nodes) {
            self.futile.nodes.take_if(|known| nodes == Some(*known));
        }
        let transition = transition?;
        if transition.reason == Reason::NotBack {
            let Futile { host, group, nodes } = escalation.futile();
            self.futile = Futile {
                host: self.futile.host || host,
                group: group.or(self.futile.group),
                nodes: nodes.or(self.futile.nodes),
            };
        }
        if transition.counts {
            let enforces = escalation.limits().mode == Mode::Enforce;
            self.rates[*target].count(now, *user);
            // A target in mode observe must not keep another from being protected.
            if enforces {
                self.host.count(now, *user);
            }
        }
        Some(transition)
    }
}

#[cfg(test)]
mod tests;
