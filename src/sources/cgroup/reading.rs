//! What one cgroup says in one tick.

use super::bounds::Bound;
use super::parse::{Events, Pressure, Stat};
use crate::model::units::Bytes;

/// What one cgroup says in one tick; what it does not say is absent.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Reading {
    /// Memory charged.
    pub usage: Option<Bytes>,
    /// `memory.stat`.
    pub stat: Stat,
    /// Its own limit.
    pub limit: Bound,
    /// Its own throttling threshold (v2).
    pub high: Option<Bytes>,
    /// Swapped-out memory.
    pub swap_usage: Option<Bytes>,
    /// Its own swap limit (v2).
    pub swap_limit: Option<Bytes>,
    /// Memory and swap charged together (v1, where there is a limit).
    pub both_usage: Option<Bytes>,
    /// Its own limit of both (v1).
    pub both_limit: Bound,
    /// The largest usage ever.
    pub peak: Option<Bytes>,
    /// The kernel's share of the usage.
    pub kernel: Option<Bytes>,
    /// Event counters.
    pub events: Events,
    /// Stalls (v2).
    pub pressure: Pressure,
    /// Processes and threads (v2).
    pub tasks: Option<u64>,
}

impl Default for Reading {
    fn default() -> Self {
        Self {
            usage: None,
            stat: Stat::default(),
            limit: Bound::Unbounded,
            high: None,
            swap_usage: None,
            swap_limit: None,
            both_usage: None,
            both_limit: Bound::Unbounded,
            peak: None,
            kernel: None,
            events: Events::default(),
            pressure: Pressure::default(),
            tasks: None,
        }
    }
}

impl Reading {
    /// Usage without inactive file pages, zero where the two were read apart and do not fit.
    pub fn working_set(&self) -> Option<Bytes> {
        Some(self.usage?.saturating_sub(self.stat.inactive_file?))
    }
}
