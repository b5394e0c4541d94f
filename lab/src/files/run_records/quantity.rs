//! Amounts of memory by the names that tools give to metrics.

/// Maximum value in bytes: 8 PiB, below which a double is exact.
pub(super) const LARGEST: f64 = 9_007_199_254_740_992.0;

/// Units in names. PyTorch's users write GB for powers of 1024; units that are spelled out are powers of 1000.
const UNITS: [(&str, f64); 10] = [
    ("bytes", 1.0),
    ("kib", 1024.0),
    ("mib", 1_048_576.0),
    ("gib", 1_073_741_824.0),
    ("kb", 1024.0),
    ("mb", 1_048_576.0),
    ("gb", 1_073_741_824.0),
    ("kilobytes", 1e3),
    ("megabytes", 1e6),
    ("gigabytes", 1e9),
];
/// Words of a name of which one must be there: other amounts in bytes are of networks and disks.
const OF_MEMORY: [&str; 10] =
    ["mem", "memory", "allocated", "reserved", "rss", "vram", "ram", "active", "alloc", "cuda"];
/// Words of amounts that are not in use at one time: what is free, what is counted since the start, rates and shares.
const OTHER: [&str; 24] = [
    "free",
    "available",
    "count",
    "total",
    "limit",
    "bandwidth",
    "throughput",
    "rate",
    "speed",
    "read",
    "reads",
    "written",
    "write",
    "writes",
    "sent",
    "received",
    "transferred",
    "copied",
    "freed",
    "percent",
    "pct",
    "ratio",
    "retries",
    "fraction",
];
/// Words of the names of memory of the host.
const OF_HOST: [&str; 7] = ["cpu", "host", "ram", "rss", "system", "process", "proc"];

/// An amount of memory that a name means.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Quantity {
    /// Bytes in one unit of the values.
    pub(crate) unit: f64,
    /// Whether it is memory of a GPU.
    pub(crate) gpu: bool,
}

/// What the name of a metric counts; absent where it is not an amount of memory with its unit.
pub(crate) fn of_name(name: &str) -> Option<Quantity> {
    // The words of `memoryAllocatedBytes` begin with capitals, and `GiB` is one word: both readings are kept.
    let mut text = name.to_lowercase();
    text.push(' ');
    let mut lower = false;
    for letter in name.chars() {
        if letter.is_uppercase() && lower {
            text.push(' ');
        }
        lower = letter.is_lowercase();
        text.extend(letter.to_lowercase());
    }
    let words = || text.split(|letter: char| !letter.is_alphanumeric());
    let unit_of = |word: &str| Some(UNITS.iter().find(|(unit, _)| word == *unit)?.1);
    let unit = words().find_map(unit_of)?;
    let per_second = words()
        .zip(words().skip(1))
        .any(|(word, next)| unit_of(word).is_some() && matches!(next, "s" | "sec" | "second" | "per"));
    // `allocated_bytes.all.allocated` of torch.cuda.memory_stats is a total since the start, `.current` and `.peak` are not.
    let parts = ["all", "small_pool", "large_pool"];
    let statistic = name.rsplit_once('.').filter(|(front, _)| parts.iter().any(|part| front.ends_with(part)));
    let other = per_second
        || words().any(|word| OTHER.contains(&word))
        || statistic.is_some_and(|(_, last)| !matches!(last, "current" | "peak"));
    let host = words().any(|word| OF_HOST.contains(&word)) && !words().any(|word| word.starts_with("gpu"));
    (!other && words().any(|word| OF_MEMORY.contains(&word))).then_some(Quantity { unit, gpu: !host })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_tell_units() {
        let check = |name, expected: Option<(f64, bool)>| {
            assert_eq!(of_name(name).map(|found| (found.unit, found.gpu)), expected, "{name}");
        };
        // PyTorch Lightning, Megatron-LM, torchtitan, W&B.
        check("DeviceStatsMonitor.on_train_batch_end/reserved_bytes.all.current", Some((1.0, true)));
        check("mem-reserved-bytes", Some((1.0, true)));
        check("memory/max_reserved(GiB)", Some((1_073_741_824.0, true)));
        check("system/gpu_0_memory_usage_megabytes", Some((1e6, true)));
        check("system/system_memory_usage_megabytes", Some((1e6, false)));
        check("gpu.0.memoryAllocatedBytes", Some((1.0, true)));
        check("memory/max_reserved(%)", None);
        check("gpu.0.pcieRxBytes", None);
        check("train/loss", None);
        check("memory_free_bytes", None);
        check("DeviceStatsMonitor.on_train_batch_end/allocated_bytes.all.allocated", None);
        check("DeviceStatsMonitor.on_train_batch_end/allocated_bytes.large_pool.freed", None);
        check("DeviceStatsMonitor.on_train_batch_end/active_bytes.all.peak", Some((1.0, true)));
        check("vram_gb", Some((1_073_741_824.0, true)));
        check("RAM (GB)", Some((1_073_741_824.0, false)));
        check("ram_used_gb", Some((1_073_741_824.0, false)));
        check("memory_bandwidth_gb_s", None);
        check("memory bytes read", None);
        check("gpu memory GB per second", None);
    }
}
