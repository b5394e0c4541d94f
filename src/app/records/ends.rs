//! What protection ended lately, found again in the folders of incidents: rate limits outlive a restart.

use std::time::Duration;

use crate::host::incident::{RECORD, Store};
use crate::model::incident::{Cause, Incident};
use crate::model::time::Timestamp;

/// The window of the rate limits.
const WINDOW: Duration = Duration::from_secs(3600);
/// An incident that began earlier ended nobody within the window: saving takes minutes.
const LONGEST: Duration = Duration::from_secs(24 * 3600);

/// A target that was ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct End {
    /// Its name.
    pub target: String,
    /// When.
    pub at: Timestamp,
}

/// The ends of the last hour, oldest first; records that cannot be read are passed over.
pub(super) fn read(store: &Store, now: Timestamp) -> Vec<End> {
    let mut ends = Vec::new();
    for listed in store.list().unwrap_or_default().iter().rev() {
        let record = store.read(&listed.id, RECORD).ok();
        let Some(record) = record.and_then(|bytes| serde_json::from_slice::<Incident>(&bytes).ok()) else {
            continue;
        };
        if ago(now, record.began_unix_seconds).is_none_or(|ago| ago > LONGEST) {
            break;
        }
        ends.extend(ended(&record, now));
    }
    ends.sort_by_key(|end| end.at.monotonic());
    ends
}

/// The first move of an incident that ended somebody, which is the one that counts.
fn ended(record: &Incident, now: Timestamp) -> Option<End> {
    if record.cause != Cause::Policy || record.mode != "enforce" {
        return None;
    }
    let step = record.moves.iter().find(|step| matches!(step.to.as_str(), "term" | "kill"))?;
    let ago = ago(now, step.unix_seconds).filter(|ago| *ago < WINDOW)?;
    let at = Timestamp::new(now.monotonic().saturating_sub(ago), now.unix().saturating_sub(ago));
    Some(End { target: record.target.clone(), at })
}

/// How long ago that was; what a clock that was set back has in the future was just now.
fn ago(now: Timestamp, unix_seconds: f64) -> Option<Duration> {
    let at = Duration::try_from_secs_f64(unix_seconds).ok()?;
    Some(now.unix().saturating_sub(at))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::incident::Move;

    fn record(mode: &str, began: f64, moves: &[(&str, f64)]) -> Vec<(String, Vec<u8>)> {
        let step = |(to, unix_seconds): &(&str, f64)| Move {
            to: (*to).to_owned(),
            unix_seconds: *unix_seconds,
            ..Move::default()
        };
        let record = Incident {
            target: "job".to_owned(),
            mode: mode.to_owned(),
            began_unix_seconds: began,
            moves: moves.iter().map(step).collect(),
            ..Incident::default()
        };
        vec![(RECORD.to_owned(), serde_json::to_vec(&record).unwrap())]
    }

    #[test]
    fn only_what_was_ended_within_the_hour_counts_and_once() {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::new(folder.path().to_owned(), 100, 1 << 20);
        let now = Timestamp::new(Duration::from_secs(50_000), Duration::from_secs(1_000_000));
        assert_eq!(read(&store, now), []);
        for (id, files) in [
            ("i0", record("enforce", 1_000.0, &[("kill", 999_999.0)])),
            ("i1", record("enforce", 990_000.0, &[("kill", 996_000.0)])),
            (
                "i2",
                record(
                    "enforce",
                    999_000.0,
                    &[("soft", 999_000.0), ("term", 999_100.0), ("kill", 999_200.0)],
                ),
            ),
            ("i3", record("observe", 999_300.0, &[("kill", 999_300.0)])),
            ("i4", record("enforce", 999_400.0, &[("soft", 999_400.0)])),
            ("i5", vec![(RECORD.to_owned(), b"{".to_vec())]),
            ("i6", record("enforce", 999_000.0, &[("kill", 999_050.0)])),
        ] {
            store.write(id, &files).unwrap();
        }
        let seconds: Vec<u64> = read(&store, now).iter().map(|end| end.at.monotonic().as_secs()).collect();
        assert_eq!(seconds, [49_050, 49_100]);
        let early = Timestamp::new(Duration::from_secs(10), now.unix());
        assert_eq!(read(&store, early)[0].at.monotonic(), Duration::ZERO, "before the last boot");
    }
}
