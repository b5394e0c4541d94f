//! The run: every part in a process of its own with a time limit, then the summary.

use std::fs::{self, File};
use std::os::unix::process::CommandExt as _;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::Context as _;
use rustix::process::{Pid, Signal, kill_process_group};
use serde_json::Value;

use crate::record::NO_NVML;
use crate::recording::Recording;
use crate::results::{Part, Summary, Verdict};
use crate::settings::Settings;
use crate::{growth, parts, python};

/// A part: its name, the seconds that it may take, and what carries it out.
struct Step {
    name: &'static str,
    limit: u64,
    run: fn(&Settings) -> anyhow::Result<Part>,
}

const STEPS: &[Step] = &[
    Step { name: "recording", limit: 60, run: parts::recording },
    Step { name: "comparison", limit: 60, run: parts::comparison },
    Step { name: "pynvml", limit: 30, run: python::pynvml },
    Step { name: "cost", limit: 60, run: parts::cost },
    Step { name: "peaks", limit: 70, run: parts::peaks },
    Step { name: "leak", limit: 110, run: growth::leak },
    Step { name: "oom", limit: 60, run: growth::oom },
    Step { name: "protection", limit: 80, run: growth::protection },
    Step { name: "torch-leak", limit: 75, run: python::leak },
    Step { name: "torch-fragmentation", limit: 60, run: python::fragmentation },
    Step { name: "torch-oom", limit: 60, run: python::oom },
    Step { name: "torch-energy", limit: 60, run: python::energy },
    Step { name: "torch-protection", limit: 75, run: python::protection },
];

/// Carries out one part and writes its result; the process of a part.
///
/// # Errors
/// There is no such part, or the result cannot be written.
pub(crate) fn part(name: &str, settings: &Settings) -> anyhow::Result<()> {
    let step = STEPS.iter().find(|step| step.name == name).with_context(|| format!("no part {name}"))?;
    rustix::process::set_parent_process_death_signal(Some(Signal::KILL))?;
    let part = (step.run)(settings).unwrap_or_else(|error| Part::failed(name, format!("{error:#}")));
    let folder = settings.folder(name);
    fs::create_dir_all(&folder)?;
    Ok(fs::write(folder.join("part.json"), serde_json::to_string_pretty(&part)?)?)
}

/// Carries out all parts and writes the summary.
///
/// # Errors
/// The folder of results cannot be written.
pub(crate) fn run(settings: &Settings) -> anyhow::Result<Verdict> {
    let begun = Instant::now();
    fs::create_dir_all(&settings.out).with_context(|| format!("{}", settings.out.display()))?;
    let stopped = Arc::new(AtomicBool::new(false));
    for signal in [signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM] {
        signal_hook::flag::register(signal, Arc::clone(&stopped))?;
    }
    let mut done: Vec<Part> = Vec::new();
    for step in STEPS {
        if !settings.only.is_empty() && !settings.only.iter().any(|only| only == step.name) {
            continue;
        }
        let left = settings.limit - begun.elapsed().as_secs_f64();
        let blocked =
            done.iter().any(|part| part.verdict == Verdict::Failed && part.note.starts_with(NO_NVML));
        let part = if stopped.load(Ordering::Relaxed) {
            Part::skipped(step.name, "the run was stopped")
        } else if blocked {
            Part::skipped(step.name, NO_NVML)
        } else if left < 5.0 {
            Part::skipped(step.name, format!("the {:.0} s of the run are over", settings.limit))
        } else {
            let limit = Duration::from_secs(step.limit).min(Duration::from_secs_f64(left));
            one(step, settings, limit, &stopped)
        };
        say(&format!("{:<20} {:>4.0} s  {:?}: {}", part.part, part.seconds, part.verdict, part.note));
        done.push(part);
    }
    let summary = summary(settings, done, begun.elapsed().as_secs_f64());
    summary.write(&settings.out)?;
    Ok(summary.verdict)
}

/// A line for the person who waits.
fn say(line: &str) {
    use std::io::Write as _;
    // A closed output must not end the run.
    let _ = writeln!(std::io::stdout(), "{line}");
}

/// The process of a part, up to its end or its limit; then everything that it started is ended.
fn one(step: &Step, settings: &Settings, limit: Duration, stopped: &AtomicBool) -> Part {
    let begun = Instant::now();
    let outcome = spawn(step, settings, limit, stopped);
    let file = settings.folder(step.name).join("part.json");
    let written = fs::read_to_string(file).ok().and_then(|text| serde_json::from_str::<Part>(&text).ok());
    let mut part = match (written, outcome) {
        (Some(part), Ok(())) => part,
        (_, Err(error)) => Part::failed(step.name, format!("{error:#}")),
        (None, Ok(())) => Part::failed(step.name, "it wrote no result"),
    };
    part.seconds = begun.elapsed().as_secs_f64();
    part
}

fn spawn(step: &Step, settings: &Settings, limit: Duration, stopped: &AtomicBool) -> anyhow::Result<()> {
    let folder = settings.folder(step.name);
    fs::create_dir_all(&folder)?;
    // A result of an earlier run into the same folder is not this one's.
    let _ = fs::remove_file(folder.join("part.json"));
    let log = folder.join("part.log");
    let mut command = Command::new(std::env::current_exe()?);
    command.args(["part", step.name]).args(settings.arguments()).process_group(0);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(File::create(&log)?);
    let mut child = command.spawn()?;
    let group = i32::try_from(child.id()).ok().and_then(Pid::from_raw).context("no process group")?;
    let begun = Instant::now();
    let ended = loop {
        if let Some(status) = child.try_wait()? {
            break Some(status);
        }
        if begun.elapsed() >= limit || stopped.load(Ordering::Relaxed) {
            break None;
        }
        std::thread::sleep(Duration::from_millis(20));
    };
    // Programs and daemons of a part that has ended normally have ended too; the group then does not exist.
    let _ = kill_process_group(group, Signal::KILL);
    child.wait()?;
    match ended {
        None => {
            let calls = fs::read_to_string(folder.join("calls.txt")).unwrap_or_default();
            let last = calls
                .lines()
                .last()
                .map_or(String::new(), |call| format!("; the last NVML call that returned: {call}"));
            anyhow::bail!("it took longer than {:.0} s{last}", limit.as_secs_f64())
        }
        Some(status) if !status.success() => {
            let said = fs::read_to_string(&log).unwrap_or_default();
            anyhow::bail!("it ended with {status}: {}", said.trim())
        }
        Some(_) => Ok(()),
    }
}

fn summary(settings: &Settings, parts: Vec<Part>, seconds: f64) -> Summary {
    let text = fs::read_to_string(settings.folder("recording").join("recording.json")).ok();
    let recording = text.and_then(|text| serde_json::from_str::<Recording>(&text).ok());
    let version = Command::new(&settings.memwarden).arg("--version").output();
    let version = version.map(|output| String::from_utf8_lossy(&output.stdout).trim().to_owned());
    let line = |recording: &Recording, gpu: Option<u32>, function: &str| {
        let call = recording.find(gpu, function, &[]);
        call.and_then(|call| call.answer.get("text").and_then(Value::as_str)).unwrap_or("unknown").to_owned()
    };
    let known = recording.as_ref();
    let gpus = known.map_or_else(Vec::new, |recording| {
        let one = |gpu| {
            let name = line(recording, Some(gpu), "nvmlDeviceGetName");
            format!("GPU {gpu}: {name}, {}", line(recording, Some(gpu), "nvmlDeviceGetUUID"))
        };
        (0..recording.gpus()).map(one).collect()
    });
    Summary {
        memwarden: version.unwrap_or_else(|error| format!("memwarden cannot be started: {error}")),
        origin: known.map_or("unknown", |recording| recording.origin.as_str()).to_owned(),
        driver: known.map_or_else(
            || "unknown".to_owned(),
            |recording| line(recording, None, "nvmlSystemGetDriverVersion"),
        ),
        gpus,
        seconds,
        verdict: parts
            .iter()
            .map(|part| part.verdict)
            .filter(|verdict| *verdict != Verdict::Skipped)
            .max()
            .unwrap_or(Verdict::Failed),
        parts,
    }
}
