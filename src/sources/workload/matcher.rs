//! Configured workloads: the conditions, and what has to be read of a process to check them.

use std::io;

use super::users::Users;
use crate::host::process::{ProcRoot, died, status, users};
use crate::model::facts::ProcessRow;
use crate::model::label::Label;
use crate::model::pattern;

/// One configured workload; every condition given must hold.
#[derive(Clone, Debug)]
pub(super) struct Matcher {
    pub(super) name: Label,
    pub(super) executable: Option<String>,
    pub(super) command_line: Option<String>,
    pub(super) user: Option<String>,
    pub(super) cgroup: Option<String>,
    pub(super) environment: Option<String>,
}

/// What was read of one process so far, for all matchers together.
#[derive(Debug, Default)]
struct Known {
    executable: Option<String>,
    command_line: Option<String>,
    environment: Option<Vec<u8>>,
    unreadable: bool,
}

/// What matchers ask.
pub(super) struct Question<'a> {
    pub(super) root: &'a ProcRoot,
    pub(super) users: &'a mut Users,
    pub(super) buffer: &'a mut Vec<u8>,
    /// Counts processes that could not be read.
    pub(super) unreadable: &'a mut u64,
}

impl Matcher {
    /// What is wrong with it.
    pub(super) fn problem(&self) -> Option<&'static str> {
        let conditions = [&self.executable, &self.command_line, &self.user, &self.cgroup, &self.environment];
        if self.name.as_str().is_empty() {
            Some("has no name")
        } else if self.name.as_str().contains(char::is_control) {
            Some("has control characters in its name")
        } else if conditions.iter().all(|condition| condition.is_none()) {
            Some("has no condition, so it would match every process")
        } else {
            None
        }
    }

    /// What costs nothing is asked first.
    fn holds(&self, row: &ProcessRow, known: &mut Known, question: &mut Question<'_>) -> bool {
        self.user.as_ref().is_none_or(|user| {
            row.uid.to_string() == *user || question.users.name(row.uid).as_str() == user.as_str()
        }) && self.cgroup.as_ref().is_none_or(|wanted| {
            let memory = row.cgroup.as_ref().is_some_and(|path| pattern::fits(wanted, path.as_str()));
            memory || row.naming_cgroup.as_ref().is_some_and(|path| pattern::fits(wanted, path))
        }) && self.executable.as_ref().is_none_or(|wanted| {
            let path = known.executable(row, question);
            let name = if wanted.contains('/') { path } else { path.rsplit('/').next().unwrap_or(path) };
            !path.is_empty() && pattern::fits(wanted, name)
        }) && self.command_line.as_ref().is_none_or(|wanted| {
            let line = known.command_line(row, question);
            !line.is_empty() && pattern::contains(wanted, line)
        }) && self.environment.as_ref().is_none_or(|wanted| has(known.environment(row, question), wanted))
    }
}

/// Which matcher a process meets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Match {
    /// The place of the matcher.
    pub(super) place: usize,
    /// The user whose process it is: who started it, where it has the rights of root by its file.
    pub(super) user: u32,
}

/// The first matcher that a process meets.
pub(super) fn first_match(
    matchers: &[Matcher],
    row: &ProcessRow,
    question: &mut Question<'_>,
) -> Option<Match> {
    // What is on its way out is not looked into.
    if row.kernel || matches!(row.state, b'Z' | b'X') {
        return None;
    }
    let mut known = Known::default();
    let found = matchers.iter().position(|matcher| matcher.holds(row, &mut known, question));
    if known.unreadable {
        *question.unreadable += 1;
    }
    let place = found?;
    let user = match row.uid {
        0 => {
            let status = question.root.read(row.key.pid, "status", question.buffer);
            status.ok().and_then(users).map_or(0, |[real, _]| real)
        }
        user => user,
    };
    Some(Match { place, user })
}

impl Known {
    fn executable(&mut self, row: &ProcessRow, question: &Question<'_>) -> &str {
        if self.executable.is_none() {
            let read = question.root.link(row.key.pid, "exe");
            self.executable = Some(self.or_unreadable(read));
        }
        self.executable.as_deref().unwrap_or_default()
    }

    fn command_line(&mut self, row: &ProcessRow, question: &mut Question<'_>) -> &str {
        if self.command_line.is_none() {
            let bytes = self.argument_file(row, "cmdline", question);
            let mut text = String::from_utf8_lossy(&bytes).replace('\0', " ");
            text.truncate(text.trim_end().len());
            self.command_line = Some(text);
        }
        self.command_line.as_deref().unwrap_or_default()
    }

    fn environment(&mut self, row: &ProcessRow, question: &mut Question<'_>) -> &[u8] {
        if self.environment.is_none() {
            self.environment = Some(self.argument_file(row, "environ", question));
        }
        self.environment.as_deref().unwrap_or_default()
    }

    /// These two take the lock of the process's memory, so a process with a signal on its way is left alone.
    fn argument_file(&mut self, row: &ProcessRow, name: &str, question: &mut Question<'_>) -> Vec<u8> {
        let pid = row.key.pid;
        if question.root.read(pid, "status", question.buffer).is_ok_and(|text| status(text).signalled) {
            return Vec::new();
        }
        let read = question.root.read(pid, name, question.buffer).map(<[u8]>::to_vec);
        self.or_unreadable(read)
    }

    fn or_unreadable<T: Default>(&mut self, read: io::Result<T>) -> T {
        read.unwrap_or_else(|error| {
            self.unreadable |= !died(&error);
            T::default()
        })
    }
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
