//! How something is, in four words, and which rule says so of the memory of a resource.
//!
//! The only place that decides a severity of the memory of a resource: [`Rule::of`] judges a resource, [`Rule::health`]
//! says how severe each rule is. Findings, metrics, alerts, pages, reports and exit codes take this health from here.

use forecast::LeakState;
use serde::{Deserialize, Serialize};

use super::finding::Severity;
use super::names::named;

named! {
    /// The health of the node or of a part of it, by how much attention it requires.
    #[derive(Default, Serialize, Deserialize)]
    #[serde(rename_all = "lowercase")]
    pub enum Health {
        /// It is measured, and nothing is wrong.
        Ok = "ok",
        /// It cannot be measured, or not yet.
        #[default]
        Unknown = "unknown",
        /// It requires attention.
        Warning = "warning",
        /// It requires action now.
        Critical = "critical",
    }
}

impl Health {
    /// The health that a word names, also as the severity of an alert; unknown for any other word.
    pub fn of_word(word: &str) -> Self {
        let known = Self::ALL.into_iter().find(|health| health.label() == word);
        known.unwrap_or(if word == Severity::Info.label() { Self::Ok } else { Self::Unknown })
    }

    /// Its symbol where there is no color: in a title, on a terminal.
    pub const fn symbol(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Unknown => "?",
            Self::Warning => "!",
            Self::Critical => "!!",
        }
    }

    /// The health of a number from the recording rules of `alerts/`: 0 ok, 1 unknown, 2 warning, 3 critical.
    pub fn of_number(number: f64) -> Self {
        match number {
            n if n >= 3.0 => Self::Critical,
            n if n >= 2.0 => Self::Warning,
            n if n >= 1.0 => Self::Unknown,
            n if n >= 0.0 => Self::Ok,
            _ => Self::Unknown,
        }
    }

    /// The health if part of what it is about was not measured: unknown is not ok.
    #[must_use]
    pub fn in_part(self, is_in_part: bool) -> Self {
        if is_in_part { self.max(Self::Unknown) } else { self }
    }

    /// The exit code of a report command: 0 ok, 2 a warning or critical, 3 unknown.
    pub const fn report_code(self) -> u8 {
        match self {
            Self::Ok => 0,
            Self::Warning | Self::Critical => 2,
            Self::Unknown => 3,
        }
    }
}

impl From<Severity> for Health {
    fn from(severity: Severity) -> Self {
        match severity {
            Severity::Info => Self::Ok,
            Severity::Warning => Self::Warning,
            Severity::Critical => Self::Critical,
        }
    }
}

impl From<Health> for Severity {
    fn from(health: Health) -> Self {
        match health {
            Health::Ok | Health::Unknown => Self::Info,
            Health::Warning => Self::Warning,
            Health::Critical => Self::Critical,
        }
    }
}

/// The health of memory whose growth is in a state.
impl From<LeakState> for Health {
    fn from(state: LeakState) -> Self {
        match state {
            LeakState::Insufficient => Self::Unknown,
            LeakState::Steady | LeakState::Warming | LeakState::Growing => Self::Ok,
            LeakState::Leaking => Self::Warning,
        }
    }
}

/// Share of the limit from which the memory of a resource is full.
const FULL: f64 = 0.98;
/// Share of the limit from which it is nearly full.
const NEARLY_FULL: f64 = 0.9;
/// A probability of exhaustion from which exhaustion counts as likely.
const LIKELY: f64 = 0.5;
/// Seconds after growth for which a GPU that is full counts as filled up. Growth lasts for minutes until it is stated, so that
/// an allocator that reserves memory at its start has not grown.
pub const GROWTH_COUNTS: f64 = 900.0;

/// Whether this share of a limit is nearly all of it.
pub fn is_nearly_full(used: f64) -> bool {
    used >= NEARLY_FULL
}

named! {
    /// Why a resource has its health: the most severe rule that holds, in ascending order.
    #[derive(Default, Serialize, Deserialize)]
    #[serde(rename_all = "snake_case")]
    pub enum Rule {
        /// Too few samples for any other rule about the future.
        #[default]
        TooFewSamples = "too_few_samples",
        /// No other rule holds.
        None = "none",
        /// A GPU is full, its memory does not grow, and whether an allocator has reserved it is not known.
        FullWithoutGrowth = "full_without_growth",
        /// At least 90 % of the limit is used.
        NearlyFull = "nearly_full",
        Leaks = "leaks",
        /// Exhaustion within an hour is more likely than not.
        #[serde(rename = "exhaustion_within_60m")]
        ExhaustionWithinHour = "exhaustion_within_60m",
        /// At least 90 % of the limit is used, and the memory grows.
        NearlyFullAndGrows = "nearly_full_and_grows",
        /// Exhaustion within 15 minutes is more likely than not.
        #[serde(rename = "exhaustion_within_15m")]
        ExhaustionWithin15Minutes = "exhaustion_within_15m",
        /// A GPU is full, and its memory has grown within [`GROWTH_COUNTS`]: it has filled up, and was not reserved at once.
        FullAfterGrowth = "full_after_growth",
        /// At least 98 % of the limit is used.
        Full = "full",
        /// A cgroup is at its `memory.high`, and all of its tasks wait for memory most of the time.
        Throttled = "throttled",
    }
}

#[derive(Clone, Copy, Debug, Default)]
pub struct Judged {
    /// The used share of the limit.
    pub used: f64,
    pub grows: bool,
    pub leaks: bool,
    /// Whether it grew within [`GROWTH_COUNTS`].
    pub grew: bool,
    /// Whether the user of the resource may have reserved all of it on purpose, as allocators do with a GPU.
    pub may_be_reserved: bool,
    /// Whether the limit is a `memory.high`, at which processes are throttled rather than killed.
    pub throttles: bool,
    /// Whether tasks were throttled there lately, and all of them wait for memory most of the time.
    pub is_stalled: bool,
    /// The probability of exhaustion within 15 minutes; absent before there are enough samples.
    pub within_15_minutes: Option<f64>,
    /// The probability of exhaustion within an hour.
    pub within_hour: Option<f64>,
}

impl Rule {
    /// The most severe rule that holds.
    pub fn of(judged: &Judged) -> Self {
        let Judged { used, grows, leaks, grew, within_15_minutes, within_hour, .. } = *judged;
        let Judged { may_be_reserved, throttles, is_stalled, .. } = *judged;
        let likely = |probability: Option<f64>| probability.is_some_and(|p| p >= LIKELY);
        let on_purpose = may_be_reserved && !grows && !leaks;
        let rules = [
            (is_nearly_full(used) && throttles && is_stalled, Self::Throttled),
            // At a memory.high is where a group that reclaims enough stays.
            (used >= FULL && !on_purpose && !throttles, Self::Full),
            (used >= FULL && grew, Self::FullAfterGrowth),
            (likely(within_15_minutes), Self::ExhaustionWithin15Minutes),
            (is_nearly_full(used) && grows, Self::NearlyFullAndGrows),
            (likely(within_hour), Self::ExhaustionWithinHour),
            (leaks, Self::Leaks),
            (is_nearly_full(used) && !on_purpose, Self::NearlyFull),
            (used >= FULL, Self::FullWithoutGrowth),
            (within_hour.is_some(), Self::None),
        ];
        rules.into_iter().find(|(holds, _)| *holds).map_or(Self::TooFewSamples, |(_, rule)| rule)
    }

    /// The health of a resource for which this rule holds.
    pub const fn health(self) -> Health {
        match self {
            Self::TooFewSamples | Self::FullWithoutGrowth => Health::Unknown,
            Self::None => Health::Ok,
            Self::NearlyFull | Self::Leaks | Self::ExhaustionWithinHour | Self::NearlyFullAndGrows => {
                Health::Warning
            }
            Self::ExhaustionWithin15Minutes | Self::FullAfterGrowth | Self::Full | Self::Throttled => {
                Health::Critical
            }
        }
    }

    /// The rule in words, to follow "because".
    pub const fn text(self) -> &'static str {
        match self {
            Self::TooFewSamples => "there are too few samples",
            Self::None => "no rule holds",
            Self::NearlyFull => "at least 90 % of the limit is used",
            Self::Leaks => "it leaks",
            Self::FullWithoutGrowth => {
                "at least 98 % is used, and whether an allocator holds free memory in it is not known"
            }
            Self::ExhaustionWithinHour => "exhaustion within an hour is more likely than not",
            Self::NearlyFullAndGrows => "at least 90 % of the limit is used, and it grows",
            Self::ExhaustionWithin15Minutes => "exhaustion within 15 minutes is more likely than not",
            Self::FullAfterGrowth => {
                "at least 98 % of the limit is used, and it grew within the last 15 minutes"
            }
            Self::Full => "at least 98 % of the limit is used",
            Self::Throttled => "the kernel throttles its processes, which do not advance",
        }
    }

    /// What was the case where the rule held within the last minute and does not hold any more, to follow "because".
    pub const fn past(self) -> &'static str {
        match self {
            Self::TooFewSamples | Self::None => "it was unknown less than a minute ago",
            Self::NearlyFull | Self::NearlyFullAndGrows => "it was nearly full less than a minute ago",
            Self::Leaks => "it leaked less than a minute ago",
            Self::ExhaustionWithinHour | Self::ExhaustionWithin15Minutes => {
                "its exhaustion was likely less than a minute ago"
            }
            Self::FullWithoutGrowth | Self::FullAfterGrowth | Self::Full => {
                "it was full less than a minute ago"
            }
            Self::Throttled => "the kernel throttled its processes less than a minute ago",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unknown_is_worse_than_ok() {
        assert!(Health::Unknown > Health::Ok && Health::Critical > Health::Warning);
        assert_eq!(Health::default(), Health::Unknown);
        for (number, health) in [0.0, 1.0, 2.0, 3.0].into_iter().zip(Health::ALL) {
            assert_eq!(Health::of_number(number), health);
            assert_eq!(serde_json::to_string(&health).unwrap(), format!("\"{}\"", health.label()));
        }
        assert_eq!(Health::of_number(f64::NAN), Health::Unknown);
        assert_eq!(
            ["info", "ok", "critical", ""].map(Health::of_word),
            [Health::Ok, Health::Ok, Health::Critical, Health::Unknown]
        );
        assert_eq!(
            Health::ALL.map(|health| health.in_part(true)),
            [Health::Unknown, Health::Unknown, Health::Warning, Health::Critical]
        );
    }

    #[test]
    fn rules_are_in_the_order_of_their_severity() {
        let known = &Rule::ALL[1..];
        assert!(known.is_sorted() && known.is_sorted_by_key(|rule| rule.health()));
        for rule in Rule::ALL {
            assert_eq!(serde_json::to_string(&rule).unwrap(), format!("\"{}\"", rule.label()));
        }
    }

    #[test]
    fn the_most_severe_rule_wins() {
        let judge = |used: f64, grows: bool, soon: Option<f64>| {
            let within =
                |horizon: f64| soon.map(|left| if left > 0.0 && left <= horizon { 0.9 } else { 0.0 });
            let judged = Judged {
                used,
                grows,
                within_15_minutes: within(900.0),
                within_hour: within(3600.0),
                ..Judged::default()
            };
            (Rule::of(&judged), Rule::of(&Judged { may_be_reserved: true, ..judged }))
        };
        for (used, grows, soon, host, gpu) in [
            (0.5, false, Some(0.0), Rule::None, Rule::None),
            (0.5, false, None, Rule::TooFewSamples, Rule::TooFewSamples),
            (0.92, false, Some(0.0), Rule::NearlyFull, Rule::None),
            (0.92, true, Some(0.0), Rule::NearlyFullAndGrows, Rule::NearlyFullAndGrows),
            (0.5, true, Some(1200.0), Rule::ExhaustionWithinHour, Rule::ExhaustionWithinHour),
            (0.5, true, Some(600.0), Rule::ExhaustionWithin15Minutes, Rule::ExhaustionWithin15Minutes),
            (0.99, false, Some(0.0), Rule::Full, Rule::FullWithoutGrowth),
            (0.99, false, None, Rule::Full, Rule::FullWithoutGrowth),
            (0.99, true, Some(0.0), Rule::Full, Rule::Full),
        ] {
            assert_eq!(judge(used, grows, soon), (host, gpu), "{used} {grows} {soon:?}");
        }
        let full = Judged { used: 0.99, may_be_reserved: true, within_hour: Some(0.0), ..Judged::default() };
        assert_eq!(Rule::of(&full), Rule::FullWithoutGrowth, "reserved long ago");
        assert_eq!(Rule::of(&Judged { grew: true, ..full }), Rule::FullAfterGrowth);
        assert_eq!(Rule::of(&Judged { grew: true, used: 0.95, ..full }), Rule::None);
        let high = Judged { used: 0.99, throttles: true, within_hour: Some(0.0), ..Judged::default() };
        assert_eq!(Rule::of(&high), Rule::NearlyFull, "it reclaims enough");
        assert_eq!(Rule::of(&Judged { is_stalled: true, ..high }), Rule::Throttled);
        assert_eq!(Rule::of(&Judged { is_stalled: true, used: 0.5, ..high }), Rule::None, "page cache");
        assert_eq!(
            Rule::of(&Judged { leaks: true, within_hour: Some(0.0), ..Judged::default() }),
            Rule::Leaks
        );
    }
}
