//! `memwarden drill`: the steps of protection on a target, without effect.

use std::fmt::Write as _;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::Context as _;

use crate::app::{self, serve};
use crate::cli::out;
use crate::cli::report::standard_output_page;
use crate::config;
use crate::model::printable::escaped;
use crate::protection::guard::drill;
use crate::report::text::{prose_table, wrapped};

/// Test every protection step of a target with signal 0, and print the steps in order.
///
/// With signal 0, the kernel checks whether a signal could be sent and sends none. No process is signalled, no hook is
/// started and no record is written. Needs no running daemon. Exit codes: 0 every step would work, 1 a step would fail or
/// would reach no process.
#[derive(Debug, clap::Args)]
#[command(
    after_long_help = "Example:\n  memwarden drill --config.file /etc/memwarden/memwarden.yaml --target train"
)]
pub(super) struct Args {
    /// Configuration file of the daemon.
    #[arg(long = "config.file", value_name = "FILE")]
    config_file: PathBuf,
    /// Name of the target in `protection.targets`.
    #[arg(long, value_name = "NAME")]
    target: String,
}

impl Args {
    pub(super) fn run(self) -> anyhow::Result<ExitCode> {
        let config = config::parse(&self.config_file, &app::schema(), &[])?;
        let context = serve::context(&config.paths, Arc::default());
        let (target, drill) = drill::walk(&config, &serve::protection(&config), context, &self.target)
            .context("the drill could not begin")?;
        let page = standard_output_page();
        let mut text = String::new();
        writeln!(text, "{}", escaped(&target.to_string()))?;
        let mut well = false;
        for job in &drill.jobs {
            let name = if job.name.is_empty() { "no process now" } else { &job.name };
            let members = if job.members == 1 { "process" } else { "processes" };
            let name = escaped(name);
            let whys: Vec<String> = job.whys.iter().map(|(why, count)| format!("{count} {why}")).collect();
            let whys = if whys.is_empty() { String::new() } else { format!(" ({})", whys.join(", ")) };
            writeln!(text, "\n{name}: {} {members}, {} left out{whys}", job.members, job.left_out)?;
            if let Some(unfit) = job.unfit {
                writeln!(text, "  nothing would be done: {unfit}")?;
            }
            let mut before = None;
            let rows = job.steps.iter().map(|step| {
                let again = before.replace(step.state) == Some(step.state);
                let state = if again { "" } else { step.state.label() };
                let (what, outcome) = (escaped(&step.what), escaped(&step.outcome));
                let took = format!("{} µs", step.micros);
                vec![state.to_owned(), what.into_owned(), took, outcome.into_owned()]
            });
            let head = ["state", "step", "took", "result"].map(str::to_owned).to_vec();
            let rows: Vec<Vec<String>> = std::iter::once(head).chain(rows).collect();
            if rows.len() > 1 {
                prose_table(&mut text, &rows, &[0, 1], page, &[2]);
            }
            well |= !job.steps.is_empty();
        }
        out::text(&wrapped(&text, page))?;
        let fails =
            drill.jobs.iter().any(|job| job.unfit.is_some() || job.steps.iter().any(|step| step.fails));
        Ok(if well && !fails { ExitCode::SUCCESS } else { ExitCode::FAILURE })
    }
}
