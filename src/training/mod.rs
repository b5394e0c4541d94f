//! The pure knowledge about training jobs: allocator snapshots and the pickles they come in, parameter
//! files, and the logs of the tools that people used before.
//!
//! Bytes and times are arguments. Nothing here reads a clock, a file or a
//! socket, and nothing here can execute what it reads.

pub mod older_logs;
pub mod parameters;
pub mod pickle;
pub mod snapshot;
