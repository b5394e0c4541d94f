//! Builds everything from the configuration; owns threads, signals, reload and shutdown.
//!
//! [`sampler`] is the one thread that measures; [`serve`] runs everything
//! around it; [`log`] sets up the daemon's own log; [`notify`] talks to systemd.

pub mod log;
pub mod notify;
#[cfg(feature = "otlp")]
pub mod push;
pub mod sampler;
pub mod serve;

use crate::config::schema::{SECTIONS, Schema, SourceSchema};
use crate::sources;

/// The keys of a configuration file: the fixed sections and one for each registered source.
pub fn schema() -> Schema {
    let sources = sources::REGISTRY.iter().map(|source| SourceSchema {
        key: source.name,
        about: source.about,
        on_by_default: source.on_by_default,
        options: source.options,
        needs: source.needs,
        check: source.check,
    });
    Schema { sections: SECTIONS, sources: sources.collect() }
}
