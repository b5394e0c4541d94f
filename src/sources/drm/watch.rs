//! The threads that read: one for each GPU, and one that finds GPUs and the processes that use them.
//!
//! A read of a GPU's files waits for its driver, possibly forever; only the thread of that GPU waits then, and it cannot be
//! ended. It has no descriptors of the daemon ([`crate::host::apart`]).

use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use super::card::{self, Card};
use super::clients::{Accounts, Finder, Holder, Of, Usages};
use super::files::{Files, Refused};
use super::vendor::{Report, Values, Vendor};
use crate::host::background::{Background, Stopped};
use crate::host::{apart, clock};
use crate::model::facts::ProcessTable;
use crate::model::label::Label;
use crate::model::lock::lock;
use crate::model::time::Timestamp;

/// Rounds between two searches for GPUs.
const SEARCH: u32 = 30;
/// Most GPUs that are kept after they have disappeared.
const MOST_LOST: usize = 64;

/// What the threads need.
#[derive(Clone, Debug)]
pub struct Setup {
    /// The process file system.
    pub proc: PathBuf,
    /// The device file system.
    pub sys: PathBuf,
    /// Time between two reads.
    pub interval: Duration,
    pub processes: bool,
    pub vendors: &'static [&'static Vendor],
}

/// One complete read of a GPU.
#[derive(Clone, Debug, Default)]
pub struct Sample {
    /// Whether the driver has put the GPU to sleep, so that nothing was read.
    pub sleeps: bool,
    pub values: Values,
    /// Whether it is part of a CPU and allocates from the memory of the host; its own memory is then what the firmware sets aside for it.
    pub uses_host_memory: bool,
    /// The values that could not be read.
    pub refused: Vec<Refused>,
    /// Its processes; absent where they are not known.
    pub usages: Option<Usages>,
}

/// What is known of a GPU.
#[derive(Clone, Debug)]
pub struct DeviceState {
    pub card: Arc<Card>,
    /// The newest complete read.
    pub sample: Option<Arc<Sample>>,
    /// When that read ended.
    pub sampled: Option<Timestamp>,
    /// Since when it is read.
    pub since: Timestamp,
    /// The file that is being read.
    pub reading: Option<Label>,
    pub lost: bool,
}

/// Everything that the threads have found.
#[derive(Debug, Default)]
pub struct World {
    /// Whether GPUs were searched.
    pub searched: bool,
    /// Why they could not be.
    pub error: Option<String>,
    pub gpus: Vec<Arc<Mutex<DeviceState>>>,
}

/// Data that the sampler and the threads exchange.
#[derive(Debug, Default)]
pub struct Shared {
    pub world: Mutex<World>,
    /// The processes of the host in the newest tick.
    pub processes: Mutex<Option<Arc<ProcessTable>>>,
    /// Processes that have a DRM device open; absent while they are not known.
    holders: Mutex<Option<Arc<Vec<Holder>>>>,
}

/// Finds GPUs and starts a thread for each, until the source is dropped.
pub(super) fn find(setup: &Setup, shared: &Arc<Shared>, stopped: &Stopped) {
    let mut threads: Vec<Background<Mutex<DeviceState>>> = Vec::new();
    let mut finder = Finder::default();
    for round in 0_u32.. {
        if round % SEARCH == 0 || threads.is_empty() {
            search(setup, shared, &mut threads);
        }
        // Without a GPU, no process is looked at.
        if setup.processes && !threads.is_empty() {
            let table = lock(&shared.processes).clone();
            let holders = table.map(|table| Arc::new(finder.round(&setup.proc, &table)));
            *lock(&shared.holders) = holders;
        }
        let pause = if threads.is_empty() { setup.interval * SEARCH } else { setup.interval };
        if !stopped.pause(pause) {
            return;
        }
    }
}

/// Starts a thread for each new GPU, and ends those of GPUs that have disappeared.
fn search(setup: &Setup, shared: &Arc<Shared>, threads: &mut Vec<Background<Mutex<DeviceState>>>) {
    let cards = match card::find(&setup.sys, setup.vendors) {
        Ok(cards) => cards,
        Err(error) => {
            let mut world = lock(&shared.world);
            (world.searched, world.error) = (true, Some(format!("cannot search for GPUs: {error}")));
            return;
        }
    };
    threads.retain(|thread| {
        let mut state = lock(&thread.shared);
        state.lost = !cards.iter().any(|card| card.is(&state.card));
        !state.lost
    });
    let mut error = None;
    for card in cards {
        if threads.iter().any(|thread| card.is(&lock(&thread.shared).card)) {
            continue;
        }
        let card = Arc::new(card);
        let state = DeviceState {
            card: Arc::clone(&card),
            sample: None,
            sampled: None,
            since: clock::now(),
            reading: None,
            lost: false,
        };
        let (setup, shared) = (setup.clone(), Arc::clone(shared));
        let name = format!("gpu-{}", card.labels[0]);
        let thread = Background::start(Mutex::new(state), |own, stopped| {
            apart::spawn(&name, move || read(&setup, &shared, &own, &card, &stopped))
        });
        match thread {
            Ok(thread) => threads.push(thread),
            Err(cause) => error = Some(format!("cannot create the thread {name}: {cause}")),
        }
    }
    let mut world = lock(&shared.world);
    let current = |state: &Arc<Mutex<DeviceState>>| threads.iter().any(|own| Arc::ptr_eq(&own.shared, state));
    // A GPU that was found again is not lost.
    let back = |state: &Arc<Mutex<DeviceState>>| {
        let uuid = lock(state).card.labels[1].clone();
        threads.iter().any(|own| lock(&own.shared).card.labels[1] == uuid)
    };
    let mut gpus: Vec<Arc<Mutex<DeviceState>>> =
        world.gpus.drain(..).filter(|gpu| !current(gpu) && !back(gpu)).collect();
    let surplus = gpus.len().saturating_sub(MOST_LOST);
    gpus.drain(..surplus);
    gpus.extend(threads.iter().map(|thread| Arc::clone(&thread.shared)));
    (world.searched, world.error, world.gpus) = (true, error, gpus);
}

/// Reads one GPU until the source is dropped.
fn read(setup: &Setup, shared: &Shared, state: &Mutex<DeviceState>, card: &Card, stopped: &Stopped) {
    let mut accounts = Accounts::default();
    let report = |file: &str| lock(state).reading = Some(file.into());
    let mut files = Files::new(&card.folder, card.vendor.hwmon, &report as Report<'_>);
    loop {
        let holders = lock(&shared.holders).clone();
        let sample = sample(setup, card, holders.as_ref(), &mut accounts, &mut files);
        {
            let mut state = lock(state);
            state.reading = None;
            state.sample = Some(Arc::new(sample));
            state.sampled = Some(clock::now());
        }
        if !stopped.pause(setup.interval) {
            return;
        }
    }
}

/// Reads a GPU once; may wait for its driver.
pub fn sample(
    setup: &Setup,
    card: &Card,
    holders: Option<&Arc<Vec<Holder>>>,
    accounts: &mut Accounts,
    files: &mut Files<'_, Report<'_>>,
) -> Sample {
    if card.sleeps() {
        return Sample { sleeps: true, ..Sample::default() };
    }
    let values = (card.vendor.read)(files);
    // As amdgpu decides (`apu_prefer_gtt` in `amdgpu_ttm_init`): with more memory of its own than it can map of the host, it is used like
    // any other GPU.
    let uses_host_memory =
        card.is_integrated && values.memory_total.zip(values.gtt_total).is_some_and(|(own, gtt)| own < gtt);
    let refused = std::mem::take(&mut files.refused);
    files.reads("fdinfo");
    let of = Of {
        proc: &setup.proc,
        vendor: card.vendor,
        uses_host_memory,
        pci: &card.pci,
        devices: &card.devices,
    };
    let usages = holders.map(|holders| accounts.round(of, holders, clock::now()));
    Sample { sleeps: false, values, uses_host_memory, refused, usages }
}
