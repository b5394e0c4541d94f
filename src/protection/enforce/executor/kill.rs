//! Kills many processes: whole cgroups, and trees that keep forking.
//!
//! A process with a pending `SIGSTOP` or `SIGKILL` cannot fork. A tree is first stopped, from its roots down and again
//! until no new process is found, and then killed: killed at once, its children would be reparented and could not be
//! found. A cgroup keeps its members, so it is killed at once.

use std::sync::atomic::Ordering;
use std::time::Duration;

use rustix::io::Errno;

use super::group::{self, OpenGroup};
use super::reach::{self, Mode, NotSignalled};
use super::worker::Worker;
use super::{MOST, refused};
use crate::host::cgroup::Version;
use crate::host::clock;
use crate::model::ids::ProcessKey;
use crate::protection::types::scope::Scope;
use crate::protection::types::step::{Group, Outcome, SignalNumber, Skip, StepError, Touched};

/// Maximum number of passes over a tree or cgroup, each of which finds processes missed by the one before; two are
/// enough for a job that does not fork meanwhile.
const PASSES: usize = 5;
/// Time for which a forking tree is stopped before its known processes are killed: a process that is not stopped by
/// then loses its parent, and with it its membership. Thirty processes that fork as fast as they can on one processor,
/// shared with the executor at equal priority, are all stopped in 0.3 s.
const STOP_TIMEOUT: Duration = Duration::from_secs(2);

/// The result of a pass.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Tally {
    reached: u32,
    pub(super) new: u32,
}

impl Worker {
    /// Stops and kills `roots` and their descendants.
    pub(super) fn kill_tree(
        &mut self,
        scope: &Scope,
        roots: &[ProcessKey],
    ) -> Result<(Outcome, u32), NotSignalled> {
        self.met.clear();
        self.held.clear();
        let mut first = None;
        if self.mode == Mode::Drill {
            self.look(roots)?;
            let tally = self.strike(scope, SignalNumber::KILL, &mut first);
            return self.summed(tally.reached, first);
        }
        let outcome = self.stop_tree(scope, roots, &mut first);
        // By the checked descriptors: the end of a parent may hide descent by now.
        let mut killed = 0;
        self.touched.clear();
        let mut held = std::mem::take(&mut self.held);
        for found in held.drain(..) {
            let errno = match reach::send(self.mode, &found, SignalNumber::KILL) {
                Ok(()) => 0,
                Err(NotSignalled::Skip(_)) => continue,
                Err(NotSignalled::Error(error)) => {
                    let errno = error.errno().unwrap_or(0);
                    first.get_or_insert(error);
                    errno
                }
            };
            killed += u32::from(errno == 0);
            self.note(reach::touched(&found.process, errno));
        }
        self.held = held;
        outcome?;
        for _ in 0..PASSES {
            self.look(roots)?;
            let tally = self.strike(scope, SignalNumber::KILL, &mut first);
            killed += tally.reached;
            if tally.new == 0 {
                break;
            }
        }
        self.summed(killed, first)
    }

    /// Stops `roots` and their descendants, until no new one is found or the daemon ends; `held` has those that were stopped.
    pub(super) fn stop_tree(
        &mut self,
        scope: &Scope,
        roots: &[ProcessKey],
        first: &mut Option<StepError>,
    ) -> Result<(), NotSignalled> {
        // The roots first, without inspecting the other processes.
        for key in roots {
            if self.hurries() {
                break;
            }
            self.strike_one(scope, *key, SignalNumber::STOP, first, &mut Tally::default());
        }
        let begun = clock::now();
        let mut passes = 0;
        while !self.hurries() {
            self.look(roots)?;
            if self.strike(scope, SignalNumber::STOP, first).new == 0 {
                break;
            }
            passes += 1;
            if passes >= PASSES && clock::now().since(begun) >= STOP_TIMEOUT {
                break;
            }
        }
        Ok(())
    }

    /// Finds the descendants of `roots` and of known members, and puts them into `pids`.
    fn look(&mut self, roots: &[ProcessKey]) -> Result<(), NotSignalled> {
        let met = &self.met;
        self.roots.clear();
        self.roots.extend(roots.iter().take(2 * MOST));
        let known = &self.roots;
        self.table
            .look(&mut self.proc, |key| known.contains(&key) || met.contains(&key))
            .map_err(|error| group::failed("list processes", error))?;
        self.pids.clear();
        self.pids.extend(self.table.members().take(2 * MOST).map(|key| key.pid));
        Ok(())
    }

    /// Kills all processes of a cgroup; by one write where all of them are in the scope.
    pub(super) fn kill_group(
        &mut self,
        scope: &Scope,
        group: &Group,
    ) -> Result<(Outcome, u32), NotSignalled> {
        scope.admits_group(group.path.as_str(), &self.exempt).map_err(refused)?;
        let groups = self.groups()?;
        let (version, open) = (groups.version(), groups.open(group)?);
        let freezer = groups.freezer(group);
        if version == Version::V2 && self.mode == Mode::Enforce && self.all_ours(scope, &open).is_ok() {
            match open.kill() {
                Ok(()) => {
                    let killed = u32::try_from(self.touched.len()).unwrap_or(u32::MAX);
                    // Processes that entered meanwhile were killed too: the kernel iterates over the cgroup.
                    return Ok((Outcome::Done, killed));
                }
                // Before Linux 5.14, or a delegated cgroup, whose processes may only be killed one by one.
                Err(Errno::NOENT | Errno::ACCESS | Errno::PERM) => {}
                Err(error) => return Err(group::failed("cgroup.kill", error).into()),
            }
        }
        self.touched.clear();
        self.kill_members(scope, &open, freezer.as_ref())
    }

    /// Kills the processes of a cgroup one by one, repeatedly until it has no new ones.
    fn kill_members(
        &mut self,
        scope: &Scope,
        open: &OpenGroup,
        freezer: Option<&OpenGroup>,
    ) -> Result<(Outcome, u32), NotSignalled> {
        self.met.clear();
        let (mut reached, mut first) = (0, None);
        // A v1 freezer delays signals until it thaws.
        let stopped = freezer
            .filter(|freezer| self.mode == Mode::Enforce && self.all_ours(scope, freezer).is_ok())
            .filter(|freezer| freezer.freeze(true).is_ok());
        self.touched.clear();
        let (mut outcome, mut all) = (Ok(()), true);
        for _ in 0..PASSES {
            match self.list(open) {
                Ok(complete) => all = complete,
                Err(Errno::NODEV | Errno::NOENT) => break,
                Err(error) => {
                    outcome = Err(group::failed("list", error));
                    break;
                }
            }
            let tally = self.strike(scope, SignalNumber::KILL, &mut first);
            reached += tally.reached;
            if tally.new == 0 || self.mode == Mode::Drill || self.hurries() {
                break;
            }
        }
        if let Some(freezer) = stopped {
            // In any case no process is left stopped.
            if let Err(error) = freezer.freeze(false) {
                return Err(group::failed("thaw", error).into());
            }
        }
        outcome?;
        if !all {
            // Some may live: the step is not done, and the tree is killed.
            return Err(group::failed("see everybody in the group", Errno::PERM).into());
        }
        self.summed(reached, first)
    }

    /// Puts the processes of a cgroup into `pids`; returns whether these are all.
    fn list(&mut self, open: &OpenGroup) -> Result<bool, Errno> {
        self.pids.clear();
        let (pids, mut fits) = (&mut self.pids, true);
        let all = open.pids(|pid| {
            fits &= pids.len() < 2 * MOST;
            if fits {
                pids.push(pid);
            }
        })?;
        Ok(all && fits)
    }

    /// Whether all processes of a cgroup are in the scope; records them. A process that cannot be inspected is not.
    pub(super) fn all_ours(&mut self, scope: &Scope, open: &OpenGroup) -> Result<(), NotSignalled> {
        self.touched.clear();
        if !self.list(open).map_err(|error| group::failed("list", error))? {
            return Err(group::failed("see everybody in the group", Errno::PERM).into());
        }
        for place in 0..self.pids.len() {
            let pid = self.pids[place];
            let key = match self.proc.glance(pid) {
                Ok((key, _, _)) => key,
                // It has ended, or is hidden (hidepid): pids in use are visible without permission to inspect them.
                Err(Errno::NOENT | Errno::SRCH) if !reach::exists(pid) => continue,
                Err(error) => return Err(group::failed("look at", error).into()),
            };
            match self.find(scope, key) {
                Ok(found) => self.note(reach::touched(&found.process, 0)),
                Err(NotSignalled::Skip(_)) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    pub(super) fn hurries(&self) -> bool {
        self.hurry.load(Ordering::Relaxed)
    }

    /// Signals the processes in `pids` that were not signalled before.
    pub(super) fn strike(
        &mut self,
        scope: &Scope,
        signal: SignalNumber,
        first: &mut Option<StepError>,
    ) -> Tally {
        let mut tally = Tally::default();
        for place in 0..self.pids.len() {
            if signal == SignalNumber::STOP && self.hurries() {
                break;
            }
            let Ok((key, _, _)) = self.proc.glance(self.pids[place]) else { continue };
            self.strike_one(scope, key, signal, first, &mut tally);
        }
        tally
    }

    fn strike_one(
        &mut self,
        scope: &Scope,
        key: ProcessKey,
        signal: SignalNumber,
        first: &mut Option<StepError>,
        tally: &mut Tally,
    ) {
        if self.met.len() >= 2 * MOST || !self.met.insert(key) {
            return;
        }
        let found = match self.find(scope, key) {
            Ok(found) => found,
            Err(NotSignalled::Skip(_)) => return,
            Err(NotSignalled::Error(error)) => {
                let _ = first.get_or_insert(error);
                return;
            }
        };
        tally.new += 1;
        let room = self.held.len() < MOST;
        let signal = if room { signal } else { SignalNumber::KILL };
        match reach::send(self.mode, &found, signal) {
            Ok(()) => {
                tally.reached += 1;
                self.note(reach::touched(&found.process, 0));
                if signal == SignalNumber::STOP {
                    self.held.push(found);
                }
            }
            Err(NotSignalled::Skip(_)) => {}
            Err(NotSignalled::Error(error)) => {
                self.note(Touched { errno: error.errno().unwrap_or(0), ..reach::touched(&found.process, 0) });
                let _ = first.get_or_insert(error);
            }
        }
    }

    /// Where no process was signalled: the error, if there was one, otherwise a skip.
    fn summed(&self, reached: u32, first: Option<StepError>) -> Result<(Outcome, u32), NotSignalled> {
        match (reached, first) {
            (0, Some(error)) => Err(error.into()),
            (0, None) => Err(NotSignalled::Skip(Skip::Gone)),
            (reached, _) => Ok((self.done(), reached)),
        }
    }
}
