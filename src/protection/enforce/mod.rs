//! The only code that signals, kills, freezes or starts a hook, and what it reads for that.
//!
//! [`executor`] carries out steps and checks each process immediately before; [`hooks`] start commands outside the
//! job's cgroup; [`webhook`] calls web services; [`ask_run`] asks other nodes; [`levels`] and
//! [`process_meter`] read the memory left that decisions are based on.

pub mod ask_run;
pub mod executor;
pub mod hooks;
pub mod levels;
pub mod process_meter;
pub mod process_set;
pub mod webhook;
