//! One tracker a subject: fed each tick, asked in turns, forgotten with its subject.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::tracker::{Assessment, Sample, Tracker};
use crate::model::analyzer::Keepsake;
use crate::model::finding::Subject;
use crate::model::setting::{Opt, OptKind, Settings};
use crate::model::time::Timestamp;

/// The option of every analyzer that follows subjects.
pub(super) static MOST: Opt = Opt {
    key: "most",
    help: "Maximum number of subjects tracked at once; each takes 2.6 KiB of memory. Subjects beyond the limit are counted.",
    kind: OptKind::Count(1, 4_000),
    default: "2000",
};

/// Seconds between two assessments of one subject: a hundredth of what it is followed for, within these.
const OFTEN: f64 = 1.0;
const SELDOM: f64 = 10.0;
const SHARE: f64 = 0.01;
/// How long a subject that is gone is remembered at most, in seconds: a source that fails for a while loses nothing.
const REMEMBER: f64 = 300.0;

/// Seconds by which the start of a life may wander with the host's clock and still be the same life.
const SAME_LIFE: f64 = 5.0;

/// One subject as a tick shows it.
#[derive(Debug)]
pub(super) struct Fed<'a> {
    pub(super) subject: &'a Subject,
    pub(super) sample: Sample,
    /// Bytes.
    pub(super) limit: Option<f64>,
    /// What tells its present life from an earlier one, in seconds: what was learned of a workload that was killed
    /// and begins again says nothing of the new one. 0 where there is only one life.
    pub(super) life: f64,
}

/// What is followed of one subject.
#[derive(Debug, Default)]
pub(super) struct Followed {
    tracker: Tracker,
    /// Seconds on the monotonic clock.
    seen: f64,
    /// When it was first seen, on that clock.
    born: f64,
    life: f64,
    /// When its growth began, in seconds since 1970; absent unless it grows.
    since_unix: Option<f64>,
    due: f64,
    pub(super) said: Option<Said>,
}

/// An assessment and when it was made.
#[derive(Debug)]
pub(super) struct Said {
    pub(super) assessment: Assessment,
    /// Seconds on the monotonic clock.
    at: f64,
    /// When its growth began, in seconds since 1970; absent unless it grows.
    pub(super) since_unix: Option<f64>,
}

impl Said {
    /// Seconds since it was made.
    pub(super) fn age(&self, now: Timestamp) -> f64 {
        (now.monotonic().as_secs_f64() - self.at).max(0.0)
    }
}

/// The trackers of one analyzer.
#[derive(Debug)]
pub(super) struct Subjects {
    followed: BTreeMap<Subject, Followed>,
    most: usize,
    /// This tick and the one before, in seconds on the monotonic clock.
    ticks: [f64; 2],
    /// Subjects of this tick that were not followed for lack of room.
    pub(super) omitted: u64,
}

/// What survives a restart.
#[derive(Serialize, Deserialize)]
struct Saved {
    subject: Subject,
    tracker: Tracker,
    seen: f64,
    born: f64,
    life: f64,
    #[serde(default)]
    since_unix: Option<f64>,
}

impl Subjects {
    /// Follows as many as [`MOST`] says.
    pub(super) fn new(settings: &Settings) -> Self {
        let most = usize::try_from(settings.count(&MOST)).unwrap_or(usize::MAX);
        Self { followed: BTreeMap::new(), most, ticks: [0.0; 2], omitted: 0 }
    }

    /// Begins a tick.
    pub(super) fn begin(&mut self, now: Timestamp) {
        let now = now.monotonic().as_secs_f64();
        let before = self.ticks[1];
        self.omitted = 0;
        self.followed.retain(|subject, followed| {
            // A pid that comes back is another process.
            let gone_for = if subject.pid.is_empty() {
                // What lived for seconds has taught us nothing worth keeping for minutes.
                REMEMBER.min(followed.seen - followed.born)
            } else {
                0.0
            };
            followed.seen >= before || now - followed.seen < gone_for
        });
        self.ticks = [before, now];
    }

    /// Forgets who has been gone for longest, and says whether there was one.
    fn forget_one(&mut self) -> bool {
        let gone = self.followed.iter().filter(|(_, followed)| followed.seen < self.ticks[0]);
        let oldest =
            gone.min_by(|(_, a), (_, b)| a.seen.total_cmp(&b.seen)).map(|(subject, _)| subject.clone());
        oldest.is_some_and(|subject| self.followed.remove(&subject).is_some())
    }

    /// Feeds one subject and assesses it where that is due.
    pub(super) fn feed(
        &mut self,
        Fed { subject, sample, limit, life }: Fed<'_>,
        horizons: &[f64],
        now: Timestamp,
    ) -> Option<&mut Followed> {
        let at = now.monotonic().as_secs_f64();
        if !self.followed.contains_key(subject) {
            // Where one was left out, there is none to forget.
            if self.followed.len() >= self.most && (self.omitted > 0 || !self.forget_one()) {
                self.omitted += 1;
                return None;
            }
            self.followed.insert(subject.clone(), Followed { born: at, life, ..Followed::default() });
        }
        let followed = self.followed.get_mut(subject)?;
        if (followed.life - life).abs() > SAME_LIFE {
            *followed = Followed { born: at, life, ..Followed::default() };
        }
        followed.seen = at;
        followed.tracker.push(at, sample);
        if at >= followed.due {
            followed.due = at + ((at - followed.born) * SHARE).clamp(OFTEN, SELDOM);
            let assessment = followed.tracker.assess(limit, horizons);
            // Told once, it stays: a gap in what was seen must not move it.
            followed.since_unix = assessment
                .growing_for_seconds
                .map(|seconds| followed.since_unix.unwrap_or_else(|| now.unix().as_secs_f64() - seconds));
            let since_unix = followed.since_unix;
            followed.said = Some(Said { assessment, at, since_unix });
        }
        Some(followed)
    }

    /// How many are followed.
    pub(super) fn len(&self) -> usize {
        self.followed.len()
    }

    /// What must survive a restart.
    pub(super) fn save(&self) -> Keepsake {
        let all: Vec<Saved> = self
            .followed
            .iter()
            .map(|(subject, followed)| Saved {
                subject: subject.clone(),
                tracker: followed.tracker.clone(),
                seen: followed.seen,
                born: followed.born,
                life: followed.life,
                since_unix: followed.since_unix,
            })
            .collect();
        Box::new(move |out| serde_json::to_writer(out, &all))
    }

    /// Takes over what an earlier run kept; what cannot be its work is left out.
    pub(super) fn restore(&mut self, saved: &str) -> Result<(), serde_json::Error> {
        let saved: Vec<Saved> = serde_json::from_str(saved)?;
        let sound = saved
            .into_iter()
            .filter(|saved| saved.tracker.is_sound())
            .filter(|saved| [saved.seen, saved.born, saved.life].iter().all(|time| time.is_finite()));
        // After a restart nobody can tell whether a pid is still the same process.
        let lasting = sound.filter(|saved| saved.subject.pid.is_empty()).take(self.most);
        for Saved { subject, tracker, seen, born, life, since_unix } in lasting {
            self.followed
                .insert(subject, Followed { tracker, seen, born, life, since_unix, due: 0.0, said: None });
        }
        Ok(())
    }
}
