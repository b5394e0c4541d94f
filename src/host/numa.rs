//! NUMA nodes: those of the host's memory, and those that are the memory of GPUs (GH200, GB200 and GB300 in NUMA mode).
//!
//! The driver adds the memory of such a GPU to the host as a node without CPUs, and the kernel counts it in `MemTotal` and
//! `MemAvailable`.

use std::path::PathBuf;

use super::fs;
use super::roots::Roots;

/// Nodes that a kernel can have (`NODES_SHIFT` is at most 10).
const NODES: u32 = 1024;

/// A node that is memory of GPUs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GpuNode {
    pub number: u32,
    /// Its `meminfo`.
    pub meminfo: PathBuf,
}

/// The nodes with memory of the host, and the folder of each. None on a kernel without NUMA nodes.
pub fn host_nodes(roots: &Roots) -> Vec<(u32, PathBuf)> {
    let of_gpus = gpu_nodes(roots);
    let mut numbers = listed(roots, "has_memory");
    numbers.retain(|number| !of_gpus.iter().any(|node| node.number == *number));
    numbers.into_iter().map(|number| (number, folder(roots).join(format!("node{number}")))).collect()
}

/// The nodes with memory and without CPUs, where the driver has GPUs that are NUMA nodes.
///
/// The driver makes the file `numa_status` of a GPU only where it is one (`kernel-open/nvidia/nv-procfs.c` of
/// NVIDIA/open-gpu-kernel-modules), and not in CDMM mode. Memory nodes without CPUs of other hosts, such as CXL, are memory of
/// the host.
/// The file is not read: a read waits for a lock of the driver, and fails in MIG mode, where one GPU has several nodes.
pub fn gpu_nodes(roots: &Roots) -> Vec<GpuNode> {
    let gpus = std::fs::read_dir(roots.proc.join("driver/nvidia/gpus")).into_iter().flatten().flatten();
    if !gpus.into_iter().any(|gpu| gpu.path().join("numa_status").exists()) {
        return Vec::new();
    }
    let with_cpus = listed(roots, "has_cpu");
    let mut numbers = listed(roots, "has_memory");
    numbers.retain(|number| !with_cpus.contains(number));
    let node = |number| GpuNode { number, meminfo: folder(roots).join(format!("node{number}/meminfo")) };
    numbers.into_iter().map(node).collect()
}

/// The nodes in a file of the folder of all nodes.
fn listed(roots: &Roots, name: &str) -> Vec<u32> {
    number_list(&fs::read_text(&folder(roots).join(name)).unwrap_or_default(), NODES)
}

fn folder(roots: &Roots) -> PathBuf {
    roots.sys.join("devices/system/node")
}

/// The numbers, at most `most` of them and none above it, of a list such as `0,2-4` (cpuset(7), "Formats").
pub(super) fn number_list(text: &str, most: u32) -> Vec<u32> {
    let range = |part: &str| {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        Some(first.parse::<u32>().ok()?..=last.parse::<u32>().ok()?.min(most))
    };
    text.trim().split(',').filter_map(range).flatten().take(most as usize).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn list(text: &str) -> Vec<u32> {
        number_list(text, NODES)
    }

    #[test]
    fn lists_of_nodes_are_bounded() {
        assert_eq!(list("0\n"), [0]);
        assert_eq!(list("0,2-4\n"), [0, 2, 3, 4]);
        assert!(list("4-2,x,-,7-").is_empty());
        assert_eq!(list("1020-4294967295").len(), 5);
        assert!(list("").is_empty());
    }

    #[test]
    fn nodes_without_cpus_are_of_gpus_where_the_driver_says_so() {
        let folder = tempfile::tempdir().unwrap();
        let write = |path: &str, text: &str| {
            let path = folder.path().join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        };
        let numbers =
            || Vec::from_iter(gpu_nodes(&Roots::under(folder.path())).iter().map(|node| node.number));
        write("sys/devices/system/node/has_cpu", "0-1\n");
        write("sys/devices/system/node/has_memory", "0-2,10\n");
        write("proc/driver/nvidia/gpus/0009:01:00.0/information", "");
        assert!(numbers().is_empty(), "CXL memory of a host with a GPU");
        write("proc/driver/nvidia/gpus/0009:01:00.0/numa_status", "");
        assert_eq!(numbers(), [2, 10]);
        let hosts = host_nodes(&Roots::under(folder.path()));
        assert_eq!(hosts.iter().map(|(number, _)| *number).collect::<Vec<_>>(), [0, 1]);
    }
}
