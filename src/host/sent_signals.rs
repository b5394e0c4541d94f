//! Which process sends a signal to which, from the kernel's tracepoint `signal:signal_generate`.
//!
//! The status of a process that a signal ended has its number, and not its sender. Reading the tracepoint takes CAP_PERFMON, and the
//! tracing file system of the kernel, which is mounted at `/sys/kernel/tracing` on hosts and not in containers.

use std::ffi::CStr;
use std::fmt;
use std::io;
use std::path::Path;
use std::time::Duration;

use perf_event_open::config::{Clock, Cpu, Opts, Proc, RecordIdFormat, SampleFormat, SampleOn};
use perf_event_open::count::Counter;
use perf_event_open::event::tp::Tracepoint;
use perf_event_open::sample::Sampler;
use perf_event_open::sample::record::Record;
use perf_event_open::sample::record::sample::Sample;

use super::{clock, fs, perf, process};

/// Where the description of the tracepoint is, below the root of `/sys`.
const FORMAT: [&str; 2] = ["kernel/tracing", "kernel/debug/tracing"];
/// SIGHUP, SIGINT, SIGKILL and SIGTERM, with which people, launchers, schedulers and guards of memory end processes, and SIGXCPU, which
/// the kernel sends for a limit (SIGXFSZ seems sent by the process itself); without those that the kernel does not deliver
/// (`TRACE_SIGNAL_DELIVERED` is 0), such as the ones to a process that has been killed.
const WANTED: &CStr = c"result==0&&(sig==1||sig==2||sig==9||sig==15||sig==24)";
/// `SI_KERNEL` (asm-generic/siginfo.h), the code of a signal that no process sent.
const BY_KERNEL: i32 = 0x80;
/// `SI_USER`, `SI_QUEUE` and `SI_TKILL`: the running process sent it. Others come from timers and interrupts, during which any
/// process may run.
const BY_PROCESS: [i32; 3] = [0, -1, -6];
/// The ring of each CPU has 2^2 pages: some two hundred signals between two reads.
const PAGES_EXPONENT: u8 = 2;
/// Descriptors that others need; an eighth of what is above is for this.
const RESERVED: usize = 64;
/// Most signals of a CPU that one call passes on; further ones can be sent during the call.
const MOST: usize = 1000;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SentSignal {
    /// The thread that it was sent to: the pid of a process where it was sent to the process.
    pub target: u32,
    pub signal: i32,
    /// The pid of the process that sent it; absent for the kernel.
    pub sender: Option<u32>,
    /// When, after boot.
    pub at: Duration,
}

/// Offsets in the data of the tracepoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Format {
    id: u64,
    signal: usize,
    code: usize,
    target: usize,
}

/// A subscription to the signals that all processes send, on the CPUs that are online when it is opened.
pub struct SentSignals {
    format: Format,
    /// The event of a CPU ends when its counter is dropped.
    cpus: Vec<(Counter, Sampler)>,
}

impl fmt::Debug for SentSignals {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SentSignals").field("format", &self.format).finish_non_exhaustive()
    }
}

impl SentSignals {
    /// Subscribes; `sys` is the root of the device file system.
    ///
    /// # Errors
    /// A kernel or container without the tracepoint, or missing rights.
    pub fn open(sys: &Path) -> io::Result<Self> {
        let read =
            |folder: &str| fs::read_text(&sys.join(folder).join("events/signal/signal_generate/format"));
        let text = FORMAT.iter().map(|folder| read(folder)).reduce(Result::or);
        let text = text.unwrap_or_else(|| Err(io::ErrorKind::NotFound.into())).map_err(|error| {
            io::Error::new(error.kind(), format!("events/signal/signal_generate of tracefs: {error}"))
        })?;
        let format = format(&text).ok_or(io::ErrorKind::InvalidData)?;
        let id = RecordIdFormat { task: true, time: true, ..RecordIdFormat::default() };
        let how = Opts {
            sample_on: SampleOn::Count(1),
            sample_format: SampleFormat { raw: true, ..SampleFormat::default() },
            record_id_format: id,
            timer: Some(Clock::Monotonic),
            ..Opts::default()
        };
        let (mut cpus, online) = (Vec::new(), perf::online(sys));
        if online.len() > process::descriptor_limit().saturating_sub(RESERVED) / 8 {
            return Err(io::Error::other("the limit on open files is too low for a descriptor for each CPU"));
        }
        for cpu in online {
            let counter = Counter::new(Tracepoint { id: format.id }, (Proc::ALL, Cpu(cpu)), how.clone())?;
            counter.with_ftrace_filter(WANTED)?;
            let sampler = counter.sampler(PAGES_EXPONENT)?;
            counter.enable()?;
            cpus.push((counter, sampler));
        }
        Ok(Self { format, cpus })
    }

    /// Passes on the signals that were sent since the last call, in their order, and returns whether some were lost.
    pub fn drain(&mut self, each: impl FnMut(SentSignal)) -> bool {
        let (mut has_lost, mut all) = (false, Vec::new());
        for (_, sampler) in &self.cpus {
            for (_, record) in sampler.iter().into_iter().flatten().take(MOST) {
                match record {
                    Record::Sample(sample) => all.extend(sent(&sample, self.format)),
                    Record::LostRecords(_) => has_lost = true,
                    _ => {}
                }
            }
        }
        all.sort_by_key(|sent| sent.at);
        all.into_iter().for_each(each);
        has_lost
    }
}

fn sent(sample: &Sample, format: Format) -> Option<SentSignal> {
    let raw = sample.raw.as_deref()?;
    let word = |at: usize| Some(i32::from_ne_bytes(raw.get(at..at + 4)?.try_into().ok()?));
    let sender = match word(format.code)? {
        BY_KERNEL => None,
        code if BY_PROCESS.contains(&code) => Some(sample.record_id.task.as_ref()?.pid),
        _ => return None,
    };
    Some(SentSignal {
        target: word(format.target)?.try_into().ok()?,
        signal: word(format.signal)?,
        sender,
        at: clock::after_boot(Duration::from_nanos(sample.record_id.time?)),
    })
}

/// The offsets in a description of the tracepoint, which has lines such as `field:int sig; offset:8; size:4; signed:1;` with
/// tabs; nothing if one is missing or has another size.
fn format(text: &str) -> Option<Format> {
    let id = text.lines().find_map(|line| line.strip_prefix("ID:"))?.trim().parse().ok()?;
    let offset = |name: &str| {
        text.lines().find_map(|line| {
            let mut parts = line.trim().split(';').map(str::trim);
            let is_it = parts.next()?.strip_prefix("field:")?.rsplit(' ').next()? == name;
            let offset: usize = parts.next()?.strip_prefix("offset:")?.parse().ok()?;
            (is_it && parts.next()? == "size:4" && offset < 4096).then_some(offset)
        })
    };
    Some(Format { id, signal: offset("sig")?, code: offset("code")?, target: offset("pid")? })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    const DESCRIPTION: &str = "name: signal_generate\nID: 261\nformat:\n\tfield:unsigned short common_type;\toffset:0;\tsize:2;\tsigned:0;\n\
        \tfield:int common_pid;\toffset:4;\tsize:4;\tsigned:1;\n\n\tfield:int sig;\toffset:8;\tsize:4;\tsigned:1;\n\
        \tfield:int code;\toffset:16;\tsize:4;\tsigned:1;\n\tfield:char comm[16];\toffset:20;\tsize:16;\tsigned:0;\n\
        \tfield:pid_t pid;\toffset:36;\tsize:4;\tsigned:1;\n\nprint fmt: \"sig=%d\", REC->sig\n";

    #[test]
    fn the_offsets_are_those_of_the_description() {
        assert_eq!(format(DESCRIPTION), Some(Format { id: 261, signal: 8, code: 16, target: 36 }));
        for damage in ["ID: 261", "field:int sig;", "\tfield:pid_t pid;"] {
            assert_eq!(format(&DESCRIPTION.replace(damage, "")), None, "{damage}");
        }
        assert_eq!(format(&DESCRIPTION.replace("offset:36;\tsize:4", "offset:36;\tsize:8")), None);
        assert_eq!(format(&DESCRIPTION.replace("offset:36", "offset:99999999999999999999")), None);
    }

    #[test]
    #[expect(clippy::disallowed_methods, reason = "a test starts processes that are sent signals")]
    fn the_sender_of_a_signal_is_reported() {
        let mut signals = match SentSignals::open(Path::new("/sys")) {
            Ok(signals) => signals,
            Err(error) => {
                eprintln!("skipped: no tracepoint of signals here: {error}");
                return;
            }
        };
        let before = clock::now().monotonic();
        let mut by_us = Command::new("sleep").arg("1000").spawn().unwrap();
        by_us.kill().unwrap();
        by_us.wait().unwrap();
        let mut by_itself = Command::new("sh").args(["-c", "kill -TERM $$"]).spawn().unwrap();
        by_itself.wait().unwrap();
        let mut found = Vec::new();
        assert!(!signals.drain(|sent| found.push(sent)));
        for (target, signal, sender) in
            [(by_us.id(), 9, std::process::id()), (by_itself.id(), 15, by_itself.id())]
        {
            let sent = found.iter().find(|sent| sent.target == target).unwrap();
            assert_eq!((sent.signal, sent.sender), (signal, Some(sender)), "{found:?}");
            assert!((before..=clock::now().monotonic()).contains(&sent.at), "{sent:?} after {before:?}");
        }
        let mut more = 0;
        signals.drain(|sent| more += u32::from(sent.target == by_us.id()));
        assert_eq!(more, 0, "each is passed on once");
    }
}
