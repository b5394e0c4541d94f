//! The pure knowledge about training jobs: the logs of the tools that people used before.
//!
//! Bytes and times are arguments. Nothing here reads a clock, a file or a
//! socket, and nothing here can execute what it reads.

pub mod older_logs;
