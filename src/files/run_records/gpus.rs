//! Samples of GPUs: the CSV of `nvidia-smi --query-gpu=… --format=csv`.

use std::borrow::Cow;

use super::{RunRecord, RunRecordError, Samples};
use crate::formats::stamp;

const MIB: f64 = 1_048_576.0;

/// Reads the CSV of nvidia-smi, with or without units in the cells.
///
/// # Errors
/// [`RunRecordError`], with the line.
pub(crate) fn nvidia_smi(bytes: &[u8]) -> Result<RunRecord, RunRecordError> {
    let text = decoded(bytes)?;
    let mut lines = text.trim_start_matches('\u{feff}').lines().enumerate();
    let header = lines.find(|(_, line)| !line.trim().is_empty()).map_or("", |(_, line)| line);
    let columns: Vec<&str> = header.split(',').map(str::trim).collect();
    let place = |name: &str| columns.iter().position(|column| column.split(' ').next() == Some(name));
    let (Some(used), Some(time)) = (place("memory.used"), place("timestamp")) else {
        return Err(RunRecordError::Nothing(
            "the CSV of nvidia-smi needs the columns timestamp and memory.used, and index or uuid for several GPUs",
        ));
    };
    let total = place("memory.total");
    let id =
        ["index", "uuid", "gpu_uuid", "pci.bus_id", "gpu_bus_id", "serial"].iter().find_map(|id| place(id));
    let (mut samples, mut remarks) = (Samples::default(), Vec::new());
    let mut lines = lines.peekable();
    while let Some((place, line)) = lines.next() {
        let cells: Vec<&str> = line.split(',').map(str::trim).collect();
        // A command that was started again writes the header again.
        if line.trim().is_empty() || line == header {
            continue;
        }
        let wrong = |problem: String| RunRecordError::Line { line: place + 1, problem };
        if cells.len() != columns.len() {
            if lines.peek().is_none() {
                remarks.push("the last line is incomplete, and was ignored".to_owned());
                break;
            }
            return Err(wrong(format!("{} cells, but the header has {}", cells.len(), columns.len())));
        }
        let at = stamp::find(&cells[time].replace('/', "-"))
            .ok_or_else(|| wrong(format!("{:?} is not a time", short(cells[time]))))?;
        let name =
            id.map_or_else(|| "memory of the GPU".to_owned(), |id| format!("memory of GPU {}", cells[id]));
        let amount = |cell: usize| amount(cells[cell]).map_err(wrong);
        if let Some(used) = amount(used)? {
            samples.push(&name, true, at, used)?;
        }
        if let Some(limit) = total.map(amount).transpose()?.flatten() {
            samples.limit(&name, limit);
        }
    }
    let series = samples.finish(&mut remarks);
    Ok(RunRecord { tool: "nvidia-smi", series, remarks, ..RunRecord::default() })
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
    if cell.is_empty() || cell.starts_with('[') || cell == "N/A" {
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
