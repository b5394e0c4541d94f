//! How full `/dev/shm` and other tmpfs are that processes of workloads see, and those of the host.
//!
//! A full tmpfs ends whoever writes to a mapped file in it by SIGBUS. Each container has a mount namespace with a `/dev/shm` of
//! its own. A thread reads one process of each namespace (`reader`); the sampler asks it at intervals, more often while
//! one is nearly full, and at once when a workload is new, or SIGBUS has ended a process. It never waits for it.

pub mod metrics;
mod reader;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, HashSet};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, TryRecvError, channel, sync_channel};
use std::time::Duration;

use self::reader::{Member, Reader};
use crate::host::apart;
use crate::host::user_files::tmpfs::CROWDED;
use crate::model::ends::ExitStatus;
use crate::model::facts::{Facts, Membership, Tmpfs as FileSystem, TmpfsTable};
use crate::model::ids::WorkloadKey;
use crate::model::label::Label;
use crate::model::point::Batch;
use crate::model::shortage::Shortage;
use crate::model::source::{Failure, Source, SourceError};
use crate::model::time::Timestamp;
use crate::model::units::{Bytes, real};
use crate::sources::Registration;

crate::options! {
    /// The options of the source.
    struct Options {
        /// Time between two reads. While a tmpfs is used to more than 80 %, it is 1s.
        interval: Duration = 10s in 1s..=1h;
    }
}

/// The source of the fill levels of tmpfs.
pub static REGISTRATION: Registration = Registration {
    name: "tmpfs",
    about: "How full /dev/shm and other tmpfs of workloads and of the host are. Needs Linux 5.12.",
    options: Options::OPTIONS,
    metrics: metrics::METRICS,
    ..Registration::built_by(|settings, context| {
        let interval = Options::read(settings).interval;
        Box::new(Tmpfs { proc: context.roots.proc.clone(), interval, ..Tmpfs::default() })
    })
};

const SIGBUS: i32 = 7;
/// Time between two reads while a tmpfs is crowded.
const OFTEN: Duration = Duration::from_secs(1);
/// Time after which a read hangs.
const HANGS: Duration = Duration::from_secs(10);

#[derive(Default)]
struct Tmpfs {
    proc: PathBuf,
    interval: Duration,
    thread: Option<ReadingThread>,
    /// When the thread was last asked, and the workloads of then.
    asked: Option<Timestamp>,
    workloads: HashSet<WorkloadKey>,
    /// Whether a process ended by SIGBUS since then.
    is_urgent: bool,
    newest: Option<Arc<TmpfsTable>>,
    /// Why the last read failed.
    trouble: Option<String>,
}

/// The thread that reads.
struct ReadingThread {
    requests: SyncSender<Vec<Member>>,
    answers: Receiver<Result<TmpfsTable, String>>,
    is_reading: bool,
}

impl ReadingThread {
    fn start(proc: PathBuf) -> std::io::Result<Self> {
        let (requests, requested) = sync_channel::<Vec<Member>>(1);
        let (answer, answers) = channel();
        apart::spawn("tmpfs", move || {
            let mut reader = Reader::default();
            while let Ok(members) = requested.recv() {
                let read = reader.read(&proc, &members).map_err(|error| error.to_string());
                if answer.send(read).is_err() {
                    return;
                }
            }
        })?;
        Ok(Self { requests, answers, is_reading: false })
    }
}

impl Source for Tmpfs {
    fn sample(&mut self, at: Timestamp, out: &mut Batch) -> Result<(), SourceError> {
        self.receive()?;
        let ended = |status| ExitStatus::of_wait(status).signal() == Some(SIGBUS);
        self.is_urgent |= out.facts.exited.iter().any(|exited| ended(exited.status));
        self.ask(at, &out.facts)?;
        let hangs = self.thread.as_ref().is_some_and(|thread| thread.is_reading);
        if let Some(age) =
            self.asked.filter(|_| hangs).map(|asked| at.since(asked)).filter(|age| *age >= HANGS)
        {
            let why = format!("a read of the tmpfs of processes has not returned for {} s", age.as_secs());
            return Err(SourceError::failed(Failure::Timeout, why));
        }
        if let Some(why) = &self.trouble {
            return Err(SourceError::unavailable(why.clone()));
        }
        let Some(table) = &self.newest else {
            return Err(SourceError::unavailable("no tmpfs has been read yet"));
        };
        put(table, out);
        out.facts.tmpfs = Some(Arc::clone(table));
        Ok(())
    }

    fn finish(&mut self) {
        self.thread = None;
    }
}

impl Tmpfs {
    /// Takes what the thread has read.
    fn receive(&mut self) -> Result<(), SourceError> {
        let Some(thread) = &mut self.thread else { return Ok(()) };
        match thread.answers.try_recv() {
            Ok(read) => {
                thread.is_reading = false;
                match read {
                    Ok(table) => (self.newest, self.trouble) = (Some(Arc::new(table)), None),
                    Err(why) => self.trouble = Some(why),
                }
                Ok(())
            }
            Err(TryRecvError::Empty) => Ok(()),
            Err(TryRecvError::Disconnected) => {
                self.thread = None;
                Err(SourceError::failed(Failure::Panic, "the thread that reads tmpfs has panicked"))
            }
        }
    }

    /// Asks the thread to read, if that is due and it is not reading.
    fn ask(&mut self, at: Timestamp, facts: &Facts) -> Result<(), SourceError> {
        let is_filling = self.newest.as_ref().is_some_and(|table| {
            table.file_systems.iter().any(|own| own.used_share() * 100.0 > real(CROWDED))
        });
        let pace = if is_filling { self.interval.min(OFTEN) } else { self.interval };
        let is_new = facts.workloads.iter().any(|workload| !self.workloads.contains(&workload.key));
        if !self.is_urgent && !is_new && self.asked.is_some_and(|asked| at.since(asked) < pace) {
            return Ok(());
        }
        let thread = match self.thread.take() {
            Some(thread) => thread,
            None => ReadingThread::start(self.proc.clone())
                .map_err(|error| SourceError::io("cannot create the thread that reads tmpfs", &error))?,
        };
        let thread = self.thread.insert(thread);
        if !thread.is_reading && thread.requests.try_send(members(facts)).is_ok() {
            thread.is_reading = true;
            (self.asked, self.is_urgent) = (Some(at), false);
            self.workloads = facts.workloads.iter().map(|workload| workload.key.clone()).collect();
        }
        Ok(())
    }
}

/// The processes of workloads.
fn members(facts: &Facts) -> Vec<Member> {
    let rss = |pid| facts.processes.as_ref()?.get(pid).map(|row| row.rss);
    let of = |member: &Membership| Member {
        process: member.process,
        workload: Arc::clone(&member.workload),
        user: facts.subordinates.owner(member.workload.user),
        rss: rss(member.process.pid).unwrap_or_default(),
    };
    facts.workload_of.iter().map(of).collect()
}

fn put(table: &TmpfsTable, out: &mut Batch) {
    let mut fullest: BTreeMap<[Label; 2], &FileSystem> = BTreeMap::new();
    for own in &table.file_systems {
        let workload = own.workload.as_ref().map(|workload| workload.name.clone()).unwrap_or_default();
        let known = fullest.entry([workload, own.mount.clone()]).or_insert(own);
        if own.used_share() > known.used_share() {
            *known = own;
        }
    }
    for (labels, own) in fullest {
        let of_user = |user| {
            let [workload, mount] = labels.clone();
            [workload, mount, user]
        };
        let mut rest = own.used.get();
        for (user, bytes) in &own.owners {
            out.put(&metrics::FILES, &of_user(Label::from(*user)), *bytes);
            rest = rest.saturating_sub(bytes.get());
        }
        if own.used_share() * 100.0 > real(CROWDED) {
            out.put(&metrics::FILES, &of_user(Label::default()), Bytes::new(rest));
        }
        out.put(&metrics::SIZE, &labels, own.size);
        out.put(&metrics::USED, &labels, own.used);
    }
    let left_out = Shortage::of_users("tmpfs_namespaces", reader::MOST_NAMESPACES, &table.left_out);
    out.facts.shortages.extend(left_out);
}
