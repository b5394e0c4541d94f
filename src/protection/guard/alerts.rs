//! The firing alerts, from their notification by Alertmanager until they are resolved.

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::model::fair::{Room, Table};
use crate::model::lock::lock;
use crate::model::time::Timestamp;
use crate::protection::guard::input::JobNames;
use crate::protection::options::target::Target;
use crate::protection::policy::Rung;

/// Maximum number of firing alerts, divided between the users whose jobs they are about; more are refused.
const MOST: usize = 256;
/// Age after which an alert is dropped to make room: its resolution was lost, because Alertmanager repeats firing
/// alerts every few hours.
const ALERT_RETENTION: Duration = Duration::from_secs(6 * 3600);

/// Labels, sorted.
pub type Labels = BTreeMap<String, String>;

/// A firing alert for a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FiringAlert {
    /// When it was received last.
    pub at: Timestamp,
    /// The last state that it can lead to, whatever the target's `alert.max_state` is.
    pub most: Option<Rung>,
}

/// The firing alerts.
#[derive(Debug)]
pub struct Alerts {
    /// Of each user, by the hash of its name.
    firing: Mutex<Table<u64, Labels, Timestamp>>,
    /// Matched, unmatched, refused.
    counts: [AtomicU64; 3],
}

impl Default for Alerts {
    fn default() -> Self {
        Self { firing: Mutex::new(Table::new(MOST)), counts: Default::default() }
    }
}

impl Alerts {
    /// Records that an alert fires or is resolved; returns whether it matches a target.
    pub fn receive(&self, labels: Labels, fires: bool, targets: &[Target], now: Timestamp) -> bool {
        let mut firing = lock(&self.firing);
        if !fires {
            return firing.remove(&labels).is_some();
        }
        if firing.len() >= MOST {
            firing.retain(|_, at| now.since(*at) < ALERT_RETENTION);
        }
        let heeded = targets.iter().any(|target| matches_alert(target, &labels));
        let mut hasher = DefaultHasher::new();
        labels.get("user").or_else(|| labels.get("workload")).hash(&mut hasher);
        let user = hasher.finish();
        let is_kept = heeded
            && (firing.contains_key(&labels)
                || firing.make_room(user, |_, at| at.monotonic()) != Room::Refused);
        if is_kept {
            firing.insert(user, labels, now);
        }
        let count = match (heeded, is_kept) {
            (true, true) => 0,
            (true, false) => 2,
            (false, _) => 1,
        };
        self.counts[count].fetch_add(1, Ordering::Relaxed);
        is_kept
    }

    /// Counts a refused message.
    pub fn refused(&self) {
        self.counts[2].fetch_add(1, Ordering::Relaxed);
    }

    /// The firing alert for a job of this target that can lead furthest, and the newest of those.
    pub fn firing(&self, target: &Target, names: &JobNames) -> Option<FiringAlert> {
        let firing = lock(&self.firing);
        let for_it = firing.iter().filter(|(labels, _)| matches_alert(target, labels));
        let for_it = for_it.filter_map(|(labels, at)| {
            let named = names_job(labels, names)?;
            let most = if named || target.alert_all_jobs { Some(Rung::Kill) } else { Some(Rung::Warn) };
            Some(FiringAlert { at: *at, most })
        });
        for_it.max_by_key(|alert| (alert.most, alert.at.monotonic()))
    }

    /// The numbers of matched, unmatched and refused alerts, with their labels.
    pub fn counts(&self) -> [(&'static str, u64); 3] {
        let count = |place: usize| self.counts[place].load(Ordering::Relaxed);
        [("matched", count(0)), ("unmatched", count(1)), ("refused", count(2))]
    }
}

fn matches_alert(target: &Target, labels: &Labels) -> bool {
    target.matches_alert(|name| labels.get(name).map(String::as_str))
}

/// Whether an alert names the job; absent where it names another one.
///
/// A user can choose the name of a run, also that of another user's run, so that this name alone selects no job.
fn names_job(labels: &Labels, names: &JobNames) -> Option<bool> {
    let label = |name: &str| labels.get(name).map(String::as_str).filter(|value| !value.is_empty());
    let own = [
        ("workload", names.workload.as_str()),
        ("user", names.owner.user.as_str()),
        ("run", names.owner.run.name.as_str()),
    ];
    let fits = own.iter().all(|(name, own)| label(name).is_none_or(|value| value == *own));
    fits.then(|| label("workload").or(label("user")).is_some())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protection::options::Protection;

    #[test]
    fn many_alerts_about_jobs_of_one_user_leave_room_for_one_about_anothers() {
        let text =
            "protection: {targets: [{name: a, workload: b, allow_users: [c], alert: {labels: {job: x}}}]}";
        let config = crate::config::parse_str(text, "f".as_ref(), &crate::app::schema(), &[]).unwrap();
        let targets = Protection::new(&config.modules["protection"], config.sampling.interval).targets;
        let alerts = Alerts::default();
        let receive = |user: &str, workload: String| {
            let labels = [("job", "x".to_owned()), ("user", user.to_owned()), ("workload", workload)];
            let labels = labels.into_iter().map(|(name, value)| (name.to_owned(), value)).collect();
            alerts.receive(labels, true, &targets, Timestamp::from_secs(5))
        };
        let kept = (0..300).filter(|number| receive("mallory", format!("w{number}"))).count();
        assert_eq!((kept, alerts.counts()[2].1), (MOST, 44));
        assert!(receive("alice", "train".to_owned()));
        assert_eq!(lock(&alerts.firing).len(), MOST);
    }

    #[test]
    fn an_alert_selects_the_jobs_that_it_names() {
        let targets = |more: &str| {
            let text = format!(
                "protection: {{targets: [{{name: a, workload: b, allow_users: [c], alert: {{labels: {{job: x}}{more}}}}}]}}"
            );
            let config = crate::config::parse_str(&text, "f".as_ref(), &crate::app::schema(), &[]).unwrap();
            Protection::new(&config.modules["protection"], config.sampling.interval).targets
        };
        let job = |user: &str| {
            let mut names = JobNames { workload: format!("train@{user}").into(), ..JobNames::default() };
            names.owner.user = user.into();
            names.owner.run.name = "run".into();
            names
        };
        let most = |labels: &[(&str, &str)], more: &str, user: &str| {
            let (alerts, targets) = (Alerts::default(), targets(more));
            let labels = labels.iter().chain(&[("job", "x")]);
            let labels = labels.map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
            assert!(alerts.receive(labels, true, &targets, Timestamp::from_secs(1)));
            alerts.firing(&targets[0], &job(user)).map(|alert| alert.most)
        };
        let all = ", all_jobs: true";
        for (labels, of_ada, of_bob) in [
            (&[("user", "ada")][..], Some(Some(Rung::Kill)), None),
            (&[("workload", "train@ada"), ("user", "ada"), ("run", "run")], Some(Some(Rung::Kill)), None),
            (&[("workload", "train@ada"), ("user", "bob")], None, None),
            (&[("user", "ada"), ("run", "other")], None, None),
        ] {
            for more in ["", all] {
                assert_eq!(
                    [most(labels, more, "ada"), most(labels, more, "bob")],
                    [of_ada, of_bob],
                    "{labels:?}"
                );
            }
        }
        // Neither nobody's name nor one that users choose selects a job.
        for labels in [&[][..], &[("user", ""), ("instance", "node7:10636")], &[("run", "run")]] {
            assert_eq!(most(labels, "", "bob"), Some(Some(Rung::Warn)), "{labels:?}");
            assert_eq!(most(labels, all, "bob"), Some(Some(Rung::Kill)), "{labels:?}");
        }
    }

    #[test]
    fn the_alert_that_leads_furthest_counts() {
        let text =
            "protection: {targets: [{name: a, workload: b, allow_users: [c], alert: {labels: {job: x}}}]}";
        let config = crate::config::parse_str(text, "f".as_ref(), &crate::app::schema(), &[]).unwrap();
        let targets = Protection::new(&config.modules["protection"], config.sampling.interval).targets;
        let alerts = Alerts::default();
        let mut names = JobNames::default();
        names.owner.user = "ada".into();
        let hear = |user: &str, second| {
            let labels =
                [("job", "x"), ("user", user)].map(|(name, value)| (name.to_owned(), value.to_owned()));
            alerts.receive(labels.into_iter().collect(), true, &targets, Timestamp::from_secs(second));
            alerts.firing(&targets[0], &names)
        };
        assert_eq!(hear("bob", 1), None);
        let named = Some(FiringAlert { at: Timestamp::from_secs(2), most: Some(Rung::Kill) });
        assert_eq!(hear("ada", 2), named);
        assert_eq!(hear("", 3), named);
    }

    #[test]
    fn alerts_without_an_end_expire() {
        let text =
            "protection: {targets: [{name: a, workload: b, allow_users: [c], alert: {labels: {job: x}}}]}";
        let config = crate::config::parse_str(text, "f".as_ref(), &crate::app::schema(), &[]).unwrap();
        let targets = Protection::new(&config.modules["protection"], config.sampling.interval).targets;
        let alerts = Alerts::default();
        let hear = |number: usize, second| {
            let labels = [("job", "x".to_owned()), ("pod", number.to_string())];
            let labels = labels.map(|(name, value)| (name.to_owned(), value)).into_iter().collect();
            alerts.receive(labels, true, &targets, Timestamp::from_secs(second))
        };
        assert!((0..MOST).all(|number| hear(number, 100)));
        assert!(hear(7, 200), "one that is known");
        assert!(!hear(MOST, 200));
        assert!(hear(MOST, 100 + ALERT_RETENTION.as_secs()));
        assert_eq!(alerts.firing.lock().unwrap().len(), 2);
    }
}
