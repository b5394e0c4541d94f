//! `memwarden check-config`: reports the errors of a configuration file without starting the daemon.

use std::path::PathBuf;
use std::process::ExitCode;

use crate::app;
use crate::cli::out::{self, ConfigErrors, described};
use crate::config::{self, Config, default_file};
use crate::model::printable;
use crate::protection::enforce::hooks;
use crate::serve::http;

/// Check a configuration file and print every error in it.
///
/// Exit codes: 0 the file is valid, 1 the file has errors.
#[derive(Debug, clap::Args)]
#[command(after_long_help = "Example:\n  memwarden check-config /etc/memwarden/memwarden.yaml")]
pub(super) struct Args {
    /// Configuration file to check.
    #[arg(required_unless_present = "print_default")]
    file: Option<PathBuf>,
    /// Print the default configuration with comments, and check no file.
    #[arg(long)]
    print_default: bool,
}

impl Args {
    pub(super) fn run(self) -> anyhow::Result<ExitCode> {
        let schema = app::schema();
        if self.print_default {
            out::text(&default_file::write(&schema))?;
        }
        if let Some(file) = self.file {
            let config = config::parse(&file, &schema, &[])?;
            let problems = beyond(&config);
            if !problems.is_empty() {
                let name = printable::path(&file);
                let lines: Vec<String> =
                    problems.iter().map(|problem| format!("{name}: {problem}")).collect();
                return Err(ConfigErrors(lines.join("\n")).into());
            }
            let mut text = format!("{}: good\n", printable::path(&file));
            for target in app::serve::protection(&config).targets {
                text.push_str(&printable::escaped(&target.to_string()));
                text.push('\n');
            }
            out::text(&text)?;
        }
        Ok(ExitCode::SUCCESS)
    }
}

/// The errors of the files that the configuration names.
fn beyond(config: &Config) -> Vec<String> {
    let mut problems = Vec::new();
    if let Some(Err(error)) = config.web.config_file.as_deref().map(http::check_web_config) {
        problems.push(format!("web.config_file: {}", described(&anyhow::Error::new(error))));
    }
    for target in app::serve::protection(config).targets {
        if let Some(Err(error)) = target.hook.as_ref().map(|hook| hooks::check::program(&hook.program)) {
            let name = printable::escaped(target.name.as_str());
            problems.push(format!("the hook of {name}: {}", described(&anyhow::Error::msg(error))));
        }
    }
    match crate::otlp::check(&config.otlp) {
        Ok(warnings) => problems.extend(
            warnings.into_iter().map(|warning| format!("otlp: {}", printable::escaped(&warning.to_string()))),
        ),
        Err(error) => problems.push(format!("otlp: {}", described(&anyhow::Error::new(error)))),
    }
    problems
}
