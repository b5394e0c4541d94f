//! `memwarden what-if`: what would have become of recorded runs with another limit, or under another policy.

mod runs;
mod shown;

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::bail;
use serde::Serialize;

use self::runs::Memory;
use super::replay;
use super::replay::input::Files;
use crate::what_if::{Assumed, Outcome, Policy, for_99_percent, least_limit, play};
use memwarden::app::guarded_engine;
use memwarden::app::serve;
use memwarden::cli::output::{Format, Output};
use memwarden::cli::picture;
use memwarden::model::series::Series;

/// Grows when a key changes its meaning or disappears.
const SCHEMA_VERSION: u32 = 1;

/// Play recorded runs against memory limits and policies: who would have been killed, and what would have been lost.
///
/// FILE is one that `memwarden replay` reads; each of its series is one run, which has the limit for itself unless --together
/// is given: --limit for memory of the host, --gpu-limit for memory of a GPU. The policy memwarden is the code of the daemon: --policy memwarden is that of `memwarden run --guard`,
/// memwarden:CONFIG that of the only target of a configuration file, as if its mode were `enforce`. The others act as documented, with
/// their defaults: the kernel kills at the limit, earlyoom(1) sends SIGTERM when 10 % is available and SIGKILL when 5 % is, the
/// memory monitor of Ray kills when more than 95 % is used. systemd-oomd decides by pressure and swap, which are not recorded,
/// so that its outcome is undecided. There is no swap, and SIGTERM ends a run at once. Memory of GPUs is watched by none of these
/// except memwarden:CONFIG with the levels `gpu`: a run that crosses --gpu-limit ends by a CUDA out-of-memory error. A file that
/// cannot be read is named on standard error, and the others are played. Exit codes: 0 success, 1 an error, also of one file only.
#[derive(Debug, clap::Args)]
#[command(after_long_help = "Examples:
  memwarden what-if run.csv --limit 16GiB
  memwarden what-if runs/*.csv --limit 64GiB,80GiB --policy kernel,earlyoom,memwarden --save 30s --gpus 8
  memwarden what-if wandb/*/run-*.wandb --gpu-limit 40GiB,80GiB --policy kernel,memwarden:/etc/memwarden/memwarden.yaml
  memwarden what-if run.csv --limit 64GiB --policy kernel,memwarden:/etc/memwarden/memwarden.yaml --plot what-if.svg")]
pub(super) struct Args {
    /// File with recorded series.
    #[arg(required = true, value_name = "FILE")]
    files: Vec<PathBuf>,
    /// Limits of the memory of the host: 64GiB, or a number of bytes.
    #[arg(long, value_name = "SIZE", required_unless_present = "gpu_limit", value_delimiter = ',',
        value_parser = replay::size)]
    limit: Vec<f64>,
    /// Limits of the memory of a GPU.
    #[arg(long, value_name = "SIZE", value_delimiter = ',', value_parser = replay::size,
        conflicts_with = "together")]
    gpu_limit: Vec<f64>,
    /// All series are memory of GPUs, also those of files that do not say so.
    #[arg(long, requires = "gpu_limit")]
    gpu: bool,
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
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
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
    #[serde(skip)]
    place: usize,
    run: &'a str,
    memory: Memory,
    limit_bytes: f64,
    policy: &'a str,
    /// Whether the policy does anything for this memory.
    watched: bool,
    #[serde(flatten)]
    outcome: Outcome,
    /// Absent where the file has no steps, and where nothing is lost.
    lost_steps: Option<u64>,
    /// Absent unless the number of GPUs is known.
    lost_gpu_hours: Option<f64>,
}

/// The limit with which 99 % of the runs survive.
#[derive(Debug, Serialize)]
struct Suffices<'a> {
    memory: Memory,
    policy: &'a str,
    watched: bool,
    /// Absent where that is not decided, or no limit up to four times the peak suffices.
    limit_bytes: Option<f64>,
    runs: usize,
}

impl Args {
    pub(super) fn run(self) -> anyhow::Result<ExitCode> {
        let (runs, not_played) = self.read()?;
        let assumed = Assumed { save: self.save, every: self.checkpoint_every, runs: runs.len() };
        let (mut played, mut suffices) = (Vec::new(), Vec::new());
        for named in &self.policy {
            let policy = named.build()?;
            for (memory, limits) in [(Memory::Host, &self.limit), (Memory::Gpu, &self.gpu_limit)] {
                let of_kind = |place: &usize| Memory::of(&runs[*place]) == memory;
                let places: Vec<usize> = (0..runs.len()).filter(of_kind).collect();
                let together = self.together && !places.is_empty();
                let groups: Vec<&[usize]> = if together { vec![&places] } else { places.chunks(1).collect() };
                for (limit, group) in
                    limits.iter().flat_map(|limit| groups.iter().map(move |group| (*limit, *group)))
                {
                    let series: Vec<&Series> = group.iter().map(|place| &runs[*place].series).collect();
                    let outcomes = play(&series, limit, &policy, assumed);
                    for (place, outcome) in group.iter().copied().zip(outcomes) {
                        let run = &runs[place];
                        let outcome = run.as_it_ended(outcome, limit, assumed);
                        let hours = |(gpus, lost): (u32, f64)| f64::from(gpus) * lost / 3600.0;
                        played.push(Played {
                            place,
                            run: &run.series.name,
                            memory,
                            limit_bytes: limit,
                            policy: &named.name,
                            watched: policy.watches(run.series.gpu),
                            outcome,
                            lost_steps: run.lost_steps(&outcome),
                            lost_gpu_hours: self.gpus.zip(outcome.lost_seconds).map(hours),
                        });
                    }
                }
                if !together && !places.is_empty() {
                    let least = places.iter().map(|place| {
                        let run = &runs[*place];
                        // How much more than its GPU has would have sufficed was not recorded.
                        let known = least_limit(&run.series, &policy, assumed);
                        known.filter(|_| run.ended_full.is_none()).unwrap_or(f64::INFINITY)
                    });
                    let limit_bytes = for_99_percent(least.collect()).filter(|limit| limit.is_finite());
                    let watched = policy.watches(memory == Memory::Gpu);
                    suffices.push(Suffices {
                        memory,
                        policy: &named.name,
                        watched,
                        limit_bytes,
                        runs: places.len(),
                    });
                }
            }
        }
        if let Some(path) = &self.plot {
            picture::chart(&self.chart(&runs, &played), path)?;
        }
        match self.output.format() {
            Format::Json => self.output.value(&serde_json::json!({
                "schema_version": SCHEMA_VERSION,
                "together": self.together,
                "runs": played,
                "suffices_for_99_percent": suffices,
                "not_played": not_played,
            }))?,
            Format::Text => self.output.colored(&self.text(&runs, &played, &suffices, &not_played))?,
        }
        Ok(Files::exit_code(&not_played.unreadable))
    }
}
