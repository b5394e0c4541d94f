//! Points from the messages of a worker, without a worker process and without a clock.

mod health;
mod placements;
mod values;

use std::time::Duration;

use expect_test::Expect;

use super::field::Field;
use super::protocol::{Identity, Line, Process, Sample, State, Status};
use super::report::put;
use super::state::World;
use crate::model::point::Batch;
use crate::model::source::SourceError;
use crate::model::time::Timestamp;

const SECOND: Duration = Duration::from_secs(1);

/// A state with one GPU that reported its identity at second 0.
fn world() -> World {
    let mut world = World::default();
    let at = Timestamp::from_secs(0);
    let generation = world.worker_started(at);
    let lines = [
        Line::State(State { status: Status::Ok, gpus: 1, ..State::default() }),
        Line::Device(Box::new(Identity { uuid: "GPU-a".into(), ..Identity::default() })),
    ];
    lines.into_iter().for_each(|line| world.take(generation, at, line));
    world
}

fn take(world: &mut World, second: u64, line: Line) {
    world.take(1, Timestamp::from_secs(second), line);
}

fn sample(values: &[(Field, u64)], processes: Option<Vec<Process>>) -> Line {
    Line::Sample(Box::new(Sample { values: values.to_vec(), processes, ..Sample::default() }))
}

/// Compares every point of the metrics whose name contains `filter`, without the zeros of status metrics.
fn check(world: &World, second: u64, filter: &str, expected: Expect) {
    let mut batch = Batch::new();
    let outcome = put(world, Timestamp::from_secs(second), SECOND, true, &mut batch);
    let mut text = String::new();
    for family in batch.families().iter().filter(|family| family.desc.name.contains(filter)) {
        let one_hot = family.desc.labels.contains(&"status");
        for point in family.points.iter().filter(|point| !one_hot || point.value > 0.0) {
            let labels: Vec<_> = family
                .desc
                .labels
                .iter()
                .zip(point.labels.iter())
                .map(|(name, value)| format!("{name}={value}"))
                .collect();
            text += &format!("{} {} {}\n", family.desc.name, labels.join(","), point.value);
        }
    }
    let outcome = match outcome {
        Ok(()) => "ok".to_owned(),
        Err(SourceError::Unavailable { why }) => format!("unavailable: {why}"),
        Err(SourceError::Failed { kind, why }) => format!("{}: {why}", kind.label()),
    };
    expected.assert_eq(&format!("{text}{outcome}\n"));
}
