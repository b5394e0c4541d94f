//! How a run ended, by the text of its console and its exit code.

use std::time::Duration;

use super::{Phase, RunEnd};
use memwarden::formats::log_lines::oom::{self, Cause, Oom};
use memwarden::formats::log_lines::{self, Splitter, Tracker};
use memwarden::model::ends::{EndCause, ExitStatus, FailedAllocation};
use memwarden::model::units::real;

/// Messages about what ended a process, which begin where no word does: `OutOfMemoryError: ` is no `MemoryError: `.
const MESSAGES: [(&str, EndCause); 33] = [
    // slurmstepd, which reads memory.events of the cgroup of the step.
    ("oom_kill event", EndCause::CgroupLimit),
    ("oom-kill event", EndCause::CgroupLimit),
    ("Exceeded job memory limit", EndCause::CgroupLimit),
    ("DUE TO TIME LIMIT", EndCause::Killed),
    ("DUE TO PREEMPTION", EndCause::Killed),
    // PyTorch's CPU allocator (c10/core/impl/alloc_cpu.cpp), Python, NumPy and C++.
    ("DefaultCPUAllocator: can't allocate memory", EndCause::ProcessLimit),
    ("DefaultCPUAllocator: not enough memory", EndCause::ProcessLimit),
    ("MemoryError: ", EndCause::ProcessLimit),
    ("_ArrayMemoryError: ", EndCause::ProcessLimit),
    ("[Errno 12] Cannot allocate memory", EndCause::ProcessLimit),
    ("std::bad_alloc", EndCause::ProcessLimit),
    // torch/utils/data/_utils/signal_handling.py, and c10/core's file of shared memory.
    ("insufficient shared memory (shm)", EndCause::SharedMemory),
    ("is killed by signal: Bus error", EndCause::SharedMemory),
    ("is killed by signal: Killed", EndCause::Killed),
    ("unable to write to file </torch_", EndCause::SharedMemory),
    ("unable to allocate shared memory", EndCause::SharedMemory),
    ("unable to mmap", EndCause::ProcessLimit),
    // torchrun: the exit of a rank.
    ("Signal 9 (SIGKILL) received by PID", EndCause::Killed),
    ("exitcode: -9", EndCause::Killed),
    ("exitcode  : -9", EndCause::Killed),
    // Ray's monitor of the memory of a node.
    ("ray.exceptions.OutOfMemoryError", EndCause::HostMemory),
    ("due to the node running low on memory", EndCause::HostMemory),
    // The driver, its libraries and NCCL; PyTorch's message with sizes is in `oom`.
    ("CUDA out of memory", EndCause::GpuMemory),
    ("HIP out of memory", EndCause::GpuMemory),
    ("NPU out of memory", EndCause::GpuMemory),
    ("XPU out of memory", EndCause::GpuMemory),
    ("CUDA error: out of memory", EndCause::GpuMemory),
    ("CUDA_ERROR_OUT_OF_MEMORY", EndCause::GpuMemory),
    ("CUBLAS_STATUS_ALLOC_FAILED", EndCause::GpuMemory),
    ("CUDNN_STATUS_ALLOC_FAILED", EndCause::GpuMemory),
    ("CUSOLVER_STATUS_ALLOC_FAILED", EndCause::GpuMemory),
    ("Cuda failure 'out of memory'", EndCause::GpuMemory),
    ("Cuda failure 2 'out of memory'", EndCause::GpuMemory),
];

/// Where a line of a traceback is, by what it contains.
const PLACES: [(&str, Phase); 16] = [
    ("in evaluate", Phase::Evaluation),
    ("in evaluation_loop", Phase::Evaluation),
    ("in prediction_step", Phase::Evaluation),
    ("in validation_step", Phase::Evaluation),
    ("in save_model", Phase::Save),
    ("in save_checkpoint", Phase::Save),
    ("in _save_checkpoint", Phase::Save),
    ("in save_pretrained", Phase::Save),
    ("in backward", Phase::Backward),
    ("/torch/autograd/", Phase::Backward),
    (".backward(", Phase::Backward),
    ("in forward", Phase::Forward),
    ("in _call_impl", Phase::Forward),
    ("in compute_loss", Phase::Forward),
    ("/torch/optim/", Phase::Optimizer),
    ("optimizer.step(", Phase::Optimizer),
];

/// Follows the text of a console.
#[derive(Debug, Default)]
pub(crate) struct Console {
    /// Standard output and standard error, whose pieces alternate.
    streams: [Splitter; 2],
    lines: Lines,
}

#[derive(Debug, Default)]
struct Lines {
    tracker: Tracker,
    /// Step and planned steps of the last progress bar.
    bar: Option<(u64, Option<u64>)>,
    /// The places of the last traceback.
    places: [bool; Phase::ALL.len()],
    out_of_memory: Option<Failure>,
    /// What the last message of [`MESSAGES`] means, and the step at which it was written.
    message: Option<(EndCause, Option<u64>)>,
    /// Whether the last exception is that of an interrupt, whose exit code is that of any exception.
    is_interrupted: bool,
}

/// The last allocation that failed.
#[derive(Debug)]
struct Failure {
    oom: Oom,
    phase: Option<Phase>,
    step: Option<(u64, Option<u64>)>,
}

impl Console {
    /// Adds a piece of standard error or standard output.
    pub(crate) fn feed(&mut self, is_error: bool, text: &[u8]) {
        let Self { streams, lines } = self;
        streams[usize::from(is_error)].feed(text, |line| lines.line(line));
    }

    /// How the run ended.
    pub(crate) fn end(mut self, run: String, exit_code: Option<i32>) -> RunEnd {
        self.feed(false, b"\n");
        self.feed(true, b"\n");
        let lines = self.lines;
        let at_end = lines.step();
        let signal = exit_code.and_then(|code| ExitStatus::Code(code).signal());
        // What a program caught, and ended with success, did not end it.
        let failure = lines.out_of_memory.filter(|_| exit_code != Some(0));
        let cause = match (&failure, exit_code) {
            (_, Some(0)) => EndCause::Finished,
            (Some(failure), _) => cause(&failure.oom),
            _ if let Some((cause, _)) = lines.message => cause,
            (None, Some(_)) if signal.is_some() || lines.is_interrupted => EndCause::Killed,
            (None, Some(_)) => EndCause::Failed,
            (None, None) => EndCause::Unknown,
        };
        let mut end = RunEnd { exit_code, ..RunEnd::new(run, cause) };
        let step = match failure {
            Some(Failure { oom, phase, step }) => {
                (end.phase, end.gpu) = (phase, oom.gpu);
                end.allocation = Some(allocation(&oom));
                step
            }
            None => at_end,
        };
        (end.step, end.steps_planned) = (step.map(|(step, _)| step), step.and_then(|(_, planned)| planned));
        end
    }
}

/// Whether a line has this message, not as the end of a longer word.
fn has_message(text: &str, part: &str) -> bool {
    text.match_indices(part).any(|(at, _)| !text[..at].ends_with(char::is_alphanumeric))
}

impl Lines {
    fn line(&mut self, raw: &[u8]) {
        let text = log_lines::clean(raw).text;
        self.tracker.line(raw, Duration::ZERO);
        if self.tracker.latest().step.is_none()
            && let Some((_, reading)) = log_lines::read(&text)
            && let Some(step) = reading.step
        {
            self.bar = Some((step, reading.steps_planned));
        }
        let step = self.step().map(|(step, _)| step);
        let failed_at = self.out_of_memory.as_ref().and_then(|failure| Some(failure.step?.0));
        if failed_at.zip(step).is_some_and(|(failed_at, step)| failed_at + 1 < step) {
            // It was caught, and the training continued.
            self.out_of_memory = None;
        }
        let written_at = self.message.and_then(|(_, at)| at);
        if written_at.zip(step).is_some_and(|(at, step)| at + 1 < step) {
            self.message = None;
        }
        // A traceback may follow a progress bar, which has no line end.
        if text.contains("Traceback (most recent call last)") {
            self.places = Default::default();
            self.is_interrupted = false;
            return;
        }
        self.is_interrupted |= text == "KeyboardInterrupt";
        if let Some(oom) = oom::find(&text) {
            self.out_of_memory = Some(Failure { oom, phase: self.phase(), step: self.step() });
            return;
        }
        // The code of a frame is in the line after it.
        if text.starts_with(' ') {
            for (_, phase) in PLACES.iter().filter(|(part, _)| text.contains(part)) {
                self.places[*phase as usize] = true;
            }
        }
        if let Some((_, cause)) = MESSAGES.iter().find(|(part, _)| has_message(&text, part)) {
            self.message = Some((*cause, step));
        } else if text == "MemoryError" {
            self.message = Some((EndCause::ProcessLimit, step));
        }
    }

    /// An evaluation or a save also runs forward passes; a backward pass runs them again where activations are recomputed,
    /// and an optimizer's closure runs both.
    fn phase(&self) -> Option<Phase> {
        let order = [Phase::Evaluation, Phase::Save, Phase::Backward, Phase::Forward, Phase::Optimizer];
        order.into_iter().find(|phase| self.places[*phase as usize])
    }

    /// The step of the training; where no line is certainly the trainer's, that of the last progress bar.
    fn step(&self) -> Option<(u64, Option<u64>)> {
        let latest = self.tracker.latest();
        latest.step.map(|step| (step, latest.steps_planned)).or(self.bar)
    }
}

/// Share of a GPU that other processes must hold to be the reason that it is full.
const NOTICEABLE: f64 = 0.1;

/// Why an allocation failed.
fn cause(oom: &Oom) -> EndCause {
    let of_others = oom.total.zip(oom.free).zip(oom.in_use).and_then(|((total, free), own)| {
        let others = total.checked_sub(free)?.checked_sub(own)?;
        Some(real(others) / real(total))
    });
    match oom.cause() {
        _ if of_others.is_some_and(|share| share >= NOTICEABLE) => EndCause::GpuNeighbor,
        Cause::Fragmentation => EndCause::GpuFragmentation,
        _ => EndCause::GpuMemory,
    }
}

#[expect(clippy::cast_precision_loss, reason = "amounts of log lines are at most 2^53")]
fn allocation(oom: &Oom) -> FailedAllocation {
    let bytes = |bytes: Option<u64>| bytes.map(|bytes| bytes as f64);
    let held = oom.allocated.zip(oom.unallocated).map(|(used, free)| used.saturating_add(free));
    FailedAllocation {
        requested: bytes(oom.tried),
        allocated: bytes(oom.allocated),
        reserved: bytes(held),
        free: bytes(oom.free),
        total: bytes(oom.total),
        has_expandable_segments: None,
    }
}
