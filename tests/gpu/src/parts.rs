//! The parts without PyTorch. Each is carried out in a process of its own.

use std::fs;
use std::process::Command;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::compare::{self, Readings, as_f64};
use crate::daemon::{Daemon, Page, usage};
use crate::program::Program;
use crate::record;
use crate::recording::{self, Recording};
use crate::results::Part;
use crate::settings::Settings;
use crate::{replay, smi};

/// How long a program or the daemon may take for one step.
const PATIENCE: Duration = Duration::from_secs(20);
pub(crate) const MIB: f64 = 1_048_576.0;

/// Samples of the daemon in the parts with programs: four in a second, so that short parts have enough of them.
pub(crate) const FAST: [&str; 3] =
    ["sampling.interval=250ms", "sources.gpu.interval=250ms", "sampling.peak_window=60s"];

/// The GPU on which the programs allocate, as the daemon names it.
#[derive(Clone, Debug)]
pub(crate) struct Gpu {
    pub(crate) index: String,
}

/// Starts a CUDA program.
pub(crate) fn program(
    settings: &Settings,
    part: &str,
    name: &str,
    options: &[(&str, usize)],
) -> anyhow::Result<Program> {
    let mut command = Command::new(std::env::current_exe()?);
    command.args(["cuda", name, "--library", &settings.cuda, "--device", &settings.device.to_string()]);
    for (option, value) in options {
        command.args([*option, &value.to_string()]);
    }
    let folder = settings.folder(part);
    if name == "job" {
        command.arg("--file").arg(folder.join("checkpoint.json"));
    }
    Program::start(command, &folder, name)
}

/// Starts the daemon with short intervals.
pub(crate) fn fast_daemon(settings: &Settings, part: &str, more: &[String]) -> anyhow::Result<Daemon> {
    let all: Vec<String> = FAST.iter().map(|text| (*text).to_owned()).chain(more.iter().cloned()).collect();
    Daemon::start(&settings.memwarden, &settings.folder(part), &settings.nvml, &all)
}

/// Free memory of the GPU of the programs, as CUDA says it.
///
/// # Errors
/// CUDA cannot be used.
pub(crate) fn free_memory(settings: &Settings, part: &str) -> anyhow::Result<f64> {
    let probe = program(settings, part, "hold", &[("--step", 2 << 20)])?;
    let held = probe.expect("held", PATIENCE)?;
    probe.end();
    Ok(number(&held, "free"))
}

/// Whether the daemon lists a process on a GPU: in a pid namespace of its own, NVML gives other numbers, or none.
pub(crate) fn is_listed(daemon: &Daemon, pid: u32) -> bool {
    let pid = pid.to_string();
    let listed = daemon.wait("the process on the GPU", Duration::from_secs(8), |page| {
        page.all("memwarden_gpu_process_memory_bytes").any(|series| series.label("pid") == pid)
    });
    listed.is_ok()
}

/// Why a part that needs the process on the GPU is skipped.
pub(crate) const NOT_LISTED: &str =
    "NVML does not list the process under its pid, as in a container without the pid namespace of the host";

/// Finds the GPU of a program among those of the daemon.
pub(crate) fn gpu_of(page: &Page, ready: &Value) -> anyhow::Result<Gpu> {
    let pci = ready.get("pci").and_then(Value::as_str).unwrap_or_default();
    let info = page.all("memwarden_gpu_info").find(|series| same_pci(series.label("pci"), pci));
    let info = info.ok_or_else(|| anyhow::anyhow!("memwarden knows no GPU at {pci}"))?;
    Ok(Gpu { index: info.label("gpu").to_owned() })
}

/// Whether two addresses are the same, whatever the number of digits of the domain.
pub(crate) fn same_pci(one: &str, other: &str) -> bool {
    let parts = |text: &str| -> Option<(u32, String)> {
        let (domain, rest) = text.split_once(':')?;
        Some((u32::from_str_radix(domain, 16).ok()?, rest.to_lowercase()))
    };
    parts(one).is_some() && parts(one) == parts(other)
}

pub(crate) fn number(line: &Value, name: &str) -> f64 {
    line.get(name).and_then(Value::as_f64).unwrap_or(f64::NAN)
}

pub(crate) fn size(bytes: f64) -> usize {
    // Whole MiB, as the drivers allocate.
    let mib = (bytes / MIB).max(2.0);
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "positive, and below the memory of a GPU"
    )]
    let whole = mib as usize;
    whole << 20
}

fn save(settings: &Settings, part: &str, name: &str, text: &str) -> anyhow::Result<()> {
    let folder = settings.folder(part);
    fs::create_dir_all(&folder)?;
    Ok(fs::write(folder.join(name), text)?)
}

fn take_recording(settings: &Settings) -> anyhow::Result<Recording> {
    record::record(&settings.nvml, None)
}

/// The raw answers, and the scenario with which the fake gives them.
pub(crate) fn recording(settings: &Settings) -> anyhow::Result<Part> {
    let mut part = Part::new("recording");
    let journal = fs::File::create(settings.folder("recording").join("calls.txt"))?;
    let recording = record::record(&settings.nvml, Some(journal))?;
    save(settings, "recording", "recording.json", &recording.text()?)?;
    let scenario = replay::scenario(&recording);
    save(settings, "recording", "scenario.json", &serde_json::to_string_pretty(&scenario)?)?;
    let count =
        |wanted: fn(&recording::Answer) -> bool| recording.calls.iter().filter(|call| wanted(call)).count();
    part.figure("calls", recording.calls.len());
    part.figure("calls that succeeded", count(|call| call.code == Some(recording::SUCCESS)));
    let mut longest: Vec<&recording::Answer> =
        recording.calls.iter().filter(|call| call.function != "nvmlEventSetWait_v2").collect();
    longest.sort_by(|one, other| other.micros.total_cmp(&one.micros));
    let named: Vec<String> =
        longest.iter().take(5).map(|call| format!("{} {:.1} ms", call.function, call.micros / 1e3)).collect();
    part.figure("longest calls", named.join(", "));
    for gpu in 0..recording.gpus() {
        for (function, why) in replay::refused(&recording, Some(gpu)) {
            part.not_judged(format!("GPU {gpu}: {function}"), why);
        }
    }
    let gpus = recording.gpus();
    part.check("GPUs that answer", gpus > 0, format!("{gpus}"));
    part.note = format!("{} answers of {gpus} GPUs", recording.calls.len());
    Ok(part)
}

/// Every metric beside NVML and nvidia-smi, while one process holds memory.
pub(crate) fn comparison(settings: &Settings) -> anyhow::Result<Part> {
    let name = "comparison";
    let mut part = Part::new(name);
    let program = program(settings, name, "hold", &[("--step", 256 << 20)]);
    let held = program.as_ref().map_err(|error| format!("{error:#}")).and_then(|program| {
        let ready = program.expect("ready", PATIENCE).map_err(|error| format!("{error:#}"))?;
        let held = program.expect("held", PATIENCE).map_err(|error| format!("{error:#}"))?;
        Ok((ready, held))
    });
    let before = take_recording(settings)?;
    // After the first recording: what the daemon reads seldom is newer than it.
    let daemon = fast_daemon(settings, name, &[])?;
    daemon.wait_gpus(before.gpus())?;
    // GPM metrics are of the time between two samples; what is not there in time is judged as missing.
    let _ = daemon.wait("a second sample of each GPU", PATIENCE, |page| {
        // Of those for which NVML tells how busy the graphics engine is.
        (0..before.gpus())
            .filter(|gpu| {
                before.find(Some(*gpu), "nvmlGpmMetricsGet", &[1]).is_some_and(|told| told.code == Some(0))
            })
            .all(|gpu| {
                let own = [("gpu", gpu.to_string())];
                let own = own.each_ref().map(|(name, value)| (*name, value.as_str()));
                page.value("memwarden_gpu_engine_activity_ratio", &own).is_some()
            })
    });
    let first = daemon.page();
    let smi = nvidia_smi(settings, name);
    std::thread::sleep(Duration::from_millis(600));
    let last = daemon.page();
    let after = take_recording(settings)?;
    save(settings, name, "metrics.txt", &daemon.get("/metrics")?)?;
    save(settings, name, "before.json", &before.text()?)?;
    save(settings, name, "after.json", &after.text()?)?;
    if let Ok(gpus) = &smi
        && let Some(origin) = gpus.first().and_then(|gpu| gpu.texts.get("stand_in"))
    {
        part.figure("nvidia-smi", format!("a stand-in: {origin}"));
    }
    compare::judge(&Readings { before: &before, first: &first, smi, last: &last, after: &after }, &mut part);
    match held {
        Ok((ready, held)) => {
            let gpu = gpu_of(&first, &ready)?;
            let labels = [("gpu", gpu.index.as_str())];
            for (what, metric, field) in [
                ("free", "memwarden_gpu_memory_free_bytes", "free"),
                ("total", "memwarden_gpu_memory_total_bytes", "total"),
            ] {
                let said = first.value(metric, &labels).unwrap_or(f64::NAN);
                let other = number(&held, field);
                // CUDA's total leaves out what the driver reserves.
                let reserved = first.value("memwarden_gpu_memory_reserved_bytes", &labels).unwrap_or(0.0);
                let slack = 64.0 * MIB + if what == "total" { reserved } else { 0.0 };
                let good = (said - other).abs() <= slack;
                part.check(
                    format!("cuMemGetInfo: {what}"),
                    good,
                    format!("{said}; CUDA {other}; within {slack} bytes"),
                );
            }
        }
        Err(why) => part.not_judged("a process that holds memory, and cuMemGetInfo", why),
    }
    for series in first.all("memwarden_gpu_field_status").filter(|series| series.value > 0.0) {
        let what = format!("GPU {}: {}", series.label("gpu"), series.label("field"));
        part.not_judged(what, format!("{} (code {})", series.label("status"), series.label("code")));
    }
    if let Ok(program) = program {
        program.end();
    }
    daemon.stop();
    let judged = part.checks.iter().filter(|check| check.verdict != crate::results::Verdict::Skipped).count();
    part.note = format!("{judged} figures compared");
    Ok(part)
}

/// The output of nvidia-smi, or why there is none.
fn nvidia_smi(settings: &Settings, part: &str) -> Result<Vec<smi::Gpu>, String> {
    let output = Command::new(&settings.smi).args(["-q", "-x"]).output();
    let output = output.map_err(|error| format!("{} cannot be started: {error}", settings.smi))?;
    let xml = String::from_utf8_lossy(&output.stdout).into_owned();
    save(settings, part, "nvidia-smi.xml", &xml).map_err(|error| format!("{error:#}"))?;
    if !output.status.success() {
        return Err(format!("{} ended with {}", settings.smi, output.status));
    }
    smi::read(&xml).map_err(|error| format!("{error:#}"))
}

/// What the daemon costs at rest, and whether it delays programs that use the GPU.
pub(crate) fn cost(settings: &Settings) -> anyhow::Result<Part> {
    let name = "cost";
    let mut part = Part::new(name);
    let latency = || -> anyhow::Result<Value> {
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "a small positive number"
        )]
        let count = (500.0 * settings.pace).max(100.0) as usize;
        let program = program(settings, name, "latency", &[("--step", 2 << 20), ("--count", count)])?;
        program.expect("latency", PATIENCE)
    };
    let without = latency();
    // The settings that are shipped: one sample a second.
    let daemon = Daemon::start(&settings.memwarden, &settings.folder(name), &settings.nvml, &[])?;
    daemon.wait_gpus(1)?;
    let pids = [Some(daemon.pid()), daemon.worker()];
    let read = || pids.map(|pid| pid.and_then(usage));
    // The first seconds build what stays.
    std::thread::sleep(Duration::from_secs_f64(3.0 * settings.pace));
    let (begun, first) = (Instant::now(), read());
    std::thread::sleep(Duration::from_secs_f64(20.0 * settings.pace));
    let (seconds, last) = (begun.elapsed().as_secs_f64(), read());
    let mut total = 0.0;
    for (which, (first, last)) in ["daemon", "GPU worker"].iter().zip(first.iter().zip(&last)) {
        let (Some(first), Some(last)) = (first, last) else {
            part.not_judged(format!("{which}: CPU and memory"), "the process is not visible");
            continue;
        };
        let share = (last.cpu - first.cpu) / seconds;
        total += share;
        part.figure(&format!("{which}: CPU, share of a core"), share);
        part.figure(&format!("{which}: resident memory, MiB"), last.resident / MIB);
    }
    let page = daemon.page();
    let gpus = page.value("memwarden_gpus", &[]).unwrap_or(1.0).max(1.0);
    part.figure("CPU for each sample, ms", total * 1e3);
    // The budget of the design for 8 GPUs with peaks, and what a small machine needs without one.
    let bar = 0.02 + 0.005 * gpus;
    part.check("CPU of daemon and worker", total <= bar, format!("{:.4} of a core; at most {bar:.3}", total));
    for series in page
        .all("memwarden_gpu_worker_restarts_total")
        .chain(page.all("memwarden_gpu_worker_bad_lines_total"))
    {
        part.check(&*series.name, series.value == 0.0, format!("{}", series.value));
    }
    let hung = page.all("memwarden_gpu_hung_call_info").count();
    part.check("NVML calls that do not return", hung == 0, format!("{hung}"));
    let with = latency();
    let recording = take_recording(settings)?;
    let slow = recording.calls.iter().filter(|call| call.function != "nvmlEventSetWait_v2");
    let longest = slow.max_by(|one, other| one.micros.total_cmp(&other.micros));
    if let Some(call) = longest {
        part.figure("longest NVML call, ms", json!({"function": call.function, "ms": call.micros / 1e3}));
    }
    match (without, with) {
        (Ok(without), Ok(with)) => {
            let of = |line: &Value, figure: &str| number(line, figure);
            for figure in ["p50_us", "p99_us", "max_us"] {
                part.figure(
                    &format!("allocation and release, {figure}, without and with the daemon"),
                    json!([of(&without, figure), of(&with, figure)]),
                );
            }
            let (before, after) = (of(&without, "p50_us"), of(&with, "p50_us"));
            let good = after <= before * 1.25 + 20.0;
            part.check("cuMemAlloc and cuMemFree with the daemon", good,
                format!("median {after:.0} µs; without the daemon {before:.0} µs; at most a quarter and 20 µs more"));
        }
        (Err(why), _) | (_, Err(why)) => part.not_judged("delay of a program on the GPU", format!("{why:#}")),
    }
    daemon.stop();
    part.note = format!("{:.2} % of a core", total * 100.0);
    Ok(part)
}

/// Peaks of 100 ms: how many of them the daemon sees.
pub(crate) fn peaks(settings: &Settings) -> anyhow::Result<Part> {
    let name = "peaks";
    let mut part = Part::new(name);
    let daemon = fast_daemon(settings, name, &[])?;
    let (base, step) = (512.0 * MIB, 16.0 * MIB);
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a small positive number")]
    let count = (40.0 * settings.pace).max(20.0) as usize;
    let mut program = program(
        settings,
        name,
        "peaks",
        &[("--cap", size(base)), ("--step", size(step)), ("--count", count), ("--every-ms", 700)],
    )?;
    let ready = program.expect("ready", PATIENCE)?;
    let page = daemon.wait("the program's context", PATIENCE, |page| {
        page.all("memwarden_gpu_memory_used_peak_bytes").next().is_some()
            && page
                .all("memwarden_gpu_info")
                .any(|series| same_pci(series.label("pci"), ready["pci"].as_str().unwrap_or_default()))
    })?;
    let gpu = gpu_of(&page, &ready)?;
    let labels = [("gpu", gpu.index.as_str())];
    program.begin()?;
    let (mut made, mut seen): (Vec<f64>, Vec<f64>) = (Vec::new(), Vec::new());
    let (mut levels, mut done): (Vec<f64>, bool) = (Vec::new(), false);
    let begun = Instant::now();
    let mut last = Duration::MAX;
    while begun.elapsed() < last {
        for line in program.lines() {
            match line.get("event").and_then(Value::as_str) {
                Some("peak") => made.push(number(&line, "size")),
                Some("done") if !done => {
                    done = true;
                    // The last peak is in one of the next frames.
                    last = begun.elapsed() + Duration::from_secs(1);
                }
                _ => {}
            }
        }
        let page = daemon.page();
        levels.extend(page.value("memwarden_gpu_memory_used_bytes", &labels));
        seen.extend(page.value("memwarden_gpu_memory_used_peak_bytes", &labels));
        std::thread::sleep(Duration::from_millis(60));
    }
    seen.dedup();
    // Most samples are between two peaks.
    levels.sort_by(f64::total_cmp);
    let lowest = levels.get(levels.len() / 2).copied().unwrap_or(f64::NAN);
    let above: Vec<f64> = seen.iter().map(|peak| (peak - lowest) / MIB).collect();
    save(settings, name, "seen.json", &json!({"made": made, "seen_mib": above}).to_string())?;
    // Each peak has a height of its own above what was in use between them.
    let found =
        made.iter().filter(|height| seen.iter().any(|peak| (peak - lowest - **height).abs() < step * 0.45));
    let found = found.count();
    part.figure("peaks made", made.len());
    part.figure("peaks seen", found);
    if let Some(polls) = daemon.page().value("memwarden_gpu_memory_polls_total", &labels) {
        part.figure("reads of memory each second", polls / begun.elapsed().as_secs_f64());
    }
    let share = as_f64(found as u64) / as_f64(made.len().max(1) as u64);
    part.check(
        "peaks of 100 ms that are seen",
        share >= 0.95 && !made.is_empty(),
        format!("{found} of {}; at least 95 %", made.len()),
    );
    part.note = format!("{found} of {} peaks seen", made.len());
    program.end();
    daemon.stop();
    Ok(part)
}
