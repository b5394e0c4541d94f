//! Formats of training jobs: model shapes, messages of the job socket, log lines, allocator snapshots and their
//! pickles, parameter files, and the logs of other memory tools.
//!
//! Bytes and times are arguments. Nothing here reads a clock, a file or a socket, and nothing here can execute its
//! input.

pub mod log_lines;
pub mod messages;
pub mod older_logs;
pub mod parameters;
pub mod pickle;
pub mod rank_environment;
pub mod snapshot;
