//! The XID events of one GPU, polled on the GPU's own thread.
//!
//! Each GPU has its own event set: while a GPU is lost, waiting on a set that
//! it shares with others fails for all of them. A call that hangs here also
//! stops the GPU's samples, so that the parent detects it like any other.

use nvml_wrapper::Device;
use nvml_wrapper::error::NvmlError;

use super::calls::call;
use super::{WorkerShared, problem, raw};
use crate::sources::gpu::protocol::{Line, Reason, Refusal, Xid};

/// Most events reported per check, so that an event storm does not delay samples.
const ROUND: usize = 16;

/// A registration that failed is tried again after this many sweeps.
const RETRY: u32 = 10;

#[derive(Debug)]
pub(super) struct Events {
    gpu: u32,
    set: Option<raw::EventSet>,
    pub(super) refusal: Option<Refusal>,
    sweeps: u32,
}

impl Events {
    /// The state of a GPU that is not registered yet.
    pub(super) fn new(gpu: u32) -> Self {
        Self { gpu, set: None, refusal: None, sweeps: 0 }
    }

    /// Registers the GPU; again if it was registered before, because the set of a lost GPU may still have events.
    pub(super) fn register(&mut self, device: &Device<'_>) {
        self.sweeps = 0;
        self.refusal = self.try_register(device).err().map(problem::refusal);
    }

    fn try_register(&mut self, device: &Device<'_>) -> Result<(), NvmlError> {
        if let Some(set) = &self.set {
            return call("nvmlDeviceRegisterEvents", || raw::register(device, set));
        }
        let set = call("nvmlEventSetCreate", || raw::event_set(device.nvml()))?;
        if let Err(error) = call("nvmlDeviceRegisterEvents", || raw::register(device, &set)) {
            // If it cannot be freed either, it is leaked.
            let _ = call("nvmlEventSetFree", || raw::free(device.nvml(), set));
            return Err(error);
        }
        self.set = Some(set);
        Ok(())
    }

    /// Called before each sweep: retries a failed registration every few sweeps.
    pub(super) fn sweep(&mut self, device: &Device<'_>) {
        if self.refusal.is_some_and(|refusal| refusal.reason != Reason::Unsupported) {
            self.sweeps += 1;
            if self.sweeps >= RETRY {
                self.register(device);
            }
        }
    }

    /// Reports the XIDs that have arrived.
    pub(super) fn look(&mut self, device: &Device<'_>, shared: &WorkerShared) {
        let Some(set) = &self.set else { return };
        for _ in 0..ROUND {
            match call("nvmlEventSetWait_v2", || raw::wait(device, set, 0)) {
                Ok(xid) => {
                    if let Some(xid) = xid.and_then(|xid| u32::try_from(xid).ok()) {
                        shared.send(&Line::Xid(Xid { gpu: self.gpu, xid }));
                    }
                }
                Err(NvmlError::Timeout) => return,
                Err(error) => {
                    let refusal = problem::refusal(error);
                    // The sweep reports errors of the GPU; afterwards the GPU is registered again.
                    if !matches!(refusal.reason, Reason::Lost | Reason::Gone) {
                        self.refusal = Some(refusal);
                        let free = |set| call("nvmlEventSetFree", || raw::free(device.nvml(), set));
                        let _ = self.set.take().map(free);
                    }
                    return;
                }
            }
        }
    }
}
