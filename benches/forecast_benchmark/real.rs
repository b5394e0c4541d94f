//! Real training runs in a folder: `labels.csv` and one CSV file for each.

use std::path::Path;

use memwarden::model::series::Row;
use memwarden::recording::cells::Rows;

use super::score::{Case, Label};

/// Minimum number of samples of a series.
const LEAST: usize = 60;

/// The memory of each GPU of the runs that did not end in an out-of-memory error. The `labels.csv` has the columns run,
/// gpu_limit_bytes and oom; a run's file has t_s and gpuN_bytes.
///
/// # Panics
/// Where a file cannot be read.
pub(crate) fn load(folder: &Path) -> Vec<Case> {
    let read =
        |path: &Path| std::fs::read(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let mut cases = Vec::new();
    for run in table(&read(&folder.join("labels.csv"))) {
        let cell = |name: &str| run.iter().find(|(own, _)| own == name).map_or("", |(_, cell)| cell.as_str());
        let limit: f64 = cell("gpu_limit_bytes").parse().expect("the limit is a number");
        let file = folder.join(format!("{}.csv", cell("run")));
        // A run that ended at once has no file.
        if cell("oom") != "0" || !file.exists() {
            continue;
        }
        let rows = table(&read(&file));
        for gpu in 0..16 {
            let column = format!("gpu{gpu}_bytes");
            let value = |row: &[(String, String)], name: &str| {
                row.iter().find(|(own, _)| own == name).and_then(|(_, cell)| cell.parse::<f64>().ok())
            };
            let known = rows.iter().filter_map(|row| {
                Some(Row { at: value(row, "t_s")?, used: value(row, &column)?, ..Row::default() })
            });
            let known: Vec<Row> = known.collect();
            if known.len() < LEAST {
                continue;
            }
            #[expect(clippy::cast_precision_loss, reason = "a count of samples")]
            let steps = (known.len() - 1) as f64;
            cases.push(Case {
                name: format!("{}-{gpu}", cell("run")),
                origin: "real".to_owned(),
                label: Label::Flat,
                interval: (known[known.len() - 1].at - known[0].at) / steps,
                limit,
                limit_at: f64::INFINITY,
                onset: 0.0,
                plateau: 0.0,
                rows: known,
            });
        }
    }
    cases
}

/// The rows of a CSV file, each cell with the name of its column.
fn table(bytes: &[u8]) -> Vec<Vec<(String, String)>> {
    let mut rows = Rows::new(bytes);
    let header: Vec<String> = match rows.next_row().expect("the header can be read") {
        Some((_, cells)) => cells.iter().map(str::to_owned).collect(),
        None => return Vec::new(),
    };
    let mut all = Vec::new();
    while let Some((_, cells)) = rows.next_row().expect("the file can be read") {
        all.push(header.iter().cloned().zip(cells.iter().map(str::to_owned)).collect());
    }
    all
}
