//! Metrics of the `pressure` source.

use crate::model::units::{Ratio, Seconds};

crate::metrics! {
    /// Pressure stall information (PSI): share of the last 10s, 60s or 300s in which some (kind some) or all (kind full) non-idle tasks waited for the resource, 0 to 1. The kernel does not define full for the CPU of the host.
    pub SHARE: Gauge<Ratio> = "memwarden_host_pressure_ratio" {resource, kind, window};
    /// Pressure stall information (PSI): time in which some (kind some) or all (kind full) non-idle tasks waited for the resource.
    pub STALLED: Counter<Seconds> = "memwarden_host_pressure_stalled_seconds_total" {resource, kind};
}
