//! Multi-instance GPUs.

use super::device_calls;
use crate::abi::{Attributes, Code, Handle, Out};
use crate::loaded::Place;
use crate::scenario::Instance;
use crate::target::{Target, handle_at};

/// The most instances of the architectures that have them.
const MOST_INSTANCES: u32 = 7;
const MIB: u64 = 1 << 20;

fn instance(target: &Target) -> Result<&Instance, Code> {
    target.instance().ok_or(Code::INVALID_ARGUMENT)
}

device_calls! {
    nvmlDeviceGetMigMode(target, current: Out<u32>, pending: Out<u32>) {
        let mig = target.physical()?.mig.as_ref().ok_or(Code::NOT_SUPPORTED)?;
        current.set(u32::from(mig.enabled))?;
        pending.set(u32::from(mig.pending.unwrap_or(mig.enabled)))
    }

    nvmlDeviceGetMaxMigDeviceCount(target, count: Out<u32>) {
        count.set(if target.physical()?.mig.is_some() { MOST_INSTANCES } else { 0 })
    }

    nvmlDeviceGetMigDeviceHandleByIndex(target, index: u32, mig_device: Out<Handle>) {
        if target.physical()?.mig.is_none() {
            return Err(Code::NOT_SUPPORTED);
        }
        if index >= MOST_INSTANCES {
            return Err(Code::INVALID_ARGUMENT);
        }
        let place = Place { instance: Some(index as usize), ..target.place };
        mig_device.set(handle_at(&target.loaded, place).ok_or(Code::NOT_FOUND)?)
    }

    nvmlDeviceGetDeviceHandleFromMigDeviceHandle(target, parent: Out<Handle>) {
        instance(&target)?;
        parent.set(target.parent_handle()?)
    }

    nvmlDeviceIsMigDeviceHandle(target, is_instance: Out<u32>) {
        is_instance.set(u32::from(target.place.instance.is_some()))
    }

    nvmlDeviceGetGpuInstanceId(target, id: Out<u32>) {
        id.set(instance(&target)?.gi)
    }

    nvmlDeviceGetComputeInstanceId(target, id: Out<u32>) {
        id.set(instance(&target)?.ci)
    }

    nvmlDeviceGetAttributes_v2(target, attributes: Out<Attributes>) {
        let instance = target.instance().ok_or(Code::NOT_SUPPORTED)?;
        let memory = instance.memory.as_ref();
        attributes.set(Attributes {
            multiprocessors: instance.multiprocessors,
            copy_engines: instance.copy_engines,
            decoders: instance.decoders,
            encoders: instance.encoders,
            jpeg: instance.jpeg,
            ofa: instance.ofa,
            gpu_slices: instance.gpu_slices,
            compute_slices: instance.compute_slices,
            memory_mib: memory.map_or(0, |memory| target.at::<u64>(&memory.total) / MIB),
        })
    }
}
