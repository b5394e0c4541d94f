//! The only place that signals, kills and freezes processes of jobs, raises the limits of their cgroups, and starts hooks.
//!
//! [`Machine`] carries out the steps of a plan; it inspects each process itself, immediately before, and refuses those
//! outside the scope of the slot. [`Observer`] has no means to act.

mod background;
mod checkpoint_file;
mod exempt;
mod group;
mod helpers;
mod kill;
mod leftover;
mod marker;
mod observer;
mod process_status;
mod raw;
mod reach;
mod release;
mod tree;
mod wait;

use std::collections::HashSet;
use std::path::Path;
use std::time::Duration;

use crate::host::cgroup::{self, Version};
use crate::host::clock;
use crate::model::ids::ProcessKey;
use crate::model::time::Timestamp;
use crate::model::units::Bytes;
use crate::protection::types::scope::{Exempt, Refusal, Scope};
use crate::protection::types::step::{
    Acknowledgement, Executor, Finished, Group, Outcome, Skip, Step, StepDone, StepError, TargetId, Ticket,
    Touched, Work,
};

pub use background::{BackgroundExecutor, BackgroundExecutors};
use checkpoint_file::Request;
pub use checkpoint_file::run as run_checkpoint_file;
pub use exempt::exempt;
use group::Groups;
use helpers::Helpers;
pub use leftover::let_go;
pub use observer::Observer;
use process_status::Proc;
pub use reach::Mode;
use reach::{NotSignalled, OpenProcess};
use release::{Releaser, micros};
use tree::Table;
use wait::{Goal, Progress, Wait};

/// Maximum number of processes that one step can reach; a job has hundreds.
const MOST: usize = 4096;
/// Maximum number of slots with a scope; more are refused.
const TARGETS: usize = 256;

/// Why the executor could not be set up.
#[derive(Debug, thiserror::Error)]
pub enum ArmError {
    /// Processes cannot be read.
    #[error("cannot read {path}")]
    Proc {
        /// The path.
        path: Box<Path>,
        /// Why.
        #[source]
        source: std::io::Error,
    },
    /// A thread cannot be started.
    #[error("cannot start a thread")]
    Thread(#[source] std::io::Error),
}

/// The state of a slot.
#[derive(Debug)]
struct Target {
    id: TargetId,
    scope: Scope,
    /// When it was signalled first in this incident.
    asked: Option<Timestamp>,
    /// The user of the process that was found last; 0 before.
    user: u32,
}

#[derive(Debug)]
struct Pending {
    ticket: Ticket,
    target: TargetId,
    wait: Wait,
}

/// Carries out steps on this machine.
#[derive(Debug)]
pub struct Machine {
    mode: Mode,
    proc: Proc,
    /// The path of the process file system.
    root: Box<Path>,
    groups: Option<Groups>,
    exempt: Exempt,
    targets: Vec<Target>,
    touched: Vec<Touched>,
    met: HashSet<ProcessKey, foldhash::fast::RandomState>,
    roots: HashSet<ProcessKey, foldhash::fast::RandomState>,
    pids: Vec<u32>,
    /// The processes that were stopped and are to be killed.
    held: Vec<OpenProcess>,
    table: Table,
    releaser: Releaser,
    background: BackgroundExecutors,
    pending: Vec<Pending>,
    helpers: Helpers,
    /// The frozen cgroups, which may be thawed whatever the scope is by then.
    stopped: Vec<(TargetId, Group)>,
    next: u64,
}

impl Machine {
    /// Sets up the executor for the files below `proc` and `cgroup`; it never signals `never`.
    ///
    /// Allocates everything that signals need. Without a memory controller, cgroups are not supported.
    ///
    /// # Errors
    /// What cannot be set up; no process can be signalled then.
    pub fn arm(
        mode: Mode,
        proc: &Path,
        cgroup: &Path,
        exempt: Exempt,
        background: BackgroundExecutors,
    ) -> Result<Self, ArmError> {
        let hierarchy = cgroup::memory_hierarchy(cgroup).ok().and_then(Result::ok);
        let groups = hierarchy.map(|hierarchy| Groups::new(hierarchy, cgroup));
        let version = groups.as_ref().map_or(Version::V2, Groups::version);
        let no_proc = |source: std::io::Error| ArmError::Proc { path: proc.into(), source };
        Ok(Self {
            mode,
            proc: Proc::open(proc, version).map_err(|error| no_proc(error.into()))?,
            root: proc.into(),
            groups,
            exempt,
            targets: Vec::with_capacity(TARGETS),
            touched: Vec::with_capacity(MOST),
            met: HashSet::with_capacity_and_hasher(2 * MOST, foldhash::fast::RandomState::default()),
            roots: HashSet::with_capacity_and_hasher(2 * MOST, foldhash::fast::RandomState::default()),
            pids: Vec::with_capacity(2 * MOST),
            held: Vec::with_capacity(MOST),
            table: Table::new(),
            releaser: Releaser::start().map_err(ArmError::Thread)?,
            background,
            pending: Vec::with_capacity(TARGETS),
            helpers: Helpers::default(),
            stopped: Vec::with_capacity(TARGETS),
            next: 0,
        })
    }

    /// Uses the v2 hierarchy at `root` for groups, whatever controllers it has.
    #[cfg(test)]
    fn on_unified(&mut self, proc: &Path, root: &Path) {
        let hierarchy = cgroup::Hierarchy { version: Version::V2, root: root.to_owned() };
        self.groups = Some(Groups::new(hierarchy, root));
        self.proc = Proc::open(proc, Version::V2).expect("the test's own");
    }

    fn ticket(&mut self) -> Ticket {
        self.next += 1;
        Ticket(self.next)
    }

    fn target(&self, id: TargetId) -> Result<&Target, StepError> {
        self.targets.iter().find(|target| target.id == id).ok_or(StepError::NoScope(id))
    }

    fn groups(&self) -> Result<&Groups, NotSignalled> {
        self.groups.as_ref().ok_or(NotSignalled::Skip(Skip::Unsupported))
    }

    /// Finds a process in the scope of a slot.
    fn find(&mut self, id: TargetId, key: ProcessKey) -> Result<OpenProcess, NotSignalled> {
        let target = self.targets.iter_mut().find(|target| target.id == id).ok_or(StepError::NoScope(id))?;
        let found = reach::find(&mut self.proc, &target.scope, &self.exempt, key)?;
        target.user = found.process.users[1];
        Ok(found)
    }

    fn note(&mut self, touched: Touched) {
        if self.touched.len() < MOST {
            self.touched.push(touched);
        }
    }

    fn carry_out(&mut self, step: &Step) -> Result<(Outcome, u32), NotSignalled> {
        let id = step.target;
        if let Work::Thaw { group } = &step.work
            && self.stopped.iter().any(|(target, stopped)| (target, stopped) == (&id, group))
        {
            return self.switch(id, group, false);
        }
        self.target(id)?;
        match &step.work {
            Work::RunRequested { .. } => Ok((Outcome::Done, 0)),
            Work::Record | Work::Hook { .. } | Work::Webhook { .. } | Work::AskRun { .. } => {
                if self.mode == Mode::Drill {
                    return Ok((Outcome::WouldHave, 0));
                }
                let ticket = self.ticket();
                self.background.begin(ticket, step)?;
                Ok((Outcome::Started(ticket), 0))
            }
            Work::Signal { process, signal, only_if_caught } => {
                let now = clock::now();
                let found = self.find(id, *process)?;
                if *only_if_caught && found.process.caught & (1 << (signal.get() - 1)) == 0 {
                    return Err(NotSignalled::Skip(Skip::NotCaught));
                }
                reach::send(self.mode, &found, *signal)?;
                self.note(reach::touched(&found.process, 0));
                let target = self.targets.iter_mut().find(|target| target.id == id);
                if let Some(target) = target.filter(|_| self.mode == Mode::Enforce) {
                    target.asked.get_or_insert(now);
                }
                Ok((self.done(), 1))
            }
            Work::KillTree { roots } => self.kill_tree(id, roots),
            Work::KillGroup { group } => self.kill_group(id, group),
            Work::Raise { group, limited, from, to } => self.raise(id, group, *limited, (*from, *to)),
            Work::Freeze { group } => self.freeze(id, group, true),
            Work::Thaw { group } => self.freeze(id, group, false),
            Work::Release { processes } => self.release(id, processes),
            Work::AwaitEnd { processes, group, within } => {
                self.await_end(id, processes, group.as_ref(), *within)
            }
            Work::Touch { process, path } => self.touch(id, *process, path),
            Work::Await { by, within } => self.await_word(id, by, *within),
        }
    }

    /// The result of a step that was done, or would have been done.
    fn done(&self) -> Outcome {
        match self.mode {
            Mode::Enforce => Outcome::Done,
            Mode::Drill => Outcome::WouldHave,
        }
    }

    /// Raises the limits up to `to` of `group` and of those ancestors that belong to the target, of which one has the inode
    /// `limited` and the limit `from`. All processes in them must be the target's.
    fn raise(
        &mut self,
        id: TargetId,
        group: &Group,
        limited: u64,
        (from, to): (Bytes, Bytes),
    ) -> Result<(Outcome, u32), NotSignalled> {
        self.target(id)?.scope.admits_group(group.path.as_str(), &self.exempt).map_err(refused)?;
        let groups = self.groups()?;
        groups.open(group)?;
        let scope = &self.target(id)?.scope;
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
        self.all_ours(id, &top)?;
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

    fn freeze(&mut self, id: TargetId, group: &Group, frozen: bool) -> Result<(Outcome, u32), NotSignalled> {
        self.target(id)?.scope.admits_group(group.path.as_str(), &self.exempt).map_err(refused)?;
        self.switch(id, group, frozen)
    }

    fn switch(&mut self, id: TargetId, group: &Group, frozen: bool) -> Result<(Outcome, u32), NotSignalled> {
        let groups = self.groups()?;
        let open = groups.open(group)?;
        let open = if groups.version() == Version::V2 { Some(open) } else { groups.freezer(group) };
        let Some(open) = open else { return Err(NotSignalled::Skip(Skip::Unsupported)) };
        if frozen {
            self.all_ours(id, &open)?;
        }
        if self.mode == Mode::Drill {
            open.writable().map_err(|error| group::failed("freeze", error))?;
        } else {
            open.freeze(frozen).map_err(|error| group::failed("freeze", error))?;
            self.stopped.retain(|(_, stopped)| stopped != group);
            if frozen {
                self.stopped.push((id, group.clone()));
            }
        }
        Ok((self.done(), 0))
    }

    fn release(&mut self, id: TargetId, processes: &[ProcessKey]) -> Result<(Outcome, u32), NotSignalled> {
        if self.mode == Mode::Drill {
            return Ok((Outcome::WouldHave, 0));
        }
        let ticket = self.ticket();
        let mut waiting: Option<(OpenProcess, u32)> = None;
        let mut count = 0;
        for key in processes {
            // The scope is checked here too: the kernel refuses processes that are not being killed, but not those
            // outside the scope.
            let Ok(found) = self.find(id, *key) else { continue };
            if let Some((before, pid)) = waiting.replace((found, key.pid))
                && self.releaser.take(before.pidfd, pid, ticket, false)
            {
                count += 1;
            }
        }
        let Some((last, pid)) = waiting else { return Err(NotSignalled::Skip(Skip::Gone)) };
        if !self.releaser.take(last.pidfd, pid, ticket, true) {
            return Err(NotSignalled::Skip(Skip::Busy));
        }
        Ok((Outcome::Started(ticket), count + 1))
    }

    fn await_end(
        &mut self,
        id: TargetId,
        processes: &[ProcessKey],
        group: Option<&Group>,
        within: Duration,
    ) -> Result<(Outcome, u32), NotSignalled> {
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
        let count = u32::try_from(open.len()).unwrap_or(u32::MAX);
        let goal = Goal::End { processes: open, group };
        Ok((Outcome::Started(self.wait(id, goal, within, count)), count))
    }

    fn await_word(
        &mut self,
        id: TargetId,
        by: &Acknowledgement,
        within: Duration,
    ) -> Result<(Outcome, u32), NotSignalled> {
        if self.mode == Mode::Drill {
            return Ok((Outcome::WouldHave, 0));
        }
        let now = clock::now();
        let user = self.target(id)?.user;
        let token = self.helpers.admit(user, now).ok_or(NotSignalled::Skip(Skip::Busy))?;
        let target = self.target(id)?;
        let asked = target.asked.unwrap_or(now).unix();
        let request = Request::Await { by: by.clone(), users: target.scope.users.clone(), since: asked };
        let goal = wait::start(token, self.background.files.as_ref(), &request).map_err(no_thread)?;
        Ok((Outcome::Started(self.wait(id, goal, within, 0)), 0))
    }

    fn touch(
        &mut self,
        id: TargetId,
        process: ProcessKey,
        path: &Path,
    ) -> Result<(Outcome, u32), NotSignalled> {
        /// A file system that hangs ends nothing but the wait.
        const TOUCH_TIMEOUT: Duration = Duration::from_secs(10);
        let found = self.find(id, process)?;
        if self.mode == Mode::Drill {
            return Ok((Outcome::WouldHave, 0));
        }
        self.note(reach::touched(&found.process, 0));
        // Its effective user, which the scope allows; the helper refuses a process that has any other by then.
        let [_, user, _] = found.process.users;
        let token = self.helpers.admit(user, clock::now()).ok_or(NotSignalled::Skip(Skip::Busy))?;
        let request = Request::Touch { proc: self.root.to_path_buf(), process, user, path: path.to_owned() };
        let goal = wait::start(token, self.background.files.as_ref(), &request).map_err(no_thread)?;
        Ok((Outcome::Started(self.wait(id, goal, TOUCH_TIMEOUT, 1)), 1))
    }

    fn wait(&mut self, target: TargetId, goal: Goal, within: Duration, processes: u32) -> Ticket {
        let ticket = self.ticket();
        let wait = Wait { goal, begun: clock::now(), within, processes };
        self.pending.push(Pending { ticket, target, wait });
        ticket
    }
}

fn no_thread(error: std::io::Error) -> StepError {
    StepError::System { call: "start a thread", pid: 0, errno: error.raw_os_error().unwrap_or(0) }
}
fn refused(refusal: Refusal) -> NotSignalled {
    NotSignalled::Error(StepError::Refused { pid: 0, refusal })
}

impl Executor for Machine {
    fn bound(&mut self, target: TargetId, scope: Option<Scope>) -> Result<(), Refusal> {
        let asked = self.targets.iter().find(|known| known.id == target).and_then(|known| known.asked);
        self.targets.retain(|known| known.id != target);
        let Some(scope) = scope else { return Ok(()) };
        scope.sound(&self.exempt)?;
        if self.targets.len() < TARGETS {
            self.targets.push(Target { id: target, scope, asked, user: 0 });
        }
        Ok(())
    }

    fn perform(&mut self, step: &Step) -> Result<StepDone, StepError> {
        let begun = clock::now();
        self.touched.clear();
        let (outcome, processes) = match self.carry_out(step) {
            Ok(carried) => carried,
            Err(NotSignalled::Skip(skip)) => (Outcome::Skipped(skip), 0),
            Err(NotSignalled::Error(error)) => return Err(error),
        };
        Ok(StepDone { outcome, processes, micros: micros(clock::now().since(begun)) })
    }

    fn rehearse(&mut self, step: &Step) -> Result<StepDone, StepError> {
        let mode = std::mem::replace(&mut self.mode, Mode::Drill);
        let result = self.perform(step);
        self.mode = mode;
        result
    }

    fn touched(&self) -> &[Touched] {
        &self.touched
    }

    fn poll(&mut self, finished: &mut Vec<Finished>) {
        self.releaser.poll(finished);
        self.background.poll(finished);
        let now = clock::now();
        self.helpers.look(now);
        self.pending.retain_mut(|pending| {
            let Pending { ticket, wait, .. } = pending;
            let report = |outcome| {
                let micros = micros(now.since(wait.begun));
                Ok(StepDone { outcome, processes: wait.processes, micros })
            };
            let result = match wait.goal.check() {
                Progress::Reached => report(Outcome::Done),
                Progress::Saving => report(Outcome::Saving(*ticket)),
                Progress::Waiting { left } if wait.over(now) => {
                    Err(StepError::TimedOut { within: wait.within, left })
                }
                Progress::Failed { why } => Err(StepError::Outside { what: why }),
                Progress::Waiting { .. } => return true,
            };
            let continues = matches!(result, Ok(StepDone { outcome: Outcome::Saving(_), .. }));
            finished.push(Finished::new(*ticket, result));
            continues
        });
    }

    fn forget(&mut self, target: TargetId) {
        self.pending.retain(|pending| pending.target != target);
        if let Some(known) = self.targets.iter_mut().find(|known| known.id == target) {
            known.asked = None;
        }
    }
}

#[cfg(test)]
mod tests;
