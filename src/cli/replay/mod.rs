//! `memwarden replay`: what memwarden would have said of a recorded series.
//!
//! Load, replay, show: another kind of recording is another arm of `load`,
//! another way to show it another format.

mod summary;

use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context as _, bail};

use crate::analyzers::leak::State;
use crate::analyzers::replay::{Options, Said, replay};
use crate::config;
use crate::exposition::record::csv;
use crate::model::series::Series;

/// A file may be this large, in bytes: it is read into memory.
const LARGEST_FILE: u64 = 1 << 30;
/// The version of the JSON that is printed.
const SCHEMA: u32 = 1;

/// Say what memwarden would have said of recorded series: leaks, forecasts, and why.
///
/// A FILE is CSV: `t_s,bytes[,limit]`, or columns by name (t_s, bytes, limit, anon, shmem, alloc). The leak
/// verdict looks at `alloc` where there is any, else at `anon` and `shmem`, else at `bytes`; the forecast is
/// of `bytes` against the limit. The same input gives the same output, to the byte.
#[derive(Debug, clap::Args)]
#[command(after_long_help = "Examples:
  memwarden replay run.csv --limit 16GiB
  memwarden replay run.csv --limit 16GiB --horizon 15m --assess-every 10 --format csv")]
pub(super) struct Args {
    /// Recorded series.
    #[arg(required = true, value_name = "FILE")]
    files: Vec<PathBuf>,
    /// The limit, in place of the recorded one: 16GiB, or a number of bytes.
    #[arg(long, value_name = "SIZE", value_parser = size)]
    limit: Option<f64>,
    /// The probability of exhaustion is for this time ahead: 15m, or a number of seconds.
    #[arg(long, value_name = "DURATION", default_value = "15m", value_parser = duration)]
    horizon: f64,
    /// Samples from one assessment to the next.
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = every)]
    assess_every: usize,
    /// How to show it.
    #[arg(long, value_enum, default_value_t = Format::Summary)]
    format: Format,
}

#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum Format {
    /// For people: what was seen, the verdict, the forecast, the evidence, what to do.
    Summary,
    /// Every assessment: t_s,leak,tte_p10,tte_p50,tte_p90,p_exhaustion. One FILE.
    Csv,
    /// The last assessment and every change of the verdict, in full.
    Json,
}

impl Args {
    pub(super) fn run(self) -> anyhow::Result<ExitCode> {
        if matches!(self.format, Format::Csv) && self.files.len() > 1 {
            bail!("--format csv is for one FILE, found {}", self.files.len());
        }
        let options = Options { limit: self.limit, horizons: vec![self.horizon], every: self.assess_every };
        let mut out = BufWriter::new(std::io::stdout().lock());
        let mut reports = Vec::new();
        for (i, file) in self.files.iter().enumerate() {
            let series = load(file)?;
            let said = replay(&series, &options);
            match self.format {
                Format::Csv => rows(&mut out, &said)?,
                Format::Json => reports.push(report(&series, &said, self.horizon)),
                Format::Summary => {
                    if i > 0 {
                        writeln!(out)?;
                    }
                    summary::write(&mut out, &series, &said, self.horizon)?;
                }
            }
        }
        if matches!(self.format, Format::Json) {
            let all = serde_json::json!({ "schema_version": SCHEMA, "series": reports });
            serde_json::to_writer_pretty(&mut out, &all)?;
            writeln!(out)?;
        }
        out.flush()?;
        Ok(ExitCode::SUCCESS)
    }
}

/// The series in a file.
fn load(file: &Path) -> anyhow::Result<Series> {
    let name = file.display().to_string();
    let found = std::fs::metadata(file).with_context(|| format!("cannot read {name}"))?;
    if found.len() > LARGEST_FILE {
        bail!("{name}: {} bytes are more than the 1 GiB that is read", found.len());
    }
    let bytes = std::fs::read(file).with_context(|| format!("cannot read {name}"))?;
    Ok(csv::read(&name, &bytes)?)
}

/// The assessments as CSV; what is not known is empty.
fn rows(out: &mut impl Write, said: &[Said]) -> std::io::Result<()> {
    writeln!(out, "t_s,leak,tte_p10,tte_p50,tte_p90,p_exhaustion")?;
    for Said { at, assessment, .. } in said {
        let leak = u8::from(assessment.leak == State::Leaking);
        write!(out, "{at},{leak},")?;
        match assessment.tte {
            Some(tte) => {
                write!(out, "{:.3},{:.3},", tte.p10, tte.p50)?;
                if let Some(p90) = tte.p90 {
                    write!(out, "{p90:.3}")?;
                }
            }
            None => write!(out, ",,")?,
        }
        match assessment.p_exhaustion.first().copied().flatten() {
            Some(p) => writeln!(out, ",{p:.6}")?,
            None => writeln!(out, ",")?,
        }
    }
    Ok(())
}

/// The last assessment of a series and the changes before it.
fn report(series: &Series, said: &[Said], horizon: f64) -> serde_json::Value {
    let changes: Vec<_> = summary::changes(said)
        .map(|(at, state)| serde_json::json!({ "t_s": at, "leak": state.word() }))
        .collect();
    let last = said.last();
    serde_json::json!({
        "name": series.name,
        "samples": series.rows.len(),
        "remarks": series.remarks,
        "t_s": last.map(|last| last.at),
        "limit_bytes": last.and_then(|last| last.limit),
        "horizon_seconds": horizon,
        "changes": changes,
        "assessment": last.map(|last| &last.assessment),
    })
}

fn size(text: &str) -> Result<f64, String> {
    let bytes = match text.parse::<u64>() {
        Ok(bytes) if bytes <= 1 << 53 => bytes,
        Ok(_) => return Err(format!("`{text}` is too large")),
        Err(_) => config::size(text)?.get(),
    };
    #[expect(clippy::cast_precision_loss, reason = "at most 2^53")]
    let bytes = bytes as f64;
    if bytes > 0.0 { Ok(bytes) } else { Err("a limit is more than nothing".to_owned()) }
}

fn duration(text: &str) -> Result<f64, String> {
    let seconds = match text.parse::<u32>() {
        Ok(seconds) => f64::from(seconds),
        Err(_) => config::duration(text)?.as_secs_f64(),
    };
    if seconds > 0.0 { Ok(seconds) } else { Err("a horizon is more than nothing".to_owned()) }
}

fn every(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(0) | Err(_) => Err(format!("expected a whole number from 1 on, found `{text}`")),
        Ok(count) => Ok(count),
    }
}
