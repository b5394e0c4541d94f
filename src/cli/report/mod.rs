//! The report commands: `profile`, `oom`, `leak` and `fragmentation`, all of which call `watch`.

pub(super) mod chart;
mod daemon;
mod fragmentation;
mod frame_source;
mod leak;
mod node;
mod oom;
mod options;
mod profile;
mod screen;
mod watch;

pub(super) use fragmentation::Args as Fragmentation;
pub(super) use leak::Args as Leak;
pub(super) use oom::Args as Oom;
pub(super) use options::{interval, load, seconds};
pub(super) use profile::Args as Profile;
pub(super) use screen::{
    Screen, bar, for_standard_error, is_dumb, size, standard_error_page, standard_output_page,
};
