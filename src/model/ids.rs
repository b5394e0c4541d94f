//! Identities that survive reuse of a number.

use std::sync::Arc;

use super::label::Label;

/// A process: a pid means nothing without the time it started.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, serde::Serialize, serde::Deserialize)]
pub struct ProcessKey {
    /// The pid in the daemon's pid namespace.
    pub pid: u32,
    /// Field 22 of `/proc/PID/stat`: clock ticks after boot.
    pub start: u64,
}

/// What makes a workload one. Its name is text for people and says nothing about who belongs to it.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct WorkloadKey {
    /// What its processes have in common.
    pub anchor: Anchor,
    /// The user whose processes it is made of, with what they started as root. Absent where processes of several users
    /// can be members: in a cgroup that the host's managers keep, and in a tree that the configuration names by its pid.
    pub user: Option<u32>,
}

/// What the processes of a workload have in common.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Anchor {
    /// A rule of the configuration, by its name.
    Rule(Label),
    /// A cgroup, by its path in the hierarchy that names it. With a user: in a part of the hierarchy that is that user's.
    Group(Arc<str>),
    /// The process that their tree begins at.
    Tree(ProcessKey),
}
