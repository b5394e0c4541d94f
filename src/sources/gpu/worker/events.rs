//! The thread that waits for XIDs of all GPUs.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use nvml_wrapper::error::NvmlError;
use nvml_wrapper::{Device, Nvml};

use super::{Shared, raw};
use crate::sources::gpu::protocol::{Line, Xid};

/// Short, so that a request to leave is soon seen.
const WAIT_MS: u32 = 500;

/// A pause after an error, which `nvmlEventSetWait` repeats at once while a GPU is lost.
const PAUSE: Duration = Duration::from_millis(500);

/// The set all GPUs are registered with.
#[derive(Debug)]
pub(super) struct Events {
    set: raw::EventSet,
    /// GPUs by the address of their handle.
    gpus: Mutex<Vec<(usize, u32)>>,
}

impl Events {
    pub(super) fn new(nvml: &Nvml) -> Result<Self, NvmlError> {
        Ok(Self { set: raw::event_set(nvml)?, gpus: Mutex::default() })
    }

    /// Adds a GPU; called on its own thread, because it can hang.
    pub(super) fn register(&self, device: &Device<'_>, gpu: u32) -> Result<(), NvmlError> {
        let address = raw::address(device);
        {
            let mut gpus = self.gpus.lock().unwrap_or_else(PoisonError::into_inner);
            gpus.retain(|known| known.0 != address);
            gpus.push((address, gpu));
        }
        raw::register(device, self.set)
    }

    /// Tells XIDs until the worker leaves.
    pub(super) fn run(&self, nvml: &Nvml, shared: &Shared) {
        while !shared.leaving() {
            match raw::wait(nvml, self.set, WAIT_MS) {
                Ok(event) => {
                    let gpus = self.gpus.lock().unwrap_or_else(PoisonError::into_inner);
                    let gpu = gpus.iter().find(|known| known.0 == event.device).map(|known| known.1);
                    drop(gpus);
                    if let (Some(gpu), Ok(xid)) = (gpu, u32::try_from(event.xid)) {
                        shared.tell(&Line::Xid(Xid { gpu, xid }));
                    }
                }
                Err(NvmlError::Timeout) => {}
                Err(_) => std::thread::sleep(PAUSE),
            }
        }
    }
}
