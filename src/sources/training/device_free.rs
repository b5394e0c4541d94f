//! Free memory of the device of a rank that does not report it.
//!
//! A client reads the counters of its allocator; asking the driver, it could wait for the driver's locks. The daemon knows what the
//! driver reports of the device and of the process, at another time than that of the client's message.

use std::collections::{HashMap, VecDeque};

use super::rank::Rank;
use super::rank_identity::RankIdentity;
use crate::formats::messages::Hello;
use crate::model::facts::Facts;
use crate::model::label::Label;
use crate::model::units::Bytes;

/// Samples over which the memory of a process outside of its allocator is taken to be constant.
const SAMPLES: usize = 5;

/// By connection and device, what the process held outside of its allocator in the last samples, in bytes.
#[derive(Debug, Default)]
pub(super) struct DeviceFree {
    outside: HashMap<(u64, u16), VecDeque<u64>>,
    before: HashMap<(u64, u16), VecDeque<u64>>,
}

impl DeviceFree {
    /// Begins a sample: connections that are not read in it are forgotten after it.
    pub(super) fn begin(&mut self) {
        self.before = std::mem::take(&mut self.outside);
    }

    /// The free memory of each device of a rank that does not report it, by ordinal.
    pub(super) fn read(
        &mut self,
        connection: u64,
        pid: Option<u32>,
        (rank, hello, identity): (&Rank, &Hello, &RankIdentity),
        facts: &Facts,
    ) -> Vec<(u16, Bytes)> {
        let mut found = Vec::new();
        for (ordinal, device) in rank.devices.iter().filter(|(_, device)| device.free.is_none()) {
            let Some((_, uuid)) = identity.gpu_and_uuid(hello, *ordinal) else { continue };
            let Some(memory) = facts.gpu_memory.iter().find(|memory| memory.uuid == *uuid) else { continue };
            let free = match held(pid, uuid, facts).zip(device.reserved) {
                Some((held, reserved)) => {
                    let least = self.least_outside((connection, *ordinal), held, reserved);
                    // What it has reserved or released since its message is counted in neither or in both.
                    memory.free.get().saturating_add(held).saturating_sub(reserved.saturating_add(least))
                }
                None => memory.free.get(),
            };
            // The process may see a part of the device that the driver lists.
            let most =
                device.total.map_or(u64::MAX, |total| total.saturating_sub(device.reserved.unwrap_or(0)));
            let free = free.min(most);
            found.push((*ordinal, Bytes::new(free)));
        }
        found
    }

    /// The least that the process held outside of its allocator in the last samples: more than that is memory that the allocator has
    /// reserved since its message.
    fn least_outside(&mut self, key: (u64, u16), held: u64, reserved: u64) -> u64 {
        let mut last = self.before.remove(&key).unwrap_or_default();
        last.extend(held.checked_sub(reserved));
        if last.len() > SAMPLES {
            last.pop_front();
        }
        let least = last.iter().min().copied().unwrap_or(0);
        self.outside.insert(key, last);
        least
    }
}

/// What a process holds on a GPU, as the driver reports it.
fn held(pid: Option<u32>, uuid: &Label, facts: &Facts) -> Option<u64> {
    let own = facts.gpu_processes.iter().find(|process| Some(process.pid) == pid && process.uuid == *uuid)?;
    own.memory.map(Bytes::get)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::facts::{GpuMemory, GpuProcess};

    /// What is found free, where the rank has reported `reserved`, and the driver reports what the process holds and what is free.
    fn free(device_free: &mut DeviceFree, reserved: u64, held: Option<u64>, free: u64) -> u64 {
        let mut rank = Rank::default();
        let device = rank.devices.entry(0).or_default();
        device.reserved = Some(reserved);
        let gpus = vec![("2".into(), "GPU-a".into())];
        let identity = RankIdentity { gpus, ..RankIdentity::default() };
        let process =
            GpuProcess { pid: 7, gpu: "2".into(), uuid: "GPU-a".into(), memory: held.map(Bytes::new) };
        let other = GpuProcess { pid: 8, memory: Some(Bytes::new(1)), ..process.clone() };
        let memory = GpuMemory { uuid: "GPU-a".into(), used: Bytes::new(0), free: Bytes::new(free) };
        let facts =
            Facts { gpu_processes: vec![other, process], gpu_memory: vec![memory], ..Facts::default() };
        device_free.begin();
        let found = device_free.read(1, Some(7), (&rank, &Hello::default(), &identity), &facts);
        assert_eq!(found.len(), 1);
        found[0].1.get()
    }

    #[test]
    fn what_is_free_is_that_of_the_time_of_the_report() {
        let mut device_free = DeviceFree::default();
        let mut of = |reserved, held, left| free(&mut device_free, reserved, held, left);
        assert_eq!(of(20, Some(25), 55), 55, "5 are outside of the allocator");
        // It has reserved 10 since its message, which are not free any more and not in the message.
        assert_eq!(of(20, Some(35), 45), 55);
        // It has released 10 since its message.
        assert_eq!(of(20, Some(15), 65), 55);
        assert_eq!(of(10, Some(15), 65), 65);
        // More outside of the allocator counts after five samples.
        let later: Vec<u64> = (0..6).map(|_| of(20, Some(27), 53)).collect();
        assert_eq!(later, [55, 55, 55, 55, 53, 53]);
        assert_eq!(of(20, None, 55), 55, "the driver does not list its memory");
    }

    #[test]
    fn a_rank_whose_gpu_is_unknown_has_none() {
        let mut rank = Rank::default();
        rank.devices.entry(0).or_default().reserved = Some(1);
        let own = (&rank, &Hello::default(), &RankIdentity::default());
        assert_eq!(DeviceFree::default().read(1, Some(7), own, &Facts::default()), []);
    }
}
