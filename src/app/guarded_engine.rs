//! The engine of a command, with the protection of what it runs, without a daemon.

use std::sync::Arc;
use std::time::Duration;

use super::serve::{context, own_command, own_engine};
use crate::config::{self, Config};
use crate::engine::{EVERYTHING, Engine};
use crate::events::Events;
use crate::host::{child, job};
use crate::model::facts::ExitedProcess;
use crate::model::frame::Frame;
use crate::model::ids::ProcessKey;
use crate::model::time::Timestamp;
use crate::model::units::Bytes;
use crate::protection::guard::supervisor::GuardSupervisor;
use crate::protection::options::Protection;
use crate::protection::record::{Follower, Records};
use crate::protection::types::incidents::Entry;

/// The time that the end waits for the records of incidents.
const LAST_RECORD: Duration = Duration::from_secs(2);

/// The protection of one workload of this name: by the host's memory, the limits of its cgroup and `limit`.
///
/// # Errors
/// If the name contains a wildcard, which would select other workloads too.
pub fn protection_of(workload: &str, limit: Option<Bytes>) -> anyhow::Result<Protection> {
    if workload.contains(['*', '?']) {
        anyhow::bail!(
            "--guard: the name {workload} of the workload contains a wildcard; give another one by --name"
        );
    }
    let mut target = serde_json::json!({
        "name": "command",
        "workload": workload,
        "allow_users": [rustix::process::geteuid().as_raw().to_string()],
        // A command fills its limit faster than a node. At 20 % fewer jobs are lost to the kernel, and more are ended that
        // would have finished (docs/measurements/outcomes.md).
        "cgroup_headroom": { "soft": "15%" },
        "for": "100ms",
    });
    if let (Some(limit), Some(target)) = (limit, target.as_object_mut()) {
        target.insert("memory_limit".to_owned(), format!("{}KiB", limit.get() >> 10).into());
    }
    // Every YAML parser reads JSON.
    let text = serde_json::json!({ "protection": { "mode": "enforce", "targets": [target] } }).to_string();
    let config = config::parse_str(&text, "--guard".as_ref(), &super::schema(), &[])?;
    Ok(Protection { of_command: true, ..super::serve::protection(&config) })
}

/// The engine, and the guard of what the command runs.
#[derive(Debug)]
pub struct GuardedEngine {
    engine: Engine,
    guard: Option<(GuardSupervisor, Follower)>,
    /// The pid of the first process of another user, which is not protected; absent until there is one.
    stranger: Option<u32>,
}

impl GuardedEngine {
    /// Without `protection`, nothing is protected.
    ///
    /// # Errors
    /// If the records of protection cannot be started.
    pub fn start(config: &Config, protection: Option<Protection>) -> std::io::Result<Self> {
        let Some(protection) = protection else {
            return Ok(Self { engine: own_engine(config), guard: None, stranger: None });
        };
        let (events, checkpoints) = (Arc::new(Events::new()), Arc::default());
        let records = Arc::new(Records::start(config, Arc::clone(&events))?);
        let context = context(&config.paths, Arc::clone(&checkpoints), Arc::default());
        let mut guard = GuardSupervisor::new(own_command, Arc::clone(&records), checkpoints);
        guard.configure(protection, &context.roots);
        let mut engine = Engine::new(EVERYTHING, config, context, events);
        engine.add_reporter(Arc::clone(guard.feed()) as _);
        Ok(Self { engine, guard: Some((guard, records.follower(true))), stranger: None })
    }

    /// Makes one sample, which the guard receives.
    pub fn tick(&mut self, at: Timestamp) -> Arc<Frame> {
        let frame = self.engine.tick(at);
        if let Some((guard, follower)) = &mut self.guard {
            guard.feed().look(&frame, self.engine.facts());
            follower.look(&frame);
            if self.stranger.is_none() {
                self.look_for_strangers();
            }
        }
        frame
    }

    /// States once that a process of another user is not protected, such as one that `sudo` or `su` has started.
    fn look_for_strangers(&mut self) {
        let (own, facts) = (rustix::process::geteuid().as_raw(), self.engine.facts());
        let mut rows = facts.workload_of.iter().filter_map(|member| facts.row(member.process));
        if let Some(row) = rows.find(|row| row.uid != own) {
            let (user, pid) = (row.uid, row.key.pid);
            tracing::warn!(
                user,
                pid,
                "Processes of this user are not protected: --guard protects those of the user who runs memwarden. \
                 Run memwarden as that user."
            );
            self.stranger = Some(pid);
        }
    }

    /// Reaps the orphans that this process has adopted and that have ended; `command` is its own child.
    pub fn reap_orphans(&self, command: u32) {
        let own = std::process::id();
        let rows = self.engine.facts().processes.iter().flat_map(|table| &table.rows);
        for row in rows.filter(|row| row.parent == own && matches!(row.state, b'Z' | b'X')) {
            if row.key.pid != command && !child::is_helper(row.key.pid) {
                job::reap(row.key.pid);
            }
        }
    }

    /// Whether protection is ending the processes of this workload, and some are left.
    pub fn is_ending(&self, workload: &str) -> bool {
        let is_left = |process: ProcessKey| {
            let table = self.engine.facts().processes.as_deref();
            let row = table.and_then(|table| table.get(process.pid)).filter(|row| row.key == process);
            row.is_some_and(|row| !matches!(row.state, b'Z' | b'X'))
        };
        let mut members = self.engine.facts().workload_of.iter();
        self.guard.as_ref().is_some_and(|(guard, _)| guard.is_ending())
            && members.any(|member| member.workload.name.as_str() == workload && is_left(member.process))
    }

    /// Adds the end of a process to the next sample.
    pub fn exited(&mut self, process: ExitedProcess) {
        self.engine.exited(process);
    }

    /// Ends the guard and writes its records; returns its incidents, as [`Follower::finish`].
    pub fn finish(self) -> Option<Vec<Entry>> {
        let (guard, follower) = self.guard?;
        drop(guard);
        follower.finish(LAST_RECORD)
    }
}
