//! The thin binary of the commands that read files.

use std::process::ExitCode;

fn main() -> ExitCode {
    memwarden::cli::exit_code(memwarden_lab::cli::run())
}
