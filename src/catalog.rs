//! Every metric there is: what HELP, TYPE, OTLP and the reference are made from.
//!
//! Rooms that read frames name a metric by its declaration, which they find here under the name of its source or
//! analyzer: `catalog::memory::TOTAL.desc.name`. They see nothing else of sources and analyzers.

pub use crate::analyzers::exhaustion::metrics as exhaustion;
pub use crate::analyzers::fragmentation::metrics as fragmentation;
pub use crate::analyzers::leak::metrics as leak;
use crate::model::desc::Desc;
use crate::protection::metrics as protection;
pub use crate::sources::buddyinfo::metrics as buddyinfo;
pub use crate::sources::cgroup::metrics as cgroup;
pub use crate::sources::gpu::metrics as gpu;
pub use crate::sources::memory::metrics as memory;
pub use crate::sources::training::metrics as training;
pub use crate::sources::vmstat::metrics as vmstat;
pub use crate::sources::workload::metrics as workload;
use crate::{analyzers, engine, events, sources};

/// Every declared metric, room by room.
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
