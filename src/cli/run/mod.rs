//! `memwarden run`: runs a command, samples it from its start to its end, and prints a report.
//!
//! The command is started before anything else; its signals, exit code and terminal are passed through. A failure of
//! memwarden is reported and does not affect the command.

mod guard;
mod instrument;
mod launcher;
mod progress;
mod watcher;

use std::ffi::OsString;
use std::io::{ErrorKind, IsTerminal as _};
use std::path::{Path, PathBuf};
use std::process::{ExitCode, ExitStatus};
use std::sync::Arc;
use std::time::Duration;

use clap::ValueEnum as _;

use self::guard::Guarded;
use self::instrument::Instruments;
use self::progress::{Figures, ProgressLine};
use self::watcher::Watcher;
use super::out;
use super::output::{self, Format, Output};
use super::picture;
use super::report::{interval, load, standard_error_page};
use crate::analyzers::ends;
use crate::host::job::{self, Event, Inbox, Job};
use crate::host::{clock, process};
use crate::model::ends::{End, Retry};
use crate::model::facts::ExitedProcess;
use crate::model::printable;
use crate::model::setting;
use crate::model::units::Bytes;
use crate::report::{About, CommandEnd, Page, build_run};

/// The codes that shells give for commands that cannot be found and that cannot be run.
const NOT_FOUND: u8 = 127;
const NOT_RUNNABLE: u8 = 126;

/// What the program does with the predictions of its memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum FitMode {
    /// Print whether the next phases fit.
    Say,
    /// End with exit status 80 when a phase will not fit.
    Abort,
    /// Predict nothing.
    Off,
}

/// The word of [`FitMode::Abort`] in the environment.
const ABORT: &str = "abort";

/// The help of `--output` of this command: standard output belongs to the command.
const OUTPUT: &str = "File that the report is written to, in place of standard error; `-` is standard output";

/// Run a command and report its memory usage, its peaks, and whether it leaks.
///
/// Input, output, signals and exit code of the command are passed through; the report is written to standard error when
/// the command ends, or to the file of --output. While the command runs and writes nothing to the terminal, a progress
/// line shows its memory and the forecast. A Python program that imports torch is instrumented without changes: its steps, tokens, phases and
/// allocator are recorded. The command and its descendants form one workload; of a child that lives for less than the
/// interval, possibly only the CPU time is counted. The signals HUP, INT, QUIT, TERM, USR1 and USR2 sent to memwarden are
/// forwarded to the command; signals of the terminal reach it directly.
/// Exit codes: the exit code of the command, 128 plus the signal number
/// if a signal ended it, 127 if it is not found, 126 if it cannot be run. With --fit abort, a Python program ends itself
/// with exit status 80 when its memory will not fit.
#[derive(Debug, clap::Args)]
#[command(after_long_help = "Examples:
  memwarden run -- python train.py --epochs 3
  memwarden run --output run.json --plot run.svg -- torchrun --nproc-per-node 8 train.py")]
#[command(mut_arg("output", |output| output.help(OUTPUT)))]
pub(super) struct Args {
    #[command(flatten)]
    output: Output<Format>,
    /// File for a chart of the report: .svg or .png.
    #[arg(long, value_name = "FILE", value_parser = crate::cli::picture::drawable)]
    plot: Option<PathBuf>,
    /// Time between two samples, 0.1 s to 60 s [default: 0.2 s for the first two minutes, then 1 s].
    #[arg(long, value_name = "DURATION", value_parser = interval)]
    interval: Option<f64>,
    /// Name of the workload [default: the name of the command and its process ID], and of the run, unless MEMWARDEN_RUN names it.
    #[arg(long, value_name = "NAME")]
    name: Option<String>,
    /// Do not instrument Python programs. The environment variable MEMWARDEN_AUTO=steps disables phases and tokens only.
    #[arg(long)]
    no_instrument: bool,
    /// What a Python program does with the predictions of its memory: print whether it fits, end itself with exit status 80
    /// when it will not fit, or predict nothing [default: the environment variable MEMWARDEN_FIT, or say].
    #[arg(long, value_name = "MODE", value_enum)]
    fit: Option<FitMode>,
    /// Protect the command without a daemon: before memory is exhausted, ask it for a checkpoint (SIGUSR1, where it has a handler,
    /// such as that of the Python client), then send SIGTERM, then SIGKILL. The record of an incident is written below
    /// $XDG_STATE_HOME/memwarden, or ~/.local/state/memwarden.
    #[arg(long)]
    guard: bool,
    /// Limit of the anonymous and shared memory of the command and its descendants, where pages that they share count once, beside the
    /// limits of its cgroup and the host: 32GiB.
    #[arg(long, value_name = "SIZE", requires = "guard", value_parser = setting::size)]
    limit: Option<Bytes>,
    /// Do not show the progress line.
    #[arg(long)]
    no_progress: bool,
    /// Do not print the report and the progress line; --output and --plot still write theirs.
    #[arg(long, short)]
    quiet: bool,
    /// File that says why the command failed, for the launcher that reads it: /dev/termination-log for Kubernetes. Where the
    /// environment variable TORCHELASTIC_ERROR_FILE names a file, it gets the reason in any case.
    #[arg(long, value_name = "FILE")]
    termination_log: Option<PathBuf>,
    /// Exit code in place of the command's own where starting it again without a change cannot help, 1 to 255.
    #[arg(long, value_name = "CODE", value_parser = clap::value_parser!(u8).range(1..))]
    no_retry_code: Option<u8>,
    /// Configuration file of the daemon; without it, the default configuration.
    #[arg(long = "config.file", value_name = "FILE")]
    config_file: Option<PathBuf>,
    /// Value of any configuration option by its key; may be given several times.
    #[arg(long = "set", value_name = "KEY=VALUE")]
    set: Vec<String>,
    /// Command to run, and its arguments.
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true, value_name = "CMD")]
    command: Vec<OsString>,
}

impl Args {
    /// What is taken for the command, and begins as an option.
    fn unknown_option(&self) -> Option<String> {
        let first = self.command.first().map(|first| first.to_string_lossy())?;
        let before = std::env::args_os().rev().nth(self.command.len());
        let is_option = first.starts_with('-') && before.is_none_or(|argument| argument != "--");
        is_option.then(|| printable::escaped(&first).into_owned())
    }

    pub(super) fn run(self) -> anyhow::Result<ExitCode> {
        if let Some(option) = self.unknown_option() {
            out::note(&format!(
                "error: unexpected argument '{option}' found; a command of this name follows --\n"
            ));
            return Ok(ExitCode::from(2));
        }
        // Errors in our own options are reported before the command is started.
        let plain = load(self.config_file.clone(), &self.set, 1.0, &[])?;
        let proc = plain.paths.proc.as_path();
        let mut inbox = Inbox::open(proc)?;
        let (program, arguments) = self.command.split_first().expect("clap asks for one at least");
        let instruments = self.instruments();
        let variables = instruments.as_ref().map(|own| own.variables(|name| std::env::var_os(name)));
        let fit = self.fit.and_then(|fit| fit.to_possible_value());
        let fit = fit.map(|fit| (instrument::FIT, fit.get_name().into()));
        let is_named = std::env::var_os(instrument::RUN).is_some_and(|run| !run.is_empty());
        let run = self.name.clone().filter(|_| !is_named).map(|name| (instrument::RUN, name.into()));
        let variables = variables.into_iter().flatten().chain(fit).chain(run).collect();
        let before = job::ticks_of_children(proc);
        let begun = clock::now();
        let guarded = self.guard.then(|| Guarded::new(&plain, &self.set, self.limit)).transpose()?;
        if let Some(guarded) = &guarded {
            guarded.protection(self.name.as_deref().unwrap_or("command"))?;
        }
        if guarded.is_some() && !job::adopt_orphans() {
            out::note("memwarden: processes of the command that lose their parent are not protected.\n");
        }
        let mut job = match Job::start(program, arguments, variables, proc) {
            Ok(job) => job,
            Err(error) => return Ok(not_started(program, &error)),
        };
        let name = self.name.clone().unwrap_or_else(|| name_of(program, job.pid()));
        let name = printable::escaped(&name).into_owned();
        let mut set = self.settings(instruments.as_ref());
        set.splice(0..0, guarded.as_ref().and_then(Guarded::settings));
        let config = load(self.config_file.clone(), &set, 1.0, &[(job.pid(), name.clone())]);
        let figures = Figures::default();
        let protection = guarded.as_ref().map(|guarded| guarded.protection(&name)).transpose();
        let command = job.pid();
        let watcher = config.and_then(|config| {
            let figures = Arc::clone(&figures);
            Ok(Watcher::start(config, protection?, (command, &name), self.interval, figures)?)
        });
        if let (Some(_), Err(error)) = (&guarded, &watcher) {
            out::note(&format!("memwarden: the command is not protected: {}\n", out::described(error)));
        }
        let is_shown = watcher.is_ok() && !self.no_progress && !self.quiet;
        let line =
            is_shown.then(|| ProgressLine::start(proc, figures, self.interval.unwrap_or(1.0))).flatten();
        let status = wait(&mut job, &mut inbox);
        if let Some(line) = line {
            line.stop();
        }
        let took = clock::now().since(begun);
        let after = job::ticks_of_children(proc);
        let ended = CommandEnd {
            command: self.shown(),
            workload: name,
            code: status.as_ref().ok().and_then(ExitStatus::code),
            signal: status.as_ref().ok().and_then(signal_of),
            aborts: self.aborts(),
            seconds: took.as_secs_f64(),
            cpu_seconds: after.zip(before).map(|(after, before)| seconds(after.saturating_sub(before))),
        };
        let exited = status.as_ref().ok().and_then(|status| job.exited(*status));
        let report = |watcher| self.report(watcher, &ended, exited, guarded.as_ref());
        let cause = watcher.and_then(report).unwrap_or_else(|error| {
            // Standard error may be closed; the command's exit code is what counts.
            out::note(&format!("memwarden: no report: {}\n", out::described(&error)));
            None
        });
        if let Some(cause) = cause.filter(|cause| cause.is_abnormal()) {
            launcher::tell(&cause, self.termination_log.as_deref());
            if let Some(code) = self.no_retry_code.filter(|_| cause.retry == Retry::CannotHelp) {
                return Ok(ExitCode::from(code));
            }
        }
        Ok(status.map_or(ExitCode::FAILURE, |status| ExitCode::from(job::exit_code(status))))
    }

    /// Whether a program that will not fit ends itself. The client reads the variable without regard to case.
    fn aborts(&self) -> bool {
        let by_environment =
            || std::env::var(instrument::FIT).is_ok_and(|mode| mode.eq_ignore_ascii_case(ABORT));
        self.fit.map_or_else(by_environment, |fit| fit == FitMode::Abort)
    }

    /// The command has its own job socket: the default one belongs to the daemon.
    fn settings(&self, instruments: Option<&Instruments>) -> Vec<String> {
        let socket = instruments.map_or_else(String::new, |own| own.socket().display().to_string());
        let mut set = vec![format!("sources.training.socket={socket}")];
        set.extend(self.set.iter().cloned());
        set
    }

    /// Absent if it is disabled or cannot be created: the command runs without it.
    fn instruments(&self) -> Option<Instruments> {
        let off = std::env::var_os(instrument::MODE).is_some_and(|mode| mode.is_empty() || mode == "0");
        if self.no_instrument || off {
            return None;
        }
        Instruments::unpack(&std::env::temp_dir())
            .inspect_err(|error| {
                let text = format!("memwarden: Python programs are not instrumented: {error}\n");
                out::note(&text);
            })
            .ok()
    }

    /// Writes the report; returns how the command ended, where that is known.
    fn report(
        &self,
        watcher: Watcher,
        ended: &CommandEnd,
        exited: Option<ExitedProcess>,
        guarded: Option<&Guarded>,
    ) -> anyhow::Result<Option<Arc<End>>> {
        let failed = exited.filter(|_| ended.code != Some(0));
        let (mut recorder, incidents) = watcher.stop(failed)?;
        if let Some(exited) = failed.filter(|_| recorder.end().is_none()) {
            // It ended before the first sample, or nothing was seen of its end.
            let unix = clock::now().unix().as_secs_f64();
            let comm = self.command.first().map(Path::new).and_then(Path::file_name).unwrap_or_default();
            let comm = printable::escaped(&comm.to_string_lossy()).into_owned();
            let of = (exited, rustix::process::getuid().as_raw());
            let end = ends::unobserved(ended.workload.as_str().into(), comm.into(), of, unix);
            let pid = end.pid;
            recorder.explain(&[Arc::new(end)], pid);
        }
        if let (Some(guarded), Some(incidents)) = (guarded, incidents) {
            guarded.tell(&incidents);
        }
        let samples = u32::try_from(recorder.samples()).unwrap_or(u32::MAX);
        let mean = recorder.seconds() / f64::from(samples.saturating_sub(1).max(1));
        let about = About { interval_seconds: self.interval.unwrap_or(mean), ..About::default() };
        let is_terminal = self.output.is_default() && std::io::stderr().is_terminal();
        let page = if is_terminal { standard_error_page() } else { Page::default() };
        let report = build_run(ended, &recorder, &about, page);
        match (self.output.format(), self.output.is_default()) {
            (_, true) if self.quiet => {}
            (Format::Text, true) => out::colored_note(&format!("\n{}", report.text))?,
            (Format::Json, true) => out::note(&printable::json(&output::pretty(&report.json)?)),
            (Format::Text, false) => self.output.text(&report.text)?,
            (Format::Json, false) => self.output.value(&report.json)?,
        }
        self.plot.as_deref().map_or(Ok(()), |path| picture::chart(&report.plot.chart(), path))?;
        Ok(recorder.end().cloned())
    }

    /// The command as text, shortened.
    fn shown(&self) -> String {
        const LONGEST: usize = 80;
        let words: Vec<_> = self.command.iter().map(|word| word.to_string_lossy()).collect();
        let all = words.join(" ").replace(char::is_control, " ");
        let all = printable::escaped(&all).into_owned();
        if all.chars().count() <= LONGEST {
            return all;
        }
        all.chars().take(LONGEST - 3).chain("...".chars()).collect()
    }
}

/// Waits for the end of the command and forwards signals to it.
fn wait(job: &mut Job, inbox: &mut Inbox) -> std::io::Result<ExitStatus> {
    loop {
        if let Some(status) = job.ended()? {
            return Ok(status);
        }
        for event in inbox.wait() {
            // Signals of the terminal also reach the command directly.
            if let Event::Sent(signal) = event {
                job.signal(signal);
            }
        }
    }
}

fn not_started(program: &OsString, error: &std::io::Error) -> ExitCode {
    let found = error.kind() != ErrorKind::NotFound;
    let program = printable::path(Path::new(program));
    let text = if found {
        format!("memwarden: cannot run {program}: {error}\n")
    } else {
        format!("memwarden: {program}: command not found\n")
    };
    out::note(&text);
    ExitCode::from(if found { NOT_RUNNABLE } else { NOT_FOUND })
}

/// The program's own name and the pid, as a label can hold them.
fn name_of(program: &OsString, pid: u32) -> String {
    let file = Path::new(program).file_name().unwrap_or(program).to_string_lossy();
    // The name is no pattern of other names.
    let is_shown = |letter: &char| !printable::is_hidden(*letter) && !['*', '?'].contains(letter);
    let short: String = file.chars().filter(is_shown).take(60).collect();
    format!("{}-{pid}", short.trim())
}

fn signal_of(status: &ExitStatus) -> Option<i32> {
    use std::os::unix::process::ExitStatusExt as _;
    status.signal()
}

fn seconds(ticks: u64) -> f64 {
    Duration::from_micros(ticks.saturating_mul(1_000_000 / process::clock_ticks())).as_secs_f64()
}
