//! Workloads configured by a pid: the tree of one process that runs when sampling starts.

use crate::host::process::{self, ProcRoot};
use crate::host::{child, job};
use crate::model::facts::ProcessRow;
use crate::model::ids::ProcessKey;
use crate::model::label::Label;

/// A configured process tree.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Tree {
    pub(super) pid: u32,
    pub(super) name: Label,
}

/// The configured trees with their root processes.
#[derive(Debug, Default)]
pub(super) struct Trees {
    roots: Vec<(ProcessKey, Label)>,
    /// The pid of this process, where descendants of the first root that lose their parent become its children.
    adopter: Option<u32>,
}

/// Parses `PID` or `PID NAME`.
pub(super) fn parse(text: &str) -> Result<Tree, &'static str> {
    let (pid, name) = text.trim().split_once(' ').unwrap_or((text.trim(), ""));
    let pid = pid.parse().ok().filter(|pid| *pid > 0).ok_or("must begin with a pid")?;
    let name = name.trim();
    if name.contains(char::is_control) {
        return Err("must not have control characters in its name");
    }
    let name = if name.is_empty() { format!("pid-{pid}").into() } else { name.into() };
    Ok(Tree { pid, name })
}

impl Trees {
    /// Finds the processes with these pids now, so that a later process with the same pid is not taken for one of them.
    pub(super) fn bind(wanted: &[String], root: &ProcRoot, buffer: &mut Vec<u8>) -> Self {
        let mut roots = Vec::new();
        for Tree { pid, name } in wanted.iter().filter_map(|text| parse(text).ok()) {
            let start = root.read(pid, "stat", buffer).ok().and_then(process::stat).map(|stat| stat.start);
            match start {
                Some(start) => roots.push((ProcessKey { pid, start }, name)),
                None => tracing::warn!(
                    pid,
                    "The root process of a configured tree does not exist; ignoring the tree."
                ),
            }
        }
        let adopter = job::adopts_orphans().then(std::process::id);
        Self { roots, adopter }
    }

    /// The name of the workload whose root is this process, or of which it is an orphan.
    pub(super) fn name_of(&self, row: &ProcessRow) -> Option<&Label> {
        let own = self.roots.iter().find(|(root, _)| *root == row.key);
        let first = self.roots.first().filter(|(root, _)| {
            self.adopter == Some(row.parent) && row.key.start >= root.start && !child::is_helper(row.key.pid)
        });
        own.or(first).map(|(_, name)| name)
    }

    /// The root processes.
    pub(super) fn roots(&self) -> impl Iterator<Item = ProcessKey> {
        self.roots.iter().map(|(root, _)| *root)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tree_is_a_pid_with_an_optional_name() {
        let tree = |pid, name: &str| Ok(Tree { pid, name: name.into() });
        assert_eq!(parse("7"), tree(7, "pid-7"));
        assert_eq!(parse(" 7  my run "), tree(7, "my run"));
        assert_eq!(parse("0 x"), Err("must begin with a pid"));
        assert_eq!(parse("x 7"), Err("must begin with a pid"));
        assert_eq!(parse("7 a\tb"), Err("must not have control characters in its name"));
    }
}
