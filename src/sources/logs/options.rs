//! Configuration keys of the `logs` source.

use std::path::PathBuf;
use std::time::Duration;

use super::pattern::Pattern;
use crate::formats::log_lines::Framework;
use crate::model::label::Label;

crate::options! {
    /// The options of the source.
    pub(super) struct Options {
        /// Log files of training jobs, each with a path, a framework and a workload. Reading starts at the end of a file.
        files: Vec<File>;
        /// Time between two checks of the log files for new lines.
        interval: Duration = 1s in 100ms..=1m;
        /// Time after which values from a log expire if no new ones follow. 0s means ten times the log's usual interval,
        /// and at least 10 minutes.
        stale_after: Duration = 0s in 0s..=1d;
        /// Maximum number of files followed for one path with wildcards; the most recently written ones are selected.
        max_files: usize = 32 in 1..=1024;
    }

    /// A log file.
    pub(super) struct File {
        /// Path of the log file, which may not exist yet; `*` and `?` are wildcards in the last component. Links are
        /// followed only in folders that only root can write. Where others can write in a folder of the path, as in
        /// /var/log with root:syslog 0775, everybody must be allowed to read the file, unless it is a user's own.
        path: Option<PathBuf>;
        /// Framework whose log lines are recognized; auto recognizes those of all frameworks.
        framework: Option<Framework> = auto;
        /// Workload that the log belongs to, as in the label `workload`. Empty means the name of the file without its
        /// extension.
        workload: Option<Label>;
    }
}

/// `auto`, then the names of [`Framework::ALL`].
const FRAMEWORKS: &[&str] = &[
    "auto",
    "megatron",
    "torchtitan",
    "deepspeed",
    "llama_factory",
    "lightning",
    "nanogpt",
    "mindformers",
    "mindrlhf",
    "flagscale",
    "hugging_face",
];

crate::words!(Option<Framework>, FRAMEWORKS, Framework::of_label);

/// Most paths: each has its own thread.
const MOST_PATHS: usize = 64;
/// Shortest default time for which values are kept: a checkpoint or an evaluation takes minutes.
const LEAST_HOLD: Duration = Duration::from_secs(600);

/// One path to follow.
#[derive(Clone, Debug)]
pub(super) struct Log {
    pub(super) pattern: Pattern,
    pub(super) framework: Option<Framework>,
    /// The configured workload; otherwise the file name is used.
    pub(super) workload: Option<Label>,
}

impl File {
    fn log(&self) -> Result<Log, &'static str> {
        let path = self.path.clone().ok_or("must have a path")?;
        if self.workload.as_ref().is_some_and(|name| name.as_str().contains(char::is_control)) {
            return Err("must not have control characters in its workload");
        }
        Ok(Log { pattern: Pattern::new(path)?, framework: self.framework, workload: self.workload.clone() })
    }
}

impl Options {
    /// Errors in the configured paths, by key.
    pub(super) fn check(&self) -> Vec<(String, String)> {
        let files = self.files.iter().enumerate();
        let wrong = files.filter_map(|(place, file)| Some((format!("files[{place}]"), file.log().err()?)));
        let mut wrong: Vec<_> = wrong.map(|(key, what)| (key, what.to_owned())).collect();
        if self.files.len() > MOST_PATHS {
            wrong.push(("files".to_owned(), format!("must have at most {MOST_PATHS} paths")));
        }
        wrong
    }

    /// The paths to follow.
    pub(super) fn logs(&self) -> Vec<Log> {
        self.files.iter().filter_map(|file| file.log().ok()).take(MOST_PATHS).collect()
    }

    /// How long values are kept that usually arrive at this interval.
    pub(super) fn hold(&self, usual: Option<Duration>) -> Duration {
        match self.stale_after {
            Duration::ZERO => usual.map_or(LEAST_HOLD, |usual| (usual * 10).max(LEAST_HOLD)),
            hold => hold,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_framework_can_be_chosen() {
        let known: Vec<&str> = Framework::ALL.iter().map(|framework| framework.label()).collect();
        assert_eq!(FRAMEWORKS[0], "auto");
        assert_eq!(FRAMEWORKS[1..], known);
    }
}
