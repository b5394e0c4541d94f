//! Whether growth has ended: a cache is full, an oscillation has turned.

use crate::rules::Rules;
use crate::stats::trend::drift;
use crate::view::{Blocks, Envelope, MOST, View};

/// Lengths of the newest part of the series (the tail) that are compared with the whole growth, in buckets.
const TAILS: [usize; 9] = [3, 4, 5, 6, 8, 10, 13, 17, 22];

/// Last shares of the growth that are tested for a separate slope.
const LATE: [f64; 4] = [0.5, 0.36, 0.25, 0.18];

/// Whether growth at `rate` bytes per second since the bucket `first` has ended.
pub(crate) fn ended(view: &View, first: usize, rate: f64, lead: Envelope, rules: &Rules) -> bool {
    let n = view.len();
    if n < 8 || first + 8 > n {
        return false;
    }
    let mut line = [0.0; MOST];
    match lead {
        Envelope::Center => line[..n].copy_from_slice(view.mean()),
        // The floor becomes the running minimum from the end, the peak the running maximum from the start: temporary
        // phases disappear from both.
        Envelope::Floor => {
            line[..n].copy_from_slice(view.min());
            for i in (first..n - 1).rev() {
                line[i] = line[i].min(line[i + 1]);
            }
        }
        Envelope::Peak => {
            line[..n].copy_from_slice(view.max());
            for i in first + 1..n {
                line[i] = line[i].max(line[i - 1]);
            }
        }
    }
    rules.end_by_gain && stands(view.at(), &line[..n], first, rate, rules)
        || late_is_flat(view, first, lead, rules)
}

/// Whether the newest gain is below every earlier gain over the same time: a rank test against the growth itself, so
/// that steps and sawtooth patterns are compared with themselves.
fn stands(at: &[f64], line: &[f64], first: usize, rate: f64, rules: &Rules) -> bool {
    let n = at.len();
    let noise = noise(at, line, rate, rules);
    for tail in TAILS {
        if n - first < 2 * tail + 2 {
            break;
        }
        let apart = at[n - 1] - at[n - 1 - tail];
        let gain = line[n - 1] - line[n - 1 - tail];
        if gain > rules.end_gained * rate * apart {
            continue;
        }
        let (mut least, mut sum, mut squares, mut seen) = (f64::INFINITY, 0.0, 0.0, 0.0);
        let mut later = first;
        for earlier in first..n - 1 - tail {
            while later < n && at[later] - at[earlier] < apart * 0.999 {
                later += 1;
            }
            if later >= n - tail {
                break;
            }
            let gained = (line[later] - line[earlier]) * apart / (at[later] - at[earlier]);
            least = least.min(gained);
            sum += gained;
            squares += gained * gained;
            seen += 1.0;
        }
        if seen < 4.0 {
            continue;
        }
        let mean = sum / seen;
        let deviation = ((squares / seen - mean * mean).max(0.0) + noise).sqrt();
        if gain < least && mean - gain > rules.end_deviations * deviation {
            return true;
        }
    }
    false
}

/// The variance of the difference between the newest buckets: old buckets are too coarse to show it.
fn noise(at: &[f64], line: &[f64], rate: f64, rules: &Rules) -> f64 {
    let fine = line.len().saturating_sub(rules.end_noise_buckets);
    let (mut sum, mut seen) = (0.0, 0.0);
    for i in fine + 1..line.len() {
        sum += (line[i] - line[i - 1] - rate * (at[i] - at[i - 1])).powi(2);
        seen += 1.0;
    }
    if seen > 0.0 { sum / seen } else { 0.0 }
}

/// Whether a late part of the growth has a separate slope that is flat.
fn late_is_flat(view: &View, first: usize, lead: Envelope, rules: &Rules) -> bool {
    let n = view.len();
    let span = view.now() - view.at()[first];
    for share in LATE {
        let cut = view.from(view.now() - share * span);
        if n - cut < 8 || cut < first + 6 {
            continue;
        }
        let (before, after) = (Blocks::new(view, first, cut, rules), Blocks::new(view, cut, n, rules));
        if before.len() < 4 || after.len() < 5 {
            continue;
        }
        let [was, is] = [&before, &after].map(|blocks| drift(blocks.at(), blocks.line(lead), rules));
        if is.slope < rules.flat * was.slope && was.slope - is.slope > rules.flat_errors * is.error {
            return true;
        }
    }
    false
}
