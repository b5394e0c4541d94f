//! How soon a state, a rate and a forecast end after growth has ended.

use forecast::tracker::{Sample, Tracker};
use forecast::{LeakState, Rules};

use super::simulate::Chance;

const TEXTURES: [&str; 5] = ["quiet", "white", "sawtooth", "peaks", "bursts"];
/// Seconds of growth, with a sample each second.
const LIVES: [u32; 8] = [240, 420, 900, 1_500, 2_400, 3_600, 7_200, 14_400];
/// Seconds watched after the end.
const AFTER: u32 = 2_400;
/// Heights of the texture, as shares of the rise.
const HEIGHTS: [f64; 3] = [0.01, 0.04, 0.1];
const SEEDS: u64 = 12;

/// What was seen after the end of one growth.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct End {
    /// Seconds until the last state leaking, rate above a fifth of the growth's, and forecast.
    pub(crate) lasts: [f64; 3],
    /// How often the state became leaking again.
    pub(crate) again: u32,
}

/// Prints the mean and the longest time for each texture and length.
pub(crate) fn print() {
    println!("seconds after the end of growth, mean / longest of {SEEDS}");
    for texture in TEXTURES {
        for grows in LIVES {
            let ends: Vec<End> = (0..SEEDS).map(|seed| end(Rules::DAEMON, texture, grows, seed)).collect();
            let column = |place: usize| {
                let all = ends.iter().map(|end| end.lasts[place]);
                #[expect(clippy::cast_precision_loss, reason = "a dozen")]
                let mean = all.clone().sum::<f64>() / SEEDS as f64;
                format!("{mean:4.0} / {:4.0}", all.fold(0.0, f64::max))
            };
            println!(
                "{texture:8} grew for {grows:5} s: leaking {}, rate {}, forecast {}, leaking again {}",
                column(0),
                column(1),
                column(2),
                ends.iter().map(|end| end.again).sum::<u32>()
            );
        }
    }
}

/// What is seen after growths of every texture and length, with so many seeds of each, by other rules.
pub(crate) fn by_rules(rules: &Rules, seeds: u64) -> Vec<End> {
    let kinds = TEXTURES.iter().flat_map(|texture| LIVES.map(|grows| (*texture, grows)));
    let all = kinds.flat_map(|(texture, grows)| (0..seeds).map(move |seed| (texture, grows, seed)));
    all.map(|(texture, grows, seed)| end(rules, texture, grows, seed)).collect()
}

fn end(rules: &Rules, texture: &str, grows: u32, seed: u64) -> End {
    let mut chance = Chance::new(seed);
    let rate = 5e6 * chance.uniform(0.2, 2.2);
    let stops = f64::from(grows);
    let rise = rate * stops;
    #[expect(clippy::cast_possible_truncation, reason = "a few")]
    let height = HEIGHTS[seed as usize % HEIGHTS.len()] * rise.min(5e9);
    let period = chance.uniform(10.0, 70.0);
    let limit = 10e9 + 1.3 * rise + 3.0 * height;
    let (mut tracker, mut end, mut leaked) = (Tracker::new(), End::default(), false);
    for second in 0..grows + AFTER {
        let at = f64::from(second);
        let added = match texture {
            "white" => 0.5 * height * chance.normal(),
            "sawtooth" => height * (at / period).fract(),
            "peaks" if at % (3.0 * period) < 0.5 * period => 3.0 * height,
            "bursts" if chance.is(0.02) => 2.0 * height,
            _ => 0.01 * height * chance.uniform(0.0, 1.0),
        };
        let used = 10e9 + rate * at.min(stops) + added;
        tracker.push_by(rules, at, Sample { used, ..Sample::default() });
        if second % 5 != 4 {
            continue;
        }
        let said = tracker.assess_by(rules, Some(limit), &[300.0], None);
        let leaks = said.leak == LeakState::Leaking;
        if at >= stops {
            end.again += u32::from(leaks && !leaked);
            let told = said.growth.is_some_and(|growth| growth.bytes_per_second > 0.2 * rate);
            for (last, on) in end.lasts.iter_mut().zip([leaks, told, said.tte.is_some()]) {
                if on {
                    *last = at - stops;
                }
            }
        }
        leaked = leaks;
    }
    end
}
