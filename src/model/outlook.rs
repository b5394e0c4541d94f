//! Forecasts and leaks of the analyzers as data, by identity.
//!
//! Points and findings are for display and databases. A program that decides on a forecast reads this module's types,
//! which have no labels and no names that a user can choose. Each frame has one [`super::frame::Frame::outlook`].

use serde::{Deserialize, Serialize};

use super::ids::{ProcessKey, WorkloadKey};
use super::label::Label;
use super::units::{BytesPerSecond, Ratio, Seconds};

/// The horizons of the probabilities, in seconds.
pub const HORIZONS: [f64; 4] = [60.0, 300.0, 900.0, 3600.0];

/// The forecasts and leaks of one tick. At most as many entries as the analyzers track subjects
/// (`analyzers.*.max_subjects`).
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Outlook {
    /// Every assessed resource. Absent where no analyzer forecasts: it is disabled, or failed in this tick. Empty
    /// means that it runs and assessed no resource.
    pub forecasts: Option<Vec<Forecast>>,
    /// Every subject whose growth was assessed. Absent where no analyzer detects leaks.
    pub leaks: Option<Vec<Leak>>,
}

/// An assessed resource, by identities of the kernel, the driver and [`super::ids`].
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
    /// The memory of one process on one GPU, as the driver reports it.
    GpuProcess {
        /// The process.
        process: ProcessKey,
        /// The UUID of the GPU.
        uuid: Label,
    },
    /// The allocator of a process, as the process itself reports it.
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
    /// The resource.
    pub resource: Resource,
    /// The time to exhaustion from the frame's time on; absent while no exhaustion is predicted.
    pub tte: Option<Tte>,
    /// The probability of exhaustion within each of [`HORIZONS`]; absent before there are enough samples.
    pub within: [Option<Ratio>; HORIZONS.len()],
}

/// Quantiles of a time to exhaustion.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Tte {
    /// 10 % quantile.
    pub p10: Seconds,
    /// Median.
    pub p50: Seconds,
    /// 90 % quantile; absent where the rate is too uncertain.
    pub p90: Option<Seconds>,
}

/// The growth of one resource.
#[derive(Clone, Debug, PartialEq)]
pub struct Leak {
    /// The resource.
    pub resource: Resource,
    /// The state of its growth.
    pub state: LeakState,
    /// The growth rate, below 0 where it shrinks; absent before there are enough samples, and after growth ends until
    /// the evaluated samples no longer include it.
    pub growth: Option<BytesPerSecond>,
}

/// The growth state of a series.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LeakState {
    /// Too few samples.
    #[default]
    Insufficient,
    /// No growth.
    Steady,
    /// Growth that slows down: a warm-up, a cache that fills.
    Warming,
    /// Growth that may still end.
    Growing,
    /// Growth so long and steady that it counts as a leak.
    Leaking,
}

impl LeakState {
    /// Every state.
    pub const ALL: [Self; 5] =
        [Self::Insufficient, Self::Steady, Self::Warming, Self::Growing, Self::Leaking];

    /// The value of the label `state`, also used in texts.
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
    /// Adds the results of another analyzer.
    pub fn absorb(&mut self, other: Self) {
        join(&mut self.forecasts, other.forecasts);
        join(&mut self.leaks, other.leaks);
    }
}

/// Joins two lists; absent only if both are absent.
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
    fn a_missing_outlook_differs_from_an_empty_one() {
        let mut outlook = Outlook::default();
        outlook.absorb(Outlook { leaks: Some(Vec::new()), ..Outlook::default() });
        outlook.absorb(Outlook::default());
        assert_eq!(outlook, Outlook { forecasts: None, leaks: Some(Vec::new()) });
        let leak = Leak { resource: Resource::Host, state: LeakState::Steady, growth: None };
        outlook.absorb(Outlook { leaks: Some(vec![leak.clone()]), forecasts: Some(Vec::new()) });
        assert_eq!(outlook, Outlook { forecasts: Some(Vec::new()), leaks: Some(vec![leak]) });
    }
}
