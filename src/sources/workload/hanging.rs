//! Findings about processes whose files cannot be read.

use std::collections::BTreeMap;

use super::metrics;
use crate::host::process::readers::{Hanging, Look, MOST};
use crate::model::finding::{Evidence, Finding, Severity, Subject};
use crate::model::label::Label;
use crate::model::point::Batch;
use crate::model::shortage::Shortage;
use crate::model::time::Timestamp;
use crate::model::units::Count;

/// Puts a finding for each hanging read, with the workload of its process at this tick.
pub(super) fn put(look: &Look, at: Timestamp, out: &mut Batch) {
    out.put(&metrics::HUNG, &[], Count(look.hung));
    let mut users = BTreeMap::<u32, u64>::new();
    for hanging in &look.hanging {
        *users.entry(hanging.target.uid).or_default() += 1;
        let known = &out.facts.workload_of;
        let place = known.binary_search_by_key(&hanging.target.key, |member| member.process);
        let workload = place.map_or_else(|_| Label::default(), |place| known[place].workload.name.clone());
        out.facts.findings.push(finding(hanging, &workload, at));
    }
    for (user, count) in users {
        out.put(&metrics::HANGING, &[user.into()], Count(count));
    }
    let held_up = look.held_up.iter().map(|(user, waits)| (user, waits));
    out.facts.shortages.extend(Shortage::of_users("process_readers", MOST, held_up));
}

fn finding(hanging: &Hanging, workload: &Label, at: Timestamp) -> Finding {
    let Hanging { target, since } = hanging;
    let mut subject = Subject::process(workload, &target.key.pid.into());
    subject.user = target.uid.into();
    Finding {
        analyzer: "process",
        subject,
        state: "not_readable",
        severity: Severity::Warning,
        since_unix_seconds: since.unix().as_secs_f64(),
        summary: format!(
            "Process {} ({}) of user {} cannot be read: {} does not return.",
            target.key.pid, target.comm, target.uid, target.what
        ),
        evidence: vec![Evidence { what: "waited_seconds", value: at.since(*since).as_secs_f64() }],
        advice: "Check what the process's memory waits for, such as a FUSE file system whose server does not respond. Until the read returns, the process is measured and matched without the file.",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::process::readers::ReadTarget;
    use crate::model::facts::Membership;
    use crate::model::ids::ProcessKey;

    #[test]
    fn a_process_that_cannot_be_read_is_named_and_counted() {
        let target = |pid, uid| ReadTarget {
            key: ProcessKey { pid, start: 7 },
            uid,
            comm: "train".into(),
            what: "cmdline or environ",
        };
        let since = Timestamp::from_secs(40);
        let hanging =
            [(5, 1000), (6, 1000), (9, 1001)].map(|(pid, uid)| Hanging { target: target(pid, uid), since });
        let look = Look { hanging: hanging.into(), held_up: vec![(1000, 12)], hung: 4 };
        let mut out = Batch::new();
        out.facts.workload_of = vec![Membership::named(ProcessKey { pid: 6, start: 7 }, "job")];
        put(&look, Timestamp::from_secs(52), &mut out);
        let text = crate::serve::prometheus::encode(out.families(), crate::serve::prometheus::Format::Text);
        let shown: Vec<_> = text.lines().filter(|line| !line.starts_with('#')).collect();
        assert_eq!(
            shown,
            [
                "memwarden_process_reads_hung_total 4",
                "memwarden_process_reads_hanging{user=\"1000\"} 2",
                "memwarden_process_reads_hanging{user=\"1001\"} 1",
            ]
        );
        let second = &out.facts.findings[1];
        assert_eq!(second.subject.to_string(), "process 6 of job of user 1000");
        assert_eq!(
            second.summary,
            "Process 6 (train) of user 1000 cannot be read: cmdline or environ does not return."
        );
        assert!((second.evidence[0].value - 12.0).abs() < 1e-9);
        assert_eq!(out.facts.shortages.len(), 1);
        assert_eq!((out.facts.shortages[0].user, out.facts.shortages[0].left_out), (Some(1000), 12));
    }
}
