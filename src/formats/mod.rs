//! Formats that the daemon reads itself: messages of the job socket, log lines, environments of ranks, and the answer of
//! the process that reads an allocator snapshot, the call of systemd-oomd, and CDI files.
//!
//! Bytes and times are arguments. Nothing here reads a clock, a file or a socket.

pub mod cdi;
pub mod kernel;
pub mod lines;
pub mod log_lines;
pub mod messages;
pub mod rank_environment;
pub mod snapshot_digest;
pub mod stamp;
pub mod varlink;
