//! Compares two checkpoints: added, removed and changed tensors, and the differences of values.

use std::collections::BTreeMap;

use super::number::numbers;
use super::{Dtype, Tensor};

/// The differences of two checkpoints, by the names of tensors.
#[derive(Clone, Debug, Default, serde::Serialize)]
pub struct Comparison<'a> {
    /// Only in the second.
    pub added: Vec<Side<'a>>,
    /// Only in the first.
    pub removed: Vec<Side<'a>>,
    /// In both, with a different shape or type.
    pub changed: Vec<Change<'a>>,
    /// Number of tensors in both with the same shape and type.
    pub same: usize,
    /// Differences of values, largest first; absent where they were not compared.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub values: Option<Vec<ValueChange<'a>>>,
    /// Number of tensors whose values were compared; absent where none were.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub compared: Option<usize>,
}

/// A tensor of one of the two.
#[derive(Clone, Debug, PartialEq, serde::Serialize)]
pub struct Side<'a> {
    pub name: &'a str,
    /// The type of its elements.
    pub dtype: Dtype,
    /// The length of each dimension.
    pub shape: &'a [u64],
    pub bytes: u64,
}

/// A tensor with a different shape or type in both.
#[derive(Clone, Debug, PartialEq, serde::Serialize)]
pub struct Change<'a> {
    pub before: Side<'a>,
    pub after: Side<'a>,
}

/// A tensor whose values differ.
#[derive(Clone, Debug, PartialEq, serde::Serialize)]
pub struct ValueChange<'a> {
    pub name: &'a str,
    #[serde(flatten)]
    pub difference: Difference,
}

/// Difference of the values of two tensors of one type.
#[derive(Clone, Copy, Debug, Default, PartialEq, serde::Serialize)]
pub struct Difference {
    pub elements: u64,
    /// Number of elements whose bits differ.
    pub differing: u64,
    /// The largest absolute difference of finite elements; absent where none differ, or the type is not numeric.
    pub max_abs: Option<f64>,
}

impl Difference {
    /// Combines the differences of two parts.
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        Self {
            elements: self.elements.saturating_add(other.elements),
            differing: self.differing.saturating_add(other.differing),
            max_abs: match (self.max_abs, other.max_abs) {
                (Some(one), Some(other)) => Some(one.max(other)),
                (one, other) => one.or(other),
            },
        }
    }
}

/// Compares the tensors of two checkpoints by the given names.
pub fn compare<'a>(before: &[(&'a str, &'a Tensor)], after: &[(&'a str, &'a Tensor)]) -> Comparison<'a> {
    let new: BTreeMap<&str, &Tensor> = after.iter().copied().collect();
    let old: BTreeMap<&str, &Tensor> = before.iter().copied().collect();
    let mut comparison = Comparison::default();
    for (name, was) in &old {
        match new.get(name) {
            None => comparison.removed.push(side(name, was)),
            Some(is) if is.dtype == was.dtype && is.shape == was.shape => comparison.same += 1,
            Some(is) => comparison.changed.push(Change { before: side(name, was), after: side(name, is) }),
        }
    }
    let added = new.iter().filter(|(name, _)| !old.contains_key(*name));
    comparison.added = added.map(|(name, is)| side(name, is)).collect();
    comparison
}

fn side<'a>(name: &'a str, tensor: &'a Tensor) -> Side<'a> {
    Side { name, dtype: tensor.dtype, shape: &tensor.shape, bytes: tensor.bytes }
}

/// Compares elements of one type, as many as the shorter of the two has.
pub fn difference(dtype: Dtype, before: &[u8], after: &[u8]) -> Difference {
    let bits = dtype.bits();
    let elements = (before.len().min(after.len()) as u64).saturating_mul(8) / bits;
    if before == after {
        return Difference { elements, ..Difference::default() };
    }
    // Types below one byte are compared by the byte.
    let width = usize::try_from(bits / 8).unwrap_or(1).max(1);
    let pairs = before.chunks_exact(width).zip(after.chunks_exact(width));
    let differing = pairs.filter(|(before, after)| before != after).count() as u64;
    let max_abs = numbers(dtype, before).zip(numbers(dtype, after)).and_then(|(before, after)| {
        let differences = before.zip(after).map(|(before, after)| (after - before).abs());
        differences.filter(|difference| difference.is_finite()).reduce(f64::max)
    });
    Difference { elements, differing, max_abs }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::files::parameters::StoredAt;

    fn tensor(dtype: Dtype, shape: &[u64]) -> Tensor {
        Tensor {
            name: String::new(),
            dtype,
            shape: shape.to_vec(),
            elements: 1,
            bytes: 4,
            place: StoredAt::Dense { offset: 0 },
            row_major: true,
            parameter: None,
            requires_grad: None,
        }
    }

    #[test]
    fn added_removed_and_changed_tensors_are_found() {
        let (a, b, c) = (tensor(Dtype::F32, &[2]), tensor(Dtype::BF16, &[2]), tensor(Dtype::F32, &[2, 1]));
        let found = compare(
            &[("x", &a), ("y", &a), ("z", &a), ("s", &a)],
            &[("s", &a), ("y", &b), ("z", &c), ("n", &b)],
        );
        let names = |sides: &[Side<'_>]| sides.iter().map(|side| side.name.to_owned()).collect::<Vec<_>>();
        assert_eq!(
            (names(&found.added), names(&found.removed)),
            (vec!["n".to_owned()], vec!["x".to_owned()])
        );
        let changed: Vec<&str> = found.changed.iter().map(|change| change.before.name).collect();
        assert_eq!((changed, found.same), (vec!["y", "z"], 1));
    }

    #[test]
    fn values_are_compared_by_bits_and_by_number() {
        let floats =
            |values: &[f32]| values.iter().flat_map(|value| value.to_le_bytes()).collect::<Vec<u8>>();
        let found =
            difference(Dtype::F32, &floats(&[1.0, 2.0, f32::NAN, 0.0]), &floats(&[1.0, -1.5, 3.0, -0.0]));
        assert_eq!(found, Difference { elements: 4, differing: 3, max_abs: Some(3.5) });
        let same = difference(Dtype::F32, &floats(&[f32::NAN]), &floats(&[f32::NAN]));
        assert_eq!(same, Difference { elements: 1, differing: 0, max_abs: None });
        let packed = difference(Dtype::F4E2M1, &[1, 2], &[1, 3]);
        assert_eq!((packed.elements, packed.differing, packed.max_abs), (4, 1, None));
        assert_eq!(same.and(found).differing, 3);
    }
}
