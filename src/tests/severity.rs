//! One severity: for every rule, time left and visibility, the metric, the finding, the view, the page, `top`, the reports,
//! the health check, the cluster and the alert rules have the same health.

use crate::analyzers::conclusions;
use crate::cluster::{Answers, Cluster, Sample};
use crate::history::rings::Range;
use crate::model::analyzer::Analysis;
use crate::model::finding::Subject;
use crate::model::frame::Frame;
use crate::model::health::{Health, Rule};
use crate::model::outlook::{Conclusion, Forecast, Rate, Tte};
use crate::node_view::events::Recorder;
use crate::node_view::tests::Node;
use crate::node_view::{NodeView, Situation};
use crate::report::{self, About, CheckReport, Focus, Kind, Paint, Scope};
use crate::serve::page::{Content, IncidentsShown, View, page};
use crate::top::{Data, NodeData, Update};

const NOW: f64 = 1_795_391_700.0;
const GIB: f64 = 1_073_741_824.0;

/// A node whose host has this conclusion, as a frame with what the analyzers write of it.
fn frame(rule: Rule, left: Option<f64>, gpu: &str) -> Frame {
    let mut node = Node::new();
    if !gpu.is_empty() {
        node.gpu(0, 20, gpu);
    }
    let mut frame = node.frame();
    let tte = left.map(|left| Tte { p10: left * 0.8, p50: left, p90: Some(left * 1.5) });
    let forecast = Forecast {
        used_bytes: 60.0 * GIB,
        limit_bytes: 64.0 * GIB,
        rate: Some(Rate { bytes_per_second: 1e6, error_bytes_per_second: 1e4 }),
        time_to_exhaustion: tte,
        within: if rule == Rule::TooFewSamples { [None; 4] } else { [Some(0.2); 4] },
        rule,
        since_unix_seconds: NOW - 60.0,
        ..Forecast::default()
    };
    let own = Conclusion { subject: Subject::host(), forecast: Some(forecast), ..Conclusion::default() };
    let mut analysis = Analysis::default();
    conclusions::write(&own, NOW, &mut analysis);
    frame.findings.extend(analysis.findings);
    frame.families.extend(analysis.batch.seal().0);
    frame.outlook.conclusions.retain(|known| known.subject != Subject::host());
    frame.outlook.conclusions.push(own);
    frame
}

/// The label of a series of the metric of healths, by the name of the label.
fn label(frame: &Frame, name: &str) -> String {
    let metric = crate::catalog::exhaustion::HEALTH.desc.name;
    let family = frame.families.iter().find(|family| family.desc.name == metric).unwrap();
    let place = family.desc.labels.iter().position(|label| *label == name).unwrap();
    let [point] = &*family.points else { panic!("one series for each resource: {:?}", family.points) };
    point.labels[place].to_string()
}

/// What the view of a frame says: of the host, and of the node.
fn view(frame: &Frame) -> NodeView {
    NodeView::of(Some(frame), &Situation { stale_after: 10.0, ..Situation::default() })
}

#[test]
fn everything_that_names_a_health_names_the_same() {
    for rule in Rule::ALL {
        for left in [None, Some(240.0), Some(600.0), Some(7_200.0)] {
            for gpu in ["", "ok", "hung"] {
                same(rule, left, gpu);
            }
        }
    }
}

fn same(rule: Rule, left: Option<f64>, gpu: &str) {
    let about = format!("{rule:?}, {left:?} s left, GPU {gpu:?}");
    let frame = frame(rule, left, gpu);
    let health = rule.health();
    // The metric and the finding.
    assert_eq!(
        (label(&frame, "health").as_str(), label(&frame, "rule").as_str()),
        (health.label(), rule.label())
    );
    let finding = frame.findings.iter().find(|finding| finding.analyzer == "exhaustion");
    assert_eq!(
        finding.map(|finding| Health::from(finding.severity)),
        Some(health).filter(|h| *h > Health::Unknown)
    );
    // The host in the view, and the node, which is as bad as the worst of what it has.
    let node = view(&frame);
    assert_eq!(node.host.health, health, "{about}");
    let hung = if gpu == "hung" { Health::Critical } else { Health::Ok };
    let is_known = |health: Health| health != Health::Unknown;
    let stated = [health, hung].into_iter().filter(|health| is_known(*health)).max();
    let expected = match stated {
        Some(worst) if worst > Health::Ok => worst,
        // No problem is known. A host that is too young for a rule is not ok, even if its GPU is.
        _ => health.min(Health::Unknown),
    };
    assert_eq!(node.verdict.health, expected, "{about}: {}", node.verdict.sentence);
    assert_eq!(
        node.problems.first().map_or(Health::Ok, |problem| problem.health),
        stated.unwrap_or(Health::Ok)
    );
    // JSON, the page and the terminal.
    let json = serde_json::to_value(&node).unwrap();
    assert_eq!(
        (&json["verdict"]["health"], &json["host"]["health"]),
        (&expected.label().into(), &health.label().into())
    );
    let mut recorder = Recorder::default();
    recorder.record(&frame);
    let content = Content {
        node: &node,
        recorder: &recorder,
        range: Range::Minutes,
        uptime: std::time::Duration::ZERO,
        incidents: IncidentsShown::Unasked,
    };
    let html = page(&View::Node, &content).html;
    assert!(html.contains(&format!("class=\"verdict {}\"", expected.label())), "{about}");
    assert!(
        html.contains(&format!("<p class=\"figure\"><span class=\"tag {0}\">{0}</span>", health.label()))
    );
    let mut state = crate::top::State::new(crate::top::Kind::Node, "", "The daemon");
    let data = NodeData { view: node.clone(), events: Vec::new() };
    state.take(Update::Data(Data::Node(Box::new(data)), Vec::new()), NOW);
    assert_eq!(state.verdict(NOW).0, expected, "{about}");
    // The report, and its exit code.
    let mut own = report::Recorder::new(Focus::default());
    own.take(report::sample(&frame));
    let built = report::build(Kind::Oom, &own, &About::default(), Paint::Plain);
    let host =
        built.json["resources"].as_array().unwrap().iter().find(|row| row["subject"]["resource"] == "host");
    assert_eq!(host.unwrap()["health"], health.label(), "{about}");
    // A GPU that is not seen is never ok.
    let whole = health.in_part(gpu == "hung");
    assert_eq!(built.json["health"], whole.label(), "{about}: {}", built.text);
    assert_eq!(built.alarm, whole >= Health::Warning);
    // The health check.
    for severity in [Health::Warning, Health::Critical] {
        let code = CheckReport::of(&node, Scope::Node, severity).exit_code();
        let worst = health.max(hung);
        let is_problem = worst >= severity;
        assert_eq!(code == 1, is_problem, "{about}");
        let is_unknown = !is_problem && hung == Health::Ok && health == Health::Unknown;
        assert_eq!(code == 2, is_unknown, "{about}: {code}");
    }
}

#[test]
fn the_recording_rules_have_the_same_numbers_and_the_alerts_the_same_severities() {
    let text =
        std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/alerts/memwarden.rules.yaml")).unwrap();
    let rules: serde_yaml::Value = serde_yaml::from_str(&text).unwrap();
    let groups = rules["groups"].as_sequence().unwrap().iter();
    let rules: Vec<_> = groups.flat_map(|group| group["rules"].as_sequence().unwrap()).collect();
    let metric = crate::catalog::exhaustion::HEALTH.desc.name;
    let level =
        rules.iter().find(|rule| rule["record"] == "resource:memwarden_forecast_health:level").unwrap();
    for (number, health) in Health::ALL.into_iter().enumerate() {
        let part = format!("{number} * {metric}{{health=\"{}\"}}", health.label());
        assert!(level["expr"].as_str().unwrap().contains(&part), "{part}");
        #[expect(clippy::cast_precision_loss, reason = "at most 3")]
        let number = number as f64;
        assert_eq!(Health::of_number(number), health);
        // A node of the cluster has the health that the server has computed.
        let instance = || [("instance".to_owned(), "a".to_owned())].into_iter().collect();
        let mut answers = Answers::default();
        answers[0] = vec![Sample { labels: instance(), value: 0.0 }];
        answers[1] = vec![Sample { labels: instance(), value: number }];
        assert_eq!(Cluster::new(&answers, None).health(), health);
    }
    for (alert, health) in
        [("MemoryExhaustionLikely", Health::Warning), ("MemoryExhaustionImminent", Health::Critical)]
    {
        let rule = rules.iter().find(|rule| rule["alert"] == alert).unwrap();
        assert_eq!(rule["labels"]["severity"].as_str(), Some(health.label()), "{alert}");
        let expr = rule["expr"].as_str().unwrap();
        let named = expr.matches(metric).count();
        assert_eq!(
            expr.matches(&format!("{metric}{{health=\"{}\"", health.label())).count(),
            named,
            "{alert}: {expr}"
        );
    }
}
