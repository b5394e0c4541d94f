//! Checkpoints that another node of the run asks for, or that systemd-oomd waits for before a kill.

use super::Escalation;
use crate::model::time::Timestamp;
use crate::policy::judge::Judged;
use crate::policy::observed::Observed;
use crate::policy::transition::{Reason, Transition};
use crate::types::rung::{Rung, State};

impl Escalation {
    /// Makes the transition to CHECKPOINT that something else than the own readings asks for. Absent where the policy does not allow
    /// it, or a checkpoint was requested shortly before.
    pub fn request(&mut self, now: Timestamp, observed: &Observed, reason: Reason) -> Option<Transition> {
        self.forget_request(observed);
        let again = self.state == State::Checkpoint && self.outdated(now, observed);
        let quiet = matches!(self.state, State::Ok | State::Warn | State::Soft | State::Cooldown);
        if again && let Some(incident) = &mut self.incident {
            incident.asked = false;
        }
        let allowed =
            self.limits.max_state >= Some(Rung::Checkpoint) && self.may_ask(now) && self.save_fits();
        if !(quiet || again) || !allowed || !observed.fit {
            return None;
        }
        let transition = self.go(now, observed, State::Checkpoint, reason);
        if let Some(incident) = &mut self.incident {
            incident.requested = true;
        }
        Some(transition)
    }

    /// The transition of a checkpoint that was asked for by [`Escalation::request`]: its acknowledgement is awaited also where
    /// this node has no shortage, and leads to nothing more then. Absent where the own shortage decides.
    pub(super) fn after_request(
        &self,
        now: Timestamp,
        observed: &Observed,
        judged: &Judged,
        empty: bool,
    ) -> Option<Option<(State, Reason)>> {
        self.incident.filter(|incident| incident.requested)?;
        if empty || judged.push.0 >= Some(Rung::Soft) {
            return None;
        }
        let ack = self.ack(observed);
        let over = now.since(self.grace_from()) >= self.allowed(ack);
        Some(self.answered(ack, over).map(|reason| (State::Cooldown, reason)))
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::observed::Ack;
    use super::super::super::tests::limits;
    use super::*;
    use crate::model::checkpoint::CheckpointState;

    #[test]
    fn a_job_that_was_started_again_is_asked_at_once() {
        let mut escalation = Escalation::new(limits(), Timestamp::from_secs(1000));
        let mut ask = |second, restarted| {
            let observed = Observed { fit: true, restarted, ..Observed::default() };
            escalation.request(Timestamp::from_secs(second), &observed, Reason::Prekill).map(|to| to.ask)
        };
        assert_eq!(ask(1000, false), Some(true));
        assert_eq!(ask(1020, false), None);
        // The incident of the processes before ends, as its step would.
        escalation.incident = None;
        escalation.state = State::Cooldown;
        let mut ask = |second, restarted| {
            let observed = Observed { fit: true, restarted, ..Observed::default() };
            escalation.request(Timestamp::from_secs(second), &observed, Reason::Prekill).map(|to| to.ask)
        };
        assert_eq!(ask(1030, false), None, "less than request_interval ago");
        assert_eq!(ask(1030, true), Some(true));
    }

    #[test]
    fn a_checkpoint_after_which_the_job_has_run_on_is_requested_again() {
        let mut escalation = Escalation::new(limits(), Timestamp::from_secs(1000));
        let mut ask = |second, saved: Option<u64>| {
            let ack = saved.map(|at| Ack { kind: CheckpointState::Saved, at: Timestamp::from_secs(at) });
            let observed = Observed { fit: true, ack, ..Observed::default() };
            escalation.request(Timestamp::from_secs(second), &observed, Reason::Prekill).map(|to| to.ask)
        };
        assert_eq!(ask(1000, None), Some(true));
        assert_eq!(ask(1400, None), None, "it has not saved yet");
        assert_eq!(ask(1409, Some(1110)), None, "less than request_interval ago");
        assert_eq!(ask(1410, Some(1110)), Some(true));
        assert_eq!(ask(1800, Some(1110)), None, "that checkpoint is older than the request");
    }
}
