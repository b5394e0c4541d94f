//! DeepSpeed: `ThroughputTimer` (deepspeed/utils/timer.py), `_report_progress` of the engine, its wall clock
//! breakdown, and `see_memory_usage` (deepspeed/runtime/utils.py). Rank 0 only.

use super::reading::Reading;
use super::scan::{after, field, front, memory, number, whole};

pub(super) fn read(line: &str) -> Option<Reading> {
    throughput(line).or_else(|| progress(line)).or_else(|| times(line)).or_else(|| usage(line))
}

/// `epoch=0/micro_step=10/global_step=10, RunningAvgSamplesPerSec=220.7, CurrSamplesPerSec=222.9, MemAllocated=0.07GB,
/// MaxMemAllocated=1.36GB`; before 0.5 `0/20, RunningAvgSamplesPerSec=…`, where 20 counts micro steps.
fn throughput(line: &str) -> Option<Reading> {
    let (before, rest) = line.split_once("RunningAvgSamplesPerSec=")?;
    // The average is -inf until there are steps to average.
    let average = number(rest);
    Reading {
        step: after(before, "global_step=").and_then(whole),
        samples_per_second: field(rest, "CurrSamplesPerSec=").or(average).filter(|rate| *rate > 0.0),
        allocated: memory(rest, ", MemAllocated="),
        allocated_peak: memory(rest, "MaxMemAllocated="),
        ..Reading::default()
    }
    .some()
}

/// `[Rank 0] step=10, skipped=4, lr=[4.9e-05, 4.9e-05], mom=[[0.9, 0.999]]`.
fn progress(line: &str) -> Option<Reading> {
    let (front, rest) = line.split_once("] step=")?;
    let skipped = after(rest, "skipped=").and_then(whole)?;
    Some(Reading {
        rank: rank(front),
        step: Some(whole(rest)?),
        skipped: Some(skipped),
        learning_rate: after(rest, "lr=").map(|rates| rates.trim_start_matches('[')).and_then(number),
        ..Reading::default()
    })
}

/// `time (ms) | fwd: 55.15 | bwd: 180.82 | bwd_inner: … | bwd_allreduce: … | step: 183.61`, of a whole step; the
/// lines of micro steps have other names. All zero means that nothing was timed.
fn times(line: &str) -> Option<Reading> {
    let (before, cells) = line.split_once("time (ms) |")?;
    let mut reading = Reading { rank: rank(before), ..Reading::default() };
    for cell in cells.split('|') {
        let Some((name, value)) = cell.split_once(':') else { continue };
        let phase = match name.trim() {
            "fwd" | "forward" => 0,
            "bwd" | "backward" => 1,
            "step" => 2,
            _ => continue,
        };
        reading.phases[phase] = number(value).filter(|millis| *millis > 0.0).map(|millis| millis / 1000.0);
    }
    reading.some()
}

/// `MA 1.36 GB         Max_MA 2.5 GB         CA 3.0 GB         Max_CA 3 GB`.
fn usage(line: &str) -> Option<Reading> {
    let rest = line
        .split_once("MA ")
        .filter(|(before, _)| !before.ends_with(|letter: char| !letter.is_whitespace()))?
        .1;
    let after_unit = |text| front(text).is_some_and(|(_, rest)| rest.trim_start().starts_with("GB"));
    if !after_unit(rest) || !rest.contains("Max_MA ") {
        return None;
    }
    Reading {
        allocated: super::scan::bytes(rest),
        allocated_peak: memory(rest, "Max_MA "),
        reserved: memory(rest, " CA "),
        reserved_peak: memory(rest, "Max_CA "),
        ..Reading::default()
    }
    .some()
}

fn rank(text: &str) -> Option<u32> {
    after(text, "[Rank ").and_then(whole)?.try_into().ok()
}
