//! ECC, remapped rows, retired pages.

use super::device_calls;
use crate::abi::{Answer, Code, EccCounts, Out, OutArray, RemapHistogram};
use crate::scenario::Ecc;
use crate::target::Target;

const DRAM: u32 = 2;
const SRAM: u32 = 7;
const LOCATIONS: u32 = 8;

/// When the pages of a scenario were retired; only the second call's clients see it.
const RETIRED_AT: u64 = 1_700_000_000_000_000;

/// ECC with its counters running.
pub(super) fn counting(target: &Target) -> Result<&Ecc, Code> {
    let ecc = target.physical()?.ecc.as_ref().ok_or(Code::NOT_SUPPORTED)?;
    if ecc.enabled { Ok(ecc) } else { Err(Code::NOT_SUPPORTED) }
}

/// The errors of both kinds of memory together.
pub(super) fn total(target: &Target, error: u32, counter: u32) -> Result<u64, Code> {
    let ecc = counting(target)?;
    let count = |value: Option<_>| value.map(|value| target.at::<u64>(value));
    let dram = count(ecc.dram.of(error, counter)).ok_or(Code::INVALID_ARGUMENT)?;
    let sram = count(ecc.sram.of(error, counter)).ok_or(Code::INVALID_ARGUMENT)?;
    Ok(dram.saturating_add(sram))
}

fn pages(
    target: &Target,
    cause: u32,
    count: &Out<u32>,
    addresses: &OutArray<u64>,
    timestamps: Option<&OutArray<u64>>,
) -> Answer {
    let retired = target.physical()?.retired_pages.as_ref().ok_or(Code::NOT_SUPPORTED)?;
    let pages = retired.of(cause).ok_or(Code::INVALID_ARGUMENT)?;
    let capacity = count.get()? as usize;
    count.set(u32::try_from(pages.len()).unwrap_or(u32::MAX))?;
    if pages.is_empty() {
        return Ok(());
    }
    if addresses.is_null() || capacity < pages.len() {
        return Err(Code::INSUFFICIENT_SIZE);
    }
    if let Some(timestamps) = timestamps {
        timestamps.fill(pages.iter().map(|_| RETIRED_AT))?;
    }
    addresses.fill(pages.iter().copied())
}

device_calls! {
    nvmlDeviceGetEccMode(target, current: Out<u32>, pending: Out<u32>) {
        let ecc = target.physical()?.ecc.as_ref().ok_or(Code::NOT_SUPPORTED)?;
        current.set(u32::from(ecc.enabled))?;
        pending.set(u32::from(ecc.pending))
    }

    nvmlDeviceGetTotalEccErrors(target, error: u32, counter: u32, count: Out<u64>) {
        count.set(total(&target, error, counter)?)
    }

    nvmlDeviceGetMemoryErrorCounter(target, error: u32, counter: u32, location: u32, count: Out<u64>) {
        let ecc = counting(&target)?;
        let counters = match location {
            DRAM => &ecc.dram,
            SRAM => &ecc.sram,
            0..LOCATIONS => return Err(Code::NOT_SUPPORTED),
            _ => return Err(Code::INVALID_ARGUMENT),
        };
        count.set(target.at(counters.of(error, counter).ok_or(Code::INVALID_ARGUMENT)?))
    }

    nvmlDeviceGetDetailedEccErrors(target, error: u32, counter: u32, counts: Out<EccCounts>) {
        let dram = counting(&target)?.dram.of(error, counter).ok_or(Code::INVALID_ARGUMENT)?;
        counts.set(EccCounts { l1: 0, l2: 0, device_memory: target.at(dram), register_file: 0 })
    }

    nvmlDeviceGetRemappedRows(target, corrected: Out<u32>, uncorrected: Out<u32>, pending: Out<u32>, failure: Out<u32>) {
        let rows = target.physical()?.remapped_rows.as_ref().ok_or(Code::NOT_SUPPORTED)?;
        corrected.set(target.at(&rows.corrected))?;
        uncorrected.set(target.at(&rows.uncorrected))?;
        pending.set(u32::from(rows.pending))?;
        failure.set(u32::from(rows.failure))
    }

    nvmlDeviceGetRowRemapperHistogram(target, values: Out<RemapHistogram>) {
        let rows = target.physical()?.remapped_rows.as_ref().ok_or(Code::NOT_SUPPORTED)?;
        let [max, high, partial, low, none] = rows.histogram;
        values.set(RemapHistogram { max, high, partial, low, none })
    }

    nvmlDeviceGetRetiredPages(target, cause: u32, count: Out<u32>, addresses: OutArray<u64>) {
        pages(&target, cause, &count, &addresses, None)
    }

    nvmlDeviceGetRetiredPages_v2(target, cause: u32, count: Out<u32>, addresses: OutArray<u64>, timestamps: OutArray<u64>) {
        pages(&target, cause, &count, &addresses, Some(&timestamps))
    }

    nvmlDeviceGetRetiredPagesPendingStatus(target, pending: Out<u32>) {
        let retired = target.physical()?.retired_pages.as_ref().ok_or(Code::NOT_SUPPORTED)?;
        pending.set(u32::from(retired.pending))
    }
}
