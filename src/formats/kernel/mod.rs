//! The kernel log: its records, the lines of the kernel and of NVIDIA's driver, and whole reports of the OOM killer.
//!
//! [`Reports::read`] takes one record after the other. Checked against mm/oom_kill.c of Linux 3.10 to 7.0, the kernels of RHEL 7 and
//! 8 among them; `tests/kernel` has texts of each form.

pub mod lines;
pub mod record;
mod reports;

pub use lines::Warning;
pub use record::{Record, record};
pub use reports::{Event, Kill, Reports};
