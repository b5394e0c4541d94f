//! The kernels, disks and clocks of all nodes of a simulated cluster, and what is checked of each act.
//!
//! Files of processes and cgroups are real files below one folder for each node, in the kernel's formats; processes, signals,
//! time and the results of writes are simulated.

mod kernel;
mod memory;

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fs::File;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_json::Value;

use super::Defect;
use crate::host::task::Task;
use crate::model::ids::ProcessKey;
use crate::model::time::Timestamp;
use crate::protection::record::audit::AuditLog;

/// 2026-01-01, in seconds since 1970.
const EPOCH: u64 = 1_767_225_600;
const KILL: u8 = 9;
const USR1: u8 = 10;
const TERM: u8 = 15;
const STOP: u8 = 19;

/// A generator of pseudo-random numbers (SplitMix64, Steele et al. 2014).
#[derive(Debug)]
pub(super) struct Random(pub(super) u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// A number below `end`.
    pub(super) fn below(&mut self, end: u64) -> u64 {
        self.next() % end.max(1)
    }

    /// True in this many of a hundred cases.
    pub(super) fn percent(&mut self, share: u64) -> bool {
        self.below(100) < share
    }

    /// A time in milliseconds.
    pub(super) fn millis(&mut self, from: u64, to: u64) -> Duration {
        Duration::from_micros(from * 1000 + self.below((to - from) * 1000))
    }

    pub(super) fn text(&mut self) -> String {
        format!("{:016x}{:016x}", self.next(), self.next())
    }
}

/// One process.
#[derive(Debug)]
pub(super) struct Process {
    pub(super) key: ProcessKey,
    pub(super) parent: u32,
    pub(super) uid: u32,
    pub(super) job: Option<usize>,
    pub(super) group: String,
    pub(super) catches: bool,
    ignores_term: bool,
    pub(super) ended: bool,
    /// Whether its parent has not waited for it yet.
    pub(super) zombie: bool,
    pub(super) stopped: bool,
    ends_at: Option<Duration>,
    /// SIGKILL takes at least this long: the process is in an uninterruptible sleep.
    asleep: Duration,
    /// Signals that wait until it is thawed or continued.
    waiting: Vec<u8>,
    asked: Option<Duration>,
    /// When it began to save, and when it has saved.
    pub(super) saves: Option<(Duration, Duration)>,
    /// Whether it has reported that it has saved.
    pub(super) reported: bool,
}

/// One job of a node.
#[derive(Debug)]
pub(super) struct Job {
    pub(super) name: String,
    pub(super) uid: u32,
    pub(super) run: Option<String>,
    /// Whether its target is in mode `enforce`.
    pub(super) enforced: bool,
    pub(super) request_interval: Duration,
    pub(super) path: String,
    inode: u64,
    limit: u64,
    usage: File,
    stat: File,
    /// Whether its target limits the memory of its processes.
    pub(super) has_own_limit: bool,
    /// The memory that each of its processes shows, and what it held, with the time.
    pub(super) resident: u64,
    /// What analyzers find that it holds.
    pub(super) shown: u64,
    held: Vec<(Duration, u64)>,
    /// Memory at a time, and its growth in bytes per second.
    level: (Duration, u64, i64),
    pub(super) frozen: bool,
    /// Whether a defect shows more memory than it has.
    pub(super) lies: bool,
    /// When its memory was last at or below the soft level.
    pub(super) short: Option<Duration>,
}

/// A signal that reached a process, with the step that the audit log had before it.
#[derive(Debug)]
struct Act {
    key: ProcessKey,
    number: u64,
}

/// The disk of a node.
#[derive(Debug, Default)]
pub(super) struct Disk {
    pub(super) full: bool,
    pub(super) hangs: bool,
    /// The time that a thread takes until it writes.
    pub(super) delay: Duration,
}

impl Disk {
    /// Whether a line is on it before the guard gives up waiting.
    pub(super) fn is_good(&self) -> bool {
        !self.full && !self.hangs && self.delay < Duration::from_millis(50)
    }
}

/// One node.
#[derive(Debug)]
pub(super) struct Host {
    pub(super) folder: PathBuf,
    boot: Duration,
    pub(super) memory: memory::Memory,
    /// Seconds that its clock is ahead.
    pub(super) skew: i64,
    /// Whether the kernel reports users by pidfd and has `cgroup.kill`.
    recent: bool,
    pids: BTreeMap<u32, usize>,
    pub(super) processes: Vec<Process>,
    pub(super) jobs: Vec<Job>,
    pub(super) disk: Disk,
    started: u64,
    /// The log of the running daemon, and how far it was read.
    pub(super) audit: Option<AuditLog>,
    audit_read: u64,
    /// The steps that have no result yet, with their times.
    open: BTreeMap<u64, (Duration, Value)>,
    acts: Vec<Act>,
    reached: BTreeMap<u64, Vec<(u32, u64)>>,
    done: Vec<u64>,
    /// When the daemon ended without what it remembers on the disk.
    pub(super) forgot: Option<Duration>,
    /// Whether the disk was bad since a request was written last.
    pub(super) doubtful: bool,
}

/// All nodes.
#[derive(Default)]
pub(super) struct Cluster {
    pub(super) now: Duration,
    /// The node whose daemon runs.
    pub(super) node: usize,
    pub(super) hosts: Vec<Host>,
    tasks: Vec<(usize, &'static str, Box<dyn Task>)>,
    /// Whether a task runs.
    in_task: bool,
    pub(super) random: Option<Random>,
    pub(super) defect: Option<Defect>,
    /// Whether processes end by themselves, pids are used again at once and sleep.
    pub(super) faults: bool,
    pub(super) found: Option<String>,
    pub(super) trace: Option<Vec<String>>,
    /// Processes that begin to save, by node.
    pub(super) saving: Vec<(usize, usize)>,
}

impl Cluster {
    pub(super) fn random(&mut self) -> &mut Random {
        self.random.get_or_insert(Random(0))
    }

    pub(super) fn note(&mut self, what: impl FnOnce() -> String) {
        let (now, node) = (self.now, self.node);
        if let Some(trace) = &mut self.trace {
            trace.push(format!("{:9.3} node {node}: {}", now.as_secs_f64(), what()));
        }
    }

    /// An invariant does not hold.
    pub(super) fn fail(&mut self, what: String) {
        self.note(|| format!("VIOLATION: {what}"));
        let node = self.node;
        self.found.get_or_insert_with(|| format!("node {node}: {what}"));
    }

    pub(super) fn host(&mut self) -> &mut Host {
        &mut self.hosts[self.node]
    }

    pub(super) fn time(&self) -> Timestamp {
        let host = &self.hosts[self.node];
        let unix = Duration::from_secs(EPOCH.saturating_add_signed(host.skew)) + self.now;
        Timestamp::new(host.boot + self.now, unix)
    }

    /// Adds a node with its files.
    pub(super) fn add_host(&mut self, folder: PathBuf) {
        let recent = self.random().percent(50);
        let write = |name: &str, text: &str| {
            let path = folder.join(name);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        };
        write("cgroup/cgroup.controllers", "memory\n");
        write("proc/sys/kernel/random/boot_id", "boot\n");
        write("proc/self/cgroup", "0::/system/memwarden\n");
        let own = std::process::id();
        write(&format!("proc/{own}/stat"), &stat(ProcessKey { pid: own, start: 1 }, 0, 'S', true));
        write(&format!("proc/{own}/status"), "Uid:\t0\t0\t0\t0\n");
        std::fs::create_dir(folder.join("state")).unwrap();
        let defect = self.defect;
        let memory = memory::Memory::new(&folder, self.random(), defect);
        let boot = Duration::from_secs(1000 + self.random().below(100_000));
        let skew = match self.random().below(10) {
            0..6 => 0,
            6..8 => 3 - i64::try_from(self.random().below(6)).unwrap(),
            _ => 400 - i64::try_from(self.random().below(800)).unwrap(),
        };
        self.hosts.push(Host {
            folder,
            boot,
            memory,
            skew,
            recent,
            pids: BTreeMap::new(),
            processes: Vec::new(),
            jobs: Vec::new(),
            disk: Disk { delay: Duration::from_millis(1), ..Disk::default() },
            started: 0,
            audit: None,
            audit_read: 0,
            open: BTreeMap::new(),
            acts: Vec::new(),
            reached: BTreeMap::new(),
            done: Vec::new(),
            forgot: None,
            doubtful: false,
        });
    }

    /// Adds a job to the current node, without processes.
    pub(super) fn add_job(
        &mut self,
        name: &str,
        uid: u32,
        run: Option<String>,
        enforced: bool,
        interval: Duration,
        has_own_limit: bool,
    ) {
        let recent = self.host().recent;
        let path = format!("/jobs/{name}");
        let folder = self.host().folder.join("cgroup/jobs").join(name);
        std::fs::create_dir_all(&folder).unwrap();
        let limit = 1_u64 << 30;
        let files = [("memory.max", format!("{limit}\n")), ("memory.stat", String::new())];
        let more = [("memory.current", usage(0)), ("cgroup.procs", String::new())];
        let rest = [("cgroup.events", "populated 0\n".to_owned()), ("cgroup.freeze", "0\n".to_owned())];
        for (name, text) in files.into_iter().chain(more).chain(rest) {
            std::fs::write(folder.join(name), text).unwrap();
        }
        if recent {
            std::fs::write(folder.join("cgroup.kill"), "").unwrap();
        }
        let open = |name: &str| File::options().write(true).open(folder.join(name)).unwrap();
        let (usage, stat) = (open("memory.current"), open("memory.stat"));
        let inode = std::fs::metadata(&folder).unwrap().ino();
        let level = (Duration::ZERO, limit / 4, 0);
        self.host().jobs.push(Job {
            name: name.to_owned(),
            uid,
            run,
            enforced,
            request_interval: interval,
            path,
            inode,
            limit,
            usage,
            stat,
            has_own_limit,
            resident: 0,
            shown: 0,
            held: Vec::new(),
            level,
            frozen: false,
            lies: false,
            short: None,
        });
    }

    /// Starts a process on the current node; a pid of an ended process is used again early.
    pub(super) fn start_process(&mut self, job: Option<usize>, uid: u32, group: &str, parent: u32) -> u32 {
        let mut pid = 100 + u32::try_from(self.random().below(60)).unwrap();
        while self.host().pids.contains_key(&pid) {
            pid += 1;
        }
        self.start_at(pid, job, uid, group, parent);
        pid
    }

    fn start_at(&mut self, pid: u32, job: Option<usize>, uid: u32, group: &str, parent: u32) {
        let random = self.random();
        let catches = random.percent(75);
        let ignores_term = random.percent(25);
        let asleep = if random.percent(15) { random.millis(500, 25_000) } else { random.millis(0, 300) };
        let ticks = u64::try_from((self.time().monotonic()).as_millis() / 10).unwrap();
        let lies = self.defect == Some(Defect::StartTime);
        let host = self.host();
        host.started = ticks.max(host.started + 1);
        let key = ProcessKey { pid, start: host.started };
        // A file that shows the start of the process before it is one whose check has no effect.
        let before = host.processes.iter().rev().find(|process| process.key.pid == pid);
        let shown = before.filter(|_| lies).map_or(key, |before| before.key);
        host.pids.insert(pid, host.processes.len());
        host.processes.push(Process {
            key,
            parent,
            uid,
            job,
            group: group.to_owned(),
            catches,
            ignores_term,
            ended: false,
            zombie: false,
            stopped: false,
            ends_at: None,
            asleep,
            waiting: Vec::new(),
            asked: None,
            saves: None,
            reported: false,
        });
        let folder = host.folder.join(format!("proc/{pid}"));
        std::fs::create_dir_all(&folder).unwrap();
        std::fs::write(folder.join("stat"), stat(shown, parent, 'S', catches)).unwrap();
        std::fs::write(folder.join("cgroup"), format!("0::{group}\n")).unwrap();
        if !host.recent {
            std::fs::write(folder.join("status"), format!("Uid:\t{uid}\t{uid}\t{uid}\t{uid}\n")).unwrap();
        }
        let of = self.host().jobs.iter().position(|job| job.path == group);
        of.into_iter().for_each(|job| self.write_members(job));
        self.note(|| format!("process {pid} of user {uid} starts in {group}"));
    }

    /// Writes who is in the cgroup of a job.
    fn write_members(&self, job: usize) {
        let host = &self.hosts[self.node];
        let path = &host.jobs[job].path;
        let members = host.pids.values().map(|place| &host.processes[*place]);
        let alive = members.filter(|process| process.group == *path && !process.ended);
        let text: String = alive.map(|process| format!("{}\n", process.key.pid)).collect();
        let folder = host.folder.join("cgroup").join(path.trim_start_matches('/'));
        std::fs::write(folder.join("cgroup.events"), format!("populated {}\n", u8::from(!text.is_empty())))
            .unwrap();
        std::fs::write(folder.join("cgroup.procs"), text).unwrap();
    }

    /// A process of the current node ends.
    pub(super) fn end_process(&mut self, place: usize) {
        let (zombie, now) = (self.random().percent(20), self.now);
        let host = self.host();
        let process = &mut host.processes[place];
        if process.ended {
            return;
        }
        (process.ended, process.zombie) = (true, zombie);
        process.saves.take_if(|(_, end)| *end > now);
        let (key, parent, path) = (process.key, process.parent, process.group.clone());
        let folder = host.folder.join(format!("proc/{}", key.pid));
        if zombie {
            std::fs::write(folder.join("stat"), stat(key, parent, 'Z', false)).unwrap();
        } else {
            host.pids.remove(&key.pid);
            std::fs::remove_dir_all(folder).unwrap();
        }
        let job = host.jobs.iter().position(|job| job.path == path);
        if let Some(job) = job {
            self.write_members(job);
            if self.alive(job) == 0 {
                self.host().jobs[job].level = (now, 0, 0);
            }
        }
        self.note(|| format!("process {} has ended", key.pid));
    }

    /// Its parent waits for a process that has ended.
    pub(super) fn reap(&mut self, place: usize) {
        let host = self.host();
        let process = &mut host.processes[place];
        if std::mem::take(&mut process.zombie) {
            let pid = process.key.pid;
            host.pids.remove(&pid);
            std::fs::remove_dir_all(host.folder.join(format!("proc/{pid}"))).unwrap();
        }
    }

    /// The number of living processes of a job of the current node.
    pub(super) fn alive(&self, job: usize) -> usize {
        let host = &self.hosts[self.node];
        host.processes.iter().filter(|process| process.job == Some(job) && !process.ended).count()
    }

    /// Sets how the memory of a job continues, in percent of its limit and percent per second.
    pub(super) fn grow(&mut self, job: usize, percent: u64, rate: i64) {
        let now = self.now;
        let job = &mut self.host().jobs[job];
        let hundredth = job.limit / 100;
        job.level = (now, hundredth * percent, rate * i64::try_from(hundredth).unwrap());
    }

    pub(super) fn members(&self, job: usize) -> Vec<usize> {
        let host = &self.hosts[self.node];
        let own = |place: &usize| host.processes[*place].job == Some(job) && !host.processes[*place].ended;
        (0..host.processes.len()).filter(own).collect()
    }

    /// The processes whose end is due.
    pub(super) fn settle_ends(&mut self) {
        let now = self.now;
        let due = |process: &Process| !process.ended && process.ends_at.is_some_and(|at| at <= now);
        let host = &self.hosts[self.node];
        let due: Vec<usize> =
            (0..host.processes.len()).filter(|place| due(&host.processes[*place])).collect();
        due.into_iter().for_each(|place| self.end_process(place));
    }

    /// A signal reaches a process.
    fn deliver(&mut self, place: usize, signal: u8) {
        let (now, node) = (self.now, self.node);
        let (soon, save) = (self.random().millis(50, 2000), self.random().millis(100, 6000));
        let host = &mut self.hosts[node];
        let process = &mut host.processes[place];
        let held = process.stopped || process.job.is_some_and(|job| host.jobs[job].frozen);
        match signal {
            KILL => {
                let end = now + process.asleep;
                process.ends_at = Some(process.ends_at.map_or(end, |before| before.min(end)));
            }
            STOP => process.stopped = true,
            _ if held => process.waiting.push(signal),
            TERM if process.ignores_term => {}
            TERM => process.ends_at = Some(process.ends_at.map_or(now + soon, |at| at.min(now + soon))),
            USR1 if process.catches => {
                (process.saves, process.reported) = (Some((now, now + save)), false);
                self.saving.push((node, place));
            }
            _ => process.ends_at = Some(now),
        }
    }

    /// Reads the lines that the running daemon has added to its audit log.
    pub(super) fn read_audit(&mut self) {
        let now = self.now;
        let host = self.host();
        let Some(audit) = &host.audit else { return };
        let (lines, end) = audit.since(host.audit_read);
        host.audit_read = end;
        let mut shown = Vec::new();
        for line in lines.split(|byte| *byte == b'\n').filter(|line| !line.is_empty()) {
            let line: Value = serde_json::from_slice(line).unwrap();
            let number = line["number"].as_u64().unwrap_or(0);
            match line["entry"].as_str().unwrap_or_default() {
                "before" => {
                    host.open.insert(number, (now, line["step"].clone()));
                }
                "after" => {
                    host.open.remove(&number);
                    host.done.push(number);
                }
                "reached" => {
                    let processes = line["processes"].as_array().cloned().unwrap_or_default();
                    let keys = processes
                        .iter()
                        .filter_map(|one| Some((one["pid"].as_u64()?, one["start"].as_u64()?)));
                    let keys = keys.map(|(pid, start)| (u32::try_from(pid).unwrap_or(0), start));
                    host.reached.entry(number).or_default().extend(keys);
                }
                _ => {}
            }
            shown.push(line);
        }
        for line in shown {
            self.note(|| format!("audit {}", brief(&line)));
        }
    }

    /// Each signal of a step that has its result is in a line of the processes that it reached.
    pub(super) fn check_reached(&mut self) {
        self.read_audit();
        let host = self.host();
        let (done, reached) = (std::mem::take(&mut host.done), std::mem::take(&mut host.reached));
        let mut lost = None;
        host.acts.retain(|act| {
            if !done.contains(&act.number) {
                return true;
            }
            let known =
                reached.get(&act.number).is_some_and(|keys| keys.contains(&(act.key.pid, act.key.start)));
            if !known {
                lost = Some(act.key.pid);
            }
            false
        });
        if let Some(pid) = lost {
            self.fail(format!("the audit log has no line that a signal reached pid {pid}"));
        }
    }

    /// Steps that began long ago have a result.
    pub(super) fn check_results(&mut self) {
        self.check_reached();
        let now = self.now;
        let old = |begun: &Duration| now - *begun > Duration::from_secs(45);
        let host = self.host();
        let lost = host
            .open
            .iter()
            .find(|(_, (begun, _))| old(begun))
            .map(|(number, (_, step))| (*number, step.clone()));
        if let Some((number, step)) = lost {
            self.fail(format!("the audit log has no result of step {number}: {step}"));
        }
    }

    /// The daemon of the current node ends; its log is gone.
    pub(super) fn forget_log(&mut self) {
        let host = self.host();
        (host.audit, host.audit_read) = (None, 0);
        host.open.clear();
        host.acts.clear();
        host.done.clear();
        host.reached.clear();
    }

    /// What the audit log has before a signal to a process: the number of a step on it.
    fn step_on(&mut self, place: usize, signal: u8) -> Option<u64> {
        self.read_audit();
        let host = &self.hosts[self.node];
        let process = &host.processes[place];
        let same = |value: &Value, key: ProcessKey| {
            value["pid"].as_u64() == Some(u64::from(key.pid)) && value["start"].as_u64() == Some(key.start)
        };
        let family = |value: &Value| {
            let own = |one: &Process| same(value, one.key) && one.job == process.job;
            host.processes.iter().any(own)
        };
        host.open.iter().rev().find_map(|(number, (_, step))| {
            let names = match step["do"].as_str()? {
                "signal" => {
                    same(&step["process"], process.key) && step["signal"].as_u64() == Some(u64::from(signal))
                }
                "kill_tree" => {
                    signal != USR1 && signal != TERM && step["roots"].as_array()?.iter().any(family)
                }
                "kill_group" => signal == KILL && step["group"]["path"].as_str() == Some(&process.group),
                _ => false,
            };
            names.then_some(*number)
        })
    }

    /// Checks a signal that is about to reach a process.
    fn check_signal(&mut self, place: usize, signal: u8) {
        let now = self.now;
        let number = self.step_on(place, signal);
        let (node, host) = (self.node, &mut self.hosts[self.node]);
        let process = &mut host.processes[place];
        let (key, uid) = (process.key, process.uid);
        let job = process.job.map(|job| &host.jobs[job]);
        let allowed = job.is_some_and(|job| job.enforced && job.uid == uid);
        let mut wrong = None;
        if !allowed {
            wrong = Some(format!("signal {signal} to pid {} of user {uid}, outside of every scope", key.pid));
        } else if signal == USR1 && !process.catches {
            wrong = Some(format!("a checkpoint signal to pid {} without a handler", key.pid));
        } else if number.is_none() {
            wrong =
                Some(format!("signal {signal} to pid {} without a line of the audit log before it", key.pid));
        }
        if signal == USR1 {
            let interval = job.map_or(Duration::ZERO, |job| job.request_interval);
            let before = process.asked.replace(now);
            let remembered = |before: &Duration| host.forgot.is_none_or(|forgot| forgot < *before);
            if let Some(before) = before.filter(|before| now - *before < interval && remembered(before)) {
                let apart = (now - before).as_secs_f64();
                wrong = Some(format!("two checkpoint requests to pid {} within {apart:.1} s", key.pid));
            }
            if host.disk.is_good() {
                host.doubtful = false;
            }
        }
        if let Some(number) = number.filter(|_| signal != STOP) {
            host.acts.push(Act { key, number });
        }
        self.note(|| format!("signal {signal} reaches pid {} (node {node})", key.pid));
        if let Some(wrong) = wrong {
            self.fail(wrong);
        }
    }

    /// Takes the tasks of a node with a name that begins like this out of the list.
    fn take_tasks(&mut self, names: &[&str]) -> Vec<(usize, &'static str, Box<dyn Task>)> {
        let node = self.node;
        self.tasks.extract_if(.., |(of, name, _)| *of == node && names.contains(name)).collect()
    }

    /// The daemon of the current node ends, and its threads with it.
    pub(super) fn drop_tasks(&mut self) -> usize {
        let node = self.node;
        self.tasks.extract_if(.., |(of, _, _)| *of == node).count()
    }

    /// The disk of the current node works again.
    pub(super) fn repair_disk(&mut self) {
        self.note(|| "the disk works again".to_owned());
        self.host().disk = Disk { delay: Duration::from_millis(1), ..Disk::default() };
    }

    /// Stops what happens by itself: nothing sleeps and no process is stopped by its user.
    pub(super) fn heal(&mut self) {
        let now = self.now;
        self.faults = false;
        for host in &mut self.hosts {
            host.disk = Disk { delay: Duration::from_millis(1), ..Disk::default() };
            for process in &mut host.processes {
                process.asleep = process.asleep.min(Duration::from_millis(300));
                if process.ends_at.is_some() {
                    process.ends_at = Some(now);
                }
            }
        }
    }
}

/// Carries out what tasks of the current node have to do.
pub(super) fn run_tasks(machine: &Machine, names: &[&str]) {
    let (mut tasks, most) = {
        let mut cluster = machine.0.borrow_mut();
        cluster.in_task = true;
        // What fails is tried again later.
        (cluster.take_tasks(names), if cluster.host().disk.full { 1 } else { 1000 })
    };
    for (_, _, task) in &mut tasks {
        for _ in 0..most {
            if !task.step(false) {
                break;
            }
        }
    }
    let mut cluster = machine.0.borrow_mut();
    cluster.tasks.append(&mut tasks);
    cluster.in_task = false;
}

/// The machine of this thread.
pub(super) struct Machine(pub(super) RefCell<Cluster>);

/// A line of the audit log in few words.
fn brief(line: &Value) -> String {
    match line["entry"].as_str().unwrap_or_default() {
        "transition" => {
            format!("{} {}: {} → {}: {}", line["target"], line["mode"], line["from"], line["to"], line["why"])
        }
        "before" => format!("step {}: {}", line["number"], line["step"]),
        "after" => format!("step {} has ended: {} {}", line["number"], line["outcome"], line["error"]),
        other => format!("{other} {} {}", line["number"], line["processes"]),
    }
}

/// The text of `/proc/PID/stat` (proc_pid_stat(5)).
fn stat(key: ProcessKey, parent: u32, state: char, catches: bool) -> String {
    let ProcessKey { pid, start } = key;
    let caught = if catches { 1 << (USR1 - 1) } else { 0 };
    format!(
        "{pid} (python) {state} {parent} {pid} {pid} 0 -1 4194304 9 0 0 0 1 0 0 0 20 0 1 0 {start} 8081408 10 \
         18446744073709551615 1 1 0 0 0 0 0 0 {caught} 0 0 0 17 1 0 0 0 0 0\n"
    )
}

/// The text of `memory.current`, of one length so that it is written at once.
fn usage(bytes: u64) -> String {
    format!("{bytes:020}\n")
}

/// The folder of all clusters of this process, in memory.
pub(super) fn root() -> tempfile::TempDir {
    let memory = Path::new("/dev/shm");
    tempfile::tempdir_in(if memory.is_dir() { memory } else { Path::new("/tmp") }).unwrap()
}
