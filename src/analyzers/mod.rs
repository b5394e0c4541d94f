//! What the samples mean: when a resource runs out, and whether something leaks.
//!
//! Pure and deterministic: bytes and times in, statements out. One
//! [`tracker::Tracker`] follows one series; [`leak`] judges its growth,
//! [`exhaustion`] says what that growth does to a limit. What the daemon runs
//! over each frame is in [`REGISTRY`], one line an analyzer.

pub mod exhaustion;
pub mod fragmentation;
mod identities;
pub mod imbalance;
mod latch;
pub mod leak;
mod ranks;
pub mod replay;
mod series_verdict;
pub mod stats;
mod subjects;
#[cfg(test)]
mod tests;
pub mod tracker;
mod users;
mod view;
pub mod visibility;

use crate::model::analyzer::Analyzer;
use crate::model::desc::Desc;
use crate::model::setting::{Opt, Settings};

/// Every analyzer there is, in the order they judge.
pub static REGISTRY: &[&Registration] = &[
    &exhaustion::REGISTRATION,
    &leak::REGISTRATION,
    &fragmentation::REGISTRATION,
    &imbalance::REGISTRATION,
    &visibility::REGISTRATION,
];

/// What the rest of memwarden needs to know of an analyzer.
#[derive(Debug)]
pub struct Registration {
    /// The config key under `analyzers`, and the value of the `analyzer` label.
    pub name: &'static str,
    /// What it says: one sentence.
    pub about: &'static str,
    /// Its own config keys.
    pub options: &'static [&'static Opt],
    /// Every metric it can put.
    pub metrics: &'static [&'static Desc],
    /// What is wrong with settings whose values are each right: a key within its section and a sentence.
    pub check: fn(&Settings) -> Vec<(String, String)>,
    /// Builds it, knowing nothing.
    pub build: fn(&Settings) -> Box<dyn Analyzer>,
}
