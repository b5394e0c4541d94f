//! Plays the events of a cluster: rounds, samples, requests between nodes, and faults.

mod requests;

use std::cell::RefCell;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use std::path::Path;
use std::rc::Rc;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use self::requests::{Message, Question, Reply};
use super::Defect;
use super::machine::{Cluster, Host, Job, Machine, Random, run_tasks};
use super::observe::{PLAYED, Played};
use crate::config::Config;
use crate::events::Events;
use crate::host::roots::Roots;
use crate::host::{clock, testing};
use crate::model::checkpoint::{CheckpointState, Checkpoints};
use crate::model::facts::{
    EnvironmentRank, Facts, Membership, ProcessRow, ProcessTable, Run, Workload, WorkloadNames,
};
use crate::model::ids::{Anchor, WorkloadKey};
use crate::model::outlook::{Conclusion, Forecast, Outlook, Resource};
use crate::model::time::Timestamp;
use crate::model::units::{Bytes, real};
use crate::protection::guard::guard_loop::GuardLoop;
use crate::protection::guard::run_receiver::RunReceiver;
use crate::protection::guard::run_requests::RunRequests;
use crate::protection::guard::{Feed, Guard, GuardContext, round};
use crate::protection::options::Protection;
use crate::protection::policy::State;
use crate::protection::record::Records;
use crate::protection::types::run_request::{RunAnswer, RunOutcome};

const TOKEN: &str = "a token of all nodes";
/// Time that a node has to answer, at both ends.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(2);
/// Time until every target is at rest after the last fault: more than all time limits together.
const REST: Duration = Duration::from_secs(150);

#[derive(Debug)]
enum Event {
    /// A round of the guard, if it is still the next one.
    Round(u64),
    Sample,
    /// The data of a sample reach the guard.
    Look(u64, Box<(Facts, Outlook)>),
    /// Threads that write.
    Disk,
    /// Threads that carry out steps.
    Steps,
    Grow {
        job: usize,
        percent: u64,
        rate: i64,
    },
    /// What no job holds grows.
    GrowOthers {
        percent: u64,
        rate: i64,
    },
    /// The processes of the job begin again.
    Respawn(usize),
    /// Processes end and start.
    Churn,
    Stop {
        gracefully: bool,
    },
    Start,
    DiskFails(u64),
    DiskWorks,
    /// No message leaves or reaches the node.
    Cut(bool),
    ClockSteps(i64),
    /// A request reaches the node.
    Request {
        ask: Option<u64>,
        message: Message,
    },
    /// An answer reaches the node that asked.
    Answer {
        ask: u64,
        from: usize,
        answer: RunAnswer,
    },
    /// The time limit of a question is over.
    Unanswered(u64),
}

impl Event {
    /// Whether it does not happen any more once all faults have ended.
    fn is_fault(&self) -> bool {
        matches!(
            self,
            Self::Grow { .. }
                | Self::GrowOthers { .. }
                | Self::Stop { .. }
                | Self::DiskFails(_)
                | Self::Cut(_)
        )
    }
}

/// A running daemon.
struct Daemon {
    watch: GuardLoop,
    feed: Feed,
    receiver: RunReceiver,
    checkpoints: Arc<Checkpoints>,
    due: Timestamp,
    replies: Vec<Reply>,
    /// Held until the daemon ends.
    _records: Arc<Records>,
}

#[derive(Default)]
struct Node {
    daemon: Option<Daemon>,
    /// Counts daemons.
    life: u64,
    /// Counts rounds that were planned.
    rounds: u64,
    busy: bool,
    cut: bool,
    config: usize,
}

type Queue = BinaryHeap<Reverse<(Duration, u64)>>;

struct World {
    machine: Rc<Machine>,
    nodes: Vec<Node>,
    queue: Queue,
    events: BTreeMap<u64, (usize, Event)>,
    count: u64,
    questions: BTreeMap<u64, Question>,
    healed: bool,
    end: Duration,
}

/// Ends what the thread plays, also where a check panics.
struct Ends;

impl Drop for Ends {
    fn drop(&mut self) {
        testing::simulate(None);
        PLAYED.with_borrow_mut(|played| *played = Played::default());
    }
}

fn token() -> &'static Path {
    static FOLDER: OnceLock<(tempfile::TempDir, std::path::PathBuf)> = OnceLock::new();
    let (_, path) = FOLDER.get_or_init(|| {
        use std::os::unix::fs::PermissionsExt as _;
        let folder = super::machine::root();
        let path = folder.path().join("token");
        std::fs::write(&path, TOKEN).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
        (folder, path)
    });
    path
}

/// The interval between two requests that the configurations have, of `run` and of `local`.
const INTERVALS: [Duration; 2] = [Duration::from_secs(40), Duration::from_secs(25)];
/// Whether the target `local` acts, by configuration.
const LOCAL_ACTS: [bool; 4] = [true, true, false, true];

/// Whether the target `local` limits the memory of its processes, to what their cgroup has, by configuration.
const OWN_LIMIT: [bool; 4] = [true, false, false, false];

/// The configurations of nodes.
fn configurations() -> &'static [(Config, Protection)] {
    static ALL: OnceLock<Vec<(Config, Protection)>> = OnceLock::new();
    ALL.get_or_init(|| {
        let common = "allow_users: ['1001', '1002'], for: 1s, clear_for: 3s, term_grace: 3s, verify_timeout: 3s, cooldown: 3s, \
                      max_kills_per_hour: 50";
        let asks = "scope: run, grace: 8s, longest_grace: 12s, request_interval: 40s";
        let alone = "grace: 6s, longest_grace: 12s, request_interval: 25s";
        let texts = [
            [
                format!("checkpoint: {{{asks}}}"),
                format!("memory_limit: 1GiB, checkpoint: {{{alone}}}"),
            ],
            [
                format!("max_state: checkpoint, checkpoint: {{{asks}}}"),
                format!("freeze: true, hook: {{wait: 2s}}, checkpoint: {{{alone}}}"),
            ],
            [
                format!("max_state: term, checkpoint: {{{asks}, exit_saves: yes}}"),
                format!("mode: observe, checkpoint: {{{alone}}}"),
            ],
            [
                format!("checkpoint: {{{asks}, ranks: all}}"),
                format!("victims: largest, raise: {{to: 1.5GiB}}, checkpoint: {{{alone}}}"),
            ],
        ];
        let schema = crate::app::schema();
        let parse = |[run, local]: [String; 2]| {
            let text = format!(
                "protection: {{mode: enforce, max_kills_per_hour: 50, peers: {{from: static, hosts: [other], token_file: '{}'}}, \
                 targets: [{{name: run, workload: 'run-*', {common}, {run}}}, {{name: local, workload: 'local-*', {common}, {local}}}]}}",
                token().display()
            );
            let config = crate::config::parse_str(&text, Path::new("f"), &schema, &[]).unwrap();
            let protection = Protection::new(&config.modules["protection"], config.sampling.interval);
            assert_eq!(protection.targets.len(), 2);
            (config, protection)
        };
        texts.into_iter().map(parse).collect()
    })
}

/// Seeds from here on play short episodes: fewer nodes on average, and faults within less time.
const SHORT: u64 = 1_000_000;

/// Plays a seed; returns what is wrong, with the events before it where these are recorded.
pub(super) fn play(seed: u64, defect: Option<Defect>, trace: bool) -> Option<(String, Vec<String>)> {
    let cluster = run(seed, defect, trace);
    cluster.found.map(|what| (what, cluster.trace.unwrap_or_default()))
}

/// All events of a seed.
pub(super) fn record(seed: u64) -> Vec<String> {
    run(seed, None, true).trace.unwrap_or_default()
}

fn run(seed: u64, defect: Option<Defect>, trace: bool) -> Cluster {
    let folder = super::machine::root();
    let mut cluster = Cluster::default();
    (cluster.random, cluster.defect, cluster.faults) = (Some(Random(seed)), defect, true);
    cluster.trace = trace.then(Vec::new);
    let machine = Rc::new(Machine(RefCell::new(cluster)));
    testing::simulate(Some(Rc::clone(&machine) as _));
    PLAYED.with_borrow_mut(|played| played.machine = Some(Rc::clone(&machine)));
    let ends = Ends;
    let mut world = World::new(Rc::clone(&machine), folder.path(), seed >= SHORT);
    world.play();
    drop(world);
    drop(ends);
    Rc::into_inner(machine).unwrap().0.into_inner()
}

impl World {
    fn new(machine: Rc<Machine>, folder: &Path, short: bool) -> Self {
        let mut world = Self {
            machine,
            nodes: Vec::new(),
            queue: Queue::new(),
            events: BTreeMap::new(),
            count: 0,
            questions: BTreeMap::new(),
            healed: false,
            end: Duration::ZERO,
        };
        let count = match world.random(|random| random.below(if short { 400 } else { 40 })) {
            0 => 64,
            1..5 => 9 + world.random(|random| random.below(16)),
            _ => 2 + world.random(|random| random.below(if short { 3 } else { 7 })),
        };
        let (least, most) = if short { (15_000, 50_000) } else { (60_000, 150_000) };
        world.end = world.random(|random| random.millis(least, most));
        for node in 0..usize::try_from(count).unwrap() {
            let config = usize::try_from(world.random(|random| random.below(4))).unwrap();
            world.nodes.push(Node { config, ..Node::default() });
            world.machine.0.borrow_mut().add_host(folder.join(format!("{node}")));
            world.furnish(node);
            world.plan_faults(node);
        }
        world
    }

    fn random<T>(&self, draw: impl FnOnce(&mut Random) -> T) -> T {
        draw(self.machine.0.borrow_mut().random())
    }

    fn percent(&self, share: u64) -> bool {
        self.random(|random| random.percent(share))
    }

    fn now(&self) -> Duration {
        self.machine.0.borrow().now
    }

    fn at(&mut self, time: Duration, node: usize, event: Event) {
        self.count += 1;
        self.queue.push(Reverse((time, self.count)));
        self.events.insert(self.count, (node, event));
    }

    fn after(&mut self, time: Duration, node: usize, event: Event) {
        self.at(self.now() + time, node, event);
    }

    /// The jobs of a node and their processes: a part of a run, and jobs of its own.
    fn furnish(&mut self, node: usize) {
        let config = self.nodes[node].config;
        let locals = self.random(|random| random.below(3));
        let mut jobs = Vec::new();
        // Another user gives a run of its own the same name.
        if self.percent(90) {
            jobs.push((
                "run-0".to_owned(),
                if self.percent(15) { 1002 } else { 1001 },
                Some("r".to_owned()),
                true,
            ));
        }
        for local in 0..locals {
            let uid = 1001 + u32::from(self.percent(30));
            jobs.push((format!("local-{local}"), uid, None, LOCAL_ACTS[config]));
        }
        let mut cluster = self.machine.0.borrow_mut();
        cluster.node = node;
        for (name, uid, run, acts) in jobs {
            let interval = INTERVALS[usize::from(run.is_none())];
            let has_own_limit = run.is_none() && OWN_LIMIT[config];
            cluster.add_job(&name, uid, run, acts, interval, has_own_limit);
        }
        let count = cluster.host().jobs.len();
        (0..count).for_each(|job| spawn(&mut cluster, job));
        cluster.settle_memory();
        for _ in 0..cluster.random().below(3) {
            cluster.start_process(None, 1003, "/other", 1);
        }
    }

    fn plan_faults(&mut self, node: usize) {
        let end = u64::try_from(self.end.as_millis()).unwrap();
        let jobs = self.machine.0.borrow().hosts[node].jobs.len();
        let time = |world: &Self| world.random(|random| random.millis(3_000, end));
        let start = self.random(|random| random.millis(0, 500));
        self.at(start, node, Event::Start);
        self.at(start, node, Event::Churn);
        for job in 0..jobs {
            for _ in 0..self.random(|random| random.below(4)) {
                let begin = time(self);
                let (percent, rate) = match self.random(|random| random.below(4)) {
                    0 => (self.random(|random| 90 + random.below(40)), 0),
                    1 => (60, 20 + i64::try_from(self.random(|random| random.below(60))).unwrap()),
                    _ => (80, 1 + i64::try_from(self.random(|random| random.below(6))).unwrap()),
                };
                self.at(begin, node, Event::Grow { job, percent, rate });
                if self.percent(60) {
                    let later = begin + self.random(|random| random.millis(2_000, 30_000));
                    self.at(later, node, Event::Grow { job, percent: 30, rate: 0 });
                }
            }
        }
        while self.percent(40) {
            let begin = time(self);
            let (percent, rate) = match self.random(|random| random.below(2)) {
                0 => (self.random(|random| 80 + random.below(20)), 0),
                _ => (60, 1 + i64::try_from(self.random(|random| random.below(10))).unwrap()),
            };
            self.at(begin, node, Event::GrowOthers { percent, rate });
            if self.percent(60) {
                let later = begin + self.random(|random| random.millis(2_000, 30_000));
                self.at(later, node, Event::GrowOthers { percent: 20, rate: 0 });
            }
        }
        while self.percent(40) {
            let stop = time(self);
            let start = stop + self.random(|random| random.millis(100, 12_000));
            let gracefully = self.percent(40);
            self.at(stop, node, Event::Stop { gracefully });
            self.at(start, node, Event::Start);
        }
        if self.percent(25) {
            let (begin, kind) = (time(self), self.random(|random| random.below(3)));
            let end = begin + self.random(|random| random.millis(1_000, 20_000));
            self.at(begin, node, Event::DiskFails(kind));
            self.at(end, node, Event::DiskWorks);
        }
        if self.percent(25) {
            let begin = time(self);
            let end = begin + self.random(|random| random.millis(1_000, 30_000));
            self.at(begin, node, Event::Cut(true));
            self.at(end, node, Event::Cut(false));
        }
        if self.percent(10) {
            let (begin, by) =
                (time(self), self.random(|random| 300 - i64::try_from(random.below(600)).unwrap()));
            self.at(begin, node, Event::ClockSteps(by));
        }
    }

    fn play(&mut self) {
        while let Some(Reverse((time, number))) = self.queue.pop() {
            let Some((node, event)) = self.events.remove(&number) else { continue };
            {
                let mut cluster = self.machine.0.borrow_mut();
                cluster.now = cluster.now.max(time);
                cluster.node = node;
            }
            if time >= self.end && !self.healed {
                self.heal();
                if event.is_fault() {
                    continue;
                }
            }
            self.machine.0.borrow_mut().node = node;
            self.happen(node, event);
            self.follow();
            if self.machine.0.borrow().found.is_some() {
                return;
            }
            if self.healed
                && self.now() >= self.end + Duration::from_secs(20)
                && (self.rests().is_none() || self.now() >= self.end + REST)
            {
                break;
            }
        }
        let waits = self.rests();
        for node in 0..self.nodes.len() {
            let mut cluster = self.machine.0.borrow_mut();
            cluster.node = node;
            cluster.check_results();
        }
        if let Some((node, what)) = waits {
            let mut cluster = self.machine.0.borrow_mut();
            cluster.node = node;
            cluster.fail(what);
        }
    }

    /// All faults end.
    fn heal(&mut self) {
        self.healed = true;
        self.machine.0.borrow_mut().note(|| "all faults end".to_owned());
        self.machine.0.borrow_mut().heal();
        self.events.retain(|_, (_, event)| !event.is_fault() && !matches!(event, Event::Start));
        for node in 0..self.nodes.len() {
            self.nodes[node].cut = false;
            if self.nodes[node].daemon.is_none() {
                self.after(Duration::ZERO, node, Event::Start);
            }
            let mut cluster = self.machine.0.borrow_mut();
            cluster.node = node;
            (0..cluster.host().jobs.len()).for_each(|job| cluster.grow(job, 20, 0));
            cluster.grow_others(10, 0);
        }
    }

    /// What is not at rest after all faults have ended.
    fn rests(&self) -> Option<(usize, String)> {
        let cluster = self.machine.0.borrow();
        self.nodes.iter().enumerate().find_map(|(node, own)| {
            let host = &cluster.hosts[node];
            if let Some(job) = host.jobs.iter().find(|job| job.frozen) {
                return Some((node, format!("{} is frozen", job.name)));
            }
            if let Some(process) = host.processes.iter().find(|process| process.stopped && !process.ended) {
                return Some((node, format!("pid {} is stopped", process.key.pid)));
            }
            let Some(daemon) = &own.daemon else { return Some((node, "no daemon runs".to_owned())) };
            let report = daemon.feed.shared.newest();
            report.slots.iter().enumerate().find_map(|(slot, report)| {
                let report = (*report)?;
                let limited = report.used_up.target || report.used_up.host;
                let rests = match report.state {
                    State::Ok => true,
                    State::Disarmed => limited,
                    _ => false,
                };
                (!rests).then(|| {
                    (node, format!("the target in slot {slot} waits for ever in {}", report.state.label()))
                })
            })
        })
    }

    fn happen(&mut self, node: usize, event: Event) {
        match event {
            Event::Round(number) if number == self.nodes[node].rounds => self.round(node),
            Event::Round(_) => {}
            Event::Sample => self.sample(node),
            Event::Look(life, sample) => {
                let (facts, outlook) = *sample;
                let own = &mut self.nodes[node];
                if let Some(daemon) = own.daemon.as_mut().filter(|_| own.life == life) {
                    daemon.feed.look_at(clock::now(), &outlook, &facts);
                }
            }
            Event::Disk => {
                self.nodes[node].busy = false;
                let hangs = self.machine.0.borrow_mut().host().disk.hangs;
                if !hangs {
                    run_tasks(&self.machine, &["remember", "audit", "paused"]);
                }
            }
            Event::Steps => run_tasks(&self.machine, &["steps", "release"]),
            Event::Grow { job, percent, rate } => {
                let mut cluster = self.machine.0.borrow_mut();
                cluster.note(|| format!("job {job} uses {percent} % and {rate} % more each second"));
                cluster.grow(job, percent, rate);
            }
            Event::GrowOthers { percent, rate } => {
                let mut cluster = self.machine.0.borrow_mut();
                cluster.note(|| format!("what no job holds is {percent} % and {rate} % more each second"));
                cluster.grow_others(percent, rate);
            }
            Event::Respawn(job) => spawn(&mut self.machine.0.borrow_mut(), job),
            Event::Churn => self.churn(node),
            Event::Stop { gracefully } => self.stop(node, gracefully),
            Event::Start => self.start(node),
            Event::DiskFails(kind) => {
                let mut cluster = self.machine.0.borrow_mut();
                cluster.note(|| {
                    format!("the disk fails: {}", ["full", "hangs", "slow"][usize::try_from(kind).unwrap()])
                });
                let delay = cluster.random().millis(20, 3_000);
                cluster.host().doubtful = true;
                let disk = &mut cluster.host().disk;
                (disk.full, disk.hangs) = (kind == 0, kind == 1);
                if kind == 2 {
                    disk.delay = delay;
                }
            }
            Event::DiskWorks => self.machine.0.borrow_mut().repair_disk(),
            Event::Cut(cut) => {
                self.machine.0.borrow_mut().note(|| format!("cut off: {cut}"));
                self.nodes[node].cut = cut;
            }
            Event::ClockSteps(by) => {
                let mut cluster = self.machine.0.borrow_mut();
                cluster.note(|| format!("the clock steps by {by} s"));
                cluster.host().skew += by;
            }
            Event::Request { ask, message } => self.request(node, ask, &message),
            Event::Answer { ask, from, answer } => self.answer(ask, from, answer),
            Event::Unanswered(ask) => self.conclude(ask),
        }
    }

    /// What follows each event of a node: threads that have something to do, and processes that begin to save.
    fn follow(&mut self) {
        let saving = {
            let mut cluster = self.machine.0.borrow_mut();
            cluster.check_reached();
            std::mem::take(&mut cluster.saving)
        };
        for (of, place) in saving {
            let Some(daemon) = &self.nodes[of].daemon else { continue };
            let key = self.machine.0.borrow().hosts[of].processes[place].key;
            daemon.checkpoints.note(key, CheckpointState::Saving, nanos(clock::now()));
            // The daemon is killed while its request is answered.
            if !self.healed && self.percent(10) {
                let (stop, pause) =
                    self.random(|random| (random.millis(50, 4_000), random.millis(100, 3_000)));
                self.after(stop, of, Event::Stop { gracefully: false });
                self.after(stop + pause, of, Event::Start);
            }
        }
        let queries = PLAYED.with_borrow_mut(|played| std::mem::take(&mut played.outbox));
        for (from, ticket, query) in queries {
            self.ask(from, ticket, query);
        }
    }

    /// Plans the next round of a node, in place of the one before.
    fn wake(&mut self, node: usize, pause: Duration) {
        let delay = match self.random(|random| random.below(100)) {
            0..5 => self.random(|random| random.millis(30, 600)),
            _ if pause <= Duration::from_millis(1) => self.random(|random| random.millis(0, 3)),
            _ if pause <= Duration::from_millis(10) => self.random(|random| random.millis(10, 200)),
            _ => self.random(|random| random.millis(0, 50)),
        };
        self.nodes[node].rounds += 1;
        let number = self.nodes[node].rounds;
        self.after(pause + delay, node, Event::Round(number));
    }

    fn round(&mut self, node: usize) {
        {
            let mut cluster = self.machine.0.borrow_mut();
            cluster.settle_ends();
            cluster.settle_memory();
        }
        self.report_saved(node);
        let Some(daemon) = &mut self.nodes[node].daemon else { return };
        let pause = round(&mut daemon.watch, &daemon.feed.shared, daemon.due);
        daemon.due = clock::now().plus(pause);
        let now = self.machine.0.borrow().now;
        let mut answers = Vec::new();
        daemon.replies.retain(|reply| {
            let answer = match reply.answer.try_recv() {
                Ok(answer) => answer,
                Err(_) if now - reply.since >= ANSWER_TIMEOUT => (RunOutcome::Busy, 0),
                Err(_) => return true,
            };
            answers.push((reply.ask, reply.to, answer));
            false
        });
        for (ask, to, (outcome, processes)) in answers {
            self.send_answer(node, ask, to, outcome, processes);
        }
        self.wake(node, pause);
        if !std::mem::replace(&mut self.nodes[node].busy, true) {
            let delay = self.machine.0.borrow_mut().host().disk.delay;
            self.after(delay, node, Event::Disk);
        }
        let steps = match self.random(|random| random.below(20)) {
            0 => self.random(|random| random.millis(500, 4_000)),
            _ => self.random(|random| random.millis(0, 40)),
        };
        if pause <= Duration::from_millis(100) {
            self.after(steps, node, Event::Steps);
        }
        let mut cluster = self.machine.0.borrow_mut();
        if cluster.faults && cluster.random().percent(1) {
            cluster.check_results();
        }
    }

    /// Processes that have saved their checkpoint report it, and some end.
    fn report_saved(&mut self, node: usize) {
        let Some(daemon) = &self.nodes[node].daemon else { return };
        let mut cluster = self.machine.0.borrow_mut();
        let now = cluster.now;
        let at = nanos(cluster.time());
        for process in &mut cluster.host().processes {
            let saved = process.saves.is_some_and(|(since, end)| since < now && end <= now);
            if process.ended || process.reported || !saved {
                continue;
            }
            // A daemon that has started since does not know that it saves.
            process.reported = true;
            let known = daemon.checkpoints.of(process.key);
            if known.is_some_and(|report| report.state == CheckpointState::Saving) {
                daemon.checkpoints.note(process.key, CheckpointState::Saved, at);
            }
        }
    }

    fn sample(&mut self, node: usize) {
        let pause = match self.random(|random| random.below(20)) {
            0 => self.random(|random| random.millis(1_000, 3_500)),
            _ => self.random(|random| random.millis(950, 1_050)),
        };
        self.after(pause, node, Event::Sample);
        let sample = {
            let mut cluster = self.machine.0.borrow_mut();
            cluster.settle_ends();
            let zombies: Vec<usize> = (0..cluster.host().processes.len())
                .filter(|place| cluster.host().processes[*place].zombie)
                .collect();
            for zombie in zombies {
                if cluster.random().percent(60) {
                    cluster.reap(zombie);
                }
            }
            (facts(&cluster), outlook(&cluster.hosts[node]))
        };
        let jobs = self.machine.0.borrow().hosts[node].jobs.len();
        for job in 0..jobs {
            if self.machine.0.borrow().alive(job) == 0 && self.percent(20) {
                let later = self.random(|random| random.millis(0, 5_000));
                self.after(later, node, Event::Respawn(job));
            }
        }
        if self.nodes[node].daemon.is_some() {
            let took =
                if self.percent(90) { Duration::ZERO } else { self.random(|random| random.millis(1, 1_500)) };
            let life = self.nodes[node].life;
            self.after(took, node, Event::Look(life, Box::new(sample)));
        }
    }

    fn churn(&mut self, node: usize) {
        if self.healed {
            return;
        }
        let next = self.random(|random| random.millis(500, 6_000));
        self.after(next, node, Event::Churn);
        let mut cluster = self.machine.0.borrow_mut();
        if cluster.host().jobs.is_empty() {
            return;
        }
        let jobs = cluster.host().jobs.len() as u64;
        let job = usize::try_from(cluster.random().below(jobs)).unwrap();
        let members = cluster.members(job);
        match cluster.random().below(4) {
            // A worker ends and another starts.
            0 if members.len() > 1 => {
                let last = members[members.len() - 1];
                cluster.end_process(last);
                let (uid, path) = (cluster.host().jobs[job].uid, cluster.host().jobs[job].path.clone());
                let parent = cluster.host().processes[members[0]].key.pid;
                cluster.start_process(Some(job), uid, &path, parent);
            }
            // A process of another user comes into the cgroup of the job.
            1 if cluster.random().percent(40) => {
                let path = cluster.host().jobs[job].path.clone();
                cluster.start_process(None, 1003, &path, 1);
            }
            2 => {
                let uid = 1001 + u32::try_from(cluster.random().below(3)).unwrap();
                cluster.start_process(None, uid, "/other", 1);
            }
            _ => {
                let stranger = |place: &usize| {
                    let process = &cluster.hosts[node].processes[*place];
                    process.job.is_none() && !process.ended
                };
                let stranger = (0..cluster.hosts[node].processes.len()).find(stranger);
                stranger.into_iter().for_each(|place| cluster.end_process(place));
            }
        }
    }

    /// Starts the daemon of a node.
    fn start(&mut self, node: usize) {
        if self.nodes[node].daemon.is_some() {
            return;
        }
        self.nodes[node].life += 1;
        let (config, protection) = &configurations()[self.nodes[node].config];
        let folder = {
            let mut cluster = self.machine.0.borrow_mut();
            cluster.note(|| "the daemon starts".to_owned());
            let folder = cluster.host().folder.clone();
            if cluster.defect == Some(Defect::Restart) {
                let _ = std::fs::remove_file(folder.join("state/protection.jsonl"));
            }
            folder
        };
        let roots = Roots::under(&folder);
        let mut config = config.clone();
        config.state_file = Some(folder.join("state/state.json"));
        (config.paths.proc, config.paths.cgroup) = (roots.proc.clone(), roots.cgroup.clone());
        let records = Arc::new(Records::start(&config, Arc::new(Events::new())).unwrap());
        let run_requests = Arc::new(RunRequests::new(clock::now()));
        let receiver = RunReceiver::new(Arc::clone(&run_requests));
        receiver.configure(Some(token().to_owned()), false);
        let checkpoints = Arc::new(Checkpoints::new());
        let context = GuardContext {
            own: |_| None,
            records: Arc::clone(&records),
            alerts: Arc::default(),
            run_requests,
            checkpoints: Arc::clone(&checkpoints),
        };
        let (watch, feed) = Guard::prepare(protection, &roots, &context).unwrap().unwrap();
        {
            let mut cluster = self.machine.0.borrow_mut();
            cluster.host().audit = Some(records.audit().clone());
        }
        let due = clock::now();
        self.nodes[node].daemon =
            Some(Daemon { watch, feed, receiver, checkpoints, due, replies: Vec::new(), _records: records });
        run_tasks(&self.machine, &["paused"]);
        if self.nodes[node].life == 1 {
            self.after(Duration::ZERO, node, Event::Sample);
        }
        self.wake(node, Duration::ZERO);
    }

    /// The daemon of a node ends, or is killed.
    fn stop(&mut self, node: usize, gracefully: bool) {
        let Some(mut daemon) = self.nodes[node].daemon.take() else { return };
        self.machine.0.borrow_mut().note(|| format!("the daemon ends, gracefully: {gracefully}"));
        if gracefully {
            daemon.watch.finish(&clock::now);
            run_tasks(&self.machine, &["remember", "audit"]);
        }
        let mut cluster = self.machine.0.borrow_mut();
        cluster.check_reached();
        cluster.forget_log();
        let (now, torn) = (cluster.now, !gracefully && cluster.random().percent(30));
        if std::mem::take(&mut cluster.host().doubtful) {
            cluster.host().forgot = Some(now);
            cluster.host().doubtful = !cluster.host().disk.is_good();
        }
        let dropped = cluster.drop_tasks();
        let state = cluster.host().folder.join("state/protection.jsonl");
        drop(cluster);
        // Handles of processes are dropped, which asks the machine for nothing.
        drop((dropped, daemon));
        if torn {
            // A line that was being written.
            use std::io::Write as _;
            let file = std::fs::File::options().append(true).open(state);
            file.and_then(|mut file| file.write_all(b"{\"boot\":\"boot\",\"boot_mil")).unwrap_or(());
        }
        self.nodes[node].busy = false;
    }
}

/// Starts the processes of a job: a launcher and ranks.
fn spawn(cluster: &mut Cluster, job: usize) {
    if cluster.alive(job) > 0 {
        return;
    }
    let (uid, path) = (cluster.host().jobs[job].uid, cluster.host().jobs[job].path.clone());
    let launcher = cluster.start_process(Some(job), uid, &path, 1);
    for _ in 0..1 + cluster.random().below(3) {
        cluster.start_process(Some(job), uid, &path, launcher);
    }
    cluster.grow(job, 25, 0);
}

fn nanos(at: Timestamp) -> u64 {
    u64::try_from(at.monotonic().as_nanos()).unwrap()
}

/// What analyzers find: what each job holds, and that no exhaustion is predicted.
fn outlook(host: &Host) -> Outlook {
    if !host.memory.has_outlook {
        return Outlook::default();
    }
    let conclusion = |job: &Job| Conclusion {
        identity: Some(Resource::Workload(key(job))),
        forecast: Some(Forecast { used_bytes: real(job.shown), ..Forecast::default() }),
        ..Conclusion::default()
    };
    Outlook {
        conclusions: host.jobs.iter().map(conclusion).collect(),
        has_forecasts: true,
        ..Outlook::default()
    }
}

fn key(job: &Job) -> WorkloadKey {
    WorkloadKey { anchor: Anchor::Group(job.path.as_str().into()), user: None }
}

/// What a sampler finds on the current node now.
fn facts(cluster: &Cluster) -> Facts {
    let host = &cluster.hosts[cluster.node];
    let mut rows: Vec<&super::machine::Process> =
        host.processes.iter().filter(|process| !process.ended || process.zombie).collect();
    rows.sort_by_key(|process| process.key.pid);
    let workloads: Vec<Arc<Workload>> = host
        .jobs
        .iter()
        .map(|job| {
            let name = crate::model::label::Label::from(job.name.as_str());
            Arc::new(Workload { key: key(job), plain: name.clone(), name, user: job.uid })
        })
        .collect();
    let names = host.jobs.iter().map(|job| {
        let run = Run { name: job.run.as_deref().unwrap_or_default().into(), configured: false };
        Arc::new(WorkloadNames {
            user: format!("user-{}", job.uid).as_str().into(),
            cgroup: job.path.as_str().into(),
            run,
            ..WorkloadNames::default()
        })
    });
    let row = |process: &&super::machine::Process| ProcessRow {
        parent: process.parent,
        uid: process.uid,
        state: if process.ended { b'Z' } else { b'S' },
        rss: Bytes::new(process.job.map_or(40 << 20, |job| host.jobs[job].resident)),
        cgroup: Some(process.group.as_str().into()),
        ..ProcessRow::new(process.key, "python".into())
    };
    let member = |process: &&super::machine::Process| {
        let job = process.job.or_else(|| host.jobs.iter().position(|job| job.path == process.group))?;
        Some(Membership { process: process.key, workload: Arc::clone(&workloads[job]) })
    };
    let ranks = rows.iter().filter(|process| process.parent != 1 && process.job.is_some() && !process.ended);
    let ranks = ranks.zip(0..).map(|(process, rank)| EnvironmentRank {
        process: process.key,
        workload: Arc::clone(&workloads[process.job.unwrap_or_default()]),
        rank,
        local_rank: None,
        world: None,
    });
    let mut environment_ranks: Vec<EnvironmentRank> = ranks.collect();
    environment_ranks.sort_by_key(|rank| rank.process);
    Facts {
        workload_of: rows.iter().filter_map(member).collect(),
        workload_names: names.collect(),
        environment_ranks,
        processes: Some(Arc::new(ProcessTable { rows: rows.iter().map(row).collect(), boot: None })),
        workloads,
        ..Facts::default()
    }
}
