//! Forecasts and leaks by subject.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::format;
use super::health::Health;
use super::lookup::{Lookup, Row};
use crate::catalog::{exhaustion, leak};
use crate::model::finding::Subject;

/// A time to exhaustion below this requires action now, in seconds.
pub(super) const URGENT: f64 = 900.0;

/// What is predicted of one resource.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Forecast {
    /// Memory left in bytes, as the forecast computes it.
    pub headroom: Option<f64>,
    /// Growth in bytes per second; absent before there are enough samples.
    pub growth: Option<f64>,
    /// The 10 % quantile of the time to exhaustion in seconds; the quantiles are absent while none is predicted.
    pub p10: Option<f64>,
    /// The median.
    pub p50: Option<f64>,
    /// The 90 % quantile; absent where the rate is too uncertain.
    pub p90: Option<f64>,
    /// The probability of exhaustion within 15 minutes; absent before there are enough samples.
    pub within_15_minutes: Option<f64>,
    /// The risk level: `low`, `medium`, `high` or `critical`; absent before the first assessment.
    pub risk: Option<String>,
}

/// The growth of one subject.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Growth {
    /// `insufficient`, `steady`, `warming`, `growing` or `leaking`.
    pub state: String,
    /// Growth in bytes per second; absent before there are enough samples.
    pub rate: Option<f64>,
    /// When it began, in seconds since 1970; absent while it does not grow.
    pub since: Option<f64>,
}

impl Growth {
    /// Whether it counts as a leak.
    pub fn leaks(&self) -> bool {
        self.state == "leaking"
    }

    /// Whether it grows or leaks.
    pub fn grows(&self) -> bool {
        matches!(self.state.as_str(), "growing" | "leaking")
    }
}

impl Forecast {
    /// The health that follows from the risk and the time left.
    pub fn health(&self) -> Health {
        let urgent = self.p50.is_some_and(|p50| p50 < URGENT);
        match self.risk.as_deref() {
            Some("critical") => Health::Critical,
            Some(_) if urgent => Health::Critical,
            Some("medium" | "high") => Health::Warning,
            // Before there are enough samples, nothing is known of the time left.
            Some(_) if self.within_15_minutes.is_some() => Health::Ok,
            Some(_) | None => Health::Unknown,
        }
    }

    /// The time left as text, such as `4 min (3 to 7)`; absent while no exhaustion is predicted.
    pub fn time_left(&self) -> Option<String> {
        self.p50.map(|p50| format::time_left(p50, self.p10, self.p90))
    }

    /// Seconds until it is full at its growth; absent where it does not grow.
    pub fn at_its_growth(&self) -> Option<f64> {
        let (headroom, growth) = (self.headroom?, self.growth?);
        (growth > 0.0).then(|| headroom / growth)
    }
}

/// Forecasts and growth states of all subjects of a frame.
#[derive(Debug, Default)]
pub(super) struct Forecasts {
    forecasts: BTreeMap<Subject, Forecast>,
    growth: BTreeMap<Subject, Growth>,
    /// Whether any probability is known: there are enough samples of something.
    pub(super) ready: bool,
}

/// The subject of an analyzer's series.
fn subject(row: &Row<'_>) -> Subject {
    let label = |name| row.label(name).into();
    Subject {
        resource: label("resource"),
        cgroup: label("cgroup"),
        gpu: label("gpu"),
        uuid: label("uuid"),
        workload: label("workload"),
        pid: label("pid"),
        ..Subject::default()
    }
}

impl Forecasts {
    pub(super) fn of(lookup: &Lookup<'_>) -> Self {
        let mut all = Self::default();
        for row in lookup.rows(&exhaustion::HEADROOM.desc) {
            all.forecasts.entry(subject(&row)).or_default().headroom = Some(row.value());
        }
        for row in lookup.rows(&exhaustion::GROWTH.desc) {
            all.forecasts.entry(subject(&row)).or_default().growth = Some(row.value());
        }
        for row in lookup.rows(&exhaustion::TTE.desc) {
            let forecast = all.forecasts.entry(subject(&row)).or_default();
            match row.label("estimate") {
                "p10" => forecast.p10 = Some(row.value()),
                "p50" => forecast.p50 = Some(row.value()),
                "p90" => forecast.p90 = Some(row.value()),
                _ => {}
            }
        }
        for row in lookup.rows(&exhaustion::PROBABILITY.desc) {
            all.ready = true;
            if row.label("horizon") == "15m" {
                all.forecasts.entry(subject(&row)).or_default().within_15_minutes = Some(row.value());
            }
        }
        for row in lookup.current(&exhaustion::RISK.desc) {
            all.forecasts.entry(subject(&row)).or_default().risk = Some(row.label("level").to_owned());
        }
        for row in lookup.current(&leak::STATE.desc) {
            all.growth.entry(subject(&row)).or_default().state = row.label("state").to_owned();
        }
        for row in lookup.rows(&leak::GROWTH.desc) {
            all.growth.entry(subject(&row)).or_default().rate = Some(row.value());
        }
        for row in lookup.rows(&leak::SINCE.desc) {
            all.growth.entry(subject(&row)).or_default().since = Some(row.value());
        }
        all
    }

    /// The forecast of a subject.
    pub(super) fn forecast(&self, subject: &Subject) -> Option<Forecast> {
        self.forecasts.get(subject).cloned()
    }

    /// The growth state of a subject.
    pub(super) fn growth(&self, subject: &Subject) -> Option<Growth> {
        self.growth.get(subject).cloned()
    }

    /// The fastest growth of the subjects that `wanted` accepts, leaks first.
    pub(super) fn fastest(&self, wanted: impl Fn(&Subject) -> bool) -> Option<(&Subject, &Growth)> {
        let growing = self.growth.iter().filter(|(subject, growth)| growth.grows() && wanted(subject));
        growing.max_by(|(_, one), (_, next)| {
            let rate = |growth: &Growth| growth.rate.unwrap_or(0.0);
            one.leaks().cmp(&next.leaks()).then(rate(one).total_cmp(&rate(next)))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn little_time_requires_action_whatever_the_level() {
        let forecast =
            |risk: Option<&str>, p50| Forecast { risk: risk.map(str::to_owned), p50, ..Forecast::default() };
        assert_eq!(forecast(Some("low"), None).health(), Health::Unknown, "there are too few samples");
        let known = Forecast { within_15_minutes: Some(0.0), ..forecast(Some("low"), None) };
        assert_eq!(known.health(), Health::Ok);
        assert_eq!(forecast(Some("low"), Some(240.0)).health(), Health::Critical);
        assert_eq!(forecast(Some("medium"), Some(2_400.0)).health(), Health::Warning);
        assert_eq!(forecast(None, None).health(), Health::Unknown);
    }

    #[test]
    fn a_time_at_the_present_growth_needs_growth() {
        let forecast = Forecast { headroom: Some(600.0), growth: Some(2.0), ..Forecast::default() };
        assert_eq!(forecast.at_its_growth(), Some(300.0));
        assert_eq!(Forecast { growth: Some(0.0), ..forecast }.at_its_growth(), None);
    }
}
