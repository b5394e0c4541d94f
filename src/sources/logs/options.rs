//! Configuration keys of the `logs` source.

use std::time::Duration;

use super::pattern::Pattern;
use crate::formats::log_lines::Framework;
use crate::model::label::Label;
use crate::model::setting::{Opt, OptKind, Settings, seconds};

static FILES: Opt = Opt {
    key: "files",
    help: "Log files of training jobs, each with a path, a framework and a workload. Reading starts at the end of a file.",
    kind: OptKind::Sections(&[&PATH, &FRAMEWORK, &WORKLOAD]),
    default: "[]",
};
static PATH: Opt = Opt {
    key: "path",
    help: "Path of the log file, which may not exist yet; `*` and `?` are wildcards in the last component. Links are followed only in folders that only root can write. Where others can write in a folder of the path, as in /var/log with root:syslog 0775, everybody must be allowed to read the file, unless it is a user's own.",
    kind: OptKind::Path,
    default: "\"\"",
};
static FRAMEWORK: Opt = Opt {
    key: "framework",
    help: "Framework whose log lines are recognized; auto recognizes those of all frameworks.",
    kind: OptKind::Choice(&[
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
    ]),
    default: "auto",
};
static WORKLOAD: Opt = Opt {
    key: "workload",
    help: "Workload that the log belongs to, as in the label `workload`. Empty means the name of the file without its extension.",
    kind: OptKind::Text,
    default: "\"\"",
};
static INTERVAL: Opt = Opt {
    key: "interval",
    help: "Time between two checks of the log files for new lines.",
    kind: OptKind::Duration(Duration::from_millis(100), Duration::from_secs(60)),
    default: "1s",
};
static STALE_AFTER: Opt = Opt {
    key: "stale_after",
    help: "Time after which values from a log expire if no new ones follow. 0s means ten times the log's usual interval, and at least 10 minutes.",
    kind: seconds(0, 86_400),
    default: "0s",
};
static MOST: Opt = Opt {
    key: "max_files",
    help: "Maximum number of files followed for one path with wildcards; the most recently written ones are selected.",
    kind: OptKind::Count(1, 1_024),
    default: "32",
};

/// Every option, in the order of the default configuration file.
pub(super) static ALL: &[&Opt] = &[&FILES, &INTERVAL, &STALE_AFTER, &MOST];

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

#[derive(Clone, Debug)]
pub(super) struct Rules {
    pub(super) logs: Vec<Log>,
    pub(super) interval: Duration,
    stale_after: Option<Duration>,
    pub(super) max_files: usize,
}

/// Errors in the configured paths, by key.
pub(super) fn check(settings: &Settings) -> Vec<(String, String)> {
    let sections = settings.sections(&FILES);
    let mut wrong: Vec<(String, String)> = sections
        .iter()
        .enumerate()
        .filter_map(|(place, section)| {
            let what = match log(section) {
                Err(what) => what,
                Ok(log)
                    if log.workload.as_ref().is_some_and(|name| name.as_str().contains(char::is_control)) =>
                {
                    "must not have control characters in its workload"
                }
                Ok(_) => return None,
            };
            Some((format!("files[{place}]"), what.to_owned()))
        })
        .collect();
    if sections.len() > MOST_PATHS {
        wrong.push(("files".to_owned(), format!("must have at most {MOST_PATHS} paths")));
    }
    wrong
}

fn log(section: &Settings) -> Result<Log, &'static str> {
    let path = section.path(&PATH).ok_or("must have a path")?;
    Ok(Log {
        pattern: Pattern::new(path)?,
        framework: Framework::from_name(&section.choice(&FRAMEWORK)),
        workload: section.text(&WORKLOAD).map(Label::from),
    })
}

impl Rules {
    pub(super) fn new(settings: &Settings) -> Self {
        let sections = settings.sections(&FILES);
        let logs = sections.iter().filter_map(|section| log(section).ok());
        Self {
            logs: logs.take(MOST_PATHS).collect(),
            interval: settings.duration(&INTERVAL),
            stale_after: Some(settings.duration(&STALE_AFTER)).filter(|hold| !hold.is_zero()),
            max_files: usize::try_from(settings.count(&MOST)).unwrap_or(usize::MAX),
        }
    }

    /// How long values are kept that usually arrive at this interval.
    pub(super) fn hold(&self, usual: Option<Duration>) -> Duration {
        self.stale_after.unwrap_or_else(|| usual.map_or(LEAST_HOLD, |usual| (usual * 10).max(LEAST_HOLD)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_framework_can_be_chosen() {
        let OptKind::Choice(words) = FRAMEWORK.kind else { panic!("it is a choice") };
        let known: Vec<&str> = Framework::ALL.iter().map(|framework| framework.name()).collect();
        assert_eq!(words[0], "auto");
        assert_eq!(words[1..], known);
    }
}
