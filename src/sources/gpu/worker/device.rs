//! The thread that samples one GPU.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use nvml_wrapper::{Device, Nvml};

use super::calls::call;
use super::events::Events;
use super::sweep::Sweeper;
use super::{WorkerShared, problem};
use crate::host::clock;
use crate::sources::gpu::options::Options;
use crate::sources::gpu::protocol::{Identity, Line, Reason, Refusal, Sample, Trouble};

/// Interval between two checks for XIDs if samples are further apart.
const XID_INTERVAL: Duration = Duration::from_secs(1);

/// Opens the GPU with this index and samples it until the worker exits; a lost GPU is opened again.
pub(super) fn run(shared: &WorkerShared, nvml: &'static Nvml, gpu: u32, options: &Options) {
    shared.calls.enter(Some(gpu));
    let mut events = Events::new(gpu);
    while !shared.leaving() {
        let refusal = match call("nvmlDeviceGetHandleByIndex_v2", || nvml.device_by_index(gpu)) {
            Ok(device) => sample(shared, &Arc::new(device), gpu, &mut events, options),
            Err(error) => Some(problem::refusal(error)),
        };
        shared.peaks.remove(gpu);
        let Some(refusal) = refusal else { return };
        shared.send(&Line::Trouble(Trouble { gpu, refusal }));
        if refusal.reason == Reason::Gone {
            shared.gone.store(true, Ordering::Release);
            return;
        }
        shared.rest(options.interval.max(Duration::from_secs(1)));
    }
}

/// Samples one GPU until a call fails for the whole GPU.
fn sample(
    shared: &WorkerShared,
    device: &Arc<Device<'static>>,
    gpu: u32,
    events: &mut Events,
    options: &Options,
) -> Option<Refusal> {
    let identity = match identity(device, gpu) {
        Ok(identity) => identity,
        Err(refusal) => return Some(refusal),
    };
    shared.send(&Line::Device(Box::new(identity)));
    events.register(device);
    if options.memory_peaks {
        shared.peaks.add(gpu, Arc::clone(device));
    }
    let mut sweeper = Sweeper::new(options);
    while !shared.leaving() {
        let begun = clock::now();
        events.sweep(device);
        events.look(device, shared);
        match sweeper.sweep(device, gpu, events.refusal) {
            Ok(sample) => {
                shared.send(&Line::Sample(Box::new(Sample { polled: shared.peaks.take(gpu), ..sample })))
            }
            Err(refusal) => return Some(refusal),
        }
        let mut looked = begun;
        while !shared.leaving() {
            let now = clock::now();
            let left = options.interval.saturating_sub(now.since(begun));
            if left.is_zero() {
                break;
            }
            if now.since(looked) >= XID_INTERVAL {
                looked = now;
                events.look(device, shared);
            }
            shared.rest(left.min(XID_INTERVAL));
        }
    }
    None
}

/// Reads the identity. Only the UUID is required, of a GPU that has one.
fn identity(device: &Device<'_>, gpu: u32) -> Result<Identity, Refusal> {
    let uuid = match call("nvmlDeviceGetUUID", || device.uuid()).map_err(problem::refusal) {
        Err(refusal) if refusal.reason == Reason::Unsupported => String::new(),
        known => known?,
    };
    Ok(Identity {
        gpu,
        uuid,
        name: call("nvmlDeviceGetName", || device.name()).unwrap_or_default(),
        serial: call("nvmlDeviceGetSerial", || device.serial()).unwrap_or_default(),
        pci: call("nvmlDeviceGetPciInfo_v3", || device.pci_info()).map(|pci| pci.bus_id).unwrap_or_default(),
        minor: call("nvmlDeviceGetMinorNumber", || device.minor_number()).ok(),
        vbios: call("nvmlDeviceGetVbiosVersion", || device.vbios_version()).unwrap_or_default(),
        architecture: call("nvmlDeviceGetArchitecture", || device.architecture())
            .map(|architecture| architecture.to_string().to_lowercase())
            .unwrap_or_default(),
    })
}
