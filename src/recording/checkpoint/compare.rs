//! Comparison of two checkpoints.

use std::collections::BTreeMap;

use super::Checkpoint;
use super::scan::{Pair, Progress, compare_all};
use crate::files::parameters::Tensor;
use crate::files::parameters::compare::{self as parameters, Comparison, ValueChange};
use crate::recording::error::RecordingError;

/// The differences of two checkpoints whose tensors have these names. Values are compared if the progress of reading
/// them is reported.
pub(crate) fn compare<'a>(
    both: [&'a Checkpoint; 2],
    names: [&'a [String]; 2],
    values: Option<(usize, &mut Progress<'_>)>,
) -> Result<Comparison<'a>, RecordingError> {
    let named = |side: usize| -> Vec<(&'a str, &'a Tensor)> {
        names[side].iter().map(String::as_str).zip(both[side].tensors().map(|(_, tensor)| tensor)).collect()
    };
    let mut comparison = parameters::compare(&named(0), &named(1));
    let Some((threads, progress)) = values else { return Ok(comparison) };
    let after: BTreeMap<&str, (usize, &Tensor)> =
        names[1].iter().map(String::as_str).zip(both[1].tensors()).collect();
    let (mut same, mut pairs): (Vec<&'a str>, Vec<Pair<'_>>) = (Vec::new(), Vec::new());
    for (name, before) in names[0].iter().zip(both[0].tensors()) {
        let fits =
            |after: &&(usize, &Tensor)| after.1.dtype == before.1.dtype && after.1.shape == before.1.shape;
        if let Some(after) = after.get(name.as_str()).filter(fits) {
            same.push(name);
            pairs.push([before, *after]);
        }
    }
    let found = compare_all(both, &pairs, threads, progress)?;
    comparison.compared = Some(found.iter().flatten().count());
    let changes = same.iter().zip(found).filter_map(|(name, difference)| {
        let difference = difference.filter(|difference| difference.differing > 0)?;
        Some(ValueChange { name, difference })
    });
    let mut changes: Vec<ValueChange<'a>> = changes.collect();
    changes.sort_by(|a, b| {
        let of = |change: &ValueChange<'_>| change.difference.max_abs.unwrap_or(-1.0);
        of(b).total_cmp(&of(a))
    });
    comparison.values = Some(changes);
    Ok(comparison)
}
