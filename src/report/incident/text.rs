//! The report of an incident: Markdown for a ticket.

use std::fmt::Write as _;

use crate::model::facts::{OomVictim, RESIDENT_KINDS};
use crate::model::format::{self, bytes};
use crate::model::printable;
use crate::model::units::Bytes;
use crate::node_view::ends::{remarks, sentence};
use crate::plot::{TimeAxis, duration, moment};
use crate::protection::types::audit::{Quantity, Reading};
use crate::protection::types::incident::{Incident, StepRecord};
use crate::protection::types::reason::{Reason, Resource};
use crate::protection::types::step::Work;

/// Maximum number of processes in the report; all of them are in `incident.json`.
const NAMED: usize = 50;

/// The report, as Markdown.
pub fn report(incident: &Incident) -> String {
    let mut out = String::new();
    // Writing to a text cannot fail.
    let _ = write_report(&mut out, incident);
    out
}

fn write_report(out: &mut String, incident: &Incident) -> std::fmt::Result {
    writeln!(out, "# Incident {}\n\n{}\n", incident.id, plain(&incident.summary))?;
    writeln!(out, "| | |\n|---|---|")?;
    let time = |seconds: f64| format!("{} UTC", moment(TimeAxis::Utc, seconds));
    let ended = incident.ended_unix_seconds.map_or_else(|| "in progress".to_owned(), time);
    let steps = match incident.steps.len() {
        0 => String::new(),
        steps => format!("{steps} ({} failed)", failures(incident)),
    };
    let known = incident.circumstances.words();
    let known = known.iter().map(|(name, text)| (*name, text.as_str()));
    let head = [
        ("host", incident.host.as_str()),
        ("target", &incident.target),
        ("cause", incident.cause.label()),
        ("mode", &incident.mode),
        ("began", &time(incident.began_unix_seconds)),
        ("ended", &ended),
        ("steps", &steps),
    ];
    let tail = [
        ("policy", incident.policy.as_str()),
        ("hash of the configuration", &incident.config),
        ("memwarden", &incident.version),
    ];
    for (name, value) in head.into_iter().chain(known).chain(tail) {
        if !value.is_empty() {
            writeln!(out, "| {name} | {} |", plain(value))?;
        }
    }
    if incident.lost_lines > 0 {
        writeln!(out, "\n{} lines of the audit log were lost.", incident.lost_lines)?;
    }
    timeline(out, incident)?;
    processes(out, incident)?;
    let facts = facts(incident);
    if !facts.is_empty() {
        writeln!(out, "\n## Further facts\n")?;
        for (name, value) in facts {
            writeln!(out, "- {name}: {}", plain(&value))?;
        }
    }
    writeln!(
        out,
        "\nFiles of this incident: `incident.json` (all values), `memory-*.csv` (memory over the last minutes), \
         `processes.csv` (all processes at the beginning), `audit.jsonl` (lines of the audit log)."
    )
}

fn facts(incident: &Incident) -> Vec<(&'static str, String)> {
    let mut facts = Vec::new();
    if let Some(end) = &incident.end {
        facts.push(("end", sentence(end)));
        facts.extend(remarks(end).into_iter().map(|remark| ("remark", remark)));
    }
    if incident.kills > 0 {
        facts.push(("kills", incident.kills.to_string()));
    }
    for (name, victim) in [("victim", &incident.victim), ("last victim", &incident.last_victim)] {
        facts.extend(victim.iter().map(|victim| (name, of_victim(victim))));
    }
    facts.extend(
        incident
            .findings
            .iter()
            .map(|known| ("finding", format!("{} of {}: {}", known.analyzer, known.subject, known.summary))),
    );
    facts.extend(incident.interrupted.iter().map(|why| ("interrupted", why.clone())));
    facts
}

fn of_victim(victim: &OomVictim) -> String {
    let number = |number: Option<u32>| number.map(|number| number.to_string()).unwrap_or_default();
    let resident = RESIDENT_KINDS.into_iter().zip(victim.resident);
    let resident = resident.filter_map(|(kind, bytes)| Some(format!("{kind} {}", bytes?)));
    let resident: Vec<_> = resident.collect();
    let all = [
        ("name", victim.comm.to_string()),
        ("pid", number(victim.pid)),
        ("user", number(victim.uid)),
        ("workload", victim.workload.to_string()),
        ("cgroup", victim.cgroup.to_string()),
        ("memory", victim.scope.to_string()),
        ("cgroup of the limit", victim.limit_cgroup.to_string()),
        ("resident", resident.join(" + ")),
    ];
    let known = all.into_iter().filter(|(_, text)| !text.is_empty());
    known.map(|(name, text)| format!("{name} {text}")).collect::<Vec<_>>().join(", ")
}

fn failures(incident: &Incident) -> usize {
    incident.steps.iter().filter(|step| step.has_failed()).count()
}

fn timeline(out: &mut String, incident: &Incident) -> std::fmt::Result {
    let mut rows: Vec<(f64, String)> = Vec::new();
    for step in &incident.moves {
        let is_supposed = incident.mode == "observe" && step.reason == Reason::Killed;
        let why = if is_supposed {
            "the kill would have been carried out".to_owned()
        } else {
            step.reason.to_string()
        };
        let mut text = format!("**{}** → **{}**: {why}", step.from, step.to);
        for output in step.readings.iter().filter_map(rested_on) {
            text.push_str(&format!("; {output}"));
        }
        rows.push((step.unix_seconds, text));
    }
    rows.extend(incident.steps.iter().map(|step| (step.unix_seconds, describe(step))));
    if rows.is_empty() {
        return Ok(());
    }
    rows.sort_by(|one, next| one.0.total_cmp(&next.0));
    writeln!(out, "\n## Timeline\n\n| after | |\n|---|---|")?;
    for (at, text) in rows {
        writeln!(out, "| {} | {text} |", duration((at - incident.began_unix_seconds).max(0.0)))?;
    }
    Ok(())
}

/// A reading of a transition as text; absent where it has no information.
fn rested_on(reading: &Reading) -> Option<String> {
    /// Age in seconds from which it is shown.
    const OLD: f64 = 1.0;
    let level = |word: &str, show: fn(f64) -> String| {
        reading.threshold.map_or_else(String::new, |threshold| format!(" ({word} {})", show(threshold)))
    };
    let mut text = match (reading.what, reading.value) {
        (Quantity::HeadroomBytes(resource), value) => {
            let place = match resource {
                Resource::Host => "on the host",
                Resource::Cgroup => "below its limit",
                Resource::Gpu => "on the GPU",
                Resource::Allocator => "for the allocator",
                Resource::Nodes => "on its NUMA nodes",
                Resource::High => "below memory.high",
            };
            match value {
                None => format!("memory left {place} is unknown"),
                Some(left) => format!("{} left {place}{}", bytes(left), level("level", bytes)),
            }
        }
        (Quantity::TimeToExhaustionSeconds, time) => {
            format!("exhaustion predicted in {}{}", duration(time?), level("soft_within", duration))
        }
    };
    if let Some(age) = reading.age_seconds.filter(|age| *age >= OLD) {
        text.push_str(&format!(", {} old", duration(age)));
    }
    Some(text)
}

/// The name of a step in the report.
fn named(work: &Work) -> String {
    match work {
        Work::Signal { signal, process, .. } => {
            format!("{} to pid {}", format::signal(u64::from(signal.get())), process.pid)
        }
        Work::Await { .. } => "wait for the checkpoint acknowledgement".to_owned(),
        Work::AskRun(query) => format!(
            "ask the other nodes of run {} for a checkpoint, as incident {}",
            query.run, query.request.incident
        ),
        Work::RunRequested { request } => {
            format!("asked by {}: {}, as incident {}", request.from, request.reason, request.incident)
        }
        Work::AwaitEnd { .. } => "wait for the processes to end".to_owned(),
        Work::Record => work.to_string(),
        Work::Hook { hook, .. } => format!("hook {}", hook.program.display()),
        Work::KillGroup { group }
        | Work::Raise { group, .. }
        | Work::Freeze { group }
        | Work::Thaw { group } => {
            format!("{} {}", work.label().replace('_', " "), group.path)
        }
        _ => work.label().replace('_', " "),
    }
}

/// A step as text.
fn describe(step: &StepRecord) -> String {
    let work = &step.step.work;
    let mut text = format!("{}: {}", step.step.stage, plain(&named(work)));
    let outcome = match &step.end {
        None => "its end is not recorded".to_owned(),
        Some(end) => end.outcome.map_or_else(|| "failed".to_owned(), |outcome| outcome.to_string()),
    };
    text.push_str(&format!(" → {outcome}"));
    if let Some(error) = step.end.as_ref().and_then(|end| end.error.as_ref()) {
        text.push_str(&format!(": {}", plain(&error.to_string())));
    }
    let processes = step.end.as_ref().and_then(|end| end.processes);
    match processes.filter(|_| !matches!(work, Work::Signal { .. })) {
        Some(1) => text.push_str(", 1 process"),
        Some(processes) if processes > 1 => text.push_str(&format!(", {processes} processes")),
        _ => {}
    }
    if let Some(took) = step.took_us {
        text.push_str(&format!(", {took} µs"));
    }
    if let Some(after) = step.ended_after_seconds {
        text.push_str(&format!(", ended after {}", duration(after)));
    }
    if !step.output.trim().is_empty() {
        let most = if matches!(work, Work::AskRun(_)) { 3000 } else { 200 };
        let output: String = step.output.trim().chars().take(most).collect();
        text.push_str(&format!("; output: {}", plain(&output)));
    }
    text
}

fn processes(out: &mut String, incident: &Incident) -> std::fmt::Result {
    let all = incident.processes();
    if all.is_empty() {
        return Ok(());
    }
    writeln!(
        out,
        "\n## Affected processes\n\n| pid | name | user | resident | steps |\n|---|---|---|---|---|"
    )?;
    for (process, steps) in all.iter().take(NAMED) {
        let (pid, name) = (process.key.pid, plain(&process.name()));
        let resident = Bytes::new(process.resident);
        let steps: Vec<String> = steps.iter().map(u64::to_string).collect();
        writeln!(out, "| {pid} | {name} | {} | {resident} | {} |", process.uid, steps.join(", "))?;
    }
    if all.len() > NAMED {
        writeln!(out, "\nand {} more.", all.len() - NAMED)?;
    }
    Ok(())
}

/// Escapes text of a process, a hook or a configuration for Markdown.
fn plain(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '|' | '`' | '*' | '<' | '[' | '#' | '\\' => {
                out.push('\\');
                out.push(c);
            }
            c if c.is_control() => out.push(' '),
            c if printable::is_hidden(c) => out.push_str(&printable::escaped(c.encode_utf8(&mut [0; 4]))),
            c => out.push(c),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::ids::ProcessKey;
    use crate::protection::types::audit::{Failure, StepEnd, StepResult};
    use crate::protection::types::incident::Move;
    use crate::protection::types::rung::State;
    use crate::protection::types::step::{Group, Hook, Outcome, SignalNumber, Skip, Step, TargetId, Touched};

    fn incident() -> Incident {
        let reading = |what, value, threshold, age_seconds| Reading {
            what,
            value,
            threshold,
            age_seconds: Some(age_seconds),
        };
        let end = |outcome: Option<Outcome>, processes, error: Option<&str>| {
            Some(StepEnd {
                result: if error.is_some() { StepResult::Failed } else { StepResult::Ok },
                outcome,
                processes,
                errno: None,
                error: error.map(|error| Failure::Read(error.to_owned())),
            })
        };
        let begun = |number, at, stage, work| {
            StepRecord::new(number, 1_767_225_600.0 + at, Step { target: TargetId(1), stage, work })
        };
        let key = ProcessKey { pid: 7, start: 1 };
        let mut comm = [0; 16];
        comm[..8].copy_from_slice(b"py|thon*");
        let hook =
            Hook { program: "/etc/h.sh".into(), arguments: Vec::new(), timeout: std::time::Duration::ZERO };
        let signal = Work::Signal { process: key, signal: SignalNumber::TERM, only_if_caught: false };
        let group = Group { path: "/a".into(), inode: 1 };
        let not_caught = Outcome::Skipped(Skip::NotCaught);
        Incident {
            id: "20260101T000000.000Z-job".to_owned(),
            host: "node01".to_owned(),
            target: "job".to_owned(),
            mode: "enforce".to_owned(),
            summary: "Memory ran low: the job was asked to save, and ended.".to_owned(),
            began_unix_seconds: 1_767_225_600.0,
            ended_unix_seconds: Some(1_767_225_660.0),
            moves: vec![Move {
                unix_seconds: 1_767_225_600.0,
                from: State::Warn,
                to: State::Soft,
                reason: Reason::Near(Resource::Cgroup),
                readings: vec![
                    reading(
                        Quantity::HeadroomBytes(Resource::Cgroup),
                        Some(1_048_576.0),
                        Some(2_097_152.0),
                        0.01,
                    ),
                    reading(Quantity::HeadroomBytes(Resource::Host), None, None, 5.0),
                    reading(Quantity::TimeToExhaustionSeconds, None, Some(10.0), 0.1),
                    reading(Quantity::TimeToExhaustionSeconds, Some(7.5), Some(10.0), 3.0),
                ],
            }],
            steps: vec![
                StepRecord {
                    end: end(Some(Outcome::Done), Some(1), None),
                    took_us: Some(41),
                    reached: vec![Touched { key, uid: 1000, comm, resident: 3_221_225_472, errno: 0 }],
                    ..begun(2, 2.5, State::Term, signal)
                },
                StepRecord {
                    end: end(None, None, Some("the hook exited with code 3")),
                    ended_after_seconds: Some(0.5),
                    output: "<script>\n".to_owned(),
                    ..begun(1, 1.0, State::Soft, Work::Hook { hook: hook.into(), input: "".into() })
                },
                StepRecord {
                    end: end(Some(not_caught), None, None),
                    ..begun(3, 3.0, State::Kill, Work::KillGroup { group })
                },
            ],
            ..Incident::default()
        }
    }

    #[test]
    fn the_report_is_in_order_of_time() {
        expect_test::expect![[r#"
            # Incident 20260101T000000.000Z-job

            Memory ran low: the job was asked to save, and ended.

            | | |
            |---|---|
            | host | node01 |
            | target | job |
            | cause | policy |
            | mode | enforce |
            | began | 2026-01-01 00:00:00 UTC |
            | ended | 2026-01-01 00:01:00 UTC |
            | steps | 3 (1 failed) |

            ## Timeline

            | after | |
            |---|---|
            | 0 s | **warn** → **soft**: cgroup memory is near its soft level; 1.0 MiB left below its limit (level 2.0 MiB); memory left on the host is unknown, 5 s old; exhaustion predicted in 7.5 s (soft_within 10 s), 3 s old |
            | 1 s | soft: hook /etc/h.sh → failed: the hook exited with code 3, ended after 500 ms; output: \<script> |
            | 2.5 s | term: SIGTERM to pid 7 → done, 41 µs |
            | 3 s | kill: kill group /a → skipped: no handler for the signal |

            ## Affected processes

            | pid | name | user | resident | steps |
            |---|---|---|---|---|
            | 7 | py\|thon\* | 1000 | 3.0 GiB | 2 |

            Files of this incident: `incident.json` (all values), `memory-*.csv` (memory over the last minutes), `processes.csv` (all processes at the beginning), `audit.jsonl` (lines of the audit log).
        "#]]
        .assert_eq(&report(&incident()));
    }

    #[test]
    fn what_the_kernel_or_another_program_killed_is_described() {
        let victim = OomVictim {
            pid: Some(7),
            comm: "a|b".into(),
            resident: [Some(Bytes::new(1 << 30)), None, None],
            ..OomVictim::default()
        };
        let end = crate::model::ends::End { comm: "sh".into(), pid: 7, ..Default::default() };
        let (victim, end) = (Some(victim), Some(Box::new(end)));
        let text = report(&Incident { victim, end, kills: 2, ..incident() });
        for line in [
            "- end: sh (pid 7) ended; why is not known.",
            "- kills: 2",
            "- victim: name a\\|b, pid 7, memory host, resident anon 1.0 GiB",
        ] {
            assert!(text.contains(line), "{line}: {text}");
        }
    }
}
