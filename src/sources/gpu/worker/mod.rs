//! The worker process: the only one that loads NVML.
//!
//! The main thread makes no call that a driver can hang: it beats once a
//! second and listens for the parent. One thread starts NVML, and each
//! GPU has one of its own.

mod calls;
mod device;
mod events;
mod problem;
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
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use self::calls::Calls;
use super::options::Options;
use super::protocol::{Line, State};
use crate::host::child;
use crate::model::lock::lock;

/// How often the main thread says that it lives.
const BEAT: Duration = Duration::from_secs(1);

/// How long a shutdown waits for the other threads to leave NVML; the parent kills after two seconds.
const LEAVE: Duration = Duration::from_millis(1_500);

/// Threads do little on their stacks; a large one only costs address space.
const STACK: usize = 512 * 1024;

/// What the worker's threads share.
#[derive(Debug, Default)]
struct Shared {
    /// Whether the threads should leave.
    leaving: Mutex<bool>,
    /// Rung when they should: a thread that rests wakes for nothing else.
    bell: Condvar,
    /// Threads that may be inside NVML.
    inside: AtomicUsize,
    /// Set by a thread that found that NVML must be started anew.
    gone: AtomicBool,
    nvml: OnceLock<&'static Nvml>,
    output: Mutex<()>,
    calls: Calls,
}

impl Shared {
    /// Writes one line; no caller is inside NVML meanwhile.
    fn tell(&self, line: &Line) {
        let bytes = line.write();
        let _one_at_a_time = lock(&self.output);
        let mut output = std::io::stdout().lock();
        // A parent that no longer reads has ended; the end of our input says so too.
        let _ = output.write_all(&bytes).and_then(|()| output.flush());
    }

    fn leaving(&self) -> bool {
        *lock(&self.leaving)
    }

    /// Asks every thread to leave.
    fn dismiss(&self) {
        *lock(&self.leaving) = true;
        self.bell.notify_all();
    }

    /// Waits for so long, or until the threads should leave.
    fn rest(&self, time: Duration) {
        let leaving = lock(&self.leaving);
        // How it ended is asked for by `leaving`.
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

/// What the parent asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Request {
    Nothing,
    Leave,
}

/// Runs until the parent asks for the end, or its end of the input closes.
pub fn run(options: &Options) -> ExitCode {
    child::die_with_parent();
    let shared = Arc::new(Shared::default());
    let wanted = options.clone();
    shared.spawn("nvml".to_owned(), move |shared| session::run(shared, &wanted));
    loop {
        shared.tell(&Line::Beat { lasting: shared.calls.lasting() });
        if listen(BEAT) == Request::Leave || shared.gone.load(Ordering::Acquire) {
            return leave(&shared);
        }
    }
}

/// Waits for a word of the parent. Any word, and the end of the input, means to leave.
fn listen(timeout: Duration) -> Request {
    let input = std::io::stdin();
    let mut ready = [PollFd::new(&input, PollFlags::IN)];
    let timeout = Timespec::try_from(timeout).ok();
    match poll(&mut ready, timeout.as_ref()) {
        Ok(0) | Err(rustix::io::Errno::INTR) => Request::Nothing,
        Ok(_) => {
            let mut word = [0; 64];
            // What was said does not matter: there is only one word.
            let _ = input.lock().read(&mut word);
            Request::Leave
        }
        Err(_) => Request::Leave,
    }
}

/// Lets go of NVML where no thread hangs in it, and ends.
fn leave(shared: &Shared) -> ExitCode {
    const STEP: Duration = Duration::from_millis(10);
    shared.dismiss();
    let mut left = LEAVE;
    while shared.inside.load(Ordering::Acquire) > 0 {
        if left.is_zero() {
            // Returning would run the library's destructors under the thread that hangs in it.
            child::end_at_once();
        }
        std::thread::sleep(STEP);
        left = left.saturating_sub(STEP);
    }
    if let Some(nvml) = shared.nvml.get() {
        // Its answer changes nothing: we end.
        let _ = raw::shutdown(nvml);
    }
    ExitCode::SUCCESS
}

/// Says that NVML is not to be had, and that the worker ends for it.
fn give_up(shared: &Shared, state: State) {
    shared.tell(&Line::State(state));
    shared.gone.store(true, Ordering::Release);
}
