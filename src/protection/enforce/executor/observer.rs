//! The executor of mode `observe`: it has no descriptor, thread or call to act with.

use crate::protection::types::scope::{Exempt, Refusal, Scope};
use crate::protection::types::step::{
    Executor, Finished, Outcome, Step, StepDone, StepError, TargetId, Touched, Work,
};

/// Returns for each step that it would have been done.
#[derive(Debug, Default)]
pub struct Observer {
    exempt: Exempt,
    targets: Vec<(TargetId, Scope)>,
}

impl Observer {
    /// An observer that checks scopes against `never`.
    pub fn new(exempt: Exempt) -> Self {
        Self { exempt, targets: Vec::new() }
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
