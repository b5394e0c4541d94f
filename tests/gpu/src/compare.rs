//! The daemon's metrics beside the raw answers of NVML and beside nvidia-smi.

use std::collections::BTreeSet;

use crate::daemon::{Page, Series};
use crate::recording::Recording;
use crate::results::Part;
use crate::rows::{Course, MIB, ROWS, Row};
use crate::smi;
use Course::{Fixed, Grows, Moves};

/// Metrics that are judged in another way below, or that say something about the daemon and not about a GPU.
const JUDGED_ELSEWHERE: &[&str] = &[
    "driver_info",
    "info",
    "processes",
    "process_memory_bytes",
    "status",
    "field_status",
    "sample_age_seconds",
    "nvlink_active_links",
    "virtualization_info",
    "confidential_compute_enabled",
    "confidential_compute_memory_bytes",
    "throttled",
    "memory_unattributed_bytes",
];

/// Labels of `memwarden_gpu_info` and the calls that answer them.
const IDENTITY: &[(&str, &str, &str)] = &[
    ("uuid", "nvmlDeviceGetUUID", "uuid"),
    ("name", "nvmlDeviceGetName", "product_name"),
    ("serial", "nvmlDeviceGetSerial", "serial"),
    ("vbios", "nvmlDeviceGetVbiosVersion", "vbios_version"),
];

/// Everything that was read, in the order in which it was read.
pub(crate) struct Readings<'a> {
    pub(crate) before: &'a Recording,
    pub(crate) first: &'a Page,
    /// nvidia-smi, or why there is none.
    pub(crate) smi: Result<Vec<smi::Gpu>, String>,
    pub(crate) last: &'a Page,
    pub(crate) after: &'a Recording,
}

/// Judges every metric of every GPU.
pub(crate) fn judge(readings: &Readings<'_>, part: &mut Part) {
    for gpu in 0..readings.before.gpus() {
        one_gpu(readings, gpu, part);
    }
    if let Err(why) = &readings.smi {
        part.not_judged("nvidia-smi -q -x", why.clone());
    }
}

fn one_gpu(readings: &Readings<'_>, gpu: u32, part: &mut Part) {
    let index = gpu.to_string();
    let own = [("gpu", index.as_str())];
    let smi = readings.smi.as_ref().ok().and_then(|gpus| {
        // nvidia-smi lists GPUs in the order of NVML.
        usize::try_from(gpu).ok().and_then(|index| gpus.get(index))
    });
    for row in ROWS {
        let name = format!("memwarden_gpu_{}", row.metric);
        let labels: Vec<(&str, &str)> = own.iter().chain(row.labels).copied().collect();
        let of = |page: &Page| page.value(&name, &labels);
        let what = describe(&name, &labels);
        let (function, arguments, field) = row.nvml;
        let call = |recording: &Recording| recording.find(Some(gpu), function, arguments).cloned();
        let raw =
            |recording: &Recording| call(recording).and_then(|call| Some(call.figure(field)? * row.factor));
        let figures = (raw(readings.before), of(readings.first), of(readings.last), raw(readings.after));
        match figures {
            (Some(before), Some(first), Some(last), Some(after)) => {
                let good = in_order(row.course, before, first, after, 0.0)
                    && in_order(row.course, before, last, after, 0.0);
                part.check(
                    &*what,
                    good,
                    format!("{first} and {last}; NVML before {before}, after {after}; {}", words(row.course)),
                );
            }
            (None, None, None, None) => {
                let code = call(readings.before).and_then(|call| call.code);
                let code = code
                    .map_or("the library does not have it".to_owned(), |code| format!("return code {code}"));
                part.not_judged(&*what, format!("{function}: {code}; memwarden exposes nothing either"));
                continue;
            }
            // A counter can begin with the daemon, so that NVML alone says that the call is supported.
            _ => part.check(&*what, false, format!("memwarden {:?}, NVML {:?}", figures.1, figures.0)),
        }
        let Some(smi) = smi else { continue };
        // Some drivers have the newer element without a figure.
        let texts: Vec<&String> = row.smi.iter().filter_map(|path| smi.texts.get(*path)).collect();
        let text = texts.iter().find(|text| smi::number(text).is_some()).or(texts.first());
        if let (Some(text), Some(first), Some(last)) = (text, figures.1, figures.2) {
            match smi::number(text) {
                Some(figure) => {
                    let rounding = if row.metric.ends_with("_bytes") { MIB } else { 0.011 };
                    let good = in_order(row.course, first, figure, last, rounding);
                    part.check(
                        format!("{what}, nvidia-smi"),
                        good,
                        format!("{first} and {last}; nvidia-smi {text}"),
                    );
                }
                None => part.not_judged(format!("{what}, nvidia-smi"), format!("nvidia-smi says {text:?}")),
            }
        }
    }
    identity(readings, gpu, smi, part);
    processes(readings, gpu, smi, part);
    links(readings, gpu, part);
    modes(readings, gpu, part);
    confidential_memory(readings, gpu, part);
    not_covered(readings.first, &own, part);
}

/// Whether a figure agrees with the ones before and after it.
fn in_order(course: Course, before: f64, figure: f64, after: f64, rounding: f64) -> bool {
    let (low, high) = (before.min(after), before.max(after));
    // Numbers of the text format lose their last digits.
    let slack = rounding + high.abs() * 1e-9;
    match course {
        Fixed => figure >= high - slack && figure <= low + slack,
        Grows => before <= figure + slack && figure <= after + slack,
        Moves(by) => {
            let slack = slack + by + if by > 0.0 { high.abs() * 0.1 } else { 0.0 };
            figure >= low - slack && figure <= high + slack
        }
    }
}

fn words(course: Course) -> String {
    match course {
        Fixed => "equal".to_owned(),
        Grows => "between them".to_owned(),
        Moves(by) => format!("between them ± {by} ± 10 %"),
    }
}

fn identity(readings: &Readings<'_>, gpu: u32, smi: Option<&smi::Gpu>, part: &mut Part) {
    let index = gpu.to_string();
    let Some(info) = readings.first.all("memwarden_gpu_info").find(|series| series.label("gpu") == index)
    else {
        return part.check(format!("memwarden_gpu_info{{gpu=\"{gpu}\"}}"), false, "there is no such series");
    };
    for (label, function, element) in IDENTITY {
        let answer = readings.before.find(Some(gpu), function, &[]);
        let raw = answer.and_then(|call| call.text("text")).unwrap_or_default();
        let what = format!("memwarden_gpu_info{{gpu=\"{gpu}\"}}: {label}");
        part.check(&*what, info.label(label) == raw, format!("{:?}; NVML {raw:?}", info.label(label)));
        if let Some(text) = smi.and_then(|smi| smi.texts.get(*element)).filter(|text| *text != "N/A") {
            let said = info.label(label);
            part.check(format!("{what}, nvidia-smi"), said == text, format!("{said:?}; nvidia-smi {text:?}"));
        }
    }
}

/// The memory of each process that was there before and after.
fn processes(readings: &Readings<'_>, gpu: u32, smi: Option<&smi::Gpu>, part: &mut Part) {
    let index = gpu.to_string();
    let listed = |recording: &Recording| -> BTreeSet<(u64, u64)> {
        let lists =
            crate::calls::PROCESS_LISTS.iter().filter_map(|list| recording.find(Some(gpu), list, &[]));
        let entries = lists.filter_map(|call| call.answer.get("processes")?.as_array()).flatten();
        entries
            .filter_map(|entry| Some((entry.get("pid")?.as_u64()?, entry.get("memory")?.as_u64()?)))
            .collect()
    };
    let (before, after) = (listed(readings.before), listed(readings.after));
    for (pid, memory) in before.intersection(&after) {
        let what = format!("memwarden_gpu_process_memory_bytes{{gpu=\"{gpu}\",pid=\"{pid}\"}}");
        let labels = [("gpu", index.as_str()), ("pid", &pid.to_string())];
        let said = readings.first.value("memwarden_gpu_process_memory_bytes", &labels);
        if *memory == u64::MAX {
            part.check(&*what, said.is_none(), format!("{said:?}; NVML says that it is not available"));
            continue;
        }
        let raw = as_f64(*memory);
        part.check(&*what, said == Some(raw), format!("{said:?}; NVML {raw}"));
        let other = u32::try_from(*pid).ok().and_then(|pid| smi?.processes.get(&pid).copied().flatten());
        if let Some(other) = other {
            part.check(
                format!("{what}, nvidia-smi"),
                (raw - other).abs() <= MIB,
                format!("{raw}; nvidia-smi {other}"),
            );
        }
    }
    if before.is_empty() && after.is_empty() {
        part.not_judged(format!("processes of GPU {gpu}"), "NVML lists none");
    }
}

/// Active links and the reasons of low clocks: the daemon computes these.
fn links(readings: &Readings<'_>, gpu: u32, part: &mut Part) {
    let index = gpu.to_string();
    let labels = [("gpu", index.as_str())];
    let active = |recording: &Recording| {
        let states = (0..18).filter_map(|link| {
            recording
                .find(Some(gpu), "nvmlDeviceGetNvLinkState", &[link])
                .and_then(|call| call.number("value"))
        });
        let states: Vec<u64> = states.collect();
        (!states.is_empty()).then(|| as_f64(states.iter().sum()))
    };
    let said = readings.first.value("memwarden_gpu_nvlink_active_links", &labels);
    let (before, after) = (active(readings.before), active(readings.after));
    let what = format!("memwarden_gpu_nvlink_active_links{{gpu=\"{gpu}\"}}");
    match (before, after) {
        (Some(before), Some(after)) => {
            let good = said.is_some_and(|said| in_order(Moves(0.0), before, said, after, 0.0));
            part.check(what, good, format!("{said:?}; NVML {before} and {after}"));
        }
        _ => part.not_judged(what, "the GPU has no NVLink"),
    }
}

/// The modes that a number of NVML names, and that the machine has and not the GPU.
fn modes(readings: &Readings<'_>, gpu: u32, part: &mut Part) {
    const MODES: [&str; 5] = ["none", "passthrough", "vgpu", "host_vgpu", "host_vsga"];
    let index = gpu.to_string();
    let number = |gpu: Option<u32>, function: &str, name: &str| {
        let number = readings.before.find(gpu, function, &[])?.number(name)?;
        usize::try_from(number).ok()
    };
    let virtualization = number(Some(gpu), "nvmlDeviceGetVirtualizationMode", "value");
    let confidential = number(None, "nvmlSystemGetConfComputeState", "feature");
    let series = |name: &str, labels: &[(&str, &str)]| {
        let all: Vec<(&str, &str)> = [("gpu", index.as_str())].iter().chain(labels).copied().collect();
        readings.first.value(&format!("memwarden_gpu_{name}"), &all)
    };
    for (what, number, said) in [
        (
            "virtualization_info",
            virtualization,
            MODES.iter().position(|mode| series("virtualization_info", &[("mode", mode)]) == Some(1.0)),
        ),
        (
            "confidential_compute_enabled",
            confidential,
            series("confidential_compute_enabled", &[]).map(|enabled| usize::from(enabled > 0.0)),
        ),
    ] {
        let what = format!("memwarden_gpu_{what}{{gpu=\"{gpu}\"}}");
        match (number, said) {
            (None, None) => {
                part.not_judged(what, "NVML does not report it; memwarden exposes nothing either")
            }
            _ => part.check(what, number == said, format!("{said:?}; NVML {number:?}")),
        }
    }
}

/// The memory of confidential compute, which is exposed while it is enabled.
fn confidential_memory(readings: &Readings<'_>, gpu: u32, part: &mut Part) {
    let feature = readings.before.find(None, "nvmlSystemGetConfComputeState", &[]);
    let enabled = feature.and_then(|call| call.number("feature")) == Some(1);
    for kind in ["protected", "unprotected"] {
        let name = "memwarden_gpu_confidential_compute_memory_bytes";
        let labels = [("gpu", &*gpu.to_string()), ("kind", kind)];
        let said = readings.first.value(name, &labels);
        let call = readings.before.find(Some(gpu), "nvmlDeviceGetConfComputeMemSizeInfo", &[]);
        let raw = call.and_then(|call| Some(call.figure(kind)? * 1024.0)).filter(|_| enabled);
        match (said, raw) {
            (None, None) => {}
            _ => part.check(describe(name, &labels), said == raw, format!("{said:?}; NVML {raw:?}")),
        }
    }
}

/// Names the metrics of a GPU that nothing here judges, so that a new one is not forgotten.
fn not_covered(page: &Page, own: &[(&str, &str)], part: &mut Part) {
    let of_gpu = page.0.iter().filter(|series| series.name.starts_with("memwarden_gpu_") && series.has(own));
    let known = |series: &&Series| {
        let short = series.name.trim_start_matches("memwarden_gpu_");
        let row = |row: &Row| {
            row.metric == short && row.labels.iter().all(|(label, value)| series.label(label) == *value)
        };
        JUDGED_ELSEWHERE.contains(&short) || ROWS.iter().any(row)
    };
    let names: BTreeSet<String> = of_gpu
        .filter(|series| !known(series))
        .map(|series| {
            let further = series.labels.iter().filter(|(label, _)| *label != "gpu" && *label != "uuid");
            let further: Vec<String> = further.map(|(label, value)| format!("{label}={value:?}")).collect();
            format!("{}{{{}}}", series.name, further.join(","))
        })
        .collect();
    for name in names {
        part.not_judged(
            name,
            "memwarden computes it from other readings, or no call of the recording has it",
        );
    }
}

fn describe(name: &str, labels: &[(&str, &str)]) -> String {
    let labels: Vec<String> = labels.iter().map(|(label, value)| format!("{label}=\"{value}\"")).collect();
    format!("{name}{{{}}}", labels.join(","))
}

#[expect(clippy::cast_precision_loss, reason = "the exposition has the precision of f64 too")]
pub(crate) fn as_f64(number: u64) -> f64 {
    number as f64
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::recording::Answer;
    use crate::results::Verdict;

    fn answer(gpu: Option<u32>, function: &str, code: u32, name: &str, value: serde_json::Value) -> Answer {
        Answer {
            function: function.to_owned(),
            gpu,
            mig: None,
            arguments: Vec::new(),
            code: Some(code),
            answer: [(name.to_owned(), value)].into_iter().filter(|_| code == 0).collect(),
            bytes: Vec::new(),
            micros: 0.0,
        }
    }

    /// The verdicts on the limit and the draw of one GPU, for what the daemon says of them.
    fn verdicts(metrics: &str, smi: Option<&str>) -> Vec<(String, Verdict)> {
        let calls = vec![
            answer(None, "nvmlDeviceGetCount_v2", 0, "value", 1.into()),
            answer(Some(0), "nvmlDeviceGetEnforcedPowerLimit", 0, "value", 700_000.into()),
            answer(Some(0), "nvmlDeviceGetPowerUsage", 3, "value", 0.into()),
        ];
        let recording = Recording { format: 1, origin: "device".to_owned(), taken: 0, calls };
        let page = Page::parse(metrics);
        let smi = smi.map_or(Err("not installed".to_owned()), |xml| Ok(smi::read(xml).unwrap()));
        let readings = Readings { before: &recording, first: &page, smi, last: &page, after: &recording };
        let mut part = Part::new("comparison");
        judge(&readings, &mut part);
        let of_power = part.checks.into_iter().filter(|check| check.what.contains("gpu_power"));
        of_power.map(|check| (check.what, check.verdict)).collect()
    }

    #[test]
    fn a_figure_that_another_reading_contradicts_differs() {
        let limit = "memwarden_gpu_power_limit_watts{gpu=\"0\"}";
        let draw = "memwarden_gpu_power_watts{gpu=\"0\"}";
        let both = |draw_is: Verdict, limit_is: Verdict| {
            vec![(draw.to_owned(), draw_is), (limit.to_owned(), limit_is)]
        };
        let unsupported = Verdict::Skipped;
        assert_eq!(verdicts(&format!("{limit} 700\n"), None), both(unsupported, Verdict::Ok));
        assert_eq!(verdicts(&format!("{limit} 500\n"), None), both(unsupported, Verdict::Differs));
        assert_eq!(verdicts("", None), both(unsupported, Verdict::Differs), "missing");
        let invented = format!("{limit} 700\n{draw} 5\n");
        assert_eq!(
            verdicts(&invented, None),
            both(Verdict::Differs, Verdict::Ok),
            "NVML does not support it"
        );
        let xml = "<l><gpu><gpu_power_readings><current_power_limit>300.00 W</current_power_limit></gpu_power_readings></gpu></l>";
        let found = verdicts(&format!("{limit} 700\n"), Some(xml));
        assert_eq!(found.last(), Some(&(format!("{limit}, nvidia-smi"), Verdict::Differs)));
    }

    #[test]
    fn a_metric_that_nothing_judges_is_listed() {
        let found = verdicts("memwarden_gpu_powerful_thing{gpu=\"0\"} 1\n", None);
        assert!(
            found.contains(&("memwarden_gpu_powerful_thing{}".to_owned(), Verdict::Skipped)),
            "{found:?}"
        );
    }

    #[test]
    fn figures_are_judged_by_their_course() {
        assert!(in_order(Fixed, 5.0, 5.0, 5.0, 0.0));
        assert!(!in_order(Fixed, 5.0, 5.1, 5.0, 0.0));
        assert!(in_order(Fixed, 5.0, 5.1, 5.0, 0.2));
        assert!(in_order(Grows, 5.0, 6.0, 7.0, 0.0));
        assert!(!in_order(Grows, 5.0, 4.0, 7.0, 0.0));
        assert!(!in_order(Grows, 5.0, 8.0, 7.0, 0.0));
        assert!(in_order(Moves(1.0), 10.0, 13.0, 11.0, 0.0));
        assert!(!in_order(Moves(1.0), 10.0, 14.0, 11.0, 0.0));
        assert!(in_order(Moves(0.0), 2.0, 1.0, 1.0, 0.0));
        assert!(!in_order(Moves(0.0), 2.0, 3.0, 1.0, 0.0));
    }
}
