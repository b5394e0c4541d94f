//! The suggested memory request.

use super::JobMemory;

const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;

/// Margin over the peak: 20 %, as jobstats suggests (`rounded_memory_with_safety`).
const MARGIN_PERCENT: u64 = 120;
/// After an OOM kill, Kubernetes' vertical pod autoscaler adds 20 %, and at least this, to the memory at which the kill
/// happened (`OOMBumpUpRatio`, `OOMMinBumpUp`).
const LEAST_AFTER_OOM: u64 = 100 * MIB;

/// The request for the next run in bytes: 1.2 times the peak; after an OOM kill, the larger of 1.2 times the limit and the
/// limit plus 100 MiB. Rounded up to 100 MiB, and from 10 GiB on to 1 GiB. Absent where nothing was measured.
pub(super) fn suggested(memory: &JobMemory) -> Option<u64> {
    let over = |bytes: u64| bytes.saturating_mul(MARGIN_PERCENT) / 100;
    let by_peak = memory.peak_bytes.map(over);
    let killed_at = memory.limit_bytes.or(memory.peak_bytes).filter(|_| memory.oom_kills > 0);
    let by_kill = killed_at.map(|limit| over(limit).max(limit.saturating_add(LEAST_AFTER_OOM)));
    let bytes = by_peak.max(by_kill)?;
    let step = if bytes < 10 * GIB { 100 * MIB } else { GIB };
    Some(bytes.max(1).div_ceil(step).saturating_mul(step))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_is_the_peak_with_a_margin_and_more_after_an_oom_kill() {
        let check = |peak: Option<u64>, limit: Option<u64>, oom_kills: u64| {
            let memory =
                JobMemory { peak_bytes: peak, limit_bytes: limit, oom_kills, ..JobMemory::default() };
            suggested(&memory)
        };
        assert_eq!(check(None, Some(GIB), 0), None);
        assert_eq!(check(Some(0), None, 0), Some(100 * MIB));
        assert_eq!(check(Some(250 * MIB), Some(GIB), 0), Some(300 * MIB));
        assert_eq!(check(Some(251 * MIB), Some(GIB), 0), Some(400 * MIB));
        assert_eq!(check(Some(100 * GIB), None, 0), Some(120 * GIB));
        // A peak between two samples was not seen; the limit was reached.
        assert_eq!(check(Some(150 * MIB), Some(200 * MIB), 1), Some(300 * MIB));
        assert_eq!(check(Some(50 * GIB), Some(60 * GIB), 2), Some(72 * GIB));
        assert_eq!(check(Some(300 * MIB), None, 1), Some(400 * MIB));
        assert_eq!(check(None, Some(GIB), 1), Some(1300 * MIB));
        assert_eq!(check(Some(u64::MAX), None, 3).map(|bytes| bytes > 1 << 55), Some(true));
    }
}
