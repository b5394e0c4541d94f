//! Reads recorded series from files and from a Prometheus server.

use std::io::{IsTerminal as _, Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context as _, bail};
use serde::Serialize;

use crate::files::{
    self,
    run_records::{self, RunRecord},
};
use crate::recording::{csv, prometheus, report};
use memwarden::cli::fetch::{self, Fetcher};
use memwarden::cli::out;
use memwarden::cluster;
use memwarden::host::{clock, fs};
use memwarden::model::format;
use memwarden::model::series::Series;

/// Maximum size in bytes of a file that is read into memory.
const LARGEST_FILE: u64 = run_records::LARGEST_TEXT;

/// Prometheus answers at most 11,000 points a series and query (`web/api/v1/api.go`).
const POINTS: f64 = 10_000.0;

/// What the files of a command have.
#[derive(Debug, Default)]
pub(in crate::cli) struct Files {
    /// By the names of the files in their order, without those that cannot be read.
    pub(in crate::cli) records: Vec<(String, RunRecord)>,
    pub(in crate::cli) unreadable: Vec<Unreadable>,
}

/// A file that cannot be read, and why.
#[derive(Debug, Serialize)]
pub(in crate::cli) struct Unreadable {
    file: String,
    error: String,
}

impl Files {
    /// Failure where a file could not be read.
    pub(in crate::cli) fn exit_code(unreadable: &[Unreadable]) -> ExitCode {
        if unreadable.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
    }
}

/// Reads files, and writes the error of each one that cannot be read to standard error.
///
/// # Errors
/// That of the last file, if none can be read; those of the others are written.
pub(in crate::cli) fn files(paths: &[PathBuf]) -> anyhow::Result<Files> {
    let mut found = Files::default();
    let mut errors = Vec::new();
    for path in paths {
        let name = path.display().to_string();
        match file(path) {
            Ok(record) => found.records.push((name, record)),
            Err(error) => {
                found.unreadable.push(Unreadable { file: name, error: out::described(&error) });
                errors.push(error);
            }
        }
    }
    let last = if found.records.is_empty() { errors.pop() } else { None };
    errors.iter().for_each(out::complain);
    last.map_or(Ok(found), Err)
}

/// What a file has: one series of a CSV file, all of a report's, and those of a recorded run with its end.
fn file(path: &Path) -> anyhow::Result<RunRecord> {
    let name = path.display().to_string();
    let cannot = || format!("cannot read {name}");
    let mut file = fs::open_regular(path).with_context(cannot)?;
    let mut front = Vec::new();
    (&mut file).take(run_records::FRONT as u64).read_to_end(&mut front).with_context(cannot)?;
    if let Some(problem) = files::not_the_file(&front) {
        bail!("{name}: {problem}");
    }
    if let Some(format) = run_records::Format::of(&front) {
        let mut record = format.read(front.as_slice().chain(file)).with_context(|| name.clone())?;
        for series in &mut record.series {
            series.name = format!("{name}: {}", series.name);
        }
        return Ok(record);
    }
    if path.extension().is_some_and(|extension| extension == "wandb") {
        bail!(
            "{name}: no run file of W&B: it does not begin with `:W&B`; copy it again from the folder of the run"
        );
    }
    let bytes = fs::read_bounded(path, LARGEST_FILE).with_context(cannot)?;
    if bytes.trim_ascii_start().starts_with(b"{") {
        let series = report::read(&bytes).with_context(|| name.clone())?;
        if series.is_empty() {
            bail!("{name}: the report has no series that counts bytes");
        }
        return Ok(RunRecord { series, ..RunRecord::default() });
    }
    let (series, steps) = (csv::read_all(&name, &bytes)?, csv::steps(&bytes));
    Ok(RunRecord { series, steps, ..RunRecord::default() })
}

/// A range query to a Prometheus server; times in seconds.
#[derive(Clone, Debug)]
pub(super) struct PrometheusRange {
    pub(super) url: String,
    pub(super) query: String,
    /// Age of its start and its end.
    pub(super) since: f64,
    pub(super) until: f64,
    pub(super) step: f64,
}

/// A month of a series at 15 s has 7 MB.
const LARGEST: usize = 256 << 20;
/// Time limit of a query.
const QUERY_TIMEOUT: Duration = Duration::from_secs(120);

/// The series that answer a query, in several requests within the limit of points per request.
pub(super) fn server(asked: &PrometheusRange) -> anyhow::Result<Vec<Series>> {
    let now = clock::now().unix().as_secs_f64();
    // Aligned to the step, so that the same query gets the same points.
    let grid = |time: f64| (time / asked.step).floor() * asked.step;
    let (begin, end) = (grid(now - asked.since), grid(now - asked.until));
    if begin >= end {
        bail!("--since must be longer ago than --until");
    }
    let shown = std::io::stderr().is_terminal();
    let query = fetch::encoded(&asked.query);
    let runtime = fetch::runtime()?;
    let fetcher = Fetcher::new(&asked.url, LARGEST, QUERY_TIMEOUT)?;
    let base = &fetcher.url;
    let mut found = Vec::new();
    let mut from = begin;
    while from <= end {
        let to = (from + asked.step * POINTS).min(end);
        let path = format!("/api/v1/query_range?query={query}&start={from}&end={to}&step={}", asked.step);
        let ranges = cluster::ranges(&runtime.block_on(fetcher.get(&path))?).with_context(|| base.clone())?;
        let series = ranges.into_iter().map(|range| prometheus::series(&range.labels, range.points));
        prometheus::join(&mut found, series.collect());
        if shown {
            let done = format::percent(((to - begin) / (end - begin)).min(1.0));
            // Progress is shown on a terminal only.
            let _ = write!(std::io::stderr(), "\r{done:>6} of the time asked for");
        }
        from = to + asked.step;
    }
    if shown {
        let _ = writeln!(std::io::stderr());
    }
    found.retain(|series| !series.rows.is_empty());
    if found.is_empty() {
        bail!("{} has no value for {} in that time", fetcher.url, asked.query);
    }
    Ok(found)
}
