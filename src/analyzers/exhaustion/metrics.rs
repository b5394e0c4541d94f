//! Metrics of the `exhaustion` analyzer. Every series begins with the labels of its subject, most of which are empty.

use crate::model::units::{Bytes, BytesPerSecond, Count, Flag, Ratio, Seconds};

crate::metrics! {
    /// Predicted time until the resource is exhausted at its current growth, as quantiles (estimate p10, p50 or p90; exhaustion before the p10 value has a probability of 10%); absent while no exhaustion is predicted.
    pub TTE: Gauge<Seconds> = "memwarden_forecast_time_to_exhaustion_seconds"
        {resource, cgroup, gpu, uuid, workload, pid, mount, device_region, estimate}.budget(12_000);
    /// Probability, 0 to 1, that the resource is exhausted within the horizon (1m, 5m, 15m or 60m), including the chance that growth stops; absent before there are enough samples.
    pub PROBABILITY: Gauge<Ratio> = "memwarden_forecast_exhaustion_probability_ratio"
        {resource, cgroup, gpu, uuid, workload, pid, mount, device_region, horizon}.budget(16_000);
    /// Growth rate of the memory in use of the resource; absent before there are enough samples, and after growth ends until the evaluated samples no longer include it.
    pub GROWTH: Gauge<BytesPerSecond> = "memwarden_forecast_growth_bytes_per_second"
        {resource, cgroup, gpu, uuid, workload, pid, mount, device_region}.budget(4_000);
    /// Memory of the resource that is still available, as the forecast computes it; reclaimable page cache counts as available.
    pub HEADROOM: Gauge<Bytes> = "memwarden_forecast_headroom_bytes"
        {resource, cgroup, gpu, uuid, workload, pid, mount, device_region}.budget(4_000);
    /// Limit that the forecast of the resource counts against: of a workload, and of device memory of a cgroup, its used memory plus what the nearest limit leaves.
    pub LIMIT: Gauge<Bytes> = "memwarden_forecast_limit_bytes"
        {resource, cgroup, gpu, uuid, workload, pid, mount, device_region}.budget(4_000);
    /// Health of the resource by its memory (ok, unknown, warning or critical) and the rule that decides it; always 1, one series for each resource. Unknown means too few samples. For alerts: consecutive samples must have found it for 15 of the last 60 seconds, while pages show a rule at once and for a minute longer.
    pub HEALTH: Gauge<Flag> = "memwarden_forecast_health"
        {resource, cgroup, gpu, uuid, workload, pid, mount, device_region, health, rule}.budget(4_000);
    /// Quantity that the forecast of the resource is computed from (used or allocated); always 1, absent without a forecast.
    pub BASIS: Gauge<Flag> = "memwarden_forecast_basis_info"
        {resource, cgroup, gpu, uuid, workload, pid, mount, device_region, basis}.budget(4_000);
    /// Resources that the exhaustion analyzer tracks.
    pub FOLLOWED: Gauge<Count> = "memwarden_forecast_resources" {}.counting("{resource}");
    /// Resources that the exhaustion analyzer does not track because the limit analyzers.exhaustion.max_subjects is reached.
    pub OMITTED: Gauge<Count> = "memwarden_forecast_resources_omitted" {}.counting("{resource}");
}
