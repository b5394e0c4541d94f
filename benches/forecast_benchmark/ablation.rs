//! What each rule buys: the columns without it, on every set of series, with the error of the difference.
//!
//! The series are the same with and without the rule, so that the error is that of paired differences: a jackknife over
//! groups of series.

use forecast::Rules;

use super::score::{self, Case, Judged};
use super::{ends, judged, methods, simulate};

/// Groups of the jackknife.
const GROUPS: usize = 20;
/// A difference of so many standard errors is beyond chance: with a hundred rules and as many columns, 3 would be exceeded
/// by chance a few times.
const BEYOND: f64 = 3.5;
/// Simulated series of 12 times the length: most of their life is older than the newest samples.
const LONGER: u32 = 12;

/// The values of one column, by name.
type Columns = Vec<(&'static str, f64)>;

/// Series and how they are judged.
pub(crate) enum Set {
    /// Labeled series, which the columns of the table judge.
    Cases(String, Vec<Case>),
    /// The ends of growths, with so many seeds of each.
    Ends(u64),
}

/// What a set says by some rules.
enum Result {
    Cases(Vec<(Judged, Option<Judged>)>),
    Ends(Vec<ends::End>),
}

/// The simulated sets, with `count` series of the usual length.
pub(crate) fn simulated(count: u64, seed: u64) -> Vec<Set> {
    let set = |name: &str, cases: Vec<Case>| Set::Cases(name.to_owned(), cases);
    let seeds = |count: u64| seed..seed + count;
    let nulls = simulate::NULLS.iter().flat_map(|kind| [400, 1_000, 2_500].map(|samples| (*kind, samples)));
    let null =
        |(kind, samples)| seeds(count.div_ceil(32)).map(move |seed| simulate::null(kind, samples, seed));
    vec![
        set("simulated", seeds(count).map(simulate::simulated).collect()),
        set("long", seeds(count / 24).map(|seed| simulate::of_length(seed, LONGER)).collect()),
        set("interrupted", seeds(count / 4).map(simulate::interrupted).collect()),
        set("nulls", nulls.flat_map(null).collect()),
        Set::Ends(count.div_ceil(800)),
    ]
}

impl Set {
    fn name(&self) -> &str {
        match self {
            Self::Cases(name, _) => name,
            Self::Ends(_) => "ends",
        }
    }

    fn by(&self, rules: &Rules) -> Result {
        match self {
            Self::Cases(_, cases) => {
                let rules = *rules;
                let assess: methods::Assess = Box::new(move |case| methods::by_rules(&rules, case));
                Result::Cases(judged(&assess, cases))
            }
            Self::Ends(seeds) => Result::Ends(ends::by_rules(rules, *seeds)),
        }
    }
}

impl Result {
    fn len(&self) -> usize {
        match self {
            Self::Cases(all) => all.len(),
            Self::Ends(all) => all.len(),
        }
    }

    /// The columns of the series of which `is_in` says so.
    fn columns(&self, is_in: impl Fn(usize) -> bool) -> Columns {
        match self {
            Self::Cases(all) => {
                let part: Vec<_> =
                    all.iter().enumerate().filter(|(i, _)| is_in(*i)).map(|(_, one)| one).collect();
                score::table(&part).columns
            }
            Self::Ends(all) => {
                let part: Vec<_> =
                    all.iter().enumerate().filter(|(i, _)| is_in(*i)).map(|(_, one)| one).collect();
                #[expect(clippy::cast_precision_loss, reason = "hundreds")]
                let count = part.len().max(1) as f64;
                let mean = |value: &dyn Fn(&ends::End) -> f64| {
                    part.iter().map(|end| value(end)).sum::<f64>() / count
                };
                vec![
                    ("leak_s", mean(&|end| end.lasts[0])),
                    ("rate_s", mean(&|end| end.lasts[1])),
                    ("forecast_s", mean(&|end| end.lasts[2])),
                    ("again", mean(&|end| f64::from(end.again))),
                ]
            }
        }
    }
}

/// The rules of the daemon without those that are named, separated by commas; absent where one does not exist.
pub(crate) fn without(names: &str) -> Option<Rules> {
    let mut rules = *Rules::DAEMON;
    names.split(',').all(|name| rules.switch_off(name)).then_some(rules)
}

/// The columns of a set by some rules, and those without each group of its series.
struct Measured {
    all: Columns,
    parts: Vec<Columns>,
}

impl Measured {
    fn of(set: &Set, rules: &Rules) -> Self {
        let found = set.by(rules);
        let groups = GROUPS.min(found.len());
        let parts = (0..groups).map(|group| found.columns(|i| i % groups != group)).collect();
        Self { all: found.columns(|_| true), parts }
    }
}

/// A column without the rule, compared with the column with it.
struct Moved {
    column: &'static str,
    with: f64,
    without: f64,
    error: f64,
}

impl Moved {
    fn is_beyond_chance(&self) -> bool {
        let by = (self.without - self.with).abs();
        by > 0.0 && by.is_finite() && by > BEYOND * self.error
    }
}

fn compare(with: &Measured, without: &Measured) -> Vec<Moved> {
    let moved =
        with.all.iter().zip(&without.all).enumerate().map(|(place, ((column, with_rule), (_, value)))| {
            let parts = with.parts.iter().zip(&without.parts);
            let by: Vec<f64> = parts.map(|(with, without)| without[place].1 - with[place].1).collect();
            #[expect(clippy::cast_precision_loss, reason = "dozens")]
            let count = by.len().max(1) as f64;
            let mean = by.iter().sum::<f64>() / count;
            let squares: f64 = by.iter().map(|by| (by - mean).powi(2)).sum();
            let error = ((count - 1.0) / count * squares).sqrt();
            Moved { column, with: *with_rule, without: *value, error }
        });
    moved.collect()
}

/// Prints for each named rule the columns that it moves beyond chance, on each set; for a single rule, all columns.
pub(crate) fn print(sets: &[Set], names: &[&str]) {
    let before: Vec<Measured> = sets.iter().map(|set| Measured::of(set, Rules::DAEMON)).collect();
    for name in names {
        let Some(rules) = without(name) else { continue };
        let mut found = Vec::new();
        for (set, with) in sets.iter().zip(&before) {
            let all = compare(with, &Measured::of(set, &rules));
            if names.len() == 1 {
                println!("{}", set.name());
                for moved in &all {
                    let mark = if moved.is_beyond_chance() { "beyond chance" } else { "" };
                    let by = moved.without - moved.with;
                    println!(
                        "  {:10} with {:10.4}  without {:10.4}  by {by:+10.4} ± {:.4} {mark}",
                        moved.column, moved.with, moved.without, moved.error
                    );
                }
            }
            let beyond: Vec<String> = all
                .iter()
                .filter(|moved| moved.is_beyond_chance())
                .map(|moved| {
                    let (by, error) = (moved.without - moved.with, moved.error.max(1e-9));
                    format!(
                        "{} {:.3} to {:.3} ({:.0})",
                        moved.column,
                        moved.with,
                        moved.without,
                        (by / error).clamp(-99.0, 99.0)
                    )
                })
                .collect();
            if !beyond.is_empty() {
                found.push(format!("{}: {}", set.name(), beyond.join(", ")));
            }
        }
        let found = if found.is_empty() { "nothing beyond chance".to_owned() } else { found.join("; ") };
        println!("without {name}: {found}");
    }
}
