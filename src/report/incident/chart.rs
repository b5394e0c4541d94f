//! The chart of an incident.

use crate::model::format;
use crate::plot::Chart;
use crate::plot::report::{Clock, Mark, Report, Series};
use crate::protection::types::incident::{Incident, Move};
use crate::protection::types::rung::State;
use crate::protection::types::step::Work;

/// Maximum number of steps that the mark of a transition names.
const MOST_STEPS: usize = 3;

/// A transition with the steps that were taken in the state after it, each once.
fn mark(incident: &Incident, at: &Move) -> String {
    let until = incident
        .moves
        .iter()
        .map(|step| step.unix_seconds)
        .filter(|next| *next > at.unix_seconds)
        .fold(f64::INFINITY, f64::min);
    let mut steps: Vec<String> = Vec::new();
    for step in &incident.steps {
        let silent = matches!(step.step.work, Work::Record | Work::Await { .. } | Work::AwaitEnd { .. });
        if silent || !(at.unix_seconds..until).contains(&step.unix_seconds) {
            continue;
        }
        let failed = if step.has_failed() { " failed" } else { "" };
        let name = format!("{}{failed}", named(&step.step.work));
        if !steps.contains(&name) {
            steps.push(name);
        }
    }
    let more = steps.len().saturating_sub(MOST_STEPS);
    steps.truncate(MOST_STEPS);
    if more > 0 {
        steps.push(format!("{more} more"));
    }
    if steps.is_empty() { at.to.to_string() } else { format!("{}: {}", at.to, steps.join(", ")) }
}

/// A step in few words, without its process.
fn named(work: &Work) -> String {
    match work {
        Work::Signal { signal, .. } => format::signal(u64::from(signal.get())),
        work => work.label().replace('_', " "),
    }
}

/// The limits of the values of a table with the columns `t_s`, `bytes` and `limit`, and these values.
fn series(name: &str, table: &[u8]) -> Series {
    let mut rows = csv::Reader::from_reader(table);
    // A row that is cut, of a daemon that was killed, is left out.
    let rows = rows.deserialize::<(f64, Option<f64>, Option<f64>)>().filter_map(Result::ok);
    let rows: Vec<_> = rows.collect();
    Series {
        name: name.to_owned(),
        unit: "bytes".to_owned(),
        limit_bytes: rows.iter().filter_map(|(.., limit)| *limit).next_back(),
        points: rows.into_iter().map(|(at, used, _)| (at, used)).collect(),
    }
}

/// The chart of memory use, with the transitions and their steps marked; `tables` has the samples of each subject.
pub(super) fn chart(incident: &Incident, tables: &[(&str, Vec<u8>)]) -> Chart {
    let moves = incident.moves.iter().map(|step| Mark {
        t_s: step.unix_seconds,
        text: mark(incident, step),
        alarm: matches!(step.to, State::Term | State::Kill),
    });
    let struck = (incident.moves.is_empty() && incident.began_unix_seconds > 0.0).then(|| Mark {
        t_s: incident.began_unix_seconds,
        text: incident.cause.label().replace('_', " "),
        alarm: true,
    });
    let report = Report {
        schema: "memwarden.report/1".into(),
        title: format!("{}: {}", incident.host, incident.id),
        subtitle: incident.summary.clone(),
        time: Some(Clock::Utc),
        series: tables.iter().map(|(subject, table)| series(subject, table)).collect(),
        events: moves.chain(struck).collect(),
        ..Report::default()
    };
    report.chart()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::ids::ProcessKey;
    use crate::protection::types::audit::{StepEnd, StepResult};
    use crate::protection::types::incident::StepRecord;
    use crate::protection::types::step::{Group, Hook, SignalNumber, Step, TargetId};

    #[test]
    fn a_transition_is_marked_with_the_steps_taken_after_it() {
        let to = |at: f64, to| Move { unix_seconds: at, to, ..Move::default() };
        let step = |at: f64, work, result| StepRecord {
            end: Some(StepEnd { result, outcome: None, processes: None, errno: None, error: None }),
            ..StepRecord::new(1, at, Step { target: TargetId(1), stage: State::Term, work })
        };
        let signal = |pid| {
            let process = ProcessKey { pid, start: 1 };
            Work::Signal { process, signal: SignalNumber::TERM, only_if_caught: false }
        };
        let hook = Hook { program: "/h".into(), arguments: Vec::new(), timeout: std::time::Duration::ZERO };
        let hook = Work::Hook { hook: hook.into(), input: "".into() };
        let group = Work::KillGroup { group: Group { path: "/a".into(), inode: 1 } };
        let incident = Incident {
            moves: vec![to(10.0, State::Soft), to(20.0, State::Term), to(30.0, State::Kill)],
            steps: vec![
                step(20.0, Work::Record, StepResult::Ok),
                step(20.1, signal(7), StepResult::Ok),
                step(20.2, signal(8), StepResult::Ok),
                step(20.3, hook, StepResult::Failed),
                step(30.0, group, StepResult::Ok),
            ],
            ..Incident::default()
        };
        let marks: Vec<String> = incident.moves.iter().map(|step| mark(&incident, step)).collect();
        assert_eq!(marks, ["soft", "term: SIGTERM, hook failed", "kill: kill group"]);
    }

    #[test]
    fn each_subject_is_drawn_with_its_own_limit_and_its_gaps() {
        let table = |text: &str| format!("t_s,bytes,limit\n{text}").into_bytes();
        let gpu = table("1.000,70,80\n2.000,,80\n3.000,79,80\n4.0");
        let tables = [("train GPU", gpu), ("host", table("1.000,50,100\n"))];
        let chart = chart(&Incident::default(), &tables);
        let names: Vec<&str> = chart.panels.iter().map(|panel| panel.lines[0].name.as_str()).collect();
        assert_eq!(names, ["train GPU", "host"]);
        assert_eq!(chart.panels[0].lines[0].points, [(1.0, Some(70.0)), (2.0, None), (3.0, Some(79.0))]);
    }
}
