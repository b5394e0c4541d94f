//! `memwarden check-config`: what a start would say of a file, without starting.

use std::io::Write as _;
use std::path::PathBuf;
use std::process::ExitCode;

use crate::app;
use crate::config::{self, default_file};

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
            config::parse(&file, &schema, &[])?;
            writeln!(out, "{}: good", file.display())?;
        }
        Ok(ExitCode::SUCCESS)
    }
}
