//! What the limits of cgroups leave of device memory (controller `dmem`, Linux 6.14).
//!
//! `dmem.max` limits a cgroup together with those below it, of which `dmem.current` is the sum: an allocation is charged to each
//! cgroup on the path (`dmem_cgroup_try_charge` in kernel/cgroup/dmem.c).

use std::collections::{BTreeMap, BTreeSet};

use crate::model::analyzer::View;
use crate::model::ids;
use crate::model::point::Point;
use crate::sources::cgroup::metrics::{DEVICE_LIMIT, DEVICE_USAGE};
use crate::sources::gpu::metrics::INFO;

/// What each limit leaves, in bytes, by cgroup and region.
#[derive(Debug)]
pub(super) struct DeviceLimits<'v>(BTreeMap<(&'v str, &'v str), f64>);

impl<'v> DeviceLimits<'v> {
    /// The limits of this tick whose use is known.
    pub(super) fn of(view: &View<'v>) -> Self {
        let key = |point: &'v Point| match &*point.labels {
            [cgroup, region] => Some((cgroup.as_str(), region.as_str())),
            _ => None,
        };
        let limits = view.points(&DEVICE_LIMIT);
        if limits.is_empty() {
            return Self(BTreeMap::new());
        }
        let used: BTreeMap<_, f64> =
            view.points(&DEVICE_USAGE).iter().filter_map(|point| Some((key(point)?, point.value))).collect();
        let left = limits.iter().filter_map(|limit| {
            let key = key(limit)?;
            Some((key, (limit.value - used.get(&key)?).max(0.0)))
        });
        Self(left.collect())
    }

    /// Whether the cgroup itself has a limit for the region.
    pub(super) fn has(&self, cgroup: &str, region: &str) -> bool {
        self.0.contains_key(&(cgroup, region))
    }

    /// The cgroup, of this one and those above it, whose limit leaves the least of the region, and what it leaves in bytes;
    /// absent without a limit.
    pub(super) fn tightest<'p>(&self, cgroup: &'p str, region: &str) -> Option<(&'p str, f64)> {
        let limits = ids::path(cgroup).filter_map(|path| Some((path, *self.0.get(&(path, region))?)));
        limits.min_by(|(_, one), (_, other)| one.total_cmp(other))
    }

    /// The region that is the memory of each GPU, by UUID, where a cgroup limits one. A GPU with a region for each tile is left out:
    /// it is not known on which tile a process allocates.
    pub(super) fn regions(&self, view: &View<'v>) -> BTreeMap<&'v str, &'v str> {
        let names: BTreeSet<&str> = self.0.keys().map(|(_, region)| *region).collect();
        let mut found = BTreeMap::new();
        for gpu in view.points(&INFO).iter().take_while(|_| !names.is_empty()) {
            let [_, uuid, _, _, pci, ..] = &*gpu.labels else { continue };
            // amdgpu names its region `vram`, xe `vram0` and `vram1`.
            let first = format!("drm/{pci}/vram");
            let mut own = names.iter().filter(|name| !pci.is_empty() && name.starts_with(&first));
            if let (Some(region), None) = (own.next(), own.next()) {
                found.insert(uuid.as_str(), *region);
            }
        }
        found
    }
}
