//! The command line: one file a subcommand.

#[cfg(feature = "gpu")]
pub mod gpu_worker;
