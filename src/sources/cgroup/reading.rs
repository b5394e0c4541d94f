//! The values of one cgroup at one tick.

use super::parse::Events;
use crate::host::pressure::Pressure;
use crate::host::room::group;
use crate::host::room::group::Bound;
use crate::host::room::group::Stat;
use crate::model::room::SwapRoom;
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
    /// Whether the kernel swaps nothing out to stay below its limit (v1).
    pub never_swaps: bool,
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
    /// The swap that its processes can use, of that of the cgroup above.
    pub fn swap_below(&self, above: SwapRoom) -> SwapRoom {
        let both = self.both_limit.bytes().zip(self.both_usage).zip(self.limit.bytes().zip(self.usage));
        match (both, self.swap_limit) {
            (Some(((both_limit, both_usage), (limit, usage))), _) => {
                group::swap_below_both(above, [both_limit, both_usage], [limit, usage])
            }
            // What of it is in use is not known: none counts.
            (None, Some(limit)) => group::swap_below(above, limit, self.swap_usage.unwrap_or(limit)),
            (None, None) => above,
        }
    }

    /// What the kernel does not take back before it ends a process.
    pub fn held(&self) -> Option<Bytes> {
        Some(self.usage?.saturating_sub(self.stat.reclaimable()?))
    }

    /// Usage without inactive file pages; zero if the two were read at different times and the difference is negative.
    pub fn working_set(&self) -> Option<Bytes> {
        Some(self.usage?.saturating_sub(self.stat.inactive_file?))
    }
}
