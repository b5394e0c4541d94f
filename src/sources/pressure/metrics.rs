//! What `pressure` exposes.

use crate::model::units::{Ratio, Seconds};

crate::metrics! {
    /// Share of the last 10s, 60s or 300s in which some or all (kind some, full) non-idle tasks waited for the resource, 0 to 1; cpu has no full, which the kernel does not define for the host.
    pub SHARE: Gauge<Ratio> = "memwarden_host_pressure_ratio" {resource, kind, window};
    /// Time in which some or all (kind some, full) non-idle tasks waited for the resource.
    pub STALLED: Counter<Seconds> = "memwarden_host_pressure_stalled_seconds_total" {resource, kind};
}
