//! The report commands: `profile`, `oom`, `leak` and `fragment`, each a name for one run of `watch`.

mod daemon;
mod eyes;
mod fragment;
mod leak;
mod oom;
mod options;
pub(super) mod output;
mod profile;
mod screen;
mod watch;

pub(super) use fragment::Args as Fragment;
pub(super) use leak::Args as Leak;
pub(super) use oom::Args as Oom;
pub(super) use options::{interval, load};
pub(super) use profile::Args as Profile;
pub(super) use screen::{Screen, bar, size};
