//! `memwarden what-if`: what would have become of recorded runs with another limit, or under another policy.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::bail;
use serde::Serialize;

use super::output::{Format, Output};
use super::replay::input;
use super::{picture, replay};
use crate::app::guarded_engine;
use crate::app::serve;
use crate::model::format;
use crate::model::health::Health;
use crate::model::series::Series;
use crate::node_view::table::{Cell, Row, Table};
use crate::plot::report::clock;
use crate::plot::{Baseline, Chart, Event, Limit, Line, Panel, Unit};
use crate::report::text;
use crate::simulate::what_if::{Assumed, Fate, Outcome, Policy, for_99_percent, least_limit, play};

/// Grows when a key changes its meaning or disappears.
const SCHEMA_VERSION: u32 = 1;

/// Play recorded runs against memory limits and policies: who would have been asked for a checkpoint, terminated or killed, when,
/// and what would have been lost.
///
/// FILE is one that `memwarden replay` reads; each of its series is one run, which has the limit for itself unless --together
/// is given. The policy memwarden is the code of the daemon: --policy memwarden is that of `memwarden run --guard`,
/// memwarden:CONFIG that of the only target of a configuration file, as if its mode were `enforce`. The others act as documented, with
/// their defaults: the kernel kills at the limit, earlyoom(1) sends SIGTERM when 10 % is available and SIGKILL when 5 % is, the
/// memory monitor of Ray kills when more than 95 % is used. systemd-oomd decides by pressure and swap, which are not recorded,
/// so that its outcome is undecided. There is no swap, and SIGTERM ends a run at once. Exit codes: 0 success, 1 an error.
#[derive(Debug, clap::Args)]
#[command(after_long_help = "Examples:
  memwarden what-if run.csv --limit 16GiB
  memwarden what-if runs/*.csv --limit 64GiB,80GiB --policy kernel,earlyoom,memwarden --save 30s --gpus 8
  memwarden what-if run.csv --limit 64GiB --policy kernel,memwarden:/etc/memwarden/memwarden.yaml --plot what-if.svg")]
pub(super) struct Args {
    /// File with recorded series.
    #[arg(required = true, value_name = "FILE")]
    files: Vec<PathBuf>,
    /// Memory limits: 64GiB, or a number of bytes.
    #[arg(long, value_name = "SIZE", required = true, value_delimiter = ',', value_parser = replay::size)]
    limit: Vec<f64>,
    /// Policies: kernel, earlyoom, oomd, ray, memwarden or memwarden:CONFIG.
    #[arg(long, value_name = "POLICY", value_delimiter = ',', value_parser = policy,
        default_value = "kernel,earlyoom,oomd,ray,memwarden")]
    policy: Vec<Named>,
    /// All runs begin at the same time and share the limit, as the memory of one host.
    #[arg(long)]
    together: bool,
    /// Time that saving a checkpoint takes on request; without it, the runs do not handle the checkpoint signal.
    #[arg(long, value_name = "DURATION", value_parser = replay::duration)]
    save: Option<f64>,
    /// Time from one regular checkpoint to the next; without it, there are none.
    #[arg(long, value_name = "DURATION", value_parser = replay::duration)]
    checkpoint_every: Option<f64>,
    /// Number of GPUs of each run, for the GPU hours that are lost.
    #[arg(long, value_name = "N")]
    gpus: Option<u32>,
    #[command(flatten)]
    output: Output<Format>,
    /// Draw the runs with the first limit, and what becomes of them there, to this file: .svg or .png.
    #[arg(long, value_name = "PICTURE", value_parser = picture::drawable)]
    plot: Option<PathBuf>,
}

/// A policy as it was given.
#[derive(Clone, Debug)]
struct Named {
    name: String,
    kind: PolicySource,
}

#[derive(Clone, Debug)]
enum PolicySource {
    Known(Policy),
    Guard,
    Configured(PathBuf),
}

fn policy(text: &str) -> Result<Named, String> {
    let kind = match text {
        "kernel" => PolicySource::Known(Policy::Kernel),
        "earlyoom" => PolicySource::Known(Policy::Earlyoom),
        "oomd" => PolicySource::Known(Policy::Oomd),
        "ray" => PolicySource::Known(Policy::Ray),
        "memwarden" => PolicySource::Guard,
        _ => match text.strip_prefix("memwarden:") {
            Some(path) if !path.is_empty() => PolicySource::Configured(path.into()),
            _ => {
                return Err(
                    "is none of kernel, earlyoom, oomd, ray, memwarden and memwarden:CONFIG".to_owned()
                );
            }
        },
    };
    Ok(Named { name: text.to_owned(), kind })
}

impl Named {
    fn build(&self) -> anyhow::Result<Policy> {
        let protection = match &self.kind {
            PolicySource::Known(policy) => return Ok(policy.clone()),
            PolicySource::Guard => guarded_engine::protection_of("run", None)?,
            PolicySource::Configured(path) => {
                let options = serve::Options { file: Some(path.clone()), overrides: Vec::new() };
                serve::protection(&serve::load(&options)?)
            }
        };
        let (count, most) = (protection.targets.len(), protection.max_kills_per_hour);
        match <[_; 1]>::try_from(protection.targets) {
            Ok([target]) => Ok(Policy::Memwarden(Box::new(target), most)),
            Err(_) => bail!(
                "{}: the configuration must have exactly one target whose mode is not off, found {count}",
                self.name
            ),
        }
    }
}

/// The outcome of one run with one limit under one policy.
#[derive(Debug, Serialize)]
struct Played<'a> {
    run: &'a str,
    limit_bytes: f64,
    policy: &'a str,
    #[serde(flatten)]
    outcome: Outcome,
    /// Absent unless the number of GPUs is known.
    lost_gpu_hours: Option<f64>,
}

/// The limit with which 99 % of the runs survive.
#[derive(Debug, Serialize)]
struct Suffices<'a> {
    policy: &'a str,
    /// Absent where that is not decided, or no limit up to four times the peak suffices.
    limit_bytes: Option<f64>,
    runs: usize,
}

impl Args {
    pub(super) fn run(self) -> anyhow::Result<ExitCode> {
        let runs = read(&self.files)?;
        let all: Vec<&Series> = runs.iter().collect();
        let assumed = Assumed { save: self.save, every: self.checkpoint_every };
        let groups: Vec<&[&Series]> = if self.together { vec![&all[..]] } else { all.chunks(1).collect() };
        let (mut played, mut suffices) = (Vec::new(), Vec::new());
        for named in &self.policy {
            let policy = named.build()?;
            for (limit, group) in
                self.limit.iter().flat_map(|limit| groups.iter().map(move |group| (*limit, *group)))
            {
                let outcomes = play(group, limit, &policy, assumed);
                played.extend(group.iter().zip(outcomes).map(|(series, outcome)| {
                    Played {
                        run: &series.name,
                        limit_bytes: limit,
                        policy: &named.name,
                        outcome,
                        lost_gpu_hours: self
                            .gpus
                            .zip(outcome.lost_seconds)
                            .map(|(gpus, lost)| f64::from(gpus) * lost / 3600.0),
                    }
                }));
            }
            if !self.together {
                let least: Option<Vec<f64>> =
                    all.iter().map(|series| least_limit(series, &policy, assumed)).collect();
                let limit_bytes = least.and_then(for_99_percent);
                suffices.push(Suffices { policy: &named.name, limit_bytes, runs: all.len() });
            }
        }
        if let Some(path) = &self.plot {
            picture::chart(&chart(&runs, self.limit[0], &played), path)?;
        }
        match self.output.format() {
            Format::Json => self.output.value(&serde_json::json!({
                "schema_version": SCHEMA_VERSION,
                "together": self.together,
                "runs": played,
                "suffices_for_99_percent": suffices,
            }))?,
            Format::Text => self.output.colored(&self.text(&played, &suffices))?,
        }
        Ok(ExitCode::SUCCESS)
    }

    fn text(&self, played: &[Played<'_>], suffices: &[Suffices<'_>]) -> String {
        let rows = played.iter().map(|played| {
            let Outcome { fate, ended_seconds, lost_seconds, .. } = played.outcome;
            let health = match fate {
                Fate::Survived => Health::Ok,
                Fate::Undecided => Health::Unknown,
                Fate::Terminated | Fate::Killed => Health::Warning,
                Fate::OomKilled => Health::Critical,
            };
            let row = Row::default()
                .text("run", 0, played.run)
                .number("limit", 0, format::bytes(played.limit_bytes))
                .text("policy", 0, played.policy)
                .number("ended after", 1, Cell::number(lost_seconds.map(|_| ended_seconds), format::duration))
                .number("lost", 0, Cell::number(lost_seconds, format::duration));
            let row = match self.gpus {
                Some(_) => row.number(
                    "GPU hours",
                    0,
                    Cell::number(played.lost_gpu_hours, |hours| format!("{hours:.2}")),
                ),
                None => row,
            };
            row.prose("outcome", Cell::text(outcome(&played.outcome)).of(health))
        });
        let mut text = String::new();
        text::table(&mut text, &Table::new("Runs", rows, ""), self.output.page());
        if !suffices.is_empty() {
            let runs = suffices.first().map_or(0, |first| first.runs);
            let limits = suffices.iter().map(|known| {
                let limit = Cell::number(known.limit_bytes, format::bytes);
                Row::default().text("policy", 0, known.policy).number(
                    "limit with which 99 % survive",
                    0,
                    limit,
                )
            });
            text.push_str(&format!("\n{}\n", format::counted(runs, "run")));
            text::table(&mut text, &Table::new("Limits", limits, ""), self.output.page());
        }
        text
    }
}

/// The series of all files; each is a run.
fn read(files: &[PathBuf]) -> anyhow::Result<Vec<Series>> {
    let mut runs = Vec::new();
    for path in files {
        let series = input::file(path)?.series;
        let host: Vec<Series> =
            series.into_iter().filter(|series| !series.gpu && !series.rows.is_empty()).collect();
        if host.is_empty() {
            bail!("{}: there is no series of the memory of a host or a process", shown(path));
        }
        runs.extend(host);
    }
    Ok(runs)
}

fn shown(path: &Path) -> String {
    path.display().to_string()
}

fn outcome(outcome: &Outcome) -> String {
    let asked = outcome.asked_seconds.map(|at| format!("asked after {}", format::duration(at)));
    let saved = outcome.saved_seconds.map(|at| format!("saved after {}", format::duration(at)));
    let fate = match outcome.fate {
        Fate::Undecided => "undecided: pressure and swap are not recorded",
        fate => fate.label(),
    };
    let parts: Vec<String> = asked.into_iter().chain(saved).chain([fate.to_owned()]).collect();
    parts.join(", ")
}

/// A panel for each run, with the events of all policies at one limit.
fn chart(runs: &[Series], limit: f64, played: &[Played<'_>]) -> Chart {
    let first = runs.iter().filter_map(|series| series.rows.first()).map(|row| row.at);
    let panel = |series: &Series| {
        let begin = series.rows.first().map_or(0.0, |row| row.at);
        let here = played.iter().filter(|played| played.run == series.name && played.limit_bytes == limit);
        let events = here.flat_map(|played| {
            let Outcome { fate, ended_seconds, asked_seconds, saved_seconds, lost_seconds } = played.outcome;
            let event = |what: &str, at: f64, alarm| Event {
                t_s: begin + at,
                text: format!("{}: {what}", played.policy),
                alarm,
            };
            let asked = asked_seconds.map(|at| event("asked", at, false));
            let saved = saved_seconds.map(|at| event("saved", at, false));
            let ended = lost_seconds.map(|_| event(fate.label(), ended_seconds, true));
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
    Chart {
        title: match runs {
            [series] => format!("{} with a limit of {}", series.name, format::bytes(limit)),
            all => format!("{} runs with a limit of {}", all.len(), format::bytes(limit)),
        },
        subtitle: String::new(),
        time: clock(first.fold(f64::INFINITY, f64::min)),
        panels: runs.iter().map(panel).collect(),
    }
}
