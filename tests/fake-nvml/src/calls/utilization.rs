//! Utilization of the whole GPU; a partitioned GPU and its instances have none.

use super::device_calls;
use crate::abi::{Answer, Code, Out, Utilization};
use crate::scenario::Device;
use crate::target::Target;
use crate::value::Value;

/// The period that real drivers report, in microseconds.
const PERIOD_MICROS: u32 = 167_000;

fn whole(target: &Target) -> Result<&Device, Code> {
    let gpu = target.physical()?;
    if gpu.mig_enabled() { Err(Code::NOT_SUPPORTED) } else { Ok(gpu) }
}

fn codec(target: &Target, value: Option<&Value>, percent: &Out<u32>, period: &Out<u32>) -> Answer {
    whole(target)?;
    percent.set(target.read(value)?)?;
    period.set(PERIOD_MICROS)
}

device_calls! {
    nvmlDeviceGetUtilizationRates(target, rates: Out<Utilization>) {
        let gpu = whole(&target)?;
        let memory = gpu.memory_utilization.as_ref();
        rates.set(Utilization {
            gpu: target.read(gpu.utilization.as_ref())?,
            memory: memory.map_or(0, |value| target.at(value)),
        })
    }

    nvmlDeviceGetEncoderUtilization(target, percent: Out<u32>, period: Out<u32>) {
        codec(&target, target.gpu().encoder_utilization.as_ref(), &percent, &period)
    }

    nvmlDeviceGetDecoderUtilization(target, percent: Out<u32>, period: Out<u32>) {
        codec(&target, target.gpu().decoder_utilization.as_ref(), &percent, &period)
    }
}
