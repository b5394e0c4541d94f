//! The command line: one file per subcommand; its types parse arguments and call other modules.

mod acknowledge;
mod check;
mod check_config;
mod cluster;
mod compare;
mod demo;
mod doctor;
mod drill;
pub mod fetch;
mod gpu;
mod gpu_worker;
mod history;
mod hook_helper;
mod incidents;
mod job_summary;
mod lab;
mod metrics;
pub mod out;
pub mod output;
pub mod picture;
mod report;
mod run;
mod serve;
mod top;
mod why;

use std::ffi::OsString;
use std::process::ExitCode;

use anyhow::Context as _;
use clap::error::{ContextKind, ContextValue};
use clap::{CommandFactory as _, FromArgMatches, Parser, Subcommand};

use crate::model::printable;
use crate::protection::enforce::executor;
use crate::report::Kind;

/// The output of `--version`: the version, and the commit that it was built from.
pub const VERSION: &str = concat!(env!("CARGO_PKG_VERSION"), " (revision ", env!("MEMWARDEN_COMMIT"), ")");

/// Monitors the memory of training nodes, forecasts its exhaustion, and protects jobs before it is exhausted.
#[derive(Debug, Parser)]
#[command(name = "memwarden", version = VERSION, about, max_term_width = 100)]
pub struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Serve(serve::Args),
    Run(run::Args),
    Demo(demo::Args),
    Top(top::Args),
    /// Report the current and the peak memory usage, by kind of memory, GPU, workload and process.
    ///
    /// Exit codes: 0 success, 1 an error, 2 the peak usage of the host or a GPU exceeded --threshold, 3 a selected GPU or daemon
    /// does not respond or the host cannot be read, so that its state is unknown. A selected GPU that does not exist is an
    /// error.
    #[command(after_long_help = "Examples:
  memwarden profile --duration 10
  memwarden profile --pid 4711 --duration 5m --output profile.json --plot profile.svg
  memwarden profile --threshold 90% || echo \"above 90 %\"")]
    Profile(report::Options),
    /// Report which resources will exhaust their memory, when, with what probability, and what to do.
    ///
    /// Resources are the host, each cgroup with a limit, each GPU, and each workload with the limit that applies to it.
    /// A forecast requires 60 samples. Exit codes: 0 nothing is wrong, 1 an error, 2 the health of a resource is warning or
    /// critical (with --threshold: the share in use, or the probability of exhaustion within 1 hour, exceeds it), 3 a
    /// selected GPU or daemon does not respond or no resource can be read, so that the state is unknown. A selected GPU that
    /// does not exist is an error.
    #[command(after_long_help = "Examples:
  memwarden oom --duration 60 --plot oom.svg
  memwarden oom --url unix:/run/memwarden/api.sock --duration 5 --threshold 80%
  memwarden oom --pid 4711 --monitor")]
    Oom(report::Options),
    /// Report memory leaks of workloads, their largest processes, and processes on GPUs, with the evidence.
    ///
    /// A verdict requires 60 samples; a slow leak takes longer to be distinguished from a warm-up. Exit codes:
    /// 0 no leak, 1 an error, 2 a leak (with --threshold: only with a higher confidence), 3 a selected GPU or daemon does
    /// not respond, so that its state is unknown. A selected GPU that does not exist is an error.
    #[command(after_long_help = "Examples:
  memwarden leak --pid 4711 --duration 5m --plot leak.svg
  memwarden leak --url unix:/run/memwarden/api.sock --duration 5 --workload slurm-17")]
    Leak(report::Options),
    /// Report the share of the host's free memory in blocks too small for large requests, and its trend.
    ///
    /// Fragmentation of GPU memory happens inside the allocator of a job; see `memwarden snapshot`.
    /// Exit codes: 0 success, 1 an error, 2 the share unusable for a huge page (order 9) exceeds --threshold, 3 a selected
    /// GPU or daemon does not respond, so that its state is unknown. A selected GPU that does not exist is an error.
    /// --devices, --pid and --workload select allocators of jobs, and need --url.
    #[command(after_long_help = "Examples:
  memwarden fragmentation --duration 10
  memwarden fragmentation --threshold 95% --output fragmentation.json --plot fragmentation.png")]
    #[command(mut_arg("devices", |own| own.requires("url")), mut_arg("pid", |own| own.requires("url")))]
    #[command(mut_arg("workload", |own| own.requires("url")))]
    Fragmentation(report::Options),
    Check(check::Args),
    Acknowledge(acknowledge::Args),
    Cluster(cluster::Args),
    CheckConfig(check_config::Args),
    Doctor(doctor::Args),
    Metrics(metrics::Args),
    Incidents(incidents::Args),
    History(history::Args),
    Compare(compare::Args),
    Why(why::Args),
    JobSummary(job_summary::Args),
    Drill(drill::Args),
    Gpu(gpu::Args),
    /// Run the hooks of protection; started by the daemon only.
    #[command(hide = true)]
    HookHelper(hook_helper::Args),
    /// Touch or watch a file of a checkpoint; started by the daemon only.
    #[command(hide = true)]
    CheckpointFile,
}

pub use lab::LAB;

pub use crate::host::lab::RELEASE;

/// The groups of the commands in the help.
const GROUPS: [(&str, &[&str]); 5] = [
    ("Watch", &["top", "check", "acknowledge", "cluster", "profile", "oom", "leak", "fragmentation"]),
    ("Explain what happened", &["why", "history", "compare", "incidents", "job-summary"]),
    ("Run", &["serve", "run", "demo", "doctor"]),
    ("Protect", &["drill", "what-if", "gpu"]),
    ("Files", &["check-config", "metrics", "plot", "replay", "snapshot"]),
];

/// The command line, whose help has the commands in groups: clap has groups of options only.
fn command() -> clap::Command {
    let of_the_lab = LAB.map(|(name, about)| clap::Command::new(name).about(about));
    let cli = Cli::command().subcommands(of_the_lab);
    let about = |name: &&str| {
        let about = cli.find_subcommand(name).and_then(clap::Command::get_about);
        about.map(|about| format!("  {name:13}  {about}\n")).unwrap_or_default()
    };
    let lists = GROUPS.map(|(group, names)| {
        let of_group: String = names.iter().map(about).collect();
        format!("{group}:\n{of_group}\n")
    });
    let template = format!(
        "{{about-with-newline}}\n{{usage-heading}} {{usage}}\n\n{}Options:\n{{options}}",
        lists.concat()
    );
    cli.help_template(template)
}

/// What to write in place of arguments that people try: the command, the argument, and the advice.
const ADVICE: [(&str, &str, &str); 4] = [
    ("fit", "fit", "`memwarden run --fit say -- CMD` says whether the memory of a job will fit"),
    ("why", "--pid", "write the pid without an option: `memwarden why 4711`"),
    ("why", "--last", "`memwarden why` explains the last failure, and `memwarden why --all` lists all ends"),
    (
        "incidents",
        "--url",
        "records are files of the node: run it there, or name a copy of them with --folder",
    ),
];

/// A better message than that of clap; absent where clap's names the option, the mistake and the remedy.
fn advice(error: &clap::Error, words: &[String]) -> Option<String> {
    let of_kind = |kind| match error.get(kind) {
        Some(ContextValue::String(wrong)) => Some(wrong),
        _ => None,
    };
    let wrong = of_kind(ContextKind::InvalidArg).or_else(|| of_kind(ContextKind::InvalidSubcommand))?;
    let place = words.iter().position(|word| word.starts_with(&**wrong))?;
    let is_negative =
        wrong.strip_prefix('-').is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_digit()));
    if is_negative && words[place - 1].starts_with("--") {
        return Some(format!(
            "error: invalid value '{}' for '{}': it is negative\n",
            words[place],
            words[place - 1]
        ));
    }
    let known = ADVICE
        .iter()
        .find(|(command, argument, _)| words.get(1).is_some_and(|word| word == command) && wrong == argument);
    known.map(|(.., advice)| format!("error: unexpected argument '{wrong}' found: {advice}\n"))
}

/// Runs the command of the command line.
///
/// # Errors
/// Those of the command.
pub fn run() -> anyhow::Result<ExitCode> {
    let words: Vec<OsString> = std::env::args_os().skip(1).collect();
    if words.first().is_some_and(|name| name == gpu_worker::NAME) {
        return gpu_worker::run(words.into_iter().skip(1));
    }
    if lab::is_meant(&words) {
        return Err(lab::execute());
    }
    parsed::<Cli>(command()).map_or_else(Ok, Cli::run)
}

/// The command line of this process.
///
/// # Errors
/// The exit code where it is refused; the reason is written.
pub fn parsed<C: FromArgMatches>(command: clap::Command) -> Result<C, ExitCode> {
    let parsed = command.clone().try_get_matches().and_then(|matches| C::from_arg_matches(&matches));
    parsed.map_err(|error| {
        // Help, and the version.
        if !error.use_stderr() {
            error.exit();
        }
        // An argument may be the name of a user's file: the message shows it escaped.
        let shown: Vec<String> = std::env::args_os()
            .map(|argument| printable::escaped(&argument.to_string_lossy()).into_owned())
            .collect();
        let again = command.try_get_matches_from(&shown).and_then(|matches| C::from_arg_matches(&matches));
        let message =
            again.err().map(|error| advice(&error, &shown).unwrap_or_else(|| error.render().to_string()));
        out::note(&message.unwrap_or_else(|| "error: invalid arguments\n".to_owned()));
        ExitCode::from(u8::try_from(error.exit_code()).unwrap_or(2))
    })
}

/// The exit code of a command; an error is written, once.
pub fn exit_code(result: anyhow::Result<ExitCode>) -> ExitCode {
    match result {
        Ok(code) => code,
        Err(error) if is_broken_pipe(&error) => ExitCode::SUCCESS,
        Err(error) => {
            out::complain(&error);
            ExitCode::FAILURE
        }
    }
}

/// Whether the reader of our output went away, as `| head` does.
fn is_broken_pipe(error: &anyhow::Error) -> bool {
    error.chain().any(|cause| {
        cause
            .downcast_ref::<std::io::Error>()
            .is_some_and(|error| error.kind() == std::io::ErrorKind::BrokenPipe)
    })
}

impl Cli {
    /// Runs the command.
    pub fn run(self) -> anyhow::Result<ExitCode> {
        match self.command {
            Command::Serve(args) => args.run(),
            Command::Run(args) => args.run(),
            Command::Demo(args) => args.run(),
            Command::Top(args) => args.run(),
            Command::Profile(args) => report::run(Kind::Profile, &args),
            Command::Oom(args) => report::run(Kind::Oom, &args),
            Command::Leak(args) => report::run(Kind::Leak, &args),
            Command::Fragmentation(args) => report::run(Kind::Fragmentation, &args),
            Command::Check(args) => args.run(),
            Command::Acknowledge(args) => args.run(),
            Command::Cluster(args) => args.run(),
            Command::CheckConfig(args) => args.run(),
            Command::Doctor(args) => args.run(),
            Command::Metrics(args) => args.run(),
            Command::Incidents(args) => args.run(),
            Command::History(args) => args.run(),
            Command::Compare(args) => args.run(),
            Command::Why(args) => args.run(),
            Command::JobSummary(args) => args.run(),
            Command::Drill(args) => args.run(),
            Command::Gpu(args) => args.run(),
            Command::HookHelper(args) => args.run(),
            Command::CheckpointFile => {
                executor::run_checkpoint_file().context("the daemon cannot be told")?;
                Ok(ExitCode::SUCCESS)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use clap::CommandFactory as _;

    #[test]
    fn every_command_is_in_one_group() {
        let cli = super::command();
        let shown = cli.get_subcommands().filter(|command| !command.is_hide_set());
        let known: BTreeSet<&str> = shown.map(clap::Command::get_name).collect();
        let grouped: Vec<&str> = super::GROUPS.iter().flat_map(|(_, names)| *names).copied().collect();
        assert_eq!(grouped.len(), known.len());
        assert_eq!(BTreeSet::from_iter(grouped), known);
        let help = super::command().render_help().to_string();
        assert!(known.iter().all(|name| help.contains(&format!("\n  {name} "))), "{help}");
    }

    #[test]
    fn every_command_shows_an_example() {
        let cli = super::Cli::command();
        cli.clone().debug_assert();
        for command in cli.get_subcommands().filter(|command| !command.is_hide_set()) {
            let help = command.clone().render_long_help().to_string();
            assert!(help.contains("Example"), "{} has no example:\n{help}", command.get_name());
        }
    }
}
