//! What several analyzers read of the GPUs.

use std::collections::BTreeMap;

use crate::model::analyzer::View;
use crate::model::label::Label;
use crate::sources::gpu::metrics::UTILIZATION;

/// The utilization of each GPU, 0 to 1, by UUID; a GPU without a known utilization is absent.
pub(super) fn utilization(view: &View<'_>) -> BTreeMap<Label, f64> {
    view.points(&UTILIZATION).iter().map(|point| (point.labels[1].clone(), point.value)).collect()
}
