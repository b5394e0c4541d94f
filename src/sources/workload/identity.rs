//! The identity of a workload: kind, name and other properties.

use std::sync::Arc;

use super::options::Options;
use crate::host::cgroup_owner::{Owned, Owners};
use crate::host::cgroup_path::{self, Place, SlurmJob};
use crate::model::facts::ProcessRow;
use crate::model::ids::{Anchor, WorkloadKey};
use crate::model::label::Label;
use crate::model::names::named;
use crate::model::pattern;

named! {
    /// How a workload was found, in order of precedence: a process that could be in several is in the first.
    pub(super) enum WorkloadKind {
        Matcher = "matcher",
        Slurm = "slurm",
        Pod = "pod",
        Container = "container",
        Unit = "unit",
        Gpu = "gpu",
        Job = "job",
    }
}

/// The identity of a workload, which never changes. Labels that do not apply are empty.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Identity {
    pub(super) kind: WorkloadKind,
    pub(super) key: WorkloadKey,
    /// Its name, before a suffix that distinguishes it from others is added.
    pub(super) plain: Label,
    pub(super) cgroup: Label,
    pub(super) slurm_job: Label,
    pub(super) pod_uid: Label,
    pub(super) unit: Label,
    /// The run that the configuration gives.
    pub(super) run: Option<Label>,
}

impl Identity {
    fn new(kind: WorkloadKind, key: WorkloadKey, plain: Label, cgroup: &str) -> Self {
        let empty = Label::default();
        let (slurm_job, pod_uid, unit) = (empty.clone(), empty.clone(), empty);
        Self { kind, key, plain, cgroup: cgroup.into(), slurm_job, pod_uid, unit, run: None }
    }

    /// The identity of a configured workload, found with this process first; without a user, processes of all
    /// users are members.
    pub(super) fn of_rule(name: &Label, run: Option<&Label>, user: Option<u32>, first: &ProcessRow) -> Self {
        let key = WorkloadKey { anchor: Anchor::Rule(name.clone()), user };
        Self { run: run.cloned(), ..Self::new(WorkloadKind::Matcher, key, name.clone(), charged(first)) }
    }

    /// The identity of the process tree below `root`, which uses a GPU or reports as a rank.
    pub(super) fn of_tree(kind: WorkloadKind, root: &ProcessRow, options: &Options) -> Self {
        let key = WorkloadKey { anchor: Anchor::Tree(root.key), user: Some(root.uid) };
        // A process can have any name: the name is changed if it looks like one from the host's managers or
        // the configuration.
        let name = format!("{}-{}", root.comm, root.key.pid);
        let plain = if options.reserve(&name) { format!("tree-{name}") } else { name };
        Self::new(kind, key, plain.into(), charged(root))
    }

    /// The identity of a cgroup at `path`; `key` is the part of the path that identifies it.
    fn of_group(kind: WorkloadKind, path: &str, key: &str, plain: String) -> Self {
        let key = WorkloadKey { anchor: Anchor::Group(key.into()), user: None };
        Self::new(kind, key, plain.into(), path)
    }
}

/// The cgroup whose limit applies: that of the memory controller, which on v1 may differ from the one that
/// names the workload.
fn charged(root: &ProcessRow) -> &str {
    let naming = || root.naming_cgroup.as_deref().unwrap_or_default();
    root.cgroup.as_ref().map_or_else(naming, |path| path.as_str())
}

/// The workload that a process's cgroup names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Named {
    pub(super) identity: Arc<Identity>,
    /// The container's id, or the step of a Slurm job; empty if there is none.
    pub(super) part: Label,
}

/// Workloads by cgroup path, cached for a while: most processes share their path with others.
pub(super) struct Names {
    known: foldhash::HashMap<Arc<str>, Option<Named>>,
    owners: Owners,
    turn: u32,
}

/// Samples after which the cache is cleared: a path may have been removed and created again by someone else.
const REMEMBERED: u32 = 64;

impl Names {
    pub(super) fn new(owners: Owners) -> Self {
        Self { known: foldhash::HashMap::default(), owners, turn: 0 }
    }

    /// Called at the start of each sample.
    pub(super) fn turn(&mut self) {
        self.turn = self.turn.wrapping_add(1);
        if self.turn.is_multiple_of(REMEMBERED) {
            self.known.clear();
        }
    }

    /// The workload that a path names.
    ///
    /// # Errors
    /// [`Unknown`], which is not cached.
    pub(super) fn of(&mut self, path: &Arc<str>, options: &Options) -> Result<Option<Named>, Unknown> {
        if let Some(known) = self.known.get(path) {
            return Ok(known.clone());
        }
        let named = named(path, options, &mut self.owners)?;
        self.known.insert(Arc::clone(path), named.clone());
        Ok(named)
    }
}

/// The owners of the folders in a path cannot be determined now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Unknown;

/// The workload that a cgroup path names, if its kind is enabled.
///
/// # Errors
/// [`Unknown`] if the path would name one, but the owners of its folders cannot be determined.
pub(super) fn named(path: &str, options: &Options, owners: &mut Owners) -> Result<Option<Named>, Unknown> {
    let Some(found) = by_path(path, options) else { return Ok(None) };
    let (managed, user) = match owners.of(path) {
        Owned::Managed => return Ok(Some(found)),
        Owned::User { end, user } => (&path[..end], Some(user)),
        // Inside a container the owners cannot be determined either.
        Owned::Unseen => (cgroup_path::outermost(path), None),
        Owned::Unknown => return Err(Unknown),
    };
    let allowed = by_path(managed, options);
    Ok(allowed.or_else(|| of_user(found, managed, user?)))
}

/// A workload created by a user's own container engine or service manager in that user's folder. Schedulers
/// do not run as users.
fn of_user(named: Named, folder: &str, user: u32) -> Option<Named> {
    let Named { identity, part } = named;
    let mut identity = Arc::unwrap_or_clone(identity);
    let own = matches!(&identity.key.anchor, Anchor::Group(path) if path.len() > folder.len());
    if !own || !matches!(identity.kind, WorkloadKind::Container | WorkloadKind::Unit) {
        return None;
    }
    identity.key.user = Some(user);
    Some(Named { identity: Arc::new(identity), part })
}

/// The workload that a path names, regardless of the owners of its folders.
fn by_path(path: &str, options: &Options) -> Option<Named> {
    let empty = Label::default;
    let (identity, part) = match cgroup_path::place(path) {
        Place::Slurm { job, step, path } if options.slurm => {
            let of_job =
                |name: &str| Identity::of_group(WorkloadKind::Slurm, path, path, format!("slurm-{name}"));
            let identity = match job {
                SlurmJob::Id(id) => Identity { slurm_job: id.into(), ..of_job(id) },
                // The job's id is found by `slurm`.
                SlurmJob::Sluid(sluid) => of_job(sluid),
            };
            (identity, step.unwrap_or_default().into())
        }
        Place::Pod { uid, container, path } if options.kubernetes => {
            // containerd's cgroupfs layout has the container in the name of the same folder.
            let folder = path.rfind('/').unwrap_or(0);
            let pod = path[folder..].find(':').map_or(path, |colon| &path[..folder + colon]);
            let identity = Identity::of_group(WorkloadKind::Pod, path, pod, format!("pod-{uid}"));
            (Identity { pod_uid: uid.into(), ..identity }, container.unwrap_or_default().into())
        }
        Place::Container { id, path } if options.containers => {
            let short = id.get(..12).unwrap_or(id);
            (Identity::of_group(WorkloadKind::Container, path, path, format!("container-{short}")), id.into())
        }
        _ => {
            let wanted = |unit: &str| options.units.iter().any(|wanted| pattern::fits(wanted, unit));
            let (unit, path) = cgroup_path::units(path).find(|(unit, _)| wanted(unit))?;
            let identity = Identity::of_group(WorkloadKind::Unit, path, path, format!("unit-{unit}"));
            (Identity { unit: unit.into(), ..identity }, empty())
        }
    };
    Some(Named { identity: Arc::new(identity), part })
}
