//! Compares memwarden with the NVIDIA GPUs of a machine, and records the answers of its driver.
//!
//! ```text
//! gpu-run run [--out FOLDER] [--allow-oom] …     all parts; writes summary.md and summary.json
//! gpu-run record FILE [--nvml LIBRARY]           only the recording
//! gpu-run scenario RECORDING                     prints the scenario with which the fake NVML gives these answers
//! gpu-run fixture RECORDING                      prints it without UUIDs, serial numbers and pids
//! gpu-run differences RECORDING RECORDING        prints what differs; exit status 1 if anything does
//! gpu-run verdicts SUMMARY                       prints the result of each part of a summary.json
//! gpu-run smi [--nvml LIBRARY]                   prints what nvidia-smi -q -x would, for the rehearsal
//! ```
#![expect(
    clippy::disallowed_methods,
    reason = "a program of its own: it starts the daemon and measures time with the clock of the machine"
)]

mod arguments;
mod calls;
mod compare;
mod cuda;
mod daemon;
mod growth;
mod library;
mod parts;
mod program;
mod python;
mod record;
mod recording;
mod replay;
mod results;
mod rows;
mod run;
mod settings;
mod smi;
mod stand_in;

use std::io::Write as _;
use std::process::ExitCode;

use anyhow::Context as _;

use arguments::Arguments;
use recording::Recording;
use results::Verdict;
use settings::Settings;

fn main() -> anyhow::Result<ExitCode> {
    let mut arguments = Arguments::of_process();
    let command = arguments.next().unwrap_or_else(|| "run".to_owned());
    match command.as_str() {
        "run" => {
            let settings = Settings::take(arguments)?;
            let verdict = run::run(&settings)?;
            print(&format!("{verdict:?}: {}\n", settings.out.join("summary.md").display()))?;
            return Ok(if verdict == Verdict::Ok { ExitCode::SUCCESS } else { ExitCode::FAILURE });
        }
        "part" => {
            let name = arguments.next().context("which part?")?;
            run::part(&name, &Settings::take(arguments)?)?;
        }
        "cuda" => cuda::run(arguments)?,
        "record" => {
            let file = arguments.next().context("which file?")?;
            let library = arguments.text("--nvml", "libnvidia-ml.so.1");
            arguments.end()?;
            let recording = record::record(&library, None)?;
            std::fs::write(file, recording.text()?)?;
        }
        "scenario" => {
            let recording = read(&mut arguments)?;
            print(&(serde_json::to_string_pretty(&replay::scenario(&recording))? + "\n"))?;
        }
        "fixture" => print(&read(&mut arguments)?.without_identities().text()?)?,
        "differences" => {
            let (one, other) = (read(&mut arguments)?, read(&mut arguments)?);
            let differences = one.differences(&other);
            print(&differences.iter().map(|line| format!("{line}\n")).collect::<String>())?;
            return Ok(if differences.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE });
        }
        "verdicts" => {
            let file = arguments.next().context("which summary?")?;
            let summary: results::Summary = serde_json::from_str(&std::fs::read_to_string(file)?)?;
            let lines =
                summary.parts.iter().map(|part| format!("{} {:?} {}\n", part.part, part.verdict, part.note));
            print(&format!("origin {}\n{}", summary.origin, lines.collect::<String>()))?;
        }
        "smi" => {
            let library = arguments.text("--nvml", "libnvidia-ml.so.1");
            print(&stand_in::output(&record::record(&library, None)?))?;
        }
        other => anyhow::bail!("{other}: run, record, scenario, fixture, differences, verdicts or smi"),
    }
    Ok(ExitCode::SUCCESS)
}

fn read(arguments: &mut Arguments) -> anyhow::Result<Recording> {
    let file = arguments.next().context("which recording?")?;
    let text = std::fs::read_to_string(&file).with_context(|| file.clone())?;
    serde_json::from_str(&text).with_context(|| file.clone())
}

fn print(text: &str) -> anyhow::Result<()> {
    Ok(std::io::stdout().write_all(text.as_bytes())?)
}
