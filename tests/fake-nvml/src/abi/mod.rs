//! What crosses the C boundary: return codes, pointer wrappers and nvml.h's structs.

mod code;
mod pointers;
mod structs;

pub(crate) use code::Code;
pub(crate) use pointers::{Handle, InText, Out, OutArray, OutText, SampleHandle, SetHandle};
pub(crate) use structs::*;

/// The result of a call's body; `answer` turns it into the returned code.
pub(crate) type Answer = Result<(), Code>;

/// Runs a call's body; a panic never crosses the boundary but answers `UNKNOWN`.
pub(crate) fn answer(body: impl FnOnce() -> Answer) -> Code {
    match std::panic::catch_unwind(std::panic::AssertUnwindSafe(body)) {
        Ok(Ok(())) => Code::SUCCESS,
        Ok(Err(code)) => code,
        Err(_) => Code::UNKNOWN,
    }
}
