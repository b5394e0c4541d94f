//! Interprets the calls that rebuild a tensor, without executing them.
//!
//! torch/_utils.py of PyTorch 2.9: `_rebuild_tensor(storage, offset, size,
//! stride)`, `_rebuild_tensor_v2(…, requires_grad, hooks)`, `_rebuild_tensor_v3(…,
//! dtype)` for types without a storage class, `_rebuild_parameter(data,
//! requires_grad, hooks)`; torch/_tensor.py: `_rebuild_from_type_v2(function, type,
//! arguments, state)`. A storage is `('storage', class, key, location, elements)`.

use super::Storages;
use crate::files::parameters::bytes::ReadAt;
use crate::files::parameters::dtype::{Dtype, elements};
use crate::files::parameters::error::ParameterError;
use crate::files::parameters::{DIMENSIONS, StoredAt, Tensor};
use crate::files::pickle::{Arena, Id, Made, Value};

/// Maximum nesting of calls; a parameter of a tensor subclass has three.
const DEEP: usize = 6;

/// Whether PyTorch has an element type of this name.
pub(super) fn is_dtype(name: &[u8]) -> bool {
    const OTHERS: [&[u8]; 6] = [b"float", b"double", b"half", b"long", b"quint8", b"qint8"];
    Dtype::of_torch(name).is_some() || OTHERS.contains(&name)
}

/// Result of interpreting an object.
pub(super) enum Rebuilt {
    Tensor(Tensor),
    /// An unsupported tensor, such as a sparse or a quantized one.
    NotRead,
    /// Not a tensor.
    Other,
}

/// Interprets a call as the tensor it would return.
pub(super) fn rebuild(
    arena: &Arena<'_>,
    id: Id,
    name: &str,
    storages: &mut Storages<'_, impl ReadAt + ?Sized>,
) -> Result<Rebuilt, ParameterError> {
    let Some(object) = arena.object(id).filter(|object| object.made == Made::Call) else {
        return Ok(Rebuilt::Other);
    };
    let (mut function, mut arguments) = (object.function, object.arguments);
    let (mut parameter, mut wanted) = (false, None);
    for _ in 0..DEEP {
        let Some((module, called)) = arena.global(function) else { return Ok(Rebuilt::Other) };
        let mut given = arena.items(arguments);
        let (first, second) = (given.next(), given.next());
        let inner = match (module, called) {
            (b"torch._utils", b"_rebuild_tensor" | b"_rebuild_tensor_v2" | b"_rebuild_tensor_v3") => {
                let call = Call { arena, arguments, name, third: called.ends_with(b"_v3") };
                let mut tensor = call.tensor(storages)?;
                tensor.parameter = Some(parameter);
                tensor.requires_grad = wanted.or(tensor.requires_grad);
                return Ok(Rebuilt::Tensor(tensor));
            }
            (b"torch._utils", b"_rebuild_parameter" | b"_rebuild_parameter_with_state") => {
                parameter = true;
                wanted = second.and_then(|id| boolean(arena, id));
                first
            }
            (b"torch._tensor", b"_rebuild_from_type_v2") => {
                let Some(made) = first else { return Ok(Rebuilt::NotRead) };
                function = made;
                arguments = given.next().unwrap_or(made);
                continue;
            }
            (b"torch._utils", called) if called.starts_with(b"_rebuild_") => return Ok(Rebuilt::NotRead),
            _ => return Ok(Rebuilt::Other),
        };
        let Some(object) = inner.and_then(|id| arena.object(id)) else { return Ok(Rebuilt::NotRead) };
        (function, arguments) = (object.function, object.arguments);
    }
    Ok(Rebuilt::NotRead)
}

fn boolean(arena: &Arena<'_>, id: Id) -> Option<bool> {
    if let Value::Bool(value) = arena.value(id) { Some(value) } else { None }
}

struct Call<'c> {
    arena: &'c Arena<'c>,
    arguments: Id,
    name: &'c str,
    third: bool,
}

/// A storage, as described in the pickle.
struct Storage {
    dtype: Option<Dtype>,
    key: String,
    count: u64,
}

impl Call<'_> {
    fn fail(&self, why: impl Into<String>) -> ParameterError {
        ParameterError::tensor(self.name, why)
    }

    fn argument(&self, number: usize) -> Option<Id> {
        self.arena.items(self.arguments).nth(number)
    }

    fn number(&self, id: Option<Id>, what: &str) -> Result<u64, ParameterError> {
        match id.map(|id| self.arena.value(id)) {
            Some(Value::Int(value)) => {
                u64::try_from(value).map_err(|_| self.fail(format!("{what} of {value}")))
            }
            Some(other) => Err(self.fail(format!("{what} is {}", other.kind()))),
            None => Err(self.fail(format!("no {what}"))),
        }
    }

    fn numbers(&self, number: usize, what: &str) -> Result<Vec<u64>, ParameterError> {
        let mut list = self.argument(number).ok_or_else(|| self.fail(format!("no {what}")))?;
        if let Some(size) = self.arena.object(list) {
            // torch.Size((2, 3))
            list = self.arena.items(size.arguments).next().unwrap_or(list);
        }
        if !matches!(self.arena.value(list), Value::Tuple | Value::List) {
            return Err(self.fail(format!("{what} is {}", self.arena.value(list).kind())));
        }
        if self.arena.len(list) > DIMENSIONS {
            return Err(self.fail(format!("more than {DIMENSIONS} dimensions")));
        }
        self.arena.items(list).map(|id| self.number(Some(id), what)).collect()
    }

    fn storage(&self) -> Result<Storage, ParameterError> {
        let object = self.argument(0).and_then(|id| self.arena.object(id));
        let object = object.filter(|object| object.made == Made::Persistent);
        let id = object.ok_or_else(|| self.fail("its storage is not in the archive"))?.arguments;
        let parts: Vec<Id> = self.arena.items(id).take(5).collect();
        let [kind, class, key, _, count] = parts[..] else {
            return Err(self.fail("its storage is not named as PyTorch names them"));
        };
        if self.arena.value(kind) != Value::Text(b"storage") {
            return Err(self.fail("its storage is not named as PyTorch names them"));
        }
        let (module, class) = self.arena.global(class).ok_or_else(|| self.fail("a storage of no class"))?;
        let dtype = match (module, class) {
            (b"torch", class) => Dtype::of_storage(class),
            (b"torch.storage", b"UntypedStorage") => Some(Dtype::U8),
            _ => None,
        };
        let Value::Text(key) = self.arena.value(key) else { return Err(self.fail("a storage without key")) };
        let key = String::from_utf8_lossy(key).into_owned();
        Ok(Storage { dtype, key, count: self.number(Some(count), "length of the storage")? })
    }

    fn tensor(&self, storages: &mut Storages<'_, impl ReadAt + ?Sized>) -> Result<Tensor, ParameterError> {
        let storage = self.storage()?;
        let dtype = self.argument(6).filter(|_| self.third).and_then(|id| self.arena.global(id));
        let dtype = match dtype {
            Some((b"torch", name)) => Dtype::of_torch(name),
            _ if self.third => None,
            _ => storage.dtype,
        };
        let (Some(dtype), Some(stored)) = (dtype, storage.dtype) else {
            return Err(self.fail("elements of a type that is not known"));
        };
        let skip = self.number(self.argument(1), "offset")?;
        let shape = self.numbers(2, "size")?;
        let strides = self.numbers(3, "stride")?;
        if shape.len() != strides.len() {
            return Err(self.fail(format!("{} lengths and {} strides", shape.len(), strides.len())));
        }
        let large = || self.fail(format!("shape {shape:?} is too large"));
        let count = elements(&shape).ok_or_else(large)?;
        let bytes = dtype.bytes_of(count).ok_or_else(large)?;
        let span = span(&shape, &strides).ok_or_else(large)?;
        let (at, has) = storages.find(self.name, &storage.key)?;
        if stored.bytes_of(storage.count).is_none_or(|expected| expected > has) {
            let why = format!(
                "its storage {:?} has {has} bytes, too few for {} elements",
                storage.key, storage.count
            );
            return Err(self.fail(why));
        }
        let end = skip.checked_add(span).and_then(|end| dtype.bytes_of(end)).ok_or_else(large)?;
        if count > 0 && end > has {
            return Err(self.fail(format!("ends at byte {end} of its storage, which has {has}")));
        }
        let place = if count > 0 && (span != count || !is_dense(&shape, &strides)) {
            StoredAt::Elsewhere { why: "a view with gaps or repetitions" }
        } else if storages.big && dtype.bits() > 8 {
            StoredAt::Elsewhere { why: "written by a big-endian machine" }
        } else {
            StoredAt::Dense { offset: at + dtype.bytes_of(skip).unwrap_or(0).min(has) }
        };
        let row_major = is_row_major(&shape, &strides);
        Ok(Tensor {
            name: self.name.to_owned(),
            dtype,
            shape,
            elements: count,
            bytes,
            place,
            row_major,
            parameter: None,
            requires_grad: self.argument(4).and_then(|id| boolean(self.arena, id)),
        })
    }
}

/// Number of elements from the first to the last one of a view; 0 for an empty view.
fn span(shape: &[u64], strides: &[u64]) -> Option<u64> {
    if shape.contains(&0) {
        return Some(0);
    }
    let mut pairs = shape.iter().zip(strides);
    pairs.try_fold(1u64, |span, (length, stride)| span.checked_add((length - 1).checked_mul(*stride)?))
}

/// Whether a view includes each element of its span once, in any order of dimensions.
fn is_dense(shape: &[u64], strides: &[u64]) -> bool {
    let mut pairs: Vec<_> = strides.iter().zip(shape).filter(|(_, length)| **length != 1).collect();
    pairs.sort_unstable();
    is_dense_in_order(pairs)
}

/// Whether adjacent elements differ in the last dimension.
fn is_row_major(shape: &[u64], strides: &[u64]) -> bool {
    is_dense_in_order(strides.iter().zip(shape).rev())
}

/// Whether each dimension, from the one of adjacent elements on, begins where those before it end.
fn is_dense_in_order<'s>(pairs: impl IntoIterator<Item = (&'s u64, &'s u64)>) -> bool {
    let mut next = 1u64;
    pairs.into_iter().all(|(stride, length)| {
        let fits = *length == 1 || *stride == next;
        next = next.saturating_mul(*length);
        fits
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dense_views_are_detected() {
        assert!(is_dense(&[2, 3], &[3, 1]) && is_dense(&[3, 2], &[1, 3]) && is_dense(&[], &[]));
        assert!(is_dense(&[1, 5], &[77, 1]), "the stride of one element is never used");
        assert!(!is_dense(&[2, 3], &[6, 2]) && !is_dense(&[4, 3], &[0, 1]));
        assert_eq!(
            (span(&[2, 3], &[3, 1]), span(&[0], &[1]), span(&[3], &[u64::MAX])),
            (Some(6), Some(0), None)
        );
    }
}
