//! Files that only commands read: pickles, parameter files, allocator snapshots, and the logs of other memory tools.
//!
//! The daemon has one of these files read by a child process, `snapshot-digest`, with limits on memory and time. No module of
//! the daemon imports this one. Bytes are arguments, and nothing here can execute its input.

pub mod older_logs;
pub mod parameters;
pub mod pickle;
pub mod snapshot;
