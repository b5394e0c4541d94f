//! Parses `/proc/vmstat`, one name and one number per line, and maps the lines to metrics.

use super::metrics;
use crate::model::desc::{Counter, Desc};
use crate::model::units::{Bytes, Count};

/// The unit of a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scale {
    /// A count, exposed unchanged.
    Things,
    /// KiB, exposed in bytes.
    Kib,
    /// Pages of the base size, exposed in bytes.
    Pages,
}

/// A known line.
#[derive(Debug)]
pub struct Entry {
    pub line: &'static str,
    /// The metric's declaration.
    pub desc: &'static Desc,
    /// The value of the metric's label, if it has one.
    pub label: Option<&'static str>,
    pub scale: Scale,
}

const fn count(line: &'static str, metric: &'static Counter<Count>, label: Option<&'static str>) -> Entry {
    Entry { line, desc: &metric.desc, label, scale: Scale::Things }
}

const fn bytes(line: &'static str, metric: &'static Counter<Bytes>, scale: Scale) -> Entry {
    Entry { line, desc: &metric.desc, label: None, scale }
}

/// Every known line, sorted by name for the binary search.
pub static TABLE: &[Entry] = &[
    count("allocstall_device", &metrics::ALLOCATION_STALLS, Some("device")),
    count("allocstall_dma", &metrics::ALLOCATION_STALLS, Some("dma")),
    count("allocstall_dma32", &metrics::ALLOCATION_STALLS, Some("dma32")),
    count("allocstall_high", &metrics::ALLOCATION_STALLS, Some("high")),
    count("allocstall_movable", &metrics::ALLOCATION_STALLS, Some("movable")),
    count("allocstall_normal", &metrics::ALLOCATION_STALLS, Some("normal")),
    count("compact_fail", &metrics::COMPACTIONS, Some("failure")),
    count("compact_stall", &metrics::COMPACTION_STALLS, None),
    count("compact_success", &metrics::COMPACTIONS, Some("success")),
    count("numa_hint_faults", &metrics::NUMA_HINT_FAULTS, None),
    count("numa_pages_migrated", &metrics::NUMA_MIGRATED, None),
    count("oom_kill", &metrics::OOM_KILLS, None),
    count("pgfault", &metrics::FAULTS, None),
    count("pgmajfault", &metrics::MAJOR_FAULTS, None),
    bytes("pgpgin", &metrics::BLOCK_READ, Scale::Kib),
    bytes("pgpgout", &metrics::BLOCK_WRITTEN, Scale::Kib),
    count("pgscan_direct", &metrics::RECLAIM_SCANNED, Some("direct")),
    count("pgscan_direct_throttle", &metrics::RECLAIM_THROTTLED, None),
    count("pgscan_khugepaged", &metrics::RECLAIM_SCANNED, Some("khugepaged")),
    count("pgscan_kswapd", &metrics::RECLAIM_SCANNED, Some("kswapd")),
    count("pgscan_proactive", &metrics::RECLAIM_SCANNED, Some("proactive")),
    count("pgsteal_direct", &metrics::RECLAIM_STOLEN, Some("direct")),
    count("pgsteal_khugepaged", &metrics::RECLAIM_STOLEN, Some("khugepaged")),
    count("pgsteal_kswapd", &metrics::RECLAIM_STOLEN, Some("kswapd")),
    count("pgsteal_proactive", &metrics::RECLAIM_STOLEN, Some("proactive")),
    bytes("pswpin", &metrics::SWAPPED_IN, Scale::Pages),
    bytes("pswpout", &metrics::SWAPPED_OUT, Scale::Pages),
    count("thp_collapse_alloc", &metrics::THP_COLLAPSES, Some("allocated")),
    count("thp_collapse_alloc_failed", &metrics::THP_COLLAPSES, Some("failed")),
    count("thp_fault_alloc", &metrics::THP_FAULTS, Some("allocated")),
    count("thp_fault_fallback", &metrics::THP_FAULTS, Some("fallback")),
    // Before 5.9 only file pages were counted, so the single counter is that of file pages.
    count("workingset_refault", &metrics::REFAULTS, Some("file")),
    count("workingset_refault_anon", &metrics::REFAULTS, Some("anon")),
    count("workingset_refault_file", &metrics::REFAULTS, Some("file")),
];

/// The known lines, in the file's order; a line that is truncated or has no number is ignored.
pub fn vmstat(text: &str) -> impl Iterator<Item = (&'static Entry, u64)> {
    text.split_inclusive('\n').filter_map(|line| {
        let (name, number) = line.strip_suffix('\n')?.split_once(' ')?;
        let place = TABLE.binary_search_by(|entry| entry.line.cmp(name)).ok()?;
        Some((&TABLE[place], number.parse().ok()?))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(text: &str, expected: &[(&str, u64)]) {
        let found: Vec<_> = vmstat(text).map(|(entry, number)| (entry.line, number)).collect();
        assert_eq!(found, expected, "{text:?}");
    }

    #[test]
    fn only_complete_known_lines_count() {
        check("nr_free_pages 5\noom_kill 3\npgfault 92715", &[("oom_kill", 3)]);
        check("oom_kill -1\noom_kill \noom_kill\noom_kill 1 2\noom_kill 99999999999999999999\n", &[]);
        check("\0\noom_kill\t3\n oom_kill 3\nOOM_KILL 3\noom_kill_x 3\n", &[]);
        check("pgmajfault 18446744073709551615\n", &[("pgmajfault", u64::MAX)]);
    }

    proptest::proptest! {
        #[test]
        fn never_panics(text: String, number in "\\PC{0,30}") {
            vmstat(&text).count();
            vmstat(&format!("pswpin {number}\n{text}")).count();
        }
    }

    #[test]
    fn it_is_sorted_and_fits_the_declarations() {
        assert!(TABLE.is_sorted_by(|a, b| a.line < b.line));
        for entry in TABLE {
            assert_eq!(entry.desc.labels.len(), usize::from(entry.label.is_some()), "{}", entry.line);
        }
        for desc in metrics::METRICS {
            assert!(TABLE.iter().any(|entry| std::ptr::eq(entry.desc, *desc)), "{} has no line", desc.name);
        }
    }
}
