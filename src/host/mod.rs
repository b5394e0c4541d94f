//! The machine: where its files are, what time it is, how to read without harm.
//!
//! The only room that knows a literal path of the kernel, reads a clock,
//! or starts a process.

pub mod child;
pub mod clock;
pub mod fs;
pub mod roots;
