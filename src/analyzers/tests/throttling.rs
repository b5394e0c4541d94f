//! Cgroups at their `memory.high`.

use super::*;
use crate::model::finding::Severity;
use crate::model::units::Ratio;

const MIB: f64 = 1_048_576.0;

/// A cgroup with a `memory.high` of 590 MiB.
struct Group {
    anon: f64,
    file: f64,
    /// `high` events.
    events: u64,
    /// Share of the time in which all of its tasks wait for memory.
    waits: f64,
}

impl Group {
    fn put(&self, batch: &mut Batch) {
        use crate::sources::cgroup::metrics as m;
        let path: Label = "/job".into();
        let own = std::slice::from_ref(&path);
        bytes(batch, &m::HIGH, own, 590.0 * MIB);
        bytes(batch, &m::USAGE, own, (self.anon + self.file) * MIB);
        bytes(batch, &m::ANON, own, self.anon * MIB);
        bytes(batch, &m::SHMEM, own, 0.0);
        batch.put(&m::EVENTS, &[path.clone(), "high".into()], Count(self.events));
        batch.put_some(&m::PRESSURE, &[path.clone(), "full".into()], Ratio::new(self.waits));
    }
}

/// The severity and the summary of the finding, if there is one.
fn said(analysis: &Analysis) -> Option<(Severity, &str)> {
    analysis.findings.first().map(|finding| (finding.severity, finding.summary.as_str()))
}

#[test]
fn a_group_that_the_kernel_throttles_for_ever_is_critical() {
    let mut analyzer = build(&exhaustion::REGISTRATION);
    let group = |second: u32, batch: &mut Batch| {
        let events = 556_267 + 100 * u64::from(second);
        Group { anon: 596.0, file: 2.0, events, waits: 0.98 }.put(batch);
    };
    let analysis = run(&mut *analyzer, 0, 20, group);
    expect!["The cgroup /job is at its memory.high (590.0 MiB): the kernel throttles its processes, which do not advance."]
        .assert_eq(said(&analysis).unwrap().1);
    assert_eq!(analysis.findings[0].severity, Severity::Critical);
    assert!(analysis.findings[0].advice.starts_with("Raise or remove memory.high of the cgroup"));
    let health = ["memory_high", "/job", "critical", "throttled"];
    assert_eq!(value(&analysis, "memwarden_forecast_health", &health), Some(1.0));
    // Its memory.high is raised: no event, no wait.
    let analysis = run(&mut *analyzer, 20, 31, |_, batch| {
        Group { anon: 300.0, file: 2.0, events: 558_300, waits: 0.0 }.put(batch);
    });
    expect!["The cgroup /job may reach its memory.high, above which its processes are throttled and do not advance: the kernel throttled its processes less than a minute ago."]
        .assert_eq(said(&analysis).unwrap().1);
    let analysis = run(&mut *analyzer, 31, 105, |_, batch| {
        Group { anon: 300.0, file: 2.0, events: 558_300, waits: 0.0 }.put(batch);
    });
    assert_eq!(said(&analysis), None);
}

#[test]
fn a_group_that_reclaims_page_cache_at_its_memory_high_is_healthy() {
    let mut analyzer = build(&exhaustion::REGISTRATION);
    let analysis = run(&mut *analyzer, 0, 90, |second, batch| {
        Group { anon: 200.0, file: 390.0, events: u64::from(second) * 100, waits: 0.6 }.put(batch);
    });
    assert_eq!(said(&analysis), None);
    let health = ["memory_high", "/job", "ok", "none"];
    assert_eq!(value(&analysis, "memwarden_forecast_health", &health), Some(1.0));
}

#[test]
fn growth_towards_memory_high_is_forecast_and_swap_is_part_of_the_way() {
    let of = |swap: f64| {
        let mut analyzer = build(&exhaustion::REGISTRATION);
        let analysis = run(&mut *analyzer, 0, 400, |second, batch| {
            let anon = 100.0 + f64::from(second) + noise(second);
            Group { anon, file: 50.0, events: 0, waits: 0.0 }.put(batch);
            bytes(batch, &memory::metrics::SWAP_FREE, &[], swap);
        });
        let labels = ["memory_high", "/job", "p50"];
        let left = value(&analysis, "memwarden_forecast_time_to_exhaustion_seconds", &labels);
        (left, analysis.findings.first().map(|finding| finding.severity))
    };
    let (left, severity) = of(0.0);
    assert!(left.is_some_and(|left| (left - 90.0).abs() < 30.0), "{left:?}");
    assert_eq!(severity, Some(Severity::Critical));
    let (left, severity) = of(36_000.0 * MIB);
    assert!(left.is_none_or(|left| left > 3600.0), "{left:?}");
    assert_ne!(severity, Some(Severity::Critical));
}
