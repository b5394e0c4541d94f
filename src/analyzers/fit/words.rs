//! The sentences of a verdict.

use super::free::{Neighbour, Place};
use crate::model::fit::{Medium, Phase, Prediction, Size, SizeUnit, Verdict};
use crate::model::fits::Fit;
use crate::model::format;
use crate::model::printable;
use crate::model::units::real;

/// The longest text of an answer, in characters.
const LONGEST: usize = 1_000;
const GIB: f64 = 1_073_741_824.0;
/// Lengths of samples are advised in steps of this many tokens.
const LENGTHS: u64 = 64;

/// The phase in words, with its size where that is known.
pub(super) fn title(prediction: &Prediction) -> String {
    let due = prediction.due_step.map(|step| format!("expected at step {step}"));
    let size = prediction.size.as_ref().map(|size| {
        let each = size.samples.zip(size.length).filter(|(samples, _)| *samples > 1);
        match (size.unit, each) {
            (_, Some((samples, length))) => format!("{samples} samples of {length} tokens"),
            (SizeUnit::Batches, _) => format!("the outputs of {} batches kept", size.units),
            (unit, _) => format!("{} {unit}", size.units),
        }
    });
    let name = match prediction.phase {
        Phase::Optimizer => "the first optimizer step",
        Phase::Step if prediction.so_far => "the largest step so far",
        Phase::Step => "the largest step",
        Phase::Evaluation => "evaluation",
        Phase::Generation => "generation",
        Phase::Save => match prediction.medium {
            Medium::Disk => "the save on the disk",
            Medium::Shm => "the save in /dev/shm",
            Medium::Device | Medium::Host => "the save",
        },
    };
    let more: Vec<String> = size.into_iter().chain(due).collect();
    if more.is_empty() { name.to_owned() } else { format!("{name} ({})", more.join(", ")) }
}

/// Which size of the phase fits; absent where none does, or where the peak does not depend on the size.
fn fitting(size: &Size, medium: Medium, capacity: f64) -> Option<String> {
    let fits = |units: u64, length: u64| real(size.peak(units, length).get()) <= capacity;
    let length = size.length.unwrap_or(0);
    match (size.unit, size.samples) {
        (SizeUnit::Batches, samples) => {
            let count = largest(size.units, |batches| fits(batches, length))?;
            // A Trainer that states its evaluation batch can move outputs to the host, from a GPU only.
            Some(if samples.is_some() && medium == Medium::Device {
                format!("eval_accumulation_steps={count} fits")
            } else {
                format!("the outputs of {count} of {} batches fit", size.units)
            })
        }
        (SizeUnit::Samples, _) => largest(size.units, |samples| fits(samples, length))
            .map(|count| format!("a micro-batch of {count} of {} samples fits", size.units)),
        (SizeUnit::Tokens, Some(samples)) if samples > 1 && length > 0 => {
            largest(samples, |count| fits(count.saturating_mul(length), length))
                .map(|count| format!("a micro-batch of {count} of {samples} samples fits"))
                .or_else(|| shorter(length, |length| fits(length, length)))
        }
        (SizeUnit::Tokens, _) => shorter(size.units, |tokens| fits(tokens, tokens)),
    }
}

/// The largest count below `most` that fits; absent where not even 1 does. The peak rises with the count.
fn largest(most: u64, fits: impl Fn(u64) -> bool) -> Option<u64> {
    let (mut below, mut above) = (0, most);
    while above.saturating_sub(below) > 1 {
        let middle = below + (above - below) / 2;
        if fits(middle) { below = middle } else { above = middle }
    }
    (below > 0).then_some(below)
}

/// The longest length that fits.
fn shorter(length: u64, fits: impl Fn(u64) -> bool) -> Option<String> {
    let count = largest(length.div_ceil(LENGTHS), |count| fits(count * LENGTHS))?;
    Some(format!("{length} tokens do not fit, {} do", count * LENGTHS))
}

/// The largest errors of predictions on the host, as shares of the peak, by phase (docs/measurements/fit.md): a limit that is
/// advised is above the prediction by as much.
const fn error(phase: Phase) -> f64 {
    match phase {
        Phase::Optimizer => 0.065,
        Phase::Step | Phase::Generation => 0.10,
        Phase::Evaluation => 0.08,
        Phase::Save => 0.12,
    }
}

/// The limit of a cgroup, now `limit` bytes, with which `lacking` more fit, as its resource manager writes it: a multiple of
/// 64 MiB below 2 GiB, of 256 MiB below 8 GiB, and of 1 GiB from there on.
pub(super) fn sufficient(cgroup: &str, limit: f64, lacking: f64) -> String {
    let mib = GIB / 1_024.0;
    let all = limit + lacking;
    let step = match all {
        large if large > 8.0 * GIB => GIB,
        medium if medium > 2.0 * GIB => 256.0 * mib,
        _ => 64.0 * mib,
    };
    let (unit, letter) = if step >= GIB { (GIB, 'G') } else { (mib, 'M') };
    let count = (all / step).ceil() * step / unit;
    match cgroup {
        slurm if slurm.contains("slurm") => format!("--mem={count}{letter} fits"),
        pod if pod.contains("kubepods") => format!("limits.memory: {count}{letter}i fits"),
        _ => format!("a memory limit of {count} {letter}iB fits"),
    }
}

/// Who stands in the way, which size fits, and which limit suffices. `elsewhere` are the bytes that the other limits and the host leave for the phase.
pub(super) fn advice(
    fit: &Fit,
    prediction: &Prediction,
    place: &Place,
    foreign: f64,
    elsewhere: Option<f64>,
) -> String {
    let (Some(capacity), Some([peak, most])) = (fit.capacity_bytes, fit.peak_bytes) else {
        return String::new();
    };
    let mut parts = Vec::new();
    if fit.verdict == Verdict::WillNotFit {
        if let Some(Neighbour { pid, held, user }) = &place.neighbour
            && capacity + held >= peak
        {
            let user =
                user.as_ref().map_or_else(String::new, |user| format!(" of {}", printable::escaped(user)));
            parts.push(format!("it fits alone: PID {pid}{user} holds {} there", format::bytes(*held)));
        }
        parts.extend(prediction.size.as_ref().and_then(|size| fitting(size, prediction.medium, capacity)));
        let most = most.max(peak * (1.0 + error(prediction.phase)));
        let limit = place.limit.filter(|_| elsewhere.is_some_and(|elsewhere| elsewhere >= most));
        parts.extend(limit.map(|limit| sufficient(place.subject.cgroup.as_str(), limit, most - capacity)));
    }
    if fit.verdict == Verdict::Tight && foreign > 0.0 && capacity - foreign < peak {
        parts.push(format!("other workloads there predict {} more", format::bytes(foreign)));
    }
    parts.join("; ")
}

/// An amount that is compared with another one, so exactly that both differ.
fn apart(amount: f64, other: f64) -> String {
    let shown = format::bytes(amount);
    if shown == format::bytes(other) && amount.round() != other.round() {
        format::exact_bytes(amount)
    } else {
        shown
    }
}

/// The place of a verdict.
fn of_place(fit: &Fit) -> String {
    match fit.resource.resource.as_str() {
        "host" => " of host memory".to_owned(),
        "cgroup" => format!(" in the cgroup {}", printable::escaped(fit.resource.cgroup.as_str())),
        "device_memory" => {
            format!(
                " in the device memory of the cgroup {}",
                printable::escaped(fit.resource.cgroup.as_str())
            )
        }
        _ if !fit.resource.gpu.is_empty() => format!(" on GPU {}", fit.resource.gpu),
        _ => String::new(),
    }
}

fn more(text: &str) -> String {
    if text.is_empty() { String::new() } else { format!("; {text}") }
}

/// The finding in one sentence.
pub(super) fn summary(fit: &Fit) -> String {
    let (peak, capacity) = (fit.peak_bytes.map(|peak| peak[0]), fit.capacity_bytes);
    format!(
        "Rank {} of {}: {} needs {} and will not fit: {} is available{}{}{}.",
        printable::escaped(fit.rank.as_str()),
        printable::escaped(format::or_unknown(fit.workload.as_str())),
        fit.title,
        format::shown(peak, format::bytes),
        format::shown(capacity, format::bytes),
        of_place(fit),
        more(&fit.advice),
        more(&fit.past),
    )
}

/// What can be done about a phase that will not fit.
pub(super) fn way_out(fit: &Fit) -> &'static str {
    match fit.phase {
        Phase::Optimizer => {
            "Shard the optimizer's state (FSDP, ZeRO), keep it in 8 bits or offload it, or train fewer parameters."
        }
        Phase::Step => "Reduce the micro-batch or the maximum length, or use activation checkpointing.",
        Phase::Evaluation => {
            "Set eval_accumulation_steps, reduce the evaluation batch, or return predictions instead of logits."
        }
        Phase::Generation => "Reduce the batch or the maximum length of generation.",
        Phase::Save if fit.resource.resource.as_str() == "disk" => {
            "Free space in the folder of checkpoints, keep fewer checkpoints (save_total_limit), or save to another disk."
        }
        Phase::Save if fit.resource.resource.as_str() == "shm" => {
            "Give the job a larger /dev/shm, or save to a disk."
        }
        Phase::Save => "Save a sharded state dict, or give the job more host memory.",
    }
}

/// What a rank is told: the phases that are still to come, each with its verdict.
pub(super) fn line<'f>(fits: impl Iterator<Item = &'f Fit>) -> String {
    let parts = fits.map(|fit| {
        let (title, place) = (&fit.title, of_place(fit));
        let Some([p50, p90]) = fit.peak_bytes else {
            return format!("{title} is unknown ({})", printable::escaped(fit.basis.as_str()));
        };
        let least = if fit.least { "at least " } else { "" };
        let Some(free) = fit.capacity_bytes else {
            return format!("{title} needs {least}{}; what is free for it is not known", format::bytes(p50));
        };
        // What is compared: that which may be too much where it may not fit.
        let compared = if fit.verdict == Verdict::Tight { p90 } else { p50 };
        let (peak, capacity) = (apart(compared, free), apart(free, compared));
        let more = more(&fit.advice);
        match fit.verdict {
            Verdict::Fits => format!("{title} fits ({peak} of {capacity}{place})"),
            Verdict::Tight => {
                let range = if p50 < p90 { format!("{} to {peak}", apart(p50, p90)) } else { peak };
                format!("{title} may not fit ({range} of {capacity}{place}{more})")
            }
            Verdict::WillNotFit => {
                format!("{title} needs {least}{peak} and will not fit: {capacity} is available{place}{more}")
            }
            Verdict::Unknown => format!("{title} needs {least}{peak}; whether it fits is not known"),
        }
    });
    format::beginning(&parts.collect::<Vec<_>>().join("; "), LONGEST)
}
