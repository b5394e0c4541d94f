//! Whether growth has ended: a cache is full, an oscillation has turned.

use crate::stats::trend::drift;
use crate::view::{Blocks, Envelope, MOST, View};

/// Lengths of the newest part of the series (the tail) that are compared with the whole growth, in buckets.
const TAILS: [usize; 9] = [3, 4, 5, 6, 8, 10, 13, 17, 22];
/// A tail that gained less than this share of what the rate predicts may be the end of growth.
const GAINED: f64 = 0.5;
/// It is the end if every earlier interval of that length gained more, and the tail is this many standard deviations
/// of the earlier gains below their mean.
const DEVIATIONS: f64 = 2.25;
/// Number of newest buckets that the noise is estimated from.
const FINE: usize = 24;

/// Last shares of the growth that are tested for a separate slope.
const LATE: [f64; 4] = [0.5, 0.36, 0.25, 0.18];
/// A part is flat if its slope is below this share of the earlier slope.
const FLAT: f64 = 0.35;
/// And the slopes must differ by this many standard errors.
const FLAT_ERRORS: f64 = 1.5;

/// Whether growth at `rate` bytes per second since the bucket `first` has ended.
pub(crate) fn ended(view: &View, first: usize, rate: f64, lead: Envelope) -> bool {
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
    stands(view.at(), &line[..n], first, rate) || late_is_flat(view, first, lead)
}

/// Whether the newest gain is below every earlier gain over the same time: a rank test against the growth itself, so
/// that steps and sawtooth patterns are compared with themselves.
fn stands(at: &[f64], line: &[f64], first: usize, rate: f64) -> bool {
    let n = at.len();
    let noise = noise(at, line, rate);
    for tail in TAILS {
        if n - first < 2 * tail + 2 {
            break;
        }
        let apart = at[n - 1] - at[n - 1 - tail];
        let gain = line[n - 1] - line[n - 1 - tail];
        if gain > GAINED * rate * apart {
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
        if gain < least && mean - gain > DEVIATIONS * deviation {
            return true;
        }
    }
    false
}

/// The variance of the difference between the newest buckets: old buckets are too coarse to show it.
fn noise(at: &[f64], line: &[f64], rate: f64) -> f64 {
    let fine = line.len().saturating_sub(FINE);
    let (mut sum, mut seen) = (0.0, 0.0);
    for i in fine + 1..line.len() {
        sum += (line[i] - line[i - 1] - rate * (at[i] - at[i - 1])).powi(2);
        seen += 1.0;
    }
    if seen > 0.0 { sum / seen } else { 0.0 }
}

/// Whether a late part of the growth has a separate slope that is flat.
fn late_is_flat(view: &View, first: usize, lead: Envelope) -> bool {
    let (n, grain) = (view.len(), view.grain());
    let span = view.now() - view.at()[first];
    for share in LATE {
        let cut = view.from(view.now() - share * span);
        if n - cut < 8 || cut < first + 6 {
            continue;
        }
        let (before, after) = (Blocks::new(view, first, cut), Blocks::new(view, cut, n));
        if before.len() < 4 || after.len() < 5 {
            continue;
        }
        let flat = |line: Envelope| {
            let [was, is] = [&before, &after].map(|blocks| drift(blocks.at(), blocks.line(line), grain));
            is.slope < FLAT * was.slope && was.slope - is.slope > FLAT_ERRORS * is.error
        };
        if flat(lead) && Envelope::ALL.into_iter().any(|other| other != lead && flat(other)) {
            return true;
        }
    }
    false
}
