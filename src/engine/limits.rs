//! Exposes reached limits as a metric and a finding that name the user.

use std::collections::BTreeMap;

use crate::model::finding::{Evidence, Finding, Severity, Subject};
use crate::model::label::Label;
use crate::model::point::Batch;
use crate::model::shortage::Shortage;
use crate::model::subordinate::payer;
use crate::model::time::Timestamp;
use crate::model::units::{Count, Unit as _};

crate::metrics! {
    /// Entries (connections, processes, files, jobs; by limit) that are currently left out because a limit of memwarden is reached, by limit and user ID; the label user is empty where the limit is not per user. Absent while the limit leaves nothing out.
    pub LIMIT_LEFT_OUT: Gauge<Count> = "memwarden_limit_left_out" {limit, user}.counting("{entry}").budget(256);
}

/// When each limit began to leave out entries of a user.
#[derive(Debug, Default)]
pub(super) struct Limits {
    since: BTreeMap<(&'static str, Option<u32>), Timestamp>,
}

impl Limits {
    /// Removes the shortages of this tick from `batch`, adds their metric and returns their findings.
    pub(super) fn state(&mut self, at: Timestamp, batch: &mut Batch) -> Vec<Finding> {
        let mut now = BTreeMap::<(&'static str, Option<u32>), Shortage>::new();
        for shortage in std::mem::take(&mut batch.facts.shortages) {
            let known = now.entry((shortage.limit, shortage.user.map(payer))).or_insert_with(|| Shortage {
                left_out: 0,
                user: shortage.user.map(payer),
                ..shortage
            });
            known.left_out = known.left_out.saturating_add(shortage.left_out);
        }
        now.retain(|_, shortage| shortage.left_out > 0);
        self.since.retain(|key, _| now.contains_key(key));
        let mut findings = Vec::with_capacity(now.len());
        for (key, shortage) in now {
            let since = *self.since.entry(key).or_insert(at);
            let user = shortage.user.map_or_else(Label::default, |user| user.to_string().into());
            batch.put(&LIMIT_LEFT_OUT, &[shortage.limit.into(), user], Count(shortage.left_out));
            findings.push(finding(&shortage, since));
        }
        findings
    }
}

fn finding(shortage: &Shortage, since: Timestamp) -> Finding {
    let Shortage { limit, user, left_out, most } = shortage;
    let whose = user.map_or_else(String::new, |user| format!(" of user {user}"));
    Finding {
        analyzer: "limits",
        subject: Subject::limit(limit, *user),
        state: "limit_reached",
        severity: Severity::Warning,
        since_unix_seconds: since.unix().as_secs_f64(),
        summary: format!(
            "The limit {limit} ({most} entries for all users) is reached; entries left out{whose}: {left_out}."
        ),
        evidence: vec![Evidence { what: "left_out_count", value: Count(*left_out).value() }],
        advice: "Check what creates so many entries: entries that are left out are neither measured nor protected.",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_is_reported_while_it_omits_something() {
        let mut limits = Limits::default();
        let mut state = |seconds: u64, left_out: u64| {
            let mut batch = Batch::new();
            for user in [Some(1002), None] {
                batch.facts.shortages.push(Shortage { limit: "job_connections", user, left_out, most: 64 });
            }
            let at = Timestamp::from_secs(seconds);
            (limits.state(at, &mut batch), batch)
        };
        let (first, batch) = state(5, 3);
        assert_eq!(first.len(), 2);
        assert_eq!(
            first[1].summary,
            "The limit job_connections (64 entries for all users) is reached; entries left out of user 1002: 3."
        );
        assert_eq!(batch.families()[0].points.len(), 2);
        let (second, _) = state(6, 4);
        assert_eq!(second[0].since_unix_seconds, first[0].since_unix_seconds);
        let (third, batch) = state(7, 0);
        assert!(third.is_empty() && batch.families().is_empty());
    }
}
