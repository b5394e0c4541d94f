//! Files that only commands read: pickles, allocator snapshots, the logs of other memory tools, and what trackers of
//! experiments and schedulers recorded of runs.
//!
//! The daemon has one of these files read by a child process, `snapshot-digest`, with limits on memory and time. No module of
//! the daemon imports this one. Bytes are arguments, and nothing here can execute its input.

pub mod older_logs;
pub mod pickle;
pub mod run_records;
pub mod snapshot;
