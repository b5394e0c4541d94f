//! Whether the pids that the driver lists are those of processes here.
//!
//! In a container with a pid namespace of its own, drivers list pids of the host, and some of both namespaces: another process can
//! have the number here. A process is believed to be the one that is meant if it has a device of NVIDIA open.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use super::state::Gpu;
use crate::host::exit_events::is_initial_namespace;
use crate::model::facts::ProcessTable;
use crate::model::ids::ProcessKey;

/// Most descriptors of a process that are looked at.
const MOST: usize = 4_096;
/// The folder of the devices of MIG, and how the others begin.
const DEVICES: &str = "/dev/nvidia";

#[derive(Debug)]
pub(super) struct Owners {
    proc: PathBuf,
    /// The processes that were looked at, once each, and whether they had a device open: the driver lists none that has not opened one.
    known: HashMap<ProcessKey, bool>,
}

impl Owners {
    pub(super) fn new(proc: PathBuf) -> Self {
        Self { proc, known: HashMap::new() }
    }

    /// Takes out of the newest samples the processes that are not proven to be processes of this pid namespace, and counts them.
    pub(super) fn prove(&mut self, gpus: &mut [Gpu], table: Option<&ProcessTable>) {
        if is_initial_namespace(&self.proc) {
            return;
        }
        let row = |pid: u32| table.and_then(|table| table.get(pid)).map(|row| row.key);
        self.known.retain(|key, _| row(key.pid) == Some(*key));
        for gpu in gpus {
            let Some(listed) = gpu.sample.as_mut().and_then(|sample| sample.processes.as_mut()) else {
                continue;
            };
            let before = listed.len();
            listed.retain(|process| row(process.pid).is_some_and(|key| self.has_device(key)));
            // A sample that was looked at before has none of them any more.
            gpu.unproven += before - listed.len();
        }
    }

    fn has_device(&mut self, key: ProcessKey) -> bool {
        *self.known.entry(key).or_insert_with(|| has_device(&self.proc.join(key.pid.to_string()).join("fd")))
    }
}

fn has_device(folder: &Path) -> bool {
    let open = std::fs::read_dir(folder).into_iter().flatten().take(MOST).flatten();
    let mut names = open.filter_map(|entry| std::fs::read_link(entry.path()).ok());
    names.any(|name| name.to_str().is_some_and(|name| name.starts_with(DEVICES)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_owns_memory_of_a_gpu_only_where_it_has_a_device_open() {
        let root = tempfile::tempdir().unwrap();
        let open = |pid: u32, files: &[&str]| {
            let folder = root.path().join(pid.to_string()).join("fd");
            std::fs::create_dir_all(&folder).unwrap();
            for (number, file) in files.iter().enumerate() {
                std::os::unix::fs::symlink(file, folder.join(number.to_string())).unwrap();
            }
            has_device(&folder)
        };
        assert!(open(5, &["/dev/null", "/dev/nvidia0"]));
        assert!(open(6, &["/dev/nvidia-caps/nvidia-cap1"]));
        assert!(!open(7, &["/dev/null", "socket:[1]", "/home/a/dev/nvidia0"]));
        assert!(!has_device(&root.path().join("8/fd")));
    }
}
