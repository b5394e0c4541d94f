//! The processes of a job that report that a checkpoint signal does not lead to a checkpoint.

use std::collections::BTreeMap;

use super::job_slots::JobSlot;
use crate::model::facts::Facts;
use crate::model::label::Label;
use crate::model::printable::escaped;
use crate::protection::options::target::Target;
use crate::protection::plan::victim::ProcessInfo;

/// Most reasons of one job: it chooses their text.
const REASONS: usize = 4;

/// Number of these processes that report it, by the reason that they give. Logs each reason of a job once.
pub(super) fn logged(
    job: &mut JobSlot,
    targets: &[Target],
    processes: &[ProcessInfo],
    facts: &Facts,
) -> Vec<(Label, u32)> {
    let reasons = reported(processes, facts);
    log(job, targets, &reasons);
    reasons
}

fn reported(processes: &[ProcessInfo], facts: &Facts) -> Vec<(Label, u32)> {
    let mut reasons = BTreeMap::<&Label, u32>::new();
    for rank in &facts.ranks {
        let Some(reason) = &rank.cannot_save else { continue };
        let member = processes.iter().any(|process| rank.key == Some(process.key));
        if member && (reasons.len() < REASONS || reasons.contains_key(reason)) {
            *reasons.entry(reason).or_default() += 1;
        }
    }
    reasons.into_iter().map(|(reason, count)| (reason.clone(), count)).collect()
}

fn log(job: &mut JobSlot, targets: &[Target], reasons: &[(Label, u32)]) {
    for (reason, processes) in reasons {
        if job.cannot_save.len() < REASONS && job.cannot_save.insert(reason.clone()) {
            tracing::warn!(
                target_name = %targets[job.claim.target].name,
                workload = %escaped(job.name.as_str()),
                processes,
                reason = %escaped(reason.as_str()),
                "Processes of the target do not save a checkpoint on request."
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::facts::ReportedRank;
    use crate::model::ids::ProcessKey;
    use crate::model::units::Bytes;

    const fn key(pid: u32) -> ProcessKey {
        ProcessKey { pid, start: 1 }
    }

    #[test]
    fn processes_of_the_job_count_by_their_reason() {
        let process =
            |pid| ProcessInfo { key: key(pid), parent: 1, resident: Bytes::new(1), group: None, rank: true };
        let processes: Vec<_> = (1..20).map(process).collect();
        let rank = |pid, reason: Option<&str>| ReportedRank {
            key: Some(key(pid)),
            workload: "job".into(),
            rank: pid.into(),
            run: Label::default(),
            cannot_save: reason.map(Label::from),
        };
        let of = |ranks: Vec<ReportedRank>| reported(&processes, &Facts { ranks, ..Facts::default() });
        let ranks = vec![
            rank(1, Some("b")),
            rank(2, None),
            rank(3, Some("b")),
            rank(4, Some("a")),
            rank(99, Some("c")),
        ];
        assert_eq!(of(ranks), [("a".into(), 1), ("b".into(), 2)]);
        let many: Vec<String> = (1..20).map(|pid| format!("reason {pid}")).collect();
        let ranks = (1..20).zip(&many).map(|(pid, reason)| rank(pid, Some(reason))).collect();
        assert_eq!(of(ranks).len(), REASONS);
    }
}
