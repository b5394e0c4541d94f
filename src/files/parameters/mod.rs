//! Parameter files: their tensors, and the values of these.
//!
//! [`safetensors`] and [`npy`] read headers, [`archive`] archives of `torch.save` and `numpy.savez`, [`torch`] the pickles
//! of PyTorch without calling anything, [`index`] and [`adapter`] the JSON beside tensors. [`scan`] tests values by their bits, [`summary`] and [`compare`] evaluate the
//! results. Bytes are read through [`ReadAt`]; nothing here opens a file.

pub mod adapter;
pub mod archive;
mod bytes;
pub mod compare;
mod dtype;
mod error;
mod group;
pub mod index;
pub mod npy;
mod number;
pub mod safetensors;
pub mod scan;
pub mod summary;
#[cfg(test)]
pub(crate) mod testing;
pub mod torch;
mod zip;

use std::collections::BTreeMap;

pub use bytes::ReadAt;
pub use dtype::Dtype;
pub use error::ParameterError;
pub use group::{Group, group_of};

use super::pickle::{Budget, OverBudget};

/// Maximum number of dimensions, as in PyTorch and NumPy 2.
const DIMENSIONS: usize = 64;

#[derive(Debug, Default)]
pub struct Part {
    /// In the order of their data (safetensors) or of the pickle (`.pt`).
    pub tensors: Vec<Tensor>,
    /// Free text that the writer added.
    pub metadata: BTreeMap<String, String>,
    /// Anomalies of the file, a sentence each.
    pub notes: Vec<String>,
}

impl Part {
    /// Adds a tensor, and charges its memory.
    fn push(&mut self, tensor: Tensor, budget: &mut Budget) -> Result<(), OverBudget> {
        budget.take((tensor.name.len() + size_of_val(&*tensor.shape)) as u64)?;
        budget.push(&mut self.tensors, tensor)
    }
}

#[derive(Clone, Debug)]
pub struct Tensor {
    /// Its name; in a `.pt` file the keys on the way to it, with dots between.
    pub name: String,
    /// The type of its elements.
    pub dtype: Dtype,
    /// The length of each dimension.
    pub shape: Vec<u64>,
    /// The product of the shape.
    pub elements: u64,
    /// The bytes of its elements.
    pub bytes: u64,
    /// Their location.
    pub place: StoredAt,
    /// Whether they are in the order of the shape, the last dimension first; a `.pt` file may have another.
    pub row_major: bool,
    /// Whether it was saved as a parameter; absent where the format does not store it.
    pub parameter: Option<bool>,
    /// Whether it requires gradients; absent where the format does not store it.
    pub requires_grad: Option<bool>,
}

/// Location of a tensor's elements in its file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum StoredAt {
    /// Contiguous from this byte on, little-endian; not necessarily in the order of the shape.
    Dense {
        /// In bytes from the start of the file.
        offset: u64,
    },
    /// Not contiguous, repeated, or in another byte order: they are not read.
    Elsewhere {
        /// Why they are not read: lower case, no final period.
        why: &'static str,
    },
}
