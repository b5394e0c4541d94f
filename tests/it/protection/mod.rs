//! Bad days of protection: the real daemon, in the mode enforce, against real processes that are all the test's own.
//!
//! Pressure is real where a memory group of a few MiB can be made, and staged
//! elsewhere: a folder in the place of `/proc` that has the test's processes
//! and no others, beside a `meminfo` that the test writes.

mod alerts;
pub(crate) mod audit;
mod fork_bombs;
mod gpu;
pub(crate) mod group;
mod hooks;
pub(crate) mod job;
mod ladder;
mod modes;
mod peers;
mod pod;
mod prekill;
mod records;
mod refused;
mod restart;
mod rights;
pub(crate) mod room;
mod runs;
mod saves;
mod sensors;
mod sets;
mod shared;
mod unkillable;

use std::time::Duration;

/// Long enough for a loaded machine; nothing waits so long unless it fails.
pub(crate) const SOON: Duration = Duration::from_secs(40);
