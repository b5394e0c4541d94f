//! Samples of GPUs and their processes: `nvidia-smi --query-gpu=…` and `--query-compute-apps=… --format=csv`, dmon and pmon.

use std::borrow::Cow;

use super::{RunRecord, RunRecordError, Samples};
use memwarden::formats::stamp;

const MIB: f64 = 1_048_576.0;

/// Columns of used memory, of a GPU or of one of its processes.
const USED: [&str; 3] = ["memory.used", "used_gpu_memory", "used_memory"];
/// Columns that tell the GPUs apart.
const IDS: [&str; 6] = ["index", "uuid", "gpu_uuid", "pci.bus_id", "gpu_bus_id", "serial"];
const NO_COLUMNS: &str =
    "the CSV of nvidia-smi needs the columns timestamp and memory.used, and index or uuid for several GPUs";

/// Reads the CSV of nvidia-smi, of GPUs or of processes, with or without units in the cells.
///
/// Lines that are no rows, such as the driver's of a GPU that is lost, are left out with a remark.
///
/// # Errors
/// [`RunRecordError`], with the first line that is no row, where most are none.
pub(crate) fn nvidia_smi(bytes: &[u8]) -> Result<RunRecord, RunRecordError> {
    let text = decoded(bytes)?;
    let text = text.trim_start_matches('\u{feff}');
    if text.trim_start().starts_with('#') {
        return monitor(text);
    }
    let mut lines = text.lines().enumerate();
    let header = lines.find(|(_, line)| !line.trim().is_empty()).map_or("", |(_, line)| line);
    let columns: Vec<&str> = header.split(',').map(str::trim).collect();
    let place = |name: &str| columns.iter().position(|column| column.split(' ').next() == Some(name));
    let (Some(used), Some(time)) = (USED.into_iter().find_map(place), place("timestamp")) else {
        return Err(RunRecordError::Nothing(if columns.iter().any(|cell| cell.ends_with("MiB")) {
            "the CSV of nvidia-smi has no header: --format=csv writes it, without noheader"
        } else {
            NO_COLUMNS
        }));
    };
    let (total, pid) = (place("memory.total"), place("pid"));
    let id = IDS.into_iter().find_map(place);
    let (mut samples, mut remarks) = (Samples::default(), Vec::new());
    let (mut rows, mut odd) = (0_usize, Odd::default());
    let mut lines = lines.peekable();
    while let Some((place, line)) = lines.next() {
        // A command that was started again writes the header again.
        if line.trim().is_empty() || line == header {
            continue;
        }
        let cells: Vec<&str> = line.split(',').map(str::trim).collect();
        let amounts = || {
            if cells.len() != columns.len() {
                return Err(format!("{} cells, but the header has {}", cells.len(), columns.len()));
            }
            let at = stamp::cell(cells[time]);
            let at = at.ok_or_else(|| format!("{:?} is not a time", short(cells[time])))?;
            Ok((at, amount(cells[used])?, total.map(|total| amount(cells[total])).transpose()?))
        };
        let (at, used, limit) = match amounts() {
            Ok(amounts) => amounts,
            Err(_) if lines.peek().is_none() && rows > 0 && cells.len() < columns.len() => {
                remarks.push("the last line is incomplete, and was ignored".to_owned());
                break;
            }
            Err(problem) => {
                odd.add(place + 1, problem);
                continue;
            }
        };
        rows += 1;
        let of = |place: usize| cells[place];
        let name = match (pid.map(of), id.map(of)) {
            (Some(pid), Some(id)) => format!("memory of process {pid} on GPU {id}"),
            (Some(pid), None) => format!("memory of process {pid}"),
            (None, Some(id)) => format!("memory of GPU {id}"),
            (None, None) => "memory of the GPU".to_owned(),
        };
        if let Some(used) = used {
            samples.push(&name, true, at, used)?;
        }
        if let Some(limit) = limit.flatten() {
            samples.limit(&name, limit);
        }
    }
    odd.finish(rows, &mut remarks)?;
    let series = samples.finish(&mut remarks);
    Ok(RunRecord { tool: "nvidia-smi", series, remarks, ..RunRecord::default() })
}

/// Reads the table of `nvidia-smi dmon -s m -o DT` or `pmon -s m -o DT`: columns by white space below lines with `#`, of
/// which the first names them.
fn monitor(text: &str) -> Result<RunRecord, RunRecordError> {
    let header = text.lines().next().unwrap_or_default();
    let columns: Vec<&str> = header.trim_start_matches([' ', '#']).split_whitespace().collect();
    let place = |name: &str| columns.iter().position(|column| *column == name);
    let (Some(used), Some(gpu)) = (place("fb"), place("gpu")) else {
        return Err(RunRecordError::Nothing("dmon and pmon write the used memory with -s m"));
    };
    let (Some(date), Some(time)) = (place("Date"), place("Time")) else {
        return Err(RunRecordError::Nothing("dmon and pmon write the time of each row with -o DT"));
    };
    let (mut samples, mut remarks) = (Samples::default(), Vec::new());
    let (mut rows, mut odd) = (0_usize, Odd::default());
    let lines = text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty());
    for (at, line) in lines.filter(|(_, line)| !line.trim_start().starts_with('#')) {
        let cells: Vec<&str> = line.split_whitespace().collect();
        let cell = |place: usize| cells.get(place).copied().unwrap_or_default();
        let day = cell(date);
        let stamp = match (day.get(..4), day.get(4..6), day.get(6..)) {
            (Some(year), Some(month), Some(day)) => {
                stamp::find(&format!("{year}-{month}-{day} {}", cell(time)))
            }
            _ => None,
        };
        let Some(stamp) = stamp else {
            odd.add(at + 1, format!("{:?} is not a time", short(line)));
            continue;
        };
        rows += 1;
        // A dash stands for what is not known.
        let Some(Ok(mib)) = Some(cell(used)).filter(|cell| *cell != "-").map(str::parse::<f64>) else {
            continue;
        };
        let name = match place("pid").map(cell) {
            Some("-") => continue,
            Some(pid) => format!("memory of process {pid} on GPU {}", cell(gpu)),
            None => format!("memory of GPU {}", cell(gpu)),
        };
        samples.push(&name, true, stamp, mib * MIB)?;
    }
    odd.finish(rows, &mut remarks)?;
    let series = samples.finish(&mut remarks);
    Ok(RunRecord { tool: "nvidia-smi", series, remarks, ..RunRecord::default() })
}

/// Lines that are no rows.
#[derive(Default)]
struct Odd {
    count: usize,
    first: Option<(usize, String)>,
}

impl Odd {
    fn add(&mut self, line: usize, problem: String) {
        self.count += 1;
        self.first.get_or_insert((line, problem));
    }

    /// A remark beside rows; the first line as an error where most lines are no rows.
    fn finish(self, rows: usize, remarks: &mut Vec<String>) -> Result<(), RunRecordError> {
        match self.first {
            Some((line, problem)) if self.count > rows => Err(RunRecordError::Line { line, problem }),
            Some((line, problem)) => {
                let count = self.count;
                remarks.push(format!(
                    "{count} lines that are no rows were left out, the first is line {line}: {problem}"
                ));
                Ok(())
            }
            None => Ok(()),
        }
    }
}

/// The text of a file: PowerShell writes UTF-16 with a byte order mark.
pub(super) fn decoded(bytes: &[u8]) -> Result<Cow<'_, str>, RunRecordError> {
    let wide = |unit: fn([u8; 2]) -> u16| {
        let units = bytes[2..].chunks_exact(2).map(|pair| unit([pair[0], pair[1]]));
        Ok(char::decode_utf16(units).map(|letter| letter.unwrap_or(char::REPLACEMENT_CHARACTER)).collect())
    };
    match bytes {
        [0xff, 0xfe, ..] => wide(u16::from_le_bytes),
        [0xfe, 0xff, ..] => wide(u16::from_be_bytes),
        _ => std::str::from_utf8(bytes).map(Cow::Borrowed).map_err(|error| RunRecordError::At {
            offset: error.valid_up_to() as u64,
            problem: "not UTF-8 text",
        }),
    }
}

/// `1234 MiB`, or a number of MiB; absent for `[N/A]` and the like.
fn amount(cell: &str) -> Result<Option<f64>, String> {
    if cell.is_empty() || cell.starts_with('[') || matches!(cell, "N/A" | "GPU is lost") {
        return Ok(None);
    }
    let number = cell.strip_suffix("MiB").unwrap_or(cell).trim();
    match number.parse::<f64>() {
        Ok(mib) if mib.is_finite() => Ok(Some(mib * MIB)),
        _ => Err(format!("{:?} is not a number of MiB", short(cell))),
    }
}

fn short(cell: &str) -> String {
    cell.chars().take(40).collect()
}
