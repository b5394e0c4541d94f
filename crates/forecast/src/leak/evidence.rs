//! Evidence for growth: windows of the history, and the envelopes that climb in them.

use serde::Serialize;

use crate::leak::ended::ended;
use crate::rules::Rules;
use crate::stats::robust;
use crate::stats::trend::{Drift, drift, walk_without_step};
use crate::view::{Blocks, Envelope, MOST, View};

/// Windows after the longest one, as shares of the history, longest first.
const SHARES: [f64; 6] = [0.8, 0.64, 0.5, 0.4, 0.32, 0.25];

/// What was measured in the window with the strongest evidence.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Evidence {
    /// The window's length in seconds of observed time.
    pub window_seconds: f64,
    /// The rise over the window in bytes.
    pub rise_bytes: f64,
    /// The floor's slope in standard errors.
    pub floor_z: f64,
    /// The center's slope in standard errors.
    pub center_z: f64,
    /// The peak's slope in standard errors.
    pub peak_z: f64,
    /// The envelope that the verdict follows.
    pub lead: Envelope,
}

/// One window with everything that the verdict and the forecast use.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct GrowthWindow {
    pub(crate) evidence: Evidence,
    /// When the window begins, on the history's clock.
    pub(crate) from: f64,
    /// The median slope of the three envelopes, bytes per second.
    pub(crate) rate: f64,
    pub(crate) rate_error: f64,
    /// Variance of the random walk component, bytes² per second.
    pub(crate) diffusion: f64,
    /// The current level of the leading envelope.
    pub(crate) level: f64,
    pub(crate) climbs: bool,
    pub(crate) slowing: bool,
    pub(crate) accelerating: bool,
    pub(crate) over: bool,
}

impl GrowthWindow {
    /// Whether it climbs, and growth is neither slowing down nor over.
    pub(crate) fn grows(&self) -> bool {
        self.climbs && !self.slowing && !self.over
    }
}

/// What an evaluation requires before growth counts as a leak.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Criteria {
    /// The newest peak must be above this level.
    pub(crate) above: f64,
    /// Additional standard errors where there are two evaluations, of which one is wrong more often than a single
    /// one.
    pub(crate) surer: f64,
    /// How long growth must have lasted, as a share of the evaluated time.
    pub(crate) hold: f64,
    /// The most that one evaluation adds to that duration, as the same share.
    pub(crate) step: f64,
}

impl Criteria {
    /// For a history that fits into the newest samples.
    pub(crate) fn young(rules: &Rules) -> Self {
        Self { above: f64::NEG_INFINITY, surer: 0.0, hold: rules.hold, step: 1.0 }
    }

    /// For the whole of a longer history.
    pub(crate) fn whole(rules: &Rules) -> Self {
        Self { surer: rules.surer, step: rules.hold_step_whole, ..Self::young(rules) }
    }

    /// For the newest samples of a longer history, whose peaks must exceed `above`.
    pub(crate) fn recent(above: f64, rules: &Rules) -> Self {
        Self { above, surer: rules.surer, hold: rules.hold_recent, step: 1.0 }
    }
}

/// Evaluates the windows for growth and returns the one with the strongest evidence; absent before there are enough
/// samples.
pub(crate) fn look(view: &View, samples: f64, asked: &Criteria, rules: &Rules) -> Option<GrowthWindow> {
    if samples < rules.samples {
        return None;
    }
    let mut best: Option<GrowthWindow> = None;
    for share in [rules.window_longest].into_iter().chain(SHARES).take(rules.windows) {
        let first = view.begin(share);
        if view.len() - first < rules.window_buckets || share * samples < rules.window_samples {
            break;
        }
        let blocks = Blocks::new(view, first, view.len(), rules);
        if blocks.len() < 8 {
            continue;
        }
        // Without a rise a window is no evidence, and changes nothing.
        if best.is_some() && !rises(&blocks, rules) {
            continue;
        }
        let (found, risen) = window(view, first, &blocks, asked, rules);
        if best.is_none_or(|b| (found.grows(), found.climbs) > (b.grows(), b.climbs)) {
            best = Some(found);
        }
        if found.grows() {
            break;
        }
        let zs = [found.evidence.floor_z, found.evidence.center_z, found.evidence.peak_z];
        if found.slowing && risen && zs.iter().filter(|z| **z > rules.slowing_climb).count() >= 2 {
            // A short part of a bending curve looks straight.
            best = Some(found);
            break;
        }
    }
    best
}

/// The drifts of floor, center and peak.
fn envelopes(blocks: &Blocks, rules: &Rules) -> [Drift; 3] {
    Envelope::ALL.map(|envelope| drift(blocks.at(), blocks.line(envelope), rules))
}

/// The median slope of the three and its standard error.
fn middle(lines: &[Drift; 3]) -> (f64, f64) {
    let rate = robust::median(&mut lines.map(|line| line.slope));
    let [floor, center, peak] = lines.map(|line| line.error);
    (rate, center.min(rate.abs() + floor).min(rate.abs() + peak))
}

/// The current rate and its standard error: the rate of growth changes, and the newer half of a window estimates it
/// best.
///
/// Both are weighted by their precision, where the error of the whole window includes the entire difference of the
/// two rates: a noisy newer half changes little, a precise one replaces the rate.
pub(crate) fn pace_now(view: &View, look: &GrowthWindow, rules: &Rules) -> (f64, f64) {
    let whole = (look.rate, look.rate_error);
    if !rules.newer_half {
        return whole;
    }
    let first = view.from(f64::midpoint(look.from, view.now()));
    if view.len() - first < rules.window_buckets {
        return whole;
    }
    let blocks = Blocks::new(view, first, view.len(), rules);
    if blocks.len() < 8 {
        return whole;
    }
    let (rate, error) = middle(&envelopes(&blocks, rules));
    let wrong = look.rate_error.powi(2) + (rate - look.rate).powi(2);
    let share = wrong / (wrong + error * error).max(f64::MIN_POSITIVE);
    let rate = share * rate + (1.0 - share) * look.rate;
    if rate <= 0.0 {
        return whole;
    }
    (rate, (share.sqrt() * error).max((1.0 - share) * look.rate_error))
}

/// The minimum rise of a window in bytes.
fn least_rise(blocks: &Blocks, rules: &Rules) -> f64 {
    (rules.least_rise_share * blocks.line(Envelope::Center)[blocks.len() - 1]).max(rules.least_rise_bytes)
}

/// Whether the median slope of the three envelopes rises by the minimum: at least two of them do.
fn rises(blocks: &Blocks, rules: &Rules) -> bool {
    let least = least_rise(blocks, rules) / blocks.span();
    let exceeds = |envelope: &Envelope| robust::theil_sen_exceeds(blocks.at(), blocks.line(*envelope), least);
    Envelope::ALL.iter().filter(|envelope| exceeds(envelope)).count() >= 2
}

/// Evaluates one window; also returns whether it rose enough.
fn window(
    view: &View,
    first: usize,
    blocks: &Blocks,
    asked: &Criteria,
    rules: &Rules,
) -> (GrowthWindow, bool) {
    let lines = envelopes(blocks, rules);
    let [floor, center, peak] = lines;
    let zs = lines.map(|line| line.z());
    let (rate, rate_error) = middle(&lines);
    let rise = rate * blocks.span();
    let last = blocks.len() - 1;
    let risen = rise > least_rise(blocks, rules);
    let low = blocks.line(Envelope::Floor)[last].min(blocks.line(Envelope::Floor)[last - 1]);
    let high = blocks.line(Envelope::Peak)[last].max(blocks.line(Envelope::Peak)[last - 1]);
    let (two, alone) = (rules.climb + asked.surer, rules.climb_alone + asked.surer);
    let climbing = zs.iter().filter(|z| **z > two).count() >= 2 || zs.iter().any(|z| *z > alone);
    let lead = if zs[1] > rules.climb {
        Envelope::Center
    } else if zs[0] > zs[2] {
        Envelope::Floor
    } else {
        Envelope::Peak
    };
    let near = view.mean().last().copied().unwrap_or(f64::INFINITY);
    let climbs = climbing && risen && low > held_before(view, first, rules) && high > asked.above;
    let bends = climbs || risen && zs.iter().filter(|z| **z > rules.slowing_climb).count() >= 2;
    let (slowing, accelerating) = if bends { bend(blocks, &center, rules) } else { (false, false) };
    let found = GrowthWindow {
        evidence: Evidence {
            window_seconds: blocks.span(),
            rise_bytes: rise,
            floor_z: floor.z(),
            center_z: center.z(),
            peak_z: peak.z(),
            lead,
        },
        from: blocks.at()[0],
        rate,
        rate_error,
        diffusion: walk_without_step(blocks.at(), blocks.line(Envelope::Center), rules) * count(last)
            / blocks.span(),
        level: if lead == Envelope::Floor { low } else { near },
        climbs,
        slowing,
        accelerating,
        over: climbs && ended(view, first, rate, lead, rules),
    };
    (found, risen)
}

#[expect(clippy::cast_precision_loss, reason = "a few dozen")]
fn count(n: usize) -> f64 {
    n as f64
}

/// The level before the window: growth below it is a return to that level.
fn held_before(view: &View, first: usize, rules: &Rules) -> f64 {
    if first == 0 {
        return f64::NEG_INFINITY;
    }
    let mut before = [0.0; MOST];
    before[..first].copy_from_slice(&view.min()[..first]);
    robust::quantile(&mut before[..first], rules.held_before)
}

/// Whether growth slows down (the slopes of the thirds decrease), and whether it accelerates (they increase).
fn bend(blocks: &Blocks, center: &Drift, rules: &Rules) -> (bool, bool) {
    let third = blocks.len() / 3;
    let [first, second, last] = [0, 1, 2].map(|k| {
        let part = k * third..(k * third + third + 1).min(blocks.len());
        drift(&blocks.at()[part.clone()], &blocks.line(Envelope::Center)[part], rules).slope
    });
    let points = count(third + 1);
    let step = blocks.span() / count(blocks.len() - 1);
    let error = (6.0 * center.noise / points.powi(3) + 1.2 * center.walk / points).sqrt() / step;
    let sure = (first - last).abs() > rules.slowing_errors * error;
    (
        sure && second < rules.slowing * first && last < rules.slowing * second,
        sure && first < rules.slowing * second && second < rules.slowing * last,
    )
}
