//! From an index, UUID, serial or PCI address to a handle.

use super::{device_calls, system_calls};
use crate::abi::{Answer, Code, Handle, InText, Out};
use crate::loaded::{Loaded, Place};
use crate::scenario::{Device, PciAddress};
use crate::target::{Target, handle_at};

/// Returns a handle if the faults of the device permit an answer.
fn give(loaded: &Loaded, place: Place, device: &Out<Handle>, name: &str) -> Answer {
    let handle = handle_at(loaded, place).ok_or(Code::UNKNOWN)?;
    Target::enter(handle, name)?;
    device.set(handle)
}

fn by_index(loaded: &Loaded, index: u32, device: &Out<Handle>, name: &str) -> Answer {
    let index = index as usize;
    if index >= loaded.scenario.devices.len() {
        return Err(Code::INVALID_ARGUMENT);
    }
    give(loaded, Place { device: index, instance: None }, device, name)
}

fn by_property(
    loaded: &Loaded,
    device: &Out<Handle>,
    name: &str,
    mut matches: impl FnMut(&Device) -> bool,
) -> Answer {
    let found = loaded.scenario.devices.iter().position(&mut matches);
    let index = found.ok_or(Code::NOT_FOUND)?;
    give(loaded, Place { device: index, instance: None }, device, name)
}

fn by_pci(loaded: &Loaded, id: &InText, device: &Out<Handle>, name: &str) -> Answer {
    let wanted = PciAddress::parse(id.get()?).ok_or(Code::INVALID_ARGUMENT)?;
    by_property(loaded, device, name, |device| PciAddress::parse(&device.pci) == Some(wanted))
}

system_calls! {
    nvmlDeviceGetCount_v2(loaded, count: Out<u32>) {
        loaded.scenario.count.check()?;
        count.set(u32::try_from(loaded.scenario.devices.len()).unwrap_or(u32::MAX))
    }

    nvmlDeviceGetCount(loaded, count: Out<u32>) {
        loaded.scenario.count.check()?;
        count.set(u32::try_from(loaded.scenario.devices.len()).unwrap_or(u32::MAX))
    }

    nvmlDeviceGetHandleByIndex_v2(loaded, index: u32, device: Out<Handle>) {
        by_index(&loaded, index, &device, "nvmlDeviceGetHandleByIndex_v2")
    }

    nvmlDeviceGetHandleByIndex(loaded, index: u32, device: Out<Handle>) {
        by_index(&loaded, index, &device, "nvmlDeviceGetHandleByIndex")
    }

    nvmlDeviceGetHandleByUUID(loaded, uuid: InText, device: Out<Handle>) {
        let wanted = uuid.get()?;
        let name = "nvmlDeviceGetHandleByUUID";
        for (index, gpu) in loaded.scenario.devices.iter().enumerate() {
            for (at, instance) in gpu.instances() {
                if instance.uuid == wanted {
                    return give(&loaded, Place { device: index, instance: Some(at) }, &device, name);
                }
            }
        }
        by_property(&loaded, &device, name, |device| device.uuid == wanted)
    }

    nvmlDeviceGetHandleBySerial(loaded, serial: InText, device: Out<Handle>) {
        let wanted = serial.get()?;
        let name = "nvmlDeviceGetHandleBySerial";
        by_property(&loaded, &device, name, |device| device.serial() == Some(wanted))
    }

    nvmlDeviceGetHandleByPciBusId_v2(loaded, id: InText, device: Out<Handle>) {
        by_pci(&loaded, &id, &device, "nvmlDeviceGetHandleByPciBusId_v2")
    }

    nvmlDeviceGetHandleByPciBusId(loaded, id: InText, device: Out<Handle>) {
        by_pci(&loaded, &id, &device, "nvmlDeviceGetHandleByPciBusId")
    }
}

device_calls! {
    nvmlDeviceGetIndex(target, index: Out<u32>) {
        let place = target.place.instance.unwrap_or(target.place.device);
        index.set(u32::try_from(place).unwrap_or(u32::MAX))
    }
}
