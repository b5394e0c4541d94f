//! Pickles, allocator snapshots, the logs of other memory tools, and what trackers of experiments and schedulers recorded of runs.
//!
//! Bytes are arguments, and nothing here can execute its input. The daemon starts `snapshot-digest` for each snapshot, with limits on
//! memory and time.

pub mod older_logs;
pub mod pickle;
pub mod run_records;
pub mod snapshot;

/// What is wrong with a file that begins like this, whatever it should be.
pub fn not_the_file(front: &[u8]) -> Option<&'static str> {
    front
        .starts_with(b"version https://git-lfs")
        .then_some("a pointer of Git LFS in place of the file; `git lfs pull` fetches the file")
}
