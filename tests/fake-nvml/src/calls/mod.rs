//! The exported functions, by subject.

mod clocks;
mod events;
mod fields;
mod gpm;
mod handles;
mod identity;
mod marker;
mod memory;
mod mig;
mod nvlink;
mod pcie;
mod processes;
mod reliability;
mod system;
mod thermal;
mod unsupported;
mod utilization;
mod virtualization;

/// Exports calls that take a device: `name(target, argument: Type, …) { body }`.
macro_rules! device_calls {
    ($($name:ident($target:ident $(, $argument:ident: $type:ty)*) $body:block)*) => {$(
        #[doc = concat!("`", stringify!($name), "` of nvml.h.")]
        #[unsafe(no_mangle)]
        extern "C" fn $name(device: $crate::abi::Handle $(, $argument: $type)*) -> $crate::abi::Code {
            $crate::abi::answer(|| {
                let $target = $crate::target::Target::enter(device, stringify!($name))?;
                $body
            })
        }
    )*};
}

/// Exports calls that write one number of the scenario: `name: Type = path.in.the.device;`.
macro_rules! gauges {
    ($($name:ident: $type:ty = $($field:ident).+;)*) => {$(
        #[doc = concat!("`", stringify!($name), "` of nvml.h.")]
        #[unsafe(no_mangle)]
        extern "C" fn $name(device: $crate::abi::Handle, out: $crate::abi::Out<$type>) -> $crate::abi::Code {
            $crate::abi::answer(|| {
                let target = $crate::target::Target::enter(device, stringify!($name))?;
                let value = target.physical()?.$($field).+.as_ref();
                out.set(target.read(value)?)
            })
        }
    )*};
}

/// Exports calls that take no device: `name(loaded, argument: Type, …) { body }`.
macro_rules! system_calls {
    ($($name:ident($loaded:ident $(, $argument:ident: $type:ty)*) $body:block)*) => {$(
        #[doc = concat!("`", stringify!($name), "` of nvml.h.")]
        #[unsafe(no_mangle)]
        extern "C" fn $name($($argument: $type),*) -> $crate::abi::Code {
            $crate::abi::answer(|| {
                let $loaded = $crate::target::enter_system(stringify!($name))?;
                $body
            })
        }
    )*};
}

pub(crate) use {device_calls, gauges, system_calls};
