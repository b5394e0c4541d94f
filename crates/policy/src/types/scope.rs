//! The scope of a target: which processes may be signalled, and which never.
//!
//! Pure: the caller supplies what the kernel reports of a process. The plan checks when it selects, and the executor
//! checks again before it signals.

use super::step::Group;
use crate::model::ids::{ProcessKey, within};
use crate::model::label::Label;

/// A member of a target.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Member {
    /// A cgroup and its descendants.
    Group(Group),
    /// A process and its descendants.
    Tree(ProcessKey),
    Process(ProcessKey),
}

/// The members of a target, sorted: whether a process is one of thousands is decided for each of thousands of processes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Members(Vec<Member>);

impl From<Vec<Member>> for Members {
    fn from(mut members: Vec<Member>) -> Self {
        members.sort_unstable();
        Self(members)
    }
}

impl std::ops::Deref for Members {
    type Target = [Member];

    fn deref(&self) -> &[Member] {
        &self.0
    }
}

impl Members {
    fn has(&self, member: &Member) -> bool {
        self.0.binary_search(member).is_ok()
    }

    /// The cgroups, which are sorted before all other members.
    pub fn groups(&self) -> impl Iterator<Item = &Group> {
        self.0.iter().map_while(|member| match member {
            Member::Group(group) => Some(group),
            Member::Tree(_) | Member::Process(_) => None,
        })
    }

    /// Whether a process, or the tree below it or an ancestor of it, is a member.
    fn names(&self, key: ProcessKey, ancestors: &[ProcessKey]) -> bool {
        let tree = |key: &ProcessKey| self.has(&Member::Tree(*key));
        self.has(&Member::Process(key)) || tree(&key) || ancestors.iter().any(tree)
    }
}

/// The scope of one target.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Scope {
    /// The target's name.
    pub name: Label,
    /// The users whose processes may be signalled; root must be named like any other.
    pub users: Vec<u32>,
    /// The user of the job, whose share of helpers the files of its checkpoints take; absent where the target names no job.
    pub owner: Option<u32>,
    /// The members of the target.
    pub members: Members,
}

/// What no target may signal: memwarden, its ancestors, and its cgroup.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Exempt {
    /// memwarden's pid: its descendants are its helpers. 0 for none.
    pub own: u32,
    /// The pids of memwarden, its helpers and its ancestors.
    pub pids: Vec<u32>,
    /// The path of memwarden's cgroup in each hierarchy, beginning with `/`.
    pub groups: Vec<Label>,
}

/// What the kernel reports of a process at this moment.
#[derive(Clone, Copy, Debug)]
pub struct Candidate<'c> {
    pub key: ProcessKey,
    /// Its real, effective and saved user.
    pub users: [u32; 3],
    /// Whether it is a kernel thread.
    pub kernel: bool,
    /// Its group's path in the hierarchy of the target.
    pub group: Option<&'c str>,
    /// Its parent, its parent's parent and so on, as far as they are known.
    pub ancestors: &'c [ProcessKey],
}

/// Why a process is outside the scope.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Refusal {
    /// It is pid 1, or not a pid.
    #[error("it is init")]
    Init,
    /// It is a kernel thread.
    #[error("it is a kernel thread")]
    Kernel,
    /// It is memwarden, one of its helpers, or one of its ancestors.
    #[error("it is memwarden or one of its ancestors")]
    Ourselves,
    /// It is in memwarden's cgroup, or the cgroup is memwarden's or an ancestor of it.
    #[error("it is in memwarden's cgroup")]
    OurGroup,
    /// One of its user ids is not in `allow_users`.
    #[error("its user is not in allow_users")]
    User,
    /// It is not a member of the target.
    #[error("it is not a member of the target")]
    NoMember,
}

impl Exempt {
    /// Whether a cgroup may be acted on as a whole: not the root, not memwarden's, no ancestor of it.
    pub fn admits_group(&self, path: &str) -> Result<(), Refusal> {
        if path.trim_matches('/').is_empty() {
            return Err(Refusal::Init);
        }
        if self.groups.iter().any(|own| within(own.as_str(), path)) {
            return Err(Refusal::OurGroup);
        }
        Ok(())
    }
}

impl Scope {
    /// Whether a process may be signalled.
    pub fn admits(&self, candidate: &Candidate<'_>, exempt: &Exempt) -> Result<(), Refusal> {
        if candidate.key.pid <= 1 {
            return Err(Refusal::Init);
        }
        if candidate.kernel {
            return Err(Refusal::Kernel);
        }
        let ours = |pid: u32| exempt.own != 0 && pid == exempt.own;
        if exempt.pids.contains(&candidate.key.pid)
            || candidate.ancestors.iter().any(|ancestor| ours(ancestor.pid))
        {
            return Err(Refusal::Ourselves);
        }
        if !candidate.users.iter().all(|user| self.users.contains(user)) {
            return Err(Refusal::User);
        }
        // A named process, or a descendant, may share a cgroup with a memwarden that was started by hand.
        if self.members.names(candidate.key, candidate.ancestors) {
            return Ok(());
        }
        let Some(path) = candidate.group else { return Err(Refusal::NoMember) };
        let in_target = self.members.groups().any(|group| {
            !group.path.as_str().trim_matches('/').is_empty() && within(path, group.path.as_str())
        });
        // The root cgroup holds all processes that are in no other cgroup: it does not count as memwarden's.
        let in_ours =
            !path.trim_matches('/').is_empty() && exempt.groups.iter().any(|own| own.as_str() == path);
        match (in_target, in_ours) {
            (false, _) => Err(Refusal::NoMember),
            (true, true) => Err(Refusal::OurGroup),
            (true, false) => Ok(()),
        }
    }

    /// Whether the scope is sound: no member is memwarden, an ancestor of it, init, or a cgroup above memwarden's.
    ///
    /// # Errors
    /// Why the scope must not be used.
    pub fn sound(&self, exempt: &Exempt) -> Result<(), Refusal> {
        for member in self.members.iter() {
            match member {
                Member::Group(group) => exempt.admits_group(group.path.as_str())?,
                Member::Tree(key) | Member::Process(key) if key.pid <= 1 => return Err(Refusal::Init),
                Member::Tree(key) | Member::Process(key) if exempt.pids.contains(&key.pid) => {
                    return Err(Refusal::Ourselves);
                }
                Member::Tree(_) | Member::Process(_) => {}
            }
        }
        Ok(())
    }

    /// Whether a cgroup may be acted on as a whole: it is one of the target's, or a descendant, and not memwarden's.
    pub fn admits_group(&self, path: &str, exempt: &Exempt) -> Result<(), Refusal> {
        exempt.admits_group(path)?;
        let belongs = self.members.groups().any(|group| within(path, group.path.as_str()));
        if belongs { Ok(()) } else { Err(Refusal::NoMember) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROOT: ProcessKey = ProcessKey { pid: 50, start: 5 };

    fn scope() -> Scope {
        Scope {
            name: "job".into(),
            users: vec![1000],
            owner: None,
            members: vec![
                Member::Tree(ROOT),
                Member::Group(Group { path: "/jobs/a".into(), inode: 9 }),
                Member::Process(ProcessKey { pid: 70, start: 7 }),
            ]
            .into(),
        }
    }

    fn exempt() -> Exempt {
        Exempt { own: 10, pids: vec![10, 11], groups: vec!["/system.slice/memwarden.service".into()] }
    }

    #[track_caller]
    fn check(
        pid: u32,
        start: u64,
        user: u32,
        group: &str,
        ancestors: &[ProcessKey],
        expected: Option<Refusal>,
    ) {
        let candidate = Candidate {
            key: ProcessKey { pid, start },
            users: [user; 3],
            kernel: false,
            group: Some(group),
            ancestors,
        };
        assert_eq!(scope().admits(&candidate, &exempt()).err(), expected);
    }

    #[test]
    fn only_members_of_allowed_users_are_reached() {
        check(50, 5, 1000, "/", &[], None);
        check(50, 6, 1000, "/", &[], Some(Refusal::NoMember));
        check(51, 6, 1000, "/", &[ROOT], None);
        check(51, 6, 0, "/", &[ROOT], Some(Refusal::User));
        check(60, 6, 1000, "/jobs/a/b", &[], None);
        check(60, 6, 1000, "/jobs/ab", &[], Some(Refusal::NoMember));
        check(70, 7, 1000, "/", &[], None);
        check(1, 1, 1000, "/jobs/a", &[ROOT], Some(Refusal::Init));
        check(10, 1, 1000, "/jobs/a", &[ROOT], Some(Refusal::Ourselves));
        check(51, 6, 1000, "/system.slice/memwarden.service", &[ROOT], None);
        let (own, parent) = (ProcessKey { pid: 10, start: 1 }, ProcessKey { pid: 11, start: 1 });
        check(60, 6, 1000, "/jobs/a", &[own, parent], Some(Refusal::Ourselves));
        check(60, 6, 1000, "/jobs/a", &[parent], None);
    }

    #[test]
    fn bounds_that_hold_us_are_not_sound() {
        let sound = |member: Member| Scope { members: vec![member].into(), ..scope() }.sound(&exempt()).err();
        let group = |path: &str| Member::Group(Group { path: path.into(), inode: 1 });
        let tree = |pid| Member::Tree(ProcessKey { pid, start: 1 });
        assert_eq!(sound(group("/")), Some(Refusal::Init));
        assert_eq!(sound(group("/system.slice")), Some(Refusal::OurGroup));
        assert_eq!(sound(tree(1)), Some(Refusal::Init));
        assert_eq!(sound(tree(11)), Some(Refusal::Ourselves));
        assert_eq!((sound(tree(12)), sound(group("/jobs"))), (None, None));
    }

    #[test]
    fn one_foreign_user_id_is_enough_to_refuse() {
        let mut candidate =
            Candidate { key: ROOT, users: [1000, 0, 1000], kernel: false, group: None, ancestors: &[] };
        assert_eq!(scope().admits(&candidate, &exempt()), Err(Refusal::User));
        candidate.users = [1000; 3];
        candidate.kernel = true;
        assert_eq!(scope().admits(&candidate, &exempt()), Err(Refusal::Kernel));
    }

    #[test]
    fn no_group_is_killed_that_we_are_in() {
        let admits = |path: &str| scope().admits_group(path, &exempt()).err();
        assert_eq!(admits("/jobs/a"), None);
        assert_eq!(admits("/jobs/a/b"), None);
        assert_eq!(admits("/jobs"), Some(Refusal::NoMember));
        assert_eq!(admits("/"), Some(Refusal::Init));
        assert_eq!(admits("/system.slice"), Some(Refusal::OurGroup));
        assert_eq!(admits("/system.slice/memwarden.service"), Some(Refusal::OurGroup));
    }

    proptest::proptest! {
        #[test]
        fn no_process_outside_the_target_is_admitted(
            pid in 0_u32..100, start in 0_u64..10, user in 0_u32..3, kernel: bool,
            group in "(/jobs|/system.slice|/)(/a|/b|/memwarden.service)?",
        ) {
            let mut scope = scope();
            scope.users = vec![1];
            let key = ProcessKey { pid, start };
            let candidate = Candidate { key, users: [user; 3], kernel, group: Some(&group), ancestors: &[] };
            if scope.admits(&candidate, &exempt()).is_ok() {
                let member = key == ROOT || key == ProcessKey { pid: 70, start: 7 } || within(&group, "/jobs/a");
                assert!(member && user == 1 && !kernel && pid > 1 && ![10, 11].contains(&pid));
            }
        }
    }
}
