//! Actions of protection that outlast a restart: checkpoint requests and terminated jobs.
//!
//! Each is a line of a file in the state directory. Another thread writes it into the page cache, which outlasts
//! this process, without fsync, so that no thread waits for a disk: the guard waits for it for at most 50 ms before
//! it requests a checkpoint. Times count from the boot, with the boot's id.

use std::collections::{BTreeMap, HashMap};
use std::fs::File;
use std::io;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use rustix::fs::OFlags;
use serde::{Deserialize, Serialize};

use crate::host::task::{self, Task};
use crate::host::{clock, fs};
use crate::model::ids::ProcessKey;
use crate::model::label::Label;
use crate::model::lock::lock;
use crate::model::time::Timestamp;
use crate::protection::plan::victim::Roster;

/// The window of the rate limits.
const END_RETENTION: Duration = Duration::from_secs(3600);
/// The longest time between two requests that can be configured.
const PROCESS_RETENTION: Duration = Duration::from_secs(24 * 3600);
/// Capacity of the queue.
const QUEUE: usize = 256;
/// Time limit for the line of a checkpoint request: waking a thread, and a write into the page cache.
const WRITE_TIMEOUT: Duration = Duration::from_millis(50);
/// Maximum size of the file that is read, in bytes.
const LARGEST: u64 = 64 << 20;
/// Bytes added to the file after which it is rewritten without old lines.
const ADDED: usize = 4 << 20;

/// A job that was terminated.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct End {
    /// Its target's name.
    pub target: String,
    /// The user of the job, where known.
    pub user: Option<u32>,
    /// When.
    pub at: Timestamp,
}

/// The content of a line.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Fact {
    /// A checkpoint request to these processes: pid and start time.
    Asked(Vec<(u32, u64)>),
    /// A job is about to be terminated.
    Ended { target: String, user: Option<u32> },
}

#[derive(Debug, PartialEq, Serialize, Deserialize)]
struct Line {
    /// The id of the boot that `boot_milliseconds` counts from.
    boot: String,
    boot_milliseconds: u64,
    unix_milliseconds: u64,
    fact: Fact,
}

/// A message of the guard. Contains no allocation of its own.
#[derive(Debug)]
enum Message {
    Asked(Timestamp, Arc<Roster>),
    Ended(Timestamp, Label, Option<u32>),
}

#[derive(Debug, Default)]
struct KnownActions {
    asked: HashMap<ProcessKey, Timestamp>,
    ended: Vec<End>,
}

#[derive(Debug, Default)]
struct MemoryState {
    known: Mutex<KnownActions>,
    /// Number of messages that were sent, and that were written or failed.
    output: AtomicU64,
    written: AtomicU64,
}

/// The remembered actions, for reading.
#[derive(Clone, Debug, Default)]
pub struct Remembered(Arc<MemoryState>);

impl Remembered {
    fn known(&self) -> MutexGuard<'_, KnownActions> {
        lock(&self.0.known)
    }

    /// When one of these processes last received a checkpoint request.
    pub fn asked<'k>(&self, keys: impl Iterator<Item = &'k ProcessKey>) -> Option<Timestamp> {
        let known = self.known();
        keys.filter_map(|key| known.asked.get(key).copied()).max_by_key(|at| at.monotonic())
    }

    /// Terminations within the last hour, oldest first.
    pub fn ends(&self, now: Timestamp) -> Vec<End> {
        let known = self.known();
        let mut ends: Vec<End> =
            known.ended.iter().filter(|end| now.since(end.at) < END_RETENTION).cloned().collect();
        ends.sort_by_key(|end| end.at.monotonic());
        ends
    }
}

/// The guard's handle, for recording.
#[derive(Debug)]
pub struct Memory {
    messages: SyncSender<Message>,
    shared: Arc<MemoryState>,
    /// Whether the last line was not written within the time limit.
    behind: bool,
}

impl Memory {
    /// Records a checkpoint request before it is sent. Waits for at most 50 ms until it is written, and not at all
    /// while an earlier line is not written: a disk that hangs must not prevent a checkpoint request.
    pub fn asked(&mut self, at: Timestamp, roster: &Arc<Roster>) {
        let number = self.send(Message::Asked(at, Arc::clone(roster)));
        let written = || self.shared.written.load(Ordering::Acquire);
        if self.behind && written() + 1 < number {
            return;
        }
        let begun = clock::now();
        self.behind = loop {
            if written() >= number {
                break false;
            }
            if clock::now().since(begun) >= WRITE_TIMEOUT {
                break true;
            }
            clock::sleep(Duration::from_micros(100));
        };
    }

    /// Records that a job is about to be terminated, for the rate limits. Does not block.
    pub fn ended(&self, at: Timestamp, target: &Label, user: Option<u32>) {
        self.send(Message::Ended(at, target.clone(), user));
    }

    /// Sends a message; returns the number of messages sent so far. A message without room in the queue is lost: the
    /// disk hangs.
    fn send(&self, word: Message) -> u64 {
        let before = self.shared.output.fetch_add(1, Ordering::AcqRel);
        if self.messages.try_send(word).is_err() {
            self.shared.written.fetch_add(1, Ordering::AcqRel);
        }
        before + 1
    }
}

/// The handle of the writing thread, which runs as long as the daemon.
#[derive(Debug)]
pub(super) struct MemoryThread {
    messages: SyncSender<Message>,
    shared: Arc<MemoryState>,
    /// Receives one message, after the file of the earlier run was read.
    read: Mutex<Receiver<()>>,
}

impl MemoryThread {
    /// Starts the thread, for a file in the state directory, if there is one; `boot` is the id of this boot.
    pub(super) fn start(path: Option<PathBuf>, boot: String) -> io::Result<Self> {
        let (messages, received) = sync_channel(QUEUE);
        let (tell, read) = sync_channel(1);
        let shared = Arc::<MemoryState>::default();
        task::start(
            "remember",
            Writer {
                path,
                boot,
                shared: Arc::clone(&shared),
                file: None,
                added: 0,
                failing: false,
                received,
                tell: Some(tell),
            },
        )?;
        Ok(Self { messages, shared, read: Mutex::new(read) })
    }

    /// The remembered actions. Waits for at most 2 s until the file is read: a disk that hangs must not prevent
    /// protection.
    pub(super) fn remembered(&self) -> Remembered {
        const READ_TIMEOUT: Duration = Duration::from_secs(2);
        let read = lock(&self.read);
        // Later calls return at once, because the sender is dropped after one message.
        if let Err(std::sync::mpsc::RecvTimeoutError::Timeout) = read.recv_timeout(READ_TIMEOUT) {
            tracing::warn!("Cannot read the actions of earlier runs; the rate limits start from zero.");
        }
        self.known()
    }

    /// The remembered actions, without waiting for the file.
    pub(super) fn known(&self) -> Remembered {
        Remembered(Arc::clone(&self.shared))
    }

    /// The guard's handle, for recording.
    pub(super) fn memory(&self) -> Memory {
        Memory { messages: self.messages.clone(), shared: Arc::clone(&self.shared), behind: false }
    }
}

struct Writer {
    path: Option<PathBuf>,
    boot: String,
    shared: Arc<MemoryState>,
    file: Option<File>,
    /// Bytes added since the file was rewritten.
    added: usize,
    failing: bool,
    received: Receiver<Message>,
    /// Absent once the file of the earlier run was read.
    tell: Option<SyncSender<()>>,
}

impl Task for Writer {
    fn step(&mut self, wait: bool) -> bool {
        if let Some(tell) = self.tell.take() {
            self.read();
            // The receiver may have given up.
            let _ = tell.send(());
            // Drops old lines.
            self.renew();
            return true;
        }
        let Some(word) = task::next(&self.received, wait) else { return false };
        let (at, fact) = fact(&word);
        {
            let mut known = self.known();
            known.forget_old(at);
            known.take(at, &fact);
        }
        self.write(at, fact);
        self.shared.written.fetch_add(1, Ordering::AcqRel);
        true
    }
}

impl Writer {
    /// Reads the file of earlier runs.
    fn read(&self) {
        let Some(path) = &self.path else { return };
        let now = clock::now();
        match read(path) {
            Ok(text) => self.known().take_all(&text, &self.boot, now),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => tracing::warn!(
                path = %path.display(), %error,
                "Cannot read the actions of earlier runs; the rate limits start from zero."
            ),
        }
    }

    fn known(&self) -> MutexGuard<'_, KnownActions> {
        lock(&self.shared.known)
    }

    fn write(&mut self, at: Timestamp, fact: Fact) {
        if self.path.is_none() {
            return;
        }
        if self.file.is_none() || self.added > ADDED {
            // This fact is already known, and written with the others.
            self.renew();
            return;
        }
        let mut text = serde_json::to_vec(&line(&self.boot, at, fact)).unwrap_or_default();
        text.push(b'\n');
        let Some(file) = &mut self.file else { return };
        let written = fs::append(file, &text);
        self.added += text.len();
        if written.is_err() {
            self.file = None;
        }
        self.log_result(written);
    }

    /// Rewrites the file, and opens it for appending.
    fn renew(&mut self) {
        let Some(path) = self.path.clone() else { return };
        self.file = None;
        let lines = self.known().lines(&self.boot);
        let written = (|| {
            if let Some(folder) = path.parent() {
                std::fs::create_dir_all(folder)?;
            }
            fs::write_atomically(&path, |out| out.write_all(&lines))?;
            open(&path, File::options().append(true))
        })();
        let result = written.map(|file| {
            self.file = Some(file);
            self.added = 0;
        });
        self.log_result(result);
    }

    /// Logs once that writing fails, and once that it works again.
    fn log_result(&mut self, written: io::Result<()>) {
        match written {
            Ok(()) if std::mem::take(&mut self.failing) => {
                tracing::info!("The actions of protection are stored on disk again.");
            }
            Ok(()) => {}
            Err(error) if !std::mem::replace(&mut self.failing, true) => tracing::error!(
                %error,
                "Cannot store the actions of protection: after a restart, checkpoint requests may be repeated too early."
            ),
            Err(_) => {}
        }
    }
}

/// Opens a regular file, without following a link.
fn open(path: &Path, how: &mut std::fs::OpenOptions) -> io::Result<File> {
    let flags = OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY;
    let file = how.custom_flags(i32::try_from(flags.bits()).unwrap_or(0)).open(path)?;
    if file.metadata()?.is_file() {
        Ok(file)
    } else {
        Err(io::Error::new(io::ErrorKind::InvalidInput, "it is not a regular file"))
    }
}

fn read(path: &Path) -> io::Result<String> {
    use std::io::Read as _;
    let mut bytes = Vec::new();
    open(path, File::options().read(true))?.take(LARGEST).read_to_end(&mut bytes)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

fn fact(word: &Message) -> (Timestamp, Fact) {
    let pair = |key: ProcessKey| (key.pid, key.start);
    match word {
        Message::Asked(at, roster) => {
            let ask = roster.ask.iter().map(|asked| asked.key);
            let mut keys: Vec<ProcessKey> = ask.chain(roster.end.iter().copied()).collect();
            keys.sort_unstable();
            keys.dedup();
            (*at, Fact::Asked(keys.into_iter().map(pair).collect()))
        }
        Message::Ended(at, target, user) => {
            (*at, Fact::Ended { target: target.as_str().to_owned(), user: *user })
        }
    }
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

fn line(boot: &str, at: Timestamp, fact: Fact) -> Line {
    Line {
        boot: boot.to_owned(),
        boot_milliseconds: millis(at.monotonic()),
        unix_milliseconds: millis(at.unix()),
        fact,
    }
}

impl Line {
    /// Its time on this boot's clock. For lines of an earlier boot only the wall clock is known; a time in the future
    /// counts as now.
    fn at(&self, boot: &str, now: Timestamp) -> Timestamp {
        let (then, unix) =
            (Duration::from_millis(self.boot_milliseconds), Duration::from_millis(self.unix_milliseconds));
        if self.boot == boot && then <= now.monotonic() {
            return Timestamp::new(then, unix);
        }
        let ago = now.unix().saturating_sub(unix);
        Timestamp::new(now.monotonic().saturating_sub(ago), now.unix().saturating_sub(ago))
    }
}

/// The processes by time, for one line each.
fn together(
    times: &HashMap<ProcessKey, Timestamp>,
) -> impl Iterator<Item = (Timestamp, Vec<(u32, u64)>)> + use<> {
    let mut together: BTreeMap<(Duration, Duration), Vec<(u32, u64)>> = BTreeMap::new();
    for (key, at) in times {
        together.entry((at.monotonic(), at.unix())).or_default().push((key.pid, key.start));
    }
    together.into_iter().map(|((monotonic, unix), pairs)| (Timestamp::new(monotonic, unix), pairs))
}

impl KnownActions {
    /// Adds the lines of a file; skips invalid ones, such as the last line of a run that was killed.
    fn take_all(&mut self, text: &str, boot: &str, now: Timestamp) {
        for line in text.lines().filter_map(|line| serde_json::from_str::<Line>(line).ok()) {
            let old =
                now.unix().saturating_sub(Duration::from_millis(line.unix_milliseconds)) >= END_RETENTION;
            match &line.fact {
                // Processes do not outlast a boot; the rate limits do.
                Fact::Ended { .. } if line.boot != boot && old => {}
                Fact::Asked(_) if line.boot != boot => {}
                fact => self.take(line.at(boot, now), fact),
            }
        }
        self.forget_old(now);
    }

    fn take(&mut self, at: Timestamp, fact: &Fact) {
        let key = |(pid, start): &(u32, u64)| (ProcessKey { pid: *pid, start: *start }, at);
        match fact {
            Fact::Asked(pairs) => self.asked.extend(pairs.iter().map(key)),
            Fact::Ended { target, user } => self.ended.push(End { target: target.clone(), user: *user, at }),
        }
    }

    fn forget_old(&mut self, now: Timestamp) {
        self.asked.retain(|_, at| now.since(*at) < PROCESS_RETENTION);
        self.ended.retain(|end| now.since(end.at) < END_RETENTION);
    }

    /// All facts, as lines of the file.
    fn lines(&self, boot: &str) -> Vec<u8> {
        let mut facts: Vec<(Timestamp, Fact)> = Vec::new();
        facts.extend(
            self.ended.iter().map(|end| (end.at, Fact::Ended { target: end.target.clone(), user: end.user })),
        );
        facts.extend(together(&self.asked).map(|(at, pairs)| (at, Fact::Asked(pairs))));
        facts.sort_by_key(|(at, _)| at.monotonic());
        let mut text = Vec::new();
        for (at, fact) in facts {
            // Serialization cannot fail: the buffer accepts all bytes and every key is a string.
            let _ = serde_json::to_writer(&mut text, &line(boot, at, fact));
            text.push(b'\n');
        }
        text
    }
}

#[cfg(test)]
mod tests;
