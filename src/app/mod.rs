//! Builds everything from the configuration; owns threads, signals, reload and shutdown.
//!
//! [`sampler`] is the one thread that measures; [`serve`] runs everything
//! around it; [`log`] sets up the daemon's own log; [`notify`] notifies systemd.

pub mod demo;
pub mod guarded_engine;
pub mod log;
pub mod notify;
mod perf_log;
mod problems;
pub mod push;
pub mod sampler;
pub mod serve;
pub(crate) mod state;

use crate::config::schema::{ANALYZERS, GroupSchema, ModuleSchema, PartSchema, SECTIONS, SOURCES, Schema};
use crate::protection::options;
use crate::{analyzers, sources};

/// The keys of a configuration file: the fixed sections and one for each registered source and analyzer.
pub fn schema() -> Schema {
    let sources = sources::REGISTRY.iter().map(|source| PartSchema {
        key: source.name,
        about: source.about,
        on_by_default: source.on_by_default,
        options: source.options,
        needs: source.needs,
        check: source.check,
    });
    let analyzers = analyzers::REGISTRY.iter().map(|analyzer| PartSchema {
        key: analyzer.name,
        about: analyzer.about,
        on_by_default: true,
        options: analyzer.options,
        needs: &[],
        check: analyzer.check,
    });
    let sources = GroupSchema {
        key: SOURCES,
        about: "Sources: what memwarden measures. Each one can be disabled.",
        parts: sources.collect(),
    };
    let analyzers = GroupSchema {
        key: ANALYZERS,
        about: "Analyzers: what memwarden concludes from the measurements. Each one can be disabled.",
        parts: analyzers.collect(),
    };
    let protection = ModuleSchema { section: &options::PROTECTION, check: options::check };
    Schema { sections: SECTIONS, groups: vec![sources, analyzers], modules: vec![protection] }
}
