//! Converts what is reported of the parts of a GPU: its MIG instances and its NVLink links.

use super::convert::millionths;
use super::field::Field;
use super::metrics as m;
use super::protocol::{Instance, Link};
use super::state::Gpu;
use crate::model::label::Label;
use crate::model::point::Batch;
use crate::model::units::{Bytes, Count, Flag};

/// Puts the values of a MIG instance.
pub(super) fn instance(gpu: &Gpu, instance: &Instance, out: &mut Batch) {
    let number = |id: Option<u32>| id.map_or_else(|| Label::from(""), Label::from);
    let [index, parent] = &gpu.labels;
    let labels = [index.clone(), instance.uuid.as_str().into(), number(instance.gi), number(instance.ci)];
    let mut named = labels.to_vec();
    named.extend([parent.clone(), instance.name.as_str().into()]);
    out.put(&m::MIG_INFO, &named, Flag(true));
    for (field, value) in &instance.values {
        let share = millionths(*value);
        let mut pipe = |pipe: &str| {
            let all: Vec<Label> = labels.iter().cloned().chain([pipe.into()]).collect();
            out.put_some(&m::MIG_PIPE, &all, share);
        };
        match field {
            Field::TensorActivity => pipe("tensor"),
            Field::Fp64Activity => pipe("fp64"),
            Field::Fp32Activity => pipe("fp32"),
            Field::Fp16Activity => pipe("fp16"),
            Field::IntegerActivity => pipe("integer"),
            Field::EngineActivity => out.put_some(&m::MIG_ENGINE, &labels, share),
            Field::SmActivity => out.put_some(&m::MIG_SM, &labels, share),
            Field::SmOccupancy => out.put_some(&m::MIG_OCCUPANCY, &labels, share),
            Field::DramActivity => out.put_some(&m::MIG_DRAM, &labels, share),
            Field::Multiprocessors => out.put(&m::MIG_MULTIPROCESSORS, &labels, Count(*value)),
            // PCIe and NVLink belong to the whole GPU.
            _ => {}
        }
    }
    for (field, refusal) in &instance.refused {
        let reason = [field.label().into(), refusal.reason.label().into(), refusal.code.into()];
        let all: Vec<Label> = labels[..2].iter().cloned().chain(reason).collect();
        out.put(&m::FIELD_STATUS, &all, Flag(true));
    }
    let Some(memory) = instance.memory else { return };
    out.put(&m::MIG_TOTAL, &labels, Bytes::new(memory.total));
    out.put(&m::MIG_USED, &labels, Bytes::new(memory.used));
    out.put(&m::MIG_FREE, &labels, Bytes::new(memory.free));
    out.put_some(&m::MIG_RESERVED, &labels, memory.reserved.map(Bytes::new));
}

/// Puts the state and the counters of a NVLink link.
pub(super) fn link(gpu: &Gpu, link: &Link, out: &mut Batch) {
    let [index, uuid] = &gpu.labels;
    let labels = [index.clone(), uuid.clone(), link.number.into()];
    out.put(&m::LINK_ACTIVE, &labels, Flag(link.active));
    for (field, value) in &link.values {
        let with = |label: &str| [index.clone(), uuid.clone(), link.number.into(), label.into()];
        let bytes = Bytes::from_kib(*value);
        match field {
            Field::NvlinkSent => out.put_some(&m::LINK_SENT, &with("data"), bytes),
            Field::NvlinkReceived => out.put_some(&m::LINK_RECEIVED, &with("data"), bytes),
            Field::NvlinkRawSent => out.put_some(&m::LINK_SENT, &with("raw"), bytes),
            Field::NvlinkRawReceived => out.put_some(&m::LINK_RECEIVED, &with("raw"), bytes),
            Field::NvlinkReplay => out.put(&m::LINK_ERRORS, &with("replay"), Count(*value)),
            Field::NvlinkRecovery => out.put(&m::LINK_ERRORS, &with("recovery"), Count(*value)),
            Field::NvlinkCrcFlit => out.put(&m::LINK_ERRORS, &with("crc_flit"), Count(*value)),
            _ => {}
        }
    }
}
