//! Reads the tmpfs of each mount namespace through one of its processes, and decides whose each is.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::host::clock;
use crate::host::process::TmpfsMount;
use crate::host::user_files::tmpfs::{self, Namespace, TmpfsLevel};
use crate::model::facts::{Tmpfs, TmpfsTable, Workload};
use crate::model::fair;
use crate::model::ids::{ProcessKey, WorkloadKey};
use crate::model::printable;
use crate::model::time::Timestamp;
use crate::model::units::Bytes;

/// Most mount namespaces that are read, besides that of the host; divided between users.
pub(super) const MOST_NAMESPACES: usize = 64;
/// Most tmpfs of one namespace.
const MOST_MOUNTS: usize = 8;
/// Longest path of a mount point in bytes.
const LONGEST: usize = 256;
/// Bytes read of the list of mounts of the host, and of another namespace, in which users can mount.
const MOST_OF_HOST: u64 = 1 << 20;
const MOST_OF_USERS: u64 = 256 << 10;
/// Most processes whose namespace is looked up in one read; divided between users.
const MOST_LOOKUPS: usize = 4096;
/// Most processes of a namespace that are tried, because the first ones may have ended.
const TRIES: usize = 4;

/// A process of a workload.
#[derive(Clone, Debug)]
pub(super) struct Member {
    pub(super) process: ProcessKey,
    pub(super) workload: Arc<Workload>,
    /// The user who has the share for it.
    pub(super) user: u32,
    pub(super) rss: Bytes,
}

/// What is remembered from one read to the next.
#[derive(Debug, Default)]
pub(super) struct Reader {
    is_supported: bool,
    known: HashMap<ProcessKey, Known>,
    /// The mounts of each namespace, by its number.
    mounts: HashMap<u64, Vec<TmpfsMount>>,
}

/// The mount namespace of a process. A process can change it, most likely soon after its start.
#[derive(Debug)]
struct Known {
    /// Absent where it may not be read.
    namespace: Option<u64>,
    reads: u32,
}

/// The processes of each namespace, by its number, and those of one.
type Groups<'m> = BTreeMap<u64, Vec<&'m Member>>;
type Group<'m> = (u64, Vec<&'m Member>);

/// The tmpfs of one namespace, and the processes in it.
#[derive(Debug)]
struct Seen<'m> {
    members: Vec<&'m Member>,
    levels: Vec<TmpfsLevel>,
}

impl Reader {
    /// Reads every namespace in which one of these processes is, and that of the host: of PID 1, or of this process where
    /// that may not be read.
    ///
    /// # Errors
    /// The kernel is too old, or `/proc` cannot be read.
    pub(super) fn read(&mut self, proc: &Path, members: &[Member]) -> io::Result<TmpfsTable> {
        if !self.is_supported {
            tmpfs::check_support()?;
            self.is_supported = true;
        }
        let read_at = clock::now();
        let host = Namespace::open(proc, "1", None).or_else(|_| Namespace::open(proc, "self", None))?;
        self.look_up(proc, members);
        let mut groups = Groups::new();
        for member in members {
            if let Some(id) = self.known.get(&member.process).and_then(|known| known.namespace) {
                groups.entry(id).or_default().push(member);
            }
        }
        let of_host = groups.remove(&host.id).unwrap_or_default();
        let (groups, left_out) = shares(groups, |id| self.mounts.contains_key(&id));
        self.mounts.retain(|id, _| *id == host.id || groups.iter().any(|(kept, _)| kept == id));
        let mut seen = vec![Seen { members: of_host, levels: self.levels(proc, &host, MOST_OF_HOST)? }];
        for (id, members) in groups {
            let levels = members.iter().take(TRIES).find_map(|member| {
                // Also another process with its pid will do, if it is in this namespace.
                let namespace = Namespace::open(proc, &member.process.pid.to_string(), None).ok();
                self.levels(proc, &namespace.filter(|own| own.id == id)?, MOST_OF_USERS).ok()
            });
            seen.extend(levels.map(|levels| Seen { members, levels }));
        }
        Ok(TmpfsTable { left_out, ..table(read_at, &seen) })
    }

    /// Finds the namespaces of processes, of each after its first, second, fourth read, and so on.
    fn look_up(&mut self, proc: &Path, members: &[Member]) {
        let alive: BTreeSet<ProcessKey> = members.iter().map(|member| member.process).collect();
        self.known.retain(|process, known| {
            known.reads = known.reads.saturating_add(1);
            alive.contains(process)
        });
        let is_due = |member: &&Member| {
            self.known.get(&member.process).is_none_or(|known| known.reads.is_power_of_two())
        };
        let due: Vec<&Member> = members.iter().filter(is_due).collect();
        for member in fair::split(due, MOST_LOOKUPS, |member| member.user).0 {
            let ProcessKey { pid, start } = member.process;
            let namespace = Namespace::open(proc, &pid.to_string(), Some(start)).ok().map(|own| own.id);
            self.known.entry(member.process).or_insert(Known { namespace, reads: 0 }).namespace = namespace;
        }
    }

    fn levels(&mut self, proc: &Path, namespace: &Namespace, most: u64) -> io::Result<Vec<TmpfsLevel>> {
        let known = self.mounts.remove(&namespace.id);
        let mounts = known.map_or_else(|| namespace.mounts(most), Ok)?;
        let (levels, mounts) = namespace.levels(proc, &points(&mounts), most)?;
        self.mounts.insert(namespace.id, mounts);
        Ok(levels)
    }
}

/// The namespaces that are read, and the number of the others by user; those that were read before come first.
fn shares(groups: Groups<'_>, was_read: impl Fn(u64) -> bool) -> (Vec<Group<'_>>, BTreeMap<u32, u64>) {
    let mut groups: Vec<Group<'_>> = groups.into_iter().collect();
    groups.sort_by_key(|(id, _)| !was_read(*id));
    let (read, others) = fair::split(groups, MOST_NAMESPACES, |(_, members)| members[0].user);
    let mut left_out = BTreeMap::new();
    others.iter().for_each(|(_, members)| *left_out.entry(members[0].user).or_default() += 1);
    (read, left_out)
}

/// Where the tmpfs of a namespace are read: `/dev/shm`, then those with the shortest paths.
fn points(mounts: &[TmpfsMount]) -> Vec<PathBuf> {
    let is_read = |own: &&TmpfsMount| own.is_writable && own.point.as_os_str().len() <= LONGEST;
    let mut all: Vec<&TmpfsMount> = mounts.iter().filter(is_read).collect();
    all.sort_by_key(|own| (own.point != Path::new("/dev/shm"), own.point.as_os_str().len(), &own.point));
    let (mut devices, mut points) = (BTreeSet::new(), BTreeSet::new());
    // Of several at one point, the last one hides the others.
    all.retain(|own| devices.insert(&own.device) && points.insert(&own.point));
    all.into_iter().take(MOST_MOUNTS).map(|own| own.point.clone()).collect()
}

/// Combines what was seen in each namespace; the first one is that of the host.
///
/// A file system that the host has too is the host's, unless the others see it at another path, as a container sees the
/// `/dev/shm` that its runtime has mounted for it.
fn table(read_at: Timestamp, seen: &[Seen<'_>]) -> TmpfsTable {
    let mut devices: BTreeMap<&str, Vec<(usize, &TmpfsLevel)>> = BTreeMap::new();
    for (place, namespace) in seen.iter().enumerate() {
        for level in &namespace.levels {
            let all = devices.entry(&level.device).or_default();
            if all.last().is_none_or(|(last, _)| *last != place) {
                all.push((place, level));
            }
        }
    }
    let mut file_systems = Vec::new();
    let mut places: Vec<Vec<usize>> = vec![Vec::new(); seen.len()];
    for all in devices.values() {
        let (first, others) = (all[0], &all[1..]);
        let is_host = first.0 == 0
            && (others.is_empty() || others.iter().any(|(_, level)| level.point == first.1.point));
        let owner = if is_host { None } else { owner(seen, all) };
        let level = owner.as_ref().map_or(first.1, |(_, level)| level);
        for (place, _) in all.iter().filter(|(place, _)| *place != 0 || owner.is_none()) {
            places[*place].push(file_systems.len());
        }
        file_systems.push(Tmpfs {
            device: level.device.clone(),
            workload: owner.map(|(workload, _)| Arc::clone(workload)),
            mount: printable::path(&level.point).as_str().into(),
            size: Bytes::new(level.size),
            used: Bytes::new(level.used),
            owners: level.owners.iter().map(|(user, bytes)| (*user, Bytes::new(*bytes))).collect(),
        });
    }
    let places: Vec<Arc<[usize]>> = places.into_iter().map(Arc::from).collect();
    let (mut of_process, mut of_workload) = (HashMap::new(), HashMap::new());
    let mut most: HashMap<&WorkloadKey, usize> = HashMap::new();
    for (namespace, places) in seen.iter().zip(&places) {
        let mut counts: HashMap<&WorkloadKey, usize> = HashMap::new();
        for member in &namespace.members {
            of_process.insert(member.process, Arc::clone(places));
            *counts.entry(&member.workload.key).or_default() += 1;
        }
        for (key, count) in counts {
            let most = most.entry(key).or_default();
            if count > *most {
                *most = count;
                of_workload.insert(key.clone(), Arc::clone(places));
            }
        }
    }
    TmpfsTable { read_at, file_systems, of_process, of_workload, left_out: BTreeMap::new() }
}

/// The workload with the most memory of those that see a file system in other namespaces than the host's, and how it sees it.
fn owner<'s>(
    seen: &'s [Seen<'_>],
    all: &[(usize, &'s TmpfsLevel)],
) -> Option<(&'s Arc<Workload>, &'s TmpfsLevel)> {
    let mut sums: BTreeMap<&WorkloadKey, (u64, &Arc<Workload>, &TmpfsLevel)> = BTreeMap::new();
    for (place, level) in all.iter().filter(|(place, _)| *place != 0) {
        for member in &seen[*place].members {
            let sum = sums.entry(&member.workload.key).or_insert((0, &member.workload, level));
            sum.0 = sum.0.saturating_add(member.rss.get());
        }
    }
    let most = sums.into_values().max_by_key(|(rss, ..)| *rss);
    most.map(|(_, workload, level)| (workload, level))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::facts::Membership;

    fn member(pid: u32, name: &str, rss: u64) -> Member {
        let process = ProcessKey { pid, start: 1 };
        let workload = Membership::in_group(process, name).workload;
        Member { process, workload, user: 0, rss: Bytes::new(rss) }
    }

    fn level(device: &str, point: &str) -> TmpfsLevel {
        TmpfsLevel { device: device.into(), point: point.into(), size: 100, used: 10, owners: Vec::new() }
    }

    fn mount(device: &str, point: &str, is_writable: bool) -> TmpfsMount {
        TmpfsMount { id: 1, device: device.into(), point: point.into(), is_writable }
    }

    #[test]
    fn the_first_file_systems_are_read_once_each_and_none_that_cannot_be_written() {
        let mut mounts = vec![mount("0:9", "/secret", false), mount("0:1", "/run", true)];
        mounts.extend((10..20).map(|n| mount(&format!("0:{n}"), &format!("/var/lib/pods/{n}"), true)));
        mounts.push(mount("0:2", "/dev/shm", true));
        mounts.push(mount("0:2", "/shm", true));
        mounts.push(mount("0:4", "/dev/shm", true));
        mounts.push(mount("0:3", &format!("/{}", "x".repeat(300)), true));
        let found = points(&mounts);
        let found: Vec<&str> = found.iter().map(|point| point.to_str().unwrap()).collect();
        assert_eq!((found.len(), &found[..3]), (8, &["/dev/shm", "/run", "/var/lib/pods/10"][..]));
    }

    #[test]
    fn a_user_with_many_mount_namespaces_leaves_places_to_others() {
        let of = |user: u32| Member { user, ..member(5, "job", 1) };
        let (many, one) = (of(7), of(8));
        let groups = (0..100).map(|id| (id, vec![&many])).chain([(200, vec![&one])]).collect();
        let (read, left_out) = shares(groups, |id| id == 99);
        assert_eq!((read.len(), left_out), (MOST_NAMESPACES, BTreeMap::from([(7, 37)])));
        assert!([0, 99, 200].iter().all(|id| read.iter().any(|(kept, _)| kept == id)));
    }

    #[test]
    fn a_file_system_is_of_the_workload_that_uses_it_and_of_the_host_where_all_see_it_there() {
        let [rank, pause, other, on_host] =
            [member(5, "job", 900), member(6, "pause", 1), member(7, "shell", 5), member(8, "bare", 5)];
        let host = Seen {
            members: vec![&on_host],
            levels: vec![level("0:1", "/dev/shm"), level("0:2", "/run/containerd/shm"), level("0:4", "/run")],
        };
        let seen = [
            host,
            Seen { members: vec![&pause], levels: vec![level("0:2", "/dev/shm")] },
            Seen { members: vec![&rank], levels: vec![level("0:2", "/dev/shm"), level("0:3", "/cache")] },
            Seen { members: vec![&other], levels: vec![level("0:1", "/dev/shm")] },
        ];
        let table = table(Timestamp::from_secs(7), &seen);
        let shown = |places: &[usize]| -> Vec<String> {
            let of = |place: &usize| {
                let own = &table.file_systems[*place];
                let workload = own.workload.as_ref().map_or("host", |workload| workload.name.as_str());
                format!("{workload} {} {}", own.device, own.mount)
            };
            places.iter().map(of).collect()
        };
        let all: Vec<usize> = (0..table.file_systems.len()).collect();
        assert_eq!(shown(&all), ["host 0:1 /dev/shm", "job 0:2 /dev/shm", "job 0:3 /cache", "host 0:4 /run"]);
        let of = |member: &Member| shown(&table.of_process[&member.process]);
        assert_eq!(of(&rank), ["job 0:2 /dev/shm", "job 0:3 /cache"]);
        assert_eq!(of(&pause), ["job 0:2 /dev/shm"]);
        assert_eq!(of(&other), ["host 0:1 /dev/shm"]);
        // What runtimes mount for containers is not what a process of the host uses.
        assert_eq!(of(&on_host), ["host 0:1 /dev/shm", "host 0:4 /run"]);
        assert_eq!(shown(&table.of_workload[&rank.workload.key]), of(&rank));
    }
}
