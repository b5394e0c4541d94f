//! The only place that signals, kills and freezes processes of jobs, raises the limits of their cgroups, and starts hooks.
//!
//! [`Machine`] carries out the steps of a plan; it inspects each process itself, immediately before, and refuses those
//! outside the scope of the slot. [`Observer`] has no means to act.

mod background;
mod checkpoint_file;
mod exempt;
mod group;
mod handle;
mod helpers;
mod kill;
mod leftover;
mod marker;
mod observer;
mod pool;
mod process_status;
mod raw;
mod reach;
mod release;
mod tree;
mod wait;
mod worker;

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::host::clock;
use crate::model::ids::ProcessKey;
use crate::model::time::Timestamp;
use crate::protection::types::scope::{Exempt, Refusal, Scope};
use crate::protection::types::step::{
    Acknowledgement, Executor, Finished, Group, Outcome, Place, Skip, Step, StepDone, StepError, TargetId,
    Ticket, Touched, Work,
};

pub use background::{BackgroundExecutor, BackgroundExecutors};
use checkpoint_file::Request;
pub use checkpoint_file::run as run_checkpoint_file;
pub use exempt::exempt;
use helpers::Helpers;
pub use leftover::let_go;
pub use observer::Observer;
use pool::{Equipment, Order, Pool, Reply};
pub use reach::Mode;
use reach::{NotSignalled, OpenProcess};
use release::Releaser;
use wait::{Goal, Progress, Wait};
use worker::{Reached, Worker};

/// Maximum number of processes that one signal can reach, and half of those that one kill can; a job has hundreds.
const MOST: usize = 4096;
/// Maximum number of slots with a scope; more are refused.
const TARGETS: usize = 256;

/// Why the executor could not be set up.
#[derive(Debug, thiserror::Error)]
pub enum ArmError {
    /// Processes cannot be read.
    #[error("cannot read {path}")]
    Proc {
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
    scope: Arc<Scope>,
    /// When it was signalled first in this incident.
    asked: Option<Timestamp>,
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
    /// The path of the process file system.
    root: Box<Path>,
    /// Carries out the steps for which the caller waits.
    worker: Worker,
    /// Carry out the steps that are handed over.
    pool: Pool,
    targets: Vec<Target>,
    releaser: Releaser,
    /// The ends of releases that have not been reported.
    ends: Vec<Finished>,
    /// Whether the threads are to end soon.
    hurry: Arc<AtomicBool>,
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
        let releaser = Releaser::start().map_err(ArmError::Thread)?;
        Ok(Self {
            root: proc.into(),
            worker: Worker::new(mode, proc, cgroup, exempt, releaser.queue().clone())?,
            pool: Pool::default(),
            targets: Vec::with_capacity(TARGETS),
            releaser,
            ends: Vec::with_capacity(TARGETS),
            hurry: Arc::default(),
            background,
            pending: Vec::with_capacity(TARGETS),
            helpers: Helpers::default(),
            stopped: Vec::with_capacity(TARGETS),
            next: 0,
        })
    }

    /// Starts threads for the steps whose time grows with the number of processes.
    pub fn with_threads(mut self, cgroup: &Path) -> Result<Self, ArmError> {
        self.pool = Pool::start(Equipment {
            proc: self.root.clone(),
            cgroup: cgroup.into(),
            exempt: self.worker.exempt.clone(),
            releases: self.releaser.queue().clone(),
            hurry: Arc::clone(&self.hurry),
        })?;
        Ok(self)
    }

    /// Uses the v2 hierarchy at `root` for groups, whatever controllers it has.
    #[cfg(test)]
    fn on_unified(&mut self, proc: &Path, root: &Path) {
        use crate::host::cgroup::{Hierarchy, Version};
        let hierarchy = Hierarchy { version: Version::V2, root: root.to_owned() };
        self.worker.groups = Some(group::Groups::new(hierarchy, root));
        self.worker.proc = process_status::Proc::open(proc, Version::V2).expect("the test's own");
    }

    fn ticket(&mut self) -> Ticket {
        self.next += 1;
        Ticket(self.next)
    }

    fn target(&self, id: TargetId) -> Result<&Target, StepError> {
        self.targets.iter().find(|target| target.id == id).ok_or(StepError::NoScope(id))
    }

    /// Finds a process in the scope of a slot.
    fn find(&mut self, id: TargetId, key: ProcessKey) -> Result<OpenProcess, NotSignalled> {
        let scope = Arc::clone(&self.target(id)?.scope);
        self.worker.find(&scope, key)
    }

    fn carry_out(&mut self, step: &Step) -> Result<(Outcome, u32), NotSignalled> {
        let id = step.target;
        if let Work::Thaw { group } = &step.work
            && self.stopped.iter().any(|(target, stopped)| (target, stopped) == (&id, group))
        {
            return self.thaw(group);
        }
        let target = self.target(id)?;
        match &step.work {
            work if work.lists() => {
                let scope = Arc::clone(&target.scope);
                let ticket = self.ticket();
                let reached = self.worker.carry_out(&scope, work, ticket)?;
                Ok(self.keep(id, work, reached, ticket))
            }
            Work::RunRequested { .. } | Work::PrekillNotified { .. } => Ok((Outcome::Done, 0)),
            Work::Record | Work::Hook { .. } | Work::Webhook { .. } | Work::AskRun(_) => {
                if self.worker.mode == Mode::Drill {
                    return Ok((Outcome::WouldHave, 0));
                }
                let ticket = self.ticket();
                self.background.begin(ticket, step)?;
                Ok((Outcome::Started(ticket), 0))
            }
            Work::Signal { process, signal, only_if_caught } => {
                let now = clock::now();
                let found = self.find(id, *process)?;
                if *only_if_caught && !found.process.catches(*signal) {
                    return Err(NotSignalled::Skip(Skip::NotCaught));
                }
                reach::send(self.worker.mode, &found, *signal)?;
                self.worker.note(reach::touched(&found.process, 0));
                let target = self.targets.iter_mut().find(|target| target.id == id);
                if let Some(target) = target.filter(|_| self.worker.mode == Mode::Enforce) {
                    target.asked.get_or_insert(now);
                }
                Ok((self.worker.done(), 1))
            }
            Work::Thaw { group } => {
                target.scope.admits_group(group.path.as_str(), &self.worker.exempt).map_err(refused)?;
                self.thaw(group)
            }
            Work::Touch { process, path } => self.touch(id, *process, path),
            Work::Await { by, within } => self.await_word(id, by, *within),
            _ => Err(NotSignalled::Skip(Skip::Unsupported)),
        }
    }

    fn thaw(&mut self, group: &Group) -> Result<(Outcome, u32), NotSignalled> {
        let thawed = self.worker.thaw(group)?;
        if self.worker.mode == Mode::Enforce {
            self.stopped.retain(|(_, stopped)| stopped != group);
        }
        Ok(thawed)
    }

    /// Keeps what a step leaves behind: a frozen cgroup, or a wait with the ticket `later`.
    fn keep(&mut self, id: TargetId, work: &Work, reached: Reached, later: Ticket) -> (Outcome, u32) {
        match (reached, work) {
            (Reached::Open { processes, group }, Work::AwaitEnd { within, .. }) => {
                let count = u32::try_from(processes.len()).unwrap_or(u32::MAX);
                self.pend(id, later, Goal::End { processes, group, read: None }, *within, count);
                (Outcome::Started(later), count)
            }
            (Reached::Processes(Outcome::Done, count), Work::Freeze { group }) => {
                self.stopped.retain(|(_, stopped)| stopped != group);
                self.stopped.push((id, group.clone()));
                (Outcome::Done, count)
            }
            (Reached::Processes(outcome, count), _) => (outcome, count),
            (Reached::Open { .. }, _) => (Outcome::Skipped(Skip::Unsupported), 0),
        }
    }

    fn await_word(
        &mut self,
        id: TargetId,
        by: &Acknowledgement,
        within: Duration,
    ) -> Result<(Outcome, u32), NotSignalled> {
        if self.worker.mode == Mode::Drill {
            return Ok((Outcome::WouldHave, 0));
        }
        let now = clock::now();
        let owner = self.target(id)?.scope.owner;
        let token = self.helpers.admit(owner, now).ok_or(NotSignalled::Skip(Skip::Busy))?;
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
        if self.worker.mode == Mode::Drill {
            return Ok((Outcome::WouldHave, 0));
        }
        self.worker.note(reach::touched(&found.process, 0));
        // Its effective user, which the scope allows; the helper refuses a process that has any other by then.
        let [_, user, _] = found.process.users;
        let owner = self.target(id)?.scope.owner;
        let token = self.helpers.admit(owner, clock::now()).ok_or(NotSignalled::Skip(Skip::Busy))?;
        let request = Request::Touch { proc: self.root.to_path_buf(), process, user, path: path.to_owned() };
        let goal = wait::start(token, self.background.files.as_ref(), &request).map_err(no_thread)?;
        Ok((Outcome::Started(self.wait(id, goal, TOUCH_TIMEOUT, 1)), 1))
    }

    fn wait(&mut self, target: TargetId, goal: Goal, within: Duration, processes: u32) -> Ticket {
        let ticket = self.ticket();
        self.pend(target, ticket, goal, within, processes);
        ticket
    }

    fn pend(&mut self, target: TargetId, ticket: Ticket, goal: Goal, within: Duration, processes: u32) {
        let wait = Wait { goal, begun: clock::now(), within, processes };
        self.pending.push(Pending { ticket, target, wait });
    }

    /// Takes the results of the steps that were handed over.
    fn poll_pool(&mut self, finished: &mut Vec<Finished>) {
        let mut pool = std::mem::take(&mut self.pool);
        pool.poll(clock::now(), |reply| {
            let (ticket, result) = match reply {
                Ok(Reply { order, result }) => {
                    let Order { id, work, ticket, later, .. } = order;
                    let result = match result {
                        Ok(reached) => Ok(self.keep(id, &work, reached, later)),
                        Err(NotSignalled::Skip(skip)) => Ok((Outcome::Skipped(skip), 0)),
                        Err(NotSignalled::Error(error)) => Err(error),
                    };
                    (ticket, result.map(|(outcome, processes)| StepDone { outcome, processes }))
                }
                Err(ticket) => (ticket, Err(StepError::Outside { what: "its thread has panicked".into() })),
            };
            finished.push(Finished::new(ticket, result));
        });
        self.pool = pool;
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
        scope.sound(&self.worker.exempt)?;
        if self.targets.len() < TARGETS {
            self.targets.push(Target { id: target, scope: Arc::new(scope), asked });
        }
        Ok(())
    }

    fn perform(&mut self, step: &Step) -> Result<StepDone, StepError> {
        self.worker.touched.clear();
        let (outcome, processes) = match self.carry_out(step) {
            Ok(carried) => carried,
            Err(NotSignalled::Skip(skip)) => (Outcome::Skipped(skip), 0),
            Err(NotSignalled::Error(error)) => return Err(error),
        };
        Ok(StepDone { outcome, processes })
    }

    fn place(&self, step: &Step) -> Place {
        let kills = step.work.kills();
        match step.work.lists() && self.pool.has_threads(kills) {
            true if self.pool.has_room(kills) => Place::Elsewhere,
            true => Place::Nowhere,
            false => Place::Here,
        }
    }

    fn hand_over(&mut self, step: &Step) -> Result<Ticket, StepError> {
        let scope = Arc::clone(&self.target(step.target)?.scope);
        let (ticket, later) = (self.ticket(), self.ticket());
        let order = Order { id: step.target, scope, work: step.work.clone(), ticket, later };
        match self.pool.take(order) {
            true => Ok(ticket),
            false => Err(StepError::Outside { what: "no thread is free".into() }),
        }
    }

    fn hurry(&mut self) {
        self.hurry.store(true, Ordering::Relaxed);
    }

    fn touched_by(&self, ticket: Ticket) -> &[Touched] {
        self.pool.touched(ticket)
    }

    fn rehearse(&mut self, step: &Step) -> Result<StepDone, StepError> {
        let mode = std::mem::replace(&mut self.worker.mode, Mode::Drill);
        let result = self.perform(step);
        self.worker.mode = mode;
        result
    }

    fn touched(&self) -> &[Touched] {
        &self.worker.touched
    }

    fn poll(&mut self, finished: &mut Vec<Finished>) {
        // Before the results of the steps that began them, so that no end comes before its step.
        self.releaser.poll(&mut self.ends);
        self.poll_pool(finished);
        let pool = &self.pool;
        finished.extend(self.ends.extract_if(.., |end| !pool.awaits(end.ticket)));
        self.background.poll(finished);
        let now = clock::now();
        self.helpers.look(now);
        self.pending.retain_mut(|pending| {
            let Pending { ticket, wait, .. } = pending;
            let report = |outcome| Ok(StepDone { outcome, processes: wait.processes });
            let result = match wait.goal.check(wait.over(now)) {
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
