//! The sizes of huge pages of which the kernel has pools.

use std::path::{Path, PathBuf};

use super::fs;
use super::process::number;
use super::roots::Roots;
use crate::model::label::Label;
use crate::model::units::Bytes;

/// A size of huge pages.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PageSize {
    pub bytes: Bytes,
    /// Its name as in the files of the controller `hugetlb`, such as `2MB`.
    pub name: Label,
    /// The name of its folder, such as `hugepages-2048kB`.
    pub folder: String,
}

/// The folder with a folder for each size.
pub fn folder(roots: &Roots) -> PathBuf {
    roots.sys.join("kernel/mm/hugepages")
}

/// The sizes of this kernel, the smallest first; none where it has no huge pages.
pub fn sizes(roots: &Roots) -> Vec<PageSize> {
    /// No processor has more.
    const MOST: usize = 16;
    let entries = std::fs::read_dir(folder(roots)).into_iter().flatten().flatten();
    let mut all: Vec<PageSize> =
        entries.filter_map(|entry| size(&entry.file_name().to_string_lossy())).take(MOST).collect();
    all.sort_by_key(|size| size.bytes);
    all
}

/// The memory in the pools of all sizes of a NUMA node, given by its folder, in bytes.
pub fn in_pools(roots: &Roots, node: &Path) -> Bytes {
    let of_size = |size: PageSize| {
        let file = node.join("hugepages").join(size.folder).join("nr_hugepages");
        let pages = number(fs::read_text(&file).ok()?.trim_ascii_end().as_bytes())?;
        pages.checked_mul(size.bytes.get()).map(Bytes::new)
    };
    sizes(roots).into_iter().filter_map(of_size).fold(Bytes::ZERO, Bytes::saturating_add)
}

fn size(folder: &str) -> Option<PageSize> {
    let kib = number(folder.strip_prefix("hugepages-")?.strip_suffix("kB")?.as_bytes())?;
    // As `mem_fmt` in mm/hugetlb_cgroup.c.
    let name = match kib {
        kib if kib >= 1 << 20 => format!("{}GB", kib >> 20),
        kib if kib >= 1 << 10 => format!("{}MB", kib >> 10),
        kib => format!("{kib}KB"),
    };
    Some(PageSize { bytes: Bytes::from_kib(kib)?, name: name.into(), folder: folder.to_owned() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_named_as_the_controller_names_them() {
        let name = |folder: &str| size(folder).map(|size| size.name.to_string());
        for (folder, expected) in
            [("hugepages-64kB", "64KB"), ("hugepages-2048kB", "2MB"), ("hugepages-1048576kB", "1GB")]
        {
            assert_eq!(name(folder).as_deref(), Some(expected));
        }
        for other in ["hugepages-", "hugepages-xkB", "2048kB", "hugepages-18446744073709551615kB"] {
            assert_eq!(name(other), None, "{other}");
        }
    }
}
