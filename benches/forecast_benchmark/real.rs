//! Real training runs in a folder: `labels.csv` and one CSV file for each; and how they are made from run files of W&B.

use std::collections::BTreeMap;
use std::path::Path;

use memwarden::model::ends::EndCause;
use memwarden::model::series::Row;
use memwarden_lab::files::run_records::Format;
use memwarden_lab::recording::cells::Rows;

use super::score::{Case, Label};

/// Minimum number of samples of a series.
const LEAST: usize = 20;

/// The memory of each GPU of the runs. The `labels.csv` has the columns run, gpu_limit_bytes and oom; a run's file has t_s
/// and gpuN_bytes. The limit of a run that ended out of memory is reached at its end. There is an assessment after each
/// sample, as in the daemon.
///
/// # Panics
/// Where a file cannot be read.
pub(crate) fn load(folder: &Path) -> Vec<Case> {
    let mut cases = Vec::new();
    for run in table(&read(&folder.join("labels.csv"))) {
        let cell = |name: &str| run.iter().find(|(own, _)| own == name).map_or("", |(_, cell)| cell.as_str());
        let file = folder.join(format!("{}.csv", cell("run")));
        // A run that ended at once has no file.
        if !file.exists() {
            continue;
        }
        let limit: f64 = cell("gpu_limit_bytes").parse().expect("the limit is a number");
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
            let is_out = cell("oom") == "1";
            let end = known[known.len() - 1].at;
            #[expect(clippy::cast_precision_loss, reason = "a count of samples")]
            let steps = (known.len() - 1) as f64;
            cases.push(Case {
                name: format!("{}-{gpu}", cell("run")),
                node: cell("run").to_owned(),
                every: 1,
                origin: "real".to_owned(),
                label: if is_out { Label::Growing } else { Label::Flat },
                interval: (end - known[0].at) / steps,
                limit,
                limit_at: if is_out { end } else { f64::INFINITY },
                onset: 0.0,
                plateau: 0.0,
                rows: known,
            });
        }
    }
    cases
}

/// Makes the folder that [`load`] reads of local copies of the repositories that its `manifest.csv` names:
/// `LOCAL/OWNER/NAME/FILE`. A file that is missing, or has another hash, is an error.
pub(crate) fn build(local: &Path, folder: &Path) -> Result<(), Box<dyn std::error::Error>> {
    let mut labels = csv::Writer::from_path(folder.join("labels.csv"))?;
    labels.write_record([
        "run",
        "repository",
        "gpu_limit_bytes",
        "samples",
        "oom",
        "oom_step",
        "oom_where",
    ])?;
    for entry in table(&read(&folder.join("manifest.csv"))) {
        let cell =
            |name: &str| entry.iter().find(|(own, _)| own == name).map_or("", |(_, cell)| cell.as_str());
        let (repository, file) = (cell("repository"), cell("file"));
        let path = local.join(repository).join(file);
        let bytes = std::fs::read(&path).map_err(|error| format!("{}: {error}", path.display()))?;
        let hash = ring::digest::digest(&ring::digest::SHA256, &bytes);
        let hash: String = hash.as_ref().iter().map(|byte| format!("{byte:02x}")).collect();
        if hash != cell("sha256") {
            return Err(format!("{} is not the file of the manifest", path.display()).into());
        }
        let record = Format::Wandb.read(&*bytes).map_err(|error| format!("{}: {error}", path.display()))?;
        let Some(end) = record.ends.first() else { continue };
        let name = file.rsplit('/').next().unwrap_or_default();
        let run = name.trim_start_matches("run-").trim_end_matches(".wandb");
        let gpus: Vec<_> = record.series.iter().filter(|series| series.gpu).collect();
        let is_out = matches!(end.cause, EndCause::GpuMemory | EndCause::GpuFragmentation);
        let limit = gpus.first().and_then(|gpu| gpu.rows[0].limit).unwrap_or(0.0);
        let samples = gpus.iter().map(|gpu| gpu.rows.len()).max().unwrap_or(0);
        let step = end.step.zip(end.steps_planned).filter(|_| is_out);
        labels.write_record([
            run,
            repository,
            &limit.to_string(),
            &samples.to_string(),
            &u8::from(is_out).to_string(),
            &step.map_or_else(String::new, |(step, planned)| format!("{step}/{planned}")),
            end.phase.filter(|_| is_out).map_or("", |phase| phase.label()),
        ])?;
        if samples < LEAST {
            continue;
        }
        let number = |name: &str| name.rsplit(' ').next().unwrap_or_default().to_owned();
        let mut times: BTreeMap<u64, Vec<String>> = BTreeMap::new();
        for (place, gpu) in gpus.iter().enumerate() {
            for row in &gpu.rows {
                // Times are not negative, so that their bits are in their order.
                let cells = times.entry(row.at.to_bits()).or_insert_with(|| vec![String::new(); gpus.len()]);
                cells[place] = format!("{:.0}", row.used);
            }
        }
        let first = times.keys().next().map_or(0.0, |first| f64::from_bits(*first));
        let mut out = csv::Writer::from_path(folder.join(format!("{run}.csv")))?;
        let columns = gpus.iter().map(|gpu| format!("gpu{}_bytes", number(&gpu.name)));
        out.write_record(std::iter::once("t_s".to_owned()).chain(columns))?;
        for (at, cells) in times {
            let at = format!("{:.1}", f64::from_bits(at) - first);
            out.write_record(std::iter::once(at).chain(cells))?;
        }
        out.flush()?;
    }
    Ok(labels.flush()?)
}

fn read(path: &Path) -> Vec<u8> {
    std::fs::read(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
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
