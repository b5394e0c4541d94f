//! Readers of recordings: series of values, and the parameters in checkpoints.

pub mod cells;
pub(crate) mod chart;
pub(crate) mod checkpoint;
mod columns;
pub mod csv;
mod error;
pub mod prometheus;
pub mod report;

use crate::model::series::{Row, Series};

/// A series of times and amounts; those that are not amounts, or not after the one before, are left out with a remark.
fn ascending(name: String, points: impl Iterator<Item = (f64, f64)>, limit: Option<f64>) -> Series {
    let (mut rows, mut left_out) = (Vec::<Row>::new(), 0_usize);
    for (at, used) in points {
        let follows = rows.last().is_none_or(|before| before.at < at);
        if used.is_finite() && used >= 0.0 && at.is_finite() && follows {
            rows.push(Row { at, used, limit, ..Row::default() });
        } else {
            left_out += 1;
        }
    }
    let remark = || format!("{left_out} values that are not amounts, or out of order, were ignored");
    let remarks = (left_out > 0).then(remark).into_iter().collect();
    Series { name, rows, remarks }
}
