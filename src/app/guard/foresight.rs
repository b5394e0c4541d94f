//! What the analyzers and the GPU source say that concerns one job, found in a frame.

use super::facts::Known;
use crate::analyzers::{exhaustion, leak};
use crate::model::desc::Metric;
use crate::model::frame::Frame;
use crate::model::point::Point;
use crate::model::scope::within;
use crate::protection::policy::Forecast;

/// What tells one job from others in a frame.
#[derive(Debug, Default)]
pub(super) struct Traits<'f> {
    /// The workloads it is made of.
    pub(super) workloads: Vec<&'f str>,
    /// Its group.
    pub(super) group: Option<&'f str>,
    /// The UUIDs of the GPUs that it uses.
    pub(super) gpus: Vec<&'f str>,
    /// Whether the host's memory and the GPUs' are watched for it.
    pub(super) host: bool,
    pub(super) gpu: bool,
}

fn points<'f, M: Metric>(frame: &'f Frame, metric: &'static M) -> &'f [Point] {
    let family = frame.families.iter().find(|family| std::ptr::eq(family.desc, metric.desc()));
    family.map_or(&[], |family| &family.points)
}

impl Traits<'_> {
    /// Whether the labels of an analyzer's point are about this job: resource, cgroup, gpu, uuid, workload, pid.
    fn concerns(&self, point: &Point) -> bool {
        let label = |place: usize| point.labels.get(place).map_or("", |label| label.as_str());
        match label(0) {
            "host" => self.host,
            "cgroup" => self.group.is_some_and(|group| within(group, label(1))),
            "gpu" => self.gpu && self.gpus.contains(&label(3)),
            "workload" => self.workloads.contains(&label(4)),
            _ => false,
        }
    }

    /// The soonest exhaustion; the outer absence is that of anybody who looks.
    pub(super) fn forecast(&self, frame: &Frame) -> Option<Option<Forecast>> {
        points(frame, &exhaustion::metrics::FOLLOWED).first()?;
        let soonest = |estimate: &str| {
            let about = points(frame, &exhaustion::metrics::TTE).iter().filter(|point| {
                point.labels.last().is_some_and(|label| label.as_str() == estimate) && self.concerns(point)
            });
            about.map(|point| point.value).reduce(f64::min)
        };
        Some(soonest("p50").map(|p50| Forecast { p10: soonest("p10").unwrap_or(p50), p50 }))
    }

    /// Whether a leak is confirmed; absent where nobody looks.
    pub(super) fn leak(&self, frame: &Frame) -> Option<bool> {
        points(frame, &leak::metrics::FOLLOWED).first()?;
        let about = points(frame, &leak::metrics::STATE).iter().filter(|point| {
            let label = |place: usize| point.labels.get(place).map_or("", |label| label.as_str());
            matches!(label(0), "workload" | "process") && self.workloads.contains(&label(4))
        });
        let leaking = |point: &Point| {
            point.value > 0.0 && point.labels.last().is_some_and(|state| state.as_str() == "leaking")
        };
        Some(about.into_iter().any(leaking))
    }

    /// The GPU with least left of those that it uses.
    #[cfg(feature = "gpu")]
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "bytes that were a whole number before"
    )]
    pub(super) fn gpu_left(&self, frame: &Frame) -> Known {
        use crate::model::units::Bytes;
        use crate::protection::policy::Reading;
        use crate::sources::gpu::metrics::{MEMORY_FREE, MEMORY_USED};
        if self.gpus.is_empty() {
            return Known::Absent;
        }
        let value = |metric, uuid: &str| {
            let point = points(frame, metric)
                .iter()
                .find(|point| point.labels.get(1).is_some_and(|label| label.as_str() == uuid));
            point.map(|point| point.value)
        };
        let mut least: Option<(f64, f64)> = None;
        for uuid in &self.gpus {
            let Some((free, used)) = value(&MEMORY_FREE, uuid).zip(value(&MEMORY_USED, uuid)) else {
                return Known::Unknown;
            };
            if least.is_none_or(|(before, _)| free < before) {
                least = Some((free, free + used));
            }
        }
        least.map_or(Known::Unknown, |(free, total)| {
            let bytes = |value: f64| Bytes::new(value as u64);
            Known::Read(Reading { headroom: bytes(free), total: bytes(total), fast: None, slow: None })
        })
    }

    /// Without GPUs there is nothing to say.
    #[cfg(not(feature = "gpu"))]
    pub(super) fn gpu_left(&self, _frame: &Frame) -> Known {
        Known::Absent
    }
}
