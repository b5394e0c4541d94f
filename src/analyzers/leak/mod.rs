//! Decides whether the memory of workloads, processes and allocators leaks.
//!
//! Finds the subjects in a frame and writes what is concluded of them; the method, its references and its known false
//! alarms are documented in [`forecast::leak`]. Where the job reports steps, the growth is also given per training step:
//! over the last ten to twenty minutes, by the slowest rank.

mod analyzer;
pub mod metrics;
mod outside;
mod owners;
mod pace;

pub use analyzer::REGISTRATION;
