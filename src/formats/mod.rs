//! The pure knowledge about training jobs: what they compute, what they say over the job socket and in their
//! logs, allocator snapshots and the pickles they come in, parameter files, and the logs of the tools that people
//! used before.
//!
//! Bytes and times are arguments. Nothing here reads a clock, a file or a
//! socket, and nothing here can execute what it reads.

pub mod log_lines;
pub mod messages;
pub mod older_logs;
pub mod parameters;
pub mod pickle;
pub mod snapshot;
