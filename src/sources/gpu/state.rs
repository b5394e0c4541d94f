//! The newest that is known of every GPU, filled by the worker's lines.

use std::time::Duration;

use super::protocol::{
    Identity, Lasting, Line, MOST_GPUS, Reason, Refusal, Sample, State, Status, Trouble, Xid,
};
use super::unplaced::Unplaced;
use super::unwrapped::Unwrapped;
use super::xid::{Road, Xids, pci};
use crate::model::facts::KernelXid;
use crate::model::label::Label;
use crate::model::time::Timestamp;

/// A GPU's sample is stale after this many intervals.
const STALE: u32 = 5;

/// A sweep of an idle GPU can take a second, so that a short interval says nothing about hanging.
const SHORTEST_STALE: Duration = Duration::from_secs(3);

/// A worker that beats every second and was silent for longer says nothing about its GPUs; less than the time
/// after which a GPU hangs, so that a stopped worker is never taken for hung GPUs.
const SILENT: Duration = Duration::from_millis(2_500);

/// How one GPU is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Condition {
    /// It tells its values.
    Ok,
    /// It fell off the bus, needs a reset, or is no longer counted by the driver.
    Lost,
    /// Its calls do not return.
    Hung,
    /// It refuses with another error.
    UnknownError,
    /// No worker looks at it now.
    Unobserved,
}

impl Condition {
    /// Every condition.
    pub const ALL: [Self; 5] = [Self::Ok, Self::Lost, Self::Hung, Self::UnknownError, Self::Unobserved];

    /// The value of the `status` label.
    pub const fn label(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Lost => "lost",
            Self::Hung => "hung",
            Self::UnknownError => "unknown_error",
            Self::Unobserved => "unobserved",
        }
    }
}

/// How sure it is that a GPU has the index under which it is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Seat {
    /// It told this worker so.
    Told,
    /// It told an earlier worker so, or has not said who it is, and nothing speaks against it.
    Assumed,
    /// The driver has it under no index, or under one that is not known yet.
    None,
}

/// What is known of one GPU.
#[derive(Debug)]
pub struct Gpu {
    /// The values of the labels `gpu` and `uuid`.
    pub labels: [Label; 2],
    /// Who it is, once it has said so.
    pub identity: Identity,
    /// The newest sample.
    pub sample: Option<Sample>,
    /// Its XIDs.
    pub xids: Xids,
    /// Bytes sent over PCIe.
    pub pcie_sent: Unwrapped,
    /// Bytes received over PCIe.
    pub pcie_received: Unwrapped,
    seat: Seat,
    /// Since when the worker that runs now can have heard of it.
    since: Timestamp,
    /// When the newest sample came.
    sampled: Option<Timestamp>,
    /// The newest refusal, where it is newer than the newest sample.
    trouble: Option<(Timestamp, Refusal)>,
    /// The call of NVML that has not returned for a while, by the last beat.
    lasting: Option<Label>,
}

impl Gpu {
    fn new(index: u32, at: Timestamp) -> Self {
        Self {
            labels: [index.into(), "".into()],
            identity: Identity { gpu: index, ..Identity::default() },
            sample: None,
            xids: Xids::default(),
            pcie_sent: Unwrapped::default(),
            pcie_received: Unwrapped::default(),
            seat: Seat::Assumed,
            since: at,
            sampled: None,
            trouble: None,
            lasting: None,
        }
    }

    /// Time since its newest sample, or since it is known.
    pub fn age(&self, now: Timestamp) -> Duration {
        now.since(self.sampled.unwrap_or(self.since))
    }

    /// The call of NVML that does not return, where one is known.
    pub const fn lasting(&self) -> Option<&Label> {
        self.lasting.as_ref()
    }

    /// Time since this worker last heard anything of it.
    fn silence(&self, now: Timestamp) -> Duration {
        let told = [self.sampled, self.trouble.map(|trouble| trouble.0)];
        let newest = told.into_iter().flatten().map(|told| now.since(told)).min();
        let looked_at = now.since(self.since);
        newest.map_or(looked_at, |newest| newest.min(looked_at))
    }
}

/// Everything that is known.
#[derive(Debug, Default)]
pub struct World {
    /// How NVML is.
    pub state: State,
    /// Whether `state` was told by the newest worker.
    told: bool,
    /// Whether the worker was ended on request.
    pub released: bool,
    /// GPUs, by index.
    pub gpus: Vec<Gpu>,
    /// How many GPUs the driver had when NVML last answered.
    counted: Option<u32>,
    /// XIDs of the kernel log whose GPU is not known yet.
    pub unplaced: Unplaced,
    /// When the worker was last heard of.
    pub heard: Option<Timestamp>,
    /// Whether a worker runs.
    pub running: bool,
    /// Workers started because the one before failed.
    pub restarts: u64,
    /// Workers left behind.
    pub abandoned: usize,
    /// The worker's resident memory.
    pub resident: Option<u64>,
    /// Lines refused.
    pub bad_lines: u64,
    /// When a worker was first wanted.
    pub begun: Option<Timestamp>,
    /// The call with which NVML is being started, where it has not returned for a while.
    starting: Option<Label>,
    /// Counts workers; a line of an earlier one is dropped.
    generation: u64,
}

impl World {
    /// A keeper begins; gives the restarts by those before it.
    pub fn keeper_started(&mut self, at: Timestamp) -> u64 {
        self.begun = Some(at);
        self.restarts
    }

    /// A worker was started; its lines carry the number returned.
    pub fn worker_started(&mut self, at: Timestamp) -> u64 {
        self.generation += 1;
        self.beat(&[]);
        self.told = false;
        self.running = true;
        self.released = false;
        self.heard = Some(at);
        if matches!(self.state.status, Status::Ok | Status::Released) {
            self.state = State::default();
        }
        self.generation
    }

    /// The worker has ended or was left behind; `orderly` where it said why or wanted to be started anew.
    pub fn worker_ended(&mut self, orderly: bool, why: String) {
        self.running = false;
        self.resident = None;
        self.generation += 1;
        let typed = self.told && !matches!(self.state.status, Status::Ok | Status::Initializing);
        if !typed {
            let status = if orderly { Status::Initializing } else { Status::WorkerFailed };
            self.state = State { status, why, ..State::default() };
        }
    }

    /// The worker was ended on request.
    pub fn worker_released(&mut self) {
        self.running = false;
        self.resident = None;
        self.released = true;
        self.state =
            State { status: Status::Released, why: "released on request".to_owned(), ..State::default() };
    }

    /// Whether the worker has told how NVML is.
    pub fn has_reported(&self) -> bool {
        self.told
    }

    /// Takes one line of the worker with this number.
    pub fn take(&mut self, generation: u64, at: Timestamp, line: Line) {
        if generation != self.generation {
            return;
        }
        if self.heard.is_some_and(|heard| at.since(heard) > SILENT) {
            // The lines that were not read meanwhile come only now.
            self.stood_still(at);
        }
        self.heard = Some(at);
        let accepted = match line {
            Line::Beat { lasting } => self.beat(&lasting),
            Line::State(state) => self.begin(at, state),
            Line::Device(identity) => self.identify(at, *identity),
            Line::Sample(sample) => self.sampled(at, *sample),
            Line::Trouble(Trouble { gpu, refusal }) => {
                self.gpu(gpu).map(|gpu| gpu.trouble = Some((at, refusal))).is_some()
            }
            Line::Xid(Xid { gpu, xid }) => {
                self.gpu(gpu).map(|gpu| gpu.xids.record(at, Road::Nvml, xid)).is_some()
            }
        };
        self.bad_lines += u64::from(!accepted);
    }

    /// This process or the worker stood still until now, which is no silence of the GPUs'.
    pub fn stood_still(&mut self, now: Timestamp) {
        if self.running {
            self.heard = Some(now);
        }
        self.gpus.iter_mut().for_each(|gpu| gpu.since = now);
    }

    /// Counts what the kernel log told.
    pub fn take_kernel(&mut self, at: Timestamp, xids: &[KernelXid]) {
        for told in xids {
            let address = pci(&told.pci);
            let is_it = |gpu: &&mut Gpu| address.is_some() && pci(&gpu.identity.pci) == address;
            // A GPU that was taken out may have left its slot to another.
            match self.gpus.iter_mut().filter(is_it).max_by_key(|gpu| gpu.seat != Seat::None) {
                Some(gpu) => gpu.xids.record(at, Road::Kernel, told.xid),
                None => self.unplaced.record(told),
            }
        }
    }

    /// Whether the worker runs and was heard of lately.
    pub fn answers(&self, now: Timestamp) -> bool {
        self.running && self.heard.is_some_and(|heard| now.since(heard) <= SILENT)
    }

    /// How a GPU is now.
    pub fn condition(&self, gpu: &Gpu, now: Timestamp, interval: Duration) -> Condition {
        if self.state.status != Status::Ok || !self.answers(now) {
            return Condition::Unobserved;
        }
        if gpu.seat == Seat::None {
            // It may be behind any index that has not said who it is.
            let nameless = |gpu: &Gpu| gpu.seat != Seat::None && gpu.identity.uuid.is_empty();
            return if self.gpus.iter().any(nameless) { Condition::Unobserved } else { Condition::Lost };
        }
        if gpu.silence(now) > stale_after(interval) {
            return Condition::Hung;
        }
        match (gpu.trouble, gpu.sampled) {
            (Some((_, refusal)), _) if refusal.reason == Reason::Lost => Condition::Lost,
            (Some(_), _) => Condition::UnknownError,
            (None, Some(sampled)) if now.since(sampled) <= stale_after(interval) => Condition::Ok,
            (None, _) => Condition::Unobserved,
        }
    }

    /// How long a GPU has hung, where one does.
    pub fn hung(&self, now: Timestamp, interval: Duration) -> Option<Duration> {
        let hung = |gpu: &&Gpu| self.condition(gpu, now, interval) == Condition::Hung;
        self.gpus.iter().filter(hung).map(|gpu| gpu.silence(now)).max()
    }

    /// The calls that do not return, each with its GPU; nothing where there is none.
    pub fn lasting(&self) -> Option<String> {
        let of_gpus = self
            .gpus
            .iter()
            .filter_map(|gpu| Some(format!("GPU {}: {}", gpu.labels[0], gpu.lasting.as_ref()?)));
        let calls: Vec<String> = self.starting.iter().map(|call| call.to_string()).chain(of_gpus).collect();
        (!calls.is_empty()).then(|| calls.join(", "))
    }

    /// The call with which NVML is being started, where it has not returned for a while.
    pub const fn starting(&self) -> Option<&Label> {
        self.starting.as_ref()
    }

    fn beat(&mut self, lasting: &[Lasting]) -> bool {
        self.starting = None;
        self.gpus.iter_mut().for_each(|gpu| gpu.lasting = None);
        for call in lasting {
            let name = Some(Label::from(call.function.as_str())).filter(|_| call.is_sound());
            match call.gpu {
                None => self.starting = name,
                Some(index) => {
                    if let Some(gpu) = self.gpu(index) {
                        gpu.lasting = name;
                    }
                }
            }
        }
        lasting.iter().all(Lasting::is_sound)
    }

    fn gpu(&mut self, index: u32) -> Option<&mut Gpu> {
        self.gpus.iter_mut().find(|gpu| gpu.seat != Seat::None && gpu.identity.gpu == index)
    }

    fn begin(&mut self, at: Timestamp, state: State) -> bool {
        if state.gpus > MOST_GPUS || matches!(state.status, Status::Released | Status::WorkerFailed) {
            return false;
        }
        self.told = true;
        if state.status == Status::Ok {
            for gpu in &mut self.gpus {
                gpu.since = at;
                gpu.trouble = None;
                if gpu.seat == Seat::Told {
                    gpu.seat = Seat::Assumed;
                }
            }
            if self.counted.replace(state.gpus) != Some(state.gpus) {
                self.doubt();
            }
            self.seat_nameless(at);
        }
        self.state = state;
        true
    }

    /// Indices have shifted: none is believed before its GPU has told this worker who it is.
    fn doubt(&mut self) {
        for gpu in &mut self.gpus {
            if gpu.seat == Seat::Assumed {
                gpu.seat = Seat::None;
            }
        }
    }

    /// Gives each index that nobody has a GPU without a name, and forgets such GPUs without an index.
    fn seat_nameless(&mut self, at: Timestamp) {
        self.gpus.retain(|gpu| gpu.seat != Seat::None || !gpu.identity.uuid.is_empty());
        // A vanished UUID stays as lost; a node that swaps GPUs for ever is no node.
        while self.gpus.len() > MOST_GPUS as usize {
            let Some(vanished) = self.gpus.iter().position(|gpu| gpu.seat == Seat::None) else { break };
            self.gpus.remove(vanished);
        }
        for index in 0..self.counted.unwrap_or(0) {
            if self.gpu(index).is_none() {
                self.gpus.push(Gpu::new(index, at));
            }
        }
        self.gpus.sort_by_key(|gpu| gpu.identity.gpu);
    }

    /// A GPU said who it is: what was known under its UUID is its own, under its index perhaps another's.
    fn identify(&mut self, at: Timestamp, identity: Identity) -> bool {
        let index = identity.gpu;
        let counted = self.counted.is_some_and(|counted| index < counted);
        if self.state.status != Status::Ok || !counted || identity.uuid.is_empty() {
            return false;
        }
        let sits = |gpu: &Gpu| gpu.seat != Seat::None && gpu.identity.gpu == index;
        let is_it = |gpu: &Gpu| gpu.identity.uuid == identity.uuid;
        let shifted = self.gpus.iter().any(|gpu| {
            // Another has its index, or it has another index.
            gpu.seat != Seat::None
                && !gpu.identity.uuid.is_empty()
                && sits(gpu) != is_it(gpu)
                && (sits(gpu) || is_it(gpu))
        });
        if shifted {
            self.doubt();
        }
        let place = self.gpus.iter().position(is_it);
        let place =
            place.or_else(|| self.gpus.iter().position(|gpu| sits(gpu) && gpu.identity.uuid.is_empty()));
        let place = place.unwrap_or_else(|| {
            self.gpus.push(Gpu::new(index, at));
            self.gpus.len() - 1
        });
        for gpu in self.gpus.iter_mut().filter(|gpu| sits(gpu)) {
            gpu.seat = Seat::None;
        }
        let gpu = &mut self.gpus[place];
        gpu.labels = [index.into(), identity.uuid.as_str().into()];
        gpu.identity = identity;
        gpu.seat = Seat::Told;
        gpu.since = at;
        gpu.trouble = None;
        for (xid, events) in pci(&gpu.identity.pci).map(|own| self.unplaced.place(own)).unwrap_or_default() {
            gpu.xids.add(xid, events);
        }
        self.seat_nameless(at);
        true
    }

    fn sampled(&mut self, at: Timestamp, sample: Sample) -> bool {
        let Some(gpu) = self.gpu(sample.gpu) else { return false };
        for (field, value) in &sample.values {
            match field {
                super::field::Field::PcieSent => gpu.pcie_sent.feed(*value),
                super::field::Field::PcieReceived => gpu.pcie_received.feed(*value),
                _ => {}
            }
        }
        gpu.sampled = Some(at);
        gpu.trouble = None;
        gpu.sample = Some(sample);
        true
    }
}

/// When a sample is too old to be shown.
pub fn stale_after(interval: Duration) -> Duration {
    (interval * STALE).max(SHORTEST_STALE)
}
