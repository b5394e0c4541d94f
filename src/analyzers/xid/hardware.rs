//! The state of the hardware of each GPU, in the words of OpenTelemetry's `hw.status`.

use super::metrics::STATE;
use crate::model::analyzer::View;
use crate::model::desc::Gauge;
use crate::model::label::Label;
use crate::model::point::Batch;
use crate::model::units::Flag;
use crate::sources::gpu::metrics::{REMAP_BANKS, REMAP_FAILURE, REMAP_PENDING, RETIREMENT_PENDING, STATUS};

/// The states of a GPU in the semantic conventions.
const STATES: [&str; 4] = ["ok", "degraded", "failed", "predicted_failure"];

/// Puts the state of each GPU; `has_xid` is whether the GPU has reported an XID that needs an operator since its last reset.
pub(super) fn put(view: &View<'_>, has_xid: impl Fn(&Label, &Label) -> bool, out: &mut Batch) {
    for point in view.points(&STATUS).iter().filter(|point| point.value > 0.0) {
        let [gpu, uuid, status] = &*point.labels else { continue };
        let with = |label: &'static str| [gpu.clone(), uuid.clone(), label.into()];
        let is_set = |metric: &'static Gauge<Flag>| {
            view.value(metric, &[gpu.clone(), uuid.clone()]).is_some_and(|value| value > 0.0)
        };
        let without_spare_rows = || view.value(&REMAP_BANKS, &with("none")).is_some_and(|banks| banks > 0.0);
        let state = match status.as_str() {
            "lost" | "hung" => "failed",
            "ok" if is_set(&REMAP_FAILURE) || without_spare_rows() => "predicted_failure",
            "ok" if is_set(&REMAP_PENDING) || is_set(&RETIREMENT_PENDING) || has_xid(gpu, uuid) => "degraded",
            "ok" => "ok",
            _ => continue,
        };
        for each in STATES {
            out.put(&STATE, &with(each), Flag(each == state));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::units::Count;

    /// The state of a GPU with this status, after `fill`; with all series that exist.
    fn state(status: &'static str, has_xid: bool, fill: impl Fn(&mut Batch, &[Label; 2])) -> String {
        let gpu: [Label; 2] = ["0".into(), "GPU-0".into()];
        let mut batch = Batch::new();
        for possible in ["ok", "lost", "hung", "unknown_error", "unobserved"] {
            let [gpu, uuid] = gpu.clone();
            batch.put(&STATUS, &[gpu, uuid, possible.into()], Flag(possible == status));
        }
        fill(&mut batch, &gpu);
        let mut out = Batch::new();
        put(&View::new(batch.families()), |_, _| has_xid, &mut out);
        let points = out.families().iter().flat_map(|family| &family.points);
        let points: Vec<String> =
            points.map(|point| format!("{}={}", point.labels[2], point.value)).collect();
        points.join(" ")
    }

    #[test]
    fn the_state_is_the_worst_that_is_known_and_absent_where_nothing_is() {
        let flag = |metric: &'static Gauge<Flag>, value| {
            move |batch: &mut Batch, gpu: &[Label; 2]| batch.put(metric, gpu, Flag(value))
        };
        let banks = |spare: &'static str, count| {
            move |batch: &mut Batch, gpu: &[Label; 2]| {
                let [gpu, uuid] = gpu.clone();
                batch.put(&REMAP_BANKS, &[gpu, uuid, spare.into()], Count(count));
            }
        };
        let ok = "ok=1 degraded=0 failed=0 predicted_failure=0";
        let degraded = "ok=0 degraded=1 failed=0 predicted_failure=0";
        let failed = "ok=0 degraded=0 failed=1 predicted_failure=0";
        let predicted = "ok=0 degraded=0 failed=0 predicted_failure=1";
        assert_eq!(state("ok", false, |_, _| {}), ok);
        assert_eq!(state("ok", false, flag(&REMAP_FAILURE, false)), ok);
        assert_eq!(state("ok", false, banks("none", 0)), ok);
        assert_eq!(state("ok", false, banks("low", 3)), ok);
        assert_eq!(state("ok", true, |_, _| {}), degraded);
        assert_eq!(state("ok", false, flag(&REMAP_PENDING, true)), degraded);
        assert_eq!(state("ok", false, flag(&RETIREMENT_PENDING, true)), degraded);
        assert_eq!(state("ok", true, flag(&REMAP_FAILURE, true)), predicted);
        assert_eq!(state("ok", false, banks("none", 1)), predicted);
        assert_eq!(state("lost", false, flag(&REMAP_FAILURE, true)), failed);
        assert_eq!(state("hung", false, |_, _| {}), failed);
        assert_eq!(state("unobserved", true, |_, _| {}), "");
        assert_eq!(state("unknown_error", true, |_, _| {}), "");
    }
}
