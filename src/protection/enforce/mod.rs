//! The only code that signals, kills, freezes or starts a hook, and what it needs of the machine for that.
//!
//! [`executor`] carries out steps and checks each process immediately before;
//! [`hooks`] start commands outside the job's cgroup; [`webhook`] calls web
//! services; [`deaths`] sees how watched processes end; [`levels`] reads the
//! headroom that decides.

pub mod deaths;
pub mod executor;
pub mod hooks;
pub mod levels;
pub mod webhook;
