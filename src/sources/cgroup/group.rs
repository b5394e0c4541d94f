//! One cgroup that is read at each tick.

use std::path::PathBuf;

use super::files::{Files, Gone, Got, Item, Reader};
use super::parse::{self, EVENT_MAX, EVENT_OOM_KILL};
use super::reading::Reading;
use crate::host::cgroup::Version;
use crate::host::fs::read_text;
use crate::host::pressure;
use crate::host::room::group::{Bound, never_swaps, stat};
use crate::model::label::{LONGEST, Label};
use crate::model::units::Bytes;

/// One cgroup that is read at each tick.
#[derive(Debug)]
pub struct Group {
    pub files: Files,
    /// Its path, as a label.
    pub label: Label,
    /// Whether it is exposed; otherwise it is only read for its limits.
    pub shown: bool,
    /// Whether its limits apply to the cgroups below it: not in v1 without `use_hierarchy`.
    pub limits_below: bool,
    /// The amounts of device memory by region, in the order of [`Item::OF_DEVICES`].
    pub devices: [Vec<(Label, Bytes)>; 4],
    version: Version,
    /// Whether the kernel swaps nothing out to stay below its limit (v1).
    never_swaps: bool,
    /// Whether it is the topmost visible cgroup.
    pub is_root: bool,
    /// Whether it is the host's own root in v1, whose counters exclude what is charged to the root itself.
    is_host_root: bool,
}

impl Group {
    /// A cgroup without open files; the path of the root is `/`.
    pub fn new(version: Version, dir: PathBuf, path: &str) -> Self {
        let is_root = path == "/";
        let mut group = Self {
            files: Files::new(version, dir, is_root),
            label: label(path),
            shown: false,
            limits_below: true,
            never_swaps: false,
            devices: Default::default(),
            version,
            is_root,
            is_host_root: false,
        };
        group.learn();
        group
    }

    /// Reads properties that do not change while the cgroup exists.
    fn learn(&mut self) {
        if self.version == Version::V1 {
            let flag = read_text(&self.files.dir.join("memory.use_hierarchy"));
            self.limits_below = flag.map_or(true, |text| text.trim() != "0");
            let swappiness = read_text(&self.files.dir.join("memory.swappiness"));
            self.never_swaps = swappiness.is_ok_and(|text| never_swaps(text.as_bytes()));
            // Only the host's root has this file; the topmost cgroup of a container does not.
            self.is_host_root = self.is_root && self.files.dir.join("release_agent").exists();
        }
    }

    /// Whether it has a limit for a region of device memory.
    pub const fn limits_devices(&self) -> bool {
        let [_, limits, ..] = &self.devices;
        !limits.is_empty()
    }

    /// Reads all values. A cgroup that was removed and created again is opened again.
    ///
    /// # Errors
    /// [`Gone`] if the cgroup does not exist.
    pub fn read(&mut self, reader: &mut Reader) -> Result<Reading, Gone> {
        if let Ok(reading) = self.read_all(reader) {
            return Ok(reading);
        }
        reader.allowance += self.files.kept();
        self.files.close();
        self.learn();
        self.read_all(reader)
    }

    fn read_all(&mut self, reader: &mut Reader) -> Result<Reading, Gone> {
        let version = self.version;
        // First, because a removed cgroup has neither file, and one without only the next is kept.
        let usage = self.files.bytes(Item::Usage, reader)?;
        let stat = self.files.get(Item::Stat, reader, |text| Some(stat(text, version)))?;
        if let Got::Value(stat) = stat
            && stat.inactive_file.is_none()
        {
            reader.note_garbled(&self.files.path(Item::Stat));
        }
        let mut found = Reading {
            never_swaps: self.never_swaps,
            stat: stat.some().unwrap_or_default(),
            usage,
            limit: self.files.limit(Item::Limit, reader)?,
            ..Reading::default()
        };
        if !self.is_host_root {
            found.peak = self.files.bytes(Item::Peak, reader)?;
        }
        match version {
            Version::V1 => self.read_v1(reader, &mut found)?,
            Version::V2 => self.read_v2(reader, &mut found)?,
        }
        Ok(found)
    }

    fn read_v1(&mut self, reader: &mut Reader, found: &mut Reading) -> Result<(), Gone> {
        found.swap_usage = found.stat.swap;
        found.events[EVENT_OOM_KILL] =
            self.files.get(Item::Events, reader, |text| Some(parse::oom_kills(text)))?.some().flatten();
        if self.is_host_root {
            return Ok(());
        }
        found.events[EVENT_MAX] = self.files.number(Item::LimitHits, reader)?;
        found.kernel = self.files.bytes(Item::Kernel, reader)?;
        found.both_limit = self.files.limit(Item::BothLimit, reader)?;
        if found.both_limit != Bound::Unbounded {
            found.both_usage = self.files.bytes(Item::BothUsage, reader)?;
        }
        Ok(())
    }

    fn read_v2(&mut self, reader: &mut Reader, found: &mut Reading) -> Result<(), Gone> {
        let files = &mut self.files;
        found.kernel = found.stat.kernel;
        found.events =
            files.get(Item::Events, reader, |text| Some(parse::events(text)))?.some().unwrap_or_default();
        found.high = files.limit(Item::High, reader)?.bytes();
        found.swap_usage = files.bytes(Item::SwapUsage, reader)?;
        found.swap_limit = files.limit(Item::SwapLimit, reader)?.bytes();
        found.pressure = files
            .get(Item::Pressure, reader, |text| Some(pressure::pressure(text)))?
            .some()
            .unwrap_or_default();
        found.tasks = files.number(Item::Tasks, reader)?;
        for (item, amounts) in Item::OF_DEVICES.into_iter().zip(&mut self.devices) {
            let regions = files.get(item, reader, |text| Some(parse::regions(text)))?;
            *amounts = regions.some().unwrap_or_default();
        }
        Ok(())
    }
}

/// The label of a path: the path, or its beginning with a hash of the whole, so that two long paths differ.
fn label(path: &str) -> Label {
    const MARK: usize = "~0123456789abcdef".len();
    let clean = path.replace(char::is_control, "\u{fffd}");
    if clean.len() <= LONGEST {
        return clean.into();
    }
    let mut end = LONGEST - MARK;
    while !clean.is_char_boundary(end) {
        end -= 1;
    }
    // FNV-1a: stable between runs and releases, unlike the hasher of the standard library.
    let hash = path.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    });
    format!("{}~{hash:016x}", &clean[..end]).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_paths_have_different_labels() {
        let long = "/pod".repeat(100);
        let (one, two) = (label(&format!("{long}/a")), label(&format!("{long}/b")));
        assert_ne!(one, two);
        assert_eq!(one.as_str().len(), LONGEST);
        assert!(one.as_str().starts_with("/pod/pod/"));
        assert_eq!(label("/a\nb").as_str(), "/a\u{fffd}b");
    }
}
