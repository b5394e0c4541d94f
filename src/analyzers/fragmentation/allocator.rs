//! Fragmentation of a rank's allocator, from the statistics that the job reports.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::{FragmentationState, REGISTRATION, metrics};
use crate::analyzers::ranks;
use crate::model::analyzer::{Analysis, View};
use crate::model::finding::{Evidence, Finding, Severity, Subject};
use crate::model::format;
use crate::model::label::Label;
use crate::model::time::Timestamp;
use crate::model::units::{Bytes, Flag, Ratio};
use crate::sources::training::metrics as training;

/// Minimum unreleasable share of the reserved memory for a state other than fine: below it, the sizes of the next
/// requests matter more than fragmentation.
const WORTH: f64 = 0.05;
/// Seconds for which a failed allocation counts.
const RECENT: f64 = 600.0;

/// State of the allocators, by workload, rank, device and GPU.
#[derive(Debug, Default)]
pub(super) struct Allocators {
    known: BTreeMap<Arc<[Label]>, AllocatorMemory>,
}

#[derive(Debug)]
struct AllocatorMemory {
    /// Sum of retries and failures, as last reported.
    tries: Option<f64>,
    /// When that sum last increased, in seconds on the monotonic clock.
    failed: Option<f64>,
    state: FragmentationState,
    since_unix: f64,
    seen: f64,
}

/// One allocator, in bytes.
struct Figures {
    reserved: f64,
    /// Lost to rounding inside allocated blocks; absent where the requested sizes are not reported.
    internal: Option<f64>,
    /// Free, but cannot be released to the device.
    unreleasable: f64,
    /// Total free memory.
    free: f64,
    largest_free: Option<f64>,
    device_free: Option<f64>,
}

impl Figures {
    fn of(view: &View<'_>, labels: &[Label]) -> Option<Self> {
        let value = |metric| view.value(metric, labels);
        let (reserved, active) = value(&training::RESERVED).zip(value(&training::ACTIVE))?;
        let free = (reserved - active).max(0.0);
        let releasable = value(&training::RELEASABLE);
        // Without a releasable value, the inactive split is the part that cannot be released.
        let unreleasable = releasable
            .map(|releasable| (free - releasable).max(0.0))
            .or_else(|| value(&training::INACTIVE_SPLIT))?;
        Some(Self {
            reserved,
            internal: value(&training::REQUESTED).map(|requested| (active - requested).max(0.0)),
            unreleasable,
            free,
            largest_free: value(&training::LARGEST_FREE),
            device_free: value(&training::DEVICE_FREE),
        })
    }

    fn judge(&self, failed: bool) -> FragmentationState {
        if self.reserved <= 0.0 || self.unreleasable < WORTH * self.reserved {
            FragmentationState::Fine
        } else if failed {
            FragmentationState::Fragmented
        } else if self.device_free.is_some_and(|free| free < self.unreleasable) {
            FragmentationState::Fragmenting
        } else {
            FragmentationState::Fine
        }
    }
}

impl Allocators {
    /// Assesses each allocator; adds its metrics and findings.
    pub(super) fn analyze(&mut self, view: &View<'_>, now: Timestamp, out: &mut Analysis) {
        let (at, unix) = (now.monotonic().as_secs_f64(), now.unix().as_secs_f64());
        let pids = ranks::pids(view);
        for point in view.points(&training::RESERVED) {
            let labels = &point.labels;
            let Some(figures) = Figures::of(view, labels) else { continue };
            let new = || AllocatorMemory {
                tries: None,
                failed: None,
                state: FragmentationState::Fine,
                since_unix: unix,
                seen: at,
            };
            let known = self.known.entry(labels.clone()).or_insert_with(new);
            known.seen = at;
            let tries = view.value(&training::RETRIES, labels).into_iter();
            let tries =
                tries.chain(view.value(&training::ALLOCATOR_OOMS, labels)).reduce(|one, two| one + two);
            let before = std::mem::replace(&mut known.tries, tries);
            if tries.zip(before).is_some_and(|(now, before)| now > before) {
                known.failed = Some(at);
            }
            let state = figures.judge(known.failed.is_some_and(|failed| at - failed <= RECENT));
            if state != known.state {
                (known.state, known.since_unix) = (state, unix);
            }
            put(&figures, labels, state, out);
            let [workload, rank, _, gpu] = &**labels else { continue };
            if state != FragmentationState::Fine {
                let pid = pids.get(&[workload, rank]).copied().cloned().unwrap_or_default();
                let subject = Subject::allocator(workload, &pid, gpu);
                out.findings.push(finding(&figures, subject, rank, state, known.since_unix));
            }
        }
        self.known.retain(|_, known| known.seen >= at);
    }
}

fn put(figures: &Figures, labels: &[Label], state: FragmentationState, out: &mut Analysis) {
    let share = |part: f64, of: f64| if of > 0.0 { Ratio::new((part / of).min(1.0)) } else { None };
    out.batch.put(&metrics::UNRELEASABLE, labels, Bytes::of(figures.unreleasable));
    out.batch.put_some(&metrics::UNRELEASABLE_RATIO, labels, share(figures.unreleasable, figures.reserved));
    out.batch.put_some(&metrics::INTERNAL, labels, figures.internal.map(Bytes::of));
    let beyond =
        figures.largest_free.and_then(|largest| share((figures.free - largest).max(0.0), figures.free));
    out.batch.put_some(&metrics::BEYOND_LARGEST, labels, beyond);
    for each in FragmentationState::ALL {
        let labels: Vec<Label> = labels.iter().cloned().chain([each.label().into()]).collect();
        out.batch.put(&metrics::ALLOCATOR_STATE, &labels, Flag(each == state));
    }
}

fn finding(
    figures: &Figures,
    subject: Subject,
    rank: &Label,
    state: FragmentationState,
    since: f64,
) -> Finding {
    let share = format::percent(figures.unreleasable / figures.reserved);
    let why = match state {
        FragmentationState::Fragmented => "allocations were retried or failed within the last 10 minutes",
        _ => "the device has less free memory than that",
    };
    let mut evidence = vec![
        Evidence { what: "unreleasable_bytes", value: figures.unreleasable },
        Evidence { what: "reserved_bytes", value: figures.reserved },
    ];
    evidence.extend(figures.largest_free.map(|value| Evidence { what: "largest_free_bytes", value }));
    evidence.extend(figures.device_free.map(|value| Evidence { what: "device_free_bytes", value }));
    Finding {
        analyzer: REGISTRATION.name,
        subject,
        state: state.label(),
        severity: if state == FragmentationState::Fragmented { Severity::Warning } else { Severity::Info },
        since_unix_seconds: since,
        summary: format!(
            "The allocator of rank {rank} has {} ({share} of its reserved memory) free that it cannot release, and {why}.",
            Bytes::of(figures.unreleasable)
        ),
        evidence,
        advice: "Save a checkpoint and start the job again with \
                 PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True: expandable segments avoid such gaps; \
                 a memory snapshot shows which blocks surround them.",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::point::Batch;
    use crate::model::units::Count;

    const GIB: u64 = 1 << 30;

    /// GiB reserved, active, releasable and free on the device, and the retries; a minute between two.
    fn states(minutes: &[[u64; 5]]) -> Vec<String> {
        let mut analyzer = Allocators::default();
        let labels: [Label; 4] = ["sft".into(), "0".into(), "0".into(), "3".into()];
        let mut states = Vec::new();
        for (minute, [reserved, active, releasable, free, retries]) in (0..).zip(minutes) {
            let mut batch = Batch::new();
            for (metric, amount) in [
                (&training::RESERVED, reserved),
                (&training::ACTIVE, active),
                (&training::RELEASABLE, releasable),
                (&training::DEVICE_FREE, free),
            ] {
                batch.put(metric, &labels, Bytes::new(amount * GIB));
            }
            batch.put(&training::RETRIES, &labels, Count(*retries));
            let mut out = Analysis::default();
            analyzer.analyze(&View::new(batch.families()), Timestamp::from_secs(minute * 60), &mut out);
            let state = out.findings.first().map_or("fine", |finding| finding.state);
            let (families, ..) = out.batch.seal();
            let of = |name: &str| {
                let family = families.iter().find(|family| family.desc.name.ends_with(name)).unwrap();
                family.points[0].value
            };
            states.push(format!("{state} {:.2}", of("_unreleasable_share_ratio")));
        }
        states
    }

    #[test]
    fn releasable_memory_is_no_fragmentation_and_neither_is_a_share_alone() {
        // All free memory can be released.
        assert_eq!(states(&[[60, 20, 40, 1, 0], [60, 20, 40, 1, 3]]), ["fine 0.00", "fine 0.00"]);
        // A third is unreleasable, and the device has plenty.
        assert_eq!(states(&[[30, 20, 0, 40, 0]]), ["fine 0.33"]);
    }

    #[test]
    fn unreleasable_memory_counts_where_the_device_has_little_free() {
        let minutes = [[70, 50, 5, 8, 0], [70, 50, 5, 8, 1], [70, 50, 5, 8, 1], [70, 50, 5, 30, 1]];
        assert_eq!(
            states(&minutes),
            ["fragmenting 0.21", "fragmented 0.21", "fragmented 0.21", "fragmented 0.21"]
        );
        let long_ago: Vec<[u64; 5]> = [vec![[70, 50, 5, 30, 0]], vec![[70, 50, 5, 30, 1]; 13]].concat();
        assert_eq!(states(&long_ago)[12..], ["fine 0.21", "fine 0.21"]);
    }
}
