//! Finds the GPUs in sysfs.

use std::collections::BTreeSet;
use std::io;
use std::path::{Path, PathBuf};

use super::files::{self, Files};
use super::vendor::{Report, Vendor};
use crate::model::label::Label;

/// Most GPUs of a node, as of NVIDIA's.
const MOST_CARDS: usize = 256;
/// Longest unique id that is used.
const LONGEST_ID: usize = 32;

/// A GPU, and where it is.
#[derive(Clone, Debug)]
pub struct Card {
    /// Its folder, `class/drm/cardN`.
    pub folder: PathBuf,
    /// The name of the folder, which is the label `gpu`, and the id, which is the label `uuid`.
    pub labels: [Label; 2],
    pub vendor: &'static Vendor,
    /// The product's name, or the PCI id of the product.
    pub name: String,
    /// The serial number; empty where it has none.
    pub serial: String,
    /// The PCI address; empty where it has none.
    pub pci: String,
    /// Whether it is part of a CPU, whose memory it can allocate from.
    pub is_integrated: bool,
    /// The names of its devices in `/dev/dri`.
    pub devices: Vec<String>,
}

impl Card {
    /// Whether it is the same GPU at the same place.
    pub fn is(&self, other: &Self) -> bool {
        self.labels == other.labels && self.pci == other.pci && self.devices == other.devices
    }

    /// Whether the driver has put it to sleep. A read would wake it up, or fail.
    pub fn sleeps(&self) -> bool {
        files::line(&self.folder.join("device/power/runtime_status")) == "suspended"
    }
}

/// The GPUs of these vendors, by the number of their card.
///
/// # Errors
/// Errors of the operating system, other than that there is no DRM.
pub fn find(sys: &Path, vendors: &[&'static Vendor]) -> io::Result<Vec<Card>> {
    let folder = sys.join("class/drm");
    let names = match files::names(&folder) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Vec::new(),
        names => names?,
    };
    // Connectors are named card0-DP-1.
    let number = |name: &String| name.strip_prefix("card")?.parse::<u32>().ok();
    let mut numbers: Vec<u32> = names.iter().filter_map(number).collect();
    numbers.sort_unstable();
    let mut ids = BTreeSet::new();
    let found = numbers.into_iter().filter_map(|number| {
        let mut card = card(&folder.join(format!("card{number}")), vendors)?;
        if !ids.insert(card.labels[1].clone()) {
            // Partitions of a GPU can have the same unique id.
            card.labels[1] = pci_id(&card.pci, &card.labels[0]);
            ids.insert(card.labels[1].clone());
        }
        Some(card)
    });
    Ok(found.take(MOST_CARDS).collect())
}

fn card(folder: &Path, vendors: &[&'static Vendor]) -> Option<Card> {
    let device = folder.join("device");
    let id = files::line(&device.join("vendor"));
    let vendor = *vendors.iter().find(|vendor| vendor.id == id)?;
    let ignore = |_: &str| {};
    let files = Files::new(folder, vendor.hwmon, &ignore as Report<'_>);
    let [product, serial, unique] = (vendor.identity)(&files);
    let is_integrated = (vendor.is_integrated)(&files);
    let uevent = files.text(&device.join("uevent")).unwrap_or_default();
    let slot = uevent.lines().find_map(|line| line.strip_prefix("PCI_SLOT_NAME="));
    let sound = |slot: &&str| slot.bytes().all(|byte| byte.is_ascii_hexdigit() || b":.".contains(&byte));
    let pci = slot.filter(sound).unwrap_or_default().to_owned();
    let index: Label = folder.file_name()?.to_str()?.into();
    let hex = !unique.is_empty()
        && unique.len() <= LONGEST_ID
        && unique.bytes().all(|byte| byte.is_ascii_hexdigit())
        && unique.bytes().any(|byte| byte != b'0');
    // ROCm names GPUs in the same way.
    let uuid = if hex { format!("GPU-{unique}").as_str().into() } else { pci_id(&pci, &index) };
    let product = if product.is_empty() {
        format!("{} {}", vendor.name, files::line(&device.join("device"))).trim_end().to_owned()
    } else {
        product
    };
    let mut devices: Vec<String> = files::names(&device.join("drm")).unwrap_or_default();
    devices.retain(|name| name.starts_with("card") || name.starts_with("renderD"));
    devices.sort();
    Some(Card {
        folder: folder.to_owned(),
        labels: [index, uuid],
        vendor,
        name: product,
        serial,
        pci,
        is_integrated,
        devices,
    })
}

fn pci_id(pci: &str, index: &Label) -> Label {
    if pci.is_empty() { format!("drm-{index}").as_str().into() } else { format!("pci-{pci}").as_str().into() }
}
