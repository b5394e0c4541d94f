//! Output of one tick: the points, and the state of the source.

use std::collections::BTreeSet;
use std::time::Duration;

use super::protocol::Status;
use super::state::{Condition, Gpu, World, stale_after};
use super::{convert, metrics as m, unlisted};
use crate::model::health::Health;
use crate::model::label::Label;
use crate::model::point::Batch;
use crate::model::source::{Failure, SourceError};
use crate::model::time::Timestamp;
use crate::model::units::{Bytes, Count, Flag};
use crate::model::xid;

/// An initialization that takes longer is reported as a failure.
const SLOW_START: Duration = Duration::from_secs(30);

/// Puts all points and returns the problem. `driver` is whether the kernel has loaded the driver.
pub fn put(
    world: &World,
    now: Timestamp,
    interval: Duration,
    driver: bool,
    out: &mut Batch,
) -> Result<(), SourceError> {
    worker(world, now, out);
    nvml(world, out);
    unplaced(world, out);
    meanings(world, out);
    if world.released {
        return Err(SourceError::unavailable("the GPU driver was released on request"));
    }
    let mut wrong: Vec<(Condition, &Gpu)> = Vec::new();
    for gpu in &world.gpus {
        let condition = world.condition(gpu, now, interval);
        if matches!(condition, Condition::Lost | Condition::Hung | Condition::UnknownError) {
            wrong.push((condition, gpu));
        }
        put_gpu(gpu, condition, now, interval, out);
    }
    let unlisted = world.unlisted(now).into_iter().map(unlisted::name);
    let unlisted: Vec<[Label; 2]> = unlisted.map(|address| [address.into(), "".into()]).collect();
    for labels in &unlisted {
        status(labels, Condition::Lost, out);
    }
    verdict(world, now, driver)?;
    let kind = match wrong.first() {
        None if unlisted.is_empty() => return Ok(()),
        Some((Condition::Hung, _)) => Failure::Timeout,
        None | Some((Condition::Lost, _)) => Failure::Lost,
        Some(_) => Failure::Io,
    };
    let named = wrong.iter().map(|(condition, gpu)| {
        let call = gpu.lasting.as_ref().filter(|_| *condition == Condition::Hung);
        let call = call.map_or_else(String::new, |call| format!(" in {call}"));
        format!("GPU {}: {}{call}", gpu.labels[0], condition.label())
    });
    let unlisted = unlisted.iter().map(|[address, _]| format!("GPU {address}: not listed by the driver"));
    let named: Vec<String> = named.chain(unlisted).collect();
    Err(SourceError::failed(kind, named.join(", ")))
}

fn worker(world: &World, now: Timestamp, out: &mut Batch) {
    let silent = world.last_message.filter(|_| world.running).map(|last_message| now.since(last_message));
    out.put(&m::WORKER_UP, &[], Flag(world.answers(now)));
    out.put_some(&m::WORKER_SILENT, &[], silent.map(Into::into));
    out.put(&m::WORKER_RESTARTS, &[], Count(world.restarts));
    out.put(&m::WORKER_ABANDONED, &[], Count(world.abandoned as u64));
    out.put(&m::WORKER_BAD_LINES, &[], Count(world.bad_lines));
    out.put_some(&m::WORKER_MEMORY, &[], world.resident.map(Bytes::new));
}

fn meanings(world: &World, out: &mut Batch) {
    let placed = world.gpus.iter().flat_map(|gpu| gpu.xids.counts()).filter(|(.., events)| *events > 0);
    let unplaced = world.unplaced.counts().map(|(_, number, severity, events)| (number, severity, events));
    let seen: BTreeSet<u32> = placed.chain(unplaced).map(|(number, ..)| number).collect();
    for number in seen {
        let severity = xid::severity(number).label().into();
        out.put(&m::XID_MEANING, &[number.into(), severity, xid::meaning(number).into()], Flag(true));
    }
}

fn unplaced(world: &World, out: &mut Batch) {
    for (pci, number, severity, events) in world.unplaced.counts() {
        let severity = severity.label().into();
        out.put(&m::UNPLACED_XIDS, &[pci.as_str().into(), number.into(), severity], Count(events));
    }
    let others = Some(world.unplaced.others()).filter(|others| *others > 0);
    let labels = ["other".into(), "other".into(), Health::Unknown.label().into()];
    out.put_some(&m::UNPLACED_XIDS, &labels, others.map(Count));
}

fn nvml(world: &World, out: &mut Batch) {
    let state = &world.state;
    for status in Status::ALL {
        out.put(&m::NVML_STATUS, &[status.label().into()], Flag(status == state.status));
    }
    out.facts.gpus_starting = state.status == Status::Initializing;
    out.put_some(&m::NVML_RETURN_CODE, &[], state.code.map(|code| Count(code.into())));
    if state.status == Status::Ok {
        let versions = [&state.driver, &state.nvml, &state.cuda].map(Label::from);
        out.put(&m::DRIVER_INFO, &versions, Flag(true));
        out.put(&m::GPUS, &[], Count(state.gpus.into()));
    }
}

fn status([index, uuid]: &[Label; 2], condition: Condition, out: &mut Batch) {
    for possible in Condition::ALL {
        let labels = [index.clone(), uuid.clone(), possible.label().into()];
        out.put(&m::STATUS, &labels, Flag(possible == condition));
    }
}

fn put_gpu(gpu: &Gpu, condition: Condition, now: Timestamp, interval: Duration, out: &mut Batch) {
    let [index, uuid] = &gpu.labels;
    let with = |label: Label| [index.clone(), uuid.clone(), label];
    status(&gpu.labels, condition, out);
    if let Some(call) = gpu.lasting.as_ref().filter(|_| condition == Condition::Hung) {
        out.put(&m::HUNG_CALL, &with(call.clone()), Flag(true));
    }
    let age = gpu.age(now);
    out.put(&m::SAMPLE_AGE, &gpu.labels, age.into());
    for (number, severity, events) in gpu.xids.counts() {
        let severity = severity.label().into();
        let labels = [index.clone(), uuid.clone(), number.into(), severity];
        out.put(&m::XID_ERRORS, &labels, Count(events));
    }
    out.put(&m::NEWEST_XID, &gpu.labels, Count(gpu.xids.newest().unwrap_or(0).into()));
    if !gpu.identity.uuid.is_empty() {
        convert::info(gpu, out);
    }
    if let Some(sample) = &gpu.sample
        && age <= stale_after(interval)
        && condition != Condition::Lost
    {
        convert::values(gpu, sample, out);
    }
}

/// Maps the status of NVML to the state of the source.
fn verdict(world: &World, now: Timestamp, driver: bool) -> Result<(), SourceError> {
    let state = &world.state;
    let failed = |kind| Err(SourceError::failed(kind, state.why.clone()));
    match state.status {
        Status::Ok if world.answers(now) => Ok(()),
        Status::Ok => Err(SourceError::failed(Failure::Timeout, "the GPU worker does not respond")),
        Status::LibraryAbsent if driver => failed(Failure::NotFound),
        Status::LibraryAbsent => Err(SourceError::unavailable(state.why.clone())),
        // A node without a GPU for it needs no driver.
        Status::DriverNotLoaded if world.present.as_ref().is_some_and(BTreeSet::is_empty) => {
            Err(SourceError::unavailable(state.why.clone()))
        }
        Status::DriverNotLoaded => failed(Failure::NotFound),
        Status::NoPermission => failed(Failure::Permission),
        Status::VersionMismatch | Status::UnknownError => failed(Failure::Io),
        Status::WorkerFailed => failed(Failure::Lost),
        Status::Released => Err(SourceError::unavailable(state.why.clone())),
        Status::Initializing if world.begun.is_some_and(|begun| now.since(begun) > SLOW_START) => {
            let call =
                world.starting.as_ref().map_or_else(String::new, |call| format!(": {call} does not return"));
            Err(SourceError::failed(Failure::Timeout, format!("NVML has not finished initializing{call}")))
        }
        Status::Initializing => Err(SourceError::unavailable("NVML is being initialized")),
    }
}
