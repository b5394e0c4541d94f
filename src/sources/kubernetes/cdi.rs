//! The GPUs that CDI names of resource claims mean: the file of a claim has the device node, and the driver's file of the GPU
//! its UUID. Runs on the thread of the source.

use std::collections::BTreeMap;
use std::path::Path;

use super::names;
use crate::formats::cdi;
use crate::host::user_files;

/// Maximum size of `/proc/driver/nvidia/gpus/*/information` in bytes.
const LARGEST_INFORMATION: u64 = 64 * 1024;

/// The UUIDs of the GPUs of claims, by CDI name (`vendor/class=device`), and of all GPUs, by the name of their device node.
pub(super) type Uuids = BTreeMap<String, String>;

/// Reads the CDI files in folders that nobody but root can write. A folder or file that cannot be read names no device.
pub(super) fn read(folders: &[String], proc: &Path) -> Uuids {
    let gpus = gpus(proc);
    let mut found: Uuids =
        gpus.iter().map(|(minor, uuid)| (format!("nvidia{minor}"), uuid.clone())).collect();
    for folder in folders.iter().map(Path::new) {
        for name in names::list(folder).unwrap_or_default() {
            if ![".json", ".yaml"].iter().any(|extension| name.ends_with(extension)) {
                continue;
            }
            let Some(cdi) = text(&folder.join(name), cdi::LARGEST).and_then(|text| cdi::parse(&text)) else {
                continue;
            };
            for device in cdi.devices {
                // A MIG device has the node of its GPU too, and nodes of its own, from which its UUID is not known.
                let is_part = device.nodes.iter().any(|node| node.starts_with("/dev/nvidia-caps/"));
                let mut minors =
                    device.nodes.iter().filter_map(|node| node.strip_prefix("/dev/nvidia")?.parse().ok());
                if let (Some(minor), None, false) = (minors.next(), minors.next(), is_part)
                    && let Some(uuid) = gpus.get(&minor)
                {
                    found.insert(format!("{}={}", cdi.kind, device.name), uuid.clone());
                }
            }
        }
    }
    found
}

/// The UUID of each GPU by the minor number of its device node, as the driver states them.
fn gpus(proc: &Path) -> BTreeMap<u32, String> {
    let folder = proc.join("driver/nvidia/gpus");
    let all = names::list(&folder).unwrap_or_default();
    let texts =
        all.iter().filter_map(|name| text(&folder.join(name).join("information"), LARGEST_INFORMATION));
    texts.filter_map(|text| gpu(&text)).collect()
}

/// The minor number and the UUID in the driver's file of a GPU. A GPU that is not initialized has question marks as its UUID.
fn gpu(text: &str) -> Option<(u32, String)> {
    let value = |key: &str| {
        let value = text.lines().find_map(|line| line.strip_prefix(key)?.trim_start().strip_prefix(':'));
        value.map(str::trim)
    };
    let uuid = value("GPU UUID").filter(|uuid| {
        let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-';
        uuid.starts_with("GPU-") && uuid.len() <= 64 && uuid.bytes().all(is_plain)
    })?;
    Some((value("Device Minor")?.parse().ok()?, uuid.to_owned()))
}

fn text(path: &Path, largest: u64) -> Option<String> {
    let owner = rustix::process::geteuid().as_raw();
    String::from_utf8(user_files::read(path, Some(owner), largest).ok()?).ok()
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn information(uuid: &str, minor: u32) -> String {
        format!(
            "Model: \t\t NVIDIA H100 80GB HBM3\nIRQ:   \t\t 63\nGPU UUID: \t {uuid}\nVideo BIOS: \t 96.00.74.00.01\n\
             Bus Location: \t 0000:18:00.0\nDevice Minor: \t {minor}\nGPU Excluded:\t No\n"
        )
    }

    #[test]
    fn the_gpu_of_a_claim_is_that_of_its_device_node() {
        let folder = tempfile::tempdir().unwrap();
        let put = |name: &str, text: &str| {
            let path = folder.path().join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        put("proc/driver/nvidia/gpus/0000:18:00.0/information", &information("GPU-aa", 1));
        put("proc/driver/nvidia/gpus/0000:2a:00.0/information", &information("GPU-bb", 0));
        put("proc/driver/nvidia/gpus/0000:3a:00.0/information", &information("GPU-????????", 2));
        let device = |name: &str, nodes: &[&str]| {
            let nodes: Vec<String> = nodes.iter().map(|node| format!("{{path: {node}}}")).collect();
            format!("{{name: {name}, containerEdits: {{deviceNodes: [{}]}}}}", nodes.join(", "))
        };
        let all = [
            device("u-gpu-0", &["/dev/nvidiactl", "/dev/nvidia0"]),
            device("u-gpu-1", &["/dev/nvidia1"]),
            device("u-gpu-2", &["/dev/nvidia2"]),
            device("u-both", &["/dev/nvidia0", "/dev/nvidia1"]),
            device("u-mig", &["/dev/nvidia0", "/dev/nvidia-caps/nvidia-cap30"]),
        ];
        put(
            "run/cdi/k8s.gpu.nvidia.com-claim_u.yaml",
            &format!("{{kind: v/claim, devices: [{}]}}", all.join(", ")),
        );
        put("run/cdi/torn.yaml", "kind: v/claim\ndevices: [");
        put("run/cdi/notes.txt", &format!("{{kind: v/x, devices: [{}]}}", all[0]));
        let folders = ["etc/cdi", "run/cdi"].map(|name| folder.path().join(name).display().to_string());
        let found = read(&folders, &folder.path().join("proc"));
        let of_claims = [("v/claim=u-gpu-0", "GPU-bb"), ("v/claim=u-gpu-1", "GPU-aa")];
        let expected = [("nvidia0", "GPU-bb"), ("nvidia1", "GPU-aa"), of_claims[0], of_claims[1]];
        assert_eq!(found, expected.map(|(name, uuid)| (name.to_owned(), uuid.to_owned())).into());
    }
}
