//! Limits of huge pages (controller `hugetlb`), of the cgroups that have one. A cgroup that is at it uses what it was given.

use std::path::{Path, PathBuf};

use super::group::Group;
use super::metrics as m;
use crate::host::cgroup::{Version, open, read};
use crate::host::fs::read_text;
use crate::host::huge_pages;
use crate::host::room::group::{self, Bound};
use crate::host::roots::Roots;
use crate::model::label::Label;
use crate::model::point::Batch;
use crate::model::units::Bytes;

/// The limits that were found at the last walk.
#[derive(Debug, Default)]
pub struct Hugetlb {
    roots: Option<Roots>,
    limits: Vec<Limit>,
    buffer: Vec<u8>,
}

#[derive(Debug)]
struct Limit {
    /// The cgroup and the size.
    labels: [Label; 2],
    limit: Bytes,
    usage: PathBuf,
}

impl Hugetlb {
    pub fn new(roots: &Roots) -> Self {
        Self { roots: Some(roots.clone()), ..Self::default() }
    }

    /// Reads the limits of the exposed cgroups, of the sizes of which there is a pool.
    pub fn find(&mut self, groups: &[Group], version: Version) {
        self.limits.clear();
        let Some(roots) = &self.roots else { return };
        let folder = huge_pages::folder(roots);
        let mut sizes = huge_pages::sizes(roots);
        sizes.retain(|size| {
            let pages = read_text(&folder.join(&size.folder).join("nr_hugepages"));
            pages.is_ok_and(|pages| pages.trim() != "0")
        });
        if sizes.is_empty() {
            return;
        }
        let (max, current) = match version {
            Version::V1 => ("limit_in_bytes", "usage_in_bytes"),
            Version::V2 => ("max", "current"),
        };
        for group in groups.iter().filter(|group| group.shown) {
            let Some(folder) = place(roots, group, version) else { continue };
            for size in &sizes {
                let file = |name| folder.join(format!("hugetlb.{}.{name}", size.name));
                let text = bytes(&file(max), &mut self.buffer);
                if let Some(limit) = text.and_then(group::amount).and_then(Bound::bytes) {
                    let labels = [group.label.clone(), size.name.clone()];
                    self.limits.push(Limit { labels, limit, usage: file(current) });
                }
            }
        }
    }

    /// Puts the limits and what is used of each; a cgroup that was removed has none.
    pub fn put(&mut self, out: &mut Batch) {
        for own in &self.limits {
            let Some(usage) = bytes(&own.usage, &mut self.buffer).and_then(group::number) else { continue };
            out.put(&m::HUGE_LIMIT, &own.labels, own.limit);
            out.put(&m::HUGE_USAGE, &own.labels, Bytes::new(usage));
        }
    }
}

/// The folder of the cgroup in the hierarchy of the controller, which is one of its own on v1.
fn place(roots: &Roots, group: &Group, version: Version) -> Option<PathBuf> {
    match version {
        Version::V2 => Some(group.files.dir.clone()),
        Version::V1 => {
            let below = group.files.dir.strip_prefix(roots.cgroup.join("memory")).ok()?;
            Some(roots.cgroup.join("hugetlb").join(below))
        }
    }
}

fn bytes<'b>(path: &Path, buffer: &'b mut Vec<u8>) -> Option<&'b [u8]> {
    open(path).and_then(|file| read(&file, buffer)).ok()?;
    Some(buffer)
}
