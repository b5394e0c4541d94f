//! Pushing, seen by the collector: in-process receivers of both transports.

mod collector;
mod failures;
mod names;
mod secure;
mod settings;
mod values;
mod world;
