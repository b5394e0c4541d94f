//! GPM (GPU performance monitoring): what the SMs, the memory and the links did between two reads of the counters.
//!
//! GPUs have it from Hopper on. It reads counters of its own, so that a profiler can run at the same time
//! (<https://github.com/NVIDIA/DCGM/issues/62>), and it changes no setting of the GPU.

use std::collections::BTreeMap;
use std::time::Duration;

use nvml_wrapper::enums::gpm::GpmMetricId as Id;
use nvml_wrapper::error::NvmlError;
use nvml_wrapper::gpm::gpm_metrics_get;
use nvml_wrapper::{Device, GpmSample};

use super::calls::call;
use super::problem;
use super::sweep::SweepResult;
use crate::host::clock;
use crate::model::time::Timestamp;
use crate::model::units::{MIB, whole};
use crate::sources::gpu::field::Field;
use crate::sources::gpu::protocol::{Instance, Reason, Refusal};

/// Two samples must be more than 100 ms apart, in which the driver renews the counters (documentation of
/// nvmlGpmSampleGet).
const SHORTEST_WINDOW: Duration = Duration::from_millis(150);
/// A share above 100 percent by no more than this is rounding.
const TOLERANCE: f64 = 0.5;

/// How a metric is converted.
#[derive(Clone, Copy, Debug)]
enum Scale {
    /// Percent to millionths.
    Share,
    /// MiB per second to bytes per second.
    Rate,
}

const METRICS: [(Id, Field, Scale); 13] = [
    (Id::GraphicsUtil, Field::EngineActivity, Scale::Share),
    (Id::SmUtil, Field::SmActivity, Scale::Share),
    (Id::SmOccupancy, Field::SmOccupancy, Scale::Share),
    (Id::AnyTensorUtil, Field::TensorActivity, Scale::Share),
    (Id::Fp64Util, Field::Fp64Activity, Scale::Share),
    (Id::Fp32Util, Field::Fp32Activity, Scale::Share),
    (Id::Fp16Util, Field::Fp16Activity, Scale::Share),
    (Id::IntegerUtil, Field::IntegerActivity, Scale::Share),
    (Id::DramBwUtil, Field::DramActivity, Scale::Share),
    (Id::PcieTxPerSec, Field::PcieSentRate, Scale::Rate),
    (Id::PcieRxPerSec, Field::PcieReceivedRate, Scale::Rate),
    (Id::NvlinkTotalTxPerSec, Field::NvlinkSentRate, Scale::Rate),
    (Id::NvlinkTotalRxPerSec, Field::NvlinkReceivedRate, Scale::Rate),
];

/// Reads the GPM metrics of one GPU, or of its MIG instances.
#[derive(Debug, Default)]
pub(super) struct Gpm {
    /// Whether the GPU has GPM, once a call has reported it.
    supported: Option<bool>,
    whole: Window,
    /// By GPU instance.
    instances: BTreeMap<u32, Window>,
}

/// The newest sample, and the metrics between it and the one before.
#[derive(Debug, Default)]
struct Window {
    newest: Option<(Timestamp, GpmSample<'static>)>,
    metrics: SweepResult,
}

impl Gpm {
    /// Adds the metrics of the whole GPU; there are none before the second read.
    pub(super) fn read(&mut self, device: &Device<'static>, found: &mut SweepResult) {
        self.instances.clear();
        if self.supported(device, found) {
            self.whole.advance(device, || call("nvmlGpmSampleGet", || device.gpm_sample()));
            found.append(&self.whole.metrics);
        }
    }

    /// Adds the metrics of each MIG instance; compute instances of one GPU instance have the same ones.
    pub(super) fn read_instances(
        &mut self,
        device: &Device<'static>,
        instances: &mut [Instance],
        found: &mut SweepResult,
    ) {
        self.whole = Window::default();
        if !self.supported(device, found) {
            return;
        }
        self.instances.retain(|gi, _| instances.iter().any(|instance| instance.gi == Some(*gi)));
        for instance in instances {
            let Some(gi) = instance.gi else { continue };
            let window = self.instances.entry(gi).or_default();
            window.advance(device, || call("nvmlGpmMigSampleGet", || device.gpm_mig_sample(gi)));
            found.note_fatal(&window.metrics);
            window.metrics.give(&mut instance.values, &mut instance.refused);
        }
    }

    fn supported(&mut self, device: &Device<'_>, found: &mut SweepResult) -> bool {
        if self.supported.is_none() {
            match call("nvmlGpmQueryDeviceSupport", || device.gpm_support()) {
                Ok(supported) => self.supported = Some(supported),
                Err(error) => {
                    found.refuse(Field::Gpm, problem::refusal(error));
                    return false;
                }
            }
        }
        if self.supported == Some(false) {
            found.refuse(Field::Gpm, problem::refusal(NvmlError::NotSupported));
        }
        self.supported == Some(true)
    }
}

impl Window {
    /// Takes a sample and computes the metrics since the one before, unless that is too recent.
    fn advance(
        &mut self,
        device: &Device<'static>,
        sample: impl FnOnce() -> Result<GpmSample<'static>, NvmlError>,
    ) {
        let now = clock::now();
        if self.newest.as_ref().is_some_and(|(taken, _)| now.since(*taken) < SHORTEST_WINDOW) {
            return;
        }
        let before = self.newest.take();
        self.metrics = SweepResult::default();
        match sample() {
            Ok(sample) => {
                if let Some((_, before)) = before {
                    self.metrics = between(device, &before, &sample);
                }
                self.newest = Some((now, sample));
            }
            Err(error) => self.metrics.refuse(Field::Gpm, problem::refusal(error)),
        }
    }
}

fn between(device: &Device<'static>, before: &GpmSample<'static>, after: &GpmSample<'static>) -> SweepResult {
    let mut metrics = SweepResult::default();
    let ids = METRICS.map(|(id, ..)| id);
    match call("nvmlGpmMetricsGet", || gpm_metrics_get(device.nvml(), before, after, &ids)) {
        Ok(results) => {
            for ((_, field, scale), result) in METRICS.into_iter().zip(results) {
                let value = result.map_err(problem::refusal).and_then(|result| scaled(result.value, scale));
                metrics.record(field, value);
            }
        }
        Err(error) => metrics.refuse(Field::Gpm, problem::refusal(error)),
    }
    metrics
}

/// The metric as a whole number; an error for an impossible one.
fn scaled(value: f64, scale: Scale) -> Result<u64, Refusal> {
    let number = match scale {
        Scale::Share if value <= 100.0 + TOLERANCE => value.min(100.0) * 1e4,
        Scale::Share => f64::NAN,
        Scale::Rate => value * MIB,
    };
    if number.is_finite() && number >= 0.0 {
        Ok(whole(number.round()))
    } else {
        Err(Refusal { reason: Reason::Implausible, code: 0 })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn impossible_metrics_are_refused() {
        assert_eq!(scaled(43.21, Scale::Share), Ok(432_100));
        assert_eq!(scaled(100.3, Scale::Share), Ok(1_000_000), "rounding of the driver");
        assert_eq!(scaled(1.5, Scale::Rate), Ok(1_572_864));
        let refused = Err(Refusal { reason: Reason::Implausible, code: 0 });
        for (value, scale) in [
            (101.0, Scale::Share),
            (-0.1, Scale::Share),
            (f64::NAN, Scale::Share),
            (f64::INFINITY, Scale::Rate),
            (-1.0, Scale::Rate),
        ] {
            assert_eq!(scaled(value, scale), refused, "{value}");
        }
    }
}
