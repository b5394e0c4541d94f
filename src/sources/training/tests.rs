//! Tests of the source with real streams and a fixture host. There is no thread: the tests call the listener's turns.

use std::cell::Cell;
use std::io::Write as _;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use expect_test::{Expect, expect};

use super::listener::Listener;
use super::*;
use crate::flops::peaks::Override;
use crate::host::process::fixture::{Process, Tree};
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
            key: self.own,
            parent: 1,
            session: 1,
            terminal: 0,
            uid: 0,
            comm: "python".into(),
            state: b'S',
            kernel: false,
            rss: Bytes::new(123 << 20),
            cpu_ticks: 0,
            threads: 1,
            major_faults: 0,
            cgroup: None,
            naming_cgroup: None,
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

    /// The facts of one sample.
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

/// Complete lines of the examples in the protocol document.
fn examples() -> String {
    let protocol = include_str!("../../../clients/PROTOCOL.md");
    let blocks = protocol.split("```json\n").skip(1).map(|rest| rest.split("```").next().unwrap());
    blocks.filter(|block| !block.contains("\"bye\"")).collect()
}

#[test]
fn the_examples_become_series_until_the_connection_closes() {
    let mut world = World::new();
    world.source.options.max_line_size = Bytes::new(65_536);
    let mut stream = world.connect();
    for line in examples().lines() {
        // Longer than the maximum line of these options; the parser's own tests cover it.
        let line = if line.len() < 1_000 { line } else { HELLO.trim_end() };
        world.send(&mut stream, &format!("{line}\n"));
    }
    let (shown, _) = world.sample();
    check(
        &shown,
        expect![[r#"
            memwarden_rank_info{workload="slurm/17",rank="3",local_rank="0",world="8",pid="PID",gpu="2",uuid="GPU-5f1d2a7c-0a3b-4c8e-9d55-0d9b6a1f0e11"} 1
            memwarden_training_message_age_seconds{workload="slurm/17",rank="3"} 0
            memwarden_training_step{workload="slurm/17",rank="3"} 120
            memwarden_training_step_age_seconds{workload="slurm/17",rank="3"} 0
            memwarden_training_steps_total{workload="slurm/17",rank="3"} 1
            memwarden_training_step_duration_seconds_sum{workload="slurm/17",rank="3"} 0.512
            memwarden_training_step_duration_seconds_count{workload="slurm/17",rank="3"} 1
            memwarden_training_step_last_duration_seconds{workload="slurm/17",rank="3"} 0.512
            memwarden_training_tokens_total{workload="slurm/17",rank="3"} 31457280
            memwarden_training_samples_total{workload="slurm/17",rank="3"} 7680
            memwarden_training_loss{workload="slurm/17",rank="3"} 2.317
            memwarden_training_learning_rate{workload="slurm/17",rank="3"} 0.0003
            memwarden_training_gradient_norm{workload="slurm/17",rank="3"} 1.04
            memwarden_training_skipped_steps_total{workload="slurm/17",rank="3"} 1
            memwarden_training_nonfinite_steps_total{workload="slurm/17",rank="3"} 0
            memwarden_training_phase_seconds_total{workload="slurm/17",rank="3",phase="forward"} 24.6
            memwarden_training_phases_total{workload="slurm/17",rank="3",phase="forward"} 120
            memwarden_training_phase_allocated_peak_bytes{workload="slurm/17",rank="3",phase="forward"} 66571993088
            memwarden_training_allocator_allocated_bytes{workload="slurm/17",rank="3",device="0",gpu="2"} 61203283968
            memwarden_training_allocator_allocated_peak_bytes{workload="slurm/17",rank="3",device="0",gpu="2"} 66571993088
            memwarden_training_allocator_active_bytes{workload="slurm/17",rank="3",device="0",gpu="2"} 61303283968
            memwarden_training_allocator_reserved_bytes{workload="slurm/17",rank="3",device="0",gpu="2"} 70866960384
            memwarden_training_allocator_reserved_peak_bytes{workload="slurm/17",rank="3",device="0",gpu="2"} 70866960384
            memwarden_training_allocator_requested_bytes{workload="slurm/17",rank="3",device="0",gpu="2"} 60813283968
            memwarden_training_allocator_inactive_split_bytes{workload="slurm/17",rank="3",device="0",gpu="2"} 3221225472
            memwarden_training_allocator_releasable_bytes{workload="slurm/17",rank="3",device="0",gpu="2"} 1073741824
            memwarden_training_allocator_largest_free_bytes{workload="slurm/17",rank="3",device="0",gpu="2"} 536870912
            memwarden_training_device_free_bytes{workload="slurm/17",rank="3",device="0",gpu="2"} 9663676416
            memwarden_training_device_total_bytes{workload="slurm/17",rank="3",device="0",gpu="2"} 85899345920
            memwarden_training_allocator_retries_total{workload="slurm/17",rank="3",device="0",gpu="2"} 0
            memwarden_training_allocator_ooms_total{workload="slurm/17",rank="3",device="0",gpu="2"} 0
            memwarden_training_pinned_bytes{workload="slurm/17",rank="3"} 4294967296
            memwarden_training_parameters{workload="slurm/17",rank="3",kind="all"} 8030261248
            memwarden_training_parameters{workload="slurm/17",rank="3",kind="trainable"} 41943040
            memwarden_training_parameters{workload="slurm/17",rank="3",kind="lora"} 41943040
            memwarden_training_model_bytes{workload="slurm/17",rank="3",kind="parameters"} 16060522496
            memwarden_training_model_bytes{workload="slurm/17",rank="3",kind="gradients"} 83886080
            memwarden_training_model_bytes{workload="slurm/17",rank="3",kind="optimizer"} 335544320
            memwarden_training_nonfinite_tensors{workload="slurm/17",rank="3",kind="nan"} 0
            memwarden_training_nonfinite_tensors{workload="slurm/17",rank="3",kind="inf"} 0
            memwarden_training_parameters_dtype_bytes{workload="slurm/17",rank="3",dtype="bf16"} 16060522496
            memwarden_training_parameters_group_bytes{workload="slurm/17",rank="3",group="mlp"} 9663676416
            memwarden_training_parameters_group_bytes{workload="slurm/17",rank="3",group="attention"} 5368709120
            memwarden_training_parameters_group_bytes{workload="slurm/17",rank="3",group="lora"} 83886080
            memwarden_fit_predicted_peak_bytes{workload="slurm/17",rank="3",phase="optimizer",resource="device",device="0",gpu="2",estimate="p50"} 48318382080
            memwarden_fit_predicted_peak_bytes{workload="slurm/17",rank="3",phase="optimizer",resource="device",device="0",gpu="2",estimate="p90"} 48318382080
            memwarden_fit_predicted_peak_bytes{workload="slurm/17",rank="3",phase="step",resource="device",device="0",gpu="2",estimate="p50"} 89120571392
            memwarden_fit_predicted_peak_bytes{workload="slurm/17",rank="3",phase="step",resource="device",device="0",gpu="2",estimate="p90"} 90194313216
            memwarden_fit_predicted_peak_bytes{workload="slurm/17",rank="3",phase="save",resource="host",estimate="p50"} 6442450944
            memwarden_fit_predicted_peak_bytes{workload="slurm/17",rank="3",phase="save",resource="host",estimate="p90"} 6442450944
            memwarden_fit_measured_peak_bytes{workload="slurm/17",rank="3",phase="step",resource="device",device="0",gpu="2"} 76450627584
            memwarden_training_checkpoint_state{workload="slurm/17",rank="3",state="saving"} 0
            memwarden_training_checkpoint_state{workload="slurm/17",rank="3",state="saved"} 0
            memwarden_training_checkpoint_state{workload="slurm/17",rank="3",state="failed"} 1
            memwarden_training_checkpoint_step{workload="slurm/17",rank="3"} 120
            memwarden_training_checkpoint_saved_timestamp_seconds{workload="slurm/17",rank="3"} 1700000000
            memwarden_training_client_dropped_total{workload="slurm/17",rank="3"} 0
            memwarden_training_process_rss_bytes{workload="slurm/17",rank="3"} 128974848
            memwarden_training_ranks{workload="slurm/17"} 1
            memwarden_training_world_size{workload="slurm/17"} 8
            memwarden_training_rank_conflicts{workload="slurm/17"} 0
            memwarden_training_ooms_total{workload="slurm/17"} 1
        "#]],
    );
    let last = r#"{"type":"phase","t":1,"name":"forward","state":"end","seconds":25,"count":123}"#;
    world.send(&mut stream, &format!("{last}\n"));
    drop(stream);
    world.turn();
    pass(1);
    let (shown, timeline) = world.sample();
    let phases = "memwarden_training_phases_total{workload=\"slurm/17\",rank=\"3\",phase=\"forward\"} 123";
    assert!(
        shown.contains(phases) && !shown.contains("memwarden_training_ranks"),
        "its last series: {shown}"
    );
    check(
        &world.sample().0,
        expect![[r#"
            memwarden_training_ooms_total{workload="slurm/17"} 1
        "#]],
    );
    let events: Vec<String> = timeline
        .entries
        .iter()
        .map(|entry| {
            format!(
                "{} {:?} {}/{} {} {:?}",
                entry.sequence, entry.kind, entry.workload, entry.rank, entry.name, entry.step
            )
        })
        .collect();
    check(
        &events.join("\n"),
        expect![[r#"
            1 Start slurm/17/3 hello None
            2 FirstStep slurm/17/3 step Some(120)
            3 Event slurm/17/3 after eval Some(120)
            4 Oom slurm/17/3 oom Some(120)
            5 Checkpoint slurm/17/3 saving Some(120)
            6 Checkpoint slurm/17/3 saved Some(120)
            7 Checkpoint slurm/17/3 failed Some(120)
            8 Growth slurm/17/3 type torch.Tensor: 64000 more (90210 now), tensor with grad_fn fp32[64, 1024]: 8800 more (9000 now), open figure matplotlib: 300 more (420 now), line train.py:88: 524288000 more (734003200 now) Some(120)
            9 End slurm/17/3 end of stream Some(120)
        "#]],
    );
    assert!(!world.checkpoints_has_own());
}

impl World {
    fn checkpoints_has_own(&self) -> bool {
        self.checkpoints.of(self.own).is_some()
    }
}

#[test]
fn what_grows_inside_a_program_is_an_event_without_control_characters() {
    let mut world = World::new();
    let mut stream = world.connect();
    world.send(&mut stream, HELLO);
    let item = |name: &str, more: i64| {
        format!("{{\"what\":\"type\",\"name\":\"{name}\",\"now\":9,\"more\":{more}}}")
    };
    let evidence = |items: &[String]| {
        format!("{{\"type\":\"evidence\",\"seconds\":60,\"items\":[{}]}}\n", items.join(","))
    };
    world.send(&mut stream, &evidence(&[item("a\\u001b[2Jb", 5), item("none", 0)]));
    let many: Vec<String> = (0..20).map(|number| item(&format!("t{number}"), 1)).collect();
    world.send(&mut stream, &evidence(&many));
    world.send(&mut stream, &evidence(&[item(&"x".repeat(257), 1)]));
    world.send(&mut stream, &evidence(&[]));
    let (_, timeline) = world.sample();
    let grown = timeline.entries.iter().filter(|entry| entry.kind == EntryKind::Growth);
    let grown: Vec<_> = grown
        .map(|entry| (entry.name.as_str(), entry.detail.as_ref().map_or("", |detail| detail.get())))
        .collect();
    assert_eq!(grown.len(), 2, "{grown:?}");
    assert_eq!(
        grown[0],
        (
            "type a?[2Jb: 5 more (9 now)",
            r#"{"items":[{"more":5,"name":"a?[2Jb","now":9,"what":"type"}],"seconds":60.0}"#
        )
    );
    assert_eq!(grown[1].0.matches("more").count(), 4);
    assert_eq!(grown[1].1.matches("name").count(), 20);
}

#[test]
fn a_verdict_reaches_the_process_that_reads_verdicts() {
    use std::io::Read as _;

    use crate::model::fit::{Answer, Verdict};
    let mut world = World::new();
    let (mut reads, mut other) = (world.connect(), world.connect());
    world.send(&mut reads, "{\"type\":\"hello\",\"v\":1,\"verdicts\":true}\n");
    world.send(&mut other, HELLO);
    let answer = Answer {
        process: world.own,
        verdict: Verdict::Tight,
        text: "1 GiB is left".to_owned(),
        sequence: None,
    };
    for foreign in [true, false] {
        let process =
            ProcessKey { pid: answer.process.pid, start: answer.process.start + u64::from(foreign) };
        let mut batch = Batch::new();
        batch.facts = Facts { answers: vec![Answer { process, ..answer.clone() }], ..world.facts() };
        world.source.sample(now(), &mut batch).unwrap();
        assert!(batch.facts.answers.is_empty());
        let mut bytes = [0; 256];
        let read = reads.read(&mut bytes).unwrap_or(0);
        let shown = String::from_utf8_lossy(&bytes[..read]);
        let expected = r#"{"text":"1 GiB is left","type":"verdict","verdict":"tight"}"#;
        assert_eq!(shown.trim_end(), if foreign { "" } else { expected });
        assert!(other.read(&mut bytes).is_err(), "it does not read");
    }
}

#[test]
fn two_processes_of_one_rank_are_distinguished() {
    let mut world = World::new();
    let mut streams: Vec<UnixStream> = (0..3).map(|_| world.connect()).collect();
    for stream in &mut streams {
        world.send(stream, HELLO);
        world.send(stream, "{\"type\":\"step\",\"step\":1}\n");
    }
    let steps = |shown: &str| -> Vec<String> {
        let lines = shown.lines().filter(|line| {
            ["training_step{", "training_ranks", "rank_conflicts"].iter().any(|word| line.contains(word))
        });
        lines.map(str::to_owned).collect()
    };
    check(
        &steps(&world.sample().0).join("\n"),
        expect![[r#"
        memwarden_training_step{workload="slurm/17",rank="3"} 1
        memwarden_training_step{workload="slurm/17",rank="3@PID"} 1
        memwarden_training_step{workload="slurm/17",rank="3@PID.4"} 1
        memwarden_training_ranks{workload="slurm/17"} 3
        memwarden_training_rank_conflicts{workload="slurm/17"} 2
    "#]],
    );
    // The first one ends: the second gets its rank.
    streams.remove(0);
    world.turn();
    check(
        &steps(&world.sample().0).join("\n"),
        expect![[r#"
        memwarden_training_step{workload="slurm/17",rank="3"} 1
        memwarden_training_step{workload="slurm/17",rank="3@PID"} 1
        memwarden_training_ranks{workload="slurm/17"} 2
        memwarden_training_rank_conflicts{workload="slurm/17"} 1
    "#]],
    );
}

#[test]
fn an_exited_process_is_not_shown_while_its_connection_is_open() {
    let mut world = World::new();
    let mut stream = world.connect();
    world.send(&mut stream, HELLO);
    assert!(world.sample().0.contains("memwarden_rank_info"));
    world.running = false;
    assert!(!world.sample().0.contains("rank=\"3\""), "{}", world.sample().0);
}

#[test]
fn allocator_values_belong_to_the_sender_until_it_exits() {
    let mut world = World::new();
    let mut stream = world.connect();
    world.send(&mut stream, HELLO);
    let mem = "{\"type\":\"mem\",\"devices\":{\"0\":{\"allocated\":50,\"reserved\":70,\"free\":10},\"1\":{\"reserved\":9}}}";
    world.send(&mut stream, &format!("{mem}\n"));
    let current = crate::model::facts::Allocator {
        process: Some(world.own),
        workload: Some(world.facts().members[0].workload.key.clone()),
        allocated: Bytes::new(50),
        reserved: Some(Bytes::new(70)),
        free: Some(Bytes::new(10)),
        age: Some(Duration::ZERO),
    };
    assert_eq!(world.sample_facts().allocators, std::slice::from_ref(&current));
    drop(stream);
    world.turn();
    let ended = crate::model::facts::Allocator { process: None, ..current };
    assert_eq!(world.sample_facts().allocators, [ended]);
    assert_eq!(world.sample_facts().allocators, []);
}

#[test]
fn the_reason_of_an_end_is_reported() {
    let mut world = World::new();
    let mut stream = world.connect();
    world.send(&mut stream, HELLO);
    world.send(&mut stream, "{\"type\":\"bye\",\"reason\":\"ValueError\"}\n");
    drop(stream);
    world.turn();
    let timeline = world.sample().1;
    let end = timeline.entries.last().unwrap();
    assert_eq!((end.kind, end.name.as_str()), (EntryKind::End, "bye"));
    assert_eq!(end.detail.as_ref().unwrap().get(), r#"{"reason":"ValueError"}"#);
}

#[test]
fn a_checkpoint_is_requested_without_waiting() {
    let mut world = World::new();
    let mut stream = world.connect();
    world.send(&mut stream, HELLO);
    world.send(&mut stream, "{\"type\":\"checkpoint\",\"state\":\"saving\"}\n");
    let found = world.checkpoints.of(world.own).unwrap();
    assert_eq!(found.state, crate::model::checkpoint::CheckpointState::Saving);
    assert_eq!(found.heard_nanos, START * 1_000_000_000);
    let ranks = |world: &mut World| -> Vec<Option<String>> {
        let ranks = world.sample_facts().ranks;
        ranks.iter().map(|rank| rank.cannot_save.as_ref().map(ToString::to_string)).collect()
    };
    assert_eq!(ranks(&mut world), [None]);
    world.send(
        &mut stream,
        &HELLO.replace("\"v\":1", "\"v\":1,\"saves\":false,\"saves_reason\":\"a\\u001bb\""),
    );
    assert_eq!(ranks(&mut world), [Some("a?b".to_owned())]);
    world.send(&mut stream, &HELLO.replace("\"v\":1", "\"v\":1,\"saves\":true"));
    assert_eq!(ranks(&mut world), [None]);
    drop(stream);
    world.turn();
    assert!(!world.checkpoints_has_own());
}

#[test]
fn an_invalid_line_is_dropped_and_the_next_is_read() {
    let mut world = World::new();
    let (mut bad, mut good) = (world.connect(), world.connect());
    world.send(&mut good, HELLO);
    world.send(&mut bad, "{\"type\":\"step\",\"step\":1}\n");
    // It connected first, and reports later that it is rank 3.
    pass(1);
    world.send(&mut bad, &format!("{HELLO}\u{0}\u{1}\n[]\n{{\"type\":\"step\",\"step\":-4}}\n"));
    bad.write_all(b"{\"type\":\"step\",\"step\":7,\"loss\":\xff}\n").unwrap();
    world.turn();
    world.send(&mut bad, &"x".repeat(1_500));
    world.send(&mut bad, &"x".repeat(1_500));
    world.send(&mut bad, "\n{\"type\":\"step\",\"step\":9}\n{\"torn");
    let stepped = world.sample().0;
    assert!(stepped.contains("memwarden_training_step{workload=\"slurm/17\",rank=\"3@PID\"} 9"), "{stepped}");
    drop(bad);
    world.turn();
    for (kind, expected) in
        [("json", 2.0), ("key", 1.0), ("encoding", 1.0), ("length", 1.0), ("torn", 1.0), ("no_hello", 1.0)]
    {
        assert_eq!(world.errors(kind), expected, "{kind}");
    }
    assert_eq!(world.count("memwarden_training_clients"), 1.0);
}

#[test]
fn stalled_lines_take_little_memory() {
    let mut world = World::new();
    let mut streams: Vec<UnixStream> = (0..6).map(|_| world.connect()).collect();
    for stream in &mut streams {
        world.send(stream, &"x".repeat(1_000));
    }
    // 4,096 bytes for all of them.
    assert_eq!(world.errors("memory"), 2.0);
    pass(31);
    world.turn();
    assert_eq!(world.errors("stalled"), 4.0);
    for stream in &mut streams {
        world.send(stream, &format!("\n{HELLO}"));
    }
    assert!(world.sample().0.contains("memwarden_training_ranks{workload=\"slurm/17\"} 6"));
}

#[test]
fn a_client_over_its_rate_is_paused_and_the_others_are_read() {
    let mut world = World::new();
    let (mut flood, mut good) = (world.connect(), world.connect());
    world.send(&mut flood, HELLO);
    world.send(&mut good, HELLO);
    let many = "{\"type\":\"step\",\"step\":1}\n".repeat(10_000);
    // Messages that do not fit into the socket are dropped by a client.
    let mut sent = 0;
    while let Ok(more) = flood.write(&many.as_bytes()[sent % many.len()..]) {
        sent += more;
    }
    world.turn();
    let received = world.count("memwarden_training_messages_total{kind=\"step\"}");
    assert!((201.0..4_000.0).contains(&received), "{received}");
    for _ in 0..5 {
        world.turn();
    }
    assert_eq!(world.count("memwarden_training_messages_total{kind=\"step\"}"), received, "it is not read");
    world.send(&mut good, "{\"type\":\"step\",\"step\":2}\n");
    assert_eq!(world.count("memwarden_training_messages_total{kind=\"step\"}"), received + 1.0);
    pass(6);
    world.turn();
    world.turn();
    assert!(world.count("memwarden_training_messages_total{kind=\"step\"}") > received + 100.0);
    assert_eq!(world.count("memwarden_training_client_pauses_total"), 2.0);
    drop(flood);
    for _ in 0..200 {
        pass(6);
        world.turn();
    }
    assert_eq!(world.count("memwarden_training_clients"), 1.0, "its end is detected");
}

/// Sends messages until the socket is full.
fn fill(stream: &mut UnixStream) {
    let many = "{\"type\":\"step\",\"step\":1}\n".repeat(1_000);
    // A message that the socket takes only partly is continued by the next write.
    let mut sent = 0;
    while let Ok(more) = stream.write(&many.as_bytes()[sent % many.len()..]) {
        sent += more;
    }
}

#[test]
fn full_connections_do_not_delay_another_user_by_a_round() {
    let many = |options: &mut Options| {
        (options.max_clients, options.max_clients_per_user, options.messages_per_second) =
            (200, 200, 1_000_000_000)
    };
    let mut world = World::with(many);
    let mut flood: Vec<UnixStream> = (0..100).map(|_| world.connect()).collect();
    for stream in &mut flood {
        world.send(stream, HELLO);
        fill(stream);
    }
    let received = |world: &World| world.shared.counts.bytes.load(Ordering::Relaxed);
    let most = (listener::BUDGET + 16 * 1024) as u64;
    for _ in 0..5 {
        let before = received(&world);
        world.turn();
        let read = received(&world) - before;
        assert!((1..=most).contains(&read), "{read} bytes in one round");
    }
    let mut other = world.connect();
    world.listener.give_newest_to(61_001);
    for step in 1..=5 {
        flood.iter_mut().for_each(fill);
        let received = world.count("memwarden_training_messages_total{kind=\"event\"}");
        other.write_all(format!("{HELLO}{{\"type\":\"event\",\"name\":\"{step}\"}}\n").as_bytes()).unwrap();
        world.turn();
        assert_eq!(
            world.count("memwarden_training_messages_total{kind=\"event\"}"),
            received + 1.0,
            "in one round"
        );
    }
}

#[test]
fn every_user_with_a_full_connection_is_read() {
    let many = |options: &mut Options| {
        (options.max_clients, options.max_clients_per_user, options.messages_per_second) =
            (200, 200, 1_000_000_000)
    };
    let mut world = World::with(many);
    let mut flood: Vec<UnixStream> = (0..100).map(|_| world.connect()).collect();
    for stream in &mut flood {
        stream.write_all(HELLO.as_bytes()).unwrap();
        fill(stream);
    }
    let hellos = |world: &mut World| world.count("memwarden_training_messages_total{kind=\"hello\"}");
    world.turn();
    let first = hellos(&mut world);
    assert!((1.0..100.0).contains(&first), "{first} of 100 in the first round");
    // At this many reads per round, clients that were read before continue to send.
    let mut rounds = 1;
    while hellos(&mut world) < 100.0 {
        flood.iter_mut().for_each(fill);
        world.turn();
        rounds += 1;
        assert!(rounds < 100, "{} of 100 have been read", hellos(&mut world));
    }
}

#[test]
fn too_many_clients_are_refused() {
    let mut world = World::new();
    let streams: Vec<UnixStream> = (0..9).map(|_| world.connect()).collect();
    assert_eq!(world.count("memwarden_training_clients_refused_total{reason=\"user\"}"), 3.0);
    assert_eq!(world.count("memwarden_training_clients"), 6.0);
    drop(streams);
    world.turn();
    let _again = world.connect();
    assert_eq!(world.count("memwarden_training_clients"), 1.0);
}

#[test]
fn one_user_with_many_series_leaves_places_for_anothers() {
    let mut world = World::new();
    let (own, _other) = UnixStream::pair().unwrap();
    let own = Arc::new(own);
    let phases: String = (0..32)
        .map(|phase| format!("{{\"type\":\"phase\",\"name\":\"p{phase}\",\"state\":\"end\",\"count\":1}}\n"))
        .collect();
    for number in 1..=300 {
        let uid = if number == 300 { 61_001 } else { 61_002 };
        let peer = crate::host::peer::Peer { pid: None, uid };
        let client = world.shared.greet(1_000 + number, peer, uid, &own, now());
        let hello = format!("{{\"type\":\"hello\",\"v\":1,\"rank\":{number},\"world\":1000}}");
        for line in [hello.as_str()].into_iter().chain(phases.lines()) {
            client.receive(line.as_bytes(), now(), &world.shared.counts, &world.checkpoints).unwrap();
        }
        pass(1);
    }
    let mut batch = Batch::new();
    world.source.sample(now(), &mut batch).unwrap();
    let short: Vec<_> = batch.facts.shortages.iter().map(|short| (short.limit, short.user)).collect();
    assert_eq!(short, [("training_series", Some(61_002))]);
    let (families, dropped, _) = batch.seal();
    assert!(!dropped.is_empty(), "there were too few to be cut");
    let family =
        families.iter().find(|family| family.desc.name == "memwarden_training_phases_total").unwrap();
    let of = |rank: &str| family.points.iter().filter(|point| point.labels[1].as_str() == rank).count();
    assert_eq!((of("300"), of("1"), of("299")), (32, 32, 0));
}

#[test]
fn failures_of_many_workloads_of_one_user_leave_places_for_anothers() {
    let mut world = World::new();
    for number in 0..MOST_REMEMBERED as u64 + 10 {
        world.source.remember(&Label::from(number), 61_002, 1, Timestamp::from_secs(number));
    }
    assert_eq!(world.source.ooms.len(), MOST_REMEMBERED);
    world.source.remember(&"alice".into(), 61_001, 1, Timestamp::from_secs(5_000));
    assert_eq!(world.source.ooms.len(), MOST_REMEMBERED);
    assert_eq!(world.source.ooms.get(&Label::from("alice")).unwrap().ooms, 1);
    assert!(!world.source.ooms.contains_key(&Label::from(0_u64)), "the oldest goes");
}

#[test]
fn a_process_that_changes_its_rank_has_one_series() {
    let mut world = World::new();
    let mut stream = world.connect();
    for rank in 0..150 {
        world.send(&mut stream, &format!("{{\"type\":\"hello\",\"v\":1,\"rank\":{rank},\"world\":100}}\n"));
    }
    assert_eq!(world.errors("rank"), 146.0);
    let shown = world.sample().0;
    assert_eq!(shown.lines().filter(|line| line.starts_with("memwarden_rank_info")).count(), 1);
}

#[test]
fn a_socket_in_use_is_reported_and_opened_when_it_is_free() {
    let world = World::new();
    let path = world.folder.path().join("run/job.sock");
    let shared = Arc::new(Shared::new("proc".into(), Subordinates::default(), 8));
    let mut second =
        Listener::new(path.clone(), options(&path), Arc::clone(&shared), Arc::clone(&world.checkpoints), now)
            .unwrap();
    second.turn(Some(Duration::ZERO)).unwrap();
    let taken = format!("another process listens on {}", path.display());
    assert_eq!(shared.state(), ClientState::Failed(Failure::Io, taken));
    assert_eq!(world.shared.state(), ClientState::Listening);
    drop(world.listener);
    // The folder is unchanged: the first one removed its file.
    assert!(!path.exists());
    second.turn(Some(Duration::ZERO)).unwrap();
    assert_eq!(shared.state(), ClientState::Listening);
    assert!(path.exists());
}

#[test]
fn a_removed_socket_file_is_created_again_and_connections_stay_open() {
    let mut world = World::new();
    let mut before = world.connect();
    world.send(&mut before, HELLO);
    let path = world.folder.path().join("run/job.sock");
    std::fs::remove_dir_all(path.parent().unwrap()).unwrap();
    world.turn();
    assert!(!path.exists(), "it is not looked for all the time");
    pass(5);
    world.turn();
    assert_eq!(world.shared.state(), ClientState::Listening);
    let mut after = world.connect();
    world.send(&mut after, HELLO);
    world.send(&mut before, "{\"type\":\"step\",\"step\":3}\n");
    assert_eq!(world.count("memwarden_training_clients"), 2.0);
    assert!(world.sample().0.contains("memwarden_training_step{workload=\"slurm/17\",rank=\"3\"} 3"));
}

#[test]
fn the_thread_reads_and_ends() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("job.sock");
    let shared = Arc::new(Shared::new(folder.path().to_path_buf(), Subordinates::default(), 8));
    let hold = listener::start(path.clone(), options(&path), Arc::clone(&shared), Arc::default()).unwrap();
    let wait = |what: &dyn Fn() -> bool| {
        while !what() {
            std::thread::yield_now()
        }
    };
    wait(&|| shared.state() == ClientState::Listening);
    let mut stream = UnixStream::connect(&path).unwrap();
    stream.write_all(HELLO.as_bytes()).unwrap();
    wait(&|| shared.clients().iter().any(|(client, _)| lock(&client.rank).hello.is_some()));
    assert!(!hold.has_ended());
    drop(hold);
    assert!(!path.exists());
    wait(&|| shared.clients().is_empty());
}

#[test]
fn flops_have_their_convention_and_mfu_needs_a_known_peak() {
    let mut world = World::new();
    let mut stream = world.connect();
    world.source.options.peak_flops = vec![Override { name: "Thing 1".to_owned(), flops: 1e15 }];
    let hello = |device: &str| {
        format!(
            r#"{{"type":"hello","v":1,"rank":0,"world":8,"data_parallel":4,"sequence_length":4096,"precision":"bf16","devices":{{"0":{{"name":"{device}"}}}},"model":{{"kind":"llama","layers":32,"hidden":4096,"ffn":14336,"heads":32,"kv_heads":8,"head_dim":128,"vocab":128256,"gated":true,"parameters":8030261248,"trainable":8030261248}}}}"#
        ) + "\n"
    };
    world.send(&mut stream, &hello("Thing 1"));
    for step in 0..10 {
        let tokens = step * 10_000;
        world.send(&mut stream, &format!("{{\"type\":\"step\",\"step\":{step},\"tokens\":{tokens}}}\n"));
        pass(1);
    }
    let flops = |shown: &str| -> Vec<String> {
        shown
            .lines()
            .filter(|line| ["flops", "mfu"].iter().any(|word| line.contains(word)))
            .map(str::to_owned)
            .collect()
    };
    let shown = flops(&world.sample().0);
    check(
        &shown.join("\n"),
        expect![[r#"
        memwarden_training_flops_per_second{workload="slurm/17",rank="0",convention="full"} 257352007680000
        memwarden_training_flops_per_second{workload="slurm/17",rank="0",convention="causal"} 241245880320000
        memwarden_training_flops_per_second{workload="slurm/17",rank="0",convention="6n"} 240907837440000
        memwarden_training_flops_per_second{workload="slurm/17",rank="0",convention="hardware"} 257352007680000
        memwarden_training_mfu_ratio{workload="slurm/17",rank="0",convention="full"} 0.25735200768
        memwarden_training_mfu_ratio{workload="slurm/17",rank="0",convention="causal"} 0.24124588032
        memwarden_training_mfu_ratio{workload="slurm/17",rank="0",convention="6n"} 0.24090783744
        memwarden_training_mfu_ratio{workload="slurm/17",rank="0",convention="hardware"} 0.25735200768
    "#]],
    );
    world.send(&mut stream, &hello("Thing 2"));
    assert_eq!(flops(&world.sample().0), shown[..4], "no peak is known of the other");
}

#[test]
fn a_thread_that_failed_is_started_again() {
    let mut world = World::new();
    let path = world.folder.path().join("other.sock");
    world.source.options = options(&path);
    world.source.thread = None;
    let mut batch = Batch::new();
    world.source.sample(now(), &mut batch).unwrap();
    let Some((_, Some(hold))) = &world.source.thread else { panic!("no thread") };
    hold.wake();
    while !hold.has_ended() {
        std::thread::yield_now();
    }
    let why = world.source.sample(now(), &mut batch).unwrap_err().to_string();
    assert_eq!(why, "the thread of the job socket ended; it is restarted");
    world.source.sample(now(), &mut batch).unwrap();
}
