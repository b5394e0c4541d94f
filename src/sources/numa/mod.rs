//! Memory of each NUMA node, from `/sys/devices/system/node`.
//!
//! A node that is full is no shortage by itself, because the kernel takes memory of another one. It is one for processes that may use
//! only some nodes.

pub mod metrics;

use std::sync::Arc;

use crate::host::fs::KeptFile;
use crate::host::numa;
use crate::host::room::meminfo::meminfo;
use crate::host::roots::Roots;
use crate::model::label::Label;
use crate::model::point::Batch;
use crate::model::source::{Source, SourceError};
use crate::model::time::Timestamp;
use crate::sources::Registration;

/// The source of the memory of NUMA nodes.
pub static REGISTRATION: Registration = Registration {
    name: "numa",
    about: "Memory of each NUMA node, from /sys/devices/system/node.",
    metrics: metrics::METRICS,
    ..Registration::built_by(|_, context| {
        let roots = Arc::clone(&context.roots);
        Box::new(Numa { roots, nodes: Vec::new(), samples: 0, buffer: Vec::new() })
    })
};

/// Samples between two lists of the nodes, which change where memory is plugged in.
const LIST_EVERY: u64 = 60;

struct Numa {
    roots: Arc<Roots>,
    nodes: Vec<(u32, KeptFile)>,
    samples: u64,
    buffer: Vec<u8>,
}

impl Source for Numa {
    fn sample(&mut self, _at: Timestamp, out: &mut Batch) -> Result<(), SourceError> {
        if self.nodes.is_empty() || self.samples.is_multiple_of(LIST_EVERY) {
            let nodes = numa::host_nodes(&self.roots).into_iter();
            self.nodes = nodes.map(|(number, node)| (number, KeptFile::new(node.join("meminfo")))).collect();
        }
        self.samples += 1;
        if self.nodes.is_empty() {
            return Err(SourceError::unavailable("the kernel lists no NUMA node with memory"));
        }
        out.facts.memory_nodes = self.nodes.iter().map(|(number, _)| *number).collect();
        let mut error = None;
        for (number, file) in &mut self.nodes {
            let found = match file.sample(&mut self.buffer) {
                Ok(text) => meminfo(text).of_node(),
                Err(why) => {
                    error.get_or_insert(why);
                    continue;
                }
            };
            let node = [Label::from(*number)];
            out.put_some(&metrics::TOTAL, &node, found.total);
            out.put_some(&metrics::AVAILABLE, &node, found.available);
            if found.total.is_none() || found.available.is_none() {
                error.get_or_insert_with(|| file.malformed("has no memory of the node"));
            }
        }
        error.map_or(Ok(()), Err)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sources::testing::{check, root};
    use expect_test::expect;

    const LISTS: [(&str, &str); 2] =
        [("sys/devices/system/node/has_cpu", "0-1\n"), ("sys/devices/system/node/has_memory", "0-2\n")];
    const NODE: &str = "Node 0 MemTotal: 4096 kB\nNode 0 MemFree: 1024 kB\nNode 0 Active(file): 16 kB\n\
                        Node 0 Inactive(file): 32 kB\nNode 0 SReclaimable: 64 kB\n";

    #[test]
    fn each_node_has_its_memory() {
        let root = root(&LISTS);
        for node in 0..3 {
            root.write(format!("sys/devices/system/node/node{node}/meminfo"), NODE);
        }
        check(
            &REGISTRATION,
            &root,
            expect![[r#"
                memwarden_numa_node_memory_total_bytes{node="0"} 4194304
                memwarden_numa_node_memory_total_bytes{node="1"} 4194304
                memwarden_numa_node_memory_total_bytes{node="2"} 4194304
                memwarden_numa_node_memory_available_bytes{node="0"} 1163264
                memwarden_numa_node_memory_available_bytes{node="1"} 1163264
                memwarden_numa_node_memory_available_bytes{node="2"} 1163264
            "#]],
        );
    }

    #[test]
    fn a_node_that_cannot_be_read_hides_no_other() {
        let root = root(&LISTS);
        root.write("sys/devices/system/node/node0/meminfo", "Node 0 MemTotal: 4096 kB\n");
        root.write("sys/devices/system/node/node2/meminfo", NODE);
        check(
            &REGISTRATION,
            &root,
            expect![[r#"
                memwarden_numa_node_memory_total_bytes{node="0"} 4194304
                memwarden_numa_node_memory_total_bytes{node="2"} 4194304
                memwarden_numa_node_memory_available_bytes{node="2"} 1163264
                failed (parse): ROOT/sys/devices/system/node/node0/meminfo has no memory of the node
            "#]],
        );
    }

    #[test]
    fn without_nodes_it_is_unavailable() {
        check(
            &REGISTRATION,
            root(&[]),
            expect![[r#"
                unavailable: the kernel lists no NUMA node with memory
            "#]],
        );
    }
}
