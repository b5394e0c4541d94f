//! The newest known state of every GPU, updated from the worker's messages.

use std::collections::BTreeSet;
use std::time::Duration;

use super::plausible;
use super::protocol::{
    Identity, Lasting, Line, MOST_GPUS, Reason, Refusal, Sample, State, Status, Trouble, Xid,
};
use super::unlisted;
use super::unplaced::Unplaced;
use super::unwrapped::Unwrapped;
use super::xid::{Address, XidSource, Xids, pci};
use crate::model::facts::KernelXid;
use crate::model::label::Label;
use crate::model::names::named;
use crate::model::time::Timestamp;
use crate::model::xid;

/// A GPU's sample is stale after this many intervals.
const STALE: u32 = 5;

/// A sweep of an idle GPU can take a second, so a shorter time does not mean that the GPU hangs.
const SHORTEST_STALE: Duration = Duration::from_secs(3);

/// After this silence of a worker, which sends a heartbeat every second, its GPUs are unobserved; shorter than the
/// time after which a GPU counts as hung, so that a stopped worker is never reported as hung GPUs.
const SILENT: Duration = Duration::from_millis(2_500);

named! {
    pub enum Condition {
        /// It returns values.
        Ok = "ok",
        /// It fell off the bus, needs a reset, or is no longer counted by the driver.
        Lost = "lost",
        /// Its driver calls do not return.
        Hung = "hung",
        /// Its calls fail with another error.
        UnknownError = "unknown_error",
        /// No worker observes it now.
        Unobserved = "unobserved",
    }
}

/// How reliable a GPU's index is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Placement {
    /// The GPU reported it to the current worker.
    Reported,
    /// An earlier worker reported it, or the GPU has not reported its UUID, and nothing contradicts it.
    Assumed,
    /// The driver has no index for the GPU, or an index that is not known yet.
    None,
}

#[derive(Debug)]
pub struct Gpu {
    /// The values of the labels `gpu` and `uuid`.
    pub labels: [Label; 2],
    /// Its identity, once reported.
    pub identity: Identity,
    pub sample: Option<Sample>,
    pub xids: Xids,
    /// Bytes sent over PCIe.
    pub pcie_sent: Unwrapped,
    /// Bytes received over PCIe.
    pub pcie_received: Unwrapped,
    /// Largest memory in use, in bytes, of the samples and reads received since the last tick; zero without any.
    pub peak: u64,
    /// Reads of its memory between samples.
    pub polls: u64,
    placement: Placement,
    /// Since when the current worker could have reported it.
    since: Timestamp,
    /// When the newest sample was received.
    sampled: Option<Timestamp>,
    /// The newest error, if it is newer than the newest sample.
    trouble: Option<(Timestamp, Refusal)>,
    /// The NVML call that does not return, according to the last heartbeat.
    pub lasting: Option<Label>,
    /// Number of processes that were taken out of the newest sample, because their pids may be those of another namespace.
    pub unproven: usize,
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
            peak: 0,
            polls: 0,
            placement: Placement::Assumed,
            since: at,
            sampled: None,
            trouble: None,
            lasting: None,
            unproven: 0,
        }
    }

    /// Time since its newest sample, or since it became known.
    pub fn age(&self, now: Timestamp) -> Duration {
        now.since(self.sampled.unwrap_or(self.since))
    }

    /// Time since the current worker last reported anything about it.
    fn silence(&self, now: Timestamp) -> Duration {
        let reports = [self.sampled, self.trouble.map(|trouble| trouble.0)];
        let newest = reports.into_iter().flatten().map(|report| now.since(report)).min();
        let looked_at = now.since(self.since);
        newest.map_or(looked_at, |newest| newest.min(looked_at))
    }
}

/// The state of NVML, the worker and all GPUs.
#[derive(Debug, Default)]
pub struct World {
    pub state: State,
    /// Whether the newest worker reported `state`.
    pub reported: bool,
    /// Whether the worker was stopped on request.
    pub released: bool,
    /// GPUs, by index.
    pub gpus: Vec<Gpu>,
    /// Number of GPUs that the driver reported last.
    counted: Option<u32>,
    /// XIDs of the kernel log whose GPU is not known yet.
    pub unplaced: Unplaced,
    /// Whether the kernel log is read: its lines count the events whose severity only they tell.
    pub reads_log: bool,
    /// The GPUs that the kernel has; absent where that is not known.
    pub present: Option<BTreeSet<Address>>,
    /// When the worker last sent a message.
    pub last_message: Option<Timestamp>,
    pub running: bool,
    /// Workers started after the previous one failed.
    pub restarts: u64,
    /// Workers that could not be killed.
    pub abandoned: usize,
    /// The worker's resident memory in bytes.
    pub resident: Option<u64>,
    /// Messages rejected.
    pub bad_lines: u64,
    /// When a worker was first requested.
    pub begun: Option<Timestamp>,
    /// The initialization call of NVML that does not return.
    pub starting: Option<Label>,
    /// Number of the current worker; messages of earlier ones are dropped.
    generation: u64,
}

impl World {
    /// Records that a keeper starts; returns the restarts counted before it.
    pub fn keeper_started(&mut self, at: Timestamp) -> u64 {
        self.begun = Some(at);
        self.restarts
    }

    /// Records that a worker was started; returns the number with which its messages are passed to [`World::take`].
    pub fn worker_started(&mut self, at: Timestamp) -> u64 {
        self.generation += 1;
        self.beat(&[]);
        self.reported = false;
        self.running = true;
        self.released = false;
        self.last_message = Some(at);
        if matches!(self.state.status, Status::Ok | Status::Released) {
            self.state = State::default();
        }
        self.generation
    }

    /// Records that the worker exited or was abandoned; `orderly` if it gave a reason or exited to be started again.
    pub fn worker_ended(&mut self, orderly: bool, why: String) {
        self.running = false;
        self.resident = None;
        self.generation += 1;
        let typed = self.reported && !matches!(self.state.status, Status::Ok | Status::Initializing);
        if !typed {
            let status = if orderly { Status::Initializing } else { Status::WorkerFailed };
            self.state = State { status, why, ..State::default() };
        }
    }

    /// Records that the worker was stopped on request.
    pub fn worker_released(&mut self) {
        self.running = false;
        self.resident = None;
        self.released = true;
        self.state =
            State { status: Status::Released, why: "released on request".to_owned(), ..State::default() };
    }

    /// Processes one message of the worker with this number.
    pub fn take(&mut self, generation: u64, at: Timestamp, line: Line) {
        if generation != self.generation {
            return;
        }
        if self.last_message.is_some_and(|last_message| at.since(last_message) > SILENT) {
            // Messages that were queued meanwhile arrive only now.
            self.exclude_pause(at);
        }
        self.last_message = Some(at);
        let accepted = match line {
            Line::Beat { lasting } => self.beat(&lasting),
            Line::State(state) => self.begin(at, state),
            Line::Device(identity) => self.identify(at, *identity),
            Line::Sample(sample) => self.sampled(at, *sample),
            Line::Trouble(Trouble { gpu, refusal }) => {
                self.gpu(gpu).map(|gpu| gpu.trouble = Some((at, refusal))).is_some()
            }
            Line::Xid(Xid { gpu, xid }) => {
                let is_told = self.reads_log && xid::is_told_by_line(xid);
                let count = |gpu: &mut Gpu| {
                    if !is_told {
                        gpu.xids.record(at, XidSource::Nvml, xid, xid::severity(xid));
                    }
                };
                self.gpu(gpu).map(count).is_some()
            }
        };
        self.bad_lines += u64::from(!accepted);
    }

    /// Records that the daemon or the worker was stopped until now, so that this time is not counted as
    /// silence of the GPUs.
    pub fn exclude_pause(&mut self, now: Timestamp) {
        if self.running {
            self.last_message = Some(now);
        }
        self.gpus.iter_mut().for_each(|gpu| gpu.since = now);
    }

    /// Records that a tick has exposed the peaks: the next ones begin now.
    pub fn peaks_exposed(&mut self) {
        self.gpus.iter_mut().for_each(|gpu| gpu.peak = 0);
    }

    /// Counts XIDs from the kernel log.
    pub fn take_kernel(&mut self, at: Timestamp, xids: &[KernelXid]) {
        for event in xids {
            let address = pci(&event.pci);
            let is_it = |gpu: &&mut Gpu| address.is_some() && pci(&gpu.identity.pci) == address;
            // After a GPU was removed, its slot may hold another one.
            match self.gpus.iter_mut().filter(is_it).max_by_key(|gpu| gpu.placement != Placement::None) {
                Some(gpu) => gpu.xids.record(at, XidSource::Kernel, event.xid, event.severity),
                None => self.unplaced.record(event),
            }
        }
    }

    /// Whether the worker runs and has sent a message recently.
    pub fn answers(&self, now: Timestamp) -> bool {
        self.running && self.last_message.is_some_and(|last_message| now.since(last_message) <= SILENT)
    }

    pub fn condition(&self, gpu: &Gpu, now: Timestamp, interval: Duration) -> Condition {
        if self.state.status != Status::Ok || !self.answers(now) {
            return Condition::Unobserved;
        }
        if gpu.placement == Placement::None {
            // It may be at any index whose GPU has not reported its UUID.
            let nameless = |gpu: &Gpu| gpu.placement != Placement::None && gpu.identity.uuid.is_empty();
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

    /// GPUs that are there, or had a critical XID, and that the driver has not listed since memwarden started. Nothing while
    /// a listed GPU may be one of them.
    pub fn unlisted(&self, now: Timestamp) -> BTreeSet<Address> {
        let Some(present) =
            self.present.as_ref().filter(|_| self.state.status == Status::Ok && self.answers(now))
        else {
            return BTreeSet::new();
        };
        let listed: Option<BTreeSet<Address>> = self.gpus.iter().map(|gpu| pci(&gpu.identity.pci)).collect();
        let Some(listed) = listed else { return BTreeSet::new() };
        let all = present.iter().copied().chain(self.unplaced.critical());
        all.filter(|address| !listed.contains(address)).collect()
    }

    /// The longest time for which a GPU has hung, if one hangs.
    pub fn hung(&self, now: Timestamp, interval: Duration) -> Option<Duration> {
        let hung = |gpu: &&Gpu| self.condition(gpu, now, interval) == Condition::Hung;
        self.gpus.iter().filter(hung).map(|gpu| gpu.silence(now)).max()
    }

    /// The NVML calls that do not return, each with its GPU; nothing if there are none.
    pub fn lasting(&self) -> Option<String> {
        let of_gpus = self
            .gpus
            .iter()
            .filter_map(|gpu| Some(format!("GPU {}: {}", gpu.labels[0], gpu.lasting.as_ref()?)));
        let calls: Vec<String> = self.starting.iter().map(|call| call.to_string()).chain(of_gpus).collect();
        (!calls.is_empty()).then(|| calls.join(", "))
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
        self.gpus.iter_mut().find(|gpu| gpu.placement != Placement::None && gpu.identity.gpu == index)
    }

    fn begin(&mut self, at: Timestamp, state: State) -> bool {
        if state.gpus > MOST_GPUS || matches!(state.status, Status::Released | Status::WorkerFailed) {
            return false;
        }
        self.reported = true;
        if state.status == Status::Ok {
            for gpu in &mut self.gpus {
                gpu.since = at;
                gpu.trouble = None;
                if gpu.placement == Placement::Reported {
                    gpu.placement = Placement::Assumed;
                }
            }
            if self.counted.replace(state.gpus) != Some(state.gpus) {
                self.doubt();
            }
            self.place_nameless(at);
        }
        self.state = state;
        true
    }

    /// Drops indices that the current worker has not confirmed, because indices have shifted.
    fn doubt(&mut self) {
        for gpu in &mut self.gpus {
            if gpu.placement == Placement::Assumed {
                gpu.placement = Placement::None;
            }
        }
    }

    /// Adds a GPU without UUID for each index that has no GPU, and removes such GPUs that have no index.
    fn place_nameless(&mut self, at: Timestamp) {
        self.gpus.retain(|gpu| gpu.placement != Placement::None || !gpu.identity.uuid.is_empty());
        // A GPU that disappeared stays as lost; the number of GPUs is bounded by the limit.
        while self.gpus.len() > MOST_GPUS as usize {
            let Some(vanished) = self.gpus.iter().position(|gpu| gpu.placement == Placement::None) else {
                break;
            };
            self.gpus.remove(vanished);
        }
        for index in 0..self.counted.unwrap_or(0) {
            if self.gpu(index).is_none() {
                self.gpus.push(Gpu::new(index, at));
            }
        }
        self.gpus.sort_by_key(|gpu| gpu.identity.gpu);
    }

    /// Takes the identity of a GPU: state known under its UUID is its own, state under its index may be another GPU's.
    fn identify(&mut self, at: Timestamp, mut identity: Identity) -> bool {
        let index = identity.gpu;
        // Two GPUs with one UUID are told apart by their addresses, as those without one.
        let address = pci(&identity.pci);
        let alias = address.map(|address| format!("pci-{}.0", unlisted::name(address)));
        let has_twin = self.gpus.iter().any(|gpu| {
            let is_other = pci(&gpu.identity.pci).is_some_and(|other| Some(other) != address);
            let is_twin = gpu.identity.uuid == identity.uuid && is_other;
            (gpu.placement == Placement::Reported && is_twin) || Some(&gpu.identity.uuid) == alias.as_ref()
        });
        if let Some(alias) = alias.filter(|_| has_twin || identity.uuid.is_empty()) {
            identity.uuid = alias;
        }
        let counted = self.counted.is_some_and(|counted| index < counted);
        if self.state.status != Status::Ok || !counted || identity.uuid.is_empty() {
            return false;
        }
        let at_index = |gpu: &Gpu| gpu.placement != Placement::None && gpu.identity.gpu == index;
        let is_it = |gpu: &Gpu| gpu.identity.uuid == identity.uuid;
        let shifted = self.gpus.iter().any(|gpu| {
            // Another GPU has its index, or it has another index.
            gpu.placement != Placement::None
                && !gpu.identity.uuid.is_empty()
                && at_index(gpu) != is_it(gpu)
                && (at_index(gpu) || is_it(gpu))
        });
        if shifted {
            self.doubt();
        }
        let place = self.gpus.iter().position(is_it);
        let place =
            place.or_else(|| self.gpus.iter().position(|gpu| at_index(gpu) && gpu.identity.uuid.is_empty()));
        let place = place.unwrap_or_else(|| {
            self.gpus.push(Gpu::new(index, at));
            self.gpus.len() - 1
        });
        for gpu in self.gpus.iter_mut().filter(|gpu| at_index(gpu)) {
            gpu.placement = Placement::None;
        }
        let gpu = &mut self.gpus[place];
        gpu.labels = [index.into(), identity.uuid.as_str().into()];
        gpu.identity = identity;
        gpu.placement = Placement::Reported;
        gpu.since = at;
        gpu.trouble = None;
        for (xid, severity, events) in
            pci(&gpu.identity.pci).map(|own| self.unplaced.place(own)).unwrap_or_default()
        {
            gpu.xids.add(xid, severity, events);
        }
        self.place_nameless(at);
        true
    }

    fn sampled(&mut self, at: Timestamp, mut sample: Sample) -> bool {
        let Some(gpu) = self.gpu(sample.gpu) else { return false };
        plausible::check(&mut sample);
        for (field, value) in &sample.values {
            match field {
                super::field::Field::PcieSent => gpu.pcie_sent.feed(*value),
                super::field::Field::PcieReceived => gpu.pcie_received.feed(*value),
                super::field::Field::MemoryUsed => gpu.peak = gpu.peak.max(*value),
                _ => {}
            }
        }
        if let Some(polled) = sample.polled {
            gpu.peak = gpu.peak.max(polled.used);
            gpu.polls += u64::from(polled.reads);
        }
        gpu.sampled = Some(at);
        gpu.trouble = None;
        (gpu.sample, gpu.unproven) = (Some(sample), 0);
        true
    }
}

/// The age from which a sample is stale.
pub fn stale_after(interval: Duration) -> Duration {
    (interval * STALE).max(SHORTEST_STALE)
}
