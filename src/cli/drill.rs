//! `memwarden drill`: the steps of protection on a target, without effect.

use std::fmt::Write as _;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;

use crate::app::{self, serve};
use crate::cli::fetch;
use crate::cli::out;
use crate::cli::report::standard_output_page;
use crate::config;
use crate::model::health::Health;
use crate::model::printable::escaped;
use crate::node_view::table::{Cell, Row};
use crate::node_view::{NodeView, Target};
use crate::protection::enforce::ask_run::{self, PeerAnswer};
use crate::protection::guard::drill;
use crate::protection::options::Protection;
use crate::protection::types::run_request::{RunOutcome, RunQuery, RunRequest};
use crate::report::Page;
use crate::report::text::{self, wrapped};

/// How long the daemon of this node may take to answer.
const PATIENCE: Duration = Duration::from_secs(2);

/// Test every protection step of a target with signal 0, and print the steps in order.
///
/// With signal 0, the kernel checks whether a signal could be sent and sends none. No process is signalled, no hook is
/// started and no record is written. Needs no running daemon, except with --run: then the daemons of the run's nodes report
/// what they would do. Exit codes: 0 every step would work, 1 a step would fail or
/// would reach no process. If the daemon of this node answers, the drill also shows which processes report that they do not
/// save a checkpoint on request.
#[derive(Debug, clap::Args)]
#[command(
    after_long_help = "Example:\n  memwarden drill --config.file /etc/memwarden/memwarden.yaml --target train\n  memwarden drill --config.file /etc/memwarden/memwarden.yaml --run llama"
)]
pub(super) struct Args {
    /// Configuration file of the daemon.
    #[arg(long = "config.file", value_name = "FILE")]
    config_file: PathBuf,
    /// Name of the target in `protection.targets`.
    #[arg(long, value_name = "NAME", required_unless_present = "run")]
    target: Option<String>,
    /// Name of a run: asks the daemons of all its nodes (protection.peers) what a request for a checkpoint would do there.
    #[arg(long, value_name = "NAME", conflicts_with = "target")]
    run: Option<String>,
    /// Slurm job of the run, for `protection.peers.from: slurm`.
    #[arg(long, value_name = "ID", requires = "run")]
    slurm_job_id: Option<String>,
}

impl Args {
    pub(super) fn run(self) -> anyhow::Result<ExitCode> {
        let config = config::parse(&self.config_file, &app::schema(), &[])?;
        let Some(name) = &self.target else {
            let run = self.run.as_deref().unwrap_or_default();
            return walk_run(&serve::protection(&config), run, self.slurm_job_id.as_deref());
        };
        let context = serve::context(&config.paths, Arc::default(), Arc::default());
        let (target, drill) = drill::walk(&config, &serve::protection(&config), context, name)
            .context("the drill could not begin")?;
        let page = standard_output_page();
        let mut text = String::new();
        writeln!(text, "{}", escaped(&target.to_string()))?;
        let mut well = false;
        let reported = reported(name);
        for job in &drill.jobs {
            let name = if job.name.is_empty() { "no process now" } else { &job.name };
            let members = if job.members == 1 { "process" } else { "processes" };
            let name = escaped(name);
            let whys: Vec<String> = job.whys.iter().map(|(why, count)| format!("{count} {why}")).collect();
            let whys = if whys.is_empty() { String::new() } else { format!(" ({})", whys.join(", ")) };
            writeln!(text, "\n{name}: {} {members}, {} left out{whys}", job.members, job.left_out)?;
            if let Some(unfit) = job.unfit {
                let refusal = format!("nothing would be done: {unfit}");
                writeln!(text, "  {}", page.marked(Health::Critical, &refusal))?;
            }
            let own = reported.iter().filter(|own| own.workload == job.name);
            for line in own.flat_map(Target::cannot_save_text) {
                writeln!(text, "  {}", page.marked(Health::Warning, &escaped(&line)))?;
            }
            let mut before = None;
            let rows = job.steps.iter().map(|step| {
                let again = before.replace(step.state) == Some(step.state);
                let state = if again { "" } else { step.state.label() };
                let result = Cell::text(&step.outcome);
                Row::default()
                    .text("state", 0, Cell::plain(state))
                    .text("step", 0, &step.what)
                    .number("took", 1, format!("{} µs", step.micros))
                    .prose("result", if step.fails { result.of(Health::Critical) } else { result })
            });
            text::rows(&mut text, rows, page);
            well |= !job.steps.is_empty();
        }
        let fails =
            drill.jobs.iter().any(|job| job.unfit.is_some() || job.steps.iter().any(|step| step.fails));
        writeln!(text, "\n{}", verdict(well, fails, page))?;
        out::colored_text(&wrapped(&text, page))?;
        Ok(if well && !fails { ExitCode::SUCCESS } else { ExitCode::FAILURE })
    }
}

/// The target as the daemon of this node shows it, for each of its jobs: only the daemon knows what jobs report. Nothing
/// where none answers.
fn reported(name: &str) -> Vec<Target> {
    let view = fetch::json::<NodeView>(&fetch::local(), "/api/v1/node", PATIENCE);
    let mut targets = view.map(|view| view.protection.targets).unwrap_or_default();
    targets.retain(|target| target.target == name);
    targets
}

/// How a node's answer is judged: it would ask, it has no job of the run, or it cannot ask.
const fn level(outcome: RunOutcome) -> Health {
    match outcome {
        RunOutcome::WouldAsk | RunOutcome::Asked => Health::Ok,
        RunOutcome::NoJob => Health::Unknown,
        _ => Health::Critical,
    }
}

/// The result of a drill in one line; `well` is whether there are steps.
fn verdict(well: bool, fails: bool, page: Page) -> String {
    match (well, fails) {
        (_, true) => page.marked(Health::Critical, "A step would fail."),
        (true, false) => page.marked(Health::Ok, "Every step would work."),
        (false, false) => page.marked(Health::Unknown, "No process was found that a step could reach."),
    }
}

/// Asks the daemons of all nodes of a run what they would do, and prints a table.
fn walk_run(protection: &Protection, run: &str, slurm_job_id: Option<&str>) -> anyhow::Result<ExitCode> {
    let peers = protection.peers.as_ref().context("the configuration has no protection.peers")?;
    let from = ask_run::node_name();
    let request = RunRequest {
        incident: format!("drill@{from}"),
        from,
        reason: "drill".to_owned(),
        dry_run: true,
        ..RunRequest::default()
    };
    let query = RunQuery { run: run.into(), slurm_job_id: slurm_job_id.unwrap_or_default().into(), request };
    let runtime = fetch::runtime()?;
    let answers = runtime.block_on(ask_run::ask(peers, &query)).map_err(anyhow::Error::msg);
    let answers = answers.context("the drill could not begin")?;
    runtime.shutdown_background();
    let mut text = String::new();
    let page = standard_output_page();
    let rows = answers.iter().map(|PeerAnswer { peer, answer, why }| {
        let health = level(answer.outcome);
        Row::new(&**peer, health)
            .text("node", 0, peer)
            .text("name", 1, &answer.host)
            .number("processes", 0, answer.processes.to_string())
            .text("result", 0, Cell::text(answer.outcome.label()).of(health))
            .prose("why", why)
    });
    text::rows(&mut text, rows, page);
    out::colored_text(&text)?;
    let would = |answer: &PeerAnswer| answer.answer.outcome == RunOutcome::WouldAsk;
    // A node of the list can be without a job of the run.
    let well = |answer: &PeerAnswer| would(answer) || answer.answer.outcome == RunOutcome::NoJob;
    let works = answers.iter().any(would) && answers.iter().all(well);
    Ok(if works { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::Paint;

    #[test]
    fn the_result_of_a_drill_is_one_line() {
        let told = |well, fails| verdict(well, fails, Page::default());
        assert_eq!(told(true, false), "Every step would work.");
        assert_eq!([told(true, true), told(false, true)], ["A step would fail."; 2]);
        assert_eq!(told(false, false), "No process was found that a step could reach.");
        let page = Page { columns: Some(80), paint: Paint::Colors };
        assert_eq!(verdict(true, true, page), "\x1b[1;31m!! A step would fail.\x1b[0m");
        assert_eq!(page.marked(level(RunOutcome::NoHandler), "x"), "\x1b[1;31m!! x\x1b[0m");
        assert_eq!(page.marked(level(RunOutcome::NoJob), "x"), "\x1b[35m? x\x1b[0m");
    }
}
