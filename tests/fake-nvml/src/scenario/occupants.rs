//! Users of a GPU: processes and MIG instances.

use std::collections::BTreeMap;

use serde::Deserialize;

use super::gauges::Memory;
use crate::value::Value;

/// A process on a GPU or an instance.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Process {
    pub(crate) pid: u32,
    /// In bytes; absent or null reads as NVML_VALUE_NOT_AVAILABLE.
    pub(crate) memory: Option<Value>,
    #[serde(default, rename = "type")]
    pub(crate) kind: Kind,
    /// The result of nvmlSystemGetProcessName; the executable of the pid if absent.
    pub(crate) name: Option<String>,
    /// Utilization in percent; a process without `sm` has no utilization sample.
    pub(crate) sm: Option<Value>,
    pub(crate) mem: Option<Value>,
    pub(crate) enc: Option<Value>,
    pub(crate) dec: Option<Value>,
    pub(crate) gi: Option<u32>,
    pub(crate) ci: Option<u32>,
}

/// Which of the three process lists a process is in.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Kind {
    #[default]
    Compute,
    Graphics,
    Mps,
}

/// Multi-instance mode.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Mig {
    pub(crate) enabled: bool,
    /// The mode after the next reset; as now if absent.
    pub(crate) pending: Option<bool>,
    /// By MIG index; null leaves a gap, as a destroyed instance does.
    pub(crate) instances: Vec<Option<Instance>>,
}

/// A MIG instance, which has a separate device handle.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Instance {
    pub(crate) uuid: String,
    #[serde(default = "default_name")]
    pub(crate) name: String,
    pub(crate) gi: u32,
    #[serde(default)]
    pub(crate) ci: u32,
    #[serde(default = "one")]
    pub(crate) gpu_slices: u32,
    #[serde(default = "one")]
    pub(crate) compute_slices: u32,
    #[serde(default = "sixteen")]
    pub(crate) multiprocessors: u32,
    #[serde(default = "one")]
    pub(crate) copy_engines: u32,
    #[serde(default)]
    pub(crate) decoders: u32,
    #[serde(default)]
    pub(crate) encoders: u32,
    #[serde(default)]
    pub(crate) jpeg: u32,
    #[serde(default)]
    pub(crate) ofa: u32,
    pub(crate) memory: Option<Memory>,
    /// The GPM metrics of its GPU instance, by id.
    #[serde(default)]
    pub(crate) gpm: BTreeMap<u32, Value>,
    #[serde(default)]
    pub(crate) processes: Vec<Process>,
}

fn default_name() -> String {
    "NVIDIA H100 80GB HBM3 MIG 1g.10gb".into()
}

fn one() -> u32 {
    1
}

fn sixteen() -> u32 {
    16
}
