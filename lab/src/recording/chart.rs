//! Charts of files of any known format.

use std::io::Read as _;
use std::path::Path;

use super::columns;
use super::error::{InFile as _, RecordingError};
use crate::files::older_logs::{self, Clock, Quantity, Recording};
use memwarden::plot::report::{self, clock};
use memwarden::plot::{self, Chart, Event, Limit, Line, Panel, TimeAxis, Unit, duration};

/// Maximum size of a file in bytes: six days of ten columns at 1 Hz. Parsing takes up to 40 times as much memory if a
/// hostile file consists of commas.
const LARGEST: u64 = 64 << 20;

/// How near its begin any schema makes an object a report, in bytes.
const FRONT: usize = 4096;

/// The chart of a file of any known format.
pub(crate) fn read(path: &Path, columns: &[String]) -> Result<Chart, RecordingError> {
    let name = || path.display().to_string();
    let bytes = load(path).at(|| format!("cannot read {}", path.display()))?;
    let mut chart = chart(&bytes, columns).at(name)?;
    if chart.title.is_empty() {
        chart.title = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    }
    Ok(chart)
}

fn load(path: &Path) -> Result<Vec<u8>, RecordingError> {
    let mut bytes = Vec::new();
    std::fs::File::open(path)?.take(LARGEST + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > LARGEST {
        return Err(RecordingError::TooLarge { mib: LARGEST >> 20 });
    }
    Ok(bytes)
}

fn chart(bytes: &[u8], columns: &[String]) -> Result<Chart, RecordingError> {
    // A byte order mark, as editors on other systems write it.
    let bytes = bytes.strip_prefix(b"\xef\xbb\xbf").unwrap_or(bytes);
    if is_report(bytes) {
        return Ok(plot::together(report::read_all(bytes)?.iter().map(report::Report::chart).collect()));
    }
    if columns::is_csv(bytes) {
        return recorded(columns::read(bytes, |_| true)?, columns);
    }
    Ok(logged(older_logs::read(bytes)?))
}

/// Whether this is, or starts as, an object with a schema; a damaged report is reported as such. If the schema is not
/// near the start it must be one of memwarden's: keys have no order, and large ones may precede it.
fn is_report(bytes: &[u8]) -> bool {
    const KEY: &[u8] = b"\"schema\"";
    let begins = |text: &[u8], with: &[u8]| text.trim_ascii_start().starts_with(with);
    let is_memwardens = |rest: &[u8]| {
        rest.trim_ascii_start().strip_prefix(b":").is_some_and(|value| begins(value, b"\"memwarden."))
    };
    let mut places = bytes.windows(KEY.len()).enumerate().filter(|(_, window)| *window == KEY);
    begins(bytes, b"{") && places.any(|(at, _)| at < FRONT || is_memwardens(&bytes[at + KEY.len()..]))
}

fn recorded(table: columns::Table, wanted: &[String]) -> Result<Chart, RecordingError> {
    let known: Vec<String> = table.columns.iter().map(|column| column.name.clone()).collect();
    if let Some(unknown) = wanted.iter().find(|name| !known.contains(name)) {
        return Err(RecordingError::NoColumn { wanted: unknown.clone(), known });
    }
    let nonzero = |value: &Option<f64>| value.is_some_and(|value| value != 0.0);
    let first = table.times.iter().copied().fold(f64::INFINITY, f64::min);
    let last = table.times.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let (mut bytes, mut others, mut limit) = (Vec::new(), Vec::new(), None);
    for column in table.columns {
        let selected = wanted.contains(&column.name);
        let is_limit = matches!(column.name.as_str(), "limit" | "limit_bytes");
        if is_limit && !selected {
            // Of a limit that changes, the current value is shown.
            limit = column.values.iter().rev().find_map(|value| *value);
            continue;
        }
        let counts_bytes = columns::counts_bytes(&column.name);
        let shown =
            if wanted.is_empty() { counts_bytes && column.values.iter().any(nonzero) } else { selected };
        let line =
            Line { name: column.name, points: table.times.iter().copied().zip(column.values).collect() };
        match (shown, counts_bytes) {
            (true, true) => bytes.push(line),
            // Columns of unknown unit have separate axes.
            (shown, _) => others.push((shown, line)),
        }
    }
    let mut panels = Vec::new();
    if !bytes.is_empty() {
        let limit = limit.map(|value| Limit { value, name: String::new() });
        panels.push(Panel { lines: bytes, limit, ..Panel::default() });
    }
    let all = panels.is_empty() && wanted.is_empty();
    panels.extend(others.into_iter().filter(|(shown, _)| *shown || all).map(|(_, line)| Panel {
        unit: Unit::Other(String::new()),
        lines: vec![line],
        ..Panel::default()
    }));
    let subtitle = format!("{} samples over {}", table.times.len(), duration(last - first));
    Ok(Chart { title: String::new(), subtitle, time: clock(first), panels })
}

/// The chart of an older tool's recording: series of one quantity and limit share a panel.
fn logged(recording: Recording) -> Chart {
    let mut panels: Vec<(Quantity, Panel)> = Vec::new();
    for series in recording.series {
        let limit = series.limit.map(|value| Limit { value, name: "capacity".to_owned() });
        let points = series.points.into_iter().map(|(time, value)| (time, Some(value))).collect();
        let line = Line { name: series.name, points };
        match panels.iter_mut().find(|(quantity, panel)| *quantity == series.quantity && panel.limit == limit)
        {
            Some((_, panel)) => panel.lines.push(line),
            None => {
                let unit = match series.quantity {
                    Quantity::Bytes => Unit::Bytes,
                    Quantity::StepSeconds => Unit::Seconds,
                    Quantity::Teraflops => Unit::Other("TFLOP/s".to_owned()),
                };
                panels.push((series.quantity, Panel { unit, lines: vec![line], limit, ..Panel::default() }));
            }
        }
    }
    panels.sort_by_key(|(quantity, _)| *quantity);
    let mut panels: Vec<Panel> = panels.into_iter().map(|(_, panel)| panel).collect();
    if let Some(first) = panels.first_mut() {
        let events = recording.events.into_iter();
        first.events = events.map(|(t_s, text)| Event { t_s, text, alarm: false }).collect();
    }
    let time = match recording.clock {
        Clock::Elapsed => TimeAxis::Elapsed,
        Clock::Utc => TimeAxis::Utc,
        Clock::Local => TimeAxis::Local,
        Clock::Order => TimeAxis::Order,
    };
    Chart { title: String::new(), subtitle: format!("logged by {}", recording.tool), time, panels }
}
