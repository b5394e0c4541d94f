//! Labeled traces in a folder: `labels.csv` and one CSV file for each.

use std::path::Path;

use memwarden_lab::recording::cells::Rows;
use memwarden_lab::recording::csv;

use super::score::{Case, EVERY, Label};

/// The labeled traces of a folder. Its `labels.csv` has the columns file, label (leak, oom, flat, bounded; others are
/// left out), origin, dt_s, duration_s, limit_bytes, t_limit_s, onset_s and t_plateau_s.
///
/// # Panics
/// Where a file cannot be read.
pub(crate) fn load(folder: &Path) -> Vec<Case> {
    let read =
        |path: &Path| std::fs::read(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let labels = read(&folder.join("labels.csv"));
    let mut labels = Rows::new(&labels);
    labels.next_row().expect("the header can be read");
    let number =
        |text: &str, missing: f64| text.parse().ok().filter(|x: &f64| x.is_finite()).unwrap_or(missing);
    let mut cases = Vec::new();
    while let Some((_, cells)) = labels.next_row().expect("the labels can be read") {
        let label = match &cells[1] {
            "leak" | "oom" => Label::Growing,
            "flat" => Label::Flat,
            "bounded" => Label::Bounded,
            _ => continue,
        };
        let series =
            csv::read(&cells[0], &read(&folder.join(&cells[0]))).unwrap_or_else(|error| panic!("{error}"));
        cases.push(Case {
            node: cells[0].to_owned(),
            every: EVERY,
            name: cells[0].trim_end_matches(".csv").to_owned(),
            origin: cells[2].to_owned(),
            label,
            interval: number(&cells[3], 0.5),
            limit: number(&cells[5], 0.0).floor(),
            limit_at: number(&cells[6], f64::INFINITY),
            onset: number(&cells[7], 0.0),
            plateau: number(&cells[8], 0.0),
            rows: series.rows,
        });
    }
    cases
}
