//! The executor of mode `observe`: it has no descriptor of a process, thread or call to act with.

use std::path::Path;

use super::process_status::Proc;
use crate::host::cgroup::Version;
use crate::protection::types::scope::{Exempt, Refusal, Scope};
use crate::protection::types::step::{
    Executor, Finished, Outcome, Skip, Step, StepDone, StepError, TargetId, Touched, Work,
};

/// Returns for each step that it would have been done, or that it would have been skipped.
#[derive(Debug)]
pub struct Observer {
    exempt: Exempt,
    /// Absent where it cannot be opened.
    proc: Option<Proc>,
    targets: Vec<(TargetId, Scope)>,
}

impl Observer {
    /// An observer that checks scopes against `exempt`, and reads handlers of signals below `proc`.
    pub fn new(exempt: Exempt, proc: &Path) -> Self {
        Self { exempt, proc: Proc::open(proc, Version::V2).ok(), targets: Vec::new() }
    }
}

impl Executor for Observer {
    fn bound(&mut self, target: TargetId, scope: Option<Scope>) -> Result<(), Refusal> {
        self.targets.retain(|(id, _)| *id != target);
        let Some(scope) = scope else { return Ok(()) };
        scope.sound(&self.exempt)?;
        self.targets.push((target, scope));
        Ok(())
    }

    fn perform(&mut self, step: &Step) -> Result<StepDone, StepError> {
        let (_, scope) =
            self.targets.iter().find(|(id, _)| *id == step.target).ok_or(StepError::NoScope(step.target))?;
        if let Work::KillGroup { group } | Work::Freeze { group } | Work::Raise { group, .. } = &step.work {
            scope
                .admits_group(group.path.as_str(), &self.exempt)
                .map_err(|refusal| StepError::Refused { pid: 0, refusal })?;
        }
        if let Work::Signal { process, signal, only_if_caught: true } = &step.work
            && let Some(found) = self.proc.as_mut().and_then(|proc| proc.look(process.pid, false, None).ok())
        {
            let is_same = found.key == *process;
            if !is_same || !found.catches(*signal) {
                let skip = if is_same { Skip::NotCaught } else { Skip::Gone };
                return Ok(StepDone { outcome: Outcome::Skipped(skip), processes: 0 });
            }
        }
        let processes = match &step.work {
            Work::Signal { .. } => 1,
            Work::KillTree { roots } => u32::try_from(roots.len()).unwrap_or(u32::MAX),
            _ => 0,
        };
        Ok(StepDone { outcome: Outcome::WouldHave, processes })
    }

    fn rehearse(&mut self, step: &Step) -> Result<StepDone, StepError> {
        self.perform(step)
    }

    fn touched(&self) -> &[Touched] {
        &[]
    }

    fn poll(&mut self, _finished: &mut Vec<Finished>) {}

    fn forget(&mut self, _target: TargetId) {}
}
