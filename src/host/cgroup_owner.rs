//! Owners of the folders on a cgroup path, which determine whether the names on the path can be trusted.
//!
//! A user who owns a cgroup's folder (a delegated one, such as
//! `user@1000.service`) can create folders of any name below it and move its own
//! processes there. So the names down to the first folder that belongs to a user,
//! including that folder, are from the host's managers; those below are not.

use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Component, Path, PathBuf};

/// Who chose the names on a cgroup path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Owned {
    /// All names are from the host's managers.
    Managed,
    /// Names below the first folder that belongs to a user are chosen by that user.
    User {
        /// Length of the path down to this folder.
        end: usize,
        /// The owner of the folder.
        user: u32,
    },
    /// The owners cannot be read: the path is outside our cgroup namespace, or no cgroups are mounted.
    Unseen,
    /// The folder does not exist: it was removed, or access is denied.
    Unknown,
}

/// Reads the owners of cgroup folders, in every hierarchy.
#[derive(Debug)]
pub struct Owners {
    place: PathBuf,
    /// The topmost folder of each hierarchy, and its owner.
    hierarchies: Vec<(PathBuf, u32)>,
    warned: bool,
}

impl Owners {
    /// Owners that have not been read yet.
    pub const fn new(place: PathBuf) -> Self {
        Self { place, hierarchies: Vec::new(), warned: false }
    }

    /// Who chose the names on this path.
    ///
    /// A process's path does not show from which hierarchy it was read: a folder that belongs to a user in
    /// any of them counts.
    pub fn of(&mut self, path: &str) -> Owned {
        let relative = Path::new(path.trim_start_matches('/'));
        if !relative.components().all(|part| matches!(part, Component::Normal(_))) {
            return Owned::Unseen;
        }
        if self.hierarchies.is_empty() {
            self.hierarchies = hierarchies(&self.place);
        }
        if self.hierarchies.is_empty() {
            if !std::mem::replace(&mut self.warned, true) {
                tracing::warn!(
                    path = %self.place.display(),
                    "No cgroup hierarchy is mounted, so the owners of cgroups are not known; their names are used without verification."
                );
            }
            return Owned::Unseen;
        }
        let (mut there, mut first) = (false, None::<(usize, u32)>);
        for (root, lawful) in &self.hierarchies {
            match walk(root, *lawful, path) {
                Ok(None) => there = true,
                Ok(Some(found)) => first = Some(first.map_or(found, |other| other.min(found))),
                // The path does not exist in this hierarchy.
                Err(_) => {}
            }
        }
        match first {
            Some((end, user)) => Owned::User { end, user },
            None if there => Owned::Managed,
            None => Owned::Unknown,
        }
    }
}

/// The first folder on the path that belongs neither to root nor to the owner of the whole hierarchy.
fn walk(root: &Path, lawful: u32, path: &str) -> io::Result<Option<(usize, u32)>> {
    let mut folder = root.to_path_buf();
    let mut end = 0;
    for name in path.split('/') {
        end += name.len();
        if !name.is_empty() {
            folder.push(name);
            let found = std::fs::symlink_metadata(&folder)?;
            if !found.is_dir() {
                return Err(io::ErrorKind::NotADirectory.into());
            }
            if found.uid() != 0 && found.uid() != lawful {
                return Ok(Some((end, found.uid())));
            }
        }
        end += 1;
    }
    Ok(None)
}

/// Finds the hierarchies: v2, or v1 alone, mounted at `place` itself; otherwise one in each folder.
fn hierarchies(place: &Path) -> Vec<(PathBuf, u32)> {
    let is_one = ["cgroup.controllers", "cgroup.procs"].iter().any(|name| place.join(name).exists());
    let folders = match is_one {
        true => vec![place.to_path_buf()],
        false => std::fs::read_dir(place)
            .map(|entries| entries.filter_map(|entry| Some(entry.ok()?.path())).collect())
            .unwrap_or_default(),
    };
    let owned = folders.into_iter().filter_map(|folder| {
        // Symbolic links name controllers that share a hierarchy.
        let found = std::fs::symlink_metadata(&folder).ok()?;
        let is_place = folder == place;
        (is_place || found.is_dir()).then(|| {
            let uid = std::fs::metadata(&folder).map_or(found.uid(), |found| found.uid());
            (folder, uid)
        })
    });
    owned.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn make(place: &Path, paths: &[(&str, Option<u32>)]) {
        for (path, user) in paths {
            let folder = place.join(path);
            std::fs::create_dir_all(&folder).unwrap();
            if user.is_some() {
                std::os::unix::fs::chown(&folder, *user, None).unwrap();
            }
        }
    }

    #[test]
    fn missing_and_outside_paths_are_distinguished() {
        let place = tempfile::tempdir().unwrap();
        let mut owners = Owners::new(place.path().to_path_buf());
        assert_eq!(owners.of("/slurm/job_7"), Owned::Unseen, "nothing is mounted");
        make(place.path(), &[("memory/slurm/job_7", None), ("cpuset/user", None)]);
        assert_eq!(owners.of("/slurm/job_7"), Owned::Managed, "in one of two hierarchies");
        assert_eq!(owners.of("/slurm/job_8"), Owned::Unknown);
        assert_eq!(owners.of("/../../slurm/job_7"), Owned::Unseen);
        std::fs::write(place.path().join("memory/slurm/file"), "").unwrap();
        assert_eq!(owners.of("/slurm/file"), Owned::Unknown);
    }

    #[test]
    fn names_below_a_users_folder_are_that_users() {
        if !rustix::process::geteuid().is_root() {
            return;
        }
        let (v2, v1) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        std::fs::write(v2.path().join("cgroup.controllers"), "memory\n").unwrap();
        make(
            v2.path(),
            &[("user/1002/slurm/job_77", None), ("slurm/job_77", Some(1001)), ("user/1002", Some(1002))],
        );
        let mut owners = Owners::new(v2.path().to_path_buf());
        assert_eq!(owners.of("/user/1002/slurm/job_77"), Owned::User { end: "/user/1002".len(), user: 1002 });
        assert_eq!(owners.of("/slurm/job_77"), Owned::User { end: "/slurm/job_77".len(), user: 1001 });
        // It belongs to a user in one hierarchy, but not in the other.
        make(v1.path(), &[("memory/a/b", None), ("systemd/a/b", None), ("systemd/a", Some(1003))]);
        assert_eq!(Owners::new(v1.path().to_path_buf()).of("/a/b"), Owned::User { end: 2, user: 1003 });
    }
}
