//! The outcomes as a table and as a chart.

use super::runs::{Memory, NotPlayed, Run};
use super::{Args, Played, Suffices};
use crate::what_if::{Fate, Outcome};
use memwarden::model::format;
use memwarden::model::health::Health;
use memwarden::model::printable::escaped;
use memwarden::model::units::real;
use memwarden::node_view::table::{Cell, Row};
use memwarden::plot::report::clock;
use memwarden::plot::{Baseline, Chart, Event, Limit, Line, Panel, Unit};
use memwarden::report::text;

impl Args {
    pub(super) fn text(
        &self,
        runs: &[Run],
        played: &[Played<'_>],
        suffices: &[Suffices<'_>],
        not_played: &NotPlayed,
    ) -> String {
        let unwatched = self.unwatched(suffices, played);
        let has_steps = runs.iter().any(|run| run.steps.is_known());
        // What the policies do to a run stands together.
        let mut by_run: Vec<&Played<'_>> = played.iter().collect();
        by_run.sort_by(|one, other| {
            one.place.cmp(&other.place).then(one.limit_bytes.total_cmp(&other.limit_bytes))
        });
        let rows = by_run.into_iter().filter_map(|played| {
            let Outcome { fate, ended_seconds, lost_seconds, .. } = played.outcome;
            let health = match fate {
                Fate::Survived => Health::Ok,
                Fate::Undecided => Health::Unknown,
                Fate::Terminated | Fate::Killed => Health::Warning,
                Fate::OomKilled | Fate::OutOfGpuMemory => Health::Critical,
            };
            let mut row = Row::default()
                .text("run", 0, played.run)
                .number("limit", 0, format::bytes(played.limit_bytes))
                .text("policy", 0, unwatched.policies(played.watched, played.policy)?)
                .number("ended after", 1, Cell::number(lost_seconds.and(ended_seconds), format::duration))
                .number("lost", 0, Cell::number(lost_seconds, format::duration));
            if has_steps {
                let steps = Cell::number(played.lost_steps.map(real), format::whole);
                row = row.number("steps lost", 0, steps);
            }
            if self.gpus.is_some() {
                let hours = Cell::number(played.lost_gpu_hours, |hours| format!("{hours:.2}"));
                row = row.number("GPU hours", 0, hours);
            }
            Some(row.prose("outcome", Cell::text(outcome(&played.outcome)).of(health)))
        });
        let mut text = String::new();
        text::rows(&mut text, rows, self.output.page());
        for memory in Memory::ALL {
            let mut known = suffices.iter().filter(|known| known.memory == memory).peekable();
            let Some(first) = known.peek() else { continue };
            let count = format::counted(first.runs, "run");
            let heading = if memory == Memory::Gpu { format!("{count} on a GPU") } else { count };
            let limits = known.filter_map(|known| {
                let limit = Cell::number(known.limit_bytes, format::bytes);
                let policies = unwatched.policies(known.watched, known.policy)?;
                let row = Row::default().text("policy", 0, policies);
                Some(row.number("limit with which 99 % survive", 0, limit))
            });
            text.push_str(&format!("\n{heading}\n"));
            text::rows(&mut text, limits, self.output.page());
        }
        let ended_full = runs.iter().filter(|run| run.ended_full.is_some()).count();
        let ended_full = (ended_full > 0).then(|| {
            let count = format::counted(ended_full, "run");
            format!(
                "{count} really ended out of GPU memory: which limit would have sufficed was not recorded."
            )
        });
        for note in unwatched.note().into_iter().chain(ended_full).chain(not_played.notes()) {
            text.push_str(&format!("\n{}\n", escaped(&note)));
        }
        text
    }

    /// The policies that do not watch the memory of GPUs, where it is played.
    fn unwatched(&self, suffices: &[Suffices<'_>], played: &[Played<'_>]) -> Unwatched {
        let mut policies: Vec<String> = Vec::new();
        let known = suffices.iter().map(|known| (known.watched, known.policy));
        let known = known.chain(played.iter().map(|played| (played.watched, played.policy)));
        for (_, policy) in known.filter(|(watched, _)| !watched) {
            if !policies.iter().any(|known| known == policy) {
                policies.push(policy.to_owned());
            }
        }
        Unwatched(policies)
    }

    /// A panel for each run, with the events of all policies at the first limit of its memory.
    pub(super) fn chart(&self, runs: &[Run], played: &[Played<'_>]) -> Chart {
        let unwatched = self.unwatched(&[], played);
        let limit_of = |run: &Run| match Memory::of(run) {
            Memory::Host => self.limit[0],
            Memory::Gpu => self.gpu_limit[0],
        };
        let first = runs.iter().filter_map(|run| run.series.rows.first()).map(|row| row.at);
        let panel = |(place, run): (usize, &Run)| {
            let series = &run.series;
            let (begin, limit) = (series.rows.first().map_or(0.0, |row| row.at), limit_of(run));
            let here = played.iter().filter(|played| played.place == place && played.limit_bytes == limit);
            let events = here.flat_map(|played| {
                let Outcome { fate, ended_seconds, asked_seconds, saved_seconds, lost_seconds, .. } =
                    played.outcome;
                let policies = unwatched.policies(played.watched, played.policy);
                let event = |what: &str, at: f64, alarm| {
                    let text = format!("{}: {what}", policies.as_ref()?);
                    Some(Event { t_s: begin + at, text, alarm })
                };
                let asked = asked_seconds.and_then(|at| event("asked", at, false));
                let saved = saved_seconds.and_then(|at| event("saved", at, false));
                let ended = lost_seconds.and(ended_seconds).and_then(|at| event(fate.label(), at, true));
                [asked, saved, ended].into_iter().flatten()
            });
            let used = series.rows.iter().map(|row| (row.at, Some(row.unreclaimable.unwrap_or(row.used))));
            Panel {
                title: if runs.len() > 1 { series.name.clone() } else { String::new() },
                unit: Unit::Bytes,
                lines: vec![Line { name: "used".to_owned(), points: used.collect() }],
                limit: Some(Limit { value: limit, name: String::new() }),
                fan: None,
                bands: Vec::new(),
                events: events.collect(),
                baseline: Baseline::Zero,
            }
        };
        let mut limits: Vec<String> = Vec::new();
        for limit in runs.iter().map(|run| format::bytes(limit_of(run))) {
            if !limits.contains(&limit) {
                limits.push(limit);
            }
        }
        let limits = limits.join(" or ");
        Chart {
            title: match runs {
                [run] => format!("{} with a limit of {limits}", run.series.name),
                all => format!("{} runs with a limit of {limits}", all.len()),
            },
            subtitle: String::new(),
            time: clock(first.fold(f64::INFINITY, f64::min)),
            panels: runs.iter().enumerate().map(panel).collect(),
        }
    }
}

/// Policies that do not watch the memory of GPUs: their outcomes are the same, and are shown in one row.
struct Unwatched(Vec<String>);

impl Unwatched {
    /// The policies of a row; absent where the row is that of another one.
    fn policies(&self, watched: bool, policy: &str) -> Option<String> {
        match &*self.0 {
            _ if watched => Some(policy.to_owned()),
            [first, ..] if first == policy => Some(self.0.join(", ")),
            _ => None,
        }
    }

    fn note(&self) -> Option<String> {
        let (last, others) = self.0.split_last()?;
        let (whom, verb) = match others {
            [] => (last.clone(), "does"),
            _ => (format!("{} and {last}", others.join(", ")), "do"),
        };
        Some(format!(
            "{whom} {verb} not watch the memory of GPUs: a run that crosses the limit ends by a CUDA out-of-memory error. \
             memwarden watches it where a target has the levels `gpu` (memwarden:CONFIG)."
        ))
    }
}

fn outcome(outcome: &Outcome) -> String {
    let asked = outcome.asked_seconds.map(|at| format!("asked after {}", format::duration(at)));
    let saved = outcome.saved_seconds.map(|at| format!("saved after {}", format::duration(at)));
    let reason = outcome.unrecorded.map(|what| format!(": {}", what.label())).unwrap_or_default();
    let fate = format!("{}{reason}", outcome.fate.label());
    let parts: Vec<String> = asked.into_iter().chain(saved).chain([fate]).collect();
    parts.join(", ")
}
