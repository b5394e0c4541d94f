//! The thread that writes performance logs: it reads the newest frame and may wait for disks; nothing waits for it.

use std::cmp::Reverse;
use std::collections::{BTreeMap, VecDeque};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use crate::config::PerfLogs;
use crate::engine::Frames;
use crate::host::subordinate::Subordinates;
use crate::host::user_files::Folder;
use crate::host::{apart, clock};
use crate::model::facts::Membership;
use crate::model::fair::{Room, Table};
use crate::model::label::Label;
use crate::model::lock::lock;
use crate::model::point::Batch;
use crate::model::printable::escaped;
use crate::model::shortage::Shortage;
use crate::model::source::Reporter;
use crate::model::time::Timestamp;
use crate::perf_log::files::Rotating;
use crate::perf_log::rows::{self, Follower, WorkloadRow};
use crate::perf_log::summary::Summary;
use crate::perf_log::{StepRow, table, tensorboard, text};

/// The interval at which the newest frame is read.
const POLL_INTERVAL: Duration = Duration::from_millis(500);
/// The interval at which the summary is rewritten.
const SUMMARY: f64 = 10.0;
/// A workload without a row for this many seconds has ended: its next row begins new files.
const ENDED: f64 = 600.0;
/// Workloads beyond these are not logged.
const MOST: usize = 64;

/// The users of the logged and of the omitted workloads, shared by the thread and the sampler.
#[derive(Debug, Default)]
pub(super) struct Owners {
    /// The user of each workload, while logs are written.
    users: Mutex<Option<BTreeMap<Label, u32>>>,
    left_out: Mutex<Vec<Shortage>>,
    subordinates: Subordinates,
}

impl Owners {
    /// Without users yet; `passwd` is the password file.
    pub(super) fn new(passwd: &Path) -> Self {
        Self { subordinates: Subordinates::new(passwd), ..Self::default() }
    }

    fn of(&self, workload: &Label) -> Option<u32> {
        lock(&self.users).as_ref()?.get(workload).copied()
    }

    /// Sets whether logs are written from now on.
    fn turn(&self, on: bool) {
        *lock(&self.users) = on.then(BTreeMap::new);
        lock(&self.left_out).clear();
    }
}

impl Reporter for Owners {
    fn report(&self, at: Timestamp, out: &mut Batch) {
        out.facts.shortages.extend_from_slice(&lock(&self.left_out));
        let mut users = lock(&self.users);
        let Some(users) = &mut *users else { return };
        users.clear();
        for Membership { workload, .. } in &out.facts.members {
            if !users.contains_key(&workload.name) {
                users.insert(workload.name.clone(), self.subordinates.owner(workload.user, at));
            }
        }
    }
}

/// The running thread; it ends soon after this is dropped.
#[derive(Debug)]
pub(super) struct PerfLog {
    stop: Sender<()>,
    thread: JoinHandle<()>,
}

impl PerfLog {
    /// Starts writing; absent where no folder is configured.
    pub(super) fn start(
        config: &PerfLogs,
        frames: &Frames,
        owners: &Arc<Owners>,
    ) -> std::io::Result<Option<Self>> {
        owners.turn(config.folder.is_some());
        let Some(folder) = config.folder.clone() else { return Ok(None) };
        let owners = Arc::clone(owners);
        let (stop, stopped) = channel();
        let (config, mut frames) = (config.clone(), frames.clone());
        let thread = apart::spawn("perf-log", move || {
            let mut writer = Writer { folder, config, owners, runs: Table::new(MOST) };
            loop {
                let wait = stopped.recv_timeout(POLL_INTERVAL);
                let newest = frames.borrow_and_update().clone();
                if let Some(frame) = newest {
                    writer.take(&rows::workload_rows(&frame), frame.at.unix().as_secs_f64());
                }
                if wait != Err(RecvTimeoutError::Timeout) {
                    writer.end();
                    return;
                }
            }
        })?;
        Ok(Some(Self { stop, thread }))
    }

    /// Ends with the last summaries written; a write that hangs is abandoned after `deadline`.
    pub(super) fn finish(self, deadline: Duration) {
        drop(self.stop);
        apart::ended(&self.thread, deadline);
    }
}

struct Writer {
    folder: PathBuf,
    config: PerfLogs,
    owners: Arc<Owners>,
    runs: Table<Option<u32>, Label, Run>,
}

/// One workload from its first row to its end.
struct Run {
    folder: PathBuf,
    /// The name of its own folder in that one.
    name: String,
    follower: Follower,
    text: Rotating,
    table: Rotating,
    summary: Summary,
    summed: f64,
    events: Events,
    started: f64,
    seen: f64,
    /// Whether the last write failed: each change is logged once.
    failing: bool,
}

/// The event files of a run, the newest last.
struct Events {
    files: VecDeque<String>,
    bytes: u64,
}

impl Writer {
    fn take(&mut self, rows: &BTreeMap<Label, WorkloadRow>, now: f64) {
        let mut left_out = Vec::new();
        for (workload, rows) in rows {
            if !self.runs.contains_key(workload) {
                let user = self.owners.of(workload);
                let newest = |_: &Label, run: &Run| Reverse(run.started);
                match self.runs.make_room(user, newest) {
                    Room::Free => {}
                    Room::Evicted(_, _, mut run) => run.end(&self.config),
                    Room::Refused => {
                        left_out.push(Shortage { limit: "perf_logs", user, left_out: 1, most: MOST as u64 });
                        continue;
                    }
                }
                let run = Run::new(&self.folder, workload, &self.config, now);
                self.runs.insert(user, workload.clone(), run);
            }
            let Some(run) = self.runs.get_mut(workload) else { continue };
            run.seen = now;
            if let Some(row) = run.follower.row(rows, self.config.every_steps) {
                let written = run.write(&row, &self.config);
                run.log_result(written);
            }
        }
        *lock(&self.owners.left_out) = left_out;
        self.runs.retain(|_, run| {
            let ended = now - run.seen > ENDED;
            if ended {
                run.end(&self.config);
            }
            !ended
        });
    }

    fn end(&mut self) {
        for run in self.runs.values_mut() {
            run.end(&self.config);
        }
    }
}

impl Run {
    fn new(folder: &Path, workload: &Label, config: &PerfLogs, now: f64) -> Self {
        let log = |name: &str| Rotating::new(name, config.max_size.get(), config.max_files);
        Self {
            follower: Follower::default(),
            text: log("perf.log"),
            table: log("perf_realtime.log"),
            summary: Summary::new(&escaped(workload.as_str()), now),
            summed: now,
            events: Events { files: VecDeque::new(), bytes: 0 },
            started: now,
            seen: now,
            failing: false,
            folder: folder.to_owned(),
            name: file_name(workload.as_str()),
        }
    }

    fn write(&mut self, row: &StepRow, config: &PerfLogs) -> std::io::Result<()> {
        let folder = self.folder()?;
        if config.formats.text {
            self.text.write(&folder, String::new, text::line(row).as_bytes())?;
        }
        if config.formats.table {
            let started = self.started;
            self.table.write(&folder, || table::header(started), table::line(row).as_bytes())?;
        }
        if config.formats.tensorboard {
            self.events.write(&folder, row, config)?;
        }
        self.summary.add(row);
        if row.unix_seconds - self.summed >= SUMMARY {
            self.summed = row.unix_seconds;
            self.sum_up(config)?;
        }
        Ok(())
    }

    /// Its folder, in which others may write; opened again each time, because it may have been removed.
    fn folder(&self) -> std::io::Result<Folder> {
        Folder::make(&self.folder)?.make_inside(&self.name)
    }

    fn log_result(&mut self, written: std::io::Result<()>) {
        match written {
            Err(error) if !self.failing => {
                self.failing = true;
                let folder = self.folder.join(&self.name);
                let folder = folder.display();
                tracing::warn!(%error, %folder, "Performance logs cannot be written; lines are lost.");
            }
            Ok(()) if self.failing => {
                self.failing = false;
                let folder = self.folder.join(&self.name);
                tracing::info!(folder = %folder.display(), "Performance logs are written again.");
            }
            _ => {}
        }
    }

    /// Writes the last summary, unless its files belong to another user.
    fn end(&mut self, config: &PerfLogs) {
        if !self.failing {
            let written = self.sum_up(config);
            self.log_result(written);
        }
    }

    fn sum_up(&self, config: &PerfLogs) -> std::io::Result<()> {
        if !config.formats.summary {
            return Ok(());
        }
        let bytes = self.summary.json().map_err(std::io::Error::other)?;
        self.folder()?.replace("perf_summary.json", 0o600, |out| out.write_all(&bytes))
    }
}

impl Events {
    fn write(&mut self, folder: &Folder, row: &StepRow, config: &PerfLogs) -> std::io::Result<()> {
        let mut bytes = tensorboard::scalars(row.unix_seconds, row.step, &scalars(row));
        if self.files.is_empty() || self.bytes + bytes.len() as u64 > config.max_size.get() {
            let unique = clock::now().unix();
            let name =
                format!("events.out.tfevents.{}.{}.memwarden", unique.as_secs(), unique.subsec_nanos());
            self.files.push_back(name);
            self.bytes = 0;
            let first = tensorboard::version(row.unix_seconds);
            bytes = [first, bytes].concat();
        }
        while self.files.len() as u64 > u64::from(config.max_files) + 1 {
            if let Some(oldest) = self.files.pop_front() {
                // Another program may have removed it.
                let _ = folder.remove(oldest);
            }
        }
        let Some(name) = self.files.back() else { return Ok(()) };
        let mut file = Rotating::new(name, u64::MAX, 0);
        file.write(folder, String::new, &bytes)?;
        self.bytes += bytes.len() as u64;
        Ok(())
    }
}

fn scalars(row: &StepRow) -> Vec<(&'static str, f64)> {
    let all = [
        ("train/loss", row.loss),
        ("perf/step_time_seconds", row.step_seconds),
        ("perf/tokens_per_second", row.tokens_per_second),
        ("perf/samples_per_second", row.samples_per_second),
        ("perf/flops_per_second_per_gpu", row.flops_per_gpu),
        ("perf/flops_per_second", row.flops),
        ("perf/mfu_ratio", row.mfu),
        ("memory/allocated_bytes", row.allocated),
        ("memory/reserved_bytes", row.reserved),
    ];
    all.into_iter().filter_map(|(tag, value)| Some((tag, value?))).collect()
}

/// The name of a workload as the name of a folder. Users choose names of workloads.
fn file_name(workload: &str) -> String {
    let kept = |letter: char| letter.is_ascii_alphanumeric() || "._-".contains(letter);
    let name: String =
        workload.chars().take(100).map(|letter| if kept(letter) { letter } else { '_' }).collect();
    // A name that begins with `-` would be an option of `rm *`.
    if name.is_empty() || name.starts_with(['.', '-']) { format!("_{name}") } else { name }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::PerfFormats;
    use crate::model::units::Bytes;

    /// The row of one step of a workload.
    fn rows(workloads: &[&str]) -> BTreeMap<Label, WorkloadRow> {
        workloads.iter().map(|workload| (Label::from(*workload), WorkloadRow::default())).collect()
    }

    fn config(folder: &Path) -> PerfLogs {
        PerfLogs {
            folder: Some(folder.to_path_buf()),
            formats: PerfFormats { text: true, ..PerfFormats::default() },
            every_steps: 1,
            max_size: Bytes::new(1 << 20),
            max_files: 1,
        }
    }

    #[test]
    fn one_user_leaves_room_for_anothers_workload() {
        let folder = tempfile::tempdir().unwrap();
        let names: Vec<String> = (0..70).map(|number| format!("a{number:02}")).collect();
        let mut all: Vec<&str> = names.iter().map(String::as_str).collect();
        let owners = Arc::new(Owners::default());
        owners.turn(true);
        let users = all.iter().map(|name| (Label::from(*name), 61_002));
        *lock(&owners.users) = Some(users.chain([("zz".into(), 61_001)]).collect());
        let config = config(folder.path());
        let mut writer = Writer {
            folder: folder.path().to_path_buf(),
            config,
            owners: Arc::clone(&owners),
            runs: Table::new(MOST),
        };
        writer.take(&rows(&all), 1.0);
        assert_eq!((writer.runs.len(), lock(&owners.left_out).len()), (MOST, 6));
        all.push("zz");
        for now in [2.0, 3.0] {
            writer.take(&rows(&all), now);
            assert!(writer.runs.contains_key(&Label::from("zz")) && writer.runs.len() == MOST);
        }
        let left_out = lock(&owners.left_out).clone();
        assert_eq!(left_out.len(), 7);
        assert!(left_out.iter().all(|shortage| shortage.user == Some(61_002)));
    }

    #[test]
    fn a_summary_shows_the_characters_of_a_name_that_are_invisible() {
        let run = Run::new(Path::new("logs"), &"\u{202e}live".into(), &config(Path::new("logs")), 0.0);
        let summary = String::from_utf8(run.summary.json().unwrap()).unwrap();
        assert!(summary.contains("\\\\u{202e}live"), "{summary}");
    }

    #[test]
    fn no_name_leads_out_of_the_folder() {
        for (name, file) in [
            ("slurm-17", "slurm-17"),
            ("../../etc/cron.d/x", "_.._.._etc_cron.d_x"),
            ("..", "_.."),
            ("", "_"),
            ("-rf", "_-rf"),
            ("a/b c\n", "a_b_c_"),
        ] {
            assert_eq!(file_name(name), file);
        }
    }
}
