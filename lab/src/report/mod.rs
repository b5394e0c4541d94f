//! What the commands say of their files: text, JSON and pictures. Pure.

pub(crate) mod replay;
pub(crate) mod snapshot;
