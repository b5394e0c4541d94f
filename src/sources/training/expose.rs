//! Converts the values that a rank reported to points.

use super::metrics as m;
use super::names::{OTHER, Share};
use super::rank::Rank;
use super::rank_identity::RankIdentity;
use crate::formats::messages::{DeviceMemory, Hello, Params};
use crate::model::checkpoint::CheckpointState;
use crate::model::desc::Metric;
use crate::model::facts::{Allocator, EnvironmentRank};
use crate::model::ids::ProcessKey;
use crate::model::label::Label;
use crate::model::point::Batch;
use crate::model::time::Timestamp;
use crate::model::units::{Bytes, Count, Flag, Number, PerSecond, Seconds};

/// Most groups of layers exposed individually.
const GROUPS: usize = 16;

pub(super) fn put(
    rank: &Rank,
    hello: &Hello,
    identity: &RankIdentity,
    pid: Option<u32>,
    at: Timestamp,
    share: &mut Share<'_>,
    out: &mut Batch,
) {
    if !share.has_rank(identity) {
        return;
    }
    let labels = identity.labels();
    let info = info(hello, identity, pid);
    if share.has_part(&info) {
        out.put(&m::INFO, &info, Flag(true));
    }
    out.put_some(
        &m::MESSAGE_AGE,
        &labels,
        rank.last_message.map(|last_message| at.since(last_message).into()),
    );
    put_steps(rank, &labels, at, out);
    put_phases(rank, &labels, share, out);
    for (ordinal, device) in &rank.devices {
        let gpu = identity.gpu(hello, *ordinal).cloned().unwrap_or_default();
        let free = free(device, identity, *ordinal).map(Bytes::get);
        let labels = [labels[0].clone(), labels[1].clone(), (*ordinal).into(), gpu];
        if share.has_part(&labels) {
            put_device(&DeviceMemory { free, ..*device }, &labels, out);
        }
    }
    out.put_some(&m::PINNED, &labels, rank.pinned.map(Bytes::new));
    if let Some(params) = &rank.params {
        put_params(params, &labels, share, out);
    }
    rank.predictions.put(hello, identity, out);
    if let Some((state, step)) = rank.checkpoint {
        for each in CheckpointState::ALL {
            out.put(&m::CHECKPOINT, &and(&labels, each.label().into()), Flag(each == state));
        }
        out.put_some(&m::CHECKPOINT_STEP, &labels, step.map(Count));
    }
    out.put_some(&m::CHECKPOINT_SAVED, &labels, rank.saved_unix.and_then(Seconds::new));
    out.put_some(&m::DROPPED, &labels, rank.dropped.map(Count));
}

/// Puts the identity of a rank that is not connected to the job socket.
pub(super) fn put_unconnected(
    rank: &EnvironmentRank,
    identity: &RankIdentity,
    share: &mut Share<'_>,
    out: &mut Batch,
) {
    let hello = Hello {
        local_rank: rank.local_rank.map(u64::from),
        world: rank.world.map(u64::from),
        ..Hello::default()
    };
    let mut labels = info(&hello, identity, Some(rank.process.pid));
    // A launcher that does not tell them leaves them unknown, while a client that does not is the only rank.
    for (place, known) in [(2, rank.local_rank), (3, rank.world)] {
        if known.is_none() {
            labels[place] = Label::default();
        }
    }
    if share.has_part(&labels) {
        out.put(&m::INFO, &labels, Flag(true));
    }
}

/// The free memory of a device, as the rank or the driver reports it.
fn free(device: &DeviceMemory, identity: &RankIdentity, ordinal: u16) -> Option<Bytes> {
    let known = identity.free.iter().find(|(other, _)| *other == ordinal).map(|(_, free)| *free);
    device.free.map(Bytes::new).or(known)
}

/// Passes the rank's allocator statistics to the analyzers; without a process if it has ended.
pub(super) fn report_allocators(
    rank: &Rank,
    identity: &RankIdentity,
    process: Option<ProcessKey>,
    at: Timestamp,
    out: &mut Batch,
) {
    let allocators = rank.devices.iter().filter_map(|(ordinal, device)| {
        Some(Allocator {
            process,
            workload: identity.key.clone(),
            allocated: Bytes::new(device.allocated?),
            reserved: device.reserved.map(Bytes::new),
            free: free(device, identity, *ordinal),
            age: rank.last_message.map(|last_message| at.since(last_message)),
        })
    });
    out.facts.allocators.extend(allocators);
}

fn and([workload, rank]: &[Label; 2], last: Label) -> [Label; 3] {
    [workload.clone(), rank.clone(), last]
}

fn info(hello: &Hello, identity: &RankIdentity, pid: Option<u32>) -> [Label; 13] {
    let text = |text: &Option<String>| text.as_deref().map(Label::printable).unwrap_or_default();
    let (gpu, uuid) = match &identity.gpus[..] {
        [(gpu, uuid)] => (gpu.clone(), uuid.clone()),
        _ => Default::default(),
    };
    [
        identity.workload.clone(),
        identity.rank.clone(),
        hello.local_rank.unwrap_or(0).into(),
        hello.world.unwrap_or(1).into(),
        pid.map(Label::from).unwrap_or_default(),
        gpu,
        uuid,
        identity.run.clone(),
        text(&hello.client),
        text(&hello.framework),
        text(&hello.framework_version),
        text(&hello.precision),
        hello.recompute.map(|recompute| recompute.label().into()).unwrap_or_default(),
    ]
}

fn put_steps(rank: &Rank, labels: &[Label; 2], at: Timestamp, out: &mut Batch) {
    if rank.step.is_some() {
        out.put_some(&m::STEP, labels, rank.step.map(Count));
        out.put_some(&m::STEP_AGE, labels, rank.stepped.map(|stepped| at.since(stepped).into()));
        out.put(&m::STEPS, labels, Count(rank.steps));
    }
    if rank.last_duration.is_some() {
        out.put_histogram(&m::STEP_DURATION, labels, &rank.durations);
        out.put_some(&m::STEP_LAST, labels, rank.last_duration.and_then(Seconds::new));
    }
    out.put_some(&m::TOKENS, labels, rank.tokens.map(Count));
    out.put_some(&m::TOKEN_RATE, labels, rank.token_rate.per_second(at).and_then(PerSecond::new));
    out.put_some(&m::SAMPLES, labels, rank.samples.map(Count));
    out.put_some(&m::LOSS, labels, rank.loss.and_then(Number::new));
    out.put_some(&m::LEARNING_RATE, labels, rank.learning_rate.and_then(Number::new));
    out.put_some(&m::GRAD_NORM, labels, rank.grad_norm.and_then(Number::new));
    out.put_some(&m::SKIPPED, labels, rank.skipped.map(Count));
    out.put_some(&m::NAN, labels, rank.nan.map(Count));
}

fn put_phases(rank: &Rank, labels: &[Label; 2], share: &mut Share<'_>, out: &mut Batch) {
    for (name, totals) in &rank.phases {
        let labels = and(labels, name.clone());
        if !share.has_part(&labels) {
            continue;
        }
        out.put_some(&m::PHASE_SECONDS, &labels, totals.seconds.and_then(Seconds::new));
        out.put_some(&m::PHASES, &labels, totals.count.map(Count));
        out.put_some(&m::PHASE_PEAK, &labels, totals.allocated_peak.map(Bytes::new));
    }
    let now = rank.phase_now().map(|name| and(labels, name.clone()));
    if let Some(labels) = now.filter(|labels| share.has_part(labels)) {
        out.put(&m::PHASE_NOW, &labels, Flag(true));
    }
}

fn put_device(device: &DeviceMemory, labels: &[Label; 4], out: &mut Batch) {
    let DeviceMemory { allocated, allocated_peak, active, reserved, reserved_peak, requested, .. } = *device;
    let DeviceMemory { inactive_split, releasable, largest_free, retries, ooms, free, total, .. } = *device;
    for (metric, bytes) in [
        (&m::ALLOCATED, allocated),
        (&m::ALLOCATED_PEAK, allocated_peak),
        (&m::ACTIVE, active),
        (&m::RESERVED, reserved),
        (&m::RESERVED_PEAK, reserved_peak),
        (&m::REQUESTED, requested),
        (&m::INACTIVE_SPLIT, inactive_split),
        (&m::RELEASABLE, releasable),
        (&m::LARGEST_FREE, largest_free),
        (&m::DEVICE_FREE, free),
        (&m::DEVICE_TOTAL, total),
    ] {
        out.put_some(metric, labels, bytes.map(Bytes::new));
    }
    out.put_some(&m::RETRIES, labels, retries.map(Count));
    out.put_some(&m::ALLOCATOR_OOMS, labels, ooms.map(Count));
}

fn put_params(params: &Params, labels: &[Label; 2], share: &mut Share<'_>, out: &mut Batch) {
    let of = |kind: &str| and(labels, kind.into());
    let bytes = |bytes: Option<u64>| bytes.map(Bytes::new);
    out.put_some(&m::PARAMETERS, &of("all"), params.parameters.map(Count));
    out.put_some(&m::PARAMETERS, &of("trainable"), params.trainable.map(Count));
    out.put_some(&m::PARAMETERS, &of("lora"), params.lora.map(Count));
    out.put_some(&m::MODEL, &of("parameters"), bytes(params.parameter_bytes));
    out.put_some(&m::MODEL, &of("gradients"), bytes(params.gradient_bytes));
    out.put_some(&m::MODEL, &of("optimizer"), bytes(params.optimizer_bytes));
    out.put_some(&m::NONFINITE, &of("nan"), params.nan.map(Count));
    out.put_some(&m::NONFINITE, &of("inf"), params.inf.map(Count));
    put_shares(&m::BY_DTYPE, params.by_dtype.as_deref().unwrap_or_default(), labels, share, out);
    put_shares(&m::BY_GROUP, params.by_group.as_deref().unwrap_or_default(), labels, share, out);
}

/// The largest shares individually, the rest as a sum, with those whose names are over the user's budget.
fn put_shares<M: Metric<Unit = Bytes>>(
    metric: &'static M,
    shares: &[(String, u64)],
    labels: &[Label; 2],
    share: &mut Share<'_>,
    out: &mut Batch,
) {
    let mut sorted: Vec<(Label, u64)> =
        shares.iter().map(|(name, bytes)| (Label::printable(name), *bytes)).collect();
    sorted.sort_by(|one, two| (two.1, &one.0).cmp(&(one.1, &two.0)));
    let mut rest = sorted.split_off(sorted.len().min(GROUPS));
    for (name, bytes) in sorted {
        let labels = and(labels, name.clone());
        if share.has_part(&labels) {
            out.put(metric, &labels, Bytes::new(bytes));
        } else {
            rest.push((name, bytes));
        }
    }
    if !rest.is_empty() {
        let sum: Bytes = rest.into_iter().map(|(_, bytes)| Bytes::new(bytes)).sum();
        out.put(metric, &and(labels, OTHER.into()), sum);
    }
}
