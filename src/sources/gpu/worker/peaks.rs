//! Reads the memory of all GPUs between samples, so that peaks shorter than the sampling interval are seen.
//!
//! One thread reads all GPUs, because its wake-ups cost more than the reads. A driver call that does not return ends the
//! reads of that GPU only: another thread continues with the others.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use nvml_wrapper::Device;
use nvml_wrapper::error::NvmlError;

use super::pace::{Budget, Pace};
use super::{WorkerShared, calls, sweep};
use crate::host::clock;
use crate::model::lock::lock;
use crate::model::time::Timestamp;
use crate::sources::gpu::protocol::{Memory, Polled};

/// GPUs whose reads are due within this time are read together.
const TOGETHER: Duration = Duration::from_millis(10);

/// Longest wait of the thread, which finds a GPU that was added after it.
const LONGEST_WAIT: Duration = Duration::from_millis(500);

/// The thread is replaced if a read takes longer.
const HUNG: Duration = Duration::from_secs(2);

/// A read in progress.
#[derive(Clone, Copy, Debug)]
struct Reading {
    thread: u64,
    since: Timestamp,
}

#[derive(Debug)]
struct Polling {
    device: Arc<Device<'static>>,
    pace: Pace,
    next: Timestamp,
    /// The GPU is not read again until this read returns.
    reading: Option<Reading>,
    polled: Polled,
}

/// The GPUs whose memory is read between samples, and their largest values until these are taken.
#[derive(Debug, Default)]
pub(super) struct MemoryPeaks {
    gpus: Mutex<BTreeMap<u32, Polling>>,
    /// The number of threads that were started; only the newest one continues.
    threads: AtomicU64,
}

impl MemoryPeaks {
    /// Reads the memory of this GPU from now on.
    pub(super) fn add(&self, gpu: u32, device: Arc<Device<'static>>) {
        let (pace, polled) = (Pace::default(), Polled::default());
        lock(&self.gpus).insert(gpu, Polling { device, pace, next: clock::now(), reading: None, polled });
    }

    /// Ends the reads of this GPU.
    pub(super) fn remove(&self, gpu: u32) {
        lock(&self.gpus).remove(&gpu);
    }

    /// The largest value of this GPU since the last call; absent without a read.
    pub(super) fn take(&self, gpu: u32) -> Option<Polled> {
        let mut gpus = lock(&self.gpus);
        gpus.get_mut(&gpu).map(|own| std::mem::take(&mut own.polled)).filter(|polled| polled.reads > 0)
    }

    /// Begins a read that is due, by this thread.
    fn begin(&self, thread: u64, now: Timestamp) -> Option<(u32, Arc<Device<'static>>)> {
        let mut gpus = lock(&self.gpus);
        let due = |own: &Polling| own.reading.is_none() && own.next.since(now) < TOGETHER;
        let (gpu, own) = gpus.iter_mut().find(|(_, own)| due(own))?;
        own.reading = Some(Reading { thread, since: now });
        Some((*gpu, Arc::clone(&own.device)))
    }

    /// Ends the read of this GPU that began at `now`. Another error than that the GPU does not support it is left to the
    /// next sample, which reports it.
    fn end(&self, thread: u64, gpu: u32, now: Timestamp, memory: Result<Memory, NvmlError>) {
        let mut gpus = lock(&self.gpus);
        let Some(own) = gpus.get_mut(&gpu) else { return };
        if own.reading.take_if(|reading| reading.thread == thread).is_none() {
            // The GPU was opened again during the read.
            return;
        }
        match memory {
            Ok(memory) => {
                own.polled.used = own.polled.used.max(memory.used);
                own.polled.reads += 1;
                own.pace.record(now, &memory);
            }
            Err(NvmlError::NotSupported) => {
                gpus.remove(&gpu);
                return;
            }
            Err(_) => {}
        }
        own.next = now.plus(own.pace.interval(now));
    }

    /// The time until a read is due.
    fn wait(&self, now: Timestamp) -> Duration {
        let gpus = lock(&self.gpus);
        let idle = gpus.values().filter(|own| own.reading.is_none());
        idle.map(|own| own.next.since(now)).min().unwrap_or(LONGEST_WAIT).min(LONGEST_WAIT)
    }

    /// Whether the newest thread is in a read that does not return.
    fn hangs(&self, now: Timestamp) -> bool {
        let newest = self.threads.load(Ordering::Acquire);
        let hung = |reading: Reading| reading.thread == newest && now.since(reading.since) >= HUNG;
        lock(&self.gpus).values().any(|own| own.reading.is_some_and(hung))
    }
}

/// Starts the thread that reads the memory; one that was started before ends after its read.
pub(super) fn start(shared: &Arc<WorkerShared>) {
    let thread = shared.peaks.threads.fetch_add(1, Ordering::AcqRel) + 1;
    shared.spawn("gpu-peaks".to_owned(), move |shared| run(shared, thread));
}

/// Replaces the thread if it is in a read that does not return.
pub(super) fn watch(shared: &Arc<WorkerShared>) {
    if shared.peaks.hangs(clock::now()) {
        start(shared);
    }
}

fn run(shared: &WorkerShared, thread: u64) {
    let peaks = &shared.peaks;
    shared.calls.enter(None);
    let mut budget = Budget::new(clock::now());
    let mut cpu = clock::thread_cpu();
    while !shared.leaving() {
        let now = clock::now();
        while let Some((gpu, device)) = peaks.begin(thread, now) {
            calls::about(Some(gpu));
            peaks.end(thread, gpu, now, sweep::memory(&device));
            if peaks.threads.load(Ordering::Acquire) != thread {
                return;
            }
        }
        // From before the wait to here: with the wake-up.
        let before = std::mem::replace(&mut cpu, clock::thread_cpu());
        let now = clock::now();
        budget.spend(now, cpu.saturating_sub(before));
        shared.rest(peaks.wait(now).max(budget.wait(now)));
    }
}
