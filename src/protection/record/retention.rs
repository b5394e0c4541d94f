//! Which incident records are kept. Pure.
//!
//! Every user can cause OOM kills in an own cgroup, and crossed levels in an own job. So each cause has limits of its
//! own, and within a cause the user with the most records loses its oldest one. The pods in which root's processes run are
//! those of different people: each namespace counts as a user, or each pod whose namespace is unknown.

use std::cmp::Reverse;
use std::time::Duration;

use super::oom_kills;
use crate::host::cgroup_path::{self, Place};
use crate::model::label::Label;
use crate::protection::types::incident::{Cause, Incident};

/// Time after an OOM kill within which another one in the same cgroup belongs to the same record. A container that is
/// killed repeatedly is restarted by the kubelet within 5 minutes.
const SAME_RECORD: Duration = Duration::from_secs(600);

/// Maximum number of records of a cause, and of their bytes.
const fn limits(cause: Cause) -> (u64, u64) {
    match cause {
        Cause::Policy => (100, 256 << 20),
        Cause::KernelOom | Cause::Killed => (50, 128 << 20),
    }
}

/// A record on the disk.
#[derive(Debug)]
struct KeptRecord {
    id: String,
    bytes: u64,
    cause: Cause,
    user: Option<u32>,
    /// Whose records it counts among, for root: the namespace or the pod.
    tenant: String,
    target: String,
    /// What an OOM kill in the same container or unit has too, after it was started again.
    lasting: Option<Lasting>,
    /// When it ended, or began, in seconds since 1970.
    last_unix_seconds: f64,
}

/// The part of the cgroup's path that stays, and the command.
type Lasting = (String, Label);

fn lasting(incident: &Incident) -> Option<Lasting> {
    Some((oom_kills::lasting(&incident.target), incident.victim.as_ref()?.comm.clone()))
}

/// The namespace or the pod of a process of root; empty where it is in none.
fn tenant(incident: &Incident) -> String {
    let (Some(0), Place::Pod { uid, .. }) = (incident.user, cgroup_path::place(&incident.target)) else {
        return String::new();
    };
    let workload = incident.victim.as_ref().map(|victim| victim.workload.as_str());
    let namespace = workload.and_then(|name| name.split_once('/')).map(|(namespace, _)| namespace.to_owned());
    namespace.unwrap_or(uid)
}

/// The records on the disk.
#[derive(Debug, Default)]
pub(super) struct KeptRecords(Vec<KeptRecord>);

impl KeptRecords {
    /// Adds a record that was read or written, in place of its earlier version.
    pub(super) fn insert(&mut self, incident: &Incident, bytes: u64) {
        self.0.retain(|record| record.id != incident.id);
        self.0.push(KeptRecord {
            id: incident.id.clone(),
            bytes,
            cause: incident.cause,
            user: incident.user,
            tenant: tenant(incident),
            target: incident.target.clone(),
            lasting: lasting(incident),
            last_unix_seconds: incident.ended_unix_seconds.unwrap_or(incident.began_unix_seconds),
        });
    }

    /// The ids of the records beyond the limits; those of incidents that are in progress are kept in any case.
    pub(super) fn excess(&self, in_progress: &[&str]) -> Vec<&str> {
        let mut removed = Vec::new();
        for cause in [Cause::Policy, Cause::KernelOom, Cause::Killed] {
            let (most, most_bytes) = limits(cause);
            let mut records: Vec<_> = self.0.iter().filter(|record| record.cause == cause).collect();
            loop {
                let too_many = records.len() as u64 > most;
                if !too_many && records.iter().map(|record| record.bytes).sum::<u64>() <= most_bytes {
                    break;
                }
                let size = |record: &KeptRecord| if too_many { 1 } else { record.bytes };
                let payer = |record: &KeptRecord| (record.user, record.tenant.clone());
                let of_payer = |whose: (Option<u32>, String)| -> u64 {
                    records.iter().filter(|record| payer(record) == whose).map(|record| size(record)).sum()
                };
                let old =
                    records.iter().enumerate().filter(|(_, record)| !in_progress.contains(&&*record.id));
                let next = old.max_by_key(|(_, record)| (of_payer(payer(record)), Reverse(&record.id)));
                let Some((place, _)) = next else { break };
                removed.push(records.remove(place).id.as_str());
            }
        }
        removed
    }

    /// Forgets a record that was removed.
    pub(super) fn remove(&mut self, id: &str) {
        self.0.retain(|record| record.id != id);
    }

    /// The id of the record that an OOM kill belongs to: that of the last one in the same cgroup, or of the same command in the
    /// same container or unit before it was started again, if it was shortly before.
    pub(super) fn of_same_cgroup(&self, kill: &Incident) -> Option<&str> {
        let lasting = lasting(kill);
        let same = |record: &&KeptRecord| {
            let again = lasting.is_some() && record.lasting == lasting;
            let passed = kill.began_unix_seconds - record.last_unix_seconds;
            record.cause == kill.cause
                && record.user == kill.user
                && (record.target == kill.target || again)
                && (0.0..=SAME_RECORD.as_secs_f64()).contains(&passed)
        };
        let known = kill.cause == Cause::KernelOom && !kill.target.is_empty();
        let record =
            self.0.iter().filter(|_| known).filter(same).max_by(|one, other| one.id.cmp(&other.id))?;
        Some(&record.id)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::facts::OomVictim;

    const MALLORY: Option<u32> = Some(1002);

    fn record(second: u64, cause: Cause, user: Option<u32>) -> Incident {
        let id = format!("{second:06}");
        #[expect(clippy::cast_precision_loss, reason = "a small number")]
        let began_unix_seconds = second as f64;
        Incident { id, cause, user, began_unix_seconds, target: "/a".to_owned(), ..Incident::default() }
    }

    fn add(kept: &mut KeptRecords, incident: &Incident, bytes: u64) {
        kept.insert(incident, bytes);
        let removed: Vec<String> = kept.excess(&[&incident.id]).into_iter().map(str::to_owned).collect();
        removed.iter().for_each(|id| kept.remove(id));
    }

    fn count(kept: &KeptRecords, cause: Cause, user: Option<u32>) -> usize {
        kept.0.iter().filter(|record| (record.cause, record.user) == (cause, user)).count()
    }

    #[test]
    fn the_oldest_record_of_the_user_with_the_most_is_removed_first() {
        let mut kept = KeptRecords::default();
        for second in 0..30 {
            add(&mut kept, &record(second, Cause::Policy, MALLORY), 1);
            add(&mut kept, &record(1000 + second, Cause::KernelOom, Some(1)), 1);
        }
        for second in 2000..2200 {
            add(&mut kept, &record(second, Cause::KernelOom, MALLORY), 1);
        }
        assert_eq!(count(&kept, Cause::Policy, MALLORY), 30);
        assert_eq!([Some(1), MALLORY].map(|user| count(&kept, Cause::KernelOom, user)), [25, 25]);
        let oldest = |user| kept.0.iter().filter(|record| record.user == user).map(|record| &record.id).min();
        assert_eq!(oldest(Some(1)).unwrap(), "001005");
        assert!(kept.0.iter().any(|record| record.id == "002199"));
    }

    #[test]
    fn bytes_are_limited_too_and_the_newest_record_is_kept_in_any_case() {
        let mut kept = KeptRecords::default();
        for second in 0..10 {
            add(&mut kept, &record(second, Cause::Killed, Some(1)), 1 << 20);
            add(&mut kept, &record(100 + second, Cause::Killed, MALLORY), 30 << 20);
        }
        assert_eq!(count(&kept, Cause::Killed, Some(1)), 10);
        assert_eq!(count(&kept, Cause::Killed, MALLORY), 3);
        add(&mut kept, &record(200, Cause::Killed, MALLORY), 1 << 30);
        assert!(kept.0.iter().any(|record| record.id == "000200"));
        // That of an incident in progress stays, too.
        kept.insert(&record(201, Cause::Killed, MALLORY), 1 << 30);
        assert!(kept.excess(&["000201"]).contains(&"000200"));
        assert!(!kept.excess(&["000200", "000201"]).contains(&"000200"));
    }

    #[test]
    fn only_a_kill_shortly_after_another_in_the_same_cgroup_belongs_to_its_record() {
        let mut kept = KeptRecords::default();
        kept.insert(&record(1000, Cause::KernelOom, MALLORY), 1);
        let of = |incident: Incident| kept.of_same_cgroup(&incident);
        let other = |incident: Incident| Incident { target: "/b".to_owned(), ..incident };
        assert_eq!(of(record(1600, Cause::KernelOom, MALLORY)), Some("001000"));
        assert_eq!(of(record(1601, Cause::KernelOom, MALLORY)), None);
        assert_eq!(of(record(999, Cause::KernelOom, MALLORY)), None);
        assert_eq!(of(record(1001, Cause::KernelOom, Some(1))), None);
        assert_eq!(of(record(1001, Cause::Killed, MALLORY)), None);
        assert_eq!(of(other(record(1001, Cause::KernelOom, MALLORY))), None);
    }

    /// A kill in this container of a pod, of a workload.
    fn in_pod(second: u64, pod: char, container: char, workload: &str) -> Incident {
        let (pod, container) = (pod.to_string().repeat(8), container.to_string().repeat(64));
        let target = format!("/kubepods/pod{pod}-0000-1111-2222-0123456789ab/{container}");
        let victim = OomVictim { comm: "python3".into(), workload: workload.into(), ..OomVictim::default() };
        Incident { target, victim: Some(victim), ..record(second, Cause::KernelOom, Some(0)) }
    }

    #[test]
    fn a_kill_in_a_container_that_was_started_again_belongs_to_the_record() {
        let mut kept = KeptRecords::default();
        kept.insert(&in_pod(1000, 'a', 'b', "x"), 1);
        assert_eq!(kept.of_same_cgroup(&in_pod(1300, 'a', 'c', "x")), Some("001000"));
        assert_eq!(kept.of_same_cgroup(&in_pod(1300, 'd', 'c', "x")), None);
        let mut other = in_pod(1300, 'a', 'c', "x");
        other.victim.as_mut().unwrap().comm = "bash".into();
        assert_eq!(kept.of_same_cgroup(&other), None);
    }

    #[test]
    fn pods_of_root_share_by_namespace_or_pod() {
        let mut kept = KeptRecords::default();
        for second in 0..20 {
            add(&mut kept, &in_pod(second, 'a', 'b', "calm/one"), 1);
            add(&mut kept, &in_pod(100 + second, 'b', 'b', ""), 1);
        }
        for second in 1000..1200 {
            let pod = if second % 2 == 0 { 'c' } else { 'd' };
            add(&mut kept, &in_pod(second, pod, 'b', "loud/pod"), 1);
        }
        let of = |tenant: &str| kept.0.iter().filter(|record| record.tenant.starts_with(tenant)).count();
        assert_eq!(["calm", "bbbb", "loud"].map(of), [16, 17, 17]);
    }
}
