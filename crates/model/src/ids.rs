//! Identities that stay unique when a pid is reused.

use std::sync::Arc;

use super::label::Label;

/// Identity of a process: a pid is only unique together with its start time.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, serde::Serialize, serde::Deserialize,
)]
pub struct ProcessKey {
    /// The pid in the daemon's pid namespace.
    pub pid: u32,
    /// Field 22 of `/proc/PID/stat`: clock ticks after boot.
    pub start: u64,
}

/// Whether `path` is the cgroup `top`, or below it; everything is below `/`.
pub fn within(path: &str, top: &str) -> bool {
    let top = top.trim_end_matches('/');
    path.strip_prefix(top).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

/// A cgroup and the ones above it.
pub fn path(cgroup: &str) -> impl Iterator<Item = &str> {
    std::iter::successors(Some(cgroup), |path| {
        let parent = path.rsplit_once('/')?.0;
        (!path.is_empty() && *path != "/").then_some(if parent.is_empty() { "/" } else { parent })
    })
}

/// Identity of a workload. Its name is for display only and does not determine its members.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct WorkloadKey {
    /// The property that its processes share.
    pub anchor: Anchor,
    /// The user of its processes, including what they started as root. Absent where processes of several users can be
    /// members: in a cgroup that the host's managers create, and in a tree that the configuration names by its pid.
    pub user: Option<u32>,
}

/// The property that the processes of a workload share.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Anchor {
    /// A rule of the configuration, by its name.
    Rule(Label),
    /// A cgroup, by its path in the hierarchy that names it. With a user: the cgroup is in a subtree of that user.
    Group(Arc<str>),
    /// The root process of their process tree.
    Tree(ProcessKey),
}
