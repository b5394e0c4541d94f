//! Access to the host: paths of the kernel's files, clocks, bounded reads, processes, sockets.
//!
//! The only folder that contains literal paths of the kernel, reads a clock,
//! or starts a process.

pub mod apart;
pub mod background;
pub mod capability;
pub mod cgroup;
pub mod cgroup_owner;
pub mod cgroup_path;
pub mod child;
pub mod clock;
pub mod connection;
pub mod exit_events;
pub mod fs;
pub mod http_client;
pub mod huge_pages;
pub mod job;
pub mod lab;
pub mod local_socket;
pub mod lock;
pub mod memory;
pub mod numa;
pub mod peer;
pub mod perf;
pub mod pidfd;
pub mod poll;
pub mod pressure;
pub mod priority;
pub mod process;
pub mod room;
pub mod roots;
pub mod sent_signals;
pub mod signal;
pub mod subordinate;
pub mod task;
pub mod tcp_owner;
#[cfg(test)]
pub(crate) mod testing;
pub mod tls;
pub mod user_files;
