//! The calls of CUDA's driver API that allocate memory, as `libfake_cuda.so`, over a scenario file of
//! [fake-nvml](../../fake-nvml/README.md).
//!
//! Each process that has a context is an entry in the `processes` of its GPU in the file `FAKE_NVML_SCENARIO`, with the
//! memory that it allocated, so that the fake NVML reports it. An allocation that would exceed the memory of the GPU is
//! refused, as by a driver. Calls return `CUresult`s of cuda.h.
#![expect(
    unsafe_code,
    reason = "the crate is a C ABI: the exported names and the writes through their pointers"
)]

mod state;

use std::ffi::{c_char, c_int, c_uchar, c_uint};
use std::sync::{Mutex, PoisonError};

use state::{Refusal, State};

static STATE: Mutex<State> = Mutex::new(State::new());

/// cuda.h's `CUDA_ERROR_INVALID_VALUE`.
const INVALID_VALUE: u32 = 1;

/// Runs a call on the state and converts its outcome to a `CUresult`.
fn answer(call: impl FnOnce(&mut State) -> Result<(), Refusal>) -> u32 {
    let mut state = STATE.lock().unwrap_or_else(PoisonError::into_inner);
    match call(&mut state) {
        Ok(()) => 0,
        Err(refusal) => refusal.code(),
    }
}

/// Writes through a pointer of the caller.
fn put<T>(place: *mut T, value: T) -> Result<(), Refusal> {
    if place.is_null() {
        return Err(Refusal::InvalidValue);
    }
    // SAFETY: not null, so by cuda.h valid for a write of the declared type.
    unsafe { place.write(value) };
    Ok(())
}

/// Writes a text with its terminator into a buffer of `length` bytes.
fn put_text(place: *mut c_char, length: c_int, text: &str) -> Result<(), Refusal> {
    let length = usize::try_from(length).map_err(|_| Refusal::InvalidValue)?;
    if place.is_null() || length <= text.len() {
        return Err(Refusal::InvalidValue);
    }
    for (index, byte) in text.bytes().chain([0]).enumerate() {
        // SAFETY: the buffer has `length` bytes, which is more than the text.
        unsafe { place.add(index).write(c_char::from_ne_bytes([byte])) };
    }
    Ok(())
}

/// `cuInit` of cuda.h.
#[unsafe(no_mangle)]
extern "C" fn cuInit(flags: c_uint) -> u32 {
    if flags == 0 { answer(State::init) } else { INVALID_VALUE }
}

/// `cuDriverGetVersion` of cuda.h.
#[unsafe(no_mangle)]
extern "C" fn cuDriverGetVersion(version: *mut c_int) -> u32 {
    answer(|_| put(version, 13_000))
}

/// `cuDeviceGetCount` of cuda.h.
#[unsafe(no_mangle)]
extern "C" fn cuDeviceGetCount(count: *mut c_int) -> u32 {
    answer(|state| put(count, c_int::try_from(state.devices()?).unwrap_or(c_int::MAX)))
}

/// `cuDeviceGet` of cuda.h.
#[unsafe(no_mangle)]
extern "C" fn cuDeviceGet(device: *mut c_int, ordinal: c_int) -> u32 {
    answer(|state| {
        let known =
            usize::try_from(ordinal).is_ok_and(|index| state.devices().is_ok_and(|count| index < count));
        if known { put(device, ordinal) } else { Err(Refusal::InvalidDevice) }
    })
}

/// `cuDeviceGetPCIBusId` of cuda.h.
#[unsafe(no_mangle)]
extern "C" fn cuDeviceGetPCIBusId(text: *mut c_char, length: c_int, device: c_int) -> u32 {
    answer(|state| put_text(text, length, &state.pci(device)?))
}

/// `cuDevicePrimaryCtxRetain` of cuda.h.
#[unsafe(no_mangle)]
extern "C" fn cuDevicePrimaryCtxRetain(context: *mut usize, device: c_int) -> u32 {
    answer(|state| {
        state.retain(device)?;
        put(context, 1)
    })
}

/// `cuDevicePrimaryCtxRelease_v2` of cuda.h.
#[unsafe(no_mangle)]
extern "C" fn cuDevicePrimaryCtxRelease_v2(_device: c_int) -> u32 {
    answer(State::release)
}

/// `cuCtxSetCurrent` of cuda.h.
#[unsafe(no_mangle)]
extern "C" fn cuCtxSetCurrent(_context: usize) -> u32 {
    0
}

/// `cuCtxSynchronize` of cuda.h.
#[unsafe(no_mangle)]
extern "C" fn cuCtxSynchronize() -> u32 {
    0
}

/// `cuMemAlloc_v2` of cuda.h.
#[unsafe(no_mangle)]
extern "C" fn cuMemAlloc_v2(pointer: *mut u64, size: usize) -> u32 {
    answer(|state| {
        let address = state.allocate(size as u64)?;
        put(pointer, address)
    })
}

/// `cuMemFree_v2` of cuda.h.
#[unsafe(no_mangle)]
extern "C" fn cuMemFree_v2(pointer: u64) -> u32 {
    answer(|state| state.free(pointer))
}

/// `cuMemsetD8_v2` of cuda.h; the fake keeps no contents.
#[unsafe(no_mangle)]
extern "C" fn cuMemsetD8_v2(pointer: u64, _byte: c_uchar, size: usize) -> u32 {
    answer(|state| state.touch(pointer, size as u64))
}

/// `cuMemGetInfo_v2` of cuda.h.
#[unsafe(no_mangle)]
extern "C" fn cuMemGetInfo_v2(free: *mut usize, total: *mut usize) -> u32 {
    answer(|state| {
        let (left, all) = state.memory()?;
        put(free, usize::try_from(left).unwrap_or(0))?;
        put(total, usize::try_from(all).unwrap_or(0))
    })
}
