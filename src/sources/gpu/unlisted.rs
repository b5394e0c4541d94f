//! GPUs of NVIDIA that the kernel has and NVML does not list.

use std::collections::BTreeSet;
use std::path::Path;

use super::xid::{Address, pci};
use crate::host::fs::read_text;

/// Most PCI devices that are looked at.
const MOST: usize = 4_096;

/// The PCI id of NVIDIA.
const NVIDIA: &str = "0x10de";

/// The PCI classes of GPUs: with a display and without one.
const CLASSES: [&str; 2] = ["0x0300", "0x0302"];

/// The addresses of the GPUs that the kernel has given to the driver: none that a virtual machine has, or another driver. Absent where they cannot be read, and in a container, from which GPUs may be left out on purpose.
pub(super) fn present(sys: &Path, proc: &Path) -> Option<BTreeSet<Address>> {
    let entries = std::fs::read_dir(sys.join("bus/pci/devices")).ok().filter(|_| sees_the_node(proc))?;
    let devices = entries.take(MOST).filter_map(|entry| {
        let path = entry.ok()?.path();
        let starts =
            |file: &str, with: &str| read_text(&path.join(file)).is_ok_and(|text| text.starts_with(with));
        let is_gpu = starts("vendor", NVIDIA) && CLASSES.iter().any(|class| starts("class", class));
        // An old card that the driver does not support has none.
        let driver = std::fs::read_link(path.join("driver")).ok()?;
        pci(path.file_name()?.to_str()?)
            .filter(|_| is_gpu && driver.file_name().is_some_and(|name| name == "nvidia"))
    });
    Some(devices.collect())
}

/// Whether this process is in the first pid namespace, whose number is a constant of the kernel (`PROC_PID_INIT_INO`), and no container
/// runtime gave it some GPUs only: it then says so to its programs.
fn sees_the_node(proc: &Path) -> bool {
    let has_some = std::env::var_os("NVIDIA_VISIBLE_DEVICES").is_some_and(|given| given != "all");
    !has_some
        && std::fs::read_link(proc.join("self/ns/pid"))
            .is_ok_and(|name| name.as_os_str() == "pid:[4026531836]")
}

/// An address as the kernel writes it.
pub(super) fn name((domain, bus, device): Address) -> String {
    format!("{domain:04x}:{bus:02x}:{device:02x}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_gpus_for_the_driver_are_present() {
        let root = tempfile::tempdir().unwrap();
        let (sys, proc) = (root.path().join("sys"), root.path().join("proc"));
        for (address, vendor, class, driver) in [
            ("0000:1b:00.0", "0x10de", "0x030200", Some("nvidia")),
            ("0000:2b:00.0", "0x10de", "0x030000", Some("nvidia")),
            ("0000:2c:00.0", "0x10de", "0x030000", None),
            ("0000:2b:00.1", "0x10de", "0x040300", Some("snd_hda_intel")),
            ("0000:3b:00.0", "0x10de", "0x030200", Some("vfio-pci")),
            ("0000:4b:00.0", "0x10de", "0x030000", Some("nouveau")),
            ("0000:5b:00.0", "0x10de", "0x068000", None),
            ("0000:6b:00.0", "0x1002", "0x030000", None),
        ] {
            let folder = sys.join("bus/pci/devices").join(address);
            std::fs::create_dir_all(&folder).unwrap();
            std::fs::write(folder.join("vendor"), format!("{vendor}\n")).unwrap();
            std::fs::write(folder.join("class"), format!("{class}\n")).unwrap();
            if let Some(driver) = driver {
                let target = format!("../../../bus/pci/drivers/{driver}");
                std::os::unix::fs::symlink(target, folder.join("driver")).unwrap();
            }
        }
        assert_eq!(present(&sys, &proc), None, "not known to be the node");
        std::fs::create_dir_all(proc.join("self/ns")).unwrap();
        std::os::unix::fs::symlink("pid:[4026531836]", proc.join("self/ns/pid")).unwrap();
        assert_eq!(present(&sys, &proc), Some(BTreeSet::from([(0, 0x1b, 0), (0, 0x2b, 0)])));
        assert_eq!(present(root.path(), &proc), None, "no PCI devices to read");
        assert_eq!(pci(&name((0, 0x2b, 0))), Some((0, 0x2b, 0)));
    }
}
