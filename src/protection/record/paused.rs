//! Thaws cgroups that an earlier run froze and did not thaw, because it was killed while their hook ran.
//!
//! The audit log contains them: a freeze that was begun, without a later thaw.

use std::collections::BTreeMap;
use std::io::Read as _;
use std::path::{Path, PathBuf};

use crate::host::task::{self, Task};
use crate::protection::enforce::executor;
use crate::protection::types::audit::{Entry, Line};
use crate::protection::types::step::{Group, Outcome, Work};

/// Whether a line concerns freezing or thawing; other lines are not parsed.
fn concerns(line: &str) -> bool {
    line.contains("\"do\":\"freeze\"") || line.contains("\"do\":\"thaw\"")
}

/// The cgroups that are still frozen, by the lines of an audit log, oldest first.
fn left(lines: &str) -> Vec<Group> {
    let mut left: Vec<Group> = Vec::new();
    // The freezes and thaws without a result, by number: whether it freezes, and the cgroup.
    let mut open: BTreeMap<u64, (bool, Group)> = BTreeMap::new();
    for line in lines.lines() {
        if !concerns(line) && open.is_empty() {
            continue;
        }
        let Some(line) = Line::read(line.as_bytes()).filter(|line| line.occasion.mode == "enforce") else {
            continue;
        };
        match line.entry {
            Entry::Before { number, step } => {
                // The numbers of another run are its own.
                open.remove(&number);
                let (freezes, group) = match &step.work {
                    Work::Freeze { group } => (true, group),
                    Work::Thaw { group } => (false, group),
                    _ => continue,
                };
                // A daemon that died before it recorded the result may have done it.
                if freezes && !left.contains(group) {
                    left.push(group.clone());
                }
                open.insert(number, (freezes, group.clone()));
            }
            Entry::After { number, end, .. } => {
                let Some((freezes, group)) = open.remove(&number) else { continue };
                if freezes != (end.outcome == Some(Outcome::Done)) {
                    left.retain(|known| *known != group);
                }
            }
            _ => {}
        }
    }
    left
}

/// The lines of an audit log's files, the older one first; `length` is the size of the newer one before this run.
fn read(path: &Path, length: u64) -> String {
    let older = PathBuf::from(format!("{}.1", path.display()));
    let mut bytes = Vec::new();
    for (path, most) in [(older.as_path(), u64::MAX), (path, length)] {
        // Without a file there is nothing to thaw.
        let _ = std::fs::File::open(path).and_then(|file| file.take(most).read_to_end(&mut bytes));
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

/// Work that is done once.
struct Once<F>(Option<F>);

impl<F: FnOnce() + Send> Task for Once<F> {
    fn step(&mut self, _wait: bool) -> bool {
        self.0.take().is_some_and(|work| {
            work();
            true
        })
    }
}

/// Thaws all cgroups that an earlier run left frozen, by the audit log at `path` as it is now.
///
/// Runs on another thread, because the disk may hang.
pub(super) fn let_go(path: PathBuf, cgroup: PathBuf) {
    let Ok(length) = std::fs::metadata(&path).map(|metadata| metadata.len()) else { return };
    let work = move || {
        for group in left(&read(&path, length)) {
            match executor::let_go(&cgroup, &group) {
                Ok(()) => tracing::warn!(
                    group = group.path.as_str(),
                    "Thawed a cgroup that an earlier run froze and did not thaw before it ended."
                ),
                // Usually the cgroup was removed.
                Err(error) => {
                    tracing::info!(group = group.path.as_str(), %error, "Cannot thaw a cgroup that an earlier run froze.");
                }
            }
        }
    };
    if let Err(error) = task::start("paused", Once(Some(work))) {
        tracing::error!(%error, "Cannot start the thread that thaws cgroups frozen by an earlier run.");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEAD: &str = r#""schema":"","unix_seconds":1.0,"boot_seconds":1.0,"mode":"enforce""#;

    #[track_caller]
    fn check(lines: &[(&str, u64, &str)], expected: &[&str]) {
        let line = |(entry, number, what): &(&str, u64, &str)| match *entry {
            "before" => {
                let (verb, path) = what.split_once(' ').unwrap();
                format!(
                    r#"{{{HEAD},"entry":"before","number":{number},"step":{{"target":1,"stage":"soft","do":"{verb}","group":{{"path":"{path}","inode":7}}}}}}"#
                )
            }
            _ => format!(
                r#"{{{HEAD},"entry":"after","number":{number},"took_us":1,"result":"ok","outcome":"{what}"}}"#
            ),
        };
        let text: Vec<String> = lines.iter().map(line).collect();
        let left = left(&text.join("\n"));
        assert_eq!(left.iter().map(|group| group.path.as_str()).collect::<Vec<_>>(), expected);
    }

    #[test]
    fn who_was_stopped_and_not_let_go_is_found() {
        let stopped = [("before", 4, "freeze /a"), ("after", 4, "done")];
        check(&stopped, &["/a"]);
        check(&stopped[..1], &["/a"]);
        check(&[("before", 4, "freeze /a"), ("after", 4, "would_have")], &[]);
        check(&[stopped[0], stopped[1], ("before", 9, "thaw /a"), ("after", 9, "done")], &[]);
        check(&[stopped[0], stopped[1], ("before", 9, "thaw /a")], &["/a"]);
        check(&[stopped[0], stopped[1], ("before", 9, "thaw /b"), ("after", 9, "done")], &["/a"]);
        // The results of steps on several threads come in any order, and belong to the run that has the number.
        let [a, b] = [("before", 4, "freeze /a"), ("before", 5, "freeze /b")];
        check(&[a, b, ("after", 4, "would_have"), ("after", 5, "done")], &["/b"]);
        check(&[a, b, ("after", 5, "would_have"), ("after", 4, "done")], &["/a"]);
        check(&[a, ("before", 4, "kill_group /a"), ("after", 4, "would_have")], &["/a"]);
        // A run that began anew counts from the beginning.
        check(&[stopped[0], stopped[1], ("before", 4, "freeze /b"), ("after", 4, "done")], &["/a", "/b"]);
        assert_eq!(left("\n{\"do\":\"freeze\"\nx"), []);
    }

    proptest::proptest! {
        #[test]
        fn no_text_panics(text: String) {
            left(&text);
        }
    }
}
