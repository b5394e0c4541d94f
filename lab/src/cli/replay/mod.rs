//! `memwarden replay`: runs the analyzers on a recorded series.
//!
//! Loads, replays, and shows series: `input` has one function per kind of recording, and each output is one format.

pub(super) mod input;

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::bail;

use self::input::Files;
use crate::files::run_records::RunRecord;
use crate::report::replay::{self as replay_report, ends, picture};
use memwarden::analyzers::replay::{Options, replay};
use memwarden::cli::output::Output;
use memwarden::cli::picture as drawing;
use memwarden::config;
use memwarden::model::units::real;

/// Run the leak and exhaustion analyzers on recorded series, and report their results.
///
/// FILE is CSV (`t_s,bytes[,limit]`, or named columns: t_s, bytes, limit, anon, shmem, alloc), a report that memwarden
/// wrote as JSON, a run file of W&B (.wandb), a TensorBoard event file, the CSV of nvidia-smi, or the output of
/// `sacct --parsable2`; --prometheus queries a server instead. If the file states how
/// a run ended, by its console, exit code or state, that is shown first. The leak verdict uses the column `alloc` if present, else
/// `anon` and `shmem`, else `bytes`; the forecast compares `bytes` with the limit. The same input always gives the same
/// output. A file that cannot be read is named on standard error, and the others are replayed. Exit codes: 0 success, 1 an
/// error, also of one file only.
#[derive(Debug, clap::Args)]
#[command(after_long_help = "Examples:
  memwarden replay run.csv --limit 16GiB
  memwarden replay run.csv --limit 16GiB --horizon 15m --assess-every 10 --output assessments.csv
  memwarden replay run.csv --limit 16GiB --plot run.svg
  memwarden replay wandb/*/run-*.wandb --plot runs.svg
  nvidia-smi --query-gpu=timestamp,index,memory.used,memory.total --format=csv -l 5 >gpus.csv; memwarden replay gpus.csv
  memwarden replay --gpu --prometheus http://localhost:9090 --since 30d --limit 80GiB \\
      --query 'memwarden_gpu_memory_used_bytes{gpu=\"0\"}'")]
pub(super) struct Args {
    /// File with recorded series, or with the end of a run.
    #[arg(required_unless_present = "prometheus", value_name = "FILE")]
    files: Vec<PathBuf>,
    /// URL of a Prometheus server to query, such as http://host:9090.
    #[arg(long, value_name = "URL", requires = "query", conflicts_with = "files")]
    prometheus: Option<String>,
    /// PromQL query for the Prometheus server; the unit of its series must be bytes.
    #[arg(long, value_name = "QUERY", requires = "prometheus")]
    query: Option<String>,
    /// Start of the queried time range, as a time before now.
    #[arg(long, value_name = "DURATION", default_value = "1d", value_parser = duration, requires = "prometheus")]
    since: f64,
    /// End of the queried time range, as a time before now; 0 is now.
    #[arg(long, value_name = "DURATION", default_value = "0", value_parser = ago, requires = "prometheus")]
    until: f64,
    /// Time between two values of the queried series; at least the scrape interval of the server.
    #[arg(long, value_name = "DURATION", default_value = "15s", value_parser = duration, requires = "prometheus")]
    step: f64,
    /// Memory limit, which replaces the recorded one: 16GiB, or a number of bytes.
    #[arg(long, value_name = "SIZE", value_parser = size)]
    limit: Option<f64>,
    /// Horizon of the exhaustion probability: 15m, or a number of seconds.
    #[arg(long, value_name = "DURATION", default_value = "15m", value_parser = duration)]
    horizon: f64,
    /// Number of samples between two assessments.
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = every)]
    assess_every: usize,
    /// The series are the memory of GPUs, all of which an allocator can reserve: such memory that is full and did not grow is no
    /// problem.
    #[arg(long)]
    gpu: bool,
    #[command(flatten)]
    output: Output<Format>,
    /// Draw the series with verdicts and forecast to this file: .svg or .png.
    #[arg(long, value_name = "PICTURE", value_parser = drawing::drawable)]
    plot: Option<PathBuf>,
}

#[derive(Clone, Copy, Debug, Default, clap::ValueEnum)]
enum Format {
    /// Plain text: the series, the verdict, the forecast, the evidence and advice.
    #[default]
    Text,
    /// Every assessment as CSV: t_s,leak,tte_p10,tte_p50,tte_p90,p_exhaustion. Requires a single FILE.
    Csv,
    /// The last assessment and every change of the verdict as JSON.
    Json,
}

impl Args {
    pub(super) fn run(self) -> anyhow::Result<ExitCode> {
        let format = self.output.format();
        if matches!(format, Format::Csv) && self.files.len() > 1 {
            bail!("--format csv is for one FILE, found {}", self.files.len());
        }
        let options = Options {
            limit: self.limit,
            horizons: vec![self.horizon],
            every: self.assess_every,
            gpu: self.gpu,
        };
        let (mut text, mut table) = (String::new(), Vec::new());
        let (mut reports, mut ends) = (Vec::new(), Vec::new());
        let mut drawn = Vec::new();
        let mut recorded = Vec::new();
        let Files { records, unreadable } = self.records()?;
        for (name, record) in records {
            ends::write(&mut text, &name, &record, self.output.page());
            recorded.extend(record.series);
            ends.extend(record.ends.into_iter().map(|end| ends::report(&name, end)));
        }
        if self.plot.is_some() && recorded.is_empty() {
            bail!("there is no series to draw");
        }
        for (i, series) in recorded.into_iter().enumerate() {
            let replayed = replay(&series, &options);
            match format {
                Format::Csv if i > 0 => bail!("--format csv is for one series, and there are several"),
                Format::Csv => replay_report::rows(&mut table, &replayed)?,
                Format::Json => reports.push(replay_report::report(&series, &replayed, self.horizon)),
                Format::Text => {
                    if !text.is_empty() {
                        text.push('\n');
                    }
                    replay_report::text::write(
                        &mut text,
                        &series,
                        &replayed,
                        self.horizon,
                        self.output.page(),
                    );
                }
            }
            if self.plot.is_some() {
                drawn.push((series, replayed));
            }
        }
        if let Some(path) = &self.plot {
            drawing::chart(&picture::chart(&drawn), path)?;
        }
        match format {
            Format::Json => {
                self.output.value(&serde_json::json!({
                    "schema_version": replay_report::SCHEMA_VERSION,
                    "ends": ends,
                    "series": reports,
                    "unreadable": unreadable,
                }))?;
            }
            Format::Text => self.output.colored(&text)?,
            Format::Csv => self.output.rows(&String::from_utf8_lossy(&table))?,
        }
        Ok(Files::exit_code(&unreadable))
    }
}

impl Args {
    /// What to replay, by the names of the files in their order, or of the server; and the files that cannot be read.
    fn records(&self) -> anyhow::Result<Files> {
        if let Some((url, query)) = self.prometheus.clone().zip(self.query.clone()) {
            let (since, until, step) = (self.since, self.until, self.step);
            let series = input::server(&input::PrometheusRange { url, query, since, until, step })?;
            let records = vec![(String::new(), RunRecord { series, ..RunRecord::default() })];
            return Ok(Files { records, ..Files::default() });
        }
        input::files(&self.files)
    }
}

/// The least limit: a smaller number was meant in another unit than bytes.
const LEAST: f64 = 1_048_576.0;

pub(super) fn size(text: &str) -> Result<f64, String> {
    let bytes = match text.parse::<u64>() {
        Ok(bytes) if bytes <= 1 << 53 => bytes,
        Ok(_) => return Err(format!("`{text}` is too large")),
        Err(_) => config::size(text)?.get(),
    };
    let bytes = real(bytes);
    if bytes >= LEAST { Ok(bytes) } else { Err("is less than 1 MiB; write a unit, as in 12GiB".to_owned()) }
}

pub(super) fn duration(text: &str) -> Result<f64, String> {
    let seconds = match text.parse::<u32>() {
        Ok(seconds) => f64::from(seconds),
        Err(_) => config::duration(text)?.as_secs_f64(),
    };
    if seconds > 0.0 { Ok(seconds) } else { Err("must be more than 0 s, as in 15m".to_owned()) }
}

/// A time ago, which may be none.
fn ago(text: &str) -> Result<f64, String> {
    if text == "0" { Ok(0.0) } else { duration(text) }
}

fn every(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(0) | Err(_) => Err(format!("expected a whole number from 1 on, found `{text}`")),
        Ok(count) => Ok(count),
    }
}
