//! Which allocator setting would help, and why: from figures of this snapshot only.
//!
//! Settings and what they do: the PyTorch notes on CUDA semantics ("Optimizing
//! memory usage with PYTORCH_CUDA_ALLOC_CONF"). Without a reason to change
//! something, the advice is that nothing would help.

use super::{Analysis, Request, TraceReport};
use crate::formats::snapshot::Settings;
use crate::model::units::Bytes;

/// One setting or call, and why it would help.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct Advice {
    /// What to set or call; `none` where nothing would help.
    pub setting: String,
    /// Why, with figures of this snapshot.
    pub why: String,
}

/// From this share of what is reserved on, losing it is worth a change: below, the next request's size decides
/// more than the allocator does.
const WORTH: f64 = 0.05;
/// From this share of what is reserved on, whole free segments are worth a word.
const IDLE: f64 = 0.2;
/// From this share of what is allocated on, rounding is worth a change.
const ROUNDING: f64 = 0.1;
/// Less than this is not worth a change, whatever its share: a segment of the large pool has 20 MiB.
const LEAST: Bytes = Bytes::new(16 << 20);
/// So often per allocation, memory taken from the driver means that the cache does not serve.
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
            "{} of {} reserved are lost between live blocks, {} to rounding: no setting would win much",
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
                "it is {size} together with expandable_segments, which do not need it; reserved memory can then \
                 grow without bound (pytorch issue 123548)"
            ),
        );
    }
    if settings.garbage_collection_threshold_ratio.is_some_and(|ratio| ratio > 0.0) {
        say(
            "garbage_collection_threshold (remove)",
            "expandable segments are never collected by it, so it does nothing here".to_owned(),
        );
    }
}

/// The request that loses the most.
fn worst<'r>(analysis: &'r Analysis<'_>) -> Option<&'r Request> {
    analysis.requests.iter().max_by_key(|request| (request.lost_bytes, request.size_bytes))
}

fn split(analysis: &Analysis<'_>, settings: &Settings<'_>, say: &mut impl FnMut(&str, String)) {
    let Some(worst) = worst(analysis).filter(|worst| worst.lost_ratio.is_some_and(|lost| lost >= WORTH))
    else {
        return;
    };
    let lost = format!(
        "{} ({}) of what is reserved lie between live blocks in pieces too small for a request of {}, and cannot \
         be given back",
        worst.lost_bytes,
        percent(worst.lost_ratio),
        worst.size_bytes,
    );
    if settings.expandable_segments == Some(true) {
        say(
            "torch.cuda.empty_cache() at the end of a phase",
            format!(
                "{lost}; segments can already grow in place, so long-lived blocks among short-lived ones are \
                     in the way: allocate what stays before what goes"
            ),
        );
        return;
    }
    say(
        "expandable_segments:True",
        format!(
            "{lost}; a segment that grows in place keeps free memory in one piece, and its free pages can be \
                 given back"
        ),
    );
    if settings.max_split_size_bytes.is_none()
        && let Some(megabytes) = split_limit(analysis)
    {
        say(
            &format!("max_split_size_mb:{megabytes} (where expandable segments cannot be used)"),
            format!(
                "the largest such piece has {}; segments above the limit are not cut up for small requests, so \
                 that they stay whole for large ones",
                analysis.gaps.first().map_or(Bytes::ZERO, |gap| gap.size_bytes),
            ),
        );
    }
}

/// The power of two above what is cut out of the segments with the largest gaps, in MiB.
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
            "device {}: {} segments were given back and {} taken for {} allocations{span}; each is a slow \
             call into the driver, and a sign that the job runs at its limit or calls empty_cache() in its loop",
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
        let (asked, free) = (failure.requested_bytes, failure.device_free_bytes);
        if unreleasable >= asked {
            say(
                "expandable_segments:True",
                format!(
                    "device {}: {asked} could not be allocated with {free} free on the device, while {unreleasable} were \
                     free between live blocks: the failure is one of fragmentation",
                    trace.device,
                ),
            );
        } else {
            say(
                "a smaller batch, activation checkpointing, or sharding",
                format!(
                    "device {}: {asked} could not be allocated with {free} free on the device, and only {unreleasable} \
                     free between live blocks: no allocator setting would have found room",
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
                &format!("a look at {}", leak.stack.short),
                format!(
                    "device {}: it left {} behind in {} of {} whole steps; no allocator setting gives back what \
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
    let lost = format!("{} ({}) of what is active was not asked for", totals.internal_bytes, percent(share));
    match settings.roundup_power2_divisions {
        Some(divisions) if divisions > 0 => say(
            "roundup_power2_divisions (more divisions, or remove)",
            format!("{lost}; requests are rounded up to one of {divisions} sizes between powers of two"),
        ),
        _ => say(
            "fewer, larger tensors",
            format!(
                "{lost}; every block is rounded up to 512 B, and a block of a large segment keeps a rest of up \
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
                "{} ({}) of what is reserved are free and can be given back; the allocator does so by itself \
                 before it fails, so this is no fragmentation",
                totals.releasable_bytes,
                percent(share),
            ),
        );
    }
}

fn percent(share: Option<f64>) -> String {
    share.map_or_else(|| "unknown".to_owned(), |share| format!("{:.1} %", share * 100.0))
}
