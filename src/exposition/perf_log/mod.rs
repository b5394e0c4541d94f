//! Performance logs of jobs in files, as FlagScale's users had them: a text log, a table for `tail -f`, a JSON
//! summary, TensorBoard's event files.
//!
//! [`row`] says what a frame holds, [`table`], [`summary`] and [`tensorboard`]
//! write it, [`files`] keeps the files within their bounds.

pub mod files;
pub mod row;
pub mod summary;
pub mod table;
pub mod tensorboard;
#[cfg(test)]
mod tests;
