//! The names and labels of dcgm-exporter, written from the points of the frame, for existing dashboards and alerts.
//!
//! A value that is absent from the frame has no series here either. MIG devices have none: their memory is in
//! `memwarden_gpu_mig_*`.

pub mod table;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::fmt::Write as _;

use self::table::{DcgmRow, TABLE};
use super::encode::{Format, label, number};
use crate::catalog::{gpu, kubernetes};
use crate::model::desc::{Desc, Kind};
use crate::model::label::Label;
use crate::model::point::{Family, Point, points};

/// Vendor whose GPUs have these names, as in the label `vendor` of `memwarden_gpu_info`.
const VENDOR: &str = "nvidia";

/// Writes the metrics of dcgm-exporter.
#[derive(Debug)]
pub struct Dcgm {
    host_name: Label,
}

/// What the labels of a GPU's series are made of.
#[derive(Debug, Default)]
struct Identity<'f> {
    pci: &'f str,
    minor: &'f str,
    model: &'f str,
    container: Container<'f>,
}

/// The container that has the GPU.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Container<'f> {
    /// It is not known, or there is none.
    #[default]
    None,
    /// Namespace, pod and container.
    One([&'f str; 3]),
    /// Several share the GPU.
    Several,
}

impl Dcgm {
    /// Series with this host name, if it is known.
    pub fn new(host_name: Option<&str>) -> Self {
        Self { host_name: host_name.unwrap_or_default().into() }
    }

    /// Appends every metric of the table that has a value.
    pub fn write(&self, families: &[Family], format: Format, out: &mut String) {
        let identities = identities(families);
        let driver = points(families, &gpu::DRIVER_INFO.desc).first();
        let driver = driver.map_or("", |point| value(&gpu::DRIVER_INFO.desc, point, "driver"));
        for row in TABLE {
            let mut open = false;
            for point in points(families, row.from).iter().filter(|point| chosen(row, point)) {
                let uuid = value(row.from, point, "uuid");
                let Some(identity) = identities.get(uuid).filter(|_| !uuid.is_empty()) else { continue };
                if !std::mem::replace(&mut open, true) {
                    header(row, format, out);
                }
                out.push_str(row.name);
                let mut open = false;
                let mut put = |name: &str, value: &str| label(out, &mut open, name, value);
                put("gpu", value(row.from, point, "gpu"));
                put("UUID", uuid);
                put("pci_bus_id", identity.pci);
                if !identity.minor.is_empty() {
                    put("device", &format!("nvidia{}", identity.minor));
                }
                put("modelName", identity.model);
                // The label was renamed after 4.4; dashboards use either name.
                put("Hostname", self.host_name.as_str());
                put("hostname", self.host_name.as_str());
                put("DCGM_FI_DRIVER_VERSION", driver);
                if let Container::One([namespace, pod, container]) = identity.container {
                    put("namespace", namespace);
                    put("pod", pod);
                    put("container", container);
                }
                out.push_str("} ");
                number(out, row.conversion.of(point.value));
                out.push('\n');
            }
        }
    }
}

/// OpenMetrics requires `_total` at the end of a counter's name, so that there the type of a counter is unknown.
fn header(row: &DcgmRow, format: Format, out: &mut String) {
    let kind = match (row.kind, format) {
        (Kind::Counter, Format::OpenMetrics) => "unknown",
        (Kind::Counter, Format::Text) => "counter",
        _ => "gauge",
    };
    let _ = writeln!(out, "# HELP {} {}\n# TYPE {} {kind}", row.name, row.help, row.name);
}

fn chosen(row: &DcgmRow, point: &Point) -> bool {
    row.with.iter().all(|(label, wanted)| value(row.from, point, label) == *wanted)
}

/// The NVIDIA GPUs of the frame, by UUID.
fn identities(families: &[Family]) -> BTreeMap<&str, Identity<'_>> {
    let info = &gpu::INFO.desc;
    let gpus = points(families, info).iter().filter(|point| value(info, point, "vendor") == VENDOR);
    let mut found: BTreeMap<&str, Identity<'_>> = gpus
        .map(|point| {
            let [pci, minor, model] = ["pci", "minor", "name"].map(|label| value(info, point, label));
            (value(info, point, "uuid"), Identity { pci, minor, model, container: Container::None })
        })
        .collect();
    let pods = &kubernetes::POD_GPU.desc;
    for point in points(families, pods) {
        let Some(identity) = found.get_mut(value(pods, point, "uuid")) else { continue };
        let one = Container::One(["namespace", "pod", "container"].map(|label| value(pods, point, label)));
        identity.container = match identity.container {
            Container::None => one,
            same if same == one => one,
            _ => Container::Several,
        };
    }
    found
}

/// The value of a label; empty where it has none.
fn value<'f>(desc: &Desc, point: &'f Point, label: &str) -> &'f str {
    point.label(desc, label).map_or("", Label::as_str)
}
