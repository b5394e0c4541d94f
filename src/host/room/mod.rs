//! What is left below a limit, and what takes it, counted as the kernel counts it. Pure.

pub mod processes;
