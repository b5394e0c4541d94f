//! Reports what the driver says of the hardware of a GPU: that it fails, or soon will.
//!
//! # What it says
//! One finding for each GPU with at least one of [`FAULTS`], as severe as the worst of them, with all of them in its summary.
//!
//! # When it stays silent
//! Of what the driver does not report, and of corrected errors, which are normal. Counters of links and PCIe count from when memwarden
//! first reads them; one that has grown is reported for 15 minutes. Uncorrected errors of memory are reported until the reset. What a
//! GPU had stays while the GPU is listed and reports no value.

pub mod metrics;

use std::collections::{BTreeMap, BTreeSet};

use super::Registration;
use crate::model::analyzer::{Analysis, Analyzer, View};
use crate::model::finding::{Finding, Severity, Subject};
use crate::model::label::Label;
use crate::model::point::Point;
use crate::model::time::Timestamp;
use crate::model::units::Flag;
use crate::sources::gpu::metrics as m;

/// Registration of the `hardware` analyzer.
pub static REGISTRATION: Registration = Registration {
    name: "hardware",
    about: "Reports faults of GPUs: memory that cannot be repaired, uncorrected errors, links with errors, heat, and actions that the driver requests.",
    metrics: metrics::METRICS,
    ..Registration::built_by(|_| Box::new(Hardware::default()))
};

/// Seconds over which the growth of a counter is measured, and for which another fault is reported without a value.
const PERIOD: f64 = 60.0;
/// Seconds for which a counter that has grown is reported.
const REMEMBERED: f64 = 900.0;

/// When a value is a fault.
#[derive(Clone, Copy, Debug)]
pub enum When {
    /// It is not 0.
    Set,
    /// It grows by more than this within a minute.
    GrowsBy(f64),
    /// It is at least the temperature at which the hardware slows down.
    SlowsDown,
}

/// One line of the table of faults.
#[derive(Debug)]
pub struct Fault {
    /// The value of the label `fault`.
    pub name: &'static str,
    points: for<'v> fn(&View<'v>) -> &'v [Point],
    /// The labels of the value besides those of the GPU.
    labels: &'static [&'static str],
    pub when: When,
    pub severity: Severity,
    /// What is wrong, to follow the name of the GPU.
    pub what: &'static str,
    pub advice: &'static str,
}

use Severity::{Critical, Warning};

const REPLACE: &str = "Drain the node and replace the GPU.";
const RESET: &str = "Drain the node and reset the GPU.";
const RESET_LATER: &str = "Let its job end, then reset the GPU; replace it if the error recurs.";

/// Every fault, each with the value that shows it.
pub static FAULTS: &[Fault] = &[
    Fault {
        name: "row_remap_failure",
        points: |view| view.points(&m::REMAP_FAILURE),
        labels: &[],
        when: When::Set,
        severity: Critical,
        what: "has a row of memory that could not be remapped",
        advice: REPLACE,
    },
    Fault {
        name: "no_spare_rows",
        points: |view| view.points(&m::REMAP_BANKS),
        labels: &["none"],
        when: When::Set,
        severity: Warning,
        what: "has a bank of memory without a spare row, so that its next error cannot be remapped",
        advice: "Plan to replace the GPU.",
    },
    Fault {
        name: "uncorrected_ecc",
        points: |view| view.points(&m::ECC_ERRORS),
        labels: &["uncorrected", "volatile"],
        when: When::Set,
        severity: Warning,
        what: "has had uncorrected errors of its memory since its last reset",
        advice: RESET_LATER,
    },
    Fault {
        name: "nvlink_recovery",
        points: |view| view.points(&m::NVLINK_ERRORS),
        labels: &["recovery"],
        when: When::GrowsBy(0.0),
        severity: Warning,
        what: "has NVLink links that had to recover from errors",
        advice: "Check the XIDs of the GPUs and the NVSwitches; if it recurs, let the jobs end and reset them.",
    },
    Fault {
        name: "pcie_replays",
        points: |view| view.points(&m::PCIE_REPLAYS),
        labels: &[],
        when: When::GrowsBy(8.0),
        severity: Warning,
        what: "retransmits more than 8 packets a minute over PCIe",
        advice: "Check the slot and the riser of the GPU when its job ends.",
    },
    Fault {
        name: "temperature",
        points: |view| view.points(&m::TEMPERATURE),
        labels: &[],
        when: When::SlowsDown,
        severity: Warning,
        what: "is as hot as where its hardware slows it down",
        advice: "Check the cooling of the node.",
    },
    Fault {
        name: "reset_required",
        points: |view| view.points(&m::RECOVERY_ACTION),
        labels: &["gpu_reset"],
        when: When::Set,
        severity: Critical,
        what: "requires a reset, according to its driver",
        advice: RESET,
    },
    Fault {
        name: "reboot_required",
        points: |view| view.points(&m::RECOVERY_ACTION),
        labels: &["node_reboot"],
        when: When::Set,
        severity: Critical,
        what: "requires a restart of the node, according to its driver",
        advice: "Drain the node and restart it.",
    },
    Fault {
        name: "drain_p2p",
        points: |view| view.points(&m::RECOVERY_ACTION),
        labels: &["drain_p2p"],
        when: When::Set,
        severity: Warning,
        what: "should take no more work that uses other GPUs, according to its driver",
        advice: "Let the jobs that use it with other GPUs end, then reset it.",
    },
    Fault {
        name: "drain_and_reset",
        points: |view| view.points(&m::RECOVERY_ACTION),
        labels: &["drain_and_reset"],
        when: When::Set,
        severity: Warning,
        what: "should take no more work and be reset, according to its driver",
        advice: RESET_LATER,
    },
];

/// A value of one GPU that may show a fault.
#[derive(Clone, Copy, Debug)]
struct Counter {
    /// The value at the beginning of the period.
    before: f64,
    began: f64,
    /// Until when it is reported.
    until: f64,
}

impl Counter {
    /// Records the value of now of one that may grow by this much.
    fn follow(&mut self, value: f64, most: f64, at: f64) {
        if value < self.before {
            // The driver counts anew.
            (self.before, self.began) = (value, at);
        }
        // A longer period, of ticks that came late, allows more.
        if value - self.before > most * f64::max(1.0, (at - self.began) / PERIOD) {
            self.until = at + REMEMBERED;
        }
        if at - self.began >= PERIOD {
            (self.before, self.began) = (value, at);
        }
    }
}

#[derive(Debug, Default)]
struct Hardware {
    /// By place in [`FAULTS`], index and UUID.
    counters: BTreeMap<(usize, Label, Label), Counter>,
    /// Since when each GPU has the worst of its faults, in seconds since 1970.
    since: BTreeMap<[Label; 2], (&'static str, f64)>,
}

impl Analyzer for Hardware {
    fn analyze(&mut self, view: &View<'_>, now: Timestamp, out: &mut Analysis) {
        let at = now.monotonic().as_secs_f64();
        let mut counters = BTreeMap::new();
        let mut measured = BTreeSet::new();
        for (place, fault) in FAULTS.iter().enumerate() {
            for point in (fault.points)(view) {
                let [index, uuid, labels @ ..] = &*point.labels else { continue };
                if !labels.iter().map(Label::as_str).eq(fault.labels.iter().copied()) {
                    continue;
                }
                measured.insert([index, uuid]);
                let key = (place, index.clone(), uuid.clone());
                let first = Counter { before: point.value, began: at, until: 0.0 };
                let mut counter = self.counters.remove(&key).unwrap_or(first);
                match fault.when {
                    When::Set => counter.until = if point.value > 0.0 { at + PERIOD } else { 0.0 },
                    When::SlowsDown => {
                        let limit = [index.clone(), uuid.clone(), "slowdown".into()];
                        if view
                            .value(&m::TEMPERATURE_THRESHOLD, &limit)
                            .is_some_and(|limit| point.value >= limit)
                        {
                            counter.until = at + PERIOD;
                        }
                    }
                    When::GrowsBy(most) => counter.follow(point.value, most, at),
                }
                counters.insert(key, counter);
            }
        }
        let listed: BTreeSet<_> = view.points(&m::STATUS).iter().map(|point| &point.labels[..2]).collect();
        for (key, mut counter) in std::mem::take(&mut self.counters) {
            // It has no value in this tick.
            let own = [&key.1, &key.2];
            if !listed.contains(own.map(Clone::clone).as_slice()) {
                continue;
            }
            if at < counter.until && !measured.contains(&own) {
                counter.until = counter.until.max(at + PERIOD);
            }
            counters.insert(key, counter);
        }
        self.counters = counters;
        let mut found: BTreeMap<[Label; 2], Vec<&'static Fault>> = BTreeMap::new();
        for ((place, index, uuid), _) in self.counters.iter().filter(|(_, counter)| at < counter.until) {
            found.entry([index.clone(), uuid.clone()]).or_default().push(&FAULTS[*place]);
        }
        self.since.retain(|own, _| found.contains_key(own));
        for (own, mut faults) in found {
            faults.sort_by_key(|fault| std::cmp::Reverse(fault.severity));
            let worst = faults[0];
            let since = self.since.entry(own.clone()).or_insert((worst.name, now.unix().as_secs_f64()));
            if since.0 != worst.name {
                *since = (worst.name, now.unix().as_secs_f64());
            }
            let [index, uuid] = &own;
            for fault in &faults {
                let labels = [index.clone(), uuid.clone(), fault.name.into(), fault.severity.label().into()];
                out.batch.put(&metrics::FAULT, &labels, Flag(true));
            }
            let told: Vec<&str> = faults.iter().map(|fault| fault.what).collect();
            out.findings.push(Finding {
                analyzer: REGISTRATION.name,
                subject: Subject::gpu(index, uuid),
                state: worst.name,
                severity: worst.severity,
                since_unix_seconds: since.1,
                summary: format!("GPU {index} {}.", told.join(", and ")),
                evidence: Vec::new(),
                advice: worst.advice,
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::desc::{Gauge, Metric};
    use crate::model::point::Batch;
    use crate::model::units::{Celsius, Count};

    fn own() -> [Label; 2] {
        ["3".into(), "GPU-3".into()]
    }

    fn with(label: &'static str) -> [Label; 3] {
        ["3".into(), "GPU-3".into(), label.into()]
    }

    fn analyze(analyzer: &mut Hardware, second: u64, fill: impl FnOnce(&mut Batch)) -> Vec<String> {
        let (mut batch, mut out) = (Batch::new(), Analysis::default());
        fill(&mut batch);
        analyzer.analyze(&View::new(batch.families()), Timestamp::from_secs(second), &mut out);
        let put: usize = out.batch.families().iter().map(|family| family.points.len()).sum();
        assert!(put >= out.findings.len());
        out.findings.iter().map(|finding| format!("{:?}: {}", finding.severity, finding.summary)).collect()
    }

    #[test]
    fn what_fails_is_said_once_for_each_gpu_the_worst_first() {
        let mut analyzer = Hardware::default();
        let healthy = |batch: &mut Batch| {
            batch.put(&m::REMAP_FAILURE, &own(), Flag(false));
            batch.put(&m::REMAP_BANKS, &with("none"), Count(0));
            batch.put(&m::REMAP_BANKS, &with("low"), Count(2));
            batch.put_some(&m::TEMPERATURE, &own(), Celsius::new(88.0));
            batch.put_some(&m::TEMPERATURE_THRESHOLD, &with("slowdown"), Celsius::new(89.0));
            batch.put_some(&m::TEMPERATURE_THRESHOLD, &with("shutdown"), Celsius::new(70.0));
        };
        assert!(analyze(&mut analyzer, 1, healthy).is_empty());
        let fails = |batch: &mut Batch| {
            batch.put(&m::REMAP_BANKS, &with("none"), Count(1));
            batch.put(&m::REMAP_FAILURE, &own(), Flag(true));
        };
        let both = "Critical: GPU 3 has a row of memory that could not be remapped, and has a bank of memory without a spare row, so that its next error cannot be remapped.";
        assert_eq!(analyze(&mut analyzer, 2, fails), [both]);
    }

    /// What is said where one value is so.
    fn of<M: Metric>(metric: &'static M, labels: &[Label], value: M::Unit) -> Vec<String> {
        analyze(&mut Hardware::default(), 1, |batch| batch.put(metric, labels, value))
    }

    #[test]
    fn actions_that_the_driver_requests_are_said() {
        let action: &'static Gauge<Flag> = &m::RECOVERY_ACTION;
        let said = |name| of(action, &with(name), Flag(true)).join("");
        assert!(said("none").is_empty());
        assert_eq!(said("gpu_reset"), "Critical: GPU 3 requires a reset, according to its driver.");
        assert!(said("node_reboot").starts_with("Critical: "), "{}", said("node_reboot"));
        assert!(
            said("drain_p2p").starts_with("Warning: ") && said("drain_and_reset").starts_with("Warning: ")
        );
    }

    #[test]
    fn counters_are_said_while_they_grow_and_not_for_what_was_before() {
        let mut analyzer = Hardware::default();
        let mut replays = |second, count| {
            analyze(&mut analyzer, second, |batch| batch.put(&m::PCIE_REPLAYS, &own(), Count(count)))
        };
        assert!(replays(0, 5_000).is_empty(), "from before memwarden");
        assert!(replays(30, 5_008).is_empty());
        assert!(replays(61, 5_008).is_empty() && replays(90, 5_016).is_empty(), "eight a minute");
        assert_eq!(replays(100, 5_017).len(), 1);
        assert_eq!(replays(999, 5_017).len(), 1);
        assert!(replays(1_001, 5_017).is_empty());
        assert!(replays(1_002, 0).is_empty(), "the driver counts anew");
    }

    #[test]
    fn a_temperature_at_its_limit_is_one_finding_until_it_stays_below() {
        let mut analyzer = Hardware::default();
        let mut at = |second, degrees| {
            let said = analyze(&mut analyzer, second, |batch| {
                batch.put_some(&m::TEMPERATURE, &own(), Celsius::new(degrees));
                batch.put_some(&m::TEMPERATURE_THRESHOLD, &with("slowdown"), Celsius::new(89.0));
            });
            said.len()
        };
        assert_eq!([at(1, 88.0), at(2, 89.0), at(3, 88.0), at(4, 89.0)], [0, 1, 1, 1]);
        assert_eq!([at(63, 88.0), at(64, 88.0)], [1, 0]);
    }

    #[test]
    fn a_gpu_that_is_listed_and_has_no_value_keeps_its_faults_and_baselines() {
        let mut analyzer = Hardware::default();
        let hangs = |batch: &mut Batch| batch.put(&m::STATUS, &with("hung"), Flag(true));
        let values = |banks, replays| {
            move |batch: &mut Batch| {
                batch.put(&m::REMAP_BANKS, &with("none"), Count(banks));
                batch.put(&m::PCIE_REPLAYS, &own(), Count(replays));
            }
        };
        let first = analyze(&mut analyzer, 1, values(1, 5_000));
        assert_eq!(first.len(), 1);
        assert_eq!(analyze(&mut analyzer, 2, hangs), first);
        assert_eq!(analyze(&mut analyzer, 50, hangs), first);
        assert_eq!(analyze(&mut analyzer, 100, hangs), first);
        let [said] = &analyze(&mut analyzer, 101, values(0, 5_100))[..] else { panic!() };
        assert_eq!(said, "Warning: GPU 3 retransmits more than 8 packets a minute over PCIe.");
        assert!(analyze(&mut analyzer, 102, |_| {}).is_empty(), "it is not listed any more");
        assert!(analyze(&mut analyzer, 103, values(0, 9_000)).is_empty(), "its baseline is forgotten");
    }
}
