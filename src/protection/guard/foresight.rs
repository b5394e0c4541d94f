//! What the analyzers and the GPU source say that concerns one job, found in a frame.
//!
//! A figure counts only where the process that it is about is one of the job's
//! verified members. What a series is called is a text that others may choose.

use std::collections::BTreeSet;
use std::time::Duration;

use super::facts::Known;
use crate::analyzers::{exhaustion, leak};
use crate::model::desc::Metric;
use crate::model::frame::Frame;
use crate::model::point::Point;
use crate::model::units::Bytes;
use crate::protection::policy::{Forecast, Reading};
use crate::protection::words::scope::within;

/// A rank that said nothing for so long may have died, or hang; its client sends figures every second.
const SILENT: Duration = Duration::from_secs(10);

/// What tells one job from others in a frame.
#[derive(Debug, Default)]
pub(super) struct Traits<'f> {
    /// The pids of its members.
    pub(super) pids: BTreeSet<u32>,
    /// The ranks that its members are, by the labels `workload` and `rank` of their figures.
    pub(super) ranks: BTreeSet<(&'f str, &'f str)>,
    /// The workloads that are made of its members only, so that their sums are the job's own.
    pub(super) workloads: BTreeSet<&'f str>,
    /// Whether others' processes are in a workload of its members: what is foreseen for such a one is not known.
    pub(super) mixed: bool,
    /// Its group.
    pub(super) group: Option<&'f str>,
    /// The UUIDs of the GPUs that it uses.
    pub(super) gpus: Vec<&'f str>,
    /// Whether the host's memory, the GPUs' and its allocators' are watched for it.
    pub(super) host: bool,
    pub(super) gpu: bool,
    pub(super) allocator: bool,
}

fn points<'f, M: Metric>(frame: &'f Frame, metric: &'static M) -> &'f [Point] {
    let family = frame.families.iter().find(|family| std::ptr::eq(family.desc, metric.desc()));
    family.map_or(&[], |family| &family.points)
}

/// What is left of a total, in bytes.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "bytes that were a whole number before"
)]
fn reading(left: f64, total: f64) -> Known {
    let bytes = |value: f64| Bytes::new(value as u64);
    Known::Read(Reading { headroom: bytes(left), total: bytes(total), fast: None, slow: None })
}

impl Traits<'_> {
    /// Whether the labels of an analyzer's point are about this job: resource, cgroup, gpu, uuid, workload, pid.
    fn concerns(&self, point: &Point) -> bool {
        let label = |place: usize| point.labels.get(place).map_or("", |label| label.as_str());
        match label(0) {
            "host" => self.host,
            "cgroup" => self.group.is_some_and(|group| within(group, label(1))),
            "gpu" => self.gpu && self.gpus.contains(&label(3)),
            "workload" => self.workloads.contains(label(4)),
            "allocator" => self.allocator && self.is_member(label(5)),
            _ => false,
        }
    }

    /// Whether the label `pid`, which is the kernel's, is that of a member.
    fn is_member(&self, pid: &str) -> bool {
        pid.parse().is_ok_and(|pid| self.pids.contains(&pid))
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
        let soonest = soonest("p50").map(|p50| Forecast { p10: soonest("p10").unwrap_or(p50), p50 });
        // Nothing foreseen is a statement, which nobody makes of a workload that is not looked at.
        (soonest.is_some() || !self.mixed).then_some(soonest)
    }

    /// Whether a leak is confirmed; absent where nobody looks.
    pub(super) fn leak(&self, frame: &Frame) -> Option<bool> {
        points(frame, &leak::metrics::FOLLOWED).first()?;
        let about = points(frame, &leak::metrics::STATE).iter().filter(|point| {
            let label = |place: usize| point.labels.get(place).map_or("", |label| label.as_str());
            match label(0) {
                "workload" => self.workloads.contains(label(4)),
                "process" | "allocator" => self.is_member(label(5)),
                _ => false,
            }
        });
        let leaking = |point: &Point| {
            point.value > 0.0 && point.labels.last().is_some_and(|state| state.as_str() == "leaking")
        };
        let leaks = about.into_iter().any(leaking);
        (leaks || !self.mixed).then_some(leaks)
    }

    /// The allocator with least left of those that its ranks tell of: what is free on the device, and what the
    /// allocator has taken of it and given to no tensor. Not known where a rank is silent for too long.
    pub(super) fn allocator_left(&self, frame: &Frame) -> Known {
        use crate::sources::training::metrics::{ALLOCATED, DEVICE_FREE, MESSAGE_AGE, RESERVED};
        let mut least: Option<(f64, f64)> = None;
        let ours = |point: &&Point| match &point.labels[..] {
            [workload, rank, ..] => self.ranks.contains(&(workload.as_str(), rank.as_str())),
            _ => false,
        };
        for point in points(frame, &ALLOCATED).iter().filter(ours) {
            let labels = &point.labels[..];
            let value = |metric| points(frame, metric).iter().find(|other| other.labels[..] == *labels);
            let rank = labels.get(..2).unwrap_or_default();
            let age = points(frame, &MESSAGE_AGE).iter().find(|other| other.labels[..] == *rank);
            let fresh = age.is_some_and(|age| age.value <= SILENT.as_secs_f64());
            let Some((reserved, free)) = value(&RESERVED).zip(value(&DEVICE_FREE)).filter(|_| fresh) else {
                return Known::Unknown;
            };
            let total = reserved.value + free.value;
            let left = (total - point.value).max(0.0);
            if least.is_none_or(|(before, _)| left < before) {
                least = Some((left, total));
            }
        }
        // What a log or a push says of the job's allocator has no process, and nothing says how old it is.
        let told = |point: &Point| {
            point.labels.first().is_some_and(|workload| self.workloads.contains(workload.as_str()))
        };
        match least {
            Some((left, total)) => reading(left, total),
            None if points(frame, &ALLOCATED).iter().any(told) => Known::Unknown,
            None => Known::Absent,
        }
    }

    /// The GPU with least left of those that it uses.
    #[cfg(feature = "gpu")]
    pub(super) fn gpu_left(&self, frame: &Frame) -> Known {
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
        least.map_or(Known::Unknown, |(free, total)| reading(free, total))
    }

    /// Without GPUs there is nothing to say.
    #[cfg(not(feature = "gpu"))]
    pub(super) fn gpu_left(&self, _frame: &Frame) -> Known {
        Known::Absent
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::label::Label;
    use crate::model::point::Batch;
    use crate::model::time::Timestamp;
    use crate::model::units::Seconds;
    use crate::sources::training::metrics::{ALLOCATED, DEVICE_FREE, MESSAGE_AGE, RESERVED};

    fn frame(out: Batch) -> Frame {
        let (families, ..) = out.seal();
        let (sources, findings, timeline) = Default::default();
        Frame { sequence: 1, at: Timestamp::from_secs(1), families, sources, findings, timeline }
    }

    /// What is left of ranks with so much allocated, reserved and free, each silent for so long.
    fn left(ranks: &[(u64, u64, Option<u64>, u64)]) -> Known {
        left_of(ranks, ranks.len())
    }

    /// The same, where only so many of the first are members of the job.
    fn left_of(ranks: &[(u64, u64, Option<u64>, u64)], members: usize) -> Known {
        let mut out = Batch::default();
        for (rank, (allocated, reserved, free, silent)) in ranks.iter().enumerate() {
            let of: [Label; 2] = ["job".into(), rank.to_string().into()];
            let labels = [of[0].clone(), of[1].clone(), "0".into(), "".into()];
            out.put(&MESSAGE_AGE, &of, Seconds::from(std::time::Duration::from_secs(*silent)));
            out.put(&ALLOCATED, &labels, Bytes::new(*allocated));
            out.put(&RESERVED, &labels, Bytes::new(*reserved));
            if let Some(free) = free {
                out.put(&DEVICE_FREE, &labels, Bytes::new(*free));
            }
        }
        let names: Vec<String> = (0..members).map(|rank| rank.to_string()).collect();
        let ranks = names.iter().map(|rank| ("job", rank.as_str())).collect();
        let workloads = ["job"].into_iter().collect();
        Traits { workloads, ranks, ..Traits::default() }.allocator_left(&frame(out))
    }

    #[test]
    fn an_allocator_has_what_it_holds_unused_and_what_is_free() {
        assert_eq!(left(&[]), Known::Absent);
        let read = |headroom, total| {
            let (headroom, total) = (Bytes::new(headroom), Bytes::new(total));
            Known::Read(Reading { headroom, total, fast: None, slow: None })
        };
        assert_eq!(left(&[(50, 70, Some(10), 1)]), read(30, 80));
        assert_eq!(left(&[(50, 70, Some(10), 1), (60, 70, Some(10), 1)]), read(20, 80), "the least");
        assert_eq!(left(&[(50, 70, Some(10), 1), (60, 70, None, 1)]), Known::Unknown);
        assert_eq!(left(&[(50, 70, Some(10), 60)]), Known::Unknown, "it says nothing any more");
    }

    #[test]
    fn what_a_process_says_that_is_no_member_changes_nothing() {
        let alice = (50, 70, Some(10), 1);
        let alone = left_of(&[alice], 1);
        // Another process speaks under the same workload: nothing is left, or it says nothing of what is free.
        for forged in [(70, 70, Some(0), 1), (70, 70, None, 1), (70, 70, Some(0), 60)] {
            assert_eq!(left_of(&[alice, forged], 1), alone);
        }
    }

    #[test]
    fn an_allocator_that_no_process_speaks_for_is_not_known() {
        assert_eq!(left_of(&[(50, 70, Some(10), 1)], 0), Known::Unknown);
    }

    #[test]
    fn what_is_foreseen_of_others_under_the_same_name_changes_nothing() {
        let mut out = Batch::default();
        out.put(&exhaustion::metrics::FOLLOWED, &[], crate::model::units::Count(3));
        out.put(&leak::metrics::FOLLOWED, &[], crate::model::units::Count(3));
        let soon = Seconds::from(Duration::from_secs(3));
        for (resource, pid) in [("allocator", "66"), ("workload", "")] {
            for estimate in ["p10", "p50"] {
                let labels = [resource, "", "", "", "job", pid, estimate].map(Label::from);
                out.put(&exhaustion::metrics::TTE, &labels, soon);
            }
            let labels = [resource, "", "", "", "job", pid, "leaking"].map(Label::from);
            out.put(&leak::metrics::STATE, &labels, crate::model::units::Flag(true));
        }
        let labels = ["process", "", "", "", "job", "66", "leaking"].map(Label::from);
        out.put(&leak::metrics::STATE, &labels, crate::model::units::Flag(true));
        let frame = frame(out);
        let own =
            Traits { pids: [55].into_iter().collect(), allocator: true, mixed: true, ..Traits::default() };
        assert_eq!((own.forecast(&frame), own.leak(&frame)), (None, None), "it is not known");
        let forged = Traits { pids: [66].into_iter().collect(), ..own };
        let soon = Some(Some(Forecast { p10: 3.0, p50: 3.0 }));
        assert_eq!((forged.forecast(&frame), forged.leak(&frame)), (soon, Some(true)));
    }
}
