//! The target of a call: the GPU or instance of a handle, after the scenario's faults.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread;

use crate::abi::{Code, Handle};
use crate::clock;
use crate::faults::{Faults, hang_while};
use crate::loaded::{Counters, Loaded, Place};
use crate::machine;
use crate::scenario::{Device, Instance};
use crate::session;
use crate::value::Value;

/// Marks our handles, so that a stray pointer is refused.
const MARK: u64 = 0x4D57;

/// A GPU or MIG instance at the moment of a call.
#[derive(Debug)]
pub(crate) struct Target {
    pub(crate) loaded: Arc<Loaded>,
    pub(crate) place: Place,
    /// Seconds since the epoch of the scenario.
    pub(crate) t: f64,
}

/// Applies the faults of a call without a device.
pub(crate) fn enter_system(name: &str) -> Result<Arc<Loaded>, Code> {
    session::check(&machine::current())?;
    let loaded = suffer(name);
    session::check(&loaded)?;
    Faults::from(&loaded.scenario).refuse(name)?;
    Ok(loaded)
}

/// Hangs and waits according to the faults without a device.
pub(crate) fn suffer(name: &str) -> Arc<Loaded> {
    hang_while(|| Faults::from(&machine::current().scenario).hangs(name));
    if let Some(latency) = Faults::from(&machine::current().scenario).latency(name) {
        thread::sleep(latency);
    }
    machine::current()
}

impl Target {
    /// Finds the handle's GPU and passes its faults: hang, latency, loss, return code.
    pub(crate) fn enter(handle: Handle, name: &str) -> Result<Self, Code> {
        let mut target = Self::find(handle)?;
        let slot = slot_of(handle).unwrap_or(u32::MAX);
        if Faults::from(target.gpu()).hangs(name) {
            // A driver reload or a shutdown does not free a hung call, only the file does.
            hang_while(|| {
                let now = machine::current();
                let device = now.place(slot).and_then(|place| now.scenario.devices.get(place.device));
                device.is_some_and(|device| Faults::from(device).hangs(name))
            });
            target = Self::find(handle)?;
        }
        if let Some(latency) = Faults::from(target.gpu()).latency(name) {
            thread::sleep(latency);
            target = Self::find(handle)?;
        }
        let calls = target.counters().calls.fetch_add(1, Ordering::Relaxed) + 1;
        if target.gpu().state.is_lost(calls, target.t) {
            return Err(Code::GPU_IS_LOST);
        }
        Faults::from(target.gpu()).refuse(name)?;
        Ok(target)
    }

    fn find(handle: Handle) -> Result<Self, Code> {
        let loaded = machine::current();
        session::check(&loaded)?;
        let slot = slot_of(handle).ok_or(Code::INVALID_ARGUMENT)?;
        if generation_of(handle) != u64::from(loaded.scenario.driver_generation) {
            return Err(Code::INVALID_ARGUMENT);
        }
        let place = loaded.place(slot).ok_or(Code::GPU_IS_LOST)?;
        let t = clock::unix_seconds() - loaded.epoch;
        Ok(Self { loaded, place, t })
    }

    /// The GPU, which for an instance is its parent.
    pub(crate) fn gpu(&self) -> &Device {
        &self.loaded.scenario.devices[self.place.device]
    }

    /// The GPU, for calls that do not support instances.
    pub(crate) fn physical(&self) -> Result<&Device, Code> {
        match self.place.instance {
            None => Ok(self.gpu()),
            Some(_) => Err(Code::NOT_SUPPORTED),
        }
    }

    /// The instance, if the handle is one's.
    pub(crate) fn instance(&self) -> Option<&Instance> {
        let wanted = self.place.instance?;
        self.gpu().instances().find_map(|(index, instance)| (index == wanted).then_some(instance))
    }

    /// The handle of the GPU itself.
    pub(crate) fn parent_handle(&self) -> Result<Handle, Code> {
        let parent = Place { instance: None, ..self.place };
        handle_at(&self.loaded, parent).ok_or(Code::UNKNOWN)
    }

    /// The call counters of the GPU.
    pub(crate) fn counters(&self) -> Arc<Counters> {
        self.loaded.counters(self.place).unwrap_or_default()
    }

    /// A number of the scenario now.
    pub(crate) fn at<T: Reading>(&self, value: &Value) -> T {
        T::of(value.at(self.t))
    }

    /// A number of the scenario now; `NOT_SUPPORTED` where the file has null.
    pub(crate) fn read<T: Reading>(&self, value: Option<&Value>) -> Result<T, Code> {
        value.map(|value| self.at(value)).ok_or(Code::NOT_SUPPORTED)
    }
}

/// The handle of what is at a place.
pub(crate) fn handle_at(loaded: &Loaded, place: Place) -> Option<Handle> {
    let slot = u64::from(loaded.slot(place)?) + 1;
    let generation = u64::from(loaded.scenario.driver_generation);
    usize::try_from(MARK << 48 | generation << 32 | slot).ok().map(Handle)
}

fn slot_of(handle: Handle) -> Option<u32> {
    let bits = handle.0 as u64;
    let slot = u32::try_from(bits & 0xFFFF_FFFF).ok()?;
    if bits >> 48 == MARK { slot.checked_sub(1) } else { None }
}

fn generation_of(handle: Handle) -> u64 {
    handle.0 as u64 >> 32 & 0xFFFF
}

/// An integer of NVML's; numbers too large for it become its largest.
pub(crate) trait Reading {
    /// The number in this width.
    fn of(number: u64) -> Self;
}

impl Reading for u64 {
    fn of(number: u64) -> Self {
        number
    }
}

impl Reading for u32 {
    fn of(number: u64) -> Self {
        Self::try_from(number).unwrap_or(Self::MAX)
    }
}

impl Reading for i32 {
    fn of(number: u64) -> Self {
        Self::try_from(number).unwrap_or(Self::MAX)
    }
}
