//! Configuration keys of the `perf` source.

use crate::host::process;
use crate::model::setting::{Opt, OptKind, Settings};

static HOST: Opt = Opt {
    key: "host",
    help: "Whether events are counted for the whole host; needs kernel.perf_event_paranoid of 0 or less, or CAP_PERFMON.",
    kind: OptKind::Bool,
    default: "true",
};

static WORKLOADS: Opt = Opt {
    key: "workloads",
    help: "Whether events are counted for each workload.",
    kind: OptKind::Bool,
    default: "true",
};

static HARDWARE: Opt = Opt {
    key: "hardware",
    help: "Whether cycles, instructions and misses are counted with hardware counters, in addition to the kernel's software counters. Disable it where a profiler of a job needs the hardware counters.",
    kind: OptKind::Bool,
    default: "true",
};

static DESCRIPTORS: Opt = Opt {
    key: "max_descriptors",
    help: "Maximum number of file descriptors for counters. Each thread needs one for each event; a process for which there are not enough is not counted and is reported as uncounted.",
    kind: OptKind::Count(9, 1_000_000),
    default: "2000",
};

pub(super) static ALL: &[&Opt] = &[&HOST, &WORKLOADS, &HARDWARE, &DESCRIPTORS];

#[derive(Clone, Copy, Debug)]
pub(super) struct Rules {
    pub(super) host: bool,
    pub(super) workloads: bool,
    pub(super) hardware: bool,
    pub(super) descriptors: usize,
}

impl Rules {
    pub(super) fn new(settings: &Settings) -> Self {
        let configured = usize::try_from(settings.count(&DESCRIPTORS)).unwrap_or(usize::MAX);
        Self {
            host: settings.bool(&HOST),
            workloads: settings.bool(&WORKLOADS),
            hardware: settings.bool(&HARDWARE),
            // The rest is needed by other sources and connections.
            descriptors: configured.min(process::descriptor_limit() / 4),
        }
    }
}
