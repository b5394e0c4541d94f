//! GPM: the metrics between two samples of the performance counters.

use super::{device_calls, system_calls};
use crate::abi::{Code, GpmMetric, GpmRequest, GpmSupport, Out, SampleHandle};
use crate::gpm_samples::{self, Moment};

/// The version of nvmlGpmMetricsGet and nvmlGpmQueryDeviceSupport.
const VERSION: u32 = 1;

system_calls! {
    nvmlGpmSampleAlloc(_loaded, sample: Out<SampleHandle>) {
        sample.set(gpm_samples::allocate())
    }

    nvmlGpmSampleFree(_loaded, sample: SampleHandle) {
        gpm_samples::free(sample)
    }

    nvmlGpmMetricsGet(loaded, request: Out<GpmRequest>) {
        let [version, count] = request.words()?;
        if version != VERSION {
            return Err(Code::ARGUMENT_VERSION_MISMATCH);
        }
        let ([before, after], metrics) = (request.samples()?, request.metrics()?);
        let (before, after) = (gpm_samples::get(before)?, gpm_samples::get(after)?);
        if before.place != after.place || before.t >= after.t {
            return Err(Code::INVALID_ARGUMENT);
        }
        let values = after.metrics(&loaded)?;
        for metric in (0..count as usize).map(|index| metrics.at(index)) {
            let [id] = metric.words()?;
            let (code, value) = match values.get(&id) {
                Some(value) => (Code::SUCCESS, value.exact(after.t)),
                None => (Code::NOT_SUPPORTED, 0.0),
            };
            metric.set(GpmMetric { id, code, value, texts: [0; 3] })?;
        }
        Ok(())
    }
}

device_calls! {
    nvmlGpmQueryDeviceSupport(target, support: Out<GpmSupport>) {
        let supported = u32::from(target.physical()?.gpm.is_some());
        let [version] = support.words()?;
        support.set(GpmSupport { version, supported })
    }

    nvmlGpmSampleGet(target, sample: SampleHandle) {
        let gpu = target.physical()?;
        if gpu.gpm.is_none() || gpu.mig_enabled() {
            return Err(Code::NOT_SUPPORTED);
        }
        gpm_samples::fill(sample, Moment { place: target.place, gpu_instance: None, t: target.t })
    }

    nvmlGpmMigSampleGet(target, gpu_instance: u32, sample: SampleHandle) {
        let gpu = target.physical()?;
        if gpu.gpm.is_none() {
            return Err(Code::NOT_SUPPORTED);
        }
        if !gpu.instances().any(|(_, instance)| instance.gi == gpu_instance) {
            return Err(Code::INVALID_ARGUMENT);
        }
        let moment = Moment { place: target.place, gpu_instance: Some(gpu_instance), t: target.t };
        gpm_samples::fill(sample, moment)
    }
}
