//! `run`: peak memory use of a command, and whether it leaked.

use serde_json::json;

use super::record::Kind;
use super::text;
use super::training::Training;
use super::{Body, Page, Recorder, ends, leak, profile};
use crate::model::ends::ABORTED;
use crate::model::finding::Subject;
use crate::model::format::{self, bytes, duration, elapsed};
use crate::model::health::Health;
use crate::model::outlook::LeakState;
use crate::node_view::table::Row;
use crate::plot::report::{Mark, Report, Series};

/// Maximum number of listed processes of the command.
const PROCESSES: usize = 5;

#[derive(Clone, Debug, Default)]
pub struct CommandEnd {
    pub command: String,
    pub workload: String,
    /// Its exit code; absent if a signal ended it.
    pub code: Option<i32>,
    /// The signal that ended it, by number.
    pub signal: Option<i32>,
    /// Whether the Python client was told to end a program whose memory will not fit.
    pub aborts: bool,
    /// From its start to its end, in seconds.
    pub seconds: f64,
    /// User and system CPU time of all of its processes, including those that ran only between two samples; absent
    /// where the kernel did not report it.
    pub cpu_seconds: Option<f64>,
}

impl CommandEnd {
    fn words(&self, training: &Training) -> String {
        match (self.code, self.signal, training.fails()) {
            // A program may have this exit status for another reason.
            (Some(ABORTED), _, Some(what)) if self.aborts => {
                let step = training.step().map(|step| format!(" before step {:.0}", step + 1.0));
                let step = step.unwrap_or_default();
                format!("ended itself{step}: {what} will not fit (exit status {ABORTED})")
            }
            (Some(0), ..) => "succeeded".to_owned(),
            (Some(code), ..) => format!("ended with code {code}"),
            (None, Some(signal), _) => {
                format!("was ended by {}", format::signal(u64::from(signal.unsigned_abs())))
            }
            (None, None, _) => "ended".to_owned(),
        }
    }
}

pub(super) fn body(ended: &CommandEnd, recorder: &Recorder, page: Page) -> Body {
    let mut out = format!(
        "  `{}` {} after {}",
        ended.command,
        ended.words(&recorder.training),
        duration(ended.seconds)
    );
    if let Some(cpu) = ended.cpu_seconds {
        out.push_str(&format!(", {} of CPU time", duration(cpu)));
    }
    out.push_str(&format!(", {}\n", format::counted(recorder.samples, "sample")));
    let name = ended.workload.as_str();
    let kinds = profile::kinds(recorder, name);
    let seen = !kinds.is_empty();
    if seen {
        let mut rows = Vec::new();
        for (kind, key) in profile::WORKLOAD {
            let found = kinds.get(key).filter(|found| found.max > 0.0 || key == "resident_bytes");
            rows.extend(found.map(|found| {
                Row::default()
                    .text("", 0, kind)
                    .bytes("peak", 0, Some(found.max))
                    .value("at", 1, Some(found.max_at_seconds), elapsed)
                    .bytes("mean", 2, Some(found.mean))
                    .bytes("last", 0, Some(found.current))
            }));
        }
        text::rows(&mut out, rows, page);
        told_processes(&mut out, recorder, name, page);
    } else {
        out.push_str("  It ended before its memory could be sampled.\n");
    }
    recorder.training.write_text(&mut out, page);
    let subject = Subject::workload(&name.into());
    let (level, verdict) = verdict(recorder, &subject, seen);
    let mut details = recorder.end.as_ref().map_or_else(String::new, |end| ends::explained(end, page));
    let own = recorder.end.as_ref().map(|end| end.number);
    let failures: Vec<_> =
        recorder.failures.iter().map(|end| &**end).filter(|end| Some(end.number) != own).collect();
    details.push_str(&ends::of_parts(&failures, ended.code == Some(0), page));
    let leaks = leak::ranked(recorder);
    for (subject, growth) in leaks.iter().filter(|(_, growth)| growth.known.grows()) {
        leak::explain(&mut details, subject, growth, recorder.last.unix_seconds, page);
    }
    leak::inside(&mut details, &leaks, recorder);
    let alarm = leaks.iter().any(|(_, growth)| growth.known.leaks());
    let json = json!({
        "command": ended.command,
        "workload": name,
        "end": ended.words(&recorder.training),
        "exit_code": ended.code,
        "signal": ended.signal,
        "duration_seconds": ended.seconds,
        "cpu_seconds": ended.cpu_seconds,
        "memory": kinds,
        "training": recorder.training.json(),
        "largest_processes": profile::largest(recorder),
        "verdict": verdict,
        "cause": recorder.end,
        "ends_of_processes": failures,
        "leaks": leak::rows(&leaks),
    });
    let plot = plot(ended, recorder, &subject, &verdict);
    Body { text: out, result: Some((level, verdict)), details, json, plot, alarm, found: seen }
}

fn told_processes(out: &mut String, recorder: &Recorder, name: &str, page: Page) {
    let count = recorder.statistics(Kind::Workload, name, "processes");
    let exited = recorder.statistics(Kind::Workload, name, "exited").map_or(0.0, |found| found.max);
    let one = ["process_peak_bytes", "exited_peak_bytes"]
        .into_iter()
        .filter_map(|metric| recorder.statistics(Kind::Workload, name, metric))
        .map(|found| found.max)
        .fold(0.0, f64::max);
    let most = count.map_or(1.0, |found| found.max);
    if most <= 1.0 && exited == 0.0 {
        return;
    }
    out.push_str(&format!(
        "  up to {most:.0} processes at once, {exited:.0} ended before the command; the largest had {} resident at its peak\n",
        bytes(one)
    ));
    let rows = profile::largest(recorder).into_iter().take(PROCESSES).map(|process| {
        let row = Row::default().text("", 0, format!("  {} {}", process.comm, process.pid));
        row.bytes("", 0, Some(process.peak)).value("", 1, Some(process.peak_at), elapsed)
    });
    text::rows(out, rows, page);
}

fn verdict(recorder: &Recorder, subject: &Subject, seen: bool) -> (Health, String) {
    let growth = recorder.subjects.growing.get(subject);
    // When a leaking process exits, the memory of the workload falls and its own state is no longer `leaking`.
    let own = |other: &Subject| {
        other.workload == subject.workload
            && matches!(other.resource.as_str(), "process" | "gpu_process" | "outside_allocator")
    };
    let mut ended =
        recorder.subjects.growing.iter().filter(|(other, growth)| own(other) && growth.seen < recorder.now);
    if growth.is_none_or(|growth| !growth.known.leaks()) && ended.any(|(_, growth)| growth.known.leaks()) {
        return (Health::Warning, "A leak was found: a process leaked until it ended.".to_owned());
    }
    let state = growth.map_or(LeakState::Insufficient, |growth| growth.state());
    let words = match state {
        LeakState::Leaking => "A leak was found.",
        LeakState::Growing => "Its memory grows, and the growth may still end; observe it for longer.",
        LeakState::Warming => {
            "No leak: its memory grows ever more slowly, as in a warm-up or a cache that fills."
        }
        LeakState::Steady => "No leak was found.",
        LeakState::Insufficient if seen => "No verdict on leaks: the run was too short.",
        LeakState::Insufficient => "No verdict on leaks.",
    };
    (state.into(), words.to_owned())
}

fn plot(ended: &CommandEnd, recorder: &Recorder, subject: &Subject, verdict: &str) -> Report {
    let series = profile::WORKLOAD.into_iter().filter_map(|(name, metric)| {
        let curve = recorder.curve(Kind::Workload, &ended.workload, metric)?;
        let peak = curve.peak()?.1;
        let points = curve.points();
        (peak > 0.0).then(|| Series {
            name: name.to_owned(),
            unit: "bytes".to_owned(),
            points,
            limit_bytes: None,
        })
    });
    let growth = recorder.subjects.growing.get(subject);
    let bands = growth.and_then(|growth| leak::stretch(subject, growth)).into_iter().collect();
    let end = Mark { t_s: recorder.now, text: ended.words(&recorder.training), alarm: ended.code != Some(0) };
    Report {
        title: format!("memwarden run: {}", ended.command),
        subtitle: format!("{} after {}. {verdict}", ended.words(&recorder.training), duration(ended.seconds)),
        series: series.collect(),
        bands,
        events: vec![end],
        ..Report::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::fit::{Certainty, Phase, Verdict};
    use crate::model::fits::Fit;
    use crate::node_view::{NodeView, Rank, Workload};
    use crate::report::focus::Focus;

    #[test]
    fn that_memory_did_not_fit_is_said_only_where_the_daemon_said_so() {
        let fit = |phase: Phase, verdict: Verdict| Fit {
            workload: "run".into(),
            rank: "0".into(),
            run: "".into(),
            pid: "7".into(),
            phase,
            resource: Subject::host(),
            certainty: Certainty::Exact,
            verdict,
            peak_bytes: None,
            capacity_bytes: None,
            exhaustion_probability: None,
            due_step: None,
            title: format!("the {phase}"),
            least: false,
            basis: "".into(),
            advice: String::new(),
            past: String::new(),
        };
        let mut training = Training::default();
        let mut sample = |fits: &[Fit], step: Option<f64>| {
            let rank = Rank { rank: "0".to_owned(), step, ..Rank::default() };
            let run = Workload { name: "run".to_owned(), ranks: vec![rank], ..Workload::default() };
            let view = NodeView { workloads: vec![run], fits: fits.to_vec(), ..NodeView::default() };
            training.take(&view, &Focus::default(), 1.0);
            let ended = CommandEnd { code: Some(ABORTED), aborts: true, ..CommandEnd::default() };
            ended.words(&training)
        };
        let (own, unknown) = ("ended with code 80", Verdict::Unknown);
        let fails = fit(Phase::Save, Verdict::WillNotFit);
        assert_eq!(sample(&[fit(Phase::Save, unknown)], None), own);
        assert_eq!(
            sample(std::slice::from_ref(&fails), None),
            "ended itself: the save will not fit (exit status 80)"
        );
        let told = "ended itself before step 5001: the save will not fit (exit status 80)";
        assert_eq!(sample(&[], Some(5_000.0)), told);
        assert_eq!(sample(&[fit(Phase::Step, Verdict::Fits), fit(Phase::Save, unknown)], None), told);
        for verdict in [Verdict::Fits, Verdict::Tight] {
            assert_eq!(sample(std::slice::from_ref(&fails), None), told);
            assert_eq!(sample(&[fit(Phase::Save, verdict)], None), own);
        }
    }
}
