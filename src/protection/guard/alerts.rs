//! The firing alerts, from their notification by Alertmanager until they are resolved.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::model::lock::lock;
use crate::model::time::Timestamp;
use crate::protection::options::target::Target;

/// Maximum number of firing alerts; more are refused.
const MOST: usize = 256;
/// Age after which an alert is dropped to make room: its resolution was lost, because Alertmanager repeats firing
/// alerts every few hours.
const OLD: Duration = Duration::from_secs(6 * 3600);

/// Labels, sorted.
pub type Labels = BTreeMap<String, String>;

/// The firing alerts.
#[derive(Debug, Default)]
pub struct Alerts {
    firing: Mutex<BTreeMap<Labels, Timestamp>>,
    /// Matched, unmatched, refused.
    counts: [AtomicU64; 3],
}

impl Alerts {
    /// Records that an alert fires or is resolved; returns whether it matches a target.
    pub fn receive(&self, labels: Labels, fires: bool, targets: &[Target], now: Timestamp) -> bool {
        let mut firing = lock(&self.firing);
        if !fires {
            return firing.remove(&labels).is_some();
        }
        if firing.len() >= MOST {
            firing.retain(|_, at| now.since(*at) < OLD);
        }
        let heeded = targets.iter().any(|target| matches_alert(target, &labels));
        let room = firing.len() < MOST || firing.contains_key(&labels);
        if heeded && room {
            firing.insert(labels, now);
        }
        let count = if heeded { 0 } else { 1 };
        self.counts[count].fetch_add(1, Ordering::Relaxed);
        heeded && room
    }

    /// Counts a refused message.
    pub fn refused(&self) {
        self.counts[2].fetch_add(1, Ordering::Relaxed);
    }

    /// When the newest of the firing alerts for this target was received.
    pub fn firing(&self, target: &Target) -> Option<Timestamp> {
        let firing = lock(&self.firing);
        let for_it = firing.iter().filter(|(labels, _)| matches_alert(target, labels)).map(|(_, at)| *at);
        for_it.max_by_key(|at| at.monotonic())
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protection::options::Protection;

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
        assert!(hear(MOST, 100 + OLD.as_secs()));
        assert_eq!(alerts.firing.lock().unwrap().len(), 2);
    }
}
