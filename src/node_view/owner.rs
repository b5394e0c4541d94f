//! Whose something is.

use serde::{Deserialize, Serialize};

use super::workload::Workload;
use crate::model::format;

/// Maximum number of characters of a name in a sentence.
const NAME: usize = 40;

/// The owner of memory, as far as it is known.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Owner {
    pub workload: String,
    /// The name that the user gave the run; empty where it has none.
    pub run: String,
    /// The user; empty where it is not known.
    pub user: String,
    /// The rank; empty where it is not of one rank.
    pub rank: String,
}

impl Owner {
    /// The owner of a workload's memory.
    pub(super) fn of(workload: &Workload) -> Self {
        Self {
            workload: workload.name.clone(),
            run: workload.run.clone(),
            user: workload.user.clone(),
            rank: String::new(),
        }
    }

    pub(super) fn with_rank(mut self, rank: &str) -> Self {
        rank.clone_into(&mut self.rank);
        self
    }
}

impl std::fmt::Display for Owner {
    /// `run llama70b of alice (slurm/4711)`.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { workload, run, user, rank } = self;
        if !rank.is_empty() {
            write!(f, "rank {} of ", format::short(rank, NAME))?;
        }
        let named = !run.is_empty() && run != workload;
        if named {
            write!(f, "run {}", format::short(run, NAME))?;
        } else {
            f.write_str(&format::short(workload, NAME))?;
        }
        if !user.is_empty() {
            write!(f, " of user {}", format::short(user, NAME))?;
        }
        if named {
            write!(f, " ({})", format::short(workload, NAME))?;
        }
        Ok(())
    }
}
