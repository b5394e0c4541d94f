//! Configuration keys of the `cgroup` source.

use std::time::Duration;

use super::glob::Glob;
use crate::model::setting::{OptKind, Setting, Value};

crate::options! {
    /// The options of the source.
    pub struct Options {
        /// Paths of the cgroups to expose, relative to the root of the hierarchy; empty means all. `*` matches within a
        /// segment, `**` any number of segments: /slurm/**, docker-*.scope.
        include: Globs;
        /// Paths of the cgroups not to expose, with the same wildcards as the option include.
        exclude: Globs;
        /// Number of levels of the hierarchy that are read. A Slurm task is at level 6, a Kubernetes container at level
        /// 4, or 7 where the node is a container itself.
        depth: u64 = 8 in 0..=32;
        /// Maximum number of cgroups exposed; those with the largest usage of each user are selected, the others are
        /// counted.
        max_cgroups: usize = 256 in 1..=1000;
        /// Time between two scans of the hierarchy for new cgroups. A removed cgroup is detected at the next sample.
        rescan_interval: Duration = 5s in 1s..=1h;
    }
}

/// Patterns of paths.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Globs(pub(super) Vec<Glob>);

impl Setting for Globs {
    const KIND: OptKind = OptKind::Texts;

    fn of(value: &Value) -> Result<Self, String> {
        Ok(Self(Vec::<String>::of(value)?.iter().map(|text| Glob::new(text)).collect()))
    }
}

impl Options {
    /// Whether a cgroup may be exposed.
    pub fn want(&self, path: &str) -> bool {
        (self.include.0.is_empty() || self.include.0.iter().any(|glob| glob.matches(path)))
            && !self.exclude.0.iter().any(|glob| glob.matches(path))
    }
}
