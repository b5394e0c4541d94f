//! What makes a workload one: its kind, its name, and what else is known of it.

use std::sync::Arc;

use super::options::Rules;
use crate::host::cgroup_path::{self, Place};
use crate::model::facts::ProcessRow;
use crate::model::label::Label;
use crate::model::pattern;

/// How a workload was found. The order is the precedence: a process that could be in several is in the first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum Kind {
    Matcher,
    Slurm,
    Pod,
    Container,
    Unit,
    Gpu,
    Job,
}

impl Kind {
    /// The value of the `kind` label.
    pub(super) const fn label(self) -> &'static str {
        match self {
            Self::Matcher => "matcher",
            Self::Slurm => "slurm",
            Self::Pod => "pod",
            Self::Container => "container",
            Self::Unit => "unit",
            Self::Gpu => "gpu",
            Self::Job => "job",
        }
    }
}

/// What a workload is, all its life. What does not apply is empty.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Identity {
    pub(super) kind: Kind,
    pub(super) name: Label,
    pub(super) cgroup: Label,
    pub(super) slurm_job: Label,
    pub(super) pod_uid: Label,
    pub(super) unit: Label,
}

impl Identity {
    fn new(kind: Kind, name: String, cgroup: &str) -> Self {
        let empty = Label::from("");
        Self {
            kind,
            name: name.into(),
            cgroup: cgroup.into(),
            slurm_job: empty.clone(),
            pod_uid: empty.clone(),
            unit: empty,
        }
    }

    /// That of a configured matcher, found at this process first.
    pub(super) fn of_matcher(name: &Label, root: &ProcessRow) -> Self {
        Self::new(Kind::Matcher, name.to_string(), charged(root))
    }

    /// That of the tree below `root`, which uses a GPU or speaks as a job.
    pub(super) fn of_tree(kind: Kind, root: &ProcessRow) -> Self {
        let name = format!("{}-{}", root.comm, root.key.pid);
        Self::new(kind, name, charged(root))
    }
}

/// The cgroup whose limit would stop it: the memory controller's, which on v1 need not be the one that names it.
fn charged(root: &ProcessRow) -> &str {
    let naming = || root.naming_cgroup.as_deref().unwrap_or_default();
    root.cgroup.as_ref().map_or_else(naming, |path| path.as_str())
}

/// What a process's cgroup says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Named {
    pub(super) identity: Arc<Identity>,
    /// The container's id; empty for none.
    pub(super) container: Label,
}

/// The workload that a cgroup's path names, as far as the rules want such.
pub(super) fn named(path: &str, rules: &Rules) -> Option<Named> {
    let empty = || Label::from("");
    let (identity, container) = match cgroup_path::place(path) {
        Place::Slurm { job, path } if rules.slurm => {
            let identity = Identity::new(Kind::Slurm, format!("slurm-{job}"), path);
            (Identity { slurm_job: job.into(), ..identity }, empty())
        }
        Place::Pod { uid, container, path } if rules.kubernetes => {
            let identity = Identity::new(Kind::Pod, format!("pod-{uid}"), path);
            (Identity { pod_uid: uid.into(), ..identity }, container.unwrap_or_default().into())
        }
        Place::Container { id, path } if rules.containers => {
            let short = id.get(..12).unwrap_or(id);
            (Identity::new(Kind::Container, format!("container-{short}"), path), id.into())
        }
        _ => {
            let wanted = |unit: &str| rules.units.iter().any(|wanted| pattern::fits(wanted, unit));
            let (unit, path) = cgroup_path::units(path).find(|(unit, _)| wanted(unit))?;
            let identity = Identity::new(Kind::Unit, format!("unit-{unit}"), path);
            (Identity { unit: unit.into(), ..identity }, empty())
        }
    };
    Some(Named { identity: Arc::new(identity), container })
}
