//! Fragmentation of free memory: that of the host, and that of the allocators of jobs.
//!
//! # What it says
//! For each zone: the share of free memory in blocks of fewer than 2^9 pages (a huge page of x86-64), smoothed, its
//! trend, and a state: `fine`, `fragmenting` or `fragmented`. For the allocator of each rank that reports its
//! statistics: the free memory that cannot be released, the memory lost to rounding, and the same states.
//!
//! # Method
//! The unusable free index of the kernel's extfrag (mm/vmstat.c, `unusable_free_index`; Gorman and Whitcroft, "The
//! what, the why and the where to of anti-fragmentation", OLS 2006), as the `buddyinfo` source computes it, at order
//! 9, in two exponential means: five minutes and one hour. `fragmenting`: the fast mean is above one half and at
//! least 0.1 above the slow one. `fragmented`: the fast mean is above 0.9, and a page fault or a compaction failed to
//! get a huge page in the last five minutes. The index alone is not sufficient: a host whose free memory is small
//! because the rest is file cache has a high index and is healthy.
//!
//!
//! For an allocator: reserved − active − releasable is unreleasable (the inactive split where the releasable memory
//! is not reported; PyTorch notes on CUDA semantics, `memory_stats`). `fragmented`: at least 5 % of the reserved
//! memory is unreleasable, and the allocator's retries or failures increased in the last ten minutes. `fragmenting`:
//! as much is unreleasable, and it is more than the device has free. (reserved − allocated) / reserved is not
//! evaluated: a cache that can be released is healthy.
//!
//! # When it stays silent
//! During the first minute; for the zone DMA, which training jobs do not use; where `buddyinfo` is off. The
//! fragmentation of an allocator is not visible from outside the job: where the job does not report it, `memwarden
//! snapshot` shows it, and for the sizes that the job requests.
//!
//! # False alarms
//! Huge page allocations also fail because of a memory limit or by policy (`defrag=never`), which the kernel's
//! counters do not distinguish; together with an index above 0.9 this is reported as `fragmented`. An allocation that
//! failed because memory was exhausted while 5 % was unreleasable is reported as `fragmented` for ten minutes.

mod allocator;
pub mod metrics;

use std::collections::BTreeMap;

use super::Registration;
use crate::model::analyzer::{Analysis, Analyzer, View};
use crate::model::finding::{Evidence, Finding, Severity, Subject};
use crate::model::format;
use crate::model::label::Label;
use crate::model::names::named;
use crate::model::time::Timestamp;
use crate::model::units::{Flag, Ratio};
use crate::sources::{buddyinfo, vmstat};

/// Blocks of 2^9 pages: 2 MiB, a huge page, where a page has 4 KiB.
const ORDER: &str = "9";
/// Time constants of the two means, in seconds.
const FAST: f64 = 300.0;
const SLOW: f64 = 3600.0;
/// Seconds before a zone is assessed.
const FIRST: f64 = 60.0;
/// Fast means above which a zone is fragmenting, and fragmented.
const HALF: f64 = 0.5;
const NEARLY_ALL: f64 = 0.9;
/// Minimum difference of the fast and the slow mean of a fragmenting zone.
const RISE: f64 = 0.1;

/// Registration of the `fragmentation` analyzer.
pub static REGISTRATION: Registration = Registration {
    name: "fragmentation",
    about: "Detects fragmentation of the host's free memory and of the allocators of training jobs.",
    metrics: metrics::METRICS,
    ..Registration::built_by(|_| Box::new(Fragmentation::default()))
};

#[derive(Debug, Default)]
struct Fragmentation {
    zones: BTreeMap<(Label, Label), Zone>,
    refusals: Option<f64>,
    /// When a huge page allocation last failed, in seconds on the monotonic clock.
    refused: Option<f64>,
    allocators: allocator::Allocators,
}

#[derive(Debug)]
struct Zone {
    fast: f64,
    slow: f64,
    /// Seconds on the monotonic clock.
    born: f64,
    seen: f64,
    state: FragmentationState,
    since_unix: f64,
}

named! {
    enum FragmentationState {
        Fine = "fine",
        Fragmenting = "fragmenting",
        Fragmented = "fragmented",
    }
}

impl Analyzer for Fragmentation {
    fn analyze(&mut self, view: &View<'_>, now: Timestamp, out: &mut Analysis) {
        let (at, unix) = (now.monotonic().as_secs_f64(), now.unix().as_secs_f64());
        self.count_refusals(view, at);
        let refused = self.refused.is_some_and(|refused| at - refused <= FAST);
        for point in view.points(&buddyinfo::metrics::UNUSABLE) {
            let [node, zone, order] = &*point.labels else { continue };
            if order.as_str() != ORDER || zone.as_str() == "DMA" {
                continue;
            }
            let new = || Zone {
                fast: point.value,
                slow: point.value,
                born: at,
                seen: at,
                state: FragmentationState::Fine,
                since_unix: unix,
            };
            let known = self.zones.entry((node.clone(), zone.clone())).or_insert_with(new);
            known.follow(point.value, at);
            if at - known.born < FIRST {
                continue;
            }
            let state = known.judge(refused);
            if state != known.state {
                (known.state, known.since_unix) = (state, unix);
            }
            let labels = [node.clone(), zone.clone(), order.clone()];
            out.batch.put_some(&metrics::UNUSABLE, &labels, Ratio::new(known.fast));
            out.batch.put_some(&metrics::CHANGE, &labels, Ratio::new(known.fast - known.slow));
            for each in FragmentationState::ALL {
                let labels = [node.clone(), zone.clone(), each.label().into()];
                out.batch.put(&metrics::STATE, &labels, Flag(each == state));
            }
            if state != FragmentationState::Fine {
                out.findings.push(known.finding(node, zone));
            }
        }
        self.zones.retain(|_, zone| at - zone.seen < SLOW);
        self.allocators.analyze(view, now, out);
    }
}

impl Fragmentation {
    /// Records whether a huge page allocation failed since the last tick.
    fn count_refusals(&mut self, view: &View<'_>, at: f64) {
        let faults = view.value(&vmstat::metrics::THP_FAULTS, &["fallback".into()]);
        let compactions = view.value(&vmstat::metrics::COMPACTIONS, &["failure".into()]);
        let Some(refusals) = faults.into_iter().chain(compactions).reduce(|one, other| one + other) else {
            return;
        };
        if self.refusals.replace(refusals).is_some_and(|before| refusals > before) {
            self.refused = Some(at);
        }
    }
}

impl Zone {
    fn follow(&mut self, index: f64, at: f64) {
        let passed = (at - self.seen).max(0.0);
        self.seen = at;
        // Until its time constant has passed, an exponential mean is a plain mean of all values, so that the first
        // one has no excess weight.
        let share = |time: f64| -(-passed / time.min((at - self.born).max(passed))).exp_m1();
        if passed > 0.0 {
            self.fast += share(FAST) * (index - self.fast);
            self.slow += share(SLOW) * (index - self.slow);
        }
    }

    fn judge(&self, refused: bool) -> FragmentationState {
        if self.fast > NEARLY_ALL && refused {
            FragmentationState::Fragmented
        } else if self.fast > HALF && self.fast - self.slow >= RISE {
            FragmentationState::Fragmenting
        } else {
            FragmentationState::Fine
        }
    }

    fn finding(&self, node: &Label, zone: &Label) -> Finding {
        let share = format::percent(self.fast);
        Finding {
            analyzer: REGISTRATION.name,
            subject: Subject::zone(node, zone),
            state: self.state.label(),
            severity: if self.state == FragmentationState::Fragmented {
                Severity::Warning
            } else {
                Severity::Info
            },
            since_unix_seconds: self.since_unix,
            summary: format!(
                "{share} of the free memory of node {node}, zone {zone}, is in blocks too small for a huge page."
            ),
            evidence: vec![
                Evidence { what: "unusable_free_ratio", value: self.fast },
                Evidence { what: "unusable_free_hour_ratio", value: self.slow },
            ],
            advice: "Compact memory between jobs (echo 1 > /proc/sys/vm/compact_memory), or reserve huge pages at boot.",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::point::Batch;
    use crate::model::units::Count;

    /// The state each minute of a host whose index is `index` and whose refused huge pages are `refused`.
    fn states(minutes: u64, index: impl Fn(u64) -> f64, refused: impl Fn(u64) -> u64) -> Vec<&'static str> {
        let mut analyzer = Fragmentation::default();
        let mut states = Vec::new();
        for second in 0..minutes * 60 {
            let mut batch = Batch::new();
            let labels = ["0".into(), "Normal".into(), ORDER.into()];
            batch.put_some(&buddyinfo::metrics::UNUSABLE, &labels, Ratio::new(index(second)));
            batch.put(&vmstat::metrics::THP_FAULTS, &["fallback".into()], Count(refused(second)));
            let mut out = Analysis::default();
            analyzer.analyze(&View::new(batch.families()), Timestamp::from_secs(second), &mut out);
            if second % 60 == 59 {
                let (families, ..) = out.batch.seal();
                let state = families.iter().find(|family| family.desc.name == metrics::STATE.desc.name);
                let on = state.and_then(|family| family.points.iter().find(|point| point.value > 0.0));
                states.push(match on.map(|point| point.labels[2].to_string()).as_deref() {
                    Some("fine") => "fine",
                    Some("fragmenting") => "fragmenting",
                    Some("fragmented") => "fragmented",
                    _ => "",
                });
            }
        }
        states
    }

    #[test]
    fn a_high_index_alone_is_no_verdict() {
        let states = states(30, |_| 0.97, |_| 5);
        assert_eq!(states[0], "", "too early");
        assert!(states[1..].iter().all(|state| *state == "fine"), "{states:?}");
    }

    #[test]
    fn refused_huge_pages_beside_a_high_index_are_fragmentation_while_they_last() {
        let states = states(30, |_| 0.97, |second| second.min(600) / 30);
        assert!(states[1..14].iter().all(|state| *state == "fragmented"), "{states:?}");
        assert!(states[16..].iter().all(|state| *state == "fine"), "{states:?}");
    }

    #[test]
    fn a_rise_is_fragmenting_and_a_wave_is_not() {
        let rising = states(60, |second| f64::from(u32::try_from(second).unwrap()) / 3600.0, |_| 0);
        assert!(rising[40..].iter().all(|state| *state == "fragmenting"), "{rising:?}");
        let wave = states(60, |second| if second % 60 < 30 { 0.3 } else { 0.8 }, |_| 0);
        assert!(wave[2..].iter().all(|state| *state == "fine"), "{wave:?}");
    }
}
