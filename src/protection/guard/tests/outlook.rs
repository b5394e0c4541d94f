//! From samples to signals: the engine over files of its own and a clock of its own, the guard, and a real process that
//! is asked for a checkpoint by nothing but a forecast.

use std::cell::Cell;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use super::{Diary, Notes};
use crate::engine::{Engine, Registries};
use crate::events::Events;
use crate::host::clock;
use crate::host::process::{self, testing as fixture};
use crate::model::frame::Frame;
use crate::model::ids::ProcessKey;
use crate::model::outlook::Resource;
use crate::model::time::Timestamp;
use crate::protection::enforce::executor::{self, BackgroundExecutors, Machine, Observer};
use crate::protection::enforce::levels::HostMeter;
use crate::protection::guard::alerts::Alerts;
use crate::protection::guard::guard_loop::{Executors, GuardLoop};
use crate::protection::guard::input::GuardInput;
use crate::protection::guard::input_builder::InputBuilder;
use crate::protection::guard::mailbox::Mailbox;
use crate::protection::options::Protection;
use crate::protection::policy::State;
use crate::protection::types::scope::Exempt;
use crate::sources::{Context, Registration, memory, process as processes, workload};
use crate::{analyzers, app, config};

/// What the host has, in MiB.
const HOST: u64 = 16_384;
/// What the job has at first, in MiB.
const JOB: u64 = 1_024;
/// Long enough for a loaded machine; nothing waits so long unless it fails.
const SOON: Duration = Duration::from_secs(60);

const SOURCES: &[&Registration] = &[&memory::REGISTRATION, &processes::REGISTRATION, &workload::REGISTRATION];

/// A process of the test's own that writes down what it is asked, and goes on; ended with the test.
struct Job {
    child: Child,
    key: ProcessKey,
    diary: PathBuf,
}

impl Job {
    #[expect(clippy::disallowed_methods, reason = "the test's own process")]
    fn start(folder: &Path) -> Self {
        let diary = folder.join("diary");
        let script = "exec >>\"$0\"; trap 'echo asked' USR1; trap 'echo told to end' TERM; echo up; \
                      while :; do sleep 1 & wait $!; done";
        let mut command = Command::new("sh");
        let command = command.arg("-c").arg(script).arg(&diary).stdin(Stdio::null()).stdout(Stdio::null());
        let child = command.stderr(Stdio::null()).spawn().unwrap();
        let text = std::fs::read(format!("/proc/{}/stat", child.id())).unwrap();
        let key = ProcessKey { pid: child.id(), start: process::stat(&text).unwrap().start };
        let job = Self { child, key, diary };
        job.wait_said("up");
        job
    }

    fn output(&self) -> Vec<String> {
        let text = std::fs::read_to_string(&self.diary).unwrap_or_default();
        text.lines().map(str::to_owned).collect()
    }

    #[track_caller]
    fn wait_said(&self, what: &str) {
        let begun = clock::now();
        while !self.output().iter().any(|line| line == what) {
            assert!(clock::now().since(begun) < SOON, "the job never said {what:?}");
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Everything that it said in its life, which this ends.
    fn end(mut self) -> Vec<String> {
        assert_eq!(self.child.try_wait().unwrap(), None, "it lives");
        self.child.kill().unwrap();
        self.child.wait().unwrap();
        self.output()
    }
}

impl Drop for Job {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The job's host, and everything between its files and its guard.
struct Scene {
    tree: fixture::Tree,
    key: ProcessKey,
    engine: Engine,
    input_builder: InputBuilder,
    mailbox: Arc<Mailbox<GuardInput>>,
    watch: GuardLoop,
    notes: Notes,
    second: u64,
}

impl Scene {
    /// A host whose only target is the job, with `more` to say of it and of the rest of the configuration.
    fn new(job: &Job, more: &str, rest: &str) -> Self {
        let tree = fixture::Tree::new();
        let user = rustix::process::getuid().as_raw();
        let text = format!(
            "{rest}\nsources: {{workload: {{matchers: [{{name: train, executable: trainer}}]}}}}\n\
             protection: {{mode: enforce, targets: [{{name: train, workload: train, allow_users: [\"{user}\"], \
             cgroup_headroom: {{soft: \"\"}}, host: {{soft: 5%, hard: \"\"}}, hysteresis: 1%, \
             checkpoint: {{grace: 5s, longest_grace: 5s}}{more}}}]}}"
        );
        let config = config::parse_str(&text, Path::new("f"), &app::schema(), &[]).unwrap();
        let context = Context {
            roots: Arc::new(tree.roots()),
            worker: None,
            checkpoints: Arc::default(),
            past_runs: Arc::default(),
        };
        let registries = Registries { sources: SOURCES, analyzers: analyzers::REGISTRY };
        let engine = Engine::new(registries, &config, context, Arc::new(Events::new()));
        let protection = Protection::new(&config.modules["protection"], config.sampling.interval);
        let targets: Arc<[_]> = protection.targets.into();
        let proc = Path::new("/proc");
        // The job is a child of this test, which the daemon itself never touches.
        let exempt = Exempt { own: 0, ..executor::exempt(proc, &[]).unwrap() };
        let input_builder = InputBuilder::new(Arc::clone(&targets), &tree.roots(), Some(exempt.clone()));
        let mode = executor::Mode::Enforce;
        let background = BackgroundExecutors::default();
        let machine =
            Machine::arm(mode, proc, Path::new("/sys/fs/cgroup"), exempt.clone(), background).unwrap();
        let hands =
            Executors { enforce: Some(Box::new(machine)), observe: Box::new(Observer::new(exempt, proc)) };
        let (notes, mailbox) = (Notes::default(), Arc::new(Mailbox::default()));
        let diary = Box::new(Diary { notes: notes.clone(), begun: 0, open: Vec::new(), silent: false });
        std::fs::write(tree.proc().join("meminfo"), meminfo(HOST)).unwrap();
        tree.add(&fixture::Process::new(1, "init"));
        let meter = HostMeter::open(&tree.proc(), &[]).ok();
        let watch = GuardLoop::new(targets, 5, Arc::clone(&mailbox), meter, hands, Arc::default(), diary);
        Self { tree, key: job.key, engine, input_builder, mailbox, watch, notes, second: 0 }
    }

    /// One second in which the host has so much available and the job so much of its own, in KiB.
    fn pass(&mut self, available: u64, own: u64) -> Arc<Frame> {
        let at = Timestamp::from_secs(1_000 + self.second);
        self.second += 1;
        // In place: it is kept open.
        let file = std::fs::File::options().write(true).open(self.tree.proc().join("meminfo")).unwrap();
        file.write_all_at(meminfo(available >> 10).as_bytes(), 0).unwrap();
        let job = fixture::Process::new(self.key.pid, "trainer").start(self.key.start);
        self.tree.add(&job.exe("/opt/trainer").memory(own, 1_024, 0, own).cpu(self.second));
        let frame = self.engine.tick(at);
        let report = self.watch.report().clone();
        let facts = self.engine.facts();
        let facts = self.input_builder.look(at, &frame.outlook, facts, &Alerts::default(), &report);
        self.mailbox.give(Box::new(facts.unwrap()), GuardInput::keep);
        let now = Cell::new(at);
        for _ in 0..10 {
            self.watch.round(&|| now.get());
            now.set(now.get().plus(Duration::from_millis(100)));
        }
        frame
    }

    fn state(&mut self) -> Option<State> {
        self.watch.report().slots[0].map(|slot| slot.state)
    }

    /// The moves of the ladder, and how many were asked.
    fn moves(&self) -> Vec<String> {
        let facts = |note: &String| note.contains(" → ") || note.contains("asked");
        self.notes.take().into_iter().filter(facts).collect()
    }
}

/// The file of a host with so much available, in MiB; always as long.
fn meminfo(available: u64) -> String {
    format!("MemTotal: {:>12} kB\nMemAvailable: {:>12} kB\n", HOST << 10, available << 10)
}

/// Noise of a few MiB, in KiB, the same in each run.
fn noise(second: u64) -> u64 {
    (second.wrapping_mul(2_654_435_761) >> 7) % 4_096
}

/// What is available of a host that is used up by 32 MiB a second, in KiB: exhausted after 384 s, and at its soft level
/// 26 s before that.
fn falling(second: u64) -> u64 {
    (12_288_u64.saturating_sub(32 * second) << 10) + noise(second)
}

/// Above the soft level of the host, with the margin of a warning, in KiB.
const CLEAR: u64 = (HOST << 10) / 100 * 6 + 4_096;

#[test]
fn a_rising_series_leads_by_its_forecast_alone_to_the_checkpoint_signal_and_no_further() {
    let folder = tempfile::tempdir().unwrap();
    let job = Job::start(folder.path());
    let mut scene = Scene::new(&job, "", "");
    // It goes on as far as no level has a say; the time limit of the checkpoint is over long before that.
    while falling(scene.second) > CLEAR {
        let frame = scene.pass(falling(scene.second), JOB << 10);
        assert!(frame.outlook.has_forecasts && frame.outlook.has_leaks);
    }
    job.wait_said("asked");
    assert_eq!(
        scene.moves(),
        [
            "ok → warn: exhaustion is predicted",
            "warn → soft: exhaustion is predicted",
            "soft → checkpoint: exhaustion is predicted",
            "remember that 1 are asked",
        ]
    );
    assert_eq!(scene.state(), Some(State::Checkpoint));
    assert_eq!(job.end(), ["up", "asked"]);
}

#[test]
fn a_forecast_leads_no_further_than_its_target_allows() {
    for more in [", forecast: {max_state: warn}", ", max_state: warn"] {
        let folder = tempfile::tempdir().unwrap();
        let job = Job::start(folder.path());
        let mut scene = Scene::new(&job, more, "");
        while falling(scene.second) > CLEAR {
            scene.pass(falling(scene.second), JOB << 10);
        }
        assert_eq!(scene.moves(), ["ok → warn: exhaustion is predicted"], "{more}");
        assert_eq!(job.end(), ["up"], "{more}");
    }
}

#[test]
fn a_leak_leads_to_a_warning_and_no_further() {
    let folder = tempfile::tempdir().unwrap();
    let job = Job::start(folder.path());
    let mut scene = Scene::new(&job, "", "");
    let leaking = |second| ((JOB + 2 * second) << 10) + noise(second);
    while scene.state() != Some(State::Warn) {
        assert!(scene.second < 1_200, "no leak was seen");
        scene.pass(HOST << 10, leaking(scene.second));
    }
    let mut frame = scene.pass(HOST << 10, leaking(scene.second));
    for _ in 0..60 {
        frame = scene.pass(HOST << 10, leaking(scene.second));
    }
    assert_eq!(scene.moves(), ["ok → warn: a leak is confirmed"]);
    assert_eq!(scene.state(), Some(State::Warn));
    let leaks: Vec<_> = frame.outlook.growths().unwrap().filter(|(_, growth)| growth.leaks()).collect();
    let workload = scene.engine.facts().workloads[0].key.clone();
    let mut expected = vec![Resource::Process(job.key), Resource::Workload(workload)];
    for (resource, growth) in leaks {
        let place = expected.iter().position(|known| known == resource).expect("only the job leaks");
        expected.swap_remove(place);
        let rate = growth.bytes_per_second().unwrap();
        assert!((rate / f64::from(2 << 20) - 1.0).abs() < 0.1, "{rate:?}");
    }
    assert!(expected.is_empty(), "{expected:?}");
    assert_eq!(job.end(), ["up"]);
}

#[test]
fn a_leak_leads_as_far_as_its_target_says() {
    let folder = tempfile::tempdir().unwrap();
    let job = Job::start(folder.path());
    let mut scene = Scene::new(&job, ", leak: {max_state: checkpoint}", "");
    while scene.state() != Some(State::Checkpoint) {
        assert!(scene.second < 1_200, "no leak was seen");
        scene.pass(HOST << 10, ((JOB + 2 * scene.second) << 10) + noise(scene.second));
    }
    job.wait_said("asked");
    assert_eq!(job.end(), ["up", "asked"]);
}

#[test]
fn an_analyzer_that_is_off_is_not_one_that_foresees_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let job = Job::start(folder.path());
    let mut scene = Scene::new(&job, "", "analyzers: {exhaustion: {enabled: false}}");
    let frame = scene.pass(HOST << 10, JOB << 10);
    assert_eq!((frame.outlook.has_forecasts, frame.outlook.has_leaks), (false, true));
    let report = scene.watch.report().clone();
    let facts = scene.engine.facts();
    let at = Timestamp::from_secs(1_001);
    let facts = scene.input_builder.look(at, &frame.outlook, facts, &Alerts::default(), &report).unwrap();
    let slot = facts.slots[0].as_ref().unwrap();
    assert_eq!((slot.sampled.forecast, slot.sampled.leak), (None, Some(false)));
    assert_eq!(job.end(), ["up"]);
}
