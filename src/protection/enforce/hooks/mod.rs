//! Hooks: programs of the operator's, started by a small process of our own.
//!
//! The helper is started with the daemon, while there is memory, and stays in
//! the daemon's group: a hook never starts in the job's, and never takes a copy
//! of a large process. It takes one at a time; [`Hooks`] is how the executor
//! asks, and neither a hook nor the helper can make it wait.

pub mod check;
mod client;
mod helper;
mod protocol;
mod running;

pub use client::Hooks;
pub use helper::run;
