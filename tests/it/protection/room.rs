//! What one bad day has of its own: folders, a configuration, a daemon, and perhaps a group or a stage.

use std::cell::Cell;
use std::fmt::Write as _;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

use super::SOON;
use super::audit::Audit;
use super::group::Group;
use crate::harness::{Daemon, memwarden, wait_for};

/// What the staged host has, in parts of [`Room::available`].
pub(crate) const HOST: u64 = 1024;

/// What a target has where a test says nothing else: short waits, and nothing of the machine that decides.
const POLICY: [(&str, &str); 8] = [
    ("forecast", "{max_state: ignore}"),
    ("leak", "{max_state: ignore}"),
    ("hysteresis", "1%"),
    ("for", "100ms"),
    ("clear_for", "200ms"),
    ("kill_margin", "0s"),
    ("cooldown", "200ms"),
    ("verify_timeout", "2s"),
];

/// Where it happens.
pub(crate) struct Room {
    folder: tempfile::TempDir,
    pub(crate) group: Option<Group>,
    /// The folder in the place of `/proc`.
    stage: Option<PathBuf>,
    next: Cell<u32>,
}

impl Room {
    /// With a memory group of its own, watched by `limit`; nothing where there can be none.
    pub(crate) fn real() -> Option<Self> {
        let group = Group::make()?;
        Some(Self { group: Some(group), stage: None, ..Self::bare() })
    }

    /// With a memory group that is the folder of a Slurm job; nothing where there can be none.
    pub(crate) fn of_slurm_job(id: u32) -> Option<Self> {
        let group = Group::of_slurm_job(id)?;
        Some(Self { group: Some(group), stage: None, ..Self::bare() })
    }

    /// With a memory group that is the one of a pod's container; nothing where there can be none.
    pub(crate) fn of_pod(uid: &str, container: &str) -> Option<Self> {
        let group = Group::of_pod(uid, container)?;
        Some(Self { group: Some(group), stage: None, ..Self::bare() })
    }

    /// With a `/proc` of its own, watched by `host`.
    pub(crate) fn staged() -> Self {
        let room = Self::bare();
        let stage = room.path("proc");
        std::fs::create_dir(&stage).unwrap();
        for name in ["stat", "vmstat", "uptime", "loadavg", "buddyinfo", "self", "sys", "pressure", "net"] {
            symlink(Path::new("/proc").join(name), stage.join(name)).unwrap();
        }
        let room = Self { stage: Some(stage), ..room };
        room.available(HOST);
        room
    }

    fn bare() -> Self {
        Self { folder: tempfile::tempdir().unwrap(), group: None, stage: None, next: Cell::new(0) }
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Writes a file that only its owner can read.
    pub(crate) fn secret(&self, name: &str, text: &str) -> PathBuf {
        let path = self.path(name);
        std::fs::write(&path, text).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
        path
    }

    /// Where the daemon keeps what it writes.
    pub(crate) fn state(&self) -> PathBuf {
        self.path("state")
    }

    /// What tells a workload of this room on the command line.
    pub(crate) fn mark(&self, workload: &str) -> String {
        format!("{}-{workload}", self.folder.path().file_name().unwrap().to_str().unwrap())
    }

    /// A new number.
    pub(crate) fn next(&self) -> u32 {
        self.next.replace(self.next.get() + 1)
    }

    /// Puts a process on the stage, where there is one.
    pub(crate) fn show(&self, pid: u32) {
        if let Some(stage) = &self.stage {
            symlink(format!("/proc/{pid}"), stage.join(pid.to_string())).unwrap();
        }
    }

    /// One of the stage's files.
    pub(crate) fn staged_file(&self, name: &str) -> PathBuf {
        self.stage.as_ref().unwrap().join(name)
    }

    /// Says how much of the staged host's memory is available, of [`HOST`] parts. A part has 256 B, so that even the smallest job
    /// could give back what is lacking.
    pub(crate) fn available(&self, parts: u64) {
        let text = format!(
            "MemTotal: {:>12} kB\nMemFree: {:>12} kB\nMemAvailable: {:>12} kB\n",
            HOST >> 2,
            parts >> 2,
            parts >> 2
        );
        self.write_meminfo(&text);
    }

    /// Writes the staged `meminfo` in place: it is kept open.
    pub(crate) fn write_meminfo(&self, text: &str) {
        use std::os::unix::fs::FileExt as _;
        let mut how = std::fs::File::options();
        let how = how.write(true).create(true).truncate(false);
        let file = how.open(self.staged_file("meminfo")).unwrap();
        // One write, so that nobody reads a half of it; what was longer before is blanked.
        let padded = format!("{text:<256}");
        file.write_all_at(padded.as_bytes(), 0).unwrap();
    }

    /// A target that names the room's jobs, and nobody else; the user's own processes may be touched.
    pub(crate) fn target(&self, name: &str, more: &str) -> String {
        let whom = match &self.group {
            Some(group) => format!("cgroup: \"{}\", host: {{soft: \"\"}}", group.path),
            None => format!("workload: {name}, cgroup_headroom: {{soft: \"\"}}"),
        };
        let others = POLICY.iter().filter(|(key, _)| !more.contains(&format!("{key}:")));
        let others: String = others.map(|(key, value)| format!("{key}: {value}, ")).collect();
        let user = rustix::process::getuid().as_raw();
        format!("{{name: {name}, {whom}, allow_users: [\"{user}\"], {others}{more}}}")
    }

    /// Writes a configuration with these targets and whatever else is given.
    pub(crate) fn configure(&self, protection: &str, targets: &[String], more: &str) -> PathBuf {
        let file = self.path("memwarden.yaml");
        let mut text = format!(
            "sampling: {{interval: 200ms}}\nstate: {{file: {}}}\n{more}\n",
            self.state().join("state.json").display()
        );
        if let Some(stage) = &self.stage {
            let _ = writeln!(text, "paths: {{proc: {}}}", stage.display());
        }
        let matchers = ["train", "other"]
            .map(|name| format!("{{name: {name}, command_line: \"{}\"}}", self.mark(name)))
            .join(", ");
        let _ = writeln!(text, "sources: {{workload: {{matchers: [{matchers}]}}}}");
        let _ = writeln!(text, "protection: {{{protection}, targets: [{}]}}", targets.join(",\n  "));
        let next = file.with_extension("next");
        std::fs::write(&next, text).unwrap();
        std::fs::rename(next, &file).unwrap();
        file
    }

    /// Starts the daemon with one target, `train`, in the mode enforce.
    pub(crate) fn guard(&self, more: &str) -> Daemon {
        self.configure("mode: enforce", &[self.target("train", more)], "");
        self.start()
    }

    /// Starts the daemon as it was configured.
    pub(crate) fn start(&self) -> Daemon {
        self.start_with(|_| {})
    }

    /// The same, with more to say of the command.
    pub(crate) fn start_with(&self, prepare: impl FnOnce(&mut Command)) -> Daemon {
        self.start_by(&[], env!("CARGO_BIN_EXE_memwarden").as_ref(), prepare)
    }

    /// The same, started by another program.
    pub(crate) fn start_by(
        &self,
        starter: &[&str],
        binary: &Path,
        prepare: impl FnOnce(&mut Command),
    ) -> Daemon {
        let file = self.path("memwarden.yaml");
        let stage = self.stage.as_ref().map_or("/nowhere", |stage| stage.to_str().unwrap());
        // The daemon must find itself on the stage before it starts.
        let enter = ["sh", "-c", "test -d \"$0\" && ln -s /proc/$$ \"$0/$$\"; exec \"$@\"", stage];
        let starter: Vec<&str> = starter.iter().chain(&enter).copied().collect();
        Daemon::start_by_with(&starter, binary, &["--config.file", file.to_str().unwrap()], prepare)
    }

    /// Waits until the guard knows so many processes of a target.
    #[track_caller]
    pub(crate) fn wait_members(&self, daemon: &Daemon, target: &str, count: f64) {
        daemon.wait_page(&format!("{count} members"), SOON, |page| {
            page.sum("memwarden_protection_members", &[("target", target)]) == count
        });
    }

    /// What was written down so far.
    pub(crate) fn audit(&self) -> Audit {
        Audit::read(&self.state().join("audit.jsonl"))
    }

    /// What was written down so far, once each step that began has its line of the end: the lines are written after what
    /// they are about.
    #[track_caller]
    pub(crate) fn paired_audit(&self) -> Audit {
        let audit = wait_for("the end of each step", SOON, || Some(self.audit()).filter(Audit::has_all_ends));
        audit.is_paired();
        audit
    }

    /// Keys by which the job acknowledges a checkpoint in the file `saved`, and is not told to end before.
    pub(crate) fn acknowledged(&self) -> String {
        format!("checkpoint: {{file: {:?}, grace: 10s}}", self.path("saved"))
    }

    /// Waits until a step of a kind has begun in the audit log, which a thread writes, perhaps after the effect of the step.
    #[track_caller]
    pub(crate) fn audit_with(&self, kind: &str) -> Audit {
        wait_for(kind, SOON, || Some(self.audit()).filter(|audit| audit.begun(kind).next().is_some()))
    }

    /// Waits until a step of a kind, which lasts, has ended in the audit log.
    #[track_caller]
    pub(crate) fn audit_with_end(&self, kind: &str) -> Audit {
        let ended = |audit: &Audit| audit.begun(kind).next().is_some_and(|step| audit.has_ended(step));
        wait_for(kind, SOON, || Some(self.audit()).filter(ended))
    }

    /// Waits until a ladder has moved to a state.
    #[track_caller]
    pub(crate) fn wait_move(&self, to: &str) {
        wait_for(&format!("the move to {to}"), SOON, || self.audit().went("train", to).then_some(()));
    }

    /// Waits until so many incidents of the target are recorded to their end, and gives their folders.
    #[track_caller]
    pub(crate) fn wait_incidents(&self, count: usize) -> Vec<PathBuf> {
        let has_ended = |folder: &PathBuf| {
            let record = std::fs::read(folder.join("incident.json")).ok()?;
            let record: Value = serde_json::from_slice(&record).ok()?;
            record["ended_unix_seconds"].is_number().then_some(())
        };
        let folders = wait_for("the incidents", SOON, || {
            let folders = self.incidents();
            (folders.iter().filter_map(has_ended).count() >= count).then_some(folders)
        });
        assert_eq!(folders.len(), count);
        folders
    }

    /// The report of an incident, as it is rendered now, and its chart.
    pub(crate) fn report(&self, folder: &Path, chart: Option<&Path>) -> String {
        let mut command = memwarden(&["incidents", "--folder"]);
        command.arg(folder.parent().unwrap()).arg(folder.file_name().unwrap());
        if let Some(chart) = chart {
            command.arg("--plot").arg(chart);
        }
        let output = command.output().unwrap();
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stdout).unwrap()
    }

    /// The folders of the incidents of the target, the oldest first. Every daemon on the machine records what the kernel kills.
    pub(crate) fn incidents(&self) -> Vec<PathBuf> {
        let folders = std::fs::read_dir(self.state().join("incidents")).unwrap();
        let folders = folders.map(|entry| entry.unwrap().path());
        let mut folders: Vec<PathBuf> =
            folders.filter(|path| path.to_str().is_some_and(|path| path.ends_with("-train"))).collect();
        folders.sort();
        folders
    }
}
