//! A limit that was reached, and at whose cost.
//!
//! Every bounded table of the daemon has a share for each user, so that one
//! user cannot use up the places of another. What a share or a table had no
//! room for is stated here, and the engine makes a metric, a finding and a
//! log line of it.

/// What one limit left out, in one tick, of one user.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shortage {
    /// The limit's name, which is a label value: `job_connections`, `otlp_ranks`.
    pub limit: &'static str,
    /// Whose things were left out; absent where the limit has no user.
    pub user: Option<u32>,
    /// How many of them are left out now.
    pub left_out: u64,
    /// The places there are for all users together.
    pub most: u64,
}
