//! Configuration keys of the `cgroup` source.

use std::time::Duration;

use super::glob::Glob;
use crate::model::setting::{Opt, OptKind, Settings, seconds};

/// Paths of cgroups to expose.
pub static INCLUDE: Opt = Opt {
    key: "include",
    help: "Paths of the cgroups to expose, relative to the root of the hierarchy; empty means all. `*` matches within a segment, `**` any number of segments: /slurm/**, docker-*.scope.",
    kind: OptKind::Texts,
    default: "[]",
};

/// Paths of cgroups not to expose.
pub static EXCLUDE: Opt = Opt {
    key: "exclude",
    help: "Paths of the cgroups not to expose, with the same wildcards as the option include.",
    kind: OptKind::Texts,
    default: "[]",
};

/// Number of levels to read.
pub static DEPTH: Opt = Opt {
    key: "depth",
    help: "Number of levels of the hierarchy that are read. A Slurm task is at level 6, a Kubernetes container at level 4, or 7 where the node is a container itself.",
    kind: OptKind::Count(0, 32),
    default: "8",
};

/// Maximum number of cgroups to expose.
pub static MOST: Opt = Opt {
    key: "max_cgroups",
    help: "Maximum number of cgroups exposed; those with the largest usage of each user are selected, the others are counted.",
    kind: OptKind::Count(1, 1_000),
    default: "256",
};

/// Interval between two walks.
pub static RESCAN: Opt = Opt {
    key: "rescan_interval",
    help: "Time between two scans of the hierarchy for new cgroups. A removed cgroup is detected at the next sample.",
    kind: seconds(1, 3600),
    default: "5s",
};

pub static ALL: &[&Opt] = &[&INCLUDE, &EXCLUDE, &DEPTH, &MOST, &RESCAN];

#[derive(Debug)]
pub struct Rules {
    include: Vec<Glob>,
    exclude: Vec<Glob>,
    /// Levels below the root.
    pub depth: u64,
    /// Maximum number of exposed cgroups.
    pub max_cgroups: usize,
    /// Time between two walks.
    pub rescan_interval: Duration,
}

impl Rules {
    /// Reads the source's section.
    pub fn new(settings: &Settings) -> Self {
        let globs = |opt| settings.texts(opt).iter().map(|text| Glob::new(text)).collect();
        Self {
            include: globs(&INCLUDE),
            exclude: globs(&EXCLUDE),
            depth: settings.count(&DEPTH),
            max_cgroups: usize::try_from(settings.count(&MOST)).unwrap_or(usize::MAX),
            rescan_interval: settings.duration(&RESCAN),
        }
    }

    /// Whether a cgroup may be exposed.
    pub fn want(&self, path: &str) -> bool {
        (self.include.is_empty() || self.include.iter().any(|glob| glob.matches(path)))
            && !self.exclude.iter().any(|glob| glob.matches(path))
    }
}
