//! `/proc/meminfo` (Documentation/filesystems/proc.rst), in KiB.

use crate::model::units::Bytes;

macro_rules! meminfo {
    ($($(#[$doc:meta])* $field:ident = $line:literal;)+) => {
        /// The known lines; absent if the kernel does not write them.
        #[derive(Debug, Default, PartialEq, Eq)]
        pub struct Meminfo {
            $($(#[$doc])* pub $field: Option<Bytes>,)+
            /// `HugePages_Total`, in pages.
            pub huge_total: Option<u64>,
            /// `HugePages_Free`, in pages.
            pub huge_free: Option<u64>,
        }

        impl Meminfo {
            fn set(&mut self, name: &str, value: &str) {
                match name {
                    $($line => self.$field = kib(value),)+
                    "HugePages_Total" => self.huge_total = value.parse().ok(),
                    "HugePages_Free" => self.huge_free = value.parse().ok(),
                    _ => {}
                }
            }

            /// Leaves out a NUMA node. Amounts that only the host or only the node has stay as they are.
            pub fn leave_out(&mut self, node: &Self) {
                let without = |whole: &mut Option<Bytes>, part: Option<Bytes>| {
                    *whole = whole.map(|whole| whole.saturating_sub(part.unwrap_or_default()));
                };
                $(without(&mut self.$field, node.$field);)+
                let pages = |pages: Option<u64>, part: Option<u64>| Some(pages?.saturating_sub(part.unwrap_or(0)));
                self.huge_total = pages(self.huge_total, node.huge_total);
                self.huge_free = pages(self.huge_free, node.huge_free);
            }
        }
    };
}

meminfo! {
    total = "MemTotal";
    free = "MemFree";
    /// `MemAvailable`; since 3.14, and absent in some containers' emulated files.
    available = "MemAvailable";
    buffers = "Buffers";
    cached = "Cached";
    shmem = "Shmem";
    slab_reclaimable = "SReclaimable";
    slab_unreclaimable = "SUnreclaim";
    anon = "AnonPages";
    anon_huge = "AnonHugePages";
    mapped = "Mapped";
    unevictable = "Unevictable";
    kernel_stack = "KernelStack";
    page_tables = "PageTables";
    dirty = "Dirty";
    writeback = "Writeback";
    commit_limit = "CommitLimit";
    committed = "Committed_AS";
    swap_total = "SwapTotal";
    swap_free = "SwapFree";
    /// `Hugepagesize`: the default size of a huge page.
    huge_size = "Hugepagesize";
    active_file = "Active(file)";
    inactive_file = "Inactive(file)";
    /// Page cache of a NUMA node, with block devices, shared memory and tmpfs.
    file_pages = "FilePages";
    /// Memory that the allocator NvMap of a Jetson has given to its GPU and other engines.
    nvmap = "NvMapMemUsed";
}

impl Meminfo {
    /// Completes the amounts of a NUMA node, whose `meminfo` has neither `MemAvailable` nor `Cached`.
    ///
    /// The kernel's estimate for the host (`si_mem_available`) counts free memory, page cache and reclaimable slabs, less a part
    /// of the watermarks, which are left out here: what is left of the host's estimate without the node is too small by
    /// at most these, not too large.
    #[must_use]
    pub fn of_node(self) -> Self {
        let parts = [self.free, self.active_file, self.inactive_file, self.slab_reclaimable];
        Self { available: parts.into_iter().sum(), cached: self.file_pages, ..self }
    }

    /// Total minus available.
    pub fn used(&self) -> Option<Bytes> {
        Some(self.total?.saturating_sub(self.available?))
    }

    /// Swap total minus swap free.
    pub fn swap_used(&self) -> Option<Bytes> {
        Some(self.swap_total?.saturating_sub(self.swap_free?))
    }

    /// The size of this many huge pages of the default size.
    pub fn huge(&self, pages: Option<u64>) -> Option<Bytes> {
        self.huge_size?.get().checked_mul(pages?).map(Bytes::new)
    }
}

/// Parses the text of `/proc/meminfo`, or of the `meminfo` of a NUMA node, whose lines begin with `Node N `; a line that is
/// truncated or invalid is ignored.
pub fn meminfo(text: &[u8]) -> Meminfo {
    let mut found = Meminfo::default();
    for line in String::from_utf8_lossy(text).split_inclusive('\n') {
        // A line without newline may have lost digits, and would be read as a smaller number.
        let Some((name, value)) = line.strip_suffix('\n').and_then(|line| line.split_once(':')) else {
            continue;
        };
        let name =
            name.strip_prefix("Node ").and_then(|rest| rest.split_once(' ')).map_or(name, |(_, name)| name);
        found.set(name, value.trim_start());
    }
    found
}

fn kib(value: &str) -> Option<Bytes> {
    value.strip_suffix(" kB").and_then(|kib| kib.parse().ok()).and_then(Bytes::from_kib)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_truncated_line_is_ignored() {
        let found = meminfo(b"MemTotal:       24684092 kB\nMemFree:        2436 kB\nMemAvailable:   24310");
        assert_eq!(found.total, Bytes::from_kib(24_684_092));
        assert_eq!(found.available, None);
        assert_eq!(meminfo(b"MemTotal:       24684092 kB").total, None);
        assert_eq!(found.used(), None);
    }

    #[test]
    fn invalid_amounts_are_absent() {
        for value in ["-1 kB", "1 MB", "1", "kB", "", "18446744073709551615 kB", "1 2 kB", "\u{0663} kB"] {
            let text = format!("MemTotal: {value}\nHugePages_Total: {value}x\n");
            assert_eq!(meminfo(text.as_bytes()), Meminfo::default(), "{value}");
        }
    }

    #[test]
    fn huge_pages_that_overflow_are_absent() {
        let found = meminfo(b"HugePages_Total: 18446744073709551615\nHugepagesize: 2048 kB\n");
        assert_eq!(found.huge(found.huge_total), None);
    }

    proptest::proptest! {
        #[test]
        fn never_panics(text: Vec<u8>, cut in 0..200_usize) {
            meminfo(&text);
            let real = b"MemTotal:       24684092 kB\nHugePages_Free:        3\nHugepagesize:       2048 kB\n";
            let found = meminfo(&real[..cut.min(real.len())]);
            found.huge(found.huge_free);
        }
    }
}
