//! What `exhaustion` exposes. Every series begins with the labels of its subject, of which most are empty.

use crate::model::units::{Bytes, BytesPerSecond, Count, Flag, Ratio, Seconds};

crate::metrics! {
    /// Time until the resource is exhausted if it goes on growing as it does; by estimate: p10 (one in ten is earlier), p50, p90. Absent where nothing is foreseen.
    pub TTE: Gauge<Seconds> = "memwarden_forecast_time_to_exhaustion_seconds"
        {resource, cgroup, gpu, uuid, workload, pid, estimate}.budget(12_000);
    /// Probability that the resource is exhausted within the horizon (1m, 5m, 15m, 60m), allowing for growth that stops; absent before there are enough samples.
    pub PROBABILITY: Gauge<Ratio> = "memwarden_forecast_exhaustion_probability_ratio"
        {resource, cgroup, gpu, uuid, workload, pid, horizon}.budget(16_000);
    /// How fast the use of the resource grows; absent before there are enough samples, and from the end of growth until the samples that are looked at no longer show it.
    pub GROWTH: Gauge<BytesPerSecond> = "memwarden_forecast_growth_bytes_per_second"
        {resource, cgroup, gpu, uuid, workload, pid}.budget(4_000);
    /// What is left of the resource by the figures of the forecast; reclaimable file cache counts as left.
    pub HEADROOM: Gauge<Bytes> = "memwarden_forecast_headroom_bytes"
        {resource, cgroup, gpu, uuid, workload, pid}.budget(4_000);
    /// Whether this is the level of risk that the resource is exhausted: 1 for the one it has of low, medium, high and critical, 0 for the others.
    pub RISK: Gauge<Flag> = "memwarden_forecast_risk"
        {resource, cgroup, gpu, uuid, workload, pid, level}.budget(16_000);
    /// The figure that the forecast was taken from, used or allocated; always 1, absent without a forecast.
    pub BASIS: Gauge<Flag> = "memwarden_forecast_basis_info"
        {resource, cgroup, gpu, uuid, workload, pid, basis}.budget(4_000);
    /// Resources that are followed.
    pub FOLLOWED: Gauge<Count> = "memwarden_forecast_resources" {}.counting("{resource}");
    /// Resources that are not followed because there are more than most.
    pub OMITTED: Gauge<Count> = "memwarden_forecast_resources_omitted" {}.counting("{resource}");
}
