//! Counters of the kernel and the processor, by `perf_event_open(2)`.
//!
//! Behind two traits, so that what counts can be tested where nothing may.

use std::io;
use std::time::Duration;

use perf_event::events::{Hardware, Software};

/// What is counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Event {
    /// Time on a processor, in nanoseconds.
    TaskClock,
    /// Switches from one task to another.
    ContextSwitches,
    /// Moves from one processor to another.
    Migrations,
    /// Page faults, minor and major.
    PageFaults,
    /// Processor cycles.
    Cycles,
    /// Instructions retired.
    Instructions,
    /// Accesses of the last-level cache, on most processors.
    CacheReferences,
    /// Misses of the last-level cache, on most processors.
    CacheMisses,
    /// Branches that were predicted wrongly.
    BranchMisses,
}

impl Event {
    /// Every event.
    pub const ALL: [Self; 9] = [
        Self::TaskClock,
        Self::ContextSwitches,
        Self::Migrations,
        Self::PageFaults,
        Self::Cycles,
        Self::Instructions,
        Self::CacheReferences,
        Self::CacheMisses,
        Self::BranchMisses,
    ];

    /// The name in labels.
    pub const fn label(self) -> &'static str {
        match self {
            Self::TaskClock => "task_clock",
            Self::ContextSwitches => "context_switches",
            Self::Migrations => "migrations",
            Self::PageFaults => "page_faults",
            Self::Cycles => "cycles",
            Self::Instructions => "instructions",
            Self::CacheReferences => "cache_references",
            Self::CacheMisses => "cache_misses",
            Self::BranchMisses => "branch_misses",
        }
    }

    /// Whether the processor counts it, not the kernel.
    pub const fn is_hardware(self) -> bool {
        !matches!(self, Self::TaskClock | Self::ContextSwitches | Self::Migrations | Self::PageFaults)
    }
}

/// Whose events are counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Target {
    /// Everything on this processor.
    Cpu(usize),
    /// This thread and the threads that it starts, also after it was opened; not the processes that it starts.
    Thread(u32),
}

/// What a counter says, cumulative since it was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Reading {
    /// Events while it was counting.
    pub value: u64,
    /// Time in which it should have been counting.
    pub enabled: Duration,
    /// Time in which it was: less where several counters share one of the processor's.
    pub running: Duration,
}

/// Something that counts, until it is dropped.
pub trait Counter: Send {
    /// What it says now.
    ///
    /// # Errors
    /// The operating system's.
    fn read(&mut self) -> io::Result<Reading>;
}

/// Something that opens counters.
pub trait Perf: Send + Sync {
    /// Starts counting.
    ///
    /// # Errors
    /// The operating system's: see [`Refusal::of`].
    fn open(&self, event: Event, target: Target) -> io::Result<Box<dyn Counter>>;
}

/// Why a counter was not opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// The processor, or the machine that pretends to be one, does not count it.
    NoHardware,
    /// The kernel does not allow it to this user.
    NotPermitted,
    /// The task has ended.
    Gone,
    /// Anything else.
    Other,
}

impl Refusal {
    /// What an error of [`Perf::open`] means, by perf_event_open(2).
    pub fn of(error: &io::Error) -> Self {
        use rustix::io::Errno;
        let code = Errno::from_io_error(error);
        match code {
            Some(Errno::NOENT | Errno::NODEV | Errno::OPNOTSUPP | Errno::NXIO) => Self::NoHardware,
            Some(Errno::ACCESS | Errno::PERM | Errno::NOSYS) => Self::NotPermitted,
            Some(Errno::SRCH) => Self::Gone,
            _ => Self::Other,
        }
    }
}

/// The kernel that runs.
#[derive(Clone, Copy, Debug)]
pub struct Kernel;

impl Perf for Kernel {
    fn open(&self, event: Event, target: Target) -> io::Result<Box<dyn Counter>> {
        let mut builder = match event {
            Event::TaskClock => perf_event::Builder::new(Software::TASK_CLOCK),
            Event::ContextSwitches => perf_event::Builder::new(Software::CONTEXT_SWITCHES),
            Event::Migrations => perf_event::Builder::new(Software::CPU_MIGRATIONS),
            Event::PageFaults => perf_event::Builder::new(Software::PAGE_FAULTS),
            Event::Cycles => perf_event::Builder::new(Hardware::CPU_CYCLES),
            Event::Instructions => perf_event::Builder::new(Hardware::INSTRUCTIONS),
            Event::CacheReferences => perf_event::Builder::new(Hardware::CACHE_REFERENCES),
            Event::CacheMisses => perf_event::Builder::new(Hardware::CACHE_MISSES),
            Event::BranchMisses => perf_event::Builder::new(Hardware::BRANCH_MISSES),
        };
        // Switches and migrations happen inside the kernel: without it they would be counted as none.
        builder.include_kernel().include_hv().enabled(true);
        match target {
            Target::Cpu(cpu) => builder.any_pid().one_cpu(cpu),
            Target::Thread(thread) => {
                let thread = i32::try_from(thread).map_err(|_| io::ErrorKind::InvalidInput)?;
                builder.observe_pid(thread).any_cpu().inherit(true).inherit_thread(true)
            }
        };
        Ok(Box::new(builder.build()?))
    }
}

impl Counter for perf_event::Counter {
    fn read(&mut self) -> io::Result<Reading> {
        let data = self.read_full()?;
        let missing = || io::Error::from(io::ErrorKind::InvalidData);
        Ok(Reading {
            value: data.count(),
            enabled: data.time_enabled().ok_or_else(missing)?,
            running: data.time_running().ok_or_else(missing)?,
        })
    }
}
