//! Tests of the source with real requests: the receiver's thread, and clients in this process.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::fs::symlink;
use std::time::Duration;

use expect_test::{Expect, expect};
use flate2::Compression;
use flate2::write::GzEncoder;
use opentelemetry_proto::tonic::collector::metrics::v1::metrics_service_client::MetricsServiceClient;
use opentelemetry_proto::tonic::collector::metrics::v1::{
    ExportMetricsServiceRequest, ExportMetricsServiceResponse,
};
use prost::Message as _;

use super::senders::RequestOrigin;
use super::*;
use crate::host::{clock, process};
use crate::model::facts::{GpuProcess, ProcessRow, ProcessTable, ReportedRank};
use crate::serve::prometheus::{Format, encode};
use crate::sources::testing::without_pid;

struct World {
    _folder: tempfile::TempDir,
    source: Otlp,
    address: SocketAddr,
    own: ProcessKey,
    /// Whether this process belongs to a workload.
    is_member: bool,
    by_socket: Vec<ReportedRank>,
    running: bool,
}

fn options(max_ranks: usize, max_connections: usize) -> Options {
    let listen = vec!["127.0.0.1:0".to_owned()];
    Options { listen, max_connections, max_ranks, stale_after: Duration::from_secs(60) }
}

impl World {
    fn new() -> Self {
        Self::with(&options(8, 16))
    }

    fn with(options: &Options) -> Self {
        let folder = tempfile::tempdir().unwrap();
        // The kernel's procfs, with this process only.
        for name in ["self", &std::process::id().to_string()] {
            symlink(format!("/proc/{name}"), folder.path().join(name)).unwrap();
        }
        let stat = std::fs::read("/proc/self/stat").unwrap();
        let own = ProcessKey { pid: std::process::id(), start: process::stat(&stat).unwrap().start };
        let mut source =
            Otlp::new(options.clone(), folder.path().to_path_buf(), folder.path().join("passwd"));
        let shared = source.shared().unwrap();
        let begun = clock::now();
        let address = loop {
            if let [address] = shared.addresses()[..] {
                break address;
            }
            assert!(clock::now().since(begun) < Duration::from_secs(20), "{:?}", shared.trouble());
            std::thread::yield_now();
        };
        let mut world = Self {
            _folder: folder,
            source,
            address,
            own,
            is_member: true,
            by_socket: Vec::new(),
            running: true,
        };
        world.sample(Duration::ZERO);
        world
    }

    /// Every series at `later` after now, with the pid of this process as `PID`.
    fn sample(&mut self, later: Duration) -> String {
        self.sample_facts(later).0
    }

    /// Every series as text, and the facts.
    fn sample_facts(&mut self, later: Duration) -> (String, Facts) {
        let mut batch = Batch::new();
        let mut rows = Vec::new();
        if self.running {
            rows.push(ProcessRow { parent: 1, ..ProcessRow::new(self.own, "python".into()) });
        }
        let gpu = GpuProcess { pid: self.own.pid, gpu: "2".into(), uuid: "GPU-a".into(), memory: None };
        batch.facts = Facts {
            processes: Some(Arc::new(ProcessTable { rows, boot: None })),
            gpu_processes: vec![gpu],
            members: self
                .is_member
                .then(|| crate::model::facts::Membership::named(self.own, "slurm/17"))
                .into_iter()
                .collect(),
            ranks: self.by_socket.clone(),
            ..Facts::default()
        };
        self.source.sample(clock::now().plus(later), &mut batch).unwrap();
        let (families, dropped, facts) = batch.seal();
        assert!(dropped.is_empty(), "{dropped:?}");
        let text = encode(&families, Format::Text);
        let lines = text.lines().filter(|line| !line.starts_with('#')).map(|line| format!("{line}\n"));
        (without_pid(&lines.collect::<String>(), self.own.pid), facts)
    }

    /// The series of ranks, except the time since the last push.
    fn check(&mut self, expected: Expect) {
        let text = self.sample(Duration::ZERO);
        let of_ranks = |line: &&str| line.starts_with("memwarden_training") && !line.contains("message_age");
        let lines: Vec<&str> = text.lines().filter(of_ranks).collect();
        expected.assert_eq(&lines.join("\n"));
    }

    /// The receiver's own series that are not 0.
    fn health(&mut self) -> String {
        let text = self.sample(Duration::ZERO);
        let own = |line: &&str| line.starts_with("memwarden_otlp_receiver_") && !line.ends_with(" 0");
        let lines: Vec<&str> = text
            .lines()
            .filter(own)
            .map(|line| line.trim_start_matches("memwarden_otlp_receiver_"))
            .collect();
        lines.join("\n")
    }

    /// The receiver's own series, once no connection is open: a closed one counts until its task has detected the end.
    fn settled(&mut self) -> String {
        for _ in 0..5_000 {
            if !self.health().contains("\nconnections{") {
                break;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        self.health()
    }

    /// Sends bytes on a new connection and returns the response until its end.
    fn exchange(&self, bytes: &[u8]) -> Vec<u8> {
        let mut stream = TcpStream::connect(self.address).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
        // A request that is rejected early may not be read completely.
        let _ = stream.write_all(bytes);
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer);
        answer
    }

    /// Posts a body; returns the status and the body of the response.
    fn post(&self, path: &str, headers: &str, body: &[u8]) -> (u16, Vec<u8>) {
        let mut bytes = format!(
            "POST {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n{headers}content-length: {}\r\n\r\n",
            body.len()
        )
        .into_bytes();
        bytes.extend(body);
        let answer = self.exchange(&bytes);
        let head = answer.windows(4).position(|end| end == b"\r\n\r\n").map_or(answer.len(), |end| end + 4);
        let status = std::str::from_utf8(&answer[..head]).unwrap().split(' ').nth(1);
        (status.and_then(|status| status.parse().ok()).unwrap_or(0), answer[head..].to_vec())
    }

    fn push(&self, request: &ExportMetricsServiceRequest) -> ExportMetricsServiceResponse {
        let (status, body) = self.post("/v1/metrics", PROTOBUF, &request.encode_to_vec());
        assert_eq!(status, 200);
        ExportMetricsServiceResponse::decode(&body[..]).unwrap()
    }
}

const PROTOBUF: &str = "content-type: application/x-protobuf\r\n";
const ZIPPED: &str = "content-type: application/x-protobuf\r\ncontent-encoding: gzip\r\n";

fn zip(plain: &[u8]) -> Vec<u8> {
    let mut out = GzEncoder::new(Vec::new(), Compression::fast());
    out.write_all(plain).unwrap();
    out.finish().unwrap()
}

fn grpc<T>(work: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(work)
}

#[test]
fn megatron_metrics_by_http_have_their_workload_and_gpu() {
    let mut world = World::new();
    let response = world.push(&testing::megatron(5));
    // The norm that is not finite.
    assert_eq!(response.partial_success.unwrap().rejected_data_points, 1);
    world.check(expect![[r#"
        memwarden_training_allocator_allocated_peak_bytes{workload="slurm/17",rank="5",device="1",gpu="2"} 66035122176
        memwarden_training_flops_per_second{workload="slurm/17",rank="5",convention="causal"} 412500000000000
        memwarden_training_learning_rate{workload="slurm/17",rank="5"} 0.0003
        memwarden_training_loss{workload="slurm/17",rank="5"} 2.25
        memwarden_training_skipped_steps_total{workload="slurm/17",rank="5"} 2
        memwarden_training_throughput_tokens_per_second{workload="slurm/17",rank="5"} 20000
        memwarden_training_step_last_duration_seconds{workload="slurm/17",rank="5"} 0.65"#]]);
    expect![[r#"
        ranks{peer="workload"} 1
        requests_total{protocol="http",outcome="partial"} 1
        points_total{outcome="taken"} 7
        points_total{outcome="unknown"} 1
        points_total{outcome="refused"} 1"#]]
    .assert_eq(&world.settled());
}

#[test]
fn the_generated_client_pushes_by_grpc_with_and_without_gzip() {
    let mut world = World::new();
    grpc(async {
        let endpoint = tonic::transport::Endpoint::new(format!("http://{}", world.address)).unwrap();
        let client = MetricsServiceClient::new(endpoint.connect().await.unwrap());
        let zipped = client.clone().send_compressed(tonic::codec::CompressionEncoding::Gzip);
        for (rank, mut client) in [(0, client), (1, zipped)] {
            let response = client.export(testing::megatron(rank)).await.unwrap().into_inner();
            assert_eq!(response.partial_success.unwrap().rejected_data_points, 1);
        }
        let bomb = ExportMetricsServiceRequest { resource_metrics: vec![Default::default(); 200_000] };
        let mut client = MetricsServiceClient::new(endpoint.connect().await.unwrap())
            .send_compressed(tonic::codec::CompressionEncoding::Gzip);
        let refused = client.export(bomb).await.unwrap_err();
        assert_eq!(
            (refused.code(), refused.message()),
            (tonic::Code::InvalidArgument, "the request would take more than 24 MiB in memory")
        );
    });
    let text = world.sample(Duration::ZERO);
    for rank in [0, 1] {
        let loss = format!("memwarden_training_loss{{workload=\"slurm/17\",rank=\"{rank}\"}} 2.25\n");
        assert!(text.contains(&loss), "{text}");
    }
}

#[test]
fn the_sdk_pushes_by_grpc() {
    use opentelemetry::metrics::MeterProvider as _;
    use opentelemetry_otlp::WithExportConfig as _;
    let mut world = World::new();
    let endpoint = format!("http://{}", world.address);
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let provider = runtime.block_on(async {
        let exporter = opentelemetry_otlp::MetricExporter::builder()
            .with_tonic()
            .with_endpoint(endpoint)
            .build()
            .unwrap();
        let resource = opentelemetry_sdk::Resource::builder_empty()
            .with_attribute(opentelemetry::KeyValue::new("service.instance.id", "17-rank6"))
            .build();
        let reader = opentelemetry_sdk::metrics::PeriodicReader::builder(exporter).build();
        opentelemetry_sdk::metrics::SdkMeterProvider::builder()
            .with_reader(reader)
            .with_resource(resource)
            .build()
    });
    let meter = provider.meter("job");
    meter.f64_gauge("memwarden.training.loss").build().record(3.5, &[]);
    meter.u64_counter("memwarden.training.tokens").with_unit("{token}").build().add(4_096, &[]);
    let phase = opentelemetry::KeyValue::new("phase", "forward");
    meter.f64_counter("memwarden.training.phase").with_unit("s").build().add(1.5, &[phase]);
    let bounds = (-9..10).map(|exponent| f64::from(exponent).exp2()).collect();
    let steps =
        meter.f64_histogram("memwarden.training.step.duration").with_unit("s").with_boundaries(bounds);
    let steps = steps.build();
    steps.record(0.4, &[]);
    steps.record(0.6, &[]);
    provider.force_flush().unwrap();
    steps.record(2.0, &[]);
    provider.force_flush().unwrap();
    world.check(expect![[r#"
        memwarden_training_loss{workload="slurm/17",rank="6"} 3.5
        memwarden_training_phase_seconds_total{workload="slurm/17",rank="6",phase="forward"} 1.5
        memwarden_training_tokens_total{workload="slurm/17",rank="6"} 4096
        memwarden_training_step_duration_seconds_bucket{workload="slurm/17",rank="6",le="0.001953125"} 0
        memwarden_training_step_duration_seconds_bucket{workload="slurm/17",rank="6",le="0.00390625"} 0
        memwarden_training_step_duration_seconds_bucket{workload="slurm/17",rank="6",le="0.0078125"} 0
        memwarden_training_step_duration_seconds_bucket{workload="slurm/17",rank="6",le="0.015625"} 0
        memwarden_training_step_duration_seconds_bucket{workload="slurm/17",rank="6",le="0.03125"} 0
        memwarden_training_step_duration_seconds_bucket{workload="slurm/17",rank="6",le="0.0625"} 0
        memwarden_training_step_duration_seconds_bucket{workload="slurm/17",rank="6",le="0.125"} 0
        memwarden_training_step_duration_seconds_bucket{workload="slurm/17",rank="6",le="0.25"} 0
        memwarden_training_step_duration_seconds_bucket{workload="slurm/17",rank="6",le="0.5"} 1
        memwarden_training_step_duration_seconds_bucket{workload="slurm/17",rank="6",le="1.0"} 2
        memwarden_training_step_duration_seconds_bucket{workload="slurm/17",rank="6",le="2.0"} 3
        memwarden_training_step_duration_seconds_bucket{workload="slurm/17",rank="6",le="4.0"} 3
        memwarden_training_step_duration_seconds_bucket{workload="slurm/17",rank="6",le="8.0"} 3
        memwarden_training_step_duration_seconds_bucket{workload="slurm/17",rank="6",le="16.0"} 3
        memwarden_training_step_duration_seconds_bucket{workload="slurm/17",rank="6",le="32.0"} 3
        memwarden_training_step_duration_seconds_bucket{workload="slurm/17",rank="6",le="64.0"} 3
        memwarden_training_step_duration_seconds_bucket{workload="slurm/17",rank="6",le="128.0"} 3
        memwarden_training_step_duration_seconds_bucket{workload="slurm/17",rank="6",le="256.0"} 3
        memwarden_training_step_duration_seconds_bucket{workload="slurm/17",rank="6",le="512.0"} 3
        memwarden_training_step_duration_seconds_bucket{workload="slurm/17",rank="6",le="+Inf"} 3
        memwarden_training_step_duration_seconds_sum{workload="slurm/17",rank="6"} 3
        memwarden_training_step_duration_seconds_count{workload="slurm/17",rank="6"} 3
        memwarden_training_step_last_duration_seconds{workload="slurm/17",rank="6"} 2"#]]);
    provider.shutdown().unwrap();
}

#[test]
fn the_job_socket_and_the_first_process_take_precedence() {
    let mut world = World::new();
    world.push(&testing::megatron(5));
    let reported = |key, rank: &str| ReportedRank {
        key,
        workload: "slurm/17".into(),
        rank: rank.into(),
        cannot_save: None,
    };
    let shown = |world: &mut World| world.sample(Duration::ZERO).contains("memwarden_training_loss{");
    assert!(shown(&mut world));
    world.by_socket = vec![reported(None, "5")];
    assert!(!shown(&mut world), "another process reported that rank");
    world.by_socket = vec![reported(Some(world.own), "0")];
    assert!(!shown(&mut world), "the process itself reported another rank");
    assert!(world.health().contains("ranks_hidden 1"));
    world.by_socket = vec![reported(None, "4")];
    assert!(shown(&mut world));
}

#[test]
fn pushed_allocator_values_have_no_process() {
    let mut world = World::new();
    let of = |figure: &str, device, value| {
        let name = format!("memwarden.training.{figure}");
        let mut metric = testing::gauge(&name, value, &[testing::int("device", device)]);
        metric.unit = "By".to_owned();
        metric
    };
    let figures = vec![
        of("allocator.allocated", 0, 50.0),
        of("allocator.allocated", 1, 60.0),
        of("allocator.reserved", 1, 70.0),
        of("device.free", 1, 10.0),
    ];
    world.push(&testing::request(&[testing::int("rank", 5)], figures));
    let workload = crate::model::facts::Membership::named(world.own, "slurm/17").workload.key.clone();
    let pushed = |allocated, reserved: Option<u64>, free: Option<u64>| Allocator {
        process: None,
        workload: Some(workload.clone()),
        allocated: Bytes::new(allocated),
        reserved: reserved.map(Bytes::new),
        free: free.map(Bytes::new),
        age: None,
    };
    let all = world.sample_facts(Duration::ZERO).1.allocators;
    assert_eq!(all, [pushed(50, None, None), pushed(60, Some(70), Some(10))]);
    world.is_member = false;
    assert_eq!(world.sample_facts(Duration::ZERO).1.allocators, []);
}

#[test]
fn series_of_silent_or_exited_ranks_disappear() {
    let mut world = World::new();
    world.push(&testing::megatron(5));
    let series = |text: &str| text.lines().filter(|line| line.starts_with("memwarden_training")).count();
    let later = world.sample(Duration::from_secs(50));
    let age = later.lines().find(|line| line.starts_with("memwarden_training_message_age_seconds")).unwrap();
    assert!(age.rsplit_once(' ').unwrap().1.parse::<f64>().unwrap() >= 50.0, "{age}");
    assert_eq!(series(&world.sample(Duration::from_secs(62))), 0);
    world.push(&testing::megatron(5));
    assert_ne!(series(&world.sample(Duration::ZERO)), 0);
    world.running = false;
    assert_eq!(series(&world.sample(Duration::ZERO)), 0);
}

#[test]
fn a_rank_has_no_workload_until_its_process_has_one() {
    let mut world = World::new();
    world.is_member = false;
    world.sample(Duration::ZERO);
    world.push(&testing::megatron(5));
    let text = world.sample(Duration::ZERO);
    assert!(text.contains("memwarden_training_loss{rank=\"5\"} 2.25\n"), "{text}");
    assert!(world.health().contains("ranks{peer=\"none\"} 1"));
    // Whatever the message contains, and although another user's process sends the same.
    world.is_member = true;
    world.sample(Duration::ZERO);
    world.push(&testing::megatron(5));
    let text = world.sample(Duration::ZERO);
    assert!(text.contains("memwarden_training_loss{workload=\"slurm/17\",rank=\"5\"} 2.25\n"), "{text}");
}

#[test]
fn ranks_are_bounded() {
    let mut world = World::with(&options(3, 8));
    for rank in 0..8 {
        let refused = world.push(&testing::megatron(rank)).partial_success.unwrap().rejected_data_points;
        assert_eq!(refused, if rank < 3 { 1 } else { 8 }, "rank {rank}");
    }
    let beyond = world.push(&testing::megatron(8)).partial_success.unwrap().rejected_data_points;
    assert_eq!(beyond, 8, "a rank outside its world of 8");
    let text = world.sample(Duration::ZERO);
    assert_eq!(text.matches("memwarden_training_loss{").count(), 3);
}

#[test]
fn one_user_leaves_places_for_anothers_ranks() {
    let shared = SendersShared::new("proc".into(), Subordinates::default(), &options(8, 16));
    let push = |user, process, rank| {
        let sender = PushSender::Process(ProcessKey { pid: process, start: 1 });
        let origin = RequestOrigin { user: Some(user), sender, previous_sender: None };
        shared.receive(&testing::megatron(rank), origin, Timestamp::from_secs(u64::from(process)))
    };
    for process in 1..=10 {
        push(61_002, process, 0);
    }
    let tally = push(61_001, 11, 0);
    assert_eq!(tally.taken, 7, "{tally:?}");
    let now = Timestamp::from_secs(12);
    let ranks = shared.ranks(now, |_| true);
    let of = |user| ranks.values().filter(|rank| rank.user == Some(user)).count();
    assert_eq!((of(61_001), of(61_002), ranks.len()), (1, 7, 8));
    drop(ranks);
    let shortages: Vec<_> =
        shared.shortages(now).into_iter().map(|shortage| (shortage.limit, shortage.user)).collect();
    assert_eq!(shortages, [("otlp_ranks", Some(61_002))]);
}

#[test]
fn hostile_requests_are_answered_and_counted() {
    let mut world = World::new();
    let push = testing::megatron(5).encode_to_vec();
    let status = |path, headers: &str, body: &[u8]| world.post(path, headers, body).0;
    assert_eq!(status("/v1/metrics", PROTOBUF, b"\xff\xff\xff"), 400);
    assert_eq!(status("/v1/metrics", PROTOBUF, &push[..push.len() - 1]), 400);
    assert_eq!(status("/v1/metrics", "content-type: application/json\r\n", b"{}"), 415);
    assert_eq!(status("/v1/metrics", "", &push), 415);
    let brotli = "content-type: application/x-protobuf\r\ncontent-encoding: br\r\n";
    assert_eq!(status("/v1/metrics", brotli, &push), 415);
    for page in ["origin: http://a.example\r\n", "origin: null\r\n", "sec-fetch-site: same-origin\r\n"] {
        assert_eq!(status("/v1/metrics", &format!("{PROTOBUF}{page}"), &push), 403, "{page}");
    }
    assert_eq!(status("/v1/traces", PROTOBUF, &push), 404);
    assert_eq!(status("/v1/logs", PROTOBUF, &push), 404);
    assert_eq!(status("/v1/metrics", ZIPPED, &push), 400, "it is not zipped");
    assert_eq!(status("/v1/metrics", ZIPPED, &zip(&push)), 200);
    // A bomb of zeros, one of empty messages, and a request that declares a size that is too large.
    assert_eq!(status("/v1/metrics", ZIPPED, &zip(&vec![0; 6 << 20])), 413);
    assert_eq!(status("/v1/metrics", ZIPPED, &zip(&[10, 0].repeat(1 << 20))), 413);
    assert_eq!(status("/v1/metrics", PROTOBUF, &vec![0; (4 << 20) + 1]), 413);
    let (code, body) = world.post("/v1/metrics", PROTOBUF, b"\xff");
    assert_eq!((code, &body[..]), (400, &b"\x08\x03\x12\x28the body is not a valid protobuf message"[..]));
    let got = world.exchange(b"GET /v1/metrics HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n");
    assert!(got.starts_with(b"HTTP/1.1 405 "));
    assert!(world.exchange(b"\x16\x03\x01\x02\x00\x01\r\n\r\n").starts_with(b"HTTP/1.1 400 "), "it is TLS");
    expect![[r#"
        ranks{peer="workload"} 1
        requests_total{protocol="http",outcome="partial"} 1
        requests_total{protocol="http",outcome="malformed"} 4
        requests_total{protocol="http",outcome="too_large"} 3
        requests_total{protocol="http",outcome="unsupported"} 9
        points_total{outcome="taken"} 7
        points_total{outcome="unknown"} 1
        points_total{outcome="refused"} 1"#]]
    .assert_eq(&world.settled());
}

#[test]
fn other_signals_by_grpc_are_unimplemented() {
    let world = World::new();
    let request = "POST /opentelemetry.proto.collector.trace.v1.TraceService/Export HTTP/1.1\r\nhost: x\r\n\
        connection: close\r\ncontent-type: application/grpc\r\ncontent-length: 5\r\n\r\n\0\0\0\0\0";
    let answer = String::from_utf8(world.exchange(request.as_bytes())).unwrap();
    assert!(answer.starts_with("HTTP/1.1 200 ") && answer.contains("grpc-status: 12\r\n"), "{answer}");
}

#[test]
fn connections_are_bounded_for_one_user() {
    let mut world = World::with(&options(8, 4));
    let mut held: Vec<TcpStream> = (0..2).map(|_| TcpStream::connect(world.address).unwrap()).collect();
    // They are accepted in order, so that the third is accepted after both of them.
    let mut third = TcpStream::connect(world.address).unwrap();
    third.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
    assert_eq!(third.read(&mut [0]).unwrap(), 0, "half of four are there");
    let health = world.health();
    assert!(health.contains("connections_refused_total{reason=\"user\"} 1"), "{health}");
    assert!(health.contains("connections{peer=\"workload\"} 2"), "{health}");
    held.clear();
}

#[test]
fn the_fuzzers_seed_is_what_a_job_pushes() {
    let seed = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/corpus/otlp_metrics/megatron");
    let push = testing::megatron(5).encode_to_vec();
    if std::env::var_os("UPDATE_EXPECT").is_some() {
        std::fs::create_dir_all(seed.parent().unwrap()).unwrap();
        std::fs::write(&seed, &push).unwrap();
    }
    assert!(std::fs::read(&seed).unwrap() == push, "run the tests with UPDATE_EXPECT=1");
}

proptest::proptest! {
    #[test]
    fn no_bytes_panic(bytes in proptest::collection::vec(proptest::num::u8::ANY, 0..400)) {
        answer::fuzz(&bytes);
    }

    #[test]
    fn no_damaged_push_panics(
        place in 0_usize..700,
        byte in proptest::num::u8::ANY,
        cut in 0_usize..700,
    ) {
        let mut bytes = testing::megatron(5).encode_to_vec();
        let length = bytes.len();
        bytes[place % length] = byte;
        bytes.truncate(length - cut % length);
        answer::fuzz(&bytes);
    }

    #[test]
    fn no_decoded_push_panics(
        name in proptest::sample::select(vec![
            "megatron.training.step_duration_ms", "memwarden.training.step.duration",
            "megatron.training.tokens_per_sec", "memwarden.training.tokens", "megatron.training.loss",
            "memwarden.training.phase", "memwarden.training.allocator.active", "memwarden.training.flops",
        ]),
        unit in proptest::sample::select(vec!["", "s", "ms", "By", "{token}", "1"]),
        values in proptest::collection::vec(proptest::num::f64::ANY, 1..5),
        counts in proptest::collection::vec(proptest::num::u64::ANY, 0..5),
        temporality in -1_i32..4,
        key in "(device|phase|convention|rank|dl.local_rank|x)",
        number in proptest::num::i64::ANY,
    ) {
        let attributes = [testing::int(&key, number)];
        let mut metrics = vec![
            testing::histogram(name, unit, temporality, (&values, &counts), values[0]),
            testing::sum(name, values[0], temporality, counts.len() as u64, number.unsigned_abs()),
        ];
        metrics.extend(values.iter().map(|value| testing::gauge(name, *value, &attributes)));
        answer::fuzz(&testing::request(&attributes, metrics).encode_to_vec());
    }
}
