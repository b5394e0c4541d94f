//! The pure knowledge about training jobs: what they compute, allocator snapshots and the pickles they come
//! in, and the logs of frameworks and of the tools that people used before.
//!
//! Bytes and times are arguments. Nothing here reads a clock, a file or a
//! socket, and nothing here can execute what it reads.

pub mod flops;
pub mod log_lines;
pub mod older_logs;
pub mod pickle;
pub mod snapshot;
