//! Identity of a device: names, numbers, the PCI address, capabilities.

use super::device_calls;
use crate::abi::{Code, Out, OutText, PciV1, PciV2, PciV3, fixed_text};
use crate::scenario::PciAddress;
use crate::target::Target;

fn address(target: &Target) -> Result<PciAddress, Code> {
    PciAddress::parse(&target.physical()?.pci).ok_or(Code::UNKNOWN)
}

device_calls! {
    nvmlDeviceGetName(target, name: OutText, length: u32) {
        let instance = target.instance().map(|instance| &instance.name);
        name.set(instance.unwrap_or(&target.gpu().name), length)
    }

    nvmlDeviceGetUUID(target, uuid: OutText, length: u32) {
        let instance = target.instance().map(|instance| &instance.uuid);
        uuid.set(instance.unwrap_or(&target.gpu().uuid), length)
    }

    nvmlDeviceGetSerial(target, serial: OutText, length: u32) {
        serial.set(target.physical()?.serial().ok_or(Code::NOT_SUPPORTED)?, length)
    }

    nvmlDeviceGetVbiosVersion(target, version: OutText, length: u32) {
        version.set(target.physical()?.vbios.as_ref().ok_or(Code::NOT_SUPPORTED)?, length)
    }

    nvmlDeviceGetMinorNumber(target, minor: Out<u32>) {
        minor.set(target.physical()?.minor())
    }

    nvmlDeviceGetPciInfo_v3(target, pci: Out<PciV3>) {
        let (gpu, address) = (target.physical()?, address(&target)?);
        // The old field holds a domain of four digits where the new one holds eight.
        let short = gpu.pci.strip_prefix("0000").unwrap_or(&gpu.pci);
        pci.set(PciV3 {
            bus_id_legacy: fixed_text(short),
            domain: address.domain,
            bus: address.bus,
            device: address.device,
            device_id: gpu.pci_device_id,
            subsystem_id: gpu.pci_subsystem_id,
            bus_id: fixed_text(&gpu.pci),
        })
    }

    nvmlDeviceGetPciInfo_v2(target, pci: Out<PciV2>) {
        let (gpu, address) = (target.physical()?, address(&target)?);
        pci.set(PciV2 {
            bus_id: fixed_text(gpu.pci.strip_prefix("0000").unwrap_or(&gpu.pci)),
            domain: address.domain,
            bus: address.bus,
            device: address.device,
            device_id: gpu.pci_device_id,
            subsystem_id: gpu.pci_subsystem_id,
            reserved: [0; 4],
        })
    }

    nvmlDeviceGetPciInfo(target, pci: Out<PciV1>) {
        let (gpu, address) = (target.physical()?, address(&target)?);
        pci.set(PciV1 {
            bus_id: fixed_text(gpu.pci.strip_prefix("0000").unwrap_or(&gpu.pci)),
            domain: address.domain,
            bus: address.bus,
            device: address.device,
            device_id: gpu.pci_device_id,
        })
    }

    nvmlDeviceGetBrand(target, brand: Out<u32>) {
        brand.set(target.physical()?.brand)
    }

    nvmlDeviceGetArchitecture(target, architecture: Out<u32>) {
        architecture.set(target.gpu().architecture as u32)
    }

    nvmlDeviceGetCudaComputeCapability(target, major: Out<i32>, minor: Out<i32>) {
        let (of_gpu_major, of_gpu_minor) = target.gpu().compute_capability;
        major.set(of_gpu_major)?;
        minor.set(of_gpu_minor)
    }

    nvmlDeviceGetNumGpuCores(target, cores: Out<u32>) {
        cores.set(target.physical()?.cores)
    }

    nvmlDeviceGetMemoryBusWidth(target, width: Out<u32>) {
        width.set(target.physical()?.memory_bus_width)
    }

    nvmlDeviceGetPersistenceMode(target, mode: Out<u32>) {
        mode.set(u32::from(target.physical()?.persistence))
    }

    nvmlDeviceGetComputeMode(target, mode: Out<u32>) {
        mode.set(target.physical()?.compute_mode)
    }

    nvmlDeviceGetDisplayMode(target, mode: Out<u32>) {
        target.physical()?;
        mode.set(0)
    }

    nvmlDeviceGetDisplayActive(target, active: Out<u32>) {
        target.physical()?;
        active.set(0)
    }
}
