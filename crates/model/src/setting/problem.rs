//! All mistakes of a configuration file.

use std::fmt;
use std::path::{Path, PathBuf};

use crate::printable;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// Line number from 1; absent for the whole file.
    pub line: Option<usize>,
    /// The dotted key, empty for the whole file.
    pub key: String,
    /// The problem, and what is expected.
    pub what: String,
}

/// An invalid or unreadable configuration.
#[derive(Debug)]
pub enum ConfigError {
    /// The file could not be read.
    Unreadable { path: PathBuf, source: std::io::Error },
    /// The file is invalid.
    Refused {
        path: PathBuf,
        /// Every mistake, in the order of lines; never empty.
        problems: Vec<Problem>,
    },
}

impl ConfigError {
    pub fn refused(path: &Path, mut problems: Vec<Problem>) -> Self {
        problems.sort_by_key(|problem| problem.line);
        Self::Refused { path: path.to_owned(), problems }
    }
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unreadable { path, .. } => write!(f, "cannot read {}", printable::path(path)),
            Self::Refused { path, problems } => {
                for (place, problem) in problems.iter().enumerate() {
                    if place > 0 {
                        writeln!(f)?;
                    }
                    // What a flag says is not in the file.
                    if !problem.key.starts_with("--") {
                        write!(f, "{}:", printable::path(path))?;
                    }
                    if let Some(line) = problem.line {
                        write!(f, "{line}:")?;
                    }
                    if !problem.key.is_empty() {
                        let gap = if problem.key.starts_with("--") { "" } else { " " };
                        write!(f, "{gap}{}:", printable::escaped(&problem.key))?;
                    }
                    write!(f, " {}", printable::escaped(&problem.what))?;
                }
                Ok(())
            }
        }
    }
}

impl std::error::Error for ConfigError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Unreadable { source, .. } => Some(source),
            Self::Refused { .. } => None,
        }
    }
}
