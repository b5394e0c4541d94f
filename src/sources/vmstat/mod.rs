//! Reclaim, compaction, swapping and other memory events of the kernel, from `/proc/vmstat`.

pub mod metrics;
pub mod table;

use crate::host::fs::KeptFile;
use crate::model::label::Label;
use crate::model::point::Batch;
use crate::model::source::{Source, SourceError};
use crate::model::time::Timestamp;
use crate::model::units::{Bytes, Count, Unit};
use crate::sources::{Context, Registration};
use table::{Scale, vmstat};

/// The source of the kernel's memory event counters.
pub static REGISTRATION: Registration = Registration {
    name: "vmstat",
    about: "OOM kills, page faults, allocation stalls, reclaim, compaction and swapping of the host, from /proc/vmstat.",
    metrics: metrics::METRICS,
    ..Registration::built_by(|_, context| Box::new(Vmstat::new(context, rustix::param::page_size())))
};

struct Vmstat {
    vmstat: KeptFile,
    page_size: u64,
    buffer: Vec<u8>,
}

impl Vmstat {
    fn new(context: &Context, page_size: usize) -> Self {
        Self {
            vmstat: KeptFile::new(context.roots.proc.join("vmstat")),
            page_size: page_size as u64,
            buffer: Vec::new(),
        }
    }
}

impl Source for Vmstat {
    fn sample(&mut self, _at: Timestamp, out: &mut Batch) -> Result<(), SourceError> {
        let bytes = self.vmstat.sample_if_there(&mut self.buffer)?;
        let mut found = 0_usize;
        for (entry, number) in vmstat(&String::from_utf8_lossy(bytes)) {
            let Some(value) = scaled(number, entry.scale, self.page_size) else { continue };
            found += 1;
            match entry.label {
                Some(label) => out.add(entry.desc, &[Label::from(label)], value),
                None => out.add(entry.desc, &[], value),
            }
        }
        if found == 0 {
            return Err(self.vmstat.malformed("has no known line"));
        }
        Ok(())
    }
}

/// The number in the metric's unit; nothing on overflow.
fn scaled(number: u64, scale: Scale, page_size: u64) -> Option<f64> {
    let factor = match scale {
        Scale::Things => return Some(Count(number).value()),
        Scale::Kib => 1024,
        Scale::Pages => page_size,
    };
    number.checked_mul(factor).map(|bytes| Bytes::new(bytes).value())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sources::testing::{check, fixture, root};
    use expect_test::expect;

    /// As on arm64 kernels with large pages, so that a hard-coded page size would fail.
    static LARGE_PAGES: Registration =
        Registration { build: |_, context| Box::new(Vmstat::new(context, 65_536)), ..REGISTRATION };

    #[test]
    fn linux_6_18() {
        check(
            &LARGE_PAGES,
            fixture("host/6.18"),
            expect![[r#"
            memwarden_host_refaulted_pages_total{kind="anon"} 101
            memwarden_host_refaulted_pages_total{kind="file"} 1385852
            memwarden_host_block_read_bytes_total 6968431616
            memwarden_host_block_written_bytes_total 7864520704
            memwarden_host_swapped_in_bytes_total 6684672
            memwarden_host_swapped_out_bytes_total 6750208
            memwarden_host_allocation_stalls_total{zone="dma"} 104
            memwarden_host_allocation_stalls_total{zone="dma32"} 105
            memwarden_host_allocation_stalls_total{zone="normal"} 106
            memwarden_host_allocation_stalls_total{zone="movable"} 107
            memwarden_host_allocation_stalls_total{zone="device"} 108
            memwarden_host_page_faults_total 14086751
            memwarden_host_major_faults_total 4275
            memwarden_host_reclaim_stolen_pages_total{by="kswapd"} 109
            memwarden_host_reclaim_stolen_pages_total{by="direct"} 110
            memwarden_host_reclaim_stolen_pages_total{by="khugepaged"} 111
            memwarden_host_reclaim_stolen_pages_total{by="proactive"} 112
            memwarden_host_reclaim_scanned_pages_total{by="kswapd"} 113
            memwarden_host_reclaim_scanned_pages_total{by="direct"} 114
            memwarden_host_reclaim_scanned_pages_total{by="khugepaged"} 115
            memwarden_host_reclaim_scanned_pages_total{by="proactive"} 116
            memwarden_host_reclaim_throttled_total 117
            memwarden_host_oom_kills_total 118
            memwarden_host_numa_hint_faults_total 119
            memwarden_host_numa_migrated_pages_total 120
            memwarden_host_compaction_stalls_total 121
            memwarden_host_compactions_total{result="failure"} 122
            memwarden_host_compactions_total{result="success"} 123
            memwarden_host_thp_faults_total{result="allocated"} 124
            memwarden_host_thp_faults_total{result="fallback"} 125
            memwarden_host_thp_collapse_allocations_total{result="allocated"} 126
            memwarden_host_thp_collapse_allocations_total{result="failed"} 127
        "#]],
        );
    }

    #[test]
    fn linux_5_4_counts_refaults_of_files_only() {
        check(
            &LARGE_PAGES,
            fixture("host/5.4"),
            expect![[r#"
            memwarden_host_refaulted_pages_total{kind="file"} 1385852
            memwarden_host_block_read_bytes_total 6968431616
            memwarden_host_block_written_bytes_total 7864520704
            memwarden_host_swapped_in_bytes_total 6684672
            memwarden_host_swapped_out_bytes_total 6750208
            memwarden_host_allocation_stalls_total{zone="dma"} 104
            memwarden_host_allocation_stalls_total{zone="dma32"} 105
            memwarden_host_allocation_stalls_total{zone="normal"} 106
            memwarden_host_allocation_stalls_total{zone="movable"} 107
            memwarden_host_page_faults_total 14086751
            memwarden_host_major_faults_total 4275
            memwarden_host_reclaim_stolen_pages_total{by="kswapd"} 109
            memwarden_host_reclaim_stolen_pages_total{by="direct"} 110
            memwarden_host_reclaim_scanned_pages_total{by="kswapd"} 113
            memwarden_host_reclaim_scanned_pages_total{by="direct"} 114
            memwarden_host_reclaim_throttled_total 117
            memwarden_host_oom_kills_total 118
            memwarden_host_compaction_stalls_total 121
            memwarden_host_compactions_total{result="failure"} 122
            memwarden_host_compactions_total{result="success"} 123
            memwarden_host_thp_faults_total{result="allocated"} 124
            memwarden_host_thp_faults_total{result="fallback"} 125
            memwarden_host_thp_collapse_allocations_total{result="allocated"} 126
            memwarden_host_thp_collapse_allocations_total{result="failed"} 127
        "#]],
        );
    }

    #[test]
    fn a_number_that_does_not_fit_is_absent() {
        let root = root(&[("proc/vmstat", "pswpin 18446744073709551615\npswpout 2\n")]);
        check(
            &LARGE_PAGES,
            &root,
            expect![[r#"
            memwarden_host_swapped_out_bytes_total 131072
        "#]],
        );
    }

    #[test]
    fn a_missing_file_is_unavailable_and_an_invalid_one_an_error() {
        check(
            &LARGE_PAGES,
            root(&[]),
            expect![[r#"
            unavailable: cannot read ROOT/proc/vmstat: No such file or directory (os error 2)
        "#]],
        );
        check(
            &LARGE_PAGES,
            root(&[("proc/vmstat", "\u{1}\n\n")]),
            expect![[r#"
            failed (parse): ROOT/proc/vmstat has no known line
        "#]],
        );
    }
}
