//! Megatron-LM, and frameworks with the same format: Megatron-DeepSpeed, BLOOM, GPT-NeoX, AMD Primus.
//!
//! `training_log` of megatron/training/training.py (HEAD) and earlier; printed by the last rank only.
//! `report_memory` of megatron/training/utils (common_utils.py), by each first data-parallel rank.
//! Primus prints the last value and the average (`13100.0/13240.9`), of which the last counts.

use super::cells;
use super::reading::Reading;
use super::scan::{self, after, number, whole};
use crate::model::units::MIB;
pub(super) fn read(line: &str) -> Option<Reading> {
    iteration(line).or_else(|| memory(line))
}

/// ` [time] iteration 4/ 25000 | consumed samples: 4096 | elapsed time per iteration (ms): 270125.4 | …`, with `=` and
/// underscores (Megatron-DeepSpeed), in seconds (BLOOM), or after a first cell with the samples a second (GPT-NeoX).
fn iteration(line: &str) -> Option<Reading> {
    let place = |cell: &str| scan::of(cell.rsplit_once("iteration")?.1.trim_start_matches([' ', '=']));
    let (step, planned) = line.split('|').take(2).find_map(place)?;
    let mut reading = Reading { step: Some(step), steps_planned: Some(planned), ..Reading::default() };
    cells::set(&mut reading, line, &["elapsed time per iteration"]).then_some(reading)
}

/// `[Rank 0] (after 10 iterations) memory (MB) | allocated: 18244.6 | max allocated: … | reserved: … | max reserved: …`.
fn memory(line: &str) -> Option<Reading> {
    let (front, cells) = line.split_once("memory (MB) |")?;
    let mut reading = Reading {
        rank: after(front, "[Rank ").and_then(whole).and_then(|rank| rank.try_into().ok()),
        ..Reading::default()
    };
    for cell in cells.split('|') {
        let Some((name, value)) = cell.split_once(':') else { continue };
        let bytes = number(value).and_then(|mebibytes| scan::scaled(mebibytes, MIB));
        match name.trim() {
            "allocated" => reading.allocated = bytes,
            "max allocated" => reading.allocated_peak = bytes,
            "reserved" => reading.reserved = bytes,
            "max reserved" => reading.reserved_peak = bytes,
            _ => {}
        }
    }
    reading.some()
}
