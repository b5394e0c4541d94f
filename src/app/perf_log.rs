//! The thread that writes performance logs: reads the newest frame, waits for disks, and holds up nobody.

use std::collections::{BTreeMap, VecDeque};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

use crate::config::PerfLogs;
use crate::exposition::Frames;
use crate::exposition::perf_log::files::Rotating;
use crate::exposition::perf_log::rows::{self, Follower, Told};
use crate::exposition::perf_log::summary::Summary;
use crate::exposition::perf_log::{Row, table, tensorboard, text};
use crate::host::clock;
use crate::host::user_files::Folder;
use crate::model::label::Label;

/// How often the newest frame is looked at.
const LOOK: Duration = Duration::from_millis(500);
/// How often the summary is written anew.
const SUMMARY: f64 = 10.0;
/// A workload that told nothing for so many seconds has ended: its next row begins new files.
const ENDED: f64 = 600.0;
/// Workloads beyond these are not logged.
const MOST: usize = 64;

/// The running thread; it ends soon after this.
#[derive(Debug)]
pub(super) struct PerfLog {
    stop: Sender<()>,
    thread: JoinHandle<()>,
}

impl PerfLog {
    /// Starts writing; nothing where no folder is configured.
    ///
    /// # Errors
    /// The operating system's, where no thread could be started.
    pub(super) fn start(config: &PerfLogs, frames: &Frames) -> std::io::Result<Option<Self>> {
        let Some(folder) = config.folder.clone() else { return Ok(None) };
        let (stop, stopped) = channel();
        let (config, mut frames) = (config.clone(), frames.clone());
        let thread = std::thread::Builder::new().name("perf-log".to_owned()).spawn(move || {
            let mut writer = Writer { folder, config, runs: BTreeMap::new(), failing: false };
            loop {
                let wait = stopped.recv_timeout(LOOK);
                let newest = frames.borrow_and_update().clone();
                if let Some(frame) = newest {
                    writer.take(&rows::told(&frame), frame.at.unix().as_secs_f64());
                }
                if wait != Err(RecvTimeoutError::Timeout) {
                    writer.end();
                    return;
                }
            }
        })?;
        Ok(Some(Self { stop, thread }))
    }

    /// Ends with the last summaries written; a disk that hangs is left behind after `deadline`.
    pub(super) fn finish(self, deadline: Duration) {
        drop(self.stop);
        let begun = clock::now();
        while !self.thread.is_finished() && clock::now().since(begun) < deadline {
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

struct Writer {
    folder: PathBuf,
    config: PerfLogs,
    runs: BTreeMap<Label, Run>,
    /// Whether the last write failed: each change is said once.
    failing: bool,
}

/// One workload from its first row to its end.
struct Run {
    folder: PathBuf,
    /// Of its own folder in that one.
    name: String,
    follower: Follower,
    text: Rotating,
    table: Rotating,
    summary: Summary,
    summed: f64,
    events: Events,
    started: f64,
    seen: f64,
}

/// The event files of a run, the newest last.
struct Events {
    files: VecDeque<String>,
    bytes: u64,
}

impl Writer {
    fn take(&mut self, told: &BTreeMap<Label, Told>, now: f64) {
        for (workload, told) in told {
            if !self.runs.contains_key(workload) {
                if self.runs.len() >= MOST {
                    continue;
                }
                self.runs.insert(workload.clone(), Run::new(&self.folder, workload, &self.config, now));
            }
            let Some(run) = self.runs.get_mut(workload) else { continue };
            run.seen = now;
            if let Some(row) = run.follower.row(told, self.config.every_steps) {
                let written = run.write(&row, &self.config);
                self.say(written);
            }
        }
        let ended: Vec<Label> = self
            .runs
            .iter()
            .filter(|(_, run)| now - run.seen > ENDED)
            .map(|(workload, _)| workload.clone())
            .collect();
        for workload in ended {
            if let Some(run) = self.runs.remove(&workload) {
                let written = run.sum_up(&self.config);
                self.say(written);
            }
        }
    }

    fn end(&mut self) {
        for run in std::mem::take(&mut self.runs).into_values() {
            let written = run.sum_up(&self.config);
            self.say(written);
        }
    }

    fn say(&mut self, written: std::io::Result<()>) {
        match written {
            Err(error) if !self.failing => {
                self.failing = true;
                let folder = self.folder.display();
                tracing::warn!(%error, %folder, "Performance logs cannot be written; lines are lost.");
            }
            Ok(()) if self.failing => {
                self.failing = false;
                tracing::info!("Performance logs are written again.");
            }
            _ => {}
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
            summary: Summary::new(workload.as_str(), now),
            summed: now,
            events: Events { files: VecDeque::new(), bytes: 0 },
            started: now,
            seen: now,
            folder: folder.to_owned(),
            name: file_name(workload.as_str()),
        }
    }

    fn write(&mut self, row: &Row, config: &PerfLogs) -> std::io::Result<()> {
        let folder = self.folder()?;
        if config.text {
            self.text.write(&folder, String::new, text::line(row).as_bytes())?;
        }
        if config.table {
            let started = self.started;
            self.table.write(&folder, || table::header(started), table::line(row).as_bytes())?;
        }
        if config.tensorboard {
            self.events.write(&folder, row, config)?;
        }
        self.summary.add(row);
        if row.unix_seconds - self.summed >= SUMMARY {
            self.summed = row.unix_seconds;
            self.sum_up(config)?;
        }
        Ok(())
    }

    /// Its folder, in which others may write; looked for anew each time, since it may have been removed.
    fn folder(&self) -> std::io::Result<Folder> {
        Folder::make(&self.folder)?.make_inside(&self.name)
    }

    fn sum_up(&self, config: &PerfLogs) -> std::io::Result<()> {
        if !config.summary {
            return Ok(());
        }
        let bytes = self.summary.json().map_err(std::io::Error::other)?;
        self.folder()?.replace("perf_summary.json", 0o600, |out| out.write_all(&bytes))
    }
}

impl Events {
    fn write(&mut self, folder: &Folder, row: &Row, config: &PerfLogs) -> std::io::Result<()> {
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
                // Somebody else may have removed it.
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

fn scalars(row: &Row) -> Vec<(&'static str, f64)> {
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

/// A workload's name as the name of a folder: it may have been chosen by anybody.
fn file_name(workload: &str) -> String {
    let kept = |letter: char| letter.is_ascii_alphanumeric() || "._-".contains(letter);
    let name: String =
        workload.chars().take(100).map(|letter| if kept(letter) { letter } else { '_' }).collect();
    if name.is_empty() || name.starts_with('.') { format!("_{name}") } else { name }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_name_leads_out_of_the_folder() {
        for (name, file) in [
            ("slurm-17", "slurm-17"),
            ("../../etc/cron.d/x", "_.._.._etc_cron.d_x"),
            ("..", "_.."),
            ("", "_"),
            ("a/b c\n", "a_b_c_"),
        ] {
            assert_eq!(file_name(name), file);
        }
    }
}
