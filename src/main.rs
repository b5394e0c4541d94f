//! The thin binary.

use std::process::ExitCode;

use memwarden::cli;

fn main() -> ExitCode {
    cli::exit_code(cli::run())
}
