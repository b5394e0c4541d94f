//! Evaluate the samples: when a resource is exhausted, and whether memory leaks.
//!
//! Pure and deterministic: points of a frame in, conclusions and findings out. The arithmetic of growth and of the time
//! to exhaustion is the crate [`forecast`]; [`leak`] and [`exhaustion`] give it the series of a frame. [`REGISTRY`] lists
//! the analyzers that the daemon runs over each frame, one per line.

pub(crate) mod conclusions;
mod dmem;
pub mod ends;
pub mod exhaustion;
pub mod fit;
pub mod fragmentation;
pub mod hardware;
mod identities;
pub mod idle;
pub mod imbalance;
mod latch;
pub mod leak;
pub mod orphaned;
mod ranks;
pub mod replay;
pub mod shm;
mod subjects;
#[cfg(test)]
mod tests;
mod users;
pub mod visibility;
pub mod xid;

use crate::model::analyzer::Analyzer;
use crate::model::desc::Desc;
use crate::model::setting::{Opt, Settings};

/// All analyzers, in the order they run.
pub static REGISTRY: &[&Registration] = &[
    &exhaustion::REGISTRATION,
    &leak::REGISTRATION,
    &fragmentation::REGISTRATION,
    &imbalance::REGISTRATION,
    &idle::REGISTRATION,
    &orphaned::REGISTRATION,
    &shm::REGISTRATION,
    &visibility::REGISTRATION,
    &xid::REGISTRATION,
    &hardware::REGISTRATION,
    &fit::REGISTRATION,
    &ends::REGISTRATION,
];

/// Registration of an analyzer.
#[derive(Debug)]
pub struct Registration {
    /// The config key under `analyzers`, and the value of the `analyzer` label.
    pub name: &'static str,
    /// What it reports: one sentence.
    pub about: &'static str,
    /// Its own config keys.
    pub options: &'static [Opt],
    /// Every metric it can add.
    pub metrics: &'static [&'static Desc],
    /// Checks settings for contradictions: returns a key within its section and a sentence for each.
    pub check: fn(&Settings) -> Vec<(String, String)>,
    /// Builds the analyzer without history.
    pub build: fn(&Settings) -> Box<dyn Analyzer>,
}

impl Registration {
    /// What most analyzers have in common: no own configuration keys.
    const fn built_by(build: fn(&Settings) -> Box<dyn Analyzer>) -> Self {
        Self { name: "", about: "", options: &[], metrics: &[], check: |_| Vec::new(), build }
    }
}
