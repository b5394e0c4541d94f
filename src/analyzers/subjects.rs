//! One tracker per subject: fed each tick, assessed at intervals, removed with its subject.

use std::collections::{BTreeMap, BTreeSet};

use forecast::Rules;
use forecast::exhaustion::phase::PhasePeaks;
use forecast::tracker::{Assessment, Sample, Tracker};
use serde::{Deserialize, Serialize};

use super::users::Users;
use crate::model::analyzer::{SavedState, View};
use crate::model::fair;
use crate::model::finding::Subject;
use crate::model::label::Label;
use crate::model::outlook::LeakState;
use crate::model::setting::Settings;
use crate::model::shortage::Shortage;
use crate::model::time::Timestamp;
use crate::sources::workload;

crate::options! {
    /// The options of every analyzer that tracks subjects.
    pub(super) struct Options {
        /// Maximum number of subjects tracked at once; each takes 2.6 KiB of memory. Each user has an equal share of
        /// them; subjects beyond it are counted.
        max_subjects: usize = 2000 in 1..=4000;
    }
}

/// Seconds between two assessments of one subject: 1 % of the time that it has been tracked, within these bounds.
const OFTEN: f64 = 1.0;
const SELDOM: f64 = 10.0;
const SHARE: f64 = 0.01;
/// Maximum time that a missing subject is kept, in seconds: a source that fails temporarily loses no history.
const REMEMBER: f64 = 300.0;

/// Seconds for which memory must have grown for its growth to be a leak, where it is sampled often enough for an earlier answer: of 33
/// short training runs without a leak, at 5 samples a second, 15 grew steadily for 7 to 70 s while malloc warmed up, 2 of them for more
/// than this.
const LEAST: f64 = 45.0;

/// The same for memory that programs share which come and go: the parallel compilers of a build take more and more memory for one to
/// two minutes.
const LEAST_OF_SHARED: f64 = 300.0;

/// Seconds in which a program starts: shells and scripts that look up its interpreter exit.
const BEGINNING: f64 = 10.0;

/// Seconds after the start of its workload within which a process is the workload's program, and seconds after which any process
/// is no step of a build: what it holds is its own, whatever else comes and goes in the workload.
const FIRST: f64 = 30.0;
const LONG_LIVED: f64 = 120.0;

/// Tolerance, in seconds, of the start time that identifies a lifetime: it drifts with the host's clock.
const SAME_LIFE: f64 = 5.0;

/// One subject in one tick.
#[derive(Debug)]
pub(super) struct SubjectSample<'a> {
    pub(super) subject: &'a Subject,
    pub(super) sample: Sample,
    /// Bytes.
    pub(super) limit: Option<f64>,
    /// Identifies the lifetime of the subject, in seconds: the history of a workload that was killed does not apply
    /// after its restart. 0 for subjects that are never restarted.
    pub(super) life: f64,
    /// The phase of the job with the highest peaks, by its name.
    pub(super) phase: Option<(Label, PhasePeaks)>,
    pub(super) sharing: Sharing,
}

/// Whose memory a subject is.
#[derive(Clone, Copy, Debug, Default)]
pub(super) enum Sharing {
    /// One program's.
    #[default]
    One,
    /// That of programs that come and go.
    Many,
    /// That of a workload with these numbers of processes.
    Workload(Turnover),
}

/// The processes of workloads that have exited, and that are there.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Turnover {
    exited: f64,
    alive: f64,
}

impl std::iter::Sum for Turnover {
    fn sum<I: Iterator<Item = Self>>(all: I) -> Self {
        all.fold(Self::default(), |sum, one| Self {
            exited: sum.exited + one.exited,
            alive: sum.alive + one.alive,
        })
    }
}

/// The processes of each workload.
pub(super) fn turnovers<'v>(view: &View<'v>) -> BTreeMap<&'v Label, Turnover> {
    use workload::metrics::{EXITED, PROCESSES_BY_ACTIVITY};
    let mut found: BTreeMap<&Label, Turnover> = BTreeMap::new();
    for point in view.points(&PROCESSES_BY_ACTIVITY) {
        found.entry(&point.labels[0]).or_default().alive += point.value;
    }
    for point in view.points(&EXITED) {
        found.entry(&point.labels[0]).or_default().exited = point.value;
    }
    found
}

/// The tracked state of one subject.
#[derive(Debug, Default)]
pub(super) struct TrackedSubject {
    tracker: Tracker,
    /// Seconds on the monotonic clock.
    seen: f64,
    /// When it was first seen, in seconds on the monotonic clock.
    born: f64,
    life: f64,
    /// When its growth began, in seconds since 1970; absent while it does not grow.
    since_unix: Option<f64>,
    due: f64,
    /// The processes of its workload that had exited when it had been tracked for [`BEGINNING`].
    early_exits: f64,
    pub(super) latest: Option<DatedAssessment>,
}

impl TrackedSubject {
    /// Whether it began with this sample, for the first time or again: nothing known from before applies to it.
    pub(super) fn is_new(&self) -> bool {
        self.born >= self.seen
    }

    /// Whether it is the memory of programs that come and go: of its workload more processes have exited, since it has
    /// started, than are there, as in a build.
    fn is_shared(&mut self, now: f64, sharing: Sharing) -> bool {
        let Sharing::Workload(Turnover { exited, alive }) = sharing else {
            return matches!(sharing, Sharing::Many);
        };
        if now - self.born <= BEGINNING {
            self.early_exits = exited;
        }
        exited - self.early_exits > alive
    }
}

/// An assessment and when it was made.
#[derive(Debug)]
pub(super) struct DatedAssessment {
    pub(super) assessment: Assessment,
    /// The phase whose peaks the forecast is computed from, and the median number of steps between them; absent where
    /// it is not computed from those of a phase.
    pub(super) phase: Option<(Label, f64)>,
    /// Seconds on the monotonic clock.
    at: f64,
    /// Seconds for which its subject has been tracked.
    pub(super) tracked: f64,
    /// When its growth began, in seconds since 1970; absent while it does not grow.
    pub(super) since_unix: Option<f64>,
}

impl DatedAssessment {
    /// Seconds since it was made.
    pub(super) fn age(&self, now: Timestamp) -> f64 {
        (now.monotonic().as_secs_f64() - self.at).max(0.0)
    }
}

/// The trackers of one analyzer.
#[derive(Debug, Default)]
pub(super) struct Subjects {
    followed: BTreeMap<Subject, TrackedSubject>,
    most: usize,
    /// The previous and the current tick, in seconds on the monotonic clock.
    ticks: [f64; 2],
    /// Subjects that are not tracked in this tick because they exceed their user's share.
    left_out: BTreeSet<Subject>,
    /// Number of subjects of this tick that are not tracked because they exceed their user's share, by user.
    omitted: BTreeMap<u32, u64>,
    /// Number of subjects of this tick that wait until subjects of the previous tick are removed.
    waiting: u64,
}

/// The state of one subject that is kept across a restart of the daemon.
#[derive(Serialize, Deserialize)]
struct Saved {
    subject: Subject,
    tracker: Tracker,
    seen: f64,
    born: f64,
    life: f64,
    since_unix: Option<f64>,
}

impl Subjects {
    /// Creates an empty set that tracks at most `max_subjects`.
    pub(super) fn new(settings: &Settings) -> Self {
        Self { most: Options::read(settings).max_subjects, ..Self::default() }
    }

    /// Begins a tick with these subjects. If they exceed the limit, each user gets an equal share, and subjects that
    /// are already tracked take precedence over others of the same user.
    pub(super) fn begin<'s>(
        &mut self,
        subjects: impl ExactSizeIterator<Item = &'s Subject>,
        view: &View<'_>,
        now: Timestamp,
    ) {
        self.forget(now);
        self.left_out.clear();
        self.omitted.clear();
        self.waiting = 0;
        if subjects.len() <= self.most {
            return;
        }
        let users = Users::new(view);
        let (mut order, new): (Vec<&Subject>, Vec<&Subject>) =
            subjects.partition(|subject| self.followed.contains_key(*subject));
        order.extend(new);
        let (_, left_out) = fair::split(order, self.most, |subject| users.of(subject));
        for subject in left_out {
            self.followed.remove(subject);
            self.left_out.insert(subject.clone());
            *self.omitted.entry(users.of(subject)).or_default() += 1;
        }
    }

    /// Removes subjects that no longer exist.
    fn forget(&mut self, now: Timestamp) {
        let now = now.monotonic().as_secs_f64();
        let before = self.ticks[1];
        self.followed.retain(|subject, followed| {
            // A pid that reappears is another process.
            let gone_for = if subject.pid.is_empty() {
                // A subject that existed for seconds has no history worth keeping for minutes.
                REMEMBER.min(followed.seen - followed.born)
            } else {
                0.0
            };
            followed.seen >= before || now - followed.seen < gone_for
        });
        self.ticks = [before, now];
    }

    /// Removes the subject that has been missing for longest; returns whether there was one.
    fn forget_one(&mut self) -> bool {
        let gone = self.followed.iter().filter(|(_, followed)| followed.seen < self.ticks[0]);
        let oldest =
            gone.min_by(|(_, a), (_, b)| a.seen.total_cmp(&b.seen)).map(|(subject, _)| subject.clone());
        oldest.is_some_and(|subject| self.followed.remove(&subject).is_some())
    }

    /// Adds the sample of one subject, and assesses the subject if that is due. Returns nothing if it is not tracked.
    pub(super) fn feed(
        &mut self,
        SubjectSample { subject, sample, limit, life, phase, sharing }: SubjectSample<'_>,
        horizons: &[f64],
        now: Timestamp,
    ) -> Option<&mut TrackedSubject> {
        let at = now.monotonic().as_secs_f64();
        if !self.followed.contains_key(subject) {
            if self.left_out.contains(subject) {
                return None;
            }
            // A subject of the previous tick that is missing now may return in the next: it is kept until then.
            if self.followed.len() >= self.most && (self.waiting > 0 || !self.forget_one()) {
                self.waiting += 1;
                return None;
            }
            self.followed
                .insert(subject.clone(), TrackedSubject { born: at, life, ..TrackedSubject::default() });
        }
        let is_process = !subject.pid.is_empty();
        let workload = is_process.then(|| self.followed.get(&Subject::workload(&subject.workload))).flatten();
        let started = workload.map_or(f64::NEG_INFINITY, |workload| workload.born);
        let followed = self.followed.get_mut(subject)?;
        if (followed.life - life).abs() > SAME_LIFE {
            *followed = TrackedSubject { born: at, life, ..TrackedSubject::default() };
        }
        followed.seen = at;
        followed.tracker.push(at, sample);
        let is_own = is_process && (followed.born - started <= FIRST || at - followed.born >= LONG_LIVED);
        let is_shared = followed.is_shared(at, sharing) && !is_own;
        if at >= followed.due {
            followed.due = at + ((at - followed.born) * SHARE).clamp(OFTEN, SELDOM);
            let peaks = phase.as_ref().map(|(_, peaks)| peaks);
            let rules = if is_shared { Rules::SHARED } else { Rules::DAEMON };
            let mut assessment = followed.tracker.assess_by(rules, limit, horizons, peaks);
            let least = if is_shared { LEAST_OF_SHARED } else { LEAST };
            if assessment.growing_for_seconds.is_some_and(|seconds| seconds < least) {
                assessment.leak = assessment.leak.min(LeakState::Growing);
            }
            // The first estimate is kept: a gap in the samples must not change it.
            followed.since_unix = assessment
                .growing_for_seconds
                .map(|seconds| followed.since_unix.unwrap_or_else(|| now.unix().as_secs_f64() - seconds));
            let since_unix = followed.since_unix;
            let phase = phase.map(|(name, _)| name).zip(assessment.phase_steps);
            let tracked = at - followed.born;
            followed.latest = Some(DatedAssessment { assessment, phase, at, tracked, since_unix });
        }
        Some(followed)
    }

    /// Number of tracked subjects.
    pub(super) fn len(&self) -> usize {
        self.followed.len()
    }

    /// Number of subjects that are not tracked because of the limit.
    pub(super) fn omitted(&self) -> u64 {
        self.waiting + self.omitted.values().sum::<u64>()
    }

    /// The untracked subjects by user, for the limit of this name.
    pub(super) fn shortages(&self, limit: &'static str) -> impl Iterator<Item = Shortage> {
        Shortage::of_users(limit, self.most, &self.omitted)
    }

    /// The state to keep across a restart.
    pub(super) fn save(&self) -> SavedState {
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

    /// Restores the state of an earlier run; invalid entries are ignored.
    pub(super) fn restore(&mut self, saved: &str) -> Result<(), serde_json::Error> {
        let saved: Vec<Saved> = serde_json::from_str(saved)?;
        let sound = saved
            .into_iter()
            .filter(|saved| saved.tracker.is_sound())
            .filter(|saved| [saved.seen, saved.born, saved.life].iter().all(|time| time.is_finite()));
        // After a restart it is unknown whether a pid is still the same process.
        let lasting = sound.filter(|saved| saved.subject.pid.is_empty()).take(self.most);
        for Saved { subject, tracker, seen, born, life, since_unix } in lasting {
            let kept = TrackedSubject { tracker, seen, born, life, since_unix, ..TrackedSubject::default() };
            self.followed.insert(subject, kept);
        }
        Ok(())
    }
}
