//! The `exhaustion` analyzer: assesses every resource that has a limit, each tick.

use super::loads::Loads;
use super::phases::Phases;
use super::resources::PhasesOf;
use super::rules::{Level, RULES, Rules};
use super::throttling::Throttling;
use super::{metrics, resources};
use crate::analyzers::Registration;
use crate::analyzers::conclusions;
use crate::analyzers::identities::Identities;
use crate::analyzers::subjects::{self, DatedAssessment, SubjectSample, Subjects};
use crate::model::analyzer::{Analysis, Analyzer, SavedState, View};
use crate::model::outlook::{Conclusion, Forecast, HORIZONS, Peaks, Tte};
use crate::model::time::Timestamp;
use crate::model::units::Count;

/// Registration of the `exhaustion` analyzer.
pub static REGISTRATION: Registration = Registration {
    name: "exhaustion",
    about: "Forecasts when the host, each cgroup with a limit or a memory.high, its device memory, each GPU and MIG instance, each workload and each tmpfs exhausts its memory.",
    options: subjects::Options::OPTIONS,
    metrics: metrics::METRICS,
    ..Registration::built_by(|settings| {
        Box::new(Exhaustion { subjects: Subjects::new(settings), ..Exhaustion::default() })
    })
};

#[derive(Default)]
struct Exhaustion {
    subjects: Subjects,
    rules: Rules,
    phases: Phases,
    loads: Loads,
    throttling: Throttling,
}

impl Analyzer for Exhaustion {
    fn analyze(&mut self, view: &View<'_>, now: Timestamp, out: &mut Analysis) {
        self.loads.update(view);
        self.throttling.update(view, now);
        let resources = resources::all(view, &self.loads, &self.throttling);
        self.phases.update(view, &resources::used(&resources), now);
        self.subjects.begin(resources.iter().map(|resource| &resource.subject), view, now);
        self.rules.begin(now);
        let identities = Identities::of(view);
        let unix = now.unix().as_secs_f64();
        for resource in resources {
            let fed = SubjectSample {
                subject: &resource.subject,
                sample: resource.sample,
                limit: Some(resource.limit),
                life: resource.life,
                sharing: resource.sharing,
                phase: resource.phases_of.as_ref().and_then(|of| match of {
                    PhasesOf::Rank(rank) => self.phases.of_rank(view, rank, now),
                    PhasesOf::Workloads(of, memory) => self.phases.of_workloads(view, of, memory, now),
                }),
            };
            let Some(followed) = self.subjects.feed(fed, &HORIZONS, now) else { continue };
            if followed.is_new() {
                self.rules.forget(&resource.subject);
            }
            let Some(dated) = &followed.latest else { continue };
            let level = Level {
                used: resource.sample.used / resource.limit,
                occupied: resource.occupied / resource.limit,
                is_stalled: resource.is_stalled,
            };
            let within = RULES.map(|horizon| {
                let place = HORIZONS.iter().position(|known| *known >= horizon)?;
                dated.assessment.p_exhaustion.get(place).copied().flatten()
            });
            let (rule, since, is_over) =
                self.rules.update(&resource.subject, level, &dated.assessment, within, now);
            let conclusion = Conclusion {
                identity: identities.resource(&resource.subject),
                forecast: Some(Forecast {
                    rule,
                    since_unix_seconds: since,
                    is_over,
                    confirmed: Some(self.rules.confirmed(&resource.subject, now)),
                    ..forecast(&resource, dated, now)
                }),
                subject: resource.subject,
                growth: None,
            };
            conclusions::write(&conclusion, unix, out);
            out.outlook.conclusions.push(conclusion);
        }
        out.batch.put(&metrics::FOLLOWED, &[], Count(self.subjects.len() as u64));
        out.batch.put(&metrics::OMITTED, &[], Count(self.subjects.omitted()));
        out.shortages.extend(self.subjects.shortages("exhaustion_subjects"));
        out.outlook.has_forecasts = true;
    }

    fn save(&self) -> Option<SavedState> {
        Some(self.subjects.save())
    }

    fn restore(&mut self, saved: &str) -> Result<(), serde_json::Error> {
        self.subjects.restore(saved)
    }
}

/// The forecast at `now`, without its rule: the time to exhaustion decreases between two assessments.
fn forecast(resource: &resources::Resource, dated: &DatedAssessment, now: Timestamp) -> Forecast {
    let (assessment, age) = (&dated.assessment, dated.age(now));
    let finite = |tte: &Tte| tte.p10.is_finite() && tte.p50.is_finite();
    let peaks = assessment.peaks.as_ref().map(|peaks| Peaks {
        count: peaks.count as u64,
        for_seconds: peaks.for_seconds,
        period_seconds: peaks.period_seconds,
        height_bytes: peaks.height_bytes,
        growth_bytes_per_second: peaks.growth_bytes_per_second,
        next_seconds: (peaks.next_seconds - age).max(0.0),
        phase: dated.phase.as_ref().map(|(phase, steps)| (phase.to_string(), *steps)),
    });
    Forecast {
        used_bytes: resource.sample.used,
        limit_bytes: resource.limit,
        rate: conclusions::finite(assessment.growth),
        growing_for_seconds: assessment.growing_for_seconds,
        time_to_exhaustion: assessment.tte.map(|tte| tte.after(age)).filter(finite),
        within: std::array::from_fn(|place| assessment.p_exhaustion.get(place).copied().flatten()),
        growth_continues: assessment.p_growth_continues,
        basis: assessment.basis,
        peaks,
        ..Forecast::default()
    }
}
