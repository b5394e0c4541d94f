//! Reports what cannot be measured now, so that missing data is not taken for health.
//!
//! # What it says
//! A critical finding for each GPU that does not respond, by the status that the `gpu` source reports (`hung`,
//! `lost`, `unknown_error`, `unobserved`), and a warning for each source that fails.
//!
//! # When it stays silent
//! `unobserved` and a failing source are reported after ten seconds: the restart of a worker, or one failed read, is
//! over before. An unavailable source (no GPU library, no PSI) is not a defect. Where GPUs that do not respond are
//! the reason why the `gpu` source fails, the GPUs are reported and the source is not.

use std::collections::BTreeMap;

use super::Registration;
use crate::model::analyzer::{Analysis, Analyzer, View};
use crate::model::finding::{Evidence, Finding, Severity, Subject};
use crate::model::source::Status;
use crate::model::time::Timestamp;

/// Seconds before a condition that may be temporary is reported.
const REPORTED_AFTER: f64 = 10.0;
/// The source whose failures may be caused by single GPUs.
const GPU_SOURCE: &str = "gpu";

/// Registration of the `visibility` analyzer.
pub static REGISTRATION: Registration = Registration {
    name: "visibility",
    about: "Reports what cannot be measured now: GPUs that do not respond, and sources that fail.",
    metrics: &[],
    ..Registration::built_by(|_| Box::new(Visibility::default()))
};

/// Since when each subject has not been visible.
#[derive(Debug, Default)]
struct Visibility {
    since: BTreeMap<Subject, Since>,
}

#[derive(Clone, Copy, Debug)]
struct Since {
    state: &'static str,
    /// Seconds on the monotonic clock.
    at: f64,
    unix: f64,
}

/// A finding, and whether it is reported at once.
type Unseen = (Finding, bool);

impl Analyzer for Visibility {
    fn analyze(&mut self, view: &View<'_>, now: Timestamp, out: &mut Analysis) {
        let (at, unix) = (now.monotonic().as_secs_f64(), now.unix().as_secs_f64());
        let mut unseen = gpus(view);
        let gpus_tell = !unseen.is_empty();
        unseen.extend(sources(view, gpus_tell));
        self.since.retain(|subject, _| unseen.iter().any(|(finding, _)| finding.subject == *subject));
        for (finding, is_sure) in unseen {
            let first = Since { state: finding.state, at, unix };
            let since = self.since.entry(finding.subject.clone()).or_insert(first);
            if since.state != finding.state {
                *since = first;
            }
            if is_sure || at - since.at >= REPORTED_AFTER {
                out.findings.push(Finding { since_unix_seconds: since.unix, ..finding });
            }
        }
    }
}

fn gpus(view: &View<'_>) -> Vec<Unseen> {
    use crate::sources::gpu::metrics::{HUNG_CALL, SAMPLE_AGE, STATUS};
    let mut found = Vec::new();
    for point in view.points(&STATUS).iter().filter(|point| point.value > 0.0) {
        let [gpu, uuid, status] = &*point.labels else { continue };
        let (state, why, sure) = match status.as_str() {
            "ok" => continue,
            "hung" => ("hung", "a driver call for it does not return", true),
            "lost" => ("lost", "it fell off the bus, requires a reset, or is not listed by the driver", true),
            "unobserved" => ("unobserved", "no process of memwarden receives data for it", false),
            _ => ("unknown_error", "the driver returns an error", true),
        };
        let calls = view.points(&HUNG_CALL);
        let call = calls.iter().find(|call| call.labels[1] == *uuid && call.labels[0] == *gpu);
        let call = call.map_or_else(String::new, |call| format!(" ({})", call.labels[2]));
        let summary =
            format!("GPU {gpu} does not respond: {why}{call}. Its memory, processes and errors are unknown.");
        let age = view.value(&SAMPLE_AGE, &[gpu.clone(), uuid.clone()]);
        let subject = Subject::gpu(gpu, uuid);
        let advice =
            "Check the kernel log for XID errors; drain the node, then reset the GPU or reboot the node.";
        found.push((finding(subject, (state, Severity::Critical), age, summary, advice), sure));
    }
    found
}

/// The sources that fail; without the `gpu` source if GPUs are reported.
fn sources(view: &View<'_>, gpus_tell: bool) -> impl Iterator<Item = Unseen> {
    let failed = view
        .sources()
        .iter()
        .filter(move |report| report.status == Status::Failed && !(gpus_tell && report.source == GPU_SOURCE));
    failed.map(|report| {
        let why = report.why.as_deref().unwrap_or("no reason given");
        let summary = format!("The source {} fails ({why}); what it measures is unknown.", report.source);
        let advice =
            "Check the log of memwarden; findings do not take into account what this source measures.";
        let (subject, level) = (Subject::source(report.source), ("failed", Severity::Warning));
        (finding(subject, level, report.age_seconds, summary, advice), false)
    })
}

/// A finding without the time since when it holds.
fn finding(
    subject: Subject,
    (state, severity): (&'static str, Severity),
    age: Option<f64>,
    summary: String,
    advice: &'static str,
) -> Finding {
    let evidence = age.map(|value| Evidence { what: "sample_age_seconds", value }).into_iter().collect();
    let (analyzer, since_unix_seconds) = (REGISTRATION.name, 0.0);
    Finding { analyzer, subject, state, severity, since_unix_seconds, summary, evidence, advice }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::frame::SourceReport;

    fn report(source: &'static str, status: Status) -> SourceReport {
        SourceReport { source, status, why: Some("permission".to_owned()), age_seconds: Some(3.0) }
    }

    fn findings(analyzer: &mut Visibility, view: View<'_>, second: u64) -> Vec<Finding> {
        let mut out = Analysis::default();
        analyzer.analyze(&view, Timestamp::from_secs(second), &mut out);
        out.findings
    }

    #[test]
    fn a_source_that_keeps_failing_is_stated_and_one_that_is_absent_is_not() {
        let mut analyzer = Visibility::default();
        let failing = [report("memory", Status::Failed), report("pressure", Status::Unavailable)];
        let view = View::new(&[]).with_sources(&failing);
        assert!(findings(&mut analyzer, view, 5).is_empty(), "one failure may pass");
        let stated = findings(&mut analyzer, view, 15);
        assert_eq!(stated.len(), 1);
        assert_eq!((stated[0].state, stated[0].severity), ("failed", Severity::Warning));
        assert_eq!(stated[0].subject.to_string(), "source memory");
        assert!(findings(&mut analyzer, View::new(&[]), 16).is_empty());
        assert!(findings(&mut analyzer, view, 17).is_empty(), "it begins anew");
    }

    #[test]
    fn a_gpu_that_does_not_answer_is_critical_and_stated_instead_of_its_source() {
        use crate::model::point::Batch;
        use crate::model::units::Flag;
        use crate::sources::gpu::metrics::{HUNG_CALL, STATUS};

        let mut analyzer = Visibility::default();
        let sources = [report("gpu", Status::Failed)];
        let mut findings = |second, states: [&'static str; 2]| {
            let mut batch = Batch::new();
            for (gpu, state) in states.into_iter().enumerate() {
                let labels = [gpu.to_string().into(), format!("GPU-{gpu}").into(), state.into()];
                batch.put(&STATUS, &labels, Flag(true));
                if state == "hung" {
                    let [gpu, uuid, _] = labels;
                    batch.put(&HUNG_CALL, &[gpu, uuid, "nvmlDeviceGetName".into()], Flag(true));
                }
            }
            let view = View::new(batch.families()).with_sources(&sources);
            let stated = findings(&mut analyzer, view, second);
            let named = |f: &Finding| f.summary.contains("does not return (nvmlDeviceGetName).");
            assert!(stated.iter().all(|f| named(f) == (f.state == "hung")), "{stated:?}");
            stated.iter().map(|f| format!("{} {} {:?}", f.subject, f.state, f.severity)).collect::<Vec<_>>()
        };
        assert_eq!(findings(5, ["ok", "hung"]), ["gpu 1 hung Critical"]);
        assert_eq!(
            findings(30, ["ok", "hung"]),
            ["gpu 1 hung Critical"],
            "its source is not stated beside it"
        );
        assert_eq!(findings(31, ["unobserved", "lost"]), ["gpu 1 lost Critical"]);
        assert_eq!(findings(42, ["unobserved", "ok"]), ["gpu 0 unobserved Critical"]);
    }
}
