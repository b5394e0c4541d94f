//! What the guard tells of what it does: before and after each step, and each move.

use crate::model::step::{Step, StepDone, StepError, Touched};
use crate::model::time::Timestamp;
use crate::protection::policy::{Conditions, Mode, Observed, Transition};

/// A move, with what it was decided on.
#[derive(Clone, Copy, Debug)]
pub struct Moved {
    /// The seat and who sits there.
    pub seat: usize,
    /// Tells this job from the one that sat there before.
    pub serial: u64,
    /// The place of its target.
    pub target: usize,
    /// Whether it acts.
    pub mode: Mode,
    /// The move.
    pub transition: Transition,
    /// What was observed.
    pub observed: Observed,
    /// Condition by condition.
    pub conditions: Conditions,
}

/// Somebody who writes down what the guard does. Nothing here may wait.
pub trait Journal: Send {
    /// A ladder moved.
    fn moved(&mut self, moved: &Moved);
    /// A step is about to be carried out.
    fn before(&mut self, at: Timestamp, moved: &Moved, step: &Step);
    /// It was carried out, or was not.
    fn after(
        &mut self,
        at: Timestamp,
        moved: &Moved,
        step: &Step,
        result: &Result<StepDone, StepError>,
        touched: &[Touched],
    );
    /// A step that went on has ended.
    fn ended(
        &mut self,
        _at: Timestamp,
        _seat: usize,
        _step: &'static str,
        _result: &Result<StepDone, StepError>,
    ) {
    }
}
