//! Configured workloads: their conditions, and the properties of a process that they evaluate.

use std::io;

use rustix::io::Errno;

use super::texts::{Budget, LONGEST, TextAnswer};
use super::users::Users;
use crate::host::process::{ProcRoot, has_exited, status};
use crate::model::facts::ProcessRow;
use crate::model::label::Label;
use crate::model::pattern;

crate::options! {
    /// One configured workload; all given conditions must hold.
    pub(super) struct Matcher {
        /// Name of the workload.
        name: Label;
        /// File name of the executable, or its whole path if this has a slash; `*` and `?` are wildcards.
        executable: Option<String>;
        /// Part of the command line, or a pattern of all of it if this has `*` or `?`; the first 256 KiB are compared.
        command_line: Option<String>;
        /// Name or number of the user.
        user: Option<String>;
        /// Path of the cgroup; `*` and `?` are wildcards.
        cgroup: Option<String>;
        /// Environment variable at the start of the process, as `NAME` or `NAME=VALUE`; `*` and `?` are wildcards in the
        /// value. The first 256 KiB of the environment are compared.
        environment: Option<String>;
        /// Name of the training run that the workload is a part of, the same on all its nodes; if it is absent, it is
        /// read from the job.
        run: Option<Label>;
    }
}

/// The result of evaluating the conditions that need no access to the process's memory.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// Index of its matcher.
    Known(Option<usize>),
    /// Indices of matchers that may hold, up to the first that holds regardless of the texts.
    Compare(Vec<usize>),
}

impl Matcher {
    /// The error in it, if any.
    pub(super) fn problem(&self) -> Option<&'static str> {
        let conditions = [&self.executable, &self.command_line, &self.user, &self.cgroup, &self.environment];
        if self.name.as_str().is_empty() {
            Some("must have a name")
        } else if self.name.as_str().contains(char::is_control) {
            Some("must not have control characters in its name")
        } else if conditions.iter().all(|condition| condition.is_none()) {
            Some("must have a condition; without one it would match every process")
        } else {
            None
        }
    }

    /// Whether it needs command line or environment, which are in the process's memory.
    pub(super) const fn reads_memory(&self) -> bool {
        self.command_line.is_some() || self.environment.is_some()
    }
}

/// Evaluates what the kernel provides immediately. Also returns whether the executable could not be read.
pub(super) fn quick(
    matchers: &[Matcher],
    row: &ProcessRow,
    root: &ProcRoot,
    users: &mut Users,
) -> (Verdict, bool) {
    // A process that is exiting is not examined.
    if row.kernel || matches!(row.state, b'Z' | b'X') {
        return (Verdict::Known(None), false);
    }
    let mut path: Option<io::Result<String>> = None;
    let mut places = Vec::new();
    for (place, matcher) in matchers.iter().enumerate() {
        // Conditions that cost nothing are evaluated first.
        let holds =
            matcher.user.as_ref().is_none_or(|user| {
                row.uid.to_string() == *user || users.name(row.uid).as_str() == user.as_str()
            }) && matcher.cgroup.as_ref().is_none_or(|wanted| {
                let memory = row.cgroup.as_ref().is_some_and(|path| pattern::fits(wanted, path.as_str()));
                memory || row.naming_cgroup.as_ref().is_some_and(|path| pattern::fits(wanted, path))
            }) && matcher.executable.as_ref().is_none_or(|wanted| {
                let path = path.get_or_insert_with(|| root.link(row.key.pid, "exe"));
                let path = path.as_deref().unwrap_or_default();
                let name = if wanted.contains('/') { path } else { path.rsplit('/').next().unwrap_or(path) };
                !path.is_empty() && pattern::fits(wanted, name)
            });
        if holds {
            places.push(place);
            if !matcher.reads_memory() {
                break;
            }
        }
    }
    let unreadable = path.is_some_and(|path| path.is_err_and(|error| !has_exited(&error)));
    let verdict = match *places {
        [] => Verdict::Known(None),
        [only] if !matchers[only].reads_memory() => Verdict::Known(Some(only)),
        _ => Verdict::Compare(places),
    };
    (verdict, unreadable)
}

/// Evaluates the texts in the process's memory, each read only if needed. This may hang. `unreadable` is
/// whether a value could not be read before. A text that cannot be read now decides nothing: the process is busy.
pub(super) fn compare(
    matchers: &[Matcher],
    places: &[usize],
    root: &ProcRoot,
    (pid, uid): (u32, u32),
    mut unreadable: bool,
    budget: &Budget,
) -> TextAnswer {
    let mut buffer = Vec::new();
    // Reading these texts takes the lock of the process's memory, so a process with a pending signal is not read.
    let signalled = root.read(pid, "status", &mut buffer).is_ok_and(|text| status(text).signalled);
    let mut read = |name: &str| -> Result<Vec<u8>, TextAnswer> {
        if signalled {
            return Err(TextAnswer::Busy);
        }
        if !budget.allows(uid) {
            return Err(TextAnswer::Deferred);
        }
        let text = root.read_memory(pid, name, &mut buffer, LONGEST).map(<[u8]>::to_vec);
        if let Ok(text) = &text {
            budget.spend(uid, text.len());
        }
        match text {
            Ok(text) => Ok(text),
            Err(error) if interrupted(&error) => Err(TextAnswer::Busy),
            Err(error) => {
                unreadable |= !has_exited(&error);
                Ok(Vec::new())
            }
        }
    };
    let (mut line, mut environment) = (None, None);
    let mut found = None;
    for place in places {
        let matcher = &matchers[*place];
        if let Some(wanted) = &matcher.command_line {
            if line.is_none() {
                let bytes = match read("cmdline") {
                    Ok(bytes) => bytes,
                    Err(answer) => return answer,
                };
                let mut text = String::from_utf8_lossy(&bytes).replace('\0', " ");
                text.truncate(text.trim_end().len());
                line = Some(text);
            }
            if !line.as_ref().is_some_and(|line| !line.is_empty() && pattern::contains(wanted, line)) {
                continue;
            }
        }
        if let Some(wanted) = &matcher.environment {
            if environment.is_none() {
                match read("environ") {
                    Ok(bytes) => environment = Some(bytes),
                    Err(answer) => return answer,
                }
            }
            if !environment.as_ref().is_some_and(|environment| has(environment, wanted)) {
                continue;
            }
        }
        found = Some(*place);
        break;
    }
    TextAnswer::Read { found, unreadable }
}

/// Whether the kernel interrupted the read, which is not a property of the process.
fn interrupted(error: &io::Error) -> bool {
    matches!(Errno::from_io_error(error), Some(Errno::INTR | Errno::AGAIN))
}

fn has(environment: &[u8], wanted: &str) -> bool {
    environment.split(|byte| *byte == 0).any(|entry| {
        let entry = String::from_utf8_lossy(entry);
        let (name, value) = entry.split_once('=').unwrap_or((&*entry, ""));
        match wanted.split_once('=') {
            None => name == wanted,
            Some((wanted, values)) => name == wanted && pattern::fits(values, value),
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn variables_are_whole_names() {
        let environment = b"PATH=/bin\0RANK=3\0EMPTY=\0odd\0X=a=b\0";
        for (wanted, expected) in [
            ("RANK", true),
            ("RANK=3", true),
            ("RANK=?", true),
            ("RANK=*", true),
            ("RANK=33", false),
            ("RAN", false),
            ("EMPTY=", true),
            ("odd", true),
            ("X=a=b", true),
            ("B", false),
        ] {
            assert_eq!(has(environment, wanted), expected, "{wanted}");
        }
        assert!(!has(b"", "A"));
    }
}
