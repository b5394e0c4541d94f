//! The report of an incident: Markdown for a ticket, and one line for a list.

use std::fmt::Write as _;

use serde_json::Value;

use crate::model::format;
use crate::model::printable;
use crate::model::units::Bytes;
use crate::plot::{TimeAxis, duration, moment};
use crate::protection::policy::Reason;
use crate::protection::types::incident::{Incident, StepRecord};

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
    if !incident.facts.is_empty() {
        writeln!(out, "\n## Further facts\n")?;
        for (name, value) in &incident.facts {
            writeln!(out, "- {}: {}", plain(&name.replace('_', " ")), reading(name, value))?;
        }
    }
    writeln!(
        out,
        "\nFiles of this incident: `incident.json` (all values), `memory-*.csv` (memory over the last minutes), `memory.svg` \
         (their chart), `processes.csv` (all processes at the beginning), `audit.jsonl` (lines of the audit log)."
    )
}

fn failures(incident: &Incident) -> usize {
    incident.steps.iter().filter(|step| step.result.as_deref() == Some("failed")).count()
}

fn timeline(out: &mut String, incident: &Incident) -> std::fmt::Result {
    let mut rows: Vec<(f64, String)> = Vec::new();
    for step in &incident.moves {
        let is_supposed = incident.mode == "observe" && step.reason == Reason::Killed.label();
        let why = if is_supposed { "the kill would have been carried out" } else { &step.why };
        let mut text = format!("**{}** → **{}**: {}", step.from, step.to, plain(why));
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
fn rested_on(value: &Value) -> Option<String> {
    /// Age in seconds from which it is shown.
    const OLD: f64 = 1.0;
    let what = value["what"].as_str().unwrap_or_default();
    let (shown, threshold) = (reading(what, &value["value"]), &value["threshold"]);
    let level = |word: &str| match threshold.is_null() {
        true => String::new(),
        false => format!(" ({word} {})", reading(what, threshold)),
    };
    let place = match what.strip_suffix("_headroom_bytes") {
        Some("host") => Some("on the host"),
        Some("limit") => Some("below its limit"),
        Some("gpu") => Some("on the GPU"),
        Some("allocator") => Some("for the allocator"),
        _ => None,
    };
    let mut text = match (place, what, value["value"].is_null()) {
        (Some(place), _, true) => format!("memory left {place} is unknown"),
        (Some(place), _, false) => format!("{shown} left {place}{}", level("level")),
        (None, "time_to_exhaustion_seconds", true) => return None,
        (None, "time_to_exhaustion_seconds", false) => {
            format!("exhaustion predicted in {shown}{}", level("soft_within"))
        }
        (None, _, _) => format!("{} {shown}{}", plain(what), level("threshold")),
    };
    if let Some(age) = value["age_seconds"].as_f64().filter(|age| *age >= OLD) {
        text.push_str(&format!(", {} old", duration(age)));
    }
    Some(text)
}

/// The name of a step of the audit log in the report.
fn named(step: &Value) -> String {
    match (step["do"].as_str(), step["signal"].as_u64()) {
        (_, Some(number)) => format!("{} to pid {}", format::signal(number), step["process"]["pid"]),
        (Some("record"), _) => "write the incident record".to_owned(),
        (Some("await"), _) => "wait for the checkpoint acknowledgement".to_owned(),
        (Some("ask_run"), _) => {
            let (run, id) = (texts(&step["run"]), texts(&step["request"]["incident"]));
            format!("ask the other nodes of run {run} for a checkpoint, as incident {id}")
        }
        (Some("run_requested"), _) => {
            let request = &step["request"];
            let (from, reason) = (texts(&request["from"]), texts(&request["reason"]));
            format!("asked by {from}: {reason}, as incident {}", texts(&request["incident"]))
        }
        (Some("await_end"), _) => "wait for the processes to end".to_owned(),
        (other, _) => other.unwrap_or("?").replace('_', " "),
    }
}

/// A text of the audit log.
fn texts(value: &Value) -> String {
    plain(value.as_str().unwrap_or("?"))
}

/// A step as text.
fn describe(step: &StepRecord) -> String {
    let mut text = format!("{}: {}", step.step["stage"].as_str().unwrap_or("?"), named(&step.step));
    for key in ["group", "hook"] {
        let named = step.step[key]["path"].as_str().or_else(|| step.step[key]["program"].as_str());
        if let Some(named) = named {
            text.push_str(&format!(" {}", plain(named)));
        }
    }
    let outcome = match (&step.outcome, step.result.as_deref()) {
        (_, None) => "its end is not recorded".to_owned(),
        (Value::String(outcome), _) => outcome.replace('_', " "),
        (Value::Object(outcome), _) => {
            outcome.iter().next().map_or_else(String::new, |(key, value)| match value.as_str() {
                Some(why) => format!("{key}: {why}").replace('_', " "),
                None => key.clone(),
            })
        }
        _ => "failed".to_owned(),
    };
    text.push_str(&format!(" → {outcome}"));
    if let Some(error) = &step.error {
        text.push_str(&format!(": {}", plain(error)));
    }
    match step.processes.filter(|_| step.step["signal"].is_null()) {
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
        let output: String =
            step.output.trim().chars().take(if step.step["do"] == "ask_run" { 3000 } else { 200 }).collect();
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
        let name = plain(process["comm"].as_str().unwrap_or_default());
        let resident =
            process["resident_bytes"].as_u64().map_or_else(String::new, |it| Bytes::new(it).to_string());
        let steps: Vec<String> = steps.iter().map(u64::to_string).collect();
        writeln!(
            out,
            "| {} | {name} | {} | {resident} | {} |",
            process["pid"],
            process["uid"],
            steps.join(", ")
        )?;
    }
    if all.len() > NAMED {
        writeln!(out, "\nand {} more.", all.len() - NAMED)?;
    }
    Ok(())
}

/// A value, formatted by the unit in its name.
fn reading(name: &str, value: &Value) -> String {
    let Some(number) = value.as_f64() else {
        return value.as_str().map_or_else(|| plain(&value.to_string()), plain);
    };
    if name.ends_with("_bytes") && (0.0..1e18).contains(&number) {
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "within bounds, and for people"
        )]
        let bytes = number as u64;
        return Bytes::new(bytes).to_string();
    }
    if name.ends_with("_seconds") { duration(number) } else { number.to_string() }
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
    use crate::protection::types::incident::Move;
    use serde_json::json;

    fn incident() -> Incident {
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
                from: "warn".to_owned(),
                to: "soft".to_owned(),
                reason: "near_soft_level".to_owned(),
                why: "headroom is low".to_owned(),
                readings: vec![
                    json!({"what": "limit_headroom_bytes", "value": 1048576.0, "threshold": 2097152.0, "age_seconds": 0.01}),
                    json!({"what": "host_headroom_bytes", "value": null, "threshold": null, "age_seconds": 5.0}),
                    json!({"what": "time_to_exhaustion_seconds", "value": null, "threshold": 10.0, "age_seconds": 0.1}),
                    json!({"what": "time_to_exhaustion_seconds", "value": 7.5, "threshold": 10.0, "age_seconds": 3.0}),
                ],
            }],
            steps: vec![
                StepRecord {
                    number: 2,
                    unix_seconds: 1_767_225_602.5,
                    step: json!({"do": "signal", "stage": "term", "signal": 15, "process": {"pid": 7}}),
                    result: Some("ok".to_owned()),
                    outcome: json!("done"),
                    took_us: Some(41),
                    processes: Some(1),
                    reached: vec![
                        json!({"pid": 7, "start": 1, "uid": 1000, "comm": "py|thon\n*", "resident_bytes": 3_221_225_472_u64}),
                    ],
                    ..StepRecord::default()
                },
                StepRecord {
                    number: 1,
                    unix_seconds: 1_767_225_601.0,
                    step: json!({"do": "hook", "stage": "soft", "hook": {"program": "/etc/h.sh"}}),
                    result: Some("failed".to_owned()),
                    error: Some("the hook exited with code 3".to_owned()),
                    ended_after_seconds: Some(0.5),
                    output: "<script>\n".to_owned(),
                    ..StepRecord::default()
                },
                StepRecord {
                    number: 3,
                    unix_seconds: 1_767_225_603.0,
                    step: json!({"do": "kill_group", "stage": "kill", "group": {"path": "/a"}}),
                    result: Some("ok".to_owned()),
                    outcome: json!({"skipped": "not_caught"}),
                    ..StepRecord::default()
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
            | 0 s | **warn** → **soft**: headroom is low; 1.0 MiB left below its limit (level 2.0 MiB); memory left on the host is unknown, 5 s old; exhaustion predicted in 7.5 s (soft_within 10 s), 3 s old |
            | 1 s | soft: hook /etc/h.sh → failed: the hook exited with code 3, ended after 500 ms; output: \<script> |
            | 2.5 s | term: SIGTERM to pid 7 → done, 41 µs |
            | 3 s | kill: kill group /a → skipped: not caught |

            ## Affected processes

            | pid | name | user | resident | steps |
            |---|---|---|---|---|
            | 7 | py\|thon \* | 1000 | 3.0 GiB | 2 |

            Files of this incident: `incident.json` (all values), `memory-*.csv` (memory over the last minutes), `memory.svg` (their chart), `processes.csv` (all processes at the beginning), `audit.jsonl` (lines of the audit log).
        "#]]
        .assert_eq(&report(&incident()));
    }

    proptest::proptest! {
        #[test]
        fn no_record_panics(step in "[{}\\[\\]a-z\":0-9,]{0,60}", text in ".{0,60}", number: f64) {
            let mut incident = incident();
            incident.steps[0].step = serde_json::from_str(&step).unwrap_or(Value::Null);
            incident.steps[0].outcome = incident.steps[0].step.clone();
            incident.steps[0].output = text.clone();
            incident.moves[0].readings = vec![json!({"what": text, "value": number})];
            incident.began_unix_seconds = number;
            incident.facts.insert(text, json!(number));
            let _ = report(&incident);
        }
    }
}
