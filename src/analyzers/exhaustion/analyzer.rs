//! The `exhaustion` analyzer: assesses every resource that has a limit, each tick.

use super::phases::{PhasePeriod, Phases};
use super::resources::PhasesOf;
use super::{Level, metrics, resources, risk};
use crate::analyzers::Registration;
use crate::analyzers::identities::Identities;
use crate::analyzers::latch::Latch;
use crate::analyzers::leak::State;
use crate::analyzers::subjects::{self, DatedAssessment, SubjectSample, Subjects};
use crate::analyzers::tracker::Assessment;
use crate::model::analyzer::{Analysis, Analyzer, SavedState, View};
use crate::model::finding::{Evidence, Finding, Severity, Subject};
use crate::model::outlook::{Forecast, HORIZONS, Tte};
use crate::model::printable;
use crate::model::time::Timestamp;
use crate::model::units::{Bytes, BytesPerSecond, Count, Flag, Ratio, Seconds};

/// Values of the label `horizon`, in the order of [`HORIZONS`].
const HORIZON_LABELS: [&str; HORIZONS.len()] = ["1m", "5m", "15m", "60m"];

/// Used share that a GPU without growth counts as at most, which is below the lowest threshold of the risk rules:
/// allocators reserve all free memory on purpose.
const FULL_GPU: f64 = 0.89;

/// Registration of the `exhaustion` analyzer.
pub static REGISTRATION: Registration = Registration {
    name: "exhaustion",
    about: "Forecasts when the host, each cgroup with a limit, each GPU and each workload exhausts its memory.",
    options: &[&subjects::MOST],
    metrics: metrics::METRICS,
    check: |_| Vec::new(),
    build: |settings| {
        let (levels, phases) = (Latch::default(), Phases::default());
        Box::new(Exhaustion { subjects: Subjects::new(settings), levels, phases })
    },
};

struct Exhaustion {
    subjects: Subjects,
    levels: Latch<Level>,
    phases: Phases,
}

impl Analyzer for Exhaustion {
    fn analyze(&mut self, view: &View<'_>, now: Timestamp, out: &mut Analysis) {
        let resources = resources::all(view);
        self.phases.update(view, &resources::used(&resources), now);
        self.subjects.begin(resources.iter().map(|resource| &resource.subject), view, now);
        self.levels.begin(now);
        let identities = Identities::of(view);
        let mut forecasts = Vec::with_capacity(self.subjects.len());
        for resource in resources {
            let fed = SubjectSample {
                subject: &resource.subject,
                sample: resource.sample,
                limit: Some(resource.limit),
                life: resource.life,
                phase: resource.phases_of.as_ref().and_then(|of| match of {
                    PhasesOf::Rank(rank) => self.phases.of_rank(view, rank, now),
                    PhasesOf::Workloads(of, memory) => self.phases.of_workloads(view, of, memory, now),
                }),
            };
            let Some(followed) = self.subjects.feed(fed, &HORIZONS, now) else { continue };
            let headroom = (resource.limit - resource.sample.used).max(0.0);
            put_bytes(&metrics::HEADROOM, &resource.subject, headroom, out);
            if let Some(dated) = &followed.latest {
                let (tte, within) = figures(dated, now);
                put(&resource, dated, (tte, &within), &mut self.levels, now, out);
                forecasts.extend(identities.resource(&resource.subject).map(|resource| Forecast {
                    resource,
                    tte,
                    within,
                }));
            }
        }
        out.batch.put(&metrics::FOLLOWED, &[], Count(self.subjects.len() as u64));
        out.batch.put(&metrics::OMITTED, &[], Count(self.subjects.omitted()));
        out.shortages.extend(self.subjects.shortages("exhaustion_subjects"));
        out.outlook.forecasts = Some(forecasts);
    }

    fn save(&self) -> Option<SavedState> {
        Some(self.subjects.save())
    }

    fn restore(&mut self, saved: &str) -> Result<(), serde_json::Error> {
        self.subjects.restore(saved)
    }
}

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "bytes of a machine, at least 0")]
fn put_bytes(
    metric: &'static crate::model::desc::Gauge<Bytes>,
    subject: &Subject,
    bytes: f64,
    out: &mut Analysis,
) {
    out.batch.put(metric, &subject.labels(), Bytes::new(bytes as u64));
}

/// The probability of exhaustion within each horizon.
type Within = [Option<Ratio>; HORIZONS.len()];

/// The forecast at `now`: the time to exhaustion decreases between two assessments.
fn figures(dated: &DatedAssessment, now: Timestamp) -> (Option<Tte>, Within) {
    let left = |seconds: f64| Seconds::new((seconds - dated.age(now)).max(0.0));
    let tte = dated.assessment.tte.as_ref();
    let tte = tte
        .and_then(|tte| Some(Tte { p10: left(tte.p10)?, p50: left(tte.p50)?, p90: tte.p90.and_then(left) }));
    let p = |place: usize| dated.assessment.p_exhaustion.get(place).copied().flatten();
    (tte, std::array::from_fn(|place| p(place).and_then(Ratio::new)))
}

/// Adds the metrics and the finding of one resource.
fn put(
    resource: &resources::Resource,
    dated: &DatedAssessment,
    (tte, within): (Option<Tte>, &Within),
    levels: &mut Latch<Level>,
    now: Timestamp,
    out: &mut Analysis,
) {
    let (subject, assessment) = (&resource.subject, &dated.assessment);
    let batch = &mut out.batch;
    if let Some(tte) = &tte {
        batch.put(&metrics::TTE, &subject.labels_and("p10"), tte.p10);
        batch.put(&metrics::TTE, &subject.labels_and("p50"), tte.p50);
        batch.put_some(&metrics::TTE, &subject.labels_and("p90"), tte.p90);
    }
    for (horizon, p) in HORIZON_LABELS.into_iter().zip(within) {
        batch.put_some(&metrics::PROBABILITY, &subject.labels_and(horizon), *p);
    }
    let growth = assessment.growth.and_then(|growth| BytesPerSecond::new(growth.bytes_per_second));
    batch.put_some(&metrics::GROWTH, &subject.labels(), growth);
    if let Some(basis) = assessment.basis {
        batch.put(&metrics::BASIS, &subject.labels_and(basis.word()), Flag(true));
    }
    let Some((found, rule)) = judged(resource, assessment) else { return };
    let (level, since) = levels.update(subject, found, now);
    let rule = if found == level { rule } else { "it was so within the last minute" };
    for each in Level::ALL {
        batch.put(&metrics::RISK, &subject.labels_and(each.word()), Flag(each == level));
    }
    if level > Level::Low {
        out.findings.push(finding(resource, dated, (level, since), rule, now));
    }
}

/// The risk level and the rule that set it; absent without an assessed risk.
fn judged(resource: &resources::Resource, assessment: &Assessment) -> Option<(Level, &'static str)> {
    let found = assessment.risk?;
    if resource.subject.resource.as_str() != "gpu" {
        return Some((found.level, found.rule));
    }
    let growing = matches!(assessment.leak, State::Growing | State::Leaking);
    let used = resource.sample.used / resource.limit;
    let used = if growing { used } else { used.min(FULL_GPU) };
    let within = |horizon: f64| {
        let place = HORIZONS.iter().position(|known| *known >= horizon);
        place.and_then(|place| assessment.p_exhaustion[place]).unwrap_or(0.0)
    };
    let found = risk(used, growing, assessment.leak == State::Leaking, within);
    Some((found.level, found.rule))
}

fn finding(
    resource: &resources::Resource,
    dated: &DatedAssessment,
    (level, since): (Level, f64),
    rule: &'static str,
    now: Timestamp,
) -> Finding {
    let assessment = &dated.assessment;
    let mut evidence = vec![
        Evidence { what: "used_bytes", value: resource.sample.used },
        Evidence { what: "limit_bytes", value: resource.limit },
    ];
    if let Some(growth) = assessment.growth {
        evidence.push(Evidence { what: "growth_bytes_per_second", value: growth.bytes_per_second });
        let error = growth.error_bytes_per_second;
        evidence.push(Evidence { what: "growth_standard_error_bytes_per_second", value: error });
    }
    let left = |seconds: f64| (seconds - dated.age(now)).max(0.0);
    if let Some(tte) = &assessment.tte {
        evidence.push(Evidence { what: "time_to_exhaustion_p10_seconds", value: left(tte.p10) });
        evidence.push(Evidence { what: "time_to_exhaustion_p50_seconds", value: left(tte.p50) });
        if let Some(p90) = tte.p90 {
            evidence.push(Evidence { what: "time_to_exhaustion_p90_seconds", value: left(p90) });
        }
    }
    basis_evidence(assessment, dated.age(now), &mut evidence);
    Finding {
        analyzer: REGISTRATION.name,
        subject: resource.subject.clone(),
        state: level.word(),
        severity: match level {
            Level::Low => Severity::Info,
            Level::Medium | Level::High => Severity::Warning,
            Level::Critical => Severity::Critical,
        },
        since_unix_seconds: since,
        summary: format!("Memory of {} may run out: {rule}{}.", resource.subject, basis(assessment)),
        evidence,
        advice: resource.advice(),
    }
}

/// What the forecast is computed from, as evidence. `age` is the age of the assessment in seconds.
fn basis_evidence(assessment: &Assessment, age: f64, evidence: &mut Vec<Evidence>) {
    let mut add = |what, value: Option<f64>| {
        evidence.extend(value.filter(|value| value.is_finite()).map(|value| Evidence { what, value }));
    };
    add("growing_for_seconds", assessment.growing_for_seconds);
    add("probability_growth_continues", assessment.p_growth_continues);
    if let Some(peaks) = &assessment.peaks {
        #[expect(clippy::cast_precision_loss, reason = "a dozen")]
        add("recurring_peaks", Some(peaks.count as f64));
        add("recurring_peaks_for_seconds", Some(peaks.for_seconds));
        add("recurring_peaks_period_seconds", Some(peaks.period_seconds));
        add("recurring_peaks_height_bytes", Some(peaks.height_bytes));
        add("recurring_peaks_growth_bytes_per_second", Some(peaks.growth_bytes_per_second));
        add("next_peak_seconds", Some((peaks.next_seconds - age).max(0.0)));
    }
}

/// What the forecast is computed from, as text; empty without a forecast.
fn basis(assessment: &Assessment) -> String {
    match (&assessment.tte, &assessment.peaks) {
        (Some(_), Some(peaks)) => match &assessment.phase {
            Some(PhasePeriod { phase, steps }) => format!(
                " (by the peaks of phase {}, which occurs every {steps:.0} steps)",
                printable::escaped(phase.as_str())
            ),
            None => format!(" (by {} peaks that recur every {:.0} s)", peaks.count, peaks.period_seconds),
        },
        (Some(_), None) => " (by the trend)".to_owned(),
        (None, _) => String::new(),
    }
}
