//! Device and BAR1 memory.

use std::sync::atomic::Ordering;

use super::device_calls;
use super::processes::{CHURN_MEMORY, residents};
use crate::abi::{Bar1Memory, Code, MemoryV1, MemoryV2, Out, version_word};
use crate::target::Target;

struct Figures {
    total: u64,
    reserved: u64,
    used: u64,
    free: u64,
}

fn figures(target: &Target) -> Result<Figures, Code> {
    let memory = match target.instance() {
        Some(instance) => instance.memory.as_ref(),
        None => target.gpu().memory.as_ref(),
    };
    let memory = memory.ok_or(Code::NOT_SUPPORTED)?;
    let total: u64 = target.at(&memory.total);
    let reserved: u64 = target.at(&memory.reserved);
    let used = match &memory.used {
        Some(used) => target.at(used),
        None => used_by_processes(target),
    };
    let free = total.saturating_sub(reserved).saturating_sub(used);
    Ok(Figures { total, reserved, used, free })
}

fn used_by_processes(target: &Target) -> u64 {
    let known = residents(target)
        .into_iter()
        .filter_map(|resident| resident.process.memory.as_ref())
        .map(|memory| target.at::<u64>(memory))
        .fold(0, u64::saturating_add);
    let probes = target.counters().probes.load(Ordering::Relaxed);
    known.saturating_add(u64::from(target.gpu().churn.extra(probes)) * CHURN_MEMORY)
}

device_calls! {
    nvmlDeviceGetMemoryInfo(target, memory: Out<MemoryV1>) {
        let Figures { total, reserved, used, free } = figures(&target)?;
        memory.set(MemoryV1 { total, free, used: used.saturating_add(reserved) })
    }

    nvmlDeviceGetMemoryInfo_v2(target, memory: Out<MemoryV2>) {
        let [version] = memory.words()?;
        if version != version_word::<MemoryV2>(2) {
            return Err(Code::ARGUMENT_VERSION_MISMATCH);
        }
        let Figures { total, reserved, used, free } = figures(&target)?;
        memory.set(MemoryV2 { version, total, reserved, free, used })
    }

    nvmlDeviceGetBAR1MemoryInfo(target, memory: Out<Bar1Memory>) {
        let bar1 = target.physical()?.bar1.as_ref().ok_or(Code::NOT_SUPPORTED)?;
        let (total, used): (u64, u64) = (target.at(&bar1.total), target.at(&bar1.used));
        memory.set(Bar1Memory { total, free: total.saturating_sub(used), used })
    }
}
