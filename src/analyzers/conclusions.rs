//! Writes the metrics and findings of a conclusion: the only place that puts one into labels and sentences.

use super::exhaustion::metrics as forecasts;
use super::leak::metrics as leaks;
use crate::model::analyzer::Analysis;
use crate::model::desc::Gauge;
use crate::model::finding::{Evidence, Finding, Subject};
use crate::model::format;
use crate::model::health::{Health, Rule};
use crate::model::outlook::{Conclusion, Forecast, Growth, HORIZON_LABELS, LeakState, Rate};
use crate::model::printable;
use crate::model::units::{Bytes, BytesPerSecond, BytesPerStep, Flag, Ratio, Seconds, real};

/// A number of standard errors as a finite one: JSON has no infinity, and so many are certainty.
pub(super) fn standard_errors(count: f64) -> f64 {
    const CERTAIN: f64 = 1e6;
    if count.is_nan() { 0.0 } else { count.clamp(-CERTAIN, CERTAIN) }
}

/// A rate whose standard error is finite; absent where the rate is not.
pub(super) fn finite(rate: Option<Rate>) -> Option<Rate> {
    let rate = rate.filter(|rate| rate.bytes_per_second.is_finite())?;
    Some(Rate { error_bytes_per_second: rate.error_bytes_per_second.min(f64::MAX), ..rate })
}

/// Adds the metrics and the findings of a conclusion of the analyzer `exhaustion` or `leak` at `now` seconds since 1970.
pub(crate) fn write(conclusion: &Conclusion, now: f64, out: &mut Analysis) {
    let subject = &conclusion.subject;
    if let Some(forecast) = &conclusion.forecast {
        put_forecast(subject, forecast, out);
        if forecast.health() > Health::Unknown {
            out.findings.push(exhaustion(conclusion, forecast));
        }
    }
    if let Some(growth) = &conclusion.growth {
        put_growth(subject, growth, out);
        out.findings.extend(leak(subject, growth, now));
    }
}

fn put_bytes(metric: &'static Gauge<Bytes>, subject: &Subject, bytes: f64, out: &mut Analysis) {
    out.batch.put(metric, &subject.labels(), Bytes::of(bytes));
}

fn put_forecast(subject: &Subject, forecast: &Forecast, out: &mut Analysis) {
    put_bytes(&forecasts::HEADROOM, subject, forecast.headroom_bytes(), out);
    put_bytes(&forecasts::LIMIT, subject, forecast.limit_bytes, out);
    let batch = &mut out.batch;
    if let Some(tte) = &forecast.time_to_exhaustion {
        for (estimate, seconds) in [("p10", Some(tte.p10)), ("p50", Some(tte.p50)), ("p90", tte.p90)] {
            let seconds = seconds.and_then(Seconds::new);
            batch.put_some(&forecasts::TTE, &subject.labels_and(estimate), seconds);
        }
    }
    for (horizon, p) in HORIZON_LABELS.into_iter().zip(forecast.within) {
        batch.put_some(&forecasts::PROBABILITY, &subject.labels_and(horizon), p.and_then(Ratio::new));
    }
    let growth = forecast.growth().and_then(BytesPerSecond::new);
    batch.put_some(&forecasts::GROWTH, &subject.labels(), growth);
    if let Some(basis) = forecast.basis {
        batch.put(&forecasts::BASIS, &subject.labels_and(basis.label()), Flag(true));
    }
    let rule = forecast.confirmed.unwrap_or(forecast.rule);
    let mut labels = subject.labels_and(rule.health().label()).to_vec();
    labels.push(rule.label().into());
    batch.put(&forecasts::HEALTH, &labels, Flag(true));
}

fn put_growth(subject: &Subject, growth: &Growth, out: &mut Analysis) {
    let labels = subject.labels();
    if let Some(evidence) = &growth.evidence {
        put_bytes(&leaks::RISE, subject, evidence.rise_bytes, out);
    }
    let batch = &mut out.batch;
    for state in LeakState::ALL {
        batch.put(&leaks::STATE, &subject.labels_and(state.label()), Flag(state == growth.state));
    }
    batch.put_some(&leaks::GROWTH, &labels, growth.bytes_per_second().and_then(BytesPerSecond::new));
    batch.put_some(&leaks::STEP_GROWTH, &labels, growth.bytes_per_step.and_then(BytesPerStep::new));
    if growth.grows() {
        batch.put_some(&leaks::SINCE, &labels, growth.since_unix_seconds.and_then(Seconds::new));
        batch.put_some(&leaks::CONFIDENCE, &labels, growth.confidence.and_then(Ratio::new));
    }
    let Some(evidence) = &growth.evidence else { return };
    batch.put_some(&leaks::WINDOW, &labels, Seconds::new(evidence.window_seconds));
    for (envelope, score) in [
        ("floor", evidence.floor_standard_errors),
        ("center", evidence.center_standard_errors),
        ("peak", evidence.peak_standard_errors),
    ] {
        batch.add(&leaks::SCORE.desc, &subject.labels_and(envelope), score);
    }
}

/// Collects evidence that is known and finite.
fn evidence(values: impl IntoIterator<Item = (&'static str, Option<f64>)>) -> Vec<Evidence> {
    let known = values.into_iter().filter_map(|(what, value)| Some((what, value?)));
    known.filter(|(_, value)| value.is_finite()).map(|(what, value)| Evidence { what, value }).collect()
}

fn exhaustion(conclusion: &Conclusion, forecast: &Forecast) -> Finding {
    let (subject, tte, peaks) = (&conclusion.subject, forecast.time_to_exhaustion, forecast.peaks.as_ref());
    let evidence = evidence([
        ("used_bytes", Some(forecast.used_bytes)),
        ("limit_bytes", Some(forecast.limit_bytes)),
        ("growth_bytes_per_second", forecast.growth()),
        ("growth_standard_error_bytes_per_second", forecast.rate.map(|rate| rate.error_bytes_per_second)),
        ("time_to_exhaustion_p10_seconds", tte.map(|tte| tte.p10)),
        ("time_to_exhaustion_p50_seconds", tte.map(|tte| tte.p50)),
        ("time_to_exhaustion_p90_seconds", tte.and_then(|tte| tte.p90)),
        ("growing_for_seconds", forecast.growing_for_seconds),
        ("probability_growth_continues", forecast.growth_continues),
        ("recurring_peaks", peaks.map(|peaks| real(peaks.count))),
        ("recurring_peaks_for_seconds", peaks.map(|peaks| peaks.for_seconds)),
        ("recurring_peaks_period_seconds", peaks.map(|peaks| peaks.period_seconds)),
        ("recurring_peaks_height_bytes", peaks.map(|peaks| peaks.height_bytes)),
        ("recurring_peaks_growth_bytes_per_second", peaks.map(|peaks| peaks.growth_bytes_per_second)),
        ("next_peak_seconds", peaks.map(|peaks| peaks.next_seconds)),
    ]);
    Finding {
        analyzer: super::exhaustion::REGISTRATION.name,
        subject: subject.clone(),
        state: forecast.rule.label(),
        severity: forecast.health().into(),
        since_unix_seconds: forecast.since_unix_seconds,
        summary: summary(subject, forecast),
        evidence,
        advice: conclusion.advice(),
    }
}

/// What a forecast says, in one sentence.
fn summary(subject: &Subject, forecast: &Forecast) -> String {
    let (why, basis) = (forecast.why(), basis(forecast));
    match (subject.resource.as_str(), forecast.rule) {
        ("memory_high", Rule::Throttled) if !forecast.is_over => {
            let limit = format::bytes(forecast.limit_bytes);
            format!("The cgroup {} is at its memory.high ({limit}): {why}.", subject.cgroup)
        }
        ("memory_high", _) => format!(
            "The cgroup {} may reach its memory.high, above which its processes are throttled and do not advance: {why}{basis}.",
            subject.cgroup
        ),
        _ => format!("Memory of {subject:#} may run out: {why}{basis}."),
    }
}

/// What the forecast is computed from, in words; empty without a forecast.
fn basis(forecast: &Forecast) -> String {
    match (&forecast.time_to_exhaustion, &forecast.peaks) {
        (Some(_), Some(peaks)) => match &peaks.phase {
            Some((phase, steps)) => format!(
                " (by the peaks of phase {}, which occurs every {steps:.0} steps)",
                printable::escaped(phase)
            ),
            None => format!(" (by {} peaks that recur every {:.0} s)", peaks.count, peaks.period_seconds),
        },
        (Some(_), None) => " (by the trend)".to_owned(),
        (None, _) => String::new(),
    }
}

/// The finding of growth that is stated; absent where none is.
fn leak(subject: &Subject, growth: &Growth, now: f64) -> Option<Finding> {
    let stated = growth.stated?;
    let (rate, seen) = (growth.bytes_per_second(), growth.evidence);
    let evidence = evidence([
        ("growth_bytes_per_second", rate),
        ("growth_bytes_per_hour", rate.map(|rate| rate * 3600.0)),
        ("growth_bytes_per_step", growth.bytes_per_step),
        ("rise_bytes", seen.map(|seen| seen.rise_bytes)),
        ("window_seconds", seen.map(|seen| seen.window_seconds)),
        ("floor_standard_errors", seen.map(|seen| seen.floor_standard_errors)),
        ("center_standard_errors", seen.map(|seen| seen.center_standard_errors)),
        ("peak_standard_errors", seen.map(|seen| seen.peak_standard_errors)),
        ("confidence_ratio", growth.confidence),
    ]);
    let time = format::duration((now - stated.since_unix_seconds).max(0.0));
    let (memory, state) = (stated.memory.words(), stated.state.label());
    Some(Finding {
        analyzer: super::leak::REGISTRATION.name,
        subject: subject.clone(),
        state,
        severity: Health::from(stated.state).into(),
        since_unix_seconds: stated.since_unix_seconds,
        summary: format!("The {memory} of {subject:#} has been {state} for {time}."),
        evidence,
        advice: stated.memory.advice(),
    })
}
