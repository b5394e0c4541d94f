//! The summary of a Slurm job: as text, as JSON, and as the line that jobstats reads.

mod jobstats;
mod text;

use std::path::Path;

use serde::Serialize;

use crate::job_summary::JobSummary;
use crate::model::ends::End;
use crate::report::Page;

pub use jobstats::JobstatsError;

/// Name and version of the JSON; the version is incremented when a key changes its meaning or is removed.
const SCHEMA: &str = "memwarden.job-summary/1";

/// What a job used, on each of its nodes that was asked.
#[derive(Clone, Debug, Serialize)]
pub struct JobReport {
    schema: &'static str,
    nodes: Vec<NodeUse>,
}

/// What a job used on one node.
#[derive(Clone, Debug, Serialize)]
pub struct NodeUse {
    /// What the daemon knows.
    #[serde(flatten)]
    pub summary: JobSummary,
    /// Allocated CPUs.
    pub cpus: Option<u32>,
    /// Files of the user that are left; absent where nobody looked.
    pub leftovers: Option<Leftovers>,
    /// How the job ended on the node; absent where that is not known.
    pub end: Option<End>,
}

/// Files of the job's user that are left in a folder.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Leftovers {
    folder: String,
    /// Why it is not known whether files are left.
    unknown: Option<String>,
    #[serde(flatten)]
    found: Option<LeftFiles>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct LeftFiles {
    /// Number of files.
    pub files: u64,
    /// The bytes that they occupy.
    pub bytes: u64,
    /// Whether there are more, because the folder has too many entries.
    pub incomplete: bool,
    pub largest: Vec<LeftFile>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct LeftFile {
    /// Its path below the folder.
    pub name: String,
    /// The bytes that it occupies.
    pub bytes: u64,
}

impl Leftovers {
    /// The files in a folder, or why they are not known.
    pub fn new(folder: &Path, found: Result<LeftFiles, String>) -> Self {
        let (unknown, found) = match found {
            Ok(found) => (None, Some(found)),
            Err(why) => (Some(why), None),
        };
        Self { folder: folder.display().to_string(), unknown, found }
    }
}

impl JobReport {
    /// The report on these nodes.
    pub const fn new(nodes: Vec<NodeUse>) -> Self {
        Self { schema: SCHEMA, nodes }
    }

    /// As text that fits 80 columns, but for long names; on a terminal, what requires attention has a symbol.
    pub fn text(&self, page: Page) -> String {
        let nodes: Vec<String> = self.nodes.iter().map(|node| text::node(node, page)).collect();
        nodes.join("\n")
    }

    /// As the value of AdminComment that jobstats reads.
    ///
    /// # Errors
    /// No node has values, or they cannot be compressed.
    pub fn jobstats(&self) -> Result<String, JobstatsError> {
        jobstats::line(&self.nodes)
    }
}

#[cfg(test)]
mod tests;
