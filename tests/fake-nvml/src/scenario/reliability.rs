//! ECC counters, remapped rows, retired pages.

use serde::Deserialize;

use crate::value::Value;

/// ECC mode and counters.
#[derive(Clone, Debug, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Ecc {
    pub(crate) enabled: bool,
    pub(crate) pending: bool,
    pub(crate) dram: EccCounters,
    pub(crate) sram: EccCounters,
}

impl Default for Ecc {
    fn default() -> Self {
        Self { enabled: true, pending: true, dram: EccCounters::default(), sram: EccCounters::default() }
    }
}

/// Errors of one kind of memory: since the driver was loaded, and over the board's life.
#[derive(Clone, Debug, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct EccCounters {
    corrected: Value,
    uncorrected: Value,
    corrected_aggregate: Value,
    uncorrected_aggregate: Value,
}

impl Default for EccCounters {
    fn default() -> Self {
        Self {
            corrected: 0.into(),
            uncorrected: 0.into(),
            corrected_aggregate: 0.into(),
            uncorrected_aggregate: 0.into(),
        }
    }
}

impl EccCounters {
    /// The counter of an `nvmlMemoryErrorType_t` and an `nvmlEccCounterType_t`.
    pub(crate) fn of(&self, error: u32, counter: u32) -> Option<&Value> {
        match (error, counter) {
            (0, 0) => Some(&self.corrected),
            (1, 0) => Some(&self.uncorrected),
            (0, 1) => Some(&self.corrected_aggregate),
            (1, 1) => Some(&self.uncorrected_aggregate),
            _ => None,
        }
    }
}

/// Rows replaced by spare ones, and the banks by how many spares they have left.
#[derive(Clone, Debug, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct RemappedRows {
    pub(crate) corrected: Value,
    pub(crate) uncorrected: Value,
    pub(crate) pending: bool,
    pub(crate) failure: bool,
    /// Banks with max, high, partial, low and no spare rows.
    pub(crate) histogram: [u32; 5],
}

impl Default for RemappedRows {
    fn default() -> Self {
        Self {
            corrected: 0.into(),
            uncorrected: 0.into(),
            pending: false,
            failure: false,
            histogram: [2_560, 0, 0, 0, 0],
        }
    }
}

/// Pages taken out of use, the scheme before row remapping.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct RetiredPages {
    single_bit: Vec<u64>,
    double_bit: Vec<u64>,
    pub(crate) pending: bool,
}

impl RetiredPages {
    /// The addresses for an `nvmlPageRetirementCause_t`.
    pub(crate) fn of(&self, cause: u32) -> Option<&[u64]> {
        match cause {
            0 => Some(&self.single_bit),
            1 => Some(&self.double_bit),
            _ => None,
        }
    }
}
