//! The risk level of a resource, and the rule that sets it.

use serde::Serialize;

/// Risk level, by how soon action is required.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Level {
    /// No action required.
    Low,
    /// Action within the hour, or a leak.
    Medium,
    /// Action within 15 minutes.
    High,
    /// Action now.
    Critical,
}

impl Level {
    /// Every level, lowest first.
    pub const ALL: [Self; 4] = [Self::Low, Self::Medium, Self::High, Self::Critical];

    /// The value of the label `level`, also used in texts.
    pub fn word(self) -> &'static str {
        match self {
            Self::Low => "low",
            Self::Medium => "medium",
            Self::High => "high",
            Self::Critical => "critical",
        }
    }
}

/// A risk level and the rule that set it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Risk {
    /// The level.
    pub level: Level,
    /// The first rule that holds, as text.
    pub rule: &'static str,
}

/// The risk of a resource. `used` is the used share of its limit; `within` returns the probability of exhaustion
/// within the given number of seconds.
pub fn risk(used: f64, growing: bool, leaking: bool, within: impl Fn(f64) -> f64) -> Risk {
    let rules = [
        (used >= 0.98, Level::Critical, "used is at least 98 % of the limit"),
        (within(300.0) >= 0.5, Level::Critical, "exhaustion within 5 minutes is more likely than not"),
        (within(900.0) >= 0.5, Level::High, "exhaustion within 15 minutes is more likely than not"),
        (used >= 0.9 && growing, Level::High, "used is at least 90 % of the limit and grows"),
        (within(3600.0) >= 0.5, Level::Medium, "exhaustion within an hour is more likely than not"),
        (leaking, Level::Medium, "it leaks"),
        (used >= 0.9, Level::Medium, "used is at least 90 % of the limit"),
    ];
    let first = rules.into_iter().find(|(holds, ..)| *holds);
    first.map_or(Risk { level: Level::Low, rule: "no rule holds" }, |(_, level, rule)| Risk { level, rule })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_worst_rule_wins() {
        for (used, growing, soon, wanted) in [
            (0.5, false, 0.0, Level::Low),
            (0.92, false, 0.0, Level::Medium),
            (0.92, true, 0.0, Level::High),
            (0.5, true, 1200.0, Level::Medium),
            (0.5, true, 600.0, Level::High),
            (0.5, true, 60.0, Level::Critical),
            (0.99, false, 0.0, Level::Critical),
        ] {
            let within = |horizon: f64| if soon > 0.0 && horizon >= soon { 0.9 } else { 0.0 };
            assert_eq!(risk(used, growing, false, within).level, wanted, "{used} {growing} {soon}");
        }
    }
}
