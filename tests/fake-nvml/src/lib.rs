#![doc = include_str!("../README.md")]
#![allow(
    unsafe_code,
    reason = "the crate is a C ABI: raw pointers are confined to abi, the exported names to calls"
)]

mod abi;
mod calls;
mod clock;
mod event_sets;
mod faults;
mod gpm_samples;
mod loaded;
mod machine;
mod scenario;
mod session;
mod target;
mod value;
