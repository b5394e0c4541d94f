//! What the analyzers state about memory to come, as data: forecasts and leaks by identity.
//!
//! Points and findings are for people and databases. A program that decides on a forecast reads this: no label, no name
//! that somebody may choose. A frame has one, made with it ([`super::frame::Frame::outlook`]).

use serde::{Deserialize, Serialize};

use super::ids::{ProcessKey, WorkloadKey};
use super::label::Label;
use super::units::{BytesPerSecond, Ratio, Seconds};

/// The horizons of the probabilities, in seconds.
pub const HORIZONS: [f64; 4] = [60.0, 300.0, 900.0, 3600.0];

/// What the analyzers stated in one tick. At most as many entries as the analyzers follow subjects
/// (`analyzers.*.max_subjects`).
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Outlook {
    /// Every resource that was judged. Absent where no analyzer forecasts: it is off, or failed in this tick. Empty means
    /// that it runs and judged nothing.
    pub forecasts: Option<Vec<Forecast>>,
    /// Everything whose growth was judged. Absent where no analyzer looks for leaks.
    pub leaks: Option<Vec<Leak>>,
}

/// What memory is judged, by identities of the kernel, the driver and [`super::ids`].
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Resource {
    /// The host's memory.
    Host,
    /// A cgroup, by its path in the hierarchy of the memory controller.
    Cgroup(Label),
    /// A GPU.
    Gpu {
        /// The UUID that the driver gives it.
        uuid: Label,
    },
    /// A workload: the sum of its processes.
    Workload(WorkloadKey),
    /// One process.
    Process(ProcessKey),
    /// What the driver shows of one process on one GPU.
    GpuProcess {
        /// The process.
        process: ProcessKey,
        /// The UUID of the GPU.
        uuid: Label,
    },
    /// The allocator of a process, as the process itself tells of it.
    Allocator {
        /// The process.
        process: ProcessKey,
        /// The UUID of the GPU that it allocates on; absent where the driver does not confirm one.
        device: Option<Label>,
    },
}

/// When one resource is exhausted.
#[derive(Clone, Debug, PartialEq)]
pub struct Forecast {
    /// What is exhausted.
    pub resource: Resource,
    /// The time to exhaustion from the frame's time on; absent where nothing is foreseen.
    pub tte: Option<Tte>,
    /// The probability of exhaustion within each of [`HORIZONS`]; absent before there are enough samples.
    pub within: [Option<Ratio>; HORIZONS.len()],
}

/// Quantiles of a time to exhaustion.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Tte {
    /// One in ten is earlier.
    pub p10: Seconds,
    /// Half are earlier.
    pub p50: Seconds,
    /// One in ten is later; absent where the rate is too unsure to say.
    pub p90: Option<Seconds>,
}

/// The growth of one resource.
#[derive(Clone, Debug, PartialEq)]
pub struct Leak {
    /// What grows.
    pub resource: Resource,
    /// Whether it leaks.
    pub state: LeakState,
    /// How fast it grows, below 0 where it shrinks; absent before there are enough samples, and from the end of growth
    /// until the samples that are looked at no longer show it.
    pub growth: Option<BytesPerSecond>,
}

/// What the growth of a series is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LeakState {
    /// Too few samples for a statement.
    #[default]
    Insufficient,
    /// It does not climb.
    Steady,
    /// It climbs, and ever slower: a warm-up, a cache that fills.
    Warming,
    /// It climbs, and may yet stop.
    Growing,
    /// It has climbed for so long and so steadily that it is taken for a leak.
    Leaking,
}

impl LeakState {
    /// Every state.
    pub const ALL: [Self; 5] =
        [Self::Insufficient, Self::Steady, Self::Warming, Self::Growing, Self::Leaking];

    /// The word for people and labels.
    pub fn word(self) -> &'static str {
        match self {
            Self::Insufficient => "insufficient",
            Self::Steady => "steady",
            Self::Warming => "warming",
            Self::Growing => "growing",
            Self::Leaking => "leaking",
        }
    }
}

impl Outlook {
    /// Adds what another analyzer stated.
    pub fn absorb(&mut self, other: Self) {
        join(&mut self.forecasts, other.forecasts);
        join(&mut self.leaks, other.leaks);
    }
}

/// Absent only where both are.
fn join<T>(all: &mut Option<Vec<T>>, more: Option<Vec<T>>) {
    match (all.as_mut(), more) {
        (Some(all), Some(more)) => all.extend(more),
        (None, more) => *all = more,
        (Some(_), None) => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_analyzer_that_does_not_run_is_not_one_that_foresees_nothing() {
        let mut outlook = Outlook::default();
        outlook.absorb(Outlook { leaks: Some(Vec::new()), ..Outlook::default() });
        outlook.absorb(Outlook::default());
        assert_eq!(outlook, Outlook { forecasts: None, leaks: Some(Vec::new()) });
        let leak = Leak { resource: Resource::Host, state: LeakState::Steady, growth: None };
        outlook.absorb(Outlook { leaks: Some(vec![leak.clone()]), forecasts: Some(Vec::new()) });
        assert_eq!(outlook, Outlook { forecasts: Some(Vec::new()), leaks: Some(vec![leak]) });
    }
}
