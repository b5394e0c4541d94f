//! Pointer parameters as types, so that the bodies of the calls are safe code.
//!
//! Each type is `repr(transparent)` over the pointer nvml.h declares and can only come from a C
//! caller: nothing in this crate constructs one. nvml.h obliges that caller to pass null or a
//! pointer to memory of the declared type that stays valid for the call; the SAFETY notes below
//! rest on that.

use std::ffi::{CStr, c_char};

use super::{Answer, Code, GpmMetric, GpmRequest};

/// An `nvmlDevice_t`: a number in the form of a pointer, never dereferenced by either side.
#[repr(transparent)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Handle(pub(crate) usize);

/// An `nvmlEventSet_t`, likewise a number.
#[repr(transparent)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct SetHandle(pub(crate) usize);

/// An `nvmlGpmSample_t`, likewise a number.
#[repr(transparent)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SampleHandle(pub(crate) usize);

/// A pointer to one value that the call writes; some calls read its leading words first.
#[repr(transparent)]
#[derive(Debug)]
pub(crate) struct Out<T>(*mut T);

impl<T> Out<T> {
    /// Writes the value; `INVALID_ARGUMENT` for a null pointer.
    pub(crate) fn set(&self, value: T) -> Answer {
        self.present()?;
        // SAFETY: not null, so by the module's contract valid for a write of T.
        unsafe { self.0.write(value) };
        Ok(())
    }

    /// The leading `N` 32-bit words, such as a version; the rest may still be uninitialized.
    pub(crate) fn words<const N: usize>(&self) -> Result<[u32; N], Code> {
        self.present()?;
        if size_of::<[u32; N]>() > size_of::<T>() || align_of::<T>() < align_of::<u32>() {
            return Err(Code::UNKNOWN);
        }
        // SAFETY: not null, and the words lie within T, which the caller owns; callers of this
        // method name only words that nvml.h obliges the caller to fill in.
        Ok(unsafe { self.0.cast::<[u32; N]>().read() })
    }

    /// `INVALID_ARGUMENT` for a null pointer.
    pub(crate) fn present(&self) -> Answer {
        if self.0.is_null() { Err(Code::INVALID_ARGUMENT) } else { Ok(()) }
    }
}

impl Out<GpmRequest> {
    /// The two samples.
    pub(crate) fn samples(&self) -> Result<[SampleHandle; 2], Code> {
        self.present()?;
        // SAFETY: not null, so by the module's contract valid; the caller has filled in both samples.
        Ok(unsafe { [(*self.0).before, (*self.0).after] })
    }

    /// The array that begins with the first metric.
    pub(crate) fn metrics(&self) -> Result<OutArray<GpmMetric>, Code> {
        self.present()?;
        // SAFETY: not null; only the address is taken.
        Ok(OutArray(unsafe { &raw mut (*self.0).first }))
    }
}

impl Out<u32> {
    /// The number the caller passed in, such as the capacity of an array.
    pub(crate) fn get(&self) -> Result<u32, Code> {
        self.words::<1>().map(|[word]| word)
    }
}

/// A pointer to an array whose length is another argument.
#[repr(transparent)]
#[derive(Debug)]
pub(crate) struct OutArray<T>(*mut T);

impl<T> OutArray<T> {
    /// The same array, of other entries.
    pub(crate) fn cast<U>(&self) -> OutArray<U> {
        OutArray(self.0.cast())
    }

    /// Whether the caller only queries the required length.
    pub(crate) fn is_null(&self) -> bool {
        self.0.is_null()
    }

    /// One element, which must lie below the length the caller gave.
    pub(crate) fn at(&self, index: usize) -> Out<T> {
        Out(if self.0.is_null() {
            self.0
        } else {
            // Wrapping, so that the arithmetic alone is never undefined.
            self.0.wrapping_add(index)
        })
    }

    /// Writes the items from the front; the caller has compared their number with the capacity.
    pub(crate) fn fill(&self, items: impl IntoIterator<Item = T>) -> Answer {
        for (index, item) in items.into_iter().enumerate() {
            self.at(index).set(item)?;
        }
        Ok(())
    }
}

/// A text buffer whose size in bytes is another argument.
#[repr(transparent)]
#[derive(Debug)]
pub(crate) struct OutText(*mut c_char);

impl OutText {
    /// Writes text and terminator; `INSUFFICIENT_SIZE` where they do not fit.
    pub(crate) fn set(&self, text: &str, size: u32) -> Answer {
        if self.0.is_null() {
            return Err(Code::INVALID_ARGUMENT);
        }
        if text.len() >= size as usize {
            return Err(Code::INSUFFICIENT_SIZE);
        }
        self.copy(text.as_bytes());
        Ok(())
    }

    /// Writes as much of the text as fits, always with a terminator.
    pub(crate) fn set_cut(&self, text: &str, size: u32) -> Answer {
        if self.0.is_null() || size == 0 {
            return Err(Code::INVALID_ARGUMENT);
        }
        let bytes = text.as_bytes();
        self.copy(bytes.get(..size as usize - 1).unwrap_or(bytes));
        Ok(())
    }

    fn copy(&self, bytes: &[u8]) {
        // SAFETY: both callers have checked for null and that bytes and terminator fit the size
        // the C caller gave.
        unsafe {
            self.0.copy_from_nonoverlapping(bytes.as_ptr().cast(), bytes.len());
            self.0.add(bytes.len()).write(0);
        }
    }
}

/// A terminated text that the call reads.
#[repr(transparent)]
#[derive(Debug)]
pub(crate) struct InText(*const c_char);

impl InText {
    /// The text; `INVALID_ARGUMENT` for null or for bytes that are not UTF-8.
    pub(crate) fn get(&self) -> Result<&str, Code> {
        if self.0.is_null() {
            return Err(Code::INVALID_ARGUMENT);
        }
        // SAFETY: not null, so by the module's contract terminated and valid for the call.
        let text = unsafe { CStr::from_ptr(self.0) };
        text.to_str().map_err(|_| Code::INVALID_ARGUMENT)
    }
}
