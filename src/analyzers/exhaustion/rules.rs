//! The rule that holds for each resource, for the daemon and for `memwarden replay`.

use std::collections::BTreeMap;

use forecast::tracker::Assessment;

use crate::analyzers::latch::Latch;
use crate::model::finding::Subject;
use crate::model::health::{self, GROWTH_COUNTS, Judged, Rule};
use crate::model::outlook::LeakState;
use crate::model::time::Timestamp;

/// The horizons of the probabilities that the rules use, in seconds.
pub(in crate::analyzers) const RULES: [f64; 2] = [900.0, 3600.0];

/// The memory of a resource at one time, as shares of its limit.
#[derive(Clone, Copy, Debug)]
pub(in crate::analyzers) struct Level {
    /// What is used.
    pub(in crate::analyzers) used: f64,
    /// What cannot be given to another use.
    pub(in crate::analyzers) occupied: f64,
    /// Whether a limit that throttles does.
    pub(in crate::analyzers) is_stalled: bool,
}

/// The rules that hold, and what they depend on of the past.
#[derive(Debug, Default)]
pub(in crate::analyzers) struct Rules {
    held: Latch<Rule>,
    /// When each subject grew last, in seconds on the monotonic clock, if that counts.
    grew: BTreeMap<Subject, f64>,
}

impl Rules {
    /// Begins a tick.
    pub(in crate::analyzers) fn begin(&mut self, now: Timestamp) {
        self.held.begin(now);
        let at = now.monotonic().as_secs_f64();
        self.grew.retain(|_, grew| at - *grew < GROWTH_COUNTS);
    }

    /// Removes a subject that begins again.
    pub(super) fn forget(&mut self, subject: &Subject) {
        self.held.forget(subject);
        self.grew.remove(subject);
    }

    /// The rule that holds, since when in seconds since 1970, and whether it is over: it held within the last minute, and a less
    /// severe one holds now. `within` are the probabilities of exhaustion within [`RULES`].
    pub(in crate::analyzers) fn update(
        &mut self,
        subject: &Subject,
        level: Level,
        assessment: &Assessment,
        [within_15_minutes, within_hour]: [Option<f64>; 2],
        now: Timestamp,
    ) -> (Rule, f64, bool) {
        let grows = assessment.leak >= LeakState::Growing;
        if grows {
            self.grew.insert(subject.clone(), now.monotonic().as_secs_f64());
        } else if !health::is_nearly_full(level.used) {
            // What grew was freed.
            self.grew.remove(subject);
        }
        let rule = Rule::of(&Judged {
            used: level.occupied,
            grows,
            leaks: assessment.leak == LeakState::Leaking,
            grew: self.grew.contains_key(subject),
            may_be_reserved: matches!(subject.resource.as_str(), "gpu" | "gpu_instance" | "device_memory"),
            throttles: subject.resource.as_str() == "memory_high",
            is_stalled: level.is_stalled,
            within_15_minutes,
            within_hour,
        });
        let (held, since) = self.held.update(subject, rule, now);
        (held, since, held != rule)
    }

    /// The rule that several samples confirm, for alerts.
    pub(super) fn confirmed(&self, subject: &Subject, now: Timestamp) -> Rule {
        self.held.confirmed(subject, now)
    }
}
