//! The analyzers as the engine runs them, over frames made here.

mod bounds;
mod forecasts;
mod leaks;
mod nodes;
mod throttling;

use std::sync::Arc;

use expect_test::expect;

use super::{Registration, exhaustion, leak};
use crate::model::analyzer::{Analysis, Analyzer, View};
use crate::model::desc::Gauge;
use crate::model::facts::{Membership, Workload};
use crate::model::ids::ProcessKey;
use crate::model::label::Label;
use crate::model::outlook::{GrowingMemory, LeakState};
use crate::model::point::Batch;
use crate::model::setting::Settings;
use crate::model::time::Timestamp;
use crate::model::units::{Bytes, Count, Flag};
use crate::sources::{cgroup, memory, training, workload};

const GIB: f64 = 1_073_741_824.0;

/// The analyzer with its defaults.
fn build(registration: &Registration) -> Box<dyn Analyzer> {
    use crate::config::schema::{ANALYZERS, GroupSchema, PartSchema, SECTIONS, Schema};
    let part = PartSchema {
        key: registration.name,
        about: registration.about,
        on_by_default: true,
        options: registration.options,
        needs: &[],
        check: registration.check,
    };
    let group = GroupSchema { key: ANALYZERS, about: "", parts: vec![part] };
    let schema = Schema { sections: SECTIONS, groups: vec![group], modules: Vec::new() };
    let config = crate::config::parse_str("", std::path::Path::new("test"), &schema, &[]).unwrap();
    let settings: &Settings = &config.analyzers[registration.name].settings;
    (registration.build)(settings)
}

fn bytes(batch: &mut Batch, metric: &'static Gauge<Bytes>, labels: &[Label], value: f64) {
    batch.put(metric, labels, Bytes::of(value));
}

/// Noise of one, the same in each run.
fn noise(second: u32) -> f64 {
    let mixed = second.wrapping_mul(2_654_435_761) ^ 0x5bd1_e995;
    f64::from(mixed >> 16) / 32_768.0 - 1.0
}

/// Runs `analyzer` from second `from` to `to` over what `put` puts.
fn run(analyzer: &mut dyn Analyzer, from: u32, to: u32, put: impl Fn(u32, &mut Batch)) -> Analysis {
    let mut last = Analysis::default();
    for second in from..to {
        let mut batch = Batch::new();
        put(second, &mut batch);
        last = Analysis::default();
        let view = View::new(batch.families()).with_facts(&batch.facts);
        analyzer.analyze(&view, Timestamp::from_secs(second.into()), &mut last);
    }
    last
}

/// The value of a series whose labels include these.
fn value(analysis: &Analysis, name: &str, labels: &[&str]) -> Option<f64> {
    let family = analysis.batch.families().iter().find(|family| family.desc.name == name)?;
    let wanted = |point: &&crate::model::point::Point| {
        labels.iter().all(|label| point.labels.iter().any(|found| found.as_str() == *label))
    };
    family.points.iter().find(wanted).map(|point| point.value)
}

/// Used bytes of a host while programs were compiled on its two cores, once a second.
fn builds() -> Vec<f64> {
    let lines = include_str!("tests/host_of_builds.csv").lines().skip(1);
    lines.flat_map(|line| line.split(',')).map(|mib| mib.parse::<f64>().unwrap() * 1_048_576.0).collect()
}

/// A host of 64 GiB whose use grows by 8 MiB a second from 20 GiB on.
fn growing_host(second: u32, batch: &mut Batch) {
    let used = 20.0 * GIB + f64::from(second) * GIB / 128.0 + noise(second) * GIB / 64.0;
    bytes(batch, &memory::metrics::TOTAL, &[], 64.0 * GIB);
    bytes(batch, &memory::metrics::AVAILABLE, &[], 64.0 * GIB - used);
}

/// A rank whose tensors grow within what its allocator has taken, of which nothing changes.
fn growing_rank(second: u32, batch: &mut Batch) {
    use crate::sources::training::metrics::{ALLOCATED, DEVICE_FREE, INFO, RESERVED};
    let mut info: Vec<Label> = INFO.desc.labels.iter().map(|_| Label::default()).collect();
    for (name, value) in [("workload", "job"), ("rank", "3"), ("pid", "9")] {
        info[INFO.desc.labels.iter().position(|label| *label == name).unwrap()] = value.into();
    }
    batch.put(&INFO, &info, Flag(true));
    let labels = ["job".into(), "3".into(), "0".into(), "5".into()];
    bytes(
        batch,
        &ALLOCATED,
        &labels,
        30.0 * GIB + f64::from(second) * GIB / 128.0 + noise(second) * GIB / 64.0,
    );
    bytes(batch, &RESERVED, &labels, 60.0 * GIB);
    bytes(batch, &DEVICE_FREE, &labels, 10.0 * GIB);
}
