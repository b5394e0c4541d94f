//! The checkpoint request of an incident: which processes it reached, and what the job has acknowledged.

use crate::model::checkpoint::Checkpoints;
use crate::model::ids::ProcessKey;
use crate::model::time::Timestamp;
use crate::protection::plan::victim::Roster;
use crate::protection::policy::Ack;

/// The checkpoint request of an incident.
#[derive(Debug, Default)]
pub(in super::super) struct CheckpointRequest {
    /// The newest acknowledgement.
    pub(in super::super) ack: Option<Ack>,
    /// How many processes have a handler for the checkpoint signal; absent before it was sent.
    pub(in super::super) catching: Option<u32>,
}

impl CheckpointRequest {
    /// Reads the checkpoint states that processes of `roster` have reported since `requested`. The job has saved once one
    /// of them has and none is still saving.
    pub(super) fn read(
        &mut self,
        reported: &Checkpoints,
        roster: &Roster,
        requested: Timestamp,
        now: Timestamp,
    ) {
        let requested = requested.monotonic().as_nanos();
        let ours =
            |key: &ProcessKey| roster.end.contains(key) || roster.ask.iter().any(|ask| ask.key == *key);
        let own =
            reported.all().filter(|(key, report)| u128::from(report.heard_nanos) >= requested && ours(key));
        let kind = own.map(|(_, report)| report.state).min();
        if let Some(kind) = kind.filter(|kind| self.ack.is_none_or(|before| before.kind != *kind)) {
            self.acknowledge(Ack { kind, at: now });
        }
    }

    /// Takes an acknowledgement, unless a newer one is known.
    pub(in super::super) fn acknowledge(&mut self, ack: Ack) {
        if self.ack.is_none_or(|before| before.at.monotonic() <= ack.at.monotonic()) {
            self.ack = Some(ack);
        }
    }
}
