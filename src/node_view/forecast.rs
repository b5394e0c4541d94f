//! Conclusions of the analyzers by subject, and what is said of a time left.

use std::collections::BTreeMap;

use crate::model::finding::Subject;
use crate::model::format;
use crate::model::outlook::{Conclusion, Outlook};
pub use crate::model::outlook::{Forecast, Growth};

/// The time left as text, such as `4 min (3 to 7)`; absent while no exhaustion is predicted.
pub fn time_left(forecast: &Forecast) -> Option<String> {
    forecast.stated().map(|tte| format::time_left(tte.p50, Some(tte.p10), tte.p90))
}

/// The conclusions of a frame.
#[derive(Debug, Default)]
pub(super) struct Forecasts<'f> {
    by_subject: BTreeMap<&'f Subject, &'f Conclusion>,
    /// Whether any probability is known: there are enough samples of something.
    pub(super) ready: bool,
}

impl<'f> Forecasts<'f> {
    pub(super) fn of(outlook: &'f Outlook) -> Self {
        let all = &outlook.conclusions;
        let by_subject = all.iter().map(|known| (&known.subject, known)).collect();
        let ready = all.iter().filter_map(|known| known.forecast.as_ref()).any(Forecast::is_ready);
        Self { by_subject, ready }
    }

    pub(super) fn all(&self) -> impl Iterator<Item = (&'f Subject, &'f Forecast)> {
        self.by_subject.values().filter_map(|known| Some((&known.subject, known.forecast.as_ref()?)))
    }

    pub(super) fn forecast(&self, subject: &Subject) -> Option<Forecast> {
        self.by_subject.get(subject)?.forecast.clone()
    }

    pub(super) fn growth(&self, subject: &Subject) -> Option<Growth> {
        self.by_subject.get(subject)?.growth.clone()
    }

    /// The forecast with the worst health of the subjects that `wanted` accepts; of several, the one with the least time
    /// left.
    pub(super) fn worst(&self, wanted: impl Fn(&Subject) -> bool) -> Option<(&'f Conclusion, &'f Forecast)> {
        let all = self.by_subject.values().filter(|known| wanted(&known.subject));
        let soon = |forecast: &Forecast| forecast.stated().map_or(f64::INFINITY, |tte| tte.p50);
        all.filter_map(|known| Some((*known, known.forecast.as_ref()?))).max_by(|(_, one), (_, next)| {
            one.health().cmp(&next.health()).then(soon(next).total_cmp(&soon(one)))
        })
    }

    /// The fastest growth of the subjects that `wanted` accepts, leaks first.
    pub(super) fn fastest(&self, wanted: impl Fn(&Subject) -> bool) -> Option<(&'f Subject, &'f Growth)> {
        let all = self.by_subject.values().filter(|known| wanted(&known.subject));
        let growing = all.filter_map(|known| Some((&known.subject, known.growth.as_ref()?)));
        growing.filter(|(_, growth)| growth.grows()).max_by(|(_, one), (_, next)| {
            let rate = |growth: &Growth| growth.bytes_per_second().unwrap_or(0.0);
            one.leaks().cmp(&next.leaks()).then(rate(one).total_cmp(&rate(next)))
        })
    }
}
