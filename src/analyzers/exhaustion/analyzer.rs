//! The analyzer of a frame: every resource that has a limit, each tick.

use super::{Level, metrics, resources, risk};
use crate::analyzers::Registration;
use crate::analyzers::latch::Latch;
use crate::analyzers::leak::State;
use crate::analyzers::subjects::{self, Fed, Said, Subjects};
use crate::analyzers::tracker::Assessment;
use crate::model::analyzer::{Analysis, Analyzer, Keepsake, View};
use crate::model::finding::{Evidence, Finding, Severity, Subject};
use crate::model::time::Timestamp;
use crate::model::units::{Bytes, BytesPerSecond, Count, Flag, Ratio, Seconds};

/// The horizons of the probabilities, in seconds, and their labels.
const HORIZONS: [f64; 4] = [60.0, 300.0, 900.0, 3600.0];
const HORIZON_LABELS: [&str; 4] = ["1m", "5m", "15m", "60m"];

/// Without growth a full GPU is no danger: allocators reserve all there is on purpose.
const FULL_GPU: f64 = 0.89;

/// When each resource runs out.
pub static REGISTRATION: Registration = Registration {
    name: "exhaustion",
    about: "Forecasts when the host, each cgroup with a limit, each GPU and each workload exhausts its memory.",
    options: &[&subjects::MOST],
    metrics: metrics::METRICS,
    check: |_| Vec::new(),
    build: |settings| Box::new(Exhaustion { subjects: Subjects::new(settings), levels: Latch::default() }),
};

struct Exhaustion {
    subjects: Subjects,
    levels: Latch<Level>,
}

impl Analyzer for Exhaustion {
    fn analyze(&mut self, view: &View<'_>, now: Timestamp, out: &mut Analysis) {
        self.subjects.begin(now);
        self.levels.begin(now);
        for resource in resources::all(view) {
            let fed = Fed {
                subject: &resource.subject,
                sample: resource.sample,
                limit: Some(resource.limit),
                life: resource.life,
            };
            let Some(followed) = self.subjects.feed(fed, &HORIZONS, now) else { continue };
            let headroom = (resource.limit - resource.sample.used).max(0.0);
            put_bytes(&metrics::HEADROOM, &resource.subject, headroom, out);
            if let Some(said) = &followed.said {
                put(&resource, said, &mut self.levels, now, out);
            }
        }
        out.batch.put(&metrics::FOLLOWED, &[], Count(self.subjects.len() as u64));
        out.batch.put(&metrics::OMITTED, &[], Count(self.subjects.omitted));
    }

    fn save(&self) -> Option<Keepsake> {
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

/// Puts what was said of one resource. A time to exhaustion runs down between two assessments.
fn put(
    resource: &resources::Resource,
    said: &Said,
    levels: &mut Latch<Level>,
    now: Timestamp,
    out: &mut Analysis,
) {
    let (subject, assessment) = (&resource.subject, &said.assessment);
    let batch = &mut out.batch;
    let left = |seconds: f64| Seconds::new((seconds - said.age(now)).max(0.0));
    if let Some(tte) = &assessment.tte {
        batch.put_some(&metrics::TTE, &subject.labels_and("p10"), left(tte.p10));
        batch.put_some(&metrics::TTE, &subject.labels_and("p50"), left(tte.p50));
        batch.put_some(&metrics::TTE, &subject.labels_and("p90"), tte.p90.and_then(left));
    }
    for (horizon, p) in HORIZON_LABELS.into_iter().zip(&assessment.p_exhaustion) {
        batch.put_some(&metrics::PROBABILITY, &subject.labels_and(horizon), p.and_then(Ratio::new));
    }
    let growth = assessment.growth.and_then(|growth| BytesPerSecond::new(growth.bytes_per_second));
    batch.put_some(&metrics::GROWTH, &subject.labels(), growth);
    if let Some(basis) = assessment.basis {
        batch.put(&metrics::BASIS, &subject.labels_and(basis.word()), Flag(true));
    }
    let Some((found, rule)) = judged(resource, assessment) else { return };
    let (level, since) = levels.tell(subject, found, now);
    let rule = if found == level { rule } else { "it was so within the last minute" };
    for each in Level::ALL {
        batch.put(&metrics::RISK, &subject.labels_and(each.word()), Flag(each == level));
    }
    if level > Level::Low {
        out.findings.push(finding(resource, said, (level, since), rule, now));
    }
}

/// The level of risk and its rule.
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
    said: &Said,
    (level, since): (Level, f64),
    rule: &'static str,
    now: Timestamp,
) -> Finding {
    let assessment = &said.assessment;
    let mut evidence = vec![
        Evidence { what: "used_bytes", value: resource.sample.used },
        Evidence { what: "limit_bytes", value: resource.limit },
    ];
    if let Some(growth) = assessment.growth {
        evidence.push(Evidence { what: "growth_bytes_per_second", value: growth.bytes_per_second });
        let error = growth.error_bytes_per_second;
        evidence.push(Evidence { what: "growth_standard_error_bytes_per_second", value: error });
    }
    let left = |seconds: f64| (seconds - said.age(now)).max(0.0);
    if let Some(tte) = &assessment.tte {
        evidence.push(Evidence { what: "time_to_exhaustion_p10_seconds", value: left(tte.p10) });
        evidence.push(Evidence { what: "time_to_exhaustion_p50_seconds", value: left(tte.p50) });
        if let Some(p90) = tte.p90 {
            evidence.push(Evidence { what: "time_to_exhaustion_p90_seconds", value: left(p90) });
        }
    }
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
        summary: format!("Memory of {} may run out: {rule}.", resource.subject),
        evidence,
        advice: resource.advice(),
    }
}
