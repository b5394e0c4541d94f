//! Temperature, power, energy, fans.

use super::{device_calls, gauges};
use crate::abi::{Code, MarginV1, Out, TemperatureV1, version_word};

/// The only sensor nvml.h names.
const GPU_SENSOR: u32 = 0;

gauges! {
    nvmlDeviceGetPowerUsage: u32 = power_milliwatts;
    nvmlDeviceGetEnforcedPowerLimit: u32 = power_limit;
    nvmlDeviceGetPowerManagementLimit: u32 = power_limit;
    nvmlDeviceGetPowerManagementDefaultLimit: u32 = power_default_limit;
    nvmlDeviceGetTotalEnergyConsumption: u64 = energy;
    nvmlDeviceGetFanSpeed: u32 = fan_speed;
}

device_calls! {
    nvmlDeviceGetTemperature(target, sensor: u32, celsius: Out<u32>) {
        if sensor != GPU_SENSOR {
            return Err(Code::INVALID_ARGUMENT);
        }
        celsius.set(target.read(target.physical()?.temperature.as_ref())?)
    }

    nvmlDeviceGetTemperatureV(target, temperature: Out<TemperatureV1>) {
        let [version, sensor] = temperature.words()?;
        if version != version_word::<TemperatureV1>(1) {
            return Err(Code::ARGUMENT_VERSION_MISMATCH);
        }
        if sensor != GPU_SENSOR {
            return Err(Code::INVALID_ARGUMENT);
        }
        let celsius = target.read(target.physical()?.temperature.as_ref())?;
        temperature.set(TemperatureV1 { version, sensor, celsius })
    }

    nvmlDeviceGetMarginTemperature(target, margin: Out<MarginV1>) {
        let [version] = margin.words()?;
        if version != version_word::<MarginV1>(1) {
            return Err(Code::ARGUMENT_VERSION_MISMATCH);
        }
        let celsius = target.read(target.physical()?.temperature_margin.as_ref())?;
        margin.set(MarginV1 { version, celsius })
    }

    nvmlDeviceGetTemperatureThreshold(target, kind: u32, celsius: Out<u32>) {
        let thresholds = &target.physical()?.thresholds;
        let threshold = match kind {
            0 => &thresholds.shutdown,
            1 => &thresholds.slowdown,
            2 => &thresholds.memory_max,
            3 => &thresholds.gpu_max,
            4..=7 => &None,
            _ => return Err(Code::INVALID_ARGUMENT),
        };
        celsius.set(target.read(threshold.as_ref())?)
    }

    nvmlDeviceGetPowerManagementLimitConstraints(target, lowest: Out<u32>, highest: Out<u32>) {
        let gpu = target.physical()?;
        lowest.set(target.read(gpu.power_min_limit.as_ref())?)?;
        highest.set(target.read(gpu.power_max_limit.as_ref())?)
    }

    nvmlDeviceGetFanSpeed_v2(target, _fan: u32, percent: Out<u32>) {
        percent.set(target.read(target.physical()?.fan_speed.as_ref())?)
    }

    nvmlDeviceGetNumFans(target, count: Out<u32>) {
        count.set(u32::from(target.physical()?.fan_speed.is_some()))
    }
}
