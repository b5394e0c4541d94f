//! GPM samples: whose counters each one has, and when they were read.

use std::collections::BTreeMap;
use std::sync::{LazyLock, Mutex, MutexGuard, PoisonError};

use crate::abi::{Code, SampleHandle};
use crate::loaded::{Loaded, Place};
use crate::value::Value;

/// Marks sample handles apart from device handles.
const MARK: usize = 0x4750 << 32;

static SAMPLES: LazyLock<Mutex<Registry>> = LazyLock::new(Mutex::default);

#[derive(Debug, Default)]
struct Registry {
    created: usize,
    samples: BTreeMap<usize, Option<Moment>>,
}

/// The content of a sample.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Moment {
    pub(crate) place: Place,
    pub(crate) gpu_instance: Option<u32>,
    /// Seconds since the epoch of the scenario.
    pub(crate) t: f64,
}

fn registry() -> MutexGuard<'static, Registry> {
    SAMPLES.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A new sample without content.
pub(crate) fn allocate() -> SampleHandle {
    let mut registry = registry();
    registry.created += 1;
    let handle = MARK | registry.created;
    registry.samples.insert(handle, None);
    SampleHandle(handle)
}

/// Replaces the content of a sample.
pub(crate) fn fill(handle: SampleHandle, moment: Moment) -> Result<(), Code> {
    let mut registry = registry();
    let sample = registry.samples.get_mut(&handle.0).ok_or(Code::INVALID_ARGUMENT)?;
    *sample = Some(moment);
    Ok(())
}

/// The content of a sample.
pub(crate) fn get(handle: SampleHandle) -> Result<Moment, Code> {
    registry().samples.get(&handle.0).copied().flatten().ok_or(Code::INVALID_ARGUMENT)
}

/// Forgets a sample.
pub(crate) fn free(handle: SampleHandle) -> Result<(), Code> {
    registry().samples.remove(&handle.0).map(drop).ok_or(Code::INVALID_ARGUMENT)
}

/// Forgets every sample, as the last shutdown does.
pub(crate) fn free_all() {
    registry().samples.clear();
}

impl Moment {
    /// The metrics that the scenario gives.
    pub(crate) fn metrics(self, loaded: &Loaded) -> Result<&BTreeMap<u32, Value>, Code> {
        let device = loaded.scenario.devices.get(self.place.device).ok_or(Code::INVALID_ARGUMENT)?;
        match self.gpu_instance {
            None => device.gpm.as_ref().ok_or(Code::NOT_SUPPORTED),
            Some(wanted) => device
                .instances()
                .find(|(_, instance)| instance.gi == wanted)
                .map(|(_, instance)| &instance.gpm)
                .ok_or(Code::INVALID_ARGUMENT),
        }
    }
}
