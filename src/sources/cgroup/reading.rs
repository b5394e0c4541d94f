//! The values of one cgroup at one tick.

use super::bounds::Bound;
use super::parse::{Events, Stat};
use crate::host::pressure::Pressure;
use crate::model::units::Bytes;

/// The values of one cgroup at one tick; a value that is not provided is absent.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Reading {
    /// Memory charged.
    pub usage: Option<Bytes>,
    /// `memory.stat`.
    pub stat: Stat,
    pub limit: Bound,
    /// Its own throttling threshold (v2).
    pub high: Option<Bytes>,
    /// Swapped-out memory.
    pub swap_usage: Option<Bytes>,
    /// Its own swap limit (v2).
    pub swap_limit: Option<Bytes>,
    /// Memory and swap charged together (v1, if there is a limit).
    pub both_usage: Option<Bytes>,
    /// Its own limit of memory and swap together (v1).
    pub both_limit: Bound,
    /// The largest usage so far.
    pub peak: Option<Bytes>,
    /// The part of the usage that is kernel memory.
    pub kernel: Option<Bytes>,
    pub events: Events,
    /// Stalls (v2).
    pub pressure: Pressure,
    /// Processes and threads (v2).
    pub tasks: Option<u64>,
}

impl Reading {
    /// Usage without inactive file pages; zero if the two were read at different times and the difference is negative.
    pub fn working_set(&self) -> Option<Bytes> {
        Some(self.usage?.saturating_sub(self.stat.inactive_file?))
    }
}
