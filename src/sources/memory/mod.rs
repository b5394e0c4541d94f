//! Memory of the host, from `/proc/meminfo`, without NUMA nodes that are memory of GPUs, and the host's names.

pub mod metrics;

use std::sync::Arc as Shared;

use sysinfo::System;

use crate::host::fs::{self, KeptFile};
use crate::host::numa;
use crate::host::room::meminfo::{self, Arc, Meminfo};
use crate::host::roots::Roots;
use crate::model::facts::HeldMemory;
use crate::model::label::Label;
use crate::model::point::Batch;
use crate::model::room::{Room, SwapRoom};
use crate::model::source::{Source, SourceError};
use crate::model::time::Timestamp;
use crate::model::units::Flag;
use crate::sources::{Context, Registration};

pub static REGISTRATION: Registration = Registration {
    name: "memory",
    about: "Memory of the host, from /proc/meminfo, and its host name, kernel and distribution.",
    metrics: metrics::METRICS,
    ..Registration::built_by(|_, context| Box::new(Memory::new(context, names())))
};

struct Memory {
    roots: Shared<Roots>,
    /// Host name, kernel release and distribution, which do not change while the daemon runs; empty where unknown.
    names: [Label; 3],
    meminfo: KeptFile,
    arcstats: KeptFile,
    swappiness: KeptFile,
    buffer: Vec<u8>,
}

impl Memory {
    fn new(context: &Context, names: [Label; 3]) -> Self {
        let meminfo = KeptFile::new(context.roots.proc.join("meminfo"));
        let arcstats = KeptFile::new(context.roots.proc.join(meminfo::ARCSTATS));
        let swappiness = KeptFile::new(context.roots.proc.join(meminfo::SWAPPINESS));
        let roots = Shared::clone(&context.roots);
        Self { roots, names, meminfo, arcstats, swappiness, buffer: Vec::new() }
    }

    /// The cache of ZFS; absent on a host without ZFS.
    fn arc(&mut self) -> Result<Option<Arc>, SourceError> {
        match self.arcstats.read(&mut self.buffer) {
            Ok(text) => match meminfo::arc(text) {
                None => Err(self.arcstats.malformed("has no size and c_min")),
                arc => Ok(arc),
            },
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(fs::failed(self.arcstats.path(), &error)),
        }
    }
}

impl Source for Memory {
    fn sample(&mut self, _at: Timestamp, out: &mut Batch) -> Result<(), SourceError> {
        out.put(&metrics::HOST_INFO, &self.names, Flag(true));
        let bytes = self.meminfo.sample(&mut self.buffer)?;
        let mut found = meminfo::meminfo(bytes);
        let is_of_container = self.meminfo.file().is_some_and(meminfo::is_of_container);
        if is_of_container {
            found.leave_out_pools();
        }
        for node in numa::gpu_nodes(&self.roots) {
            let mut file = KeptFile::new(node.meminfo);
            let part = meminfo::meminfo(file.sample(&mut self.buffer)?).of_node();
            if part.total.is_none() || part.available.is_none() {
                return Err(file.malformed("has no memory of the node"));
            }
            out.put_some(&metrics::OF_GPUS, &[node.number.into()], part.total);
            found.leave_out(&part);
        }
        out.facts.host_memory_is_pool |= found.nvmap.is_some();
        let arc = if is_of_container { Ok(None) } else { self.arc() };
        put(&found, arc.as_ref().ok().copied(), out);
        let of_kernel = [found.slab_unreclaimable, found.kernel_stack, found.page_tables];
        out.facts.held_memory = HeldMemory {
            kernel: of_kernel.into_iter().sum(),
            huge_pages: Some(found.pools()),
            arc: arc.as_ref().ok().copied().flatten().map(|arc| arc.size.saturating_sub(arc.reclaimable())),
        };
        if let Some(swap) = found.swap() {
            let swappiness = self.swappiness.read(&mut self.buffer).unwrap_or_default();
            out.facts.group_swap = meminfo::swap_of_groups(swap, swappiness);
        }
        arc?;
        if found.total.is_none() {
            return Err(self.meminfo.malformed("has no complete MemTotal line"));
        }
        Ok(())
    }
}

fn names() -> [Label; 3] {
    let names = [System::host_name(), System::kernel_version(), System::long_os_version()];
    names.map(|name| Label::from(name.unwrap_or_default()))
}

/// Without `arc`, what of it is given back is not known, and so is what is available.
fn put(found: &Meminfo, arc: Option<Option<Arc>>, out: &mut Batch) {
    let room = arc.and_then(|arc| found.room(arc));
    let used = room.map(Room::used);
    out.put_some(&metrics::TOTAL, &[], found.total.map(|total| total.saturating_sub(found.pools())));
    out.put_some(&metrics::AVAILABLE, &[], room.map(|room| room.memory));
    out.put_some(&metrics::USED, &[], used);
    let utilization = room.and_then(|room| room.used().share_of(room.limit));
    out.put_some(&metrics::UTILIZATION, &[], utilization);
    if let Some(arc) = arc.flatten() {
        out.put(&metrics::ARC, &[], arc.size);
        out.put(&metrics::ARC_RECLAIMABLE, &[], arc.reclaimable());
    }
    out.put_some(&metrics::POOLS, &[], found.hugetlb);
    out.put_some(&metrics::FREE, &[], found.free);
    out.put_some(&metrics::BUFFERS, &[], found.buffers);
    out.put_some(&metrics::CACHED, &[], found.cached);
    out.put_some(&metrics::SHMEM, &[], found.shmem);
    out.put_some(&metrics::SLAB, &["reclaimable".into()], found.slab_reclaimable);
    out.put_some(&metrics::SLAB, &["unreclaimable".into()], found.slab_unreclaimable);
    out.put_some(&metrics::ANON, &[], found.anon);
    out.put_some(&metrics::ANON_HUGE, &[], found.anon_huge);
    out.put_some(&metrics::MAPPED, &[], found.mapped);
    out.put_some(&metrics::UNEVICTABLE, &[], found.unevictable);
    out.put_some(&metrics::KERNEL_STACK, &[], found.kernel_stack);
    out.put_some(&metrics::PAGE_TABLES, &[], found.page_tables);
    out.put_some(&metrics::DIRTY, &[], found.dirty);
    out.put_some(&metrics::WRITEBACK, &[], found.writeback);
    out.put_some(&metrics::COMMIT_LIMIT, &[], found.commit_limit);
    out.put_some(&metrics::COMMITTED, &[], found.committed);
    out.put_some(&metrics::NVMAP, &[], found.nvmap);
    if let Some(SwapRoom { left, limit }) = found.swap() {
        out.put(&metrics::SWAP_TOTAL, &[], limit);
        out.put(&metrics::SWAP_FREE, &[], left);
        out.put(&metrics::SWAP_USED, &[], limit.saturating_sub(left));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sources::testing::{check, fixture, root};
    use expect_test::expect;

    static HERE: Registration = Registration {
        build: |_, context| {
            Box::new(Memory::new(context, ["node-17", "6.8.0-45-generic", ""].map(Label::from)))
        },
        ..REGISTRATION
    };

    #[test]
    fn linux_6_18() {
        check(
            &HERE,
            fixture("host/6.18"),
            expect![[r#"
                memwarden_host_info{hostname="node-17",kernel="6.8.0-45-generic"} 1
                memwarden_host_memory_total_bytes 25276510208
                memwarden_host_memory_available_bytes 24811655168
                memwarden_host_memory_used_bytes 464855040
                memwarden_host_memory_utilization_ratio 0.01839079193190497
                memwarden_host_memory_huge_page_pools_bytes 0
                memwarden_host_memory_free_bytes 24062447616
                memwarden_host_memory_buffers_bytes 3575808
                memwarden_host_memory_cached_bytes 861638656
                memwarden_host_memory_shared_bytes 9068544
                memwarden_host_memory_slab_bytes{kind="reclaimable"} 215175168
                memwarden_host_memory_slab_bytes{kind="unreclaimable"} 29384704
                memwarden_host_memory_anon_bytes 33927168
                memwarden_host_memory_anon_huge_bytes 0
                memwarden_host_memory_mapped_bytes 16158720
                memwarden_host_memory_unevictable_bytes 21176320
                memwarden_host_memory_kernel_stack_bytes 1540096
                memwarden_host_memory_page_tables_bytes 1859584
                memwarden_host_memory_dirty_bytes 147456
                memwarden_host_memory_writeback_bytes 28672
                memwarden_host_memory_commit_limit_bytes 12638253056
                memwarden_host_memory_committed_bytes 83472384
                memwarden_host_swap_total_bytes 0
                memwarden_host_swap_free_bytes 0
                memwarden_host_swap_used_bytes 0
            "#]],
        );
    }

    #[test]
    fn linux_5_4_with_swap_and_huge_pages() {
        check(
            &HERE,
            fixture("host/5.4"),
            expect![[r#"
                memwarden_host_info{hostname="node-17",kernel="6.8.0-45-generic"} 1
                memwarden_host_memory_total_bytes 540855291904
                memwarden_host_memory_available_bytes 410864197632
                memwarden_host_memory_used_bytes 129991094272
                memwarden_host_memory_utilization_ratio 0.2403435747376823
                memwarden_host_memory_huge_page_pools_bytes 0
                memwarden_host_memory_free_bytes 104857600000
                memwarden_host_memory_buffers_bytes 831840256
                memwarden_host_memory_cached_bytes 305935802368
                memwarden_host_memory_shared_bytes 68719476736
                memwarden_host_memory_slab_bytes{kind="reclaimable"} 9228641280
                memwarden_host_memory_slab_bytes{kind="unreclaimable"} 3539751936
                memwarden_host_memory_anon_bytes 93424196608
                memwarden_host_memory_anon_huge_bytes 73014444032
                memwarden_host_memory_mapped_bytes 4677519360
                memwarden_host_memory_unevictable_bytes 134217728
                memwarden_host_memory_kernel_stack_bytes 67002368
                memwarden_host_memory_page_tables_bytes 467751936
                memwarden_host_memory_dirty_bytes 12641280
                memwarden_host_memory_writeback_bytes 694272
                memwarden_host_memory_commit_limit_bytes 278528000000
                memwarden_host_memory_committed_bytes 317440000000
                memwarden_host_swap_total_bytes 8589930496
                memwarden_host_swap_free_bytes 6442446848
                memwarden_host_swap_used_bytes 2147483648
            "#]],
        );
    }

    #[test]
    fn without_an_estimate_nothing_is_used() {
        let root = root(&[("proc/meminfo", "MemTotal:         4096 kB\nMemFree:          1024 kB\n")]);
        check(
            &HERE,
            &root,
            expect![[r#"
                memwarden_host_info{hostname="node-17",kernel="6.8.0-45-generic"} 1
                memwarden_host_memory_total_bytes 4194304
                memwarden_host_memory_free_bytes 1048576
            "#]],
        );
    }

    #[test]
    fn the_memory_of_a_gb10_is_that_of_the_host() {
        check(
            &HERE,
            fixture("host/gb10"),
            expect![[r#"
            memwarden_host_info{hostname="node-17",kernel="6.8.0-45-generic"} 1
            memwarden_host_memory_total_bytes 128494997504
            memwarden_host_memory_available_bytes 97125560320
            memwarden_host_memory_used_bytes 31369437184
            memwarden_host_memory_utilization_ratio 0.24412963767732265
            memwarden_host_memory_free_bytes 13676498944
            memwarden_host_memory_buffers_bytes 5382987776
            memwarden_host_memory_cached_bytes 70986981376
            memwarden_host_swap_total_bytes 17179865088
            memwarden_host_swap_free_bytes 13410574336
            memwarden_host_swap_used_bytes 3769290752
        "#]],
        );
    }

    #[test]
    fn nvmap_shows_what_a_jetson_gave_to_its_gpu() {
        check(
            &HERE,
            fixture("host/jetson-tx2"),
            expect![[r#"
            memwarden_host_info{hostname="node-17",kernel="6.8.0-45-generic"} 1
            memwarden_host_memory_total_bytes 8231718912
            memwarden_host_memory_available_bytes 5777702912
            memwarden_host_memory_used_bytes 2454016000
            memwarden_host_memory_utilization_ratio 0.29811707934081605
            memwarden_host_memory_free_bytes 4967477248
            memwarden_host_memory_buffers_bytes 39907328
            memwarden_host_memory_cached_bytes 900149248
            memwarden_host_memory_shared_bytes 111288320
            memwarden_host_memory_slab_bytes{kind="reclaimable"} 70320128
            memwarden_host_memory_slab_bytes{kind="unreclaimable"} 89300992
            memwarden_host_memory_anon_bytes 999735296
            memwarden_host_memory_mapped_bytes 435822592
            memwarden_host_memory_nvmap_bytes 824389632
            memwarden_host_swap_total_bytes 4115841024
            memwarden_host_swap_free_bytes 4115841024
            memwarden_host_swap_used_bytes 0
        "#]],
        );
        for (host, is_pool) in [("gb10", false), ("jetson-tx2", true)] {
            let mut batch = Batch::new();
            let root = fixture(&format!("host/{host}"));
            crate::sources::testing::build(&HERE, root).sample(Timestamp::from_secs(1), &mut batch).unwrap();
            assert_eq!(batch.facts.host_memory_is_pool, is_pool, "{host}");
        }
    }

    #[test]
    fn the_memory_of_the_gpu_of_a_gh200_is_left_out() {
        check(
            &HERE,
            fixture("host/gh200"),
            expect![[r#"
            memwarden_host_info{hostname="node-17",kernel="6.8.0-45-generic"} 1
            memwarden_host_memory_of_gpus_bytes{node="1"} 102005473280
            memwarden_host_memory_total_bytes 513841037312
            memwarden_host_memory_available_bytes 508299051008
            memwarden_host_memory_used_bytes 5541986304
            memwarden_host_memory_utilization_ratio 0.010785410081279577
            memwarden_host_memory_free_bytes 507963768832
            memwarden_host_memory_buffers_bytes 33554432
            memwarden_host_memory_cached_bytes 1073217536
            memwarden_host_memory_shared_bytes 16777216
            memwarden_host_memory_slab_bytes{kind="reclaimable"} 67108864
            memwarden_host_memory_anon_bytes 536739840
            memwarden_host_swap_total_bytes 0
            memwarden_host_swap_free_bytes 0
            memwarden_host_swap_used_bytes 0
        "#]],
        );
    }

    #[test]
    fn where_the_memory_of_a_gpu_is_unknown_that_of_the_host_is() {
        let root = root(&[
            ("proc/meminfo", "MemTotal:         4096 kB\nMemFree:          1024 kB\n"),
            ("proc/driver/nvidia/gpus/0009:01:00.0/numa_status", ""),
            ("sys/devices/system/node/has_cpu", "0\n"),
            ("sys/devices/system/node/has_memory", "0,4\n"),
            ("sys/devices/system/node/node4/meminfo", "Node 4 MemTotal:    2048 kB\n"),
        ]);
        check(
            &HERE,
            &root,
            expect![[r#"
            memwarden_host_info{hostname="node-17",kernel="6.8.0-45-generic"} 1
            failed (parse): ROOT/sys/devices/system/node/node4/meminfo has no memory of the node
        "#]],
        );
    }

    #[test]
    fn a_missing_or_empty_file_is_an_error() {
        check(
            &HERE,
            root(&[]),
            expect![[r#"
                memwarden_host_info{hostname="node-17",kernel="6.8.0-45-generic"} 1
                failed (not_found): cannot read ROOT/proc/meminfo: No such file or directory (os error 2)
            "#]],
        );
        check(
            &HERE,
            root(&[("proc/meminfo", "")]),
            expect![[r#"
                memwarden_host_info{hostname="node-17",kernel="6.8.0-45-generic"} 1
                failed (parse): ROOT/proc/meminfo has no complete MemTotal line
            "#]],
        );
    }
}
