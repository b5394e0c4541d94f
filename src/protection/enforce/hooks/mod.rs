//! Hooks: programs of the operator, started by a small helper process.
//!
//! The helper is started with the daemon, while memory is free, and stays in the daemon's cgroup: a hook never starts
//! in the job's cgroup, and starting one never copies a large process. It runs one hook at a time. [`Hooks`] is the
//! executor's interface; neither a hook nor the helper can block it.

pub mod check;
mod client;
mod helper;
mod protocol;
mod running;

pub use client::Hooks;
pub use helper::run;
