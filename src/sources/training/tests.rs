//! Tests of the source with real streams and a fixture host. There is no thread: the tests call the listener's turns.

mod limits;
mod messages;
mod ranks;
mod socket;

use std::cell::Cell;
use std::io::Write as _;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use expect_test::{Expect, expect};

use super::listener::Listener;
use super::*;
use crate::flops::peaks::Override;
use crate::host::process::testing::{Process, Tree};
use crate::model::facts::{Facts, GpuProcess, ProcessRow, ProcessTable};
use crate::model::ids::ProcessKey;
use crate::model::timeline::Timeline;
use crate::serve::prometheus::{Format, encode};
use crate::sources::testing::without_pid;

const START: u64 = 1_700_000_000;

thread_local! {
    static NOW: Cell<u64> = const { Cell::new(START) };
}

fn now() -> Timestamp {
    Timestamp::from_secs(NOW.get())
}

fn pass(seconds: u64) {
    NOW.set(NOW.get() + seconds);
}

pub(super) fn options(path: &Path) -> Options {
    Options {
        socket: Some(path.to_path_buf()),
        max_clients: 8,
        max_clients_per_user: 6,
        messages_per_second: 100,
        max_line_size: Bytes::new(1_024),
        memory_per_user: Bytes::new(4_096),
        timeline: 100,
        ..Options::default()
    }
}

struct World {
    folder: tempfile::TempDir,
    _tree: Tree,
    listener: Listener,
    source: Training,
    shared: Arc<Shared>,
    checkpoints: Arc<Checkpoints>,
    /// This process, from which all streams come, in the form of a fixture.
    own: ProcessKey,
    running: bool,
}

impl World {
    fn new() -> Self {
        Self::with(|_| {})
    }

    /// The same with other options.
    fn with(change: impl Fn(&mut Options)) -> Self {
        NOW.set(START);
        let folder = tempfile::tempdir().unwrap();
        let own = ProcessKey { pid: std::process::id(), start: 4_711 };
        let tree = Tree::new();
        tree.add(&Process::new(own.pid, "python").start(own.start));
        let path = folder.path().join("run/job.sock");
        let checkpoints: Arc<Checkpoints> = Arc::default();
        let proc = tree.proc();
        let mut options = options(&path);
        change(&mut options);
        let mut source = Training::new(
            options.clone(),
            proc.clone(),
            "passwd".into(),
            Arc::clone(&checkpoints),
            Arc::default(),
        );
        let shared = Arc::new(Shared::new(proc, Subordinates::default(), options.max_clients));
        let mut listener =
            Listener::new(path, options, Arc::clone(&shared), Arc::clone(&checkpoints), now).unwrap();
        listener.turn(Some(Duration::ZERO)).unwrap();
        source.thread = Some((Arc::clone(&shared), None));
        Self { folder, _tree: tree, listener, source, shared, checkpoints, own, running: true }
    }

    fn connect(&mut self) -> UnixStream {
        let stream = UnixStream::connect(self.folder.path().join("run/job.sock")).unwrap();
        stream.set_nonblocking(true).unwrap();
        self.turn();
        stream
    }

    fn turn(&mut self) {
        self.listener.turn(Some(Duration::ZERO)).unwrap();
    }

    fn send(&mut self, stream: &mut UnixStream, text: &str) {
        stream.write_all(text.as_bytes()).unwrap();
        self.turn();
    }

    fn facts(&self) -> Facts {
        let row = ProcessRow {
            parent: 1,
            rss: Bytes::new(123 << 20),
            ..ProcessRow::new(self.own, "python".into())
        };
        let rows = if self.running { vec![row] } else { Vec::new() };
        let gpu = GpuProcess {
            pid: self.own.pid,
            gpu: "2".into(),
            uuid: "GPU-5f1d2a7c-0a3b-4c8e-9d55-0d9b6a1f0e11".into(),
            memory: None,
        };
        Facts {
            processes: Some(Arc::new(ProcessTable { rows, boot: None })),
            gpu_processes: vec![gpu],
            members: vec![crate::model::facts::Membership::named(self.own, "slurm/17")],
            ..Facts::default()
        }
    }

    fn sample_facts(&mut self) -> Facts {
        let mut batch = Batch::new();
        batch.facts = self.facts();
        self.source.sample(now(), &mut batch).unwrap();
        batch.seal().2
    }

    /// The series of one sample except those of the socket itself, with the pid of this process as `PID`, and
    /// the timeline.
    fn sample(&mut self) -> (String, Arc<Timeline>) {
        let mut batch = Batch::new();
        batch.facts = self.facts();
        self.source.sample(now(), &mut batch).unwrap();
        let (families, dropped, facts) = batch.seal();
        assert!(dropped.is_empty(), "{dropped:?}");
        let text = encode(&families, Format::Text);
        let own = |line: &&str| {
            let socket = ["clients", "messages_total", "errors_total", "received", "client_pauses"];
            !line.starts_with('#')
                && !socket.iter().any(|word| line.contains(word))
                && !line.contains("_bucket")
        };
        let lines: Vec<&str> = text.lines().filter(own).collect();
        (without_pid(&lines.join("\n"), self.own.pid), facts.timeline)
    }

    fn count(&mut self, series: &str) -> f64 {
        let mut batch = Batch::new();
        self.source.sample(now(), &mut batch).unwrap();
        let text = encode(&batch.seal().0, Format::Text);
        let line = text.lines().find_map(|line| line.strip_prefix(series));
        line.unwrap_or_else(|| panic!("no {series} in\n{text}")).trim().parse().unwrap()
    }

    fn errors(&mut self, kind: &str) -> f64 {
        self.count(&format!("memwarden_training_errors_total{{kind=\"{kind}\"}}"))
    }
}

fn check(shown: &str, expected: Expect) {
    expected.assert_eq(&format!("{shown}\n"));
}

const HELLO: &str = "{\"type\":\"hello\",\"v\":1,\"rank\":3,\"world\":8}\n";

impl World {
    fn checkpoints_has_own(&self) -> bool {
        self.checkpoints.of(self.own).is_some()
    }
}
