//! Cost of 10,000 trackers at one sample per second and one assessment every ten seconds.
//!
//! `cargo bench --bench forecast` prints CPU seconds per second of samples, and bytes per tracker.
#![expect(clippy::print_stdout, reason = "a bench prints its result")]
#![expect(clippy::cast_precision_loss, reason = "counts")]

use std::hint::black_box;

use forecast::tracker::{Sample, Tracker};
use rustix::time::{ClockId, clock_gettime};

const SERIES: usize = 10_000;
const WARM: u32 = 1_500;
const SECONDS: u32 = 60;
const ASSESS_EVERY: usize = 10;
const HORIZONS: [f64; 4] = [60.0, 300.0, 900.0, 3600.0];

/// A quarter leak, a quarter are sawtooths, a quarter are constant with noise, a quarter grow with peaks that recur.
fn sample(series: u32, second: u32) -> Sample {
    let t = f64::from(second);
    let noise = (series.wrapping_mul(2_654_435_761).wrapping_add(second.wrapping_mul(40_503)) >> 12) % 1000;
    let used = match series % 4 {
        0 => 4e9 + 1e6 * t,
        1 => 4e9 + 8e6 * f64::from(second % 30),
        2 => 4e9 + 5e5 * t + if second % 120 < 10 { 2.5e9 } else { 0.0 },
        _ => 4e9,
    } + 1e4 * f64::from(noise);
    Sample { used, unreclaimable: Some(0.9 * used), allocated: None, peak: None }
}

fn cpu() -> f64 {
    let now = clock_gettime(ClockId::ProcessCPUTime);
    now.tv_sec as f64 + now.tv_nsec as f64 * 1e-9
}

fn resident() -> Option<f64> {
    let text = std::fs::read_to_string("/proc/self/statm").ok()?;
    text.split(' ').nth(1)?.parse::<f64>().ok().map(|pages| pages * 4096.0)
}

fn main() {
    let before = resident();
    let mut trackers = vec![Tracker::new(); SERIES];
    for second in 0..WARM {
        for (i, tracker) in (0..).zip(&mut trackers) {
            tracker.push(f64::from(second), sample(i, second));
        }
    }
    let bytes = before.zip(resident()).map(|(before, now)| (now - before) / SERIES as f64);
    let (mut pushing, mut assessing) = (0.0, 0.0);
    for second in WARM..WARM + SECONDS {
        let begun = cpu();
        for (i, tracker) in (0..).zip(&mut trackers) {
            tracker.push(f64::from(second), sample(i, second));
        }
        let pushed = cpu();
        for (i, tracker) in trackers.iter_mut().enumerate() {
            if (i + second as usize).is_multiple_of(ASSESS_EVERY) {
                black_box(tracker.assess(Some(8e9), &HORIZONS));
            }
        }
        pushing += pushed - begun;
        assessing += cpu() - pushed;
    }
    let share = |seconds: f64| 100.0 * seconds / f64::from(SECONDS);
    println!(
        "{SERIES} trackers at 1 Hz: {:.2} % of a core to push, {:.2} % to assess",
        share(pushing),
        share(assessing)
    );
    println!(
        "one assessment: {:.1} us",
        assessing * 1e6 / (f64::from(SECONDS) * SERIES as f64 / ASSESS_EVERY as f64)
    );
    println!("bytes a tracker: at most {}, measured {:.0}", Tracker::BOUND, bytes.unwrap_or(0.0));
}
