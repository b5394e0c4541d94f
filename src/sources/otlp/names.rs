//! Maps pushed metrics to those of memwarden: Megatron-LM's by a table, memwarden's own by their OTLP name.
//!
//! What Megatron-LM's metrics measure is taken from the code that fills them:
//! `megatron/core/telemetry/training_metrics.py`, called by `training_log` in
//! `megatron/training/training.py`.

use std::collections::HashMap;
use std::sync::OnceLock;

use crate::model::desc::Desc;
use crate::sources::training::metrics as m;

/// The label of a metric in addition to workload and rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Extra {
    None,
    /// The ordinal of a device, and the GPU's index.
    Device,
    Phase,
    /// The counting convention of operations.
    Convention,
}

/// The mapping of a pushed metric.
#[derive(Clone, Copy, Debug)]
pub(super) struct KnownName {
    /// Our metric.
    pub(super) desc: &'static Desc,
    /// The factor by which a pushed value is multiplied.
    pub(super) factor: f64,
    /// Its additional label.
    pub(super) extra: Extra,
    /// The value of that label, if the pushed name determines it.
    pub(super) fixed: Option<&'static str>,
    /// Whether it is a total of the whole job, of which a rank's share is one of as many parts as there are
    /// data-parallel ranks.
    pub(super) of_all: bool,
    /// Whether it can be negative.
    pub(super) signed: bool,
    /// Whether it is a whole number.
    pub(super) whole: bool,
}

impl KnownName {
    fn new(desc: &'static Desc) -> Self {
        let extra = match desc.labels {
            [_, _, "device", "gpu"] => Extra::Device,
            [_, _, "phase"] => Extra::Phase,
            [_, _, "convention"] => Extra::Convention,
            _ => Extra::None,
        };
        let numbers = [&m::LOSS.desc, &m::LEARNING_RATE.desc, &m::GRAD_NORM.desc];
        let number = numbers.iter().any(|number| number.name == desc.name);
        let whole = desc.ucum == "By" || (desc.ucum.starts_with('{') && desc.ucum.ends_with('}') && !number);
        let signed = desc.name == m::LOSS.desc.name;
        Self { desc, factor: 1.0, extra, fixed: None, of_all: false, signed, whole }
    }
}

/// The mapping of a name and unit; nothing for metrics that are not known.
pub(super) fn known(name: &str, unit: &str) -> Option<KnownName> {
    if let Some(name) = name.strip_prefix("megatron.training.") {
        return megatron(name, unit);
    }
    let known = own().get(name)?;
    fits(known.desc.ucum, unit).then_some(*known)
}

fn megatron(name: &str, unit: &str) -> Option<KnownName> {
    let (known, units): (KnownName, &[&str]) = match name {
        // The mean of the steps since the last push.
        "step_duration_ms" => {
            (KnownName { factor: 1e-3, ..KnownName::new(&m::STEP_DURATION.desc) }, &["ms", ""])
        }
        "loss" => (KnownName::new(&m::LOSS.desc), &["", "1"]),
        "grad_norm" => (KnownName::new(&m::GRAD_NORM.desc), &["", "1"]),
        "learning_rate" => (KnownName::new(&m::LEARNING_RATE.desc), &["", "1"]),
        "skipped_iters" => (KnownName::new(&m::SKIPPED.desc), &["", "1"]),
        // Of one GPU; its formula counts half of the attention's square, because of the causal mask.
        "throughput_tflops" => (
            KnownName { factor: 1e12, fixed: Some("causal"), ..KnownName::new(&m::FLOPS.desc) },
            &["", "TFLOP/s", "TFLOP/s/GPU"],
        ),
        // Sequence length times global batch.
        "tokens_per_sec" => (
            KnownName { of_all: true, ..KnownName::new(&m::TOKEN_RATE.desc) },
            &["", "tokens/s", "{token}/s"],
        ),
        // `torch.cuda.max_memory_allocated() / 1024 ** 3`, despite the name.
        "memory_allocated_gb" => (
            KnownName { factor: 1_073_741_824.0, ..KnownName::new(&m::ALLOCATED_PEAK.desc) },
            &["", "GB", "GBy", "GiBy"],
        ),
        _ => return None,
    };
    units.contains(&unit).then_some(known)
}

/// Our own names of those metrics that a job can report.
fn own() -> &'static HashMap<String, KnownName> {
    static OWN: OnceLock<HashMap<String, KnownName>> = OnceLock::new();
    OWN.get_or_init(|| {
        // Metrics that the daemon itself measures or computes for a rank.
        let computed = [
            &m::MESSAGE_AGE.desc,
            &m::STEP_AGE.desc,
            &m::DROPPED.desc,
            &m::MFU.desc,
            &m::PHASE_NOW.desc,
            &m::PROCESS_RSS.desc,
        ];
        let tellable = |desc: &&&'static Desc| {
            let labels = match desc.labels {
                ["workload", "rank", rest @ ..] => rest,
                _ => return false,
            };
            desc.name.starts_with("memwarden_training_")
                && matches!(labels, [] | ["le"] | ["device", "gpu"] | ["phase"] | ["convention"])
                && !computed.iter().any(|other| other.name == desc.name)
        };
        m::METRICS.iter().filter(tellable).map(|desc| (desc.otlp_name(), KnownName::new(desc))).collect()
    })
}

/// Whether a pushed unit matches the declared one; an annotation such as `{token}` may differ or be absent.
fn fits(declared: &str, pushed: &str) -> bool {
    let annotation = |unit: &str| unit.starts_with('{') && unit.ends_with('}');
    match declared.strip_suffix("/s") {
        _ if declared == pushed => true,
        Some(counted) if annotation(counted) => {
            pushed.strip_suffix("/s").is_some_and(|unit| unit == "1" || annotation(unit))
        }
        _ => annotation(declared) && (pushed.is_empty() || pushed == "1" || annotation(pushed)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::desc::Kind;
    use expect_test::expect;

    #[test]
    fn only_metrics_that_a_job_can_measure_are_accepted() {
        let mut names: Vec<String> = own()
            .iter()
            .map(|(name, known)| format!("{name} [{}] {:?}", known.desc.ucum, known.extra))
            .collect();
        names.sort();
        expect![[r#"
            memwarden.training.allocator.active [By] Device
            memwarden.training.allocator.allocated [By] Device
            memwarden.training.allocator.allocated.peak [By] Device
            memwarden.training.allocator.inactive.split [By] Device
            memwarden.training.allocator.largest.free [By] Device
            memwarden.training.allocator.ooms [{failure}] Device
            memwarden.training.allocator.releasable [By] Device
            memwarden.training.allocator.requested [By] Device
            memwarden.training.allocator.reserved [By] Device
            memwarden.training.allocator.reserved.peak [By] Device
            memwarden.training.allocator.retries [{retry}] Device
            memwarden.training.checkpoint.saved.timestamp [s] None
            memwarden.training.checkpoint.step [{step}] None
            memwarden.training.device.free [By] Device
            memwarden.training.device.total [By] Device
            memwarden.training.flops [{flop}/s] Convention
            memwarden.training.gradient.norm [{norm}] None
            memwarden.training.learning.rate [{rate}] None
            memwarden.training.loss [{loss}] None
            memwarden.training.nonfinite.steps [{step}] None
            memwarden.training.phase [s] Phase
            memwarden.training.phase.allocated.peak [By] Phase
            memwarden.training.phases [{phase}] Phase
            memwarden.training.pinned [By] None
            memwarden.training.samples [{sample}] None
            memwarden.training.skipped.steps [{step}] None
            memwarden.training.step [{step}] None
            memwarden.training.step.duration [s] None
            memwarden.training.step.last.duration [s] None
            memwarden.training.steps [{step}] None
            memwarden.training.throughput.tokens [{token}/s] None
            memwarden.training.tokens [{token}] None"#]]
        .assert_eq(&names.join("\n"));
        assert_eq!(own().values().filter(|known| known.desc.kind == Kind::Histogram).count(), 1);
    }

    #[test]
    fn other_units_are_not_accepted() {
        let taken = |name, unit| known(name, unit).map(|known| (known.desc.name, known.factor));
        assert_eq!(
            taken("megatron.training.step_duration_ms", "ms"),
            Some(("memwarden_training_step_duration_seconds", 1e-3))
        );
        assert_eq!(taken("megatron.training.step_duration_ms", "s"), None);
        assert_eq!(taken("megatron.training.loss_scale", ""), None);
        assert_eq!(taken("memwarden.training.step.duration", "ms"), None);
        assert_eq!(taken("memwarden.training.tokens", "1"), Some(("memwarden_training_tokens_total", 1.0)));
        assert_eq!(taken("memwarden.training.tokens", "By"), None);
        assert_eq!(taken("memwarden.training.throughput.tokens", "{token}"), None);
        assert!(fits("{token}/s", "1/s") && fits("{loss}", "") && !fits("By", "") && !fits("s", "1"));
    }

    #[test]
    fn counts_are_whole_and_only_a_loss_is_signed() {
        let of = |name| known(name, "").map(|known| (known.whole, known.signed));
        assert_eq!(of("megatron.training.loss"), Some((false, true)));
        assert_eq!(of("megatron.training.skipped_iters"), Some((true, false)));
        assert_eq!(of("megatron.training.memory_allocated_gb"), Some((true, false)));
        assert_eq!(of("megatron.training.tokens_per_sec"), Some((false, false)));
    }
}
