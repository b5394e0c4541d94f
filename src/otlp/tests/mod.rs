//! Pushing, seen by the collector: in-process receivers of both transports.

mod collector;
mod failures;
mod names;
mod secure;
mod settings;
mod values;
#[expect(unreachable_pub, reason = "the macro declares metrics for rooms that the catalog reads")]
mod world;
