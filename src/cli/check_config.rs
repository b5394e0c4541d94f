//! `memwarden check-config`: what a start would say of a file, without starting.

use std::io::Write as _;
use std::path::PathBuf;
use std::process::ExitCode;

use crate::app;
use crate::config::{self, Config, default_file};
use crate::exposition::http;
use crate::host::hooks;

/// Check a configuration file and say everything that is wrong with it.
///
/// Exits with 0 for a good file and 1 for a bad one.
#[derive(Debug, clap::Args)]
#[command(after_long_help = "Example:\n  memwarden check-config /etc/memwarden/memwarden.yaml")]
pub(super) struct Args {
    /// The file to check.
    #[arg(required_unless_present = "print_default")]
    file: Option<PathBuf>,
    /// Print the commented default configuration instead.
    #[arg(long)]
    print_default: bool,
}

impl Args {
    pub(super) fn run(self) -> anyhow::Result<ExitCode> {
        let schema = app::schema();
        let mut out = std::io::stdout().lock();
        if self.print_default {
            out.write_all(default_file::write(&schema).as_bytes())?;
        }
        if let Some(file) = self.file {
            let config = config::parse(&file, &schema, &[])?;
            let problems = beyond(&config);
            if !problems.is_empty() {
                let lines: Vec<String> =
                    problems.iter().map(|problem| format!("{}: {problem}", file.display())).collect();
                anyhow::bail!("{}", lines.join("\n"));
            }
            writeln!(out, "{}: good", file.display())?;
            for target in app::serve::protection(&config).targets {
                writeln!(out, "{target}")?;
            }
        }
        Ok(ExitCode::SUCCESS)
    }
}

/// What is wrong with the files that the configuration names.
fn beyond(config: &Config) -> Vec<String> {
    let mut problems = Vec::new();
    if let Some(Err(error)) = config.web.config_file.as_deref().map(http::check_web_config) {
        problems.push(format!("web.config_file: {:#}", anyhow::Error::new(error)));
    }
    for target in app::serve::protection(config).targets {
        if let Some(Err(error)) = target.hook.as_ref().map(|hook| hooks::check::program(&hook.program)) {
            problems.push(format!("the hook of {}: {:#}", target.name, anyhow::Error::new(error)));
        }
    }
    #[cfg(feature = "otlp")]
    match crate::exposition::otlp::check(&config.otlp) {
        Ok(warnings) => problems.extend(warnings.into_iter().map(|warning| format!("otlp: {warning}"))),
        Err(error) => problems.push(format!("otlp: {:#}", anyhow::Error::new(error))),
    }
    problems
}
