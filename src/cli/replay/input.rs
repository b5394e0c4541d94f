//! Reads recorded series from files and from a Prometheus server.

use std::io::{IsTerminal as _, Write as _};
use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, bail};

use crate::cli::fetch::{self, Fetcher};
use crate::cluster;
use crate::host::{clock, fs};
use crate::model::format;
use crate::model::series::Series;
use crate::recording::{csv, prometheus, report};

/// Maximum size of a file in bytes: it is read into memory.
const LARGEST_FILE: u64 = 1 << 30;

/// Prometheus answers at most 11,000 points a series and query (`web/api/v1/api.go`).
const POINTS: f64 = 10_000.0;

/// The series in a file: one of a CSV file, all of a report's.
pub(super) fn file(path: &Path) -> anyhow::Result<Vec<Series>> {
    let name = path.display().to_string();
    let bytes = fs::read_bounded(path, LARGEST_FILE).with_context(|| format!("cannot read {name}"))?;
    if bytes.trim_ascii_start().starts_with(b"{") {
        let found = report::read(&bytes).with_context(|| name.clone())?;
        if found.is_empty() {
            bail!("{name}: the report has no series that counts bytes");
        }
        return Ok(found);
    }
    Ok(vec![csv::read(&name, &bytes)?])
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
