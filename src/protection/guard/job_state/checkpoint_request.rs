//! The checkpoint request of an incident: which processes it reached, and what the job has acknowledged.

use crate::model::checkpoint::{self, Checkpoints};
use crate::model::time::Timestamp;
use crate::protection::plan::victim::Roster;
use crate::protection::policy::{Ack, AckKind};

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
        let mut kind = None;
        for (key, report) in reported.all().filter(|(_, report)| u128::from(report.heard_nanos) >= requested)
        {
            let ours = roster.end.contains(&key) || roster.ask.iter().any(|ask| ask.key == key);
            kind = match (report.state, kind) {
                _ if !ours => kind,
                (checkpoint::State::Saving, _) | (_, Some(AckKind::Saving)) => Some(AckKind::Saving),
                (checkpoint::State::Saved, _) | (_, Some(AckKind::Saved)) => Some(AckKind::Saved),
                (checkpoint::State::Failed, _) => Some(AckKind::Failed),
            };
        }
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
