//! The steps whose time grows with the number of processes: they list, open or inspect all of a job.
//!
//! A worker has the buffers for one such step, and carries it out on whichever thread has it.

use std::collections::HashSet;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use super::group::{self, Groups, OpenGroup};
use super::handle::Handle;
use super::process_status::Proc;
use super::reach::{self, Mode, NotSignalled, OpenProcess};
use super::release::ReleaseQueue;
use super::tree::Table;
use super::{ArmError, MOST, refused};
use crate::host::cgroup::{self, Version};
use crate::model::ids::ProcessKey;
use crate::model::units::Bytes;
use crate::protection::types::scope::{Exempt, Scope};
use crate::protection::types::step::{Group, Outcome, Skip, StepError, Ticket, Touched, Work};

/// How such a step ended.
#[derive(Debug)]
pub(super) enum Reached {
    /// Its outcome, and the number of processes.
    Processes(Outcome, u32),
    /// These processes and this cgroup are to be waited for.
    Open { processes: Vec<Handle>, group: Option<OpenGroup> },
}

/// The files and buffers of one step.
#[derive(Debug)]
pub(super) struct Worker {
    pub(super) mode: Mode,
    pub(super) proc: Proc,
    pub(super) groups: Option<Groups>,
    pub(super) exempt: Exempt,
    /// The processes that the last step reached.
    pub(super) touched: Vec<Touched>,
    pub(super) met: HashSet<ProcessKey, foldhash::fast::RandomState>,
    pub(super) roots: HashSet<ProcessKey, foldhash::fast::RandomState>,
    pub(super) pids: Vec<u32>,
    /// The processes that were stopped and are to be killed.
    pub(super) held: Vec<OpenProcess>,
    pub(super) table: Table,
    releases: ReleaseQueue,
    /// Whether the daemon ends: no further process is stopped, and those that are stopped are killed at once.
    pub(super) hurry: Arc<AtomicBool>,
}

impl Worker {
    /// Allocates everything that signals need.
    ///
    /// # Errors
    /// If processes cannot be read.
    pub(super) fn new(
        mode: Mode,
        proc: &Path,
        cgroup: &Path,
        exempt: Exempt,
        releases: ReleaseQueue,
    ) -> Result<Self, ArmError> {
        let hierarchy = cgroup::memory_hierarchy(cgroup).ok().and_then(Result::ok);
        let groups = hierarchy.map(|hierarchy| Groups::new(hierarchy, cgroup));
        let version = groups.as_ref().map_or(Version::V2, Groups::version);
        let no_proc = |source: std::io::Error| ArmError::Proc { path: proc.into(), source };
        Ok(Self {
            mode,
            proc: Proc::open(proc, version).map_err(|error| no_proc(error.into()))?,
            groups,
            exempt,
            touched: Vec::with_capacity(MOST),
            met: HashSet::with_capacity_and_hasher(2 * MOST, foldhash::fast::RandomState::default()),
            roots: HashSet::with_capacity_and_hasher(2 * MOST, foldhash::fast::RandomState::default()),
            pids: Vec::with_capacity(2 * MOST),
            held: Vec::with_capacity(MOST),
            table: Table::new(),
            releases,
            hurry: Arc::default(),
        })
    }

    /// Carries out a step for which [`Work::lists`] is true; `later` is the ticket of an end that is reported later.
    pub(super) fn carry_out(
        &mut self,
        scope: &Scope,
        work: &Work,
        later: Ticket,
    ) -> Result<Reached, NotSignalled> {
        self.touched.clear();
        let (outcome, count) = match work {
            Work::KillTree { roots } => self.kill_tree(scope, roots)?,
            Work::KillGroup { group } => self.kill_group(scope, group)?,
            Work::Raise { group, limited, from, to } => self.raise(scope, group, *limited, (*from, *to))?,
            Work::Freeze { group } => self.freeze(scope, group)?,
            Work::Release { processes } => self.release(scope, processes, later)?,
            Work::AwaitEnd { processes, group, .. } => return self.open(processes, group.as_ref()),
            _ => return Err(NotSignalled::Skip(Skip::Unsupported)),
        };
        Ok(Reached::Processes(outcome, count))
    }

    /// Finds a process in a scope.
    pub(super) fn find(&mut self, scope: &Scope, key: ProcessKey) -> Result<OpenProcess, NotSignalled> {
        reach::find(&mut self.proc, scope, &self.exempt, key)
    }

    pub(super) fn note(&mut self, touched: Touched) {
        if self.touched.len() < MOST {
            self.touched.push(touched);
        }
    }

    /// The result of a step that was done, or would have been done.
    pub(super) fn done(&self) -> Outcome {
        match self.mode {
            Mode::Enforce => Outcome::Done,
            Mode::Drill => Outcome::WouldHave,
        }
    }

    pub(super) fn groups(&self) -> Result<&Groups, NotSignalled> {
        self.groups.as_ref().ok_or(NotSignalled::Skip(Skip::Unsupported))
    }

    /// Raises the limits up to `to` of `group` and of those ancestors that belong to the target, of which one has the inode
    /// `limited` and the limit `from`. All processes in them must be the target's.
    fn raise(
        &mut self,
        scope: &Scope,
        group: &Group,
        limited: u64,
        (from, to): (Bytes, Bytes),
    ) -> Result<(Outcome, u32), NotSignalled> {
        scope.admits_group(group.path.as_str(), &self.exempt).map_err(refused)?;
        let groups = self.groups()?;
        groups.open(group)?;
        let own = group::upwards(group.path.as_str())
            .take_while(|path| scope.admits_group(path, &self.exempt).is_ok())
            .count();
        let (mut found, mut top) = (false, None);
        for path in group::upwards(group.path.as_str()).take(own) {
            let open = groups.at(path)?;
            let limit = open.limit().map_err(|error| group::failed("read the limit", error))?;
            if open.inode() == Some(limited) {
                found = limit == Some(from.get());
            }
            if limit.is_some_and(|limit| limit < to.get()) {
                top = Some(open);
            }
        }
        let (true, Some(top)) = (found, top) else { return Err(NotSignalled::Skip(Skip::Unsupported)) };
        self.all_ours(scope, &top)?;
        // They were compared with the scope, and nothing is done to them.
        self.touched.clear();
        if self.mode == Mode::Drill {
            top.writable().map_err(|error| group::failed("raise the limit", error))?;
        } else {
            for path in group::upwards(group.path.as_str()).take(own) {
                self.groups()?
                    .at(path)?
                    .raise(to)
                    .map_err(|error| group::failed("raise the limit", error))?;
            }
        }
        Ok((self.done(), 0))
    }

    fn freeze(&mut self, scope: &Scope, group: &Group) -> Result<(Outcome, u32), NotSignalled> {
        scope.admits_group(group.path.as_str(), &self.exempt).map_err(refused)?;
        let open = self.switched(group)?;
        self.all_ours(scope, &open)?;
        if self.hurries() {
            // Nobody would thaw it.
            return Err(NotSignalled::Skip(Skip::Busy));
        }
        self.switch(&open, true)
    }

    /// Thaws a cgroup; the caller has checked whether it may.
    pub(super) fn thaw(&self, group: &Group) -> Result<(Outcome, u32), NotSignalled> {
        self.switch(&self.switched(group)?, false)
    }

    /// The cgroup with the file that freezes.
    fn switched(&self, group: &Group) -> Result<OpenGroup, NotSignalled> {
        let groups = self.groups()?;
        let open = groups.open(group)?;
        let open = if groups.version() == Version::V2 { Some(open) } else { groups.freezer(group) };
        open.ok_or(NotSignalled::Skip(Skip::Unsupported))
    }

    fn switch(&self, open: &OpenGroup, frozen: bool) -> Result<(Outcome, u32), NotSignalled> {
        let result = if self.mode == Mode::Drill { open.writable() } else { open.freeze(frozen) };
        result.map_err(|error| group::failed("freeze", error))?;
        Ok((self.done(), 0))
    }

    fn release(
        &mut self,
        scope: &Scope,
        processes: &[ProcessKey],
        ticket: Ticket,
    ) -> Result<(Outcome, u32), NotSignalled> {
        if self.mode == Mode::Drill {
            return Ok((Outcome::WouldHave, 0));
        }
        let mut waiting: Option<(OpenProcess, u32)> = None;
        let mut count = 0;
        for key in processes {
            // The scope is checked here too: the kernel refuses processes that are not being killed, but not those
            // outside the scope.
            let Ok(found) = self.find(scope, *key) else { continue };
            if let Some((before, pid)) = waiting.replace((found, key.pid))
                && self.releases.take(before.pidfd, pid, ticket, false)
            {
                count += 1;
            }
        }
        let Some((last, pid)) = waiting else { return Err(NotSignalled::Skip(Skip::Gone)) };
        if !self.releases.take(last.pidfd, pid, ticket, true) {
            return Err(NotSignalled::Skip(Skip::Busy));
        }
        Ok((Outcome::Started(ticket), count + 1))
    }

    /// Opens processes and a cgroup, to wait for their end.
    fn open(&mut self, processes: &[ProcessKey], group: Option<&Group>) -> Result<Reached, NotSignalled> {
        let mut open = Vec::with_capacity(processes.len().min(MOST));
        for key in processes.iter().take(MOST) {
            match reach::watch(&mut self.proc, *key) {
                Ok(pidfd) => open.push(pidfd),
                Err(NotSignalled::Skip(_)) => {}
                Err(NotSignalled::Error(error)) => return Err(NotSignalled::Error(error)),
            }
        }
        let group = match (group, &self.groups) {
            (Some(group), Some(groups)) => match groups.open(group) {
                Ok(open) => Some(open),
                // It was removed, which requires that it is empty.
                Err(StepError::OtherGroup { .. }) => None,
                Err(error) => return Err(error.into()),
            },
            _ => None,
        };
        Ok(Reached::Open { processes: open, group })
    }
}
