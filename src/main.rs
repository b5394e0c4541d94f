//! memwarden's command line.

use std::process::ExitCode;

#[cfg(feature = "gpu")]
#[derive(clap::Parser)]
enum Command {
    #[command(hide = true)]
    GpuWorker(memwarden::cli::gpu_worker::GpuWorkerArgs),
}

#[cfg(feature = "gpu")]
fn main() -> ExitCode {
    let Command::GpuWorker(arguments) = clap::Parser::parse();
    memwarden::cli::gpu_worker::run(arguments)
}

#[cfg(not(feature = "gpu"))]
fn main() -> ExitCode {
    ExitCode::SUCCESS
}
