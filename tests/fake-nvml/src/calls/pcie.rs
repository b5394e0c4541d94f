//! The PCIe link.

use std::thread;
use std::time::Duration;

use super::{device_calls, gauges};
use crate::abi::{Code, Out};

/// The real call measures over this time and blocks for it.
const THROUGHPUT_WINDOW: Duration = Duration::from_millis(20);

gauges! {
    nvmlDeviceGetCurrPcieLinkGeneration: u32 = pcie.generation;
    nvmlDeviceGetCurrPcieLinkWidth: u32 = pcie.width;
    nvmlDeviceGetMaxPcieLinkGeneration: u32 = pcie.max_generation;
    nvmlDeviceGetGpuMaxPcieLinkGeneration: u32 = pcie.max_generation;
    nvmlDeviceGetMaxPcieLinkWidth: u32 = pcie.max_width;
    nvmlDeviceGetPcieReplayCounter: u32 = pcie.replays;
}

device_calls! {
    nvmlDeviceGetPcieThroughput(target, counter: u32, kib_per_second: Out<u32>) {
        let pcie = &target.physical()?.pcie;
        let value = match counter {
            0 => &pcie.tx_kib_per_second,
            1 => &pcie.rx_kib_per_second,
            _ => return Err(Code::INVALID_ARGUMENT),
        };
        let reading = target.read(value.as_ref())?;
        thread::sleep(THROUGHPUT_WINDOW);
        kib_per_second.set(reading)
    }
}
