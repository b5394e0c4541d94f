//! A small memory group below the one that the tests are in.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

/// What the group may have: more than an interpreter needs, and nothing to this machine.
pub(crate) const LIMIT: u64 = 96;

/// The group; removed when dropped, once it is empty.
pub(crate) struct Group {
    /// Its path in the hierarchy of the memory controller.
    pub(crate) path: String,
    folder: PathBuf,
    version1: bool,
}

impl Group {
    /// A new one with a limit of [`LIMIT`] MiB and no swap; says so where there can be none.
    pub(crate) fn make() -> Option<Self> {
        let made = Self::try_make();
        if made.is_none() {
            crate::skip::skip("no memory group can be made here");
        }
        made
    }

    /// A new one like [`Group::make`] that is the folder of a Slurm job.
    pub(crate) fn of_slurm_job(id: u32) -> Option<Self> {
        // Slurm's folder is at the top of the hierarchy.
        let made = Self::try_make_at(|_| format!("/slurm/uid_0/job_{id}"));
        if made.is_none() {
            crate::skip::skip("no memory group can be made here");
        }
        made
    }

    /// A new one like [`Group::make`] that is the one of a pod's container.
    pub(crate) fn of_pod(uid: &str, container: &str) -> Option<Self> {
        let made = Self::try_make_at(|_| format!("/kubepods/burstable/pod{uid}/{container}"));
        if made.is_none() {
            crate::skip::skip("no memory group can be made here");
        }
        made
    }

    fn try_make() -> Option<Self> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let name = format!("memwarden-day-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        Self::try_make_at(|above| format!("{}/{name}", above.trim_end_matches('/')))
    }

    fn try_make_at(path: impl FnOnce(&str) -> String) -> Option<Self> {
        let text = std::fs::read_to_string("/proc/self/cgroup").ok()?;
        let v1 = text.lines().find_map(|line| Some(line.split_once(":memory:")?.1.to_owned()));
        let version1 = v1.is_some();
        let (root, above, limit) = match v1 {
            Some(path) => ("/sys/fs/cgroup/memory", path, "memory.limit_in_bytes"),
            // Processes may be in leaves only, so that it cannot be below ours.
            None => ("/sys/fs/cgroup", "/".to_owned(), "memory.max"),
        };
        let path = path(&above);
        let folder = Path::new(root).join(&path[1..]);
        std::fs::create_dir_all(folder.parent()?).ok()?;
        std::fs::create_dir(&folder).ok()?;
        let group = Self { path, folder, version1 };
        std::fs::write(group.file(limit), (LIMIT << 20).to_string()).ok()?;
        let _ = std::fs::write(group.file("memory.swap.max"), "0");
        Some(group)
    }

    /// One of its files.
    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    /// Whether it is of the older hierarchy, which has more switches.
    pub(crate) fn version1(&self) -> bool {
        self.version1
    }

    /// Who is in it.
    pub(crate) fn pids(&self) -> Vec<u32> {
        let text = std::fs::read_to_string(self.file("cgroup.procs")).unwrap();
        text.lines().filter_map(|pid| pid.parse().ok()).collect()
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        remove(&self.folder);
        if let Some(pod) =
            self.folder.parent().filter(|pod| pod.parent().is_some_and(|class| class.ends_with("burstable")))
        {
            remove(pod);
        }
    }
}

/// A group of the older freezer, which has groups of its own.
pub(crate) struct Freezer(PathBuf);

impl Freezer {
    /// A new one; says so where there can be none.
    pub(crate) fn beside(group: &Group) -> Option<Self> {
        Self::at(group, &group.path[1..])
    }

    /// One of another path, which the daemon does not find.
    pub(crate) fn elsewhere(group: &Group) -> Option<Self> {
        let name = group.path.rsplit('/').next()?;
        Self::at(group, &format!("{name}-ice"))
    }

    fn at(group: &Group, path: &str) -> Option<Self> {
        let root = Path::new("/sys/fs/cgroup/freezer");
        let folder = root.join(path);
        if !group.version1 || !root.is_dir() || std::fs::create_dir_all(&folder).is_err() {
            crate::skip::skip("no freezer of the older kind here");
            return None;
        }
        Some(Self(folder))
    }

    pub(crate) fn put(&self, pid: u32) {
        std::fs::write(self.0.join("cgroup.procs"), pid.to_string()).unwrap();
    }

    pub(crate) fn set(&self, state: &str) {
        std::fs::write(self.0.join("freezer.state"), state).unwrap();
    }

    pub(crate) fn state(&self) -> String {
        std::fs::read_to_string(self.0.join("freezer.state")).unwrap().trim().to_owned()
    }
}

impl Drop for Freezer {
    fn drop(&mut self) {
        self.set("THAWED");
        remove(&self.0);
        // Those above were made for it; what others use stays.
        for above in self.0.ancestors().skip(1).take_while(|above| !above.ends_with("freezer")) {
            let _ = std::fs::remove_dir(above);
        }
    }
}

/// Removes a group once it is empty.
fn remove(folder: &Path) {
    for _ in 0..250 {
        if std::fs::remove_dir(folder).is_ok() {
            return;
        }
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
}
