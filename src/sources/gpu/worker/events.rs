//! The XIDs of one GPU, looked for on the GPU's own thread.
//!
//! Each GPU has a set of its own: while one is lost, a wait on a set that
//! it shares with others fails for all of them. A look that hangs stops the
//! GPU's samples too, so that it is seen from outside like any other call.

use nvml_wrapper::Device;
use nvml_wrapper::error::NvmlError;

use super::calls::call;
use super::{Shared, problem, raw};
use crate::sources::gpu::protocol::{Line, Reason, Refusal, Xid};

/// The most events that are told in one look, so that a storm delays no sample for long.
const ROUND: usize = 16;

/// A registration that failed is tried again after so many sweeps.
const RETRY: u32 = 10;

/// The events of one GPU.
#[derive(Debug)]
pub(super) struct Events {
    gpu: u32,
    set: Option<raw::EventSet>,
    refusal: Option<Refusal>,
    sweeps: u32,
}

impl Events {
    /// Of a GPU that is not registered yet.
    pub(super) fn new(gpu: u32) -> Self {
        Self { gpu, set: None, refusal: None, sweeps: 0 }
    }

    /// Why XIDs are not told, where they are not.
    pub(super) fn refusal(&self) -> Option<Refusal> {
        self.refusal
    }

    /// Registers the GPU, anew where it was before: a set that outlived a lost GPU may still have news.
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
            // Where it cannot be freed either, there is nothing more to do for it.
            let _ = call("nvmlEventSetFree", || raw::free(device.nvml(), set));
            return Err(error);
        }
        self.set = Some(set);
        Ok(())
    }

    /// A sweep is about to begin: tries a registration that failed again, now and then.
    pub(super) fn sweep(&mut self, device: &Device<'_>) {
        if self.refusal.is_some_and(|refusal| refusal.reason != Reason::Unsupported) {
            self.sweeps += 1;
            if self.sweeps >= RETRY {
                self.register(device);
            }
        }
    }

    /// Tells the XIDs that have come.
    pub(super) fn look(&mut self, device: &Device<'_>, shared: &Shared) {
        let Some(set) = &self.set else { return };
        for _ in 0..ROUND {
            match call("nvmlEventSetWait_v2", || raw::wait(device.nvml(), set, 0)) {
                Ok(xid) => {
                    if let Ok(xid) = u32::try_from(xid) {
                        shared.send(&Line::Xid(Xid { gpu: self.gpu, xid }));
                    }
                }
                Err(NvmlError::Timeout) => return,
                Err(error) => {
                    let refusal = problem::refusal(error);
                    // What a sweep meets too is its business; after it the GPU is registered anew.
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
