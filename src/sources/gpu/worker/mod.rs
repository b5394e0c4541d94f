//! The GPU worker process: the only process that loads NVML.
//!
//! The main thread makes no call in which a driver can hang: it sends a
//! heartbeat every second and listens to the parent. One thread initializes
//! NVML, each GPU has its own thread, and one thread reads the memory of all
//! GPUs between samples.

mod calls;
mod detail;
mod device;
mod events;
mod gpm;
mod links;
mod pace;
mod peaks;
mod problem;
mod process_list;
mod processes;
mod raw;
mod session;
mod sweep;

use std::io::{Read, Write};
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, OnceLock};
use std::time::Duration;

use nvml_wrapper::Nvml;
use nvml_wrapper::error::NvmlError;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::thread::CapabilitySet;

use self::calls::Calls;
use self::peaks::MemoryPeaks;
use super::options::Options;
use super::protocol::{Line, State};
use crate::host::child;
use crate::model::lock::lock;

/// Interval between two heartbeats of the main thread.
const BEAT: Duration = Duration::from_secs(1);

/// How long a shutdown waits for the other threads to leave NVML; the parent kills the worker after two seconds.
const EXIT_TIMEOUT: Duration = Duration::from_millis(1_500);

/// Stack size of the threads, which need little; a larger stack only uses address space.
const STACK: usize = 512 * 1024;

/// State shared by the worker's threads.
#[derive(Debug, Default)]
struct WorkerShared {
    /// Whether the threads should exit.
    leaving: Mutex<bool>,
    /// Notified when the threads should exit.
    bell: Condvar,
    /// Number of threads that may be inside NVML.
    inside: AtomicUsize,
    /// Set by a thread that found that NVML must be initialized again.
    gone: AtomicBool,
    nvml: OnceLock<&'static Nvml>,
    output: Mutex<()>,
    calls: Calls,
    peaks: MemoryPeaks,
}

impl WorkerShared {
    /// Writes one message; no caller is inside NVML at this time.
    fn send(&self, line: &Line) {
        let bytes = line.write();
        let _one_at_a_time = lock(&self.output);
        let mut output = std::io::stdout().lock();
        // A parent that no longer reads has exited; the closed input reports the same.
        let _ = output.write_all(&bytes).and_then(|()| output.flush());
    }

    fn leaving(&self) -> bool {
        *lock(&self.leaving)
    }

    /// Makes every thread exit.
    fn dismiss(&self) {
        *lock(&self.leaving) = true;
        self.bell.notify_all();
    }

    /// Waits for this time, or until the threads should exit.
    fn rest(&self, time: Duration) {
        let leaving = lock(&self.leaving);
        // The caller checks `leaving` afterwards.
        drop(self.bell.wait_timeout_while(leaving, time, |leaving| !*leaving));
    }

    /// Starts a thread that may call NVML.
    fn spawn(self: &Arc<Self>, name: String, run: impl FnOnce(&Arc<Self>) + Send + 'static) {
        let shared = Arc::clone(self);
        self.inside.fetch_add(1, Ordering::AcqRel);
        let started = std::thread::Builder::new().name(name).stack_size(STACK).spawn(move || {
            run(&shared);
            shared.inside.fetch_sub(1, Ordering::AcqRel);
        });
        if started.is_err() {
            self.inside.fetch_sub(1, Ordering::AcqRel);
            self.gone.store(true, Ordering::Release);
        }
    }
}

/// Runs until the parent requests an exit or closes the input.
pub fn run(options: &Options) -> ExitCode {
    child::die_with_parent();
    forbid_loading_modules();
    let shared = Arc::new(WorkerShared::default());
    let wanted = options.clone();
    shared.spawn("nvml".to_owned(), move |shared| session::run(shared, &wanted));
    loop {
        shared.send(&Line::Beat { lasting: shared.calls.lasting() });
        peaks::watch(&shared);
        if is_told_to_leave(BEAT) || shared.gone.load(Ordering::Acquire) {
            return exit_worker(&shared);
        }
    }
}

/// NVML starts nvidia-modprobe, which is setuid, where the driver is not loaded: it shall not load what somebody has unloaded. For an
/// ordinary user it creates no device nodes then either. What the kernel refuses here was not allowed before.
fn forbid_loading_modules() {
    let _ = rustix::thread::set_no_new_privs(true);
    let _ = rustix::thread::remove_capability_from_bounding_set(CapabilitySet::SYS_MODULE);
}

/// Waits for input of the parent. Any input, and its end, means to exit.
fn is_told_to_leave(timeout: Duration) -> bool {
    let input = std::io::stdin();
    let mut ready = [PollFd::new(&input, PollFlags::IN)];
    let timeout = Timespec::try_from(timeout).ok();
    match poll(&mut ready, timeout.as_ref()) {
        Ok(0) | Err(rustix::io::Errno::INTR) => false,
        Ok(_) => {
            let mut word = [0; 64];
            // The content does not matter: there is only one request.
            let _ = input.lock().read(&mut word);
            true
        }
        Err(_) => true,
    }
}

/// Shuts NVML down unless a thread hangs in it, and exits.
fn exit_worker(shared: &WorkerShared) -> ExitCode {
    const STEP: Duration = Duration::from_millis(10);
    shared.dismiss();
    let mut left = EXIT_TIMEOUT;
    while shared.inside.load(Ordering::Acquire) > 0 {
        if left.is_zero() {
            // Returning would run the library's destructors while a thread hangs in it.
            child::end_at_once();
        }
        std::thread::sleep(STEP);
        left = left.saturating_sub(STEP);
    }
    if let Some(nvml) = shared.nvml.get() {
        // The result does not matter: the process exits.
        let _ = raw::shutdown(nvml);
    }
    ExitCode::SUCCESS
}

/// Reports that NVML cannot be used and makes the worker exit.
fn give_up(shared: &WorkerShared, why: String, error: NvmlError) {
    let (status, code) = problem::status(error);
    shared.send(&Line::State(State { status, why, code, ..State::default() }));
    shared.gone.store(true, Ordering::Release);
}
