//! The binary and the library from outside, against fakes of what surrounds them.

#[cfg(feature = "gpu")]
mod gpu;
