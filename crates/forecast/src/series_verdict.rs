//! The two assessments of a series, of its newest samples and of its whole life, and which of them is reported.

use serde::{Deserialize, Serialize};

use crate::estimate::LeakState;
use crate::history::life::Life;
use crate::history::past::Past;
use crate::leak::evidence::{Criteria, GrowthWindow, look, pace_now};
use crate::leak::verdict::Verdict;
use crate::rules::Rules;
use crate::stats::robust;
use crate::view::{MOST, View};

/// Samples between two looks at the whole.
const WHOLE_EVERY: f64 = 30.0;

/// The verdicts on one series: on its newest samples, and on the whole of a life that is longer than these.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct SeriesVerdict {
    recent: Verdict,
    whole: Verdict,
    /// The last state of the whole life, and when the next assessment is due, on the history's clock.
    whole_state: LeakState,
    whole_due: f64,
}

/// Now, on the history's clock, and the sampling interval, in seconds.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Clock {
    pub(crate) now: f64,
    pub(crate) interval: f64,
}

/// The state of a series.
#[derive(Debug)]
pub(crate) struct SeriesState {
    pub(crate) look: GrowthWindow,
    pub(crate) state: LeakState,
    /// The growth in bytes per second and its standard error.
    pub(crate) rate: (f64, f64),
    /// Since when it grows, on the history's clock.
    pub(crate) from: f64,
    /// Whether growth has held for half as long as a leak must.
    pub(crate) half_held: bool,
    /// Whether it is of the whole of a long life.
    pub(crate) of_whole: bool,
    /// Whether the rate is that of growth that has ended.
    pub(crate) faded: bool,
}

impl SeriesVerdict {
    /// Judges the newest samples, and the whole of a life that is longer. The worse one is returned; where both leak,
    /// that of the whole life, unless the newest samples leak faster. Absent before there are enough samples.
    pub(crate) fn see(
        &mut self,
        history: &mut Life,
        channel: usize,
        clock: Clock,
        limit: Option<f64>,
        rules: &Rules,
    ) -> Option<SeriesState> {
        let mut view = View::recent(history, channel);
        if let Some(first) = restart(&view, rules) {
            history.retire(view.at()[first]);
            self.recent = Verdict::default();
            view = View::recent(history, channel);
        }
        if history.past().is_empty() {
            return judge(&view, &Criteria::young(rules), &mut self.recent, clock, false, rules);
        }
        let above = held(history.past(), channel, limit, rules);
        let recent = judge(&view, &Criteria::recent(above, rules), &mut self.recent, clock, false, rules);
        let recent_state = recent.as_ref().map_or(LeakState::Insufficient, |recent| recent.state);
        // The whole life changes slowly: it is assessed at intervals, and where its state may be the worse one. It is overdue
        // where the sampling interval has changed.
        let late = WHOLE_EVERY * clock.interval;
        let due = clock.now >= self.whole_due || self.whole_due - clock.now > late;
        if due {
            self.whole_due = clock.now + late;
        }
        let leaks = recent_state == LeakState::Leaking && self.whole_state == LeakState::Leaking;
        let whole = (due || self.whole_state > recent_state || leaks)
            .then(|| self.see_whole(history, channel, clock, rules))
            .flatten();
        match (recent, whole) {
            (Some(recent), Some(whole)) => {
                let faster = recent.rate.0 > whole.rate.0;
                let both = recent.state == LeakState::Leaking && whole.state == LeakState::Leaking;
                // The buckets of the whole life are too coarse to show soon that growth has ended. Growth with earlier pauses
                // (stairs) is still judged by the whole life, because each pause would look like its end.
                let over = self.recent.has_ended(&view, clock.now, rules);
                let of_whole = whole.state > recent.state && !over || both && !faster;
                Some(if of_whole { whole } else { recent })
            }
            (recent, whole) => recent.or(whole),
        }
    }

    fn see_whole(
        &mut self,
        history: &mut Life,
        channel: usize,
        clock: Clock,
        rules: &Rules,
    ) -> Option<SeriesState> {
        let mut view = View::whole(history, channel);
        if let Some(first) = restart(&view, rules) {
            history.cut_past(view.at()[first]);
            self.whole = Verdict::default();
            view = View::whole(history, channel);
        }
        let seen = judge(&view, &Criteria::whole(rules), &mut self.whole, clock, true, rules);
        self.whole_state = seen.as_ref().map_or(LeakState::Insufficient, |seen| seen.state);
        seen
    }

    /// Whether a state that was read back can have been written by this program by `now`.
    pub(crate) fn is_sound(&self, now: f64) -> bool {
        self.recent.is_sound(now)
            && self.whole.is_sound(now)
            && self.whole_due.is_finite()
            && self.whole_due >= 0.0
    }
}

fn judge(
    view: &View,
    asked: &Criteria,
    verdict: &mut Verdict,
    clock: Clock,
    of_whole: bool,
    rules: &Rules,
) -> Option<SeriesState> {
    let samples = if clock.interval > 0.0 { view.span() / clock.interval } else { 0.0 };
    let look = look(view, samples, asked, rules)?;
    let state = verdict.judge(view, &look, clock.now, asked, rules);
    let rate = match state {
        LeakState::Leaking if !look.climbs => (verdict.rate, verdict.rate_error),
        LeakState::Leaking | LeakState::Growing => pace_now(view, &look, rules),
        _ => (look.rate, look.rate_error),
    };
    let from = if state == LeakState::Leaking { verdict.onset } else { look.from };
    let half_held = verdict.is_half_held(view, asked, rules);
    let faded = verdict.fades(view, &look, state, rules);
    Some(SeriesState { look, state, rate, from, half_held, of_whole, faded })
}

/// The level that the newest peak must exceed: the highest one of the past.
fn held(past: &Past, channel: usize, limit: Option<f64>, rules: &Rules) -> f64 {
    let highest = past.tops(channel).map(f64::from).fold(f64::NEG_INFINITY, f64::max);
    let held = rules.past_above * highest;
    limit.map_or(held, |limit| held.min(rules.past_near_limit * limit))
}

/// The first bucket of a life that began after the level had fallen for good.
fn restart(view: &View, rules: &Rules) -> Option<usize> {
    let n = view.len();
    let newest = *view.max().last()?;
    let mut floors = [0.0; MOST];
    let mut first = n;
    // The run of low buckets at the end; its own floors must not count as the old one.
    while first > 0 && view.max()[first - 1] <= newest * 1.5 {
        first -= 1;
        if n - first > n / 2 {
            return None;
        }
    }
    if first < 12 || n - first < 4 {
        return None;
    }
    floors[..first].copy_from_slice(&view.min()[..first]);
    let old = robust::quantile(&mut floors[..first], 0.2);
    let highest = view.max()[first..].iter().copied().fold(0.0, f64::max);
    let lasts = view.now() - view.at()[first] >= rules.restart_lasts * view.span();
    (highest < rules.restart * old && lasts).then_some(first)
}
