//! The parts in Python: pynvml and PyTorch, each where it is installed.

use std::process::Command;
use std::time::Duration;

use anyhow::Context as _;
use serde_json::Value;

use crate::growth::guard_configuration;
use crate::parts::{MIB, fast_daemon, free_memory};
use crate::program::Program;
use crate::results::Part;
use crate::settings::Settings;

/// pynvml's figures beside the metrics.
pub(crate) fn pynvml(settings: &Settings) -> anyhow::Result<Part> {
    carry_out(settings, "pynvml", "pynvml", "figures.py", 0.0, &[])
}

/// A training loop that keeps tensors.
pub(crate) fn leak(settings: &Settings) -> anyhow::Result<Part> {
    carry_out(settings, "torch-leak", "leak", "torch_parts.py", 0.0, &[])
}

/// An allocator that fragments.
pub(crate) fn fragmentation(settings: &Settings) -> anyhow::Result<Part> {
    carry_out(settings, "torch-fragmentation", "fragmentation", "torch_parts.py", 0.0, &[])
}

/// A program without a line of memwarden that runs out of memory.
pub(crate) fn oom(settings: &Settings) -> anyhow::Result<Part> {
    carry_out(settings, "torch-oom", "oom", "torch_parts.py", 0.0, &[])
}

/// Energy and tokens.
pub(crate) fn energy(settings: &Settings) -> anyhow::Result<Part> {
    carry_out(settings, "torch-energy", "energy", "torch_parts.py", 0.0, &[])
}

/// A training loop that saves, releases and resumes when protection asks.
pub(crate) fn protection(settings: &Settings) -> anyhow::Result<Part> {
    let name = "torch-protection";
    let Ok(free) = free_memory(settings, name) else {
        return carry_out(settings, name, "protection", "torch_parts.py", 0.0, &[]);
    };
    let grown = (free * 0.3).min(8_192.0 * MIB);
    let file = settings.folder(name).join("memwarden.yaml");
    // The context and the model take memory beside what grows.
    let level = free - grown * 0.6;
    std::fs::write(&file, guard_configuration(level, "*torch_parts.py protection*", ""))?;
    let more = [format!("file:{}", file.display())];
    carry_out(settings, name, "protection", "torch_parts.py", grown, &more)
}

/// Runs a Python program beside a daemon. The program judges: its last line has the result.
fn carry_out(
    settings: &Settings,
    part: &str,
    scenario: &str,
    program: &str,
    grown: f64,
    more: &[String],
) -> anyhow::Result<Part> {
    let folder = settings.folder(part);
    let mut probe = Command::new(&settings.python);
    probe.arg(settings.programs.join("probe.py")).arg(scenario);
    probe.arg(if settings.torch_on_cpu { "cpu" } else { "cuda" });
    let Ok(probed) = Program::start(probe, &folder, "probe") else {
        return Ok(Part::skipped(part, format!("{} is not installed", settings.python)));
    };
    let probed = probed.expect("probe", Duration::from_secs(40)).context("the probe of Python")?;
    if let Some(why) = probed.get("skip").and_then(Value::as_str) {
        return Ok(Part::skipped(part, why));
    }
    let daemon = fast_daemon(settings, part, more)?;
    let mut command = Command::new(&settings.python);
    command.arg(settings.programs.join(program)).arg(scenario).arg(if settings.torch_on_cpu {
        "cpu"
    } else {
        "cuda"
    });
    let mut path = settings.client.clone().into_os_string();
    if scenario == "oom" {
        // The folder that instruments a program without a line in it.
        path = settings.client.join("memwarden/auto").into_os_string();
        path.push(":");
        path.push(&settings.client);
        command.env("MEMWARDEN_AUTO", "1").env("MEMWARDEN_OOM_SNAPSHOT", &folder);
    }
    command.env("PYTHONPATH", path);
    command.env("MEMWARDEN_URL", daemon.url()).env("MEMWARDEN_JOB_SOCKET", &daemon.job_socket);
    command.env("GPU_RUN_FOLDER", &folder).env("GPU_RUN_PACE", settings.pace.to_string());
    command.env("GPU_RUN_MEMWARDEN", &settings.memwarden).env("GPU_RUN_DEVICE", settings.device.to_string());
    command.env("GPU_RUN_GROW", grown.to_string());
    let running = Program::start(command, &folder, scenario)?;
    let result = running.expect("result", Duration::from_secs(70))?;
    let mut judged = Part::new(part);
    for check in result.get("checks").and_then(Value::as_array).into_iter().flatten() {
        let text = |index: usize| check.get(index).and_then(Value::as_str).unwrap_or_default().to_owned();
        match check.get(1).and_then(Value::as_bool) {
            Some(good) => judged.check(text(0), good, text(2)),
            None => judged.not_judged(text(0), text(2)),
        }
    }
    if let Some(figures) = result.get("figures").and_then(Value::as_object) {
        judged.figures.clone_from(figures);
    }
    judged.note = result.get("note").and_then(Value::as_str).unwrap_or_default().to_owned();
    running.end();
    daemon.stop();
    Ok(judged)
}
