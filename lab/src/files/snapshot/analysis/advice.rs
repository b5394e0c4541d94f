//! Allocator settings that would help, and the reasons, from this snapshot only.
//!
//! Source of the settings and their effects: the PyTorch notes on CUDA semantics ("Optimizing memory usage with
//! PYTORCH_CUDA_ALLOC_CONF"). Without a reason to change something, the advice states that nothing would help.

use super::{Analysis, Request, TraceReport};
use crate::files::snapshot::Settings;
use memwarden::model::format;
use memwarden::model::units::Bytes;

/// One setting or call, and why it would help.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct Advice {
    /// The setting or call; `none` where nothing would help.
    pub setting: String,
    pub why: String,
}

/// Minimum lost share of the reserved memory for an advice: below it, the sizes of the next requests matter more than
/// fragmentation.
const WORTH: f64 = 0.05;
/// Minimum share of free segments in the reserved memory for an advice.
const IDLE: f64 = 0.2;
/// Minimum share lost to rounding in the allocated memory for an advice.
const ROUNDING: f64 = 0.1;
/// Minimum amount for an advice, whatever its share: a segment of the large pool has 20 MiB.
const LEAST: Bytes = Bytes::new(16 << 20);
/// If more than one of this many allocations takes memory from the driver, the cache is not effective.
const TRAFFIC: u64 = 20;

pub(super) fn advise(analysis: &Analysis<'_>) -> Vec<Advice> {
    let settings = analysis.allocator_settings.clone().unwrap_or_default();
    let mut advice = Vec::new();
    let mut say = |setting: &str, why: String| {
        let known = advice.iter_mut().find(|known: &&mut Advice| known.setting == setting);
        match known {
            Some(known) => known.why = format!("{}; {why}", known.why),
            None => advice.push(Advice { setting: setting.to_owned(), why }),
        }
    };
    conflicts(&settings, &mut say);
    failures(analysis, &mut say);
    leaks(analysis, &mut say);
    split(analysis, &settings, &mut say);
    traffic(analysis, &settings, &mut say);
    rounding(analysis, &settings, &mut say);
    idle(analysis, &mut say);
    if advice.is_empty() {
        let totals = &analysis.totals;
        let why = format!(
            "{} of {} reserved are unreleasable, {} are lost to rounding: no setting would save much",
            totals.unreleasable_bytes, totals.reserved_bytes, totals.internal_bytes,
        );
        advice.push(Advice { setting: "none".to_owned(), why });
    }
    advice
}

fn conflicts(settings: &Settings<'_>, say: &mut impl FnMut(&str, String)) {
    if settings.expandable_segments != Some(true) {
        return;
    }
    if let Some(size) = settings.max_split_size_bytes {
        let size = Bytes::new(size);
        say(
            "max_split_size_mb (remove)",
            format!(
                "it is {size} together with expandable_segments, which do not require it; reserved memory can then \
                 grow without bound (pytorch issue 123548)"
            ),
        );
    }
    if settings.garbage_collection_threshold_ratio.is_some_and(|ratio| ratio > 0.0) {
        say(
            "garbage_collection_threshold (remove)",
            "it does not apply to expandable segments, so it has no effect here".to_owned(),
        );
    }
}

/// The request with the most lost memory.
fn worst<'r>(analysis: &'r Analysis<'_>) -> Option<&'r Request> {
    analysis.requests.iter().max_by_key(|request| (request.lost_bytes, request.size_bytes))
}

fn split(analysis: &Analysis<'_>, settings: &Settings<'_>, say: &mut impl FnMut(&str, String)) {
    let Some(worst) = worst(analysis).filter(|worst| worst.lost_ratio.is_some_and(|lost| lost >= WORTH))
    else {
        return;
    };
    let lost = format!(
        "{} ({}) of the reserved memory are free between active blocks in pieces too small for a request of {}, and \
         cannot be released",
        worst.lost_bytes,
        format::shown(worst.lost_ratio, format::percent),
        worst.size_bytes,
    );
    if settings.expandable_segments == Some(true) {
        say(
            "torch.cuda.empty_cache() at the end of a phase",
            format!(
                "{lost}; segments are already expandable, so the cause is long-lived blocks among short-lived \
                     ones: allocate long-lived tensors before short-lived ones"
            ),
        );
        return;
    }
    say(
        "expandable_segments:True",
        format!(
            "{lost}; an expandable segment keeps free memory in one piece, and its free pages can be \
                 released"
        ),
    );
    if settings.max_split_size_bytes.is_none()
        && let Some(megabytes) = split_limit(analysis)
    {
        say(
            &format!("max_split_size_mb:{megabytes} (where expandable segments cannot be used)"),
            format!(
                "the largest such piece has {}; segments above the limit are not split for small requests, so \
                 that they remain available for large ones",
                analysis.gaps.first().map_or(Bytes::ZERO, |gap| gap.size_bytes),
            ),
        );
    }
}

/// The power of two above the largest blocks split from the segments with the largest gaps, in MiB.
fn split_limit(analysis: &Analysis<'_>) -> Option<u64> {
    let neighbors = analysis.gaps.iter().flat_map(|gap| [&gap.before, &gap.after]).flatten();
    let cut = neighbors.map(|neighbor| neighbor.size_bytes.get()).max()?;
    // The setting's smallest value is 21 (kLargeBuffer, 20 MiB).
    Some((cut >> 20).next_power_of_two().max(32))
}

fn traffic(analysis: &Analysis<'_>, settings: &Settings<'_>, say: &mut impl FnMut(&str, String)) {
    let busy = |trace: &&TraceReport| {
        trace.segment_frees > 1 && trace.segment_frees.saturating_mul(TRAFFIC) >= trace.allocations
    };
    for trace in analysis.traces.iter().filter(busy) {
        let span = trace.span_seconds.map_or(String::new(), |span| format!(" in {span:.1} s"));
        let why = format!(
            "device {}: {} segments were released and {} allocated for {} allocations{span}; each is a slow \
             driver call, and a sign that the job runs at its memory limit or calls empty_cache() in its loop",
            trace.device, trace.segment_frees, trace.segment_allocations, trace.allocations,
        );
        let expandable = settings.expandable_segments == Some(true);
        let setting = if expandable || settings.garbage_collection_threshold_ratio.is_some_and(|at| at > 0.0)
        {
            "a smaller batch, or no empty_cache() in the loop"
        } else {
            "garbage_collection_threshold:0.8 (with set_per_process_memory_fraction), or a smaller batch"
        };
        say(setting, why);
    }
}

fn failures(analysis: &Analysis<'_>, say: &mut impl FnMut(&str, String)) {
    for trace in &analysis.traces {
        let Some(failure) = trace.failures.last() else { continue };
        let device = analysis.devices.iter().find(|group| group.device == trace.device);
        let unreleasable = device.map_or(Bytes::ZERO, |group| group.totals.unreleasable_bytes);
        let (requested, free) = (failure.requested_bytes, failure.device_free_bytes);
        if unreleasable >= requested {
            say(
                "expandable_segments:True",
                format!(
                    "device {}: {requested} could not be allocated with {free} free on the device, while {unreleasable} were \
                     free between active blocks: the cause is fragmentation",
                    trace.device,
                ),
            );
        } else {
            say(
                "a smaller batch, activation checkpointing, or sharding",
                format!(
                    "device {}: {requested} could not be allocated with {free} free on the device, and only {unreleasable} \
                     free between active blocks: no allocator setting would have helped",
                    trace.device,
                ),
            );
        }
    }
}

fn leaks(analysis: &Analysis<'_>, say: &mut impl FnMut(&str, String)) {
    for trace in &analysis.traces {
        for leak in trace.leaks.stacks.iter().filter(|stack| stack.suspect).take(3) {
            say(
                &format!("check {}", leak.stack.short),
                format!(
                    "device {}: it left {} allocated in {} of {} complete steps; no allocator setting releases memory that \
                     the program still refers to",
                    trace.device, leak.live_bytes, leak.in_steps, trace.leaks.whole_steps,
                ),
            );
        }
    }
}

fn rounding(analysis: &Analysis<'_>, settings: &Settings<'_>, say: &mut impl FnMut(&str, String)) {
    let totals = &analysis.totals;
    let share = totals.internal_bytes.share_of(totals.active_bytes).map(|share| share.get());
    if totals.internal_bytes < LEAST || share.is_none_or(|share| share < ROUNDING) {
        return;
    }
    let lost = format!(
        "{} ({}) of the active memory was not requested",
        totals.internal_bytes,
        format::shown(share, format::percent)
    );
    match settings.roundup_power2_divisions {
        Some(divisions) if divisions > 0 => say(
            "roundup_power2_divisions (more divisions, or remove)",
            format!("{lost}; requests are rounded up to one of {divisions} sizes between powers of two"),
        ),
        _ => say(
            "fewer, larger tensors",
            format!(
                "{lost}; every block is rounded up to 512 B, and a block of a large segment keeps a remainder of up \
                     to 1 MiB: no setting changes that"
            ),
        ),
    }
}

fn idle(analysis: &Analysis<'_>, say: &mut impl FnMut(&str, String)) {
    let totals = &analysis.totals;
    let share = totals.releasable_bytes.share_of(totals.reserved_bytes).map(|share| share.get());
    if totals.releasable_bytes >= LEAST && share.is_some_and(|share| share >= IDLE) {
        say(
            "torch.cuda.empty_cache() (only if another process needs the memory)",
            format!(
                "{} ({}) of the reserved memory are free and can be released; the allocator does this itself \
                 before an allocation fails, so this is not fragmentation",
                totals.releasable_bytes,
                format::shown(share, format::percent),
            ),
        );
    }
}
