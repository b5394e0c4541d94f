//! What reads files that others wrote, for the commands of memwarden: recordings, allocator snapshots, records of runs.
//!
//! [`files`] and [`recording`] read bytes, [`what_if`] plays recorded runs, [`report`] says what was found, and [`cli`] has the commands.
//! Analyzers, policy, tables and charts are those of the library `memwarden`.

pub mod cli;
pub mod files;
pub mod recording;
pub mod report;
pub mod what_if;

#[cfg(any(fuzzing, test))]
#[doc(hidden)]
pub mod fuzzing;

#[cfg(test)]
#[path = "../../tests/it/skip.rs"]
mod skip;
