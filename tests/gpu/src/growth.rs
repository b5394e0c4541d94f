//! The parts in which memory grows: a leak, the end of memory, and protection.

use std::fs;
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::daemon::Page;
use crate::parts::{MIB, NOT_LISTED, fast_daemon, free_memory, gpu_of, is_listed, number, program, size};
use crate::results::Part;
use crate::settings::Settings;

const PATIENCE: Duration = Duration::from_secs(20);
/// The time between two steps of a growing program.
const STEP: Duration = Duration::from_millis(250);

/// One reading of the forecast while the leak goes on.
#[derive(Clone, Copy, Debug)]
struct Reading {
    at: f64,
    p50: Option<f64>,
    p10: Option<f64>,
    p90: Option<f64>,
    growth: Option<f64>,
    headroom: Option<f64>,
}

fn reading(page: &Page, gpu: &str, at: f64) -> Reading {
    let own = [("resource", "gpu"), ("gpu", gpu)];
    let estimate = |which: &str| {
        let labels = [own[0], own[1], ("estimate", which)];
        page.value("memwarden_forecast_time_to_exhaustion_seconds", &labels)
    };
    Reading {
        at,
        p50: estimate("p50"),
        p10: estimate("p10"),
        p90: estimate("p90"),
        growth: page.value("memwarden_forecast_growth_bytes_per_second", &own),
        headroom: page.value("memwarden_forecast_headroom_bytes", &own),
    }
}

/// A leak at a steady rate: the forecast beside the time at which the memory would end.
pub(crate) fn leak(settings: &Settings) -> anyhow::Result<Part> {
    let name = "leak";
    let mut part = Part::new(name);
    // A rate needs 60 samples: a short leak is sampled more often.
    let often = ["sampling.interval=100ms".to_owned(), "sources.gpu.interval=100ms".to_owned()];
    let daemon = fast_daemon(settings, name, if settings.pace < 0.5 { &often } else { &[] })?;
    daemon.wait_gpus(1)?;
    let free = free_memory(settings, name)?;
    let duration = 60.0 * settings.pace;
    // A forecast looks ahead 2.5 times as far as it has seen growth: this share of the free memory is the least at which
    // the end is near enough, and leaves more than half to others. All of it where that is allowed.
    let cap = if settings.allow_oom { free } else { free * 0.45 };
    let step = size(cap / (duration / STEP.as_secs_f64()));
    let limit = if settings.allow_oom { 0 } else { size(cap) };
    let options = [("--step", step), ("--cap", limit), ("--every-ms", 250)];
    let program = program(settings, name, "leak", &options)?;
    let ready = program.expect("ready", PATIENCE)?;
    is_listed(&daemon, program.pid());
    let page = daemon.page();
    let gpu = gpu_of(&page, &ready)?;
    let pid = program.pid().to_string();
    let own = [("gpu", gpu.index.as_str()), ("pid", pid.as_str())];
    let (mut readings, mut steps): (Vec<Reading>, Vec<Value>) = (Vec::new(), Vec::new());
    let (mut pairs, mut contexts) = (Vec::new(), Vec::new());
    let (begun, mut end) = (Instant::now(), None);
    while end.is_none() && begun.elapsed() < Duration::from_secs_f64(duration * 2.0 + 10.0) {
        for line in program.lines() {
            match line.get("event").and_then(Value::as_str) {
                Some("step") => steps.push(line),
                Some("cap" | "refused") => end = Some(line),
                _ => {}
            }
        }
        let page = daemon.page();
        readings.push(reading(&page, &gpu.index, begun.elapsed().as_secs_f64()));
        if let (Some(last), Some(said)) =
            (steps.last(), page.value("memwarden_gpu_process_memory_bytes", &own))
        {
            contexts.push(said - number(last, "allocated"));
            let labels = [("gpu", gpu.index.as_str())];
            let free = page.value("memwarden_gpu_memory_free_bytes", &labels).unwrap_or(f64::NAN);
            pairs.push(free - number(last, "free"));
        }
        std::thread::sleep(Duration::from_millis(200));
    }
    let findings = daemon.get("/api/v1/findings")?;
    fs::write(settings.folder(name).join("findings.json"), &findings)?;
    let lines: Vec<String> = readings.iter().map(|reading| format!("{reading:?}")).collect();
    fs::write(settings.folder(name).join("forecasts.txt"), lines.join("\n"))?;
    let rate = match (steps.first(), steps.last()) {
        (Some(first), Some(last)) => {
            (number(last, "allocated") - number(first, "allocated"))
                / (number(last, "t") - number(first, "t"))
        }
        _ => f64::NAN,
    };
    part.figure("rate, MiB/s", rate / MIB);
    judge_forecast(&mut part, &readings, rate, end.as_ref());
    judge_memory(&mut part, &mut contexts, &mut pairs, as_step(step));
    let named = findings.contains("\"exhaustion\"");
    part.check("a finding of the analyzer exhaustion", named, "/api/v1/findings".to_owned());
    program.end();
    daemon.stop();
    Ok(part)
}

fn as_step(step: usize) -> f64 {
    crate::compare::as_f64(step as u64)
}

fn judge_forecast(part: &mut Part, readings: &[Reading], rate: f64, end: Option<&Value>) {
    let first = readings.iter().find(|reading| reading.p50.is_some());
    let with_all = |reading: &&Reading| reading.p50.is_some() && reading.headroom.is_some();
    let last = readings.iter().rev().find(with_all);
    let (Some(first), Some(last)) = (first, last) else {
        part.check("a forecast", false, "no time to exhaustion was ever exposed");
        return;
    };
    part.figure("first forecast, s after the leak began", first.at);
    let over = end.is_some_and(|end| end.get("event").and_then(Value::as_str) == Some("refused"));
    let stopped = readings.last().map_or(0.0, |reading| reading.at);
    let lead = if over { stopped - first.at } else { first.headroom.unwrap_or(f64::NAN) / rate };
    let how = if over { "until CUDA refused memory" } else { "until the memory would have ended" };
    part.figure("warned before the end, s", lead);
    part.check("the forecast warns before the end", lead > 5.0, format!("{lead:.0} s {how}; more than 5 s"));
    // The last forecast before the end: where the program was refused, the truth is close to 0.
    let truth = last.headroom.unwrap_or(f64::NAN) / rate;
    let p50 = last.p50.unwrap_or(f64::NAN);
    let near = (p50 / truth - 1.0).abs() <= 0.3 || (p50 - truth).abs() <= 10.0;
    part.check(
        "time to exhaustion (p50) beside free memory / rate",
        near,
        format!("{p50:.1} s; {truth:.1} s; within 30 % or 10 s"),
    );
    if let (Some(p10), Some(p90)) = (last.p10, last.p90) {
        part.figure("p10 and p90, s", serde_json::json!([p10, p90]));
    }
    let growth = readings.iter().rev().find_map(|reading| reading.growth).unwrap_or(f64::NAN);
    part.check(
        "growth",
        (growth / rate - 1.0).abs() <= 0.2,
        format!("{:.1} MiB/s; made {:.1} MiB/s; within 20 %", growth / MIB, rate / MIB),
    );
    part.note = format!("warned {lead:.0} s {how}");
}

/// The difference between the memory of the process and what it allocated is its context, which does not grow.
fn judge_memory(part: &mut Part, contexts: &mut [f64], frees: &mut [f64], step: f64) {
    if contexts.is_empty() {
        part.not_judged("memory of the process", NOT_LISTED);
        return;
    }
    contexts.sort_by(f64::total_cmp);
    frees.sort_by(f64::total_cmp);
    let middle = |values: &[f64]| values.get(values.len() / 2).copied().unwrap_or(f64::NAN);
    part.figure("memory of the process beyond its allocations, MiB", middle(contexts) / MIB);
    // A sample is up to two seconds old on a busy machine, and one in twenty at each end may be older.
    let at = |share: usize| contexts.get(contexts.len() * share / 100).copied().unwrap_or(f64::NAN);
    let spread = at(95) - at(5);
    part.check(
        "memory of the process beside what it allocated",
        spread <= 8.0 * step + 8.0 * MIB,
        format!("the difference varies by {:.0} MiB; at most 8 steps of {:.0} MiB", spread / MIB, step / MIB),
    );
    let off = middle(frees).abs();
    part.check(
        "free memory beside cuMemGetInfo",
        off <= 3.0 * step + 64.0 * MIB,
        format!("median difference {:.0} MiB", off / MIB),
    );
}

/// Memory until CUDA refuses it: the daemon sees the end, and that it is over.
pub(crate) fn oom(settings: &Settings) -> anyhow::Result<Part> {
    let name = "oom";
    let mut part = Part::new(name);
    let daemon = fast_daemon(settings, name, &[])?;
    let page = daemon.wait_gpus(1)?;
    let free = free_memory(settings, name)?;
    let busy = page.all("memwarden_gpu_process_memory_bytes").count();
    if busy > 0 && !settings.allow_oom {
        return Ok(Part::skipped(
            name,
            format!("{busy} other processes use the GPUs (--allow-oom does it nevertheless)"),
        ));
    }
    let options = [("--step", size(free / 100.0)), ("--cap", 0), ("--every-ms", 20)];
    let program = program(settings, name, "leak", &options)?;
    let ready = program.expect("ready", PATIENCE)?;
    let gpu = gpu_of(&daemon.page(), &ready)?;
    let labels = [("gpu", gpu.index.as_str())];
    let base = page.value("memwarden_gpu_memory_used_bytes", &labels).unwrap_or(f64::NAN);
    let refused = program.expect("refused", PATIENCE * 2)?;
    let allocated = number(&refused, "allocated");
    part.figure("allocated when CUDA refused, MiB", allocated / MIB);
    let max = daemon.wait("the largest memory", Duration::from_secs(5), |page| {
        page.value("memwarden_gpu_memory_used_max_bytes", &labels)
            .is_some_and(|max| max - base >= allocated * 0.9)
    });
    let said = daemon.page().value("memwarden_gpu_memory_used_max_bytes", &labels).unwrap_or(f64::NAN) - base;
    part.check(
        "the largest memory in use",
        max.is_ok(),
        format!("{:.0} MiB above the start; allocated {:.0} MiB; at least 90 %", said / MIB, allocated / MIB),
    );
    let back = daemon.wait("the release", Duration::from_secs(10), |page| {
        page.value("memwarden_gpu_memory_used_bytes", &labels)
            .is_some_and(|used| used - base <= allocated * 0.1 + 1024.0 * MIB)
    });
    part.check("the release is seen", back.is_ok(), "within 10 s");
    let page = daemon.page();
    let status = page.value("memwarden_gpu_status", &[labels[0], ("status", "ok")]);
    part.check("the GPU's status afterwards", status == Some(1.0), format!("ok is {status:?}"));
    part.note = format!("refused after {:.0} MiB", allocated / MIB);
    program.end();
    daemon.stop();
    Ok(part)
}

/// The configuration of a daemon that asks a job for a checkpoint at a level of a GPU's free memory, in bytes. At most a
/// request: nothing is ever terminated.
pub(crate) fn guard_configuration(level: f64, command_line: &str, acknowledgement: &str) -> String {
    let user = rustix::process::getuid().as_raw();
    let level = level / MIB;
    format!(
        "\
protection:
  mode: enforce
  targets:
    - name: gpu-run
      workload: gpu-run-job*
      allow_users: [\"{user}\"]
      max_state: checkpoint
      host: {{soft: \"\", hard: \"\"}}
      cgroup_headroom: {{soft: \"\", hard: \"\"}}
      gpu: {{soft: {level:.0}MiB, hard: \"\"}}
      hysteresis: 1%
      for: 500ms
      clear_for: 1s
      cooldown: 1s
      forecast: {{max_state: warn}}
      checkpoint: {{signal: USR1, {acknowledgement}grace: 15s}}
sources:
  workload:
    matchers:
      - {{name: gpu-run-job, command_line: \"{command_line}\"}}
state: {{file: \"\"}}
"
    )
}

/// Protection by the level of a GPU's free memory: a checkpoint request, the release, and the job goes on.
pub(crate) fn protection(settings: &Settings) -> anyhow::Result<Part> {
    let name = "protection";
    let mut part = Part::new(name);
    let folder = settings.folder(name);
    fs::create_dir_all(&folder)?;
    let checkpoint = fs::canonicalize(&folder)?.join("checkpoint.json");
    let free = free_memory(settings, name)?;
    let grown = (free * 0.3).min(8_192.0 * MIB);
    let options = [("--step", size(grown / 40.0)), ("--cap", size(grown)), ("--every-ms", 150)];
    let text = guard_configuration(
        free - grown * 0.6,
        "*cuda job*",
        &format!("file: \"{}\", ", checkpoint.display()),
    );
    let file = folder.join("memwarden.yaml");
    fs::write(&file, text)?;
    let daemon = fast_daemon(settings, name, &[format!("file:{}", file.display())])?;
    daemon.wait_gpus(1)?;
    let mut program = program(settings, name, "job", &options)?;
    program.expect("handles USR1", PATIENCE)?;
    if !is_listed(&daemon, program.pid()) {
        return Ok(Part::skipped(name, NOT_LISTED));
    }
    let saved = program.expect("saved", Duration::from_secs(30));
    let reached = saved.is_ok();
    part.check(
        "the job was asked for a checkpoint and saved",
        reached,
        match &saved {
            Ok(line) => format!(
                "at step {}; {:.0} MiB released",
                number(line, "step"),
                number(line, "released") / MIB
            ),
            Err(error) => format!("{error:#}"),
        },
    );
    let calm = daemon.wait("the end of the incident", PATIENCE, |page| {
        let state = |state: &str| {
            page.all("memwarden_protection_state")
                .any(|series| series.has(&[("state", state)]) && series.value == 1.0)
        };
        reached && (state("ok") || state("cooldown"))
    });
    let page = daemon.page();
    let steps: Vec<String> = page
        .all("memwarden_protection_steps_total")
        .filter(|series| series.value > 0.0)
        .map(|series| format!("{} {} {}", series.label("step"), series.label("outcome"), series.value))
        .collect();
    part.figure("steps of protection", steps.join(", "));
    if let Some(latency) = page.value("memwarden_protection_signal_latency_seconds", &[("target", "gpu-run")])
    {
        part.figure("from the reading to the signal, ms", latency * 1e3);
    }
    part.check("protection returns to ok", calm.is_ok(), "after the memory was released");
    let killed = daemon
        .page()
        .all("memwarden_protection_steps_total")
        .any(|series| ["term", "kill"].contains(&series.label("step")) && series.value > 0.0);
    // A later step of the job shows that it goes on.
    let at = saved.as_ref().map_or(f64::NAN, |line| number(line, "step"));
    let begun = Instant::now();
    let mut step = f64::NAN;
    // The lines of the steps during the incident come first.
    while (step.is_nan() || step <= at + 5.0) && begun.elapsed() < PATIENCE {
        step = number(&program.expect("step", PATIENCE)?, "step");
    }
    let goes_on = step > at && program.runs() && !killed;
    part.check(
        "the job goes on, and nothing was terminated",
        goes_on,
        format!("saved at step {at}; now at step {step}"),
    );
    fs::write(folder.join("metrics.txt"), daemon.get("/metrics")?)?;
    part.note = "checkpoint, release, resume".to_owned();
    program.end();
    daemon.stop();
    Ok(part)
}
