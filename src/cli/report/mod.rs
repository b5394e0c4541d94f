//! The report commands: `profile`, `oom`, `leak` and `fragmentation`, all of which call `watch`.

mod frame_source;
mod node;
mod options;
mod screen;
mod watch;

pub(super) use options::{Options, interval, load, seconds, set_options, within};
pub(super) use screen::{
    Screen, for_standard_error, is_dumb, size, standard_error_page, standard_output_page,
};
pub(super) use watch::run;
