//! One conclusion: a series has the same one in the daemon and in a replay, and everything that the daemon says of it agrees.

use crate::analyzers::replay::{self, replay};
use crate::analyzers::{Registration, exhaustion, leak};
use crate::model::analyzer::{Analysis, Analyzer, View};
use crate::model::frame::Frame;
use crate::model::health::{Health, Rule};
use crate::model::label::Label;
use crate::model::outlook::Outlook;
use crate::model::point::Batch;
use crate::model::series::{Row, Series};
use crate::model::time::Timestamp;
use crate::model::units::Bytes;
use crate::node_view::{NodeView, Situation};
use crate::report::{CheckReport, Scope};
use crate::sources::{gpu, memory};

const GIB: f64 = 1_073_741_824.0;
const LIMIT: f64 = 64.0 * GIB;

/// The analyzer with its defaults.
fn build(registration: &Registration) -> Box<dyn Analyzer> {
    let config =
        crate::config::parse_str("", std::path::Path::new("test"), &crate::app::schema(), &[]).unwrap();
    (registration.build)(&config.analyzers[registration.name].settings)
}

/// What the daemon says of a series, one value a second, as the memory of the host or of a GPU.
struct Daemon {
    analyzers: [Box<dyn Analyzer>; 2],
    is_gpu: bool,
}

impl Daemon {
    fn new(is_gpu: bool) -> Self {
        Self { analyzers: [build(&exhaustion::REGISTRATION), build(&leak::REGISTRATION)], is_gpu }
    }

    fn tick(&mut self, second: u64, share: f64) -> Frame {
        let mut batch = Batch::new();
        let (used, left) = (Bytes::of(LIMIT * share), Bytes::of(LIMIT * (1.0 - share)));
        if self.is_gpu {
            let labels = ["0", "GPU-0"].map(Label::from);
            batch.put(&gpu::metrics::MEMORY_USED, &labels, used);
            batch.put(&gpu::metrics::MEMORY_FREE, &labels, left);
        } else {
            batch.put(&memory::metrics::TOTAL, &[], Bytes::of(LIMIT));
            batch.put(&memory::metrics::AVAILABLE, &[], left);
        }
        let at = Timestamp::from_secs(second);
        let mut all = Analysis::default();
        for analyzer in &mut self.analyzers {
            analyzer.analyze(&View::new(batch.families()).with_facts(&batch.facts), at, &mut all);
        }
        batch.absorb(all.batch);
        let (families, ..) = batch.seal();
        let (findings, outlook) = (all.findings, Outlook { has_leaks: true, ..all.outlook });
        let (sources, timeline, acknowledged) = Default::default();
        Frame { sequence: second + 1, at, families, sources, findings, outlook, timeline, acknowledged }
    }

    fn rule(&self, frame: &Frame) -> Rule {
        let of = if self.is_gpu { "gpu" } else { "host" };
        let own = frame.outlook.conclusions.iter().find(|own| own.subject.resource.as_str() == of).unwrap();
        own.forecast.as_ref().unwrap().rule
    }
}

/// The rules that hold at the end of a series of shares of the limit: in the daemon, and in a replay.
fn rules(is_gpu: bool, seconds: u32, share: impl Fn(f64) -> f64) -> (Rule, Rule) {
    let mut daemon = Daemon::new(is_gpu);
    let mut last = Rule::TooFewSamples;
    let mut rows = Vec::new();
    for second in 0..seconds {
        let share = share(f64::from(second));
        let frame = daemon.tick(second.into(), share);
        last = daemon.rule(&frame);
        rows.push(Row { at: f64::from(second), used: LIMIT * share, limit: Some(LIMIT), ..Row::default() });
    }
    let series = Series { rows, ..Series::default() };
    let options = replay::Options { limit: None, horizons: vec![900.0], every: 10, gpu: is_gpu };
    (last, replay(&series, &options).last().unwrap().rule.unwrap())
}

/// Grows for a while, then stays.
fn grows_until_full(second: f64) -> f64 {
    (0.3 + second / 1000.0).min(0.99)
}

/// From half to nine tenths of the limit in two minutes, then at once back.
fn sawtooth(second: f64) -> f64 {
    0.5 + 0.4 * (second % 120.0) / 120.0
}

#[test]
fn a_replay_concludes_what_the_daemon_concludes() {
    let both = |rule| (rule, rule);
    assert_eq!(rules(true, 1200, grows_until_full), both(Rule::FullAfterGrowth));
    assert_eq!(rules(true, 3000, grows_until_full), both(Rule::FullWithoutGrowth), "it stopped long ago");
    assert_eq!(rules(false, 1200, grows_until_full), both(Rule::Full));
    assert_eq!(rules(true, 300, |_| 0.99), both(Rule::FullWithoutGrowth));
    assert_eq!(rules(true, 300, |_| 0.97), both(Rule::None));
    assert_eq!(rules(false, 300, |_| 0.97), both(Rule::NearlyFull));
    for is_gpu in [false, true] {
        assert_eq!(rules(is_gpu, 2400, sawtooth), both(Rule::None));
        assert_eq!(rules(is_gpu, 3600, |second| 0.2 + second / 1e6), both(Rule::Leaks));
    }
}

#[test]
fn everything_says_the_same_of_a_sawtooth() {
    for is_gpu in [false, true] {
        let mut daemon = Daemon::new(is_gpu);
        for second in 0..2400 {
            let frame = daemon.tick(second, sawtooth(f64::from(u32::try_from(second).unwrap())));
            let health = daemon.rule(&frame).health();
            let node = NodeView::of(Some(&frame), &Situation { stale_after: 10.0, ..Situation::default() });
            let own = if is_gpu { node.gpus[0].health } else { node.host.health };
            let about = format!("second {second}: {}", node.verdict.sentence);
            // A page says of a resource, and of the node, what the rule says.
            if health > Health::Unknown {
                assert_eq!((own, node.verdict.health), (health, health), "{about}");
            } else {
                assert!(own <= Health::Unknown && node.verdict.health <= Health::Unknown, "{about}");
            }
            let code = CheckReport::of(&node, Scope::All, Health::Warning).exit_code();
            assert_eq!(code == 1, health >= Health::Warning, "{about}");
            let found = frame
                .findings
                .iter()
                .filter(|own| own.analyzer == "exhaustion")
                .max_by_key(|own| own.severity);
            assert_eq!(
                found.map_or(Health::Ok, |own| own.severity.into()) >= Health::Warning,
                health >= Health::Warning
            );
            // No time is stated where exhaustion is improbable.
            let own = frame.outlook.conclusions[0].forecast.as_ref().unwrap();
            if node.verdict.sentence.contains("runs out of memory in") {
                assert!(
                    own.stated().is_some() && own.within[1].is_some_and(|p| p >= 0.1),
                    "{about}: {own:?}"
                );
            }
            if second > 1200 {
                assert_eq!(health, Health::Ok, "{about}");
            }
        }
    }
}
