//! All declared metrics, from which HELP, TYPE, OTLP and the metrics reference are generated.
//!
//! Modules that read frames refer to a metric by its declaration here, under the name of its source or analyzer:
//! `catalog::memory::TOTAL.desc.name`. They access nothing else of sources and analyzers.

pub use crate::analyzers::exhaustion::metrics as exhaustion;
pub use crate::analyzers::fragmentation::metrics as fragmentation;
pub use crate::analyzers::leak::metrics as leak;
use crate::model::desc::Desc;
pub use crate::protection::metrics as protection;
pub use crate::sources::buddyinfo::metrics as buddyinfo;
pub use crate::sources::cgroup::metrics as cgroup;
pub use crate::sources::gpu::metrics as gpu;
pub use crate::sources::huge_pages::metrics as huge_pages;
pub use crate::sources::kmsg::metrics as kmsg;
pub use crate::sources::kubernetes::metrics as kubernetes;
pub use crate::sources::memory::metrics as memory;
pub use crate::sources::numa::metrics as numa;
pub use crate::sources::process::metrics as process;
pub use crate::sources::training::metrics as training;
pub use crate::sources::vmstat::metrics as vmstat;
pub use crate::sources::workload::metrics as workload;
use crate::{analyzers, engine, events, sources};

/// Every declared metric, module by module.
pub fn all() -> impl Iterator<Item = &'static Desc> {
    let sources = sources::REGISTRY.iter().flat_map(|source| source.metrics.iter().copied());
    let analyzers = analyzers::REGISTRY.iter().flat_map(|analyzer| analyzer.metrics.iter().copied());
    let protection = protection::METRICS.iter().copied();
    sources
        .chain(analyzers)
        .chain(protection)
        .chain(engine::all_metrics())
        .chain(events::METRICS.iter().copied())
}
