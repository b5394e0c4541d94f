//! Event sets: the watched GPUs and the delivered events.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError};

use crate::abi::{Code, EventV2, Handle, SetHandle};
use crate::clock;
use crate::loaded::Loaded;
use crate::scenario::Xid;
use crate::target::{Target, handle_at};

/// Marks set handles apart from device handles.
const MARK: usize = 0x4D58 << 32;

static SETS: LazyLock<Mutex<Registry>> = LazyLock::new(Mutex::default);

#[derive(Debug, Default)]
struct Registry {
    created: usize,
    sets: BTreeMap<usize, Arc<EventSet>>,
}

/// The registrations of one set.
#[derive(Debug, Default)]
pub(crate) struct EventSet(Mutex<Vec<Watch>>);

#[derive(Debug)]
struct Watch {
    slot: u32,
    kinds: u64,
    delivered: BTreeSet<u64>,
}

fn registry() -> MutexGuard<'static, Registry> {
    SETS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A new, empty set.
pub(crate) fn create() -> SetHandle {
    let mut registry = registry();
    registry.created += 1;
    let handle = MARK | registry.created;
    registry.sets.insert(handle, Arc::default());
    SetHandle(handle)
}

/// The set of a handle, until it is freed.
pub(crate) fn get(handle: SetHandle) -> Result<Arc<EventSet>, Code> {
    registry().sets.get(&handle.0).cloned().ok_or(Code::INVALID_ARGUMENT)
}

/// Forgets a set.
pub(crate) fn free(handle: SetHandle) -> Result<(), Code> {
    registry().sets.remove(&handle.0).map(drop).ok_or(Code::INVALID_ARGUMENT)
}

/// Forgets every set, as the last shutdown does.
pub(crate) fn free_all() {
    registry().sets.clear();
}

impl EventSet {
    /// Watches a GPU from now on: earlier events are not delivered.
    pub(crate) fn watch(&self, target: &Target, kinds: u64) {
        let Some(slot) = target.loaded.slot(target.place) else { return };
        let past = happened(&target.gpu().xids, target.t).map(|(seq, _)| seq);
        let mut watches = self.lock();
        match watches.iter_mut().find(|watch| watch.slot == slot) {
            Some(watch) => watch.kinds |= kinds,
            None => watches.push(Watch { slot, kinds, delivered: past.collect() }),
        }
    }

    /// The next event that has happened and was not delivered yet.
    pub(crate) fn next(&self, loaded: &Loaded) -> Option<EventV2> {
        let t = clock::unix_seconds() - loaded.epoch;
        for watch in self.lock().iter_mut() {
            let Some(place) = loaded.place(watch.slot) else { continue };
            let Some(device) = loaded.scenario.devices.get(place.device) else { continue };
            for (seq, event) in happened(&device.xids, t) {
                let wanted = event.event_type & watch.kinds != 0;
                if wanted && watch.delivered.insert(seq) {
                    return Some(EventV2 {
                        device: handle_at(loaded, place).unwrap_or(Handle(0)),
                        kind: event.event_type,
                        data: event.xid,
                        gpu_instance: event.gi.unwrap_or(u32::MAX),
                        compute_instance: event.ci.unwrap_or(u32::MAX),
                    });
                }
            }
        }
        None
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Watch>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn happened(events: &[Xid], t: f64) -> impl Iterator<Item = (u64, &Xid)> {
    events
        .iter()
        .zip(1..)
        .map(|(event, position)| (event.seq.unwrap_or(position), event))
        .filter(move |(_, event)| event.at_s <= t)
}
