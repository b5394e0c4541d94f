//! Whole groups, in a folder of the tests' own where this host lets us make one.

use std::os::unix::fs::MetadataExt as _;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use super::job::{Job, until};
use super::*;
use crate::host::cgroup;
use crate::model::units::Bytes;
use crate::protection::enforce::executor::process_status;
use crate::protection::types::scope::Refusal;
use crate::protection::types::step::{Finished, Group, Outcome, Skip};
use cgroup::Version;

/// A group that is removed at the end.
struct Room {
    root: PathBuf,
    group: Group,
}

impl Room {
    fn make(version: Version, name: &str) -> Option<Self> {
        let name = format!("memwarden-test-{}-{name}", std::process::id());
        let (root, path) = match version {
            Version::V2 => {
                let pure = PathBuf::from("/sys/fs/cgroup/cgroup.procs").exists();
                let root = if pure { "/sys/fs/cgroup" } else { "/sys/fs/cgroup/unified" };
                (PathBuf::from(root), format!("/{name}"))
            }
            Version::V1 => {
                let hierarchy = cgroup::memory_hierarchy(Path::new("/sys/fs/cgroup")).ok()?.ok()?;
                let own = group_of_self(hierarchy.version)?;
                let matches = hierarchy.version == Version::V1;
                (matches.then_some(hierarchy.root)?, format!("{}/{name}", own.trim_end_matches('/')))
            }
        };
        let folder = root.join(&path[1..]);
        std::fs::create_dir(&folder).ok()?;
        let inode = std::fs::metadata(&folder).ok()?.ino();
        Some(Self { root, group: Group { path: path.into(), inode } })
    }

    fn folder(&self) -> PathBuf {
        self.root.join(&self.group.path.as_str()[1..])
    }

    fn put(&self, pid: u32) {
        std::fs::write(self.folder().join("cgroup.procs"), pid.to_string()).unwrap();
    }

    fn machine(&self, mode: Mode, version: Version) -> Machine {
        let mut machine = machine(mode);
        if version == Version::V2 {
            machine.on_unified(Path::new("/proc"), &self.root);
        }
        let members = vec![Member::Group(self.group.clone())];
        machine
            .bound(
                TARGET,
                Some(Scope {
                    name: "test".into(),
                    users: vec![own_uid()],
                    owner: None,
                    members: members.into(),
                }),
            )
            .unwrap();
        machine
    }
}

impl Drop for Room {
    fn drop(&mut self) {
        let _ = std::fs::write(self.folder().join("cgroup.freeze"), "0");
        for _ in 0..200 {
            if std::fs::remove_dir(self.folder()).is_ok() {
                return;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

/// Our own group's path.
fn group_of_self(version: Version) -> Option<String> {
    let text = std::fs::read("/proc/self/cgroup").ok()?;
    process_status::group_of(&text, version).map(str::to_owned)
}

fn room(version: Version, name: &str) -> Option<Room> {
    let room = Room::make(version, name);
    if room.is_none() {
        crate::skip::skip(&format!("no {} group can be made here", version.label()));
    }
    room
}

fn kill(machine: &mut Machine, group: &Group) -> Result<StepDone, StepError> {
    perform(machine, Work::KillGroup { group: group.clone() })
}

#[test]
fn a_group_is_killed_whole_and_found_empty() {
    for version in [Version::V2, Version::V1] {
        let Some(room) = room(version, "whole") else { continue };
        let mut jobs: Vec<Job> = (0..3).map(|_| Job::start(&["sleep", "60"])).collect();
        for job in &jobs {
            room.put(job.key.pid);
        }
        let mut machine = room.machine(Mode::Enforce, version);
        let mut drill = room.machine(Mode::Drill, version);
        let would = kill(&mut drill, &room.group).unwrap();
        assert_eq!((would.outcome, would.processes), (Outcome::WouldHave, 3));
        assert!(jobs.iter().all(Job::alive));
        let done = kill(&mut machine, &room.group).unwrap();
        assert_eq!((done.outcome, done.processes), (Outcome::Done, 3));
        assert_eq!(machine.touched().len(), 3);
        for job in &mut jobs {
            job.reap();
        }
        let empty = Work::AwaitEnd {
            processes: Arc::new([]),
            group: Some(room.group.clone()),
            within: Duration::from_secs(60),
        };
        perform(&mut machine, empty).unwrap();
        let mut finished: Vec<Finished> = Vec::new();
        until("an empty group", || {
            machine.poll(&mut finished);
            !finished.is_empty()
        });
        assert_eq!(finished[0].result.as_ref().unwrap().outcome, Outcome::Done);
    }
}

#[test]
fn a_new_group_of_an_old_name_is_not_touched() {
    let Some(room) = room(Version::V2, "renamed") else { return };
    let job = Job::start(&["sleep", "60"]);
    room.put(job.key.pid);
    let mut machine = room.machine(Mode::Enforce, Version::V2);
    let old = Group { inode: room.group.inode + 1, ..room.group.clone() };
    assert_eq!(kill(&mut machine, &old), Err(StepError::OtherGroup { path: old.path.clone() }));
    assert!(job.alive());
}

#[test]
fn a_process_of_another_user_keeps_a_group_from_being_killed_at_once() {
    if own_uid() != 0 {
        crate::skip::skip("a process of another user takes root to start");
        return;
    }
    for version in [Version::V2, Version::V1] {
        let Some(room) = room(version, "stranger") else { continue };
        let (mut ours, theirs) =
            (Job::start(&["sleep", "60"]), Job::start_as(&["sleep", "60"], Some(65_534)));
        room.put(ours.key.pid);
        room.put(theirs.key.pid);
        let mut machine = room.machine(Mode::Enforce, version);
        let freeze = perform(&mut machine, Work::Freeze { group: room.group.clone() });
        if version == Version::V2 {
            let refused = StepError::Refused { pid: theirs.key.pid, refusal: Refusal::User };
            assert_eq!(freeze, Err(refused));
        }
        let done = kill(&mut machine, &room.group).unwrap();
        assert_eq!((done.outcome, done.processes), (Outcome::Done, 1));
        ours.reap();
        assert!(theirs.alive());
    }
}

#[test]
fn a_group_outside_the_target_is_refused() {
    let (Some(room), Some(other)) = (room(Version::V2, "inside"), room(Version::V2, "outside")) else {
        return;
    };
    let job = Job::start(&["sleep", "60"]);
    other.put(job.key.pid);
    let mut machine = room.machine(Mode::Enforce, Version::V2);
    for work in [Work::KillGroup { group: other.group.clone() }, Work::Freeze { group: other.group.clone() }]
    {
        let refused = StepError::Refused { pid: 0, refusal: Refusal::NoMember };
        assert_eq!(perform(&mut machine, work), Err(refused));
    }
    assert!(job.alive());
}

#[test]
fn no_group_is_frozen_once_the_daemon_ends() {
    let Some(room) = room(Version::V2, "hurry") else { return };
    let mut machine = room.machine(Mode::Enforce, Version::V2);
    machine.worker.hurry.store(true, std::sync::atomic::Ordering::Relaxed);
    let done = perform(&mut machine, Work::Freeze { group: room.group.clone() }).unwrap();
    assert_eq!(done.outcome, Outcome::Skipped(Skip::Busy));
    assert_eq!(std::fs::read_to_string(room.folder().join("cgroup.freeze")).unwrap(), "0\n");
}

#[test]
fn a_group_is_stopped_and_continues() {
    let Some(room) = room(Version::V2, "pause") else { return };
    let job = Job::start(&["sleep", "60"]);
    room.put(job.key.pid);
    let frozen =
        || std::fs::read_to_string(room.folder().join("cgroup.events")).unwrap().contains("frozen 1");
    let mut machine = room.machine(Mode::Enforce, Version::V2);
    perform(&mut machine, Work::Freeze { group: room.group.clone() }).unwrap();
    until("the stop", frozen);
    // Whatever the bounds have become meanwhile, who was stopped goes on.
    machine.bound(TARGET, None).unwrap();
    let other = Group { inode: room.group.inode + 1, ..room.group.clone() };
    assert_eq!(perform(&mut machine, Work::Thaw { group: other }), Err(StepError::NoScope(TARGET)));
    perform(&mut machine, Work::Thaw { group: room.group.clone() }).unwrap();
    until("the start", || !frozen());
    let mut machine = room.machine(Mode::Enforce, Version::V2);
    perform(&mut machine, Work::Freeze { group: room.group.clone() }).unwrap();
    assert_eq!(kill(&mut machine, &room.group).unwrap().processes, 1, "who is stopped can be killed");
    until("the end", || !job.alive());
}

#[test]
fn a_limit_is_raised_only_where_it_was_and_only_for_the_target() {
    const MIB: u64 = 1 << 20;
    let Some(room) = room(Version::V1, "raise") else { return };
    let job = Job::start(&["sleep", "60"]);
    let inner = room.folder().join("task");
    std::fs::create_dir(&inner).unwrap();
    std::fs::write(inner.join("cgroup.procs"), job.key.pid.to_string()).unwrap();
    let limit = room.folder().join("memory.limit_in_bytes");
    std::fs::write(&limit, (64 * MIB).to_string()).unwrap();
    let now = || std::fs::read_to_string(&limit).unwrap().trim().parse::<u64>().unwrap() / MIB;
    // The target's own group is the inner one; the limit is above it.
    let path = format!("{}/task", room.group.path);
    let group = Group { path: path.as_str().into(), inode: std::fs::metadata(&inner).unwrap().ino() };
    let raise = |machine: &mut Machine, limited, from: u64, to: u64| {
        let (from, to) = (Bytes::new(from * MIB), Bytes::new(to * MIB));
        perform(machine, Work::Raise { group: group.clone(), limited, from, to })
    };
    let mut drill = room.machine(Mode::Drill, Version::V1);
    assert_eq!(raise(&mut drill, room.group.inode, 64, 96).unwrap().outcome, Outcome::WouldHave);
    assert_eq!(now(), 64);
    let mut machine = room.machine(Mode::Enforce, Version::V1);
    assert_eq!(raise(&mut machine, room.group.inode, 64, 96).unwrap().outcome, Outcome::Done);
    assert_eq!(now(), 96);
    // Somebody else has changed it, or it is the limit of another group.
    for (limited, from) in [(room.group.inode, 64), (1, 96)] {
        let skipped = raise(&mut machine, limited, from, 128).unwrap();
        assert_eq!(skipped.outcome, Outcome::Skipped(Skip::Unsupported));
    }
    // Limits of a group and of one above it rise together.
    let inner_limit = inner.join("memory.limit_in_bytes");
    std::fs::write(&inner_limit, (96 * MIB).to_string()).unwrap();
    assert_eq!(raise(&mut machine, group.inode, 96, 100).unwrap().outcome, Outcome::Done);
    let inner_now = std::fs::read_to_string(&inner_limit).unwrap().trim().parse::<u64>().unwrap() / MIB;
    assert_eq!((now(), inner_now), (100, 100));
    if own_uid() == 0 {
        let theirs = Job::start_as(&["sleep", "60"], Some(65_534));
        room.put(theirs.key.pid);
        let refused = StepError::Refused { pid: theirs.key.pid, refusal: Refusal::User };
        assert_eq!(raise(&mut machine, room.group.inode, 100, 128), Err(refused));
        drop(theirs);
    }
    assert_eq!(now(), 100);
    drop(job);
    until("an empty group", || std::fs::remove_dir(&inner).is_ok());
}

/// A machine whose cgroups are folders of a test, and that may reach this process.
fn in_folder(root: &Path, job: &super::job::Job) -> Machine {
    let mut machine = machine(Mode::Enforce);
    machine.on_unified(Path::new("/proc"), root);
    let members = vec![
        Member::Process(job.key),
        Member::Group(Group { path: "/a".into(), inode: std::fs::metadata(root.join("a")).unwrap().ino() }),
    ];
    let scope = Scope { name: "test".into(), users: vec![own_uid()], owner: None, members: members.into() };
    machine.bound(TARGET, Some(scope)).unwrap();
    machine
}

/// Puts a process into the cgroup so many levels below `/a`, with `more` text in its list; returns the cgroup `/a`.
fn below(root: &Path, depth: usize, text: &str) -> Group {
    let deepest = root.join("a").join(vec!["b"; depth].join("/"));
    std::fs::create_dir_all(&deepest).unwrap();
    for folder in deepest.ancestors().take(depth + 1) {
        std::fs::write(folder.join("cgroup.procs"), "").unwrap();
    }
    std::fs::write(deepest.join("cgroup.procs"), text).unwrap();
    Group { path: "/a".into(), inode: std::fs::metadata(root.join("a")).unwrap().ino() }
}

#[test]
fn a_process_that_is_many_cgroups_deep_is_killed() {
    let root = tempfile::tempdir().unwrap();
    let mut job = super::job::Job::start(&["sleep", "60"]);
    let group = below(root.path(), 40, &format!("{}\n", job.key.pid));
    let mut machine = in_folder(root.path(), &job);
    let done = perform(&mut machine, Work::KillGroup { group }).unwrap();
    assert_eq!((done.outcome, done.processes), (Outcome::Done, 1));
    job.reap();
}

#[test]
fn a_group_that_is_not_seen_whole_is_not_reported_as_killed() {
    let root = tempfile::tempdir().unwrap();
    let mut job = super::job::Job::start(&["sleep", "60"]);
    // One more is in another pid namespace.
    let group = below(root.path(), 2, &format!("{}\n0\n", job.key.pid));
    let mut machine = in_folder(root.path(), &job);
    let done = perform(&mut machine, Work::KillGroup { group });
    assert!(matches!(done, Err(StepError::System { .. })), "{done:?}");
    job.reap();
}
