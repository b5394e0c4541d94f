//! The state of a verdict between assessments: when growth began, how long it has lasted, and where it ended before.

use serde::{Deserialize, Serialize};

use crate::estimate::LeakState;
use crate::leak::ended::ended;
use crate::leak::evidence::{Criteria, GrowthWindow};
use crate::rules::Rules;
use crate::stats::trend::drift;
use crate::view::{Envelope, View};

/// Upper bound of valid levels in bytes and rates in bytes per second.
const LARGEST: f64 = 1e18;

/// The verdict on one series; times on the history's clock, bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Verdict {
    leaking: bool,
    /// Time for which there was evidence of growth, minus the time without it, in seconds.
    held: f64,
    assessed: f64,
    /// When the growth began.
    pub(crate) onset: f64,
    /// The highest level of the leading envelope during the growth.
    top: f64,
    /// The highest level at which growth ended.
    ceiling: f64,
    /// The last confirmed growth rate, bytes per second.
    pub(crate) rate: f64,
    pub(crate) rate_error: f64,
    lead: Envelope,
    /// Where growth last ended.
    stood: Option<GrowthEnd>,
    /// Whether it has not been a leak again since then.
    #[serde(default)]
    stands: bool,
    /// The longest pause after which growth went on, in seconds.
    #[serde(default)]
    pause: f64,
    /// Whether growth has resumed since then at its former rate.
    resumed: bool,
    /// The rate of the window when it last grew, bytes per second; 0 once the window no longer includes that growth.
    #[serde(default)]
    grew: f64,
    /// Whether the rate of the window is that of growth that has ended.
    #[serde(default)]
    faded: bool,
}

/// Where growth ended.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
struct GrowthEnd {
    at: f64,
    /// The higher of the two newest means at that time.
    level: f64,
}

impl Verdict {
    /// Updates the verdict with a new evaluation.
    pub(crate) fn judge(
        &mut self,
        view: &View,
        look: &GrowthWindow,
        now: f64,
        asked: &Criteria,
        rules: &Rules,
    ) -> LeakState {
        let step = (now - self.assessed).max(0.0);
        self.assessed = now;
        let grows = look.grows();
        let over = self.leaking && !grows && self.is_over(view, look, rules);
        self.resumed = grows && self.stood.is_some_and(|stood| self.has_resumed(view, stood, now, rules));
        if grows {
            let new = self.resumed || look.level > self.ceiling * rules.new_level;
            let level = if new { 1.0 } else { rules.old_level };
            let pace = if look.accelerating { rules.accelerating } else { 1.0 };
            let most =
                if self.stood.is_some() { asked.step.min(rules.again * asked.hold) } else { asked.step };
            self.held += step.min(most * view.span()) * level * pace;
        } else if !self.leaking {
            self.held = (self.held - step).max(0.0);
        }
        if grows && !self.leaking && self.held >= asked.hold * view.span() {
            self.leaking = true;
            self.onset = look.from;
            self.top = look.level;
        }
        if self.leaking {
            if let Some(stood) = self.stood.filter(|_| self.stands) {
                (self.stands, self.pause) = (false, self.pause.max(now - stood.at));
            }
            self.top = self.top.max(look.level);
            if grows {
                (self.rate, self.rate_error, self.lead) = (look.rate, look.rate_error, look.evidence.lead);
            }
        }
        if over {
            self.leaking = false;
            self.held = 0.0;
            self.ceiling = self.ceiling.max(self.top);
            self.stands = true;
            self.stood = Some(GrowthEnd { at: now, level: newest(view)[1] });
        }
        if self.leaking {
            LeakState::Leaking
        } else if grows {
            LeakState::Growing
        } else if look.slowing && look.rate > 0.0 && look.climbs {
            LeakState::Warming
        } else {
            LeakState::Steady
        }
    }

    /// Whether the rate of the window is that of growth that has ended: a window is minutes long, and so its rate
    /// remains for minutes. True until the window no longer includes the growth, or growth resumes.
    pub(crate) fn fades(
        &mut self,
        view: &View,
        look: &GrowthWindow,
        state: LeakState,
        rules: &Rules,
    ) -> bool {
        if matches!(state, LeakState::Growing | LeakState::Leaking) {
            (self.grew, self.faded) = (look.rate.clamp(0.0, LARGEST), false);
        } else if look.rate < 0.0 {
            (self.grew, self.faded) = (0.0, false);
        } else if self.grew > 0.0 && !self.faded {
            self.faded = newest_rate(view, rules) < rules.fades * look.rate;
        }
        self.faded
    }

    /// Whether growth has ended at the present level: the pause is longer than every earlier one after which growth
    /// went on.
    pub(crate) fn has_ended(&self, view: &View, now: f64, rules: &Rules) -> bool {
        let here = |stood: GrowthEnd| {
            let lasts = now - stood.at;
            let newest = view.mean().last().copied().unwrap_or(f64::INFINITY);
            lasts >= rules.pauses * self.pause
                && lasts <= rules.seen_by_whole * now
                && newest <= stood.level * rules.new_level
        };
        self.stands && self.stood.is_some_and(here)
    }

    /// Whether growth has lasted at least half as long as a leak requires, or has resumed.
    pub(crate) fn is_half_held(&self, view: &View, asked: &Criteria, rules: &Rules) -> bool {
        self.leaking || self.resumed || self.held >= rules.forecast_hold * asked.hold * view.span()
    }

    /// Whether a restored state is valid at `now`: finite, in range, and not in the future.
    pub(crate) fn is_sound(&self, now: f64) -> bool {
        let stood = self.stood.map_or([0.0; 2], |stood| [stood.at, stood.level]);
        let bytes = [self.top, self.ceiling, self.rate, self.rate_error, stood[1], self.grew];
        let times = [self.held, self.assessed, self.onset, stood[0], self.pause];
        bytes.iter().all(|x| (0.0..=LARGEST).contains(x)) && times.iter().all(|at| (0.0..=now).contains(at))
    }

    fn has_resumed(&self, view: &View, stood: GrowthEnd, now: f64, rules: &Rules) -> bool {
        newest(view)[0] - stood.level > rules.resumed * self.rate * (now - stood.at)
    }

    fn is_over(&self, view: &View, look: &GrowthWindow, rules: &Rules) -> bool {
        ended(view, view.from(self.onset), self.rate, self.lead, rules)
            || rules.end_by_slowing && look.slowing && look.climbs
    }
}

/// The rate of the newest buckets, bytes per second.
fn newest_rate(view: &View, rules: &Rules) -> f64 {
    let first = view.len().saturating_sub(rules.fade_buckets);
    drift(&view.at()[first..], &view.mean()[first..], rules).slope
}

/// The two newest means, lower first.
fn newest(view: &View) -> [f64; 2] {
    match view.mean() {
        [.., one, next] => [one.min(*next), one.max(*next)],
        [only] => [*only; 2],
        [] => [0.0; 2],
    }
}
