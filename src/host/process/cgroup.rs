//! Parses `/proc/PID/cgroup` (cgroups(7)): one line per hierarchy.

use std::borrow::Cow;

use crate::host::cgroup_path::{self, Place};

/// The relevant cgroups of a process.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Cgroups {
    /// The path in the memory controller's hierarchy (v1), otherwise in the unified one (v2).
    pub memory: Option<String>,
    /// The path that names a job, pod or container in any hierarchy; otherwise the service manager's;
    /// otherwise `memory`.
    ///
    /// On v1 a scheduler may confine jobs by `cpuset` or `devices` only, and not use `memory`.
    pub naming: Option<String>,
}

/// Parses `/proc/PID/cgroup`; an invalid line is ignored.
pub fn cgroups(text: &[u8]) -> Cgroups {
    let (mut memory, mut unified, mut manager, mut named) = (None, None, None, None);
    for line in text.split(|byte| *byte == b'\n') {
        let mut parts = line.splitn(3, |byte| *byte == b':');
        let (Some(number), Some(controllers), Some(path)) = (parts.next(), parts.next(), parts.next()) else {
            continue;
        };
        // The kernel appends this if the cgroup was removed while zombies were in it.
        let path = String::from_utf8_lossy(path.strip_suffix(b" (deleted)").unwrap_or(path));
        if !path.starts_with('/') {
            continue;
        }
        let of_memory = controllers.split(|byte| *byte == b',').any(|name| name == b"memory");
        let names = !matches!(cgroup_path::place(&path), Place::Elsewhere);
        if names && (named.is_none() || of_memory) {
            named = Some(path.clone());
        }
        if of_memory {
            memory = Some(path);
        } else if number == b"0" && controllers.is_empty() {
            unified = Some(path);
        } else if controllers == b"name=systemd" {
            manager = Some(path);
        }
    }
    let first = |of: &[&Option<Cow<'_, str>>]| {
        of.iter().copied().flatten().next().map(|path| path.clone().into_owned())
    };
    Cgroups { naming: first(&[&named, &manager, &unified, &memory]), memory: first(&[&memory, &unified]) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(text: &str, memory: Option<&str>, naming: Option<&str>) {
        let found = cgroups(text.as_bytes());
        assert_eq!((found.memory.as_deref(), found.naming.as_deref()), (memory, naming), "{text}");
    }

    #[test]
    fn unified_v1_and_hybrid() {
        let session = Some("/user.slice/user-0.slice/session-1.scope");
        check("0::/user.slice/user-0.slice/session-1.scope\n", session, session);
        check(
            "3:cpuset:/\n2:cpu,memory:/m\n1:name=systemd:/user.slice/user-0.slice/session-1.scope\n0::/u\n",
            Some("/m"),
            session,
        );
        check("4:memory:/a:b\n", Some("/a:b"), Some("/a:b"));
        check("0::/gone.scope (deleted)\n", Some("/gone.scope"), Some("/gone.scope"));
    }

    #[test]
    fn a_job_is_found_in_any_hierarchy() {
        let job = Some("/slurm/uid_1000/job_77/step_0");
        check(
            "9:memory:/system.slice/slurmd.service\n5:devices:/slurm/uid_1000/job_77/step_0\n\
             1:name=systemd:/system.slice/slurmd.service\n",
            Some("/system.slice/slurmd.service"),
            job,
        );
    }

    #[test]
    fn invalid_lines_are_ignored() {
        check("", None, None);
        check("0:", None, None);
        check("0::relative\nx\n::\n", None, None);
    }

    proptest::proptest! {
        #[test]
        fn no_bytes_panic(bytes: Vec<u8>, text in "[0-9]:[a-z,]{0,9}:/[a-z0-9_.:/-]{0,60}") {
            let _ = cgroups(&bytes);
            let _ = cgroups(text.as_bytes());
        }
    }
}
