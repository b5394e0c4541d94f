//! Pools of huge pages (Documentation/admin-guide/mm/hugetlbpage.rst), by size and NUMA node.
//!
//! A pool that has no free page is no shortage: pools are set up for programs that use all of them.

pub mod metrics;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::host::fs::KeptFile;
use crate::host::huge_pages::{self, PageSize};
use crate::host::numa;
use crate::host::process;
use crate::host::roots::Roots;
use crate::model::desc::Gauge;
use crate::model::label::Label;
use crate::model::point::Batch;
use crate::model::source::{Source, SourceError};
use crate::model::time::Timestamp;
use crate::model::units::Bytes;
use crate::sources::Registration;

/// The source of the pools of huge pages.
pub static REGISTRATION: Registration = Registration {
    name: "huge_pages",
    about: "Pools of huge pages, by size and NUMA node, from /sys/kernel/mm/hugepages.",
    metrics: metrics::METRICS,
    ..Registration::built_by(|_, context| {
        let roots = Arc::clone(&context.roots);
        Box::new(HugePages { roots, pools: Vec::new(), samples: 0, buffer: Vec::new() })
    })
};

/// Samples between two lists of the sizes and nodes, which rarely change.
const LIST_EVERY: u64 = 60;

type Metric = &'static Gauge<Bytes>;

/// The files of the pool of one size.
struct Pool {
    size: PageSize,
    total: KeptFile,
    rest: Vec<(Metric, KeptFile)>,
    /// With the label of the node.
    of_nodes: Vec<(Label, Metric, KeptFile)>,
}

struct HugePages {
    roots: Arc<Roots>,
    pools: Vec<Pool>,
    samples: u64,
    buffer: Vec<u8>,
}

impl Pool {
    fn new(size: PageSize, all: &Path, nodes: &[(u32, PathBuf)]) -> Self {
        let file = |folder: &Path, name| KeptFile::new(folder.join(&size.folder).join(name));
        let has_pool = |(_, node): &&(u32, PathBuf)| node.join("hugepages").join(&size.folder).is_dir();
        let of_node = |(number, folder): &(u32, PathBuf)| {
            let folder = folder.join("hugepages");
            [(&metrics::OF_NODE, "nr_hugepages"), (&metrics::FREE_OF_NODE, "free_hugepages")]
                .map(|(metric, name)| (Label::from(*number), metric, file(&folder, name)))
        };
        Self {
            total: file(all, "nr_hugepages"),
            rest: vec![
                (&metrics::FREE, file(all, "free_hugepages")),
                (&metrics::RESERVED, file(all, "resv_hugepages")),
                (&metrics::SURPLUS, file(all, "surplus_hugepages")),
            ],
            of_nodes: nodes.iter().filter(has_pool).flat_map(of_node).collect(),
            size,
        }
    }

    fn sample(&mut self, buffer: &mut Vec<u8>, out: &mut Batch) -> Result<(), SourceError> {
        let page = self.size.bytes;
        let mut read = |file: &mut KeptFile| -> Result<Bytes, SourceError> {
            let pages = process::number(file.sample(buffer)?.trim_ascii_end());
            let bytes = pages.and_then(|pages| pages.checked_mul(page.get()));
            bytes.map(Bytes::new).ok_or_else(|| file.malformed("is no number of pages"))
        };
        let total = read(&mut self.total)?;
        if total == Bytes::ZERO {
            return Ok(());
        }
        let size = [self.size.name.clone()];
        out.put(&metrics::TOTAL, &size, total);
        for (metric, file) in &mut self.rest {
            out.put(*metric, &size, read(file)?);
        }
        for (node, metric, file) in &mut self.of_nodes {
            out.put(*metric, &[node.clone(), self.size.name.clone()], read(file)?);
        }
        Ok(())
    }
}

impl Source for HugePages {
    fn sample(&mut self, _at: Timestamp, out: &mut Batch) -> Result<(), SourceError> {
        if self.samples.is_multiple_of(LIST_EVERY) {
            let (all, nodes) = (huge_pages::folder(&self.roots), numa::host_nodes(&self.roots));
            let sizes = huge_pages::sizes(&self.roots).into_iter();
            self.pools = sizes.map(|size| Pool::new(size, &all, &nodes)).collect();
        }
        self.samples += 1;
        if self.pools.is_empty() {
            return Err(SourceError::unavailable("the kernel has no pools of huge pages"));
        }
        let mut outcome = Ok(());
        for pool in &mut self.pools {
            outcome = outcome.and(pool.sample(&mut self.buffer, out));
        }
        outcome
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sources::testing::{check, root};
    use expect_test::expect;

    #[test]
    fn pools_of_all_sizes_and_nodes_are_measured() {
        let root = root(&[
            ("sys/devices/system/node/has_memory", "0-1\n"),
            ("sys/kernel/mm/hugepages/hugepages-1048576kB/nr_hugepages", "0\n"),
        ]);
        let folder = "hugepages/hugepages-2048kB";
        for (name, [all, first, second]) in [
            ("nr_hugepages", [100, 60, 40]),
            ("free_hugepages", [10, 10, 0]),
            ("surplus_hugepages", [2, 2, 0]),
            ("resv_hugepages", [3, 0, 0]),
        ] {
            root.write(format!("sys/kernel/mm/{folder}/{name}"), format!("{all}\n"));
            for (node, pages) in [first, second].into_iter().enumerate() {
                root.write(
                    format!("sys/devices/system/node/node{node}/{folder}/{name}"),
                    format!("{pages}\n"),
                );
            }
        }
        check(
            &REGISTRATION,
            &root,
            expect![[r#"
                memwarden_huge_pages_total_bytes{size="2MB"} 209715200
                memwarden_huge_pages_free_bytes{size="2MB"} 20971520
                memwarden_huge_pages_reserved_bytes{size="2MB"} 6291456
                memwarden_huge_pages_surplus_bytes{size="2MB"} 4194304
                memwarden_numa_node_huge_pages_total_bytes{node="0",size="2MB"} 125829120
                memwarden_numa_node_huge_pages_total_bytes{node="1",size="2MB"} 83886080
                memwarden_numa_node_huge_pages_free_bytes{node="0",size="2MB"} 20971520
                memwarden_numa_node_huge_pages_free_bytes{node="1",size="2MB"} 0
            "#]],
        );
    }

    #[test]
    fn without_pools_it_is_unavailable_and_an_invalid_file_an_error() {
        check(
            &REGISTRATION,
            root(&[]),
            expect![[r#"
                unavailable: the kernel has no pools of huge pages
            "#]],
        );
        check(
            &REGISTRATION,
            root(&[("sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages", "x\n")]),
            expect![[r#"
                failed (parse): ROOT/sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages is no number of pages
            "#]],
        );
    }
}
