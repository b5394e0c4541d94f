//! Every metric there is: what HELP, TYPE, OTLP and the reference are made from.

use crate::model::desc::Desc;
use crate::protection::metrics as protection;
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
