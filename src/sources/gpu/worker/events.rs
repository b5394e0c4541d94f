//! The thread that looks for XIDs of all GPUs.
//!
//! Each GPU has a set of its own: while one is lost, a wait on a set that
//! it shares with others fails for all of them.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use nvml_wrapper::error::NvmlError;
use nvml_wrapper::{Device, Nvml};

use super::{Shared, raw};
use crate::sources::gpu::protocol::{Line, Xid};

/// How often the sets are looked at; short, so that a request to leave is soon seen.
const EVERY: Duration = Duration::from_millis(250);

/// The most events of one GPU that are told in one round, so that a storm delays nobody.
const ROUND: usize = 16;

/// The sets of all GPUs.
#[derive(Debug, Default)]
pub(super) struct Events(Mutex<Vec<(u32, raw::EventSet)>>);

impl Events {
    /// Adds a GPU; called on its own thread, because it can hang.
    pub(super) fn register(&self, device: &Device<'_>, gpu: u32) -> Result<(), NvmlError> {
        let known = self.sets().iter().find(|known| known.0 == gpu).map(|known| known.1);
        let set = match known {
            Some(set) => set,
            None => raw::event_set(device.nvml())?,
        };
        raw::register(device, set)?;
        if known.is_none() {
            self.sets().push((gpu, set));
        }
        Ok(())
    }

    /// Tells XIDs until the worker leaves.
    pub(super) fn run(&self, nvml: &Nvml, shared: &Shared) {
        while !shared.leaving() {
            let sets = self.sets().clone();
            for (gpu, set) in sets {
                for _ in 0..ROUND {
                    // A timeout is the end of the news; any other error is the business of the GPU's own thread.
                    let Ok(xid) = raw::wait(nvml, set, 0) else { break };
                    if let Ok(xid) = u32::try_from(xid) {
                        shared.tell(&Line::Xid(Xid { gpu, xid }));
                    }
                }
            }
            std::thread::sleep(EVERY);
        }
    }

    fn sets(&self) -> std::sync::MutexGuard<'_, Vec<(u32, raw::EventSet)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
