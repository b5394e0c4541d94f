//! Kernel and hardware counters, through `perf_event_open(2)`.
//!
//! Behind two traits, so that code that uses counters can be tested where they are not permitted.

use std::io;
use std::path::Path;
use std::time::Duration;

use super::{fs, numa};
use crate::model::names::named;
use perf_event_open::config::{Cpu, Inherit, Opts, Proc, StatFormat};
use perf_event_open::count;
use perf_event_open::event::Event as Counted;
use perf_event_open::event::hw::Hardware;
use perf_event_open::event::sw::Software;

named! {
    pub enum Event {
        /// Time on a CPU, in nanoseconds.
        TaskClock = "task_clock",
        ContextSwitches = "context_switches",
        /// Migrations from one CPU to another.
        Migrations = "migrations",
        /// Page faults, minor and major.
        PageFaults = "page_faults",
        /// CPU cycles.
        Cycles = "cycles",
        /// Instructions retired.
        Instructions = "instructions",
        /// Accesses to the last-level cache, on most CPUs.
        CacheReferences = "cache_references",
        /// Misses of the last-level cache, on most CPUs.
        CacheMisses = "cache_misses",
        /// Mispredicted branches.
        BranchMisses = "branch_misses",
    }
}

impl Event {
    /// Whether the CPU counts it, not the kernel.
    pub const fn is_hardware(self) -> bool {
        !matches!(self, Self::TaskClock | Self::ContextSwitches | Self::Migrations | Self::PageFaults)
    }
}

/// The tasks whose events are counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Target {
    /// Everything on this CPU.
    Cpu(u32),
    /// This thread and the threads that it starts afterwards; not the processes that it starts.
    Thread(u32),
}

/// A reading of a counter, cumulative since it was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Reading {
    /// Events while the counter was active.
    pub value: u64,
    /// Time in which the counter was enabled.
    pub enabled: Duration,
    /// Time in which the counter was active: less than enabled if hardware counters are multiplexed.
    pub running: Duration,
}

/// A counter, which is closed when it is dropped.
pub trait Counter: Send {
    /// Reads the counter.
    fn read(&mut self) -> io::Result<Reading>;
}

pub trait Perf: Send + Sync {
    /// Opens a counter and starts counting.
    ///
    /// # Errors
    /// Errors of the operating system: see [`Refusal::of`].
    fn open(&self, event: Event, target: Target) -> io::Result<Box<dyn Counter>>;
}

/// Why a counter could not be opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// The CPU or virtual CPU does not support the event.
    NoHardware,
    /// The kernel does not permit it to this user.
    NotPermitted,
    /// The task has ended.
    Gone,
    /// Another error.
    Other,
}

impl Refusal {
    /// The meaning of an error of [`Perf::open`], according to perf_event_open(2).
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

/// The running kernel.
#[derive(Clone, Copy, Debug)]
pub struct Kernel;

impl Perf for Kernel {
    fn open(&self, event: Event, target: Target) -> io::Result<Box<dyn Counter>> {
        match event {
            Event::TaskClock => open(Software::TaskClock, target),
            Event::ContextSwitches => open(Software::CtxSwitch, target),
            Event::Migrations => open(Software::CpuMigration, target),
            Event::PageFaults => open(Software::PageFault, target),
            Event::Cycles => open(Hardware::CpuCycle, target),
            Event::Instructions => open(Hardware::Instr, target),
            Event::CacheReferences => open(Hardware::CacheAccess, target),
            Event::CacheMisses => open(Hardware::CacheMiss, target),
            Event::BranchMisses => open(Hardware::BranchMiss, target),
        }
    }
}

fn open(event: impl TryInto<Counted, Error = io::Error>, target: Target) -> io::Result<Box<dyn Counter>> {
    // Nothing is excluded: context switches and migrations happen inside the kernel, and would otherwise be
    // counted as zero.
    let mut how = Opts {
        enable: true,
        stat_format: StatFormat { time_enabled: true, time_running: true, ..StatFormat::default() },
        ..Opts::default()
    };
    let counter = match target {
        Target::Cpu(cpu) => count::Counter::new(event, (Proc::ALL, Cpu(cpu)), how),
        Target::Thread(thread) => {
            // A larger number would be taken as -1, which means every process.
            i32::try_from(thread).map_err(|_| io::ErrorKind::InvalidInput)?;
            how.inherit = Some(Inherit::NewThread);
            count::Counter::new(event, (Proc(thread), Cpu::ALL), how)
        }
    };
    Ok(Box::new(counter?))
}

impl Counter for count::Counter {
    fn read(&mut self) -> io::Result<Reading> {
        let data = self.stat()?;
        let time = |nanos: Option<u64>| {
            nanos.map(Duration::from_nanos).ok_or_else(|| io::Error::from(io::ErrorKind::InvalidData))
        };
        Ok(Reading {
            value: data.count,
            enabled: time(data.time_enabled)?,
            running: time(data.time_running)?,
        })
    }
}

/// The online CPUs, from `devices/system/cpu/online` such as `0-3,8`.
pub fn online(sys: &Path) -> Vec<u32> {
    /// More than any machine has (CONFIG_NR_CPUS is at most 8192).
    const MOST: u32 = 8192;
    let text = fs::read_text(&sys.join("devices/system/cpu/online")).unwrap_or_default();
    numa::number_list(&text, MOST)
}
