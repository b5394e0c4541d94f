//! A scenario with the state of the library for it: slots of handles and counters of calls.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64};

use crate::scenario::Scenario;

/// A scenario in force; immutable but for its counters.
#[derive(Debug)]
pub(crate) struct Loaded {
    pub(crate) scenario: Scenario,
    /// Unix seconds from which moving values count.
    pub(crate) epoch: f64,
    places: Vec<Option<Place>>,
    gpus: Vec<Gpu>,
}

/// Where in the scenario a handle's GPU or instance is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    pub(crate) device: usize,
    pub(crate) instance: Option<usize>,
}

/// The state of the library for one GPU of the scenario.
#[derive(Debug)]
struct Gpu {
    slot: u32,
    instance_slots: BTreeMap<usize, u32>,
    counters: Arc<Counters>,
}

/// Number of calls for a GPU; kept over reloads that do not change its state and churn.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    pub(crate) calls: AtomicU64,
    pub(crate) probes: AtomicU32,
}

/// Slots by UUID, so that a handle means the same GPU when the file's list is reordered.
#[derive(Debug, Default)]
pub(crate) struct Slots(Vec<String>);

impl Slots {
    fn of(&mut self, uuid: &str) -> u32 {
        let known = self.0.iter().position(|slot| slot == uuid);
        let index = known.unwrap_or_else(|| {
            self.0.push(uuid.to_owned());
            self.0.len() - 1
        });
        u32::try_from(index).unwrap_or(u32::MAX)
    }
}

impl Loaded {
    /// Puts a scenario in force, after `before` if there was one.
    pub(crate) fn new(scenario: Scenario, before: Option<&Self>, slots: &mut Slots, born: f64) -> Self {
        let mut loaded = Self {
            epoch: scenario.epoch.unwrap_or(born),
            places: Vec::new(),
            gpus: Vec::new(),
            scenario: Scenario::default(),
        };
        for (index, device) in scenario.devices.iter().enumerate() {
            let slot = slots.of(&device.uuid);
            loaded.put(slot, Place { device: index, instance: None });
            let mut instance_slots = BTreeMap::new();
            for (at, instance) in device.instances() {
                let slot = slots.of(&instance.uuid);
                loaded.put(slot, Place { device: index, instance: Some(at) });
                instance_slots.insert(at, slot);
            }
            let kept = before.and_then(|before| {
                let place = before.place(slot)?;
                let old = before.scenario.devices.get(place.device)?;
                let same = old.state == device.state && old.churn == device.churn;
                same.then(|| before.counters(place))?
            });
            loaded.gpus.push(Gpu { slot, instance_slots, counters: kept.unwrap_or_default() });
        }
        loaded.scenario = scenario;
        loaded
    }

    fn put(&mut self, slot: u32, place: Place) {
        let slot = slot as usize;
        if self.places.len() <= slot {
            self.places.resize(slot + 1, None);
        }
        if let Some(entry) = self.places.get_mut(slot) {
            *entry = Some(place);
        }
    }

    /// Where the GPU or instance of a slot is now, if the file still has it.
    pub(crate) fn place(&self, slot: u32) -> Option<Place> {
        self.places.get(slot as usize).copied().flatten()
    }

    /// The slot of what is at a place.
    pub(crate) fn slot(&self, place: Place) -> Option<u32> {
        let gpu = self.gpus.get(place.device)?;
        match place.instance {
            None => Some(gpu.slot),
            Some(instance) => gpu.instance_slots.get(&instance).copied(),
        }
    }

    /// The counters of the GPU at a place.
    pub(crate) fn counters(&self, place: Place) -> Option<Arc<Counters>> {
        self.gpus.get(place.device).map(|gpu| Arc::clone(&gpu.counters))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering;

    use super::*;

    fn load(text: &str, before: Option<&Loaded>, slots: &mut Slots) -> Loaded {
        Loaded::new(Scenario::parse(text).unwrap(), before, slots, 7.0)
    }

    #[test]
    fn a_slot_follows_its_uuid() {
        let mut slots = Slots::default();
        let first = load(r#"{"devices": [{"uuid": "a"}, {"uuid": "b"}]}"#, None, &mut slots);
        let second = load(r#"{"devices": [{"uuid": "b"}]}"#, Some(&first), &mut slots);
        let b = first.slot(Place { device: 1, instance: None }).unwrap();
        assert_eq!(second.place(b), Some(Place { device: 0, instance: None }));
        let a = first.slot(Place { device: 0, instance: None }).unwrap();
        assert_eq!(second.place(a), None);
        assert_eq!(first.epoch, 7.0);
    }

    #[test]
    fn counters_start_again_when_the_state_changes() {
        let mut slots = Slots::default();
        let place = Place { device: 0, instance: None };
        let calls = |loaded: &Loaded| loaded.counters(place).unwrap().calls.load(Ordering::Relaxed);
        let first = load(r#"{"devices": [{"state": {"lost_after_calls": 3}}]}"#, None, &mut slots);
        first.counters(place).unwrap().calls.store(2, Ordering::Relaxed);
        let same = r#"{"devices": [{"state": {"lost_after_calls": 3}, "temperature": 50}]}"#;
        let second = load(same, Some(&first), &mut slots);
        assert_eq!(calls(&second), 2);
        let third = load(r#"{"devices": [{"state": {"lost_after_calls": 4}}]}"#, Some(&second), &mut slots);
        assert_eq!(calls(&third), 0);
    }
}
