use std::path::Path;

use expect_test::{Expect, expect};
use proptest::prelude::*;
use prost::Message as _;

use super::*;

/// The messages of a W&B run file that have lists, to write them.
mod messages {
    use crate::files::run_records::wandb::{Gpu, Item, Output, Timestamp, Total};

    #[derive(Clone, prost::Message)]
    pub(super) struct Record {
        #[prost(message, optional, tag = "2")]
        pub(super) history: Option<History>,
        #[prost(message, optional, tag = "4")]
        pub(super) output: Option<Output>,
        #[prost(message, optional, tag = "7")]
        pub(super) stats: Option<Stats>,
        #[prost(message, optional, tag = "26")]
        pub(super) environment: Option<Environment>,
    }

    #[derive(Clone, prost::Message)]
    pub(super) struct History {
        #[prost(message, repeated, tag = "1")]
        pub(super) item: Vec<HistoryItem>,
    }

    #[derive(Clone, prost::Message)]
    pub(super) struct HistoryItem {
        #[prost(string, tag = "1")]
        pub(super) key: String,
        #[prost(string, repeated, tag = "2")]
        pub(super) nested_key: Vec<String>,
        #[prost(string, tag = "16")]
        pub(super) value_json: String,
    }

    #[derive(Clone, prost::Message)]
    pub(super) struct Stats {
        #[prost(message, optional, tag = "2")]
        pub(super) timestamp: Option<Timestamp>,
        #[prost(message, repeated, tag = "3")]
        pub(super) item: Vec<Item>,
    }

    #[derive(Clone, prost::Message)]
    pub(super) struct Environment {
        #[prost(message, optional, tag = "21")]
        pub(super) memory: Option<Total>,
        #[prost(message, repeated, tag = "24")]
        pub(super) gpu_nvidia: Vec<Gpu>,
    }
}

fn fixture(name: &str) -> Vec<u8> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures/runs");
    std::fs::read(folder.join(name)).unwrap()
}

fn read(bytes: &[u8]) -> Result<RunRecord, RunRecordError> {
    Format::of(&bytes[..bytes.len().min(FRONT)]).expect("the format is known").read(bytes)
}

fn shown(bytes: &[u8]) -> String {
    let record = match read(bytes) {
        Ok(record) => record,
        Err(error) => return error.to_string(),
    };
    let series = record.series.iter().map(|series| {
        let (first, last) = (series.rows[0], series.rows[series.rows.len() - 1]);
        let kind = if series.gpu { " (GPU)" } else { "" };
        format!("{}{kind}: {} of {:?}, {}", series.name, series.rows.len(), first.limit, last.used)
    });
    let ends = record.ends.iter().map(|end| {
        let (step, planned, phase, code) = (end.step, end.steps_planned, end.phase, end.exit_code);
        let memory = (end.used_bytes, end.limit_bytes);
        format!("{:?} step {step:?} of {planned:?} in {phase:?}, code {code:?}, memory {memory:?}", end.cause)
    });
    let lines: Vec<String> = series.chain(ends).chain(record.remarks.iter().cloned()).collect();
    format!("{}\n{}", record.tool, lines.join("\n"))
}

fn check(bytes: &[u8], expected: Expect) {
    expected.assert_eq(&shown(bytes));
}

#[test]
fn files_of_both_clients_have_gpus_host_console_and_exit_code() {
    for name in ["backward.wandb", "client-0.16.wandb"] {
        let record = read(&fixture(name)).unwrap();
        let names: Vec<&str> = record.series.iter().map(|series| series.name.as_str()).collect();
        let all = ["memory of GPU 0", "memory of GPU 1", "memory of the process", "memory of the host"];
        assert_eq!(names, all, "{name}");
        assert!(record.series.iter().all(|series| series.rows.len() > 4), "{name}");
        let gpu = record.series[1].rows[0];
        // The old client has no total: it follows from bytes and percent.
        assert!((gpu.limit.unwrap() / 85_520_809_984.0 - 1.0).abs() < 0.002, "{name}: {gpu:?}");
        assert!(record.series[3].rows[0].limit.is_some(), "{name}");
        let [end] = &*record.ends else { panic!("{:?}", record.ends) };
        assert_eq!((end.cause, end.exit_code), (EndCause::GpuMemory, Some(1)), "{name}");
        assert_eq!((end.step, end.steps_planned, end.phase), (Some(8), Some(10), Some(Phase::Backward)));
        assert_eq!(end.allocation.unwrap().requested, Some(2_147_483_648.0));
        // `_step` counts the eight calls of `log` from 0 on.
        assert_eq!(record.steps.recorded(), Some(7), "{name}");
        assert_eq!(record.remarks, [""; 0]);
    }
    let record = read(&fixture("finished.wandb")).unwrap();
    assert_eq!((record.ends[0].cause, record.ends[0].step), (EndCause::Finished, Some(8)));
}

#[test]
fn a_file_that_was_cut_is_read_until_its_end() {
    let bytes = fixture("backward.wandb");
    let record = read(&bytes[..bytes.len() / 2]).unwrap();
    assert_eq!(record.ends[0].cause, EndCause::Unknown);
    let half = bytes.len() / 2;
    let remarks = [
        format!("the file ends within a record, at offset {half}"),
        "no exit code: the run was killed, or had not ended".to_owned(),
    ];
    assert_eq!(record.remarks, remarks);
    // Zeros that a file system left.
    let zeros = [&bytes[..], &[0; 100]].concat();
    assert_eq!(read(&zeros).unwrap().ends[0].cause, EndCause::GpuMemory);
}

#[test]
fn damaged_run_files_have_an_offset() {
    let bytes = fixture("backward.wandb");
    let with = |at: usize, byte: u8| {
        let mut bytes = bytes.clone();
        bytes[at] = byte;
        shown(&bytes)
    };
    assert_eq!(with(4, 9), "at offset 0: not the header of a W&B run file of version 0");
    assert_eq!(with(20, 0xff), "at offset 7: the checksum of the chunk is wrong");
    assert_eq!(shown(b":W&B"), "at offset 0: not the header of a W&B run file of version 0");
    check(&log(&[(1, b"\xff")]), expect!["at offset 7: a record that is not a message of W&B"]);
    check(&log(&[(9, b"")]), expect!["at offset 7: an unknown kind of chunk"]);
    check(
        &log(&[(2, b""), (1, b"")]),
        expect!["at offset 14: a part of a record that does not follow the one before it"],
    );
    let longer = [&log(&[])[..], &[1; 7], &[0; 40_000]].concat();
    check(&longer, expect!["at offset 7: the checksum of the chunk is wrong"]);
}

/// A run file of these chunks.
fn log(chunks: &[(u8, &[u8])]) -> Vec<u8> {
    let mut bytes = b":W&B\xE1\xBE\0".to_vec();
    for (kind, data) in chunks {
        let mut sum = flate2::Crc::new();
        sum.update(&[*kind]);
        sum.update(data);
        bytes.extend(sum.sum().to_le_bytes());
        bytes.extend(u16::try_from(data.len()).unwrap().to_le_bytes());
        bytes.push(*kind);
        bytes.extend_from_slice(data);
    }
    bytes
}

/// A run file of records.
fn run(records: &[messages::Record]) -> Vec<u8> {
    let encoded: Vec<Vec<u8>> = records.iter().map(messages::Record::encode_to_vec).collect();
    log(&encoded.iter().map(|record| (1, &**record)).collect::<Vec<_>>())
}

fn stats(at: i64, items: &[(&str, &str)]) -> messages::Record {
    let item = |(key, value): &(&str, &str)| wandb::Item { key: (*key).into(), value_json: (*value).into() };
    let timestamp = Some(wandb::Timestamp { seconds: at, nanos: 0 });
    let stats = messages::Stats { timestamp, item: items.iter().map(item).collect() };
    messages::Record { stats: Some(stats), ..messages::Record::default() }
}

#[test]
fn percentages_need_a_total() {
    let percent =
        stats(10, &[("system.gpu.0.memoryAllocated", "50"), ("gpu.process.0.memoryAllocated", "9")]);
    let gpus = vec![wandb::Gpu { memory_total: 1000 }];
    let environment = messages::Environment { memory: None, gpu_nvidia: gpus };
    let total = messages::Record { environment: Some(environment), ..messages::Record::default() };
    check(
        &run(std::slice::from_ref(&percent)),
        expect![[r#"
            W&B
            Unknown step None of None in None, code None, memory (None, None)
            memory of GPU 0 is recorded in percent of a total that is not recorded, and left out
            no exit code: the run was killed, or had not ended"#]],
    );
    check(
        &run(&[percent, total]),
        expect![[r#"
            W&B
            memory of GPU 0 (GPU): 1 of Some(1000.0), 500
            Unknown step None of None in None, code None, memory (None, None)
            no exit code: the run was killed, or had not ended"#]],
    );
}

#[test]
fn steps_are_those_of_the_trainer() {
    let history = |at: &str, items: &[(&str, &str)]| {
        let item = |(key, value): &(&str, &str)| messages::HistoryItem {
            key: (*key).into(),
            value_json: (*value).into(),
            ..messages::HistoryItem::default()
        };
        let item = items.iter().chain(&[("_timestamp", at)]).map(item).collect();
        messages::Record { history: Some(messages::History { item }), ..messages::Record::default() }
    };
    let between = |records: &[messages::Record]| read(&run(records)).unwrap().steps.recorded();
    let calls = [history("10.5", &[("_step", "0")]), history("20.5", &[("_step", "1")])];
    assert_eq!(between(&calls), Some(1));
    let trainer = [
        history("10.5", &[("_step", "0"), ("train/global_step", "10")]),
        history("15", &[("_step", "1"), ("train/loss", "9")]),
        history("20.5", &[("_step", "2"), ("train/global_step", "20")]),
    ];
    assert_eq!(between(&trainer), Some(20), "the run began at 0");
    assert_eq!(between(&[history("\"NaN\"", &[("_step", "0")]), history("1", &[("_step", "-1")])]), None);
    // A tag of TensorBoard with the steps of the training.
    let events = read(&fixture("events.out.tfevents.fixture")).unwrap();
    assert_eq!(events.steps.recorded(), Some(69));
}

fn end(text: &str, exit_code: Option<i32>) -> RunEnd {
    let mut console = console::Console::default();
    console.feed(true, text.as_bytes());
    console.end(String::new(), exit_code)
}

#[test]
fn the_console_tells_the_end() {
    const OOM: &str = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.00 GiB. GPU 3 has";
    let trace = |frames: &str| format!("Traceback (most recent call last):\n{frames}{OOM}\n");
    let phase = |frames: &str| end(&trace(frames), Some(1)).phase;
    assert_eq!(phase("  File \"torch/optim/adamw.py\", line 1, in step\n"), None);
    assert_eq!(phase("  File \"/x/torch/optim/adamw.py\", line 1, in step\n"), Some(Phase::Optimizer));
    let recomputed = "    loss.backward()\n  File \"a.py\", line 1, in forward\n";
    assert_eq!(phase(recomputed), Some(Phase::Backward));
    assert_eq!(
        phase("  File \"a.py\", line 1, in evaluate\n  File \"b.py\", in forward\n"),
        Some(Phase::Evaluation)
    );
    let cause = |text: &str, code| end(text, code).cause;
    assert_eq!(cause(&trace(""), None), EndCause::GpuMemory);
    assert_eq!(cause(&trace(""), Some(0)), EndCause::Finished);
    assert_eq!(cause("", Some(1)), EndCause::Failed);
    assert_eq!(cause("", Some(137)), EndCause::Killed);
    let slurm = "slurmstepd: error: Detected 1 oom_kill event in StepId=1.0. Some of the step tasks\n";
    assert_eq!(cause(slurm, Some(1)), EndCause::CgroupLimit);
    let fragmented =
        "CUDA out of memory. Tried to allocate 1.00 GiB. 2.00 GiB is reserved by PyTorch but unallocated.\n";
    assert_eq!(cause(fragmented, Some(1)), EndCause::GpuFragmentation);
    let beside = "CUDA out of memory. Tried to allocate 388.00 MiB. GPU 0 has a total capacty of 79.11 GiB of which 183.38 MiB \
        is free. Process 7 has 59.02 GiB memory in use. Including non-PyTorch memory, this process has 19.86 GiB memory in use. \
        Of the allocated memory 16.55 GiB is allocated by PyTorch, and 688.21 MiB is reserved by PyTorch but unallocated.\n";
    assert_eq!(cause(beside, Some(1)), EndCause::GpuNeighbor);
    // The allocator's free memory is 3.9 % of what it holds: the GPU is full.
    assert_eq!(cause(&beside.replace("19.86 GiB", "78.86 GiB"), Some(1)), EndCause::GpuMemory);
    let more = beside.replace("19.86 GiB", "78.86 GiB").replace("688.21 MiB", "9.21 GiB");
    assert_eq!(cause(&more, Some(1)), EndCause::GpuFragmentation);
    // An allocation that failed, was caught, and did not end the run.
    let bar = |step: u32| format!("{step}%|# | {step}/100 [00:10<01:00,  1.00it/s]\r");
    let caught = format!("{}{}", bar(3), trace(""));
    assert_eq!(cause(&caught, Some(1)), EndCause::GpuMemory);
    assert_eq!(cause(&format!("{caught}{}", bar(4)), Some(1)), EndCause::GpuMemory, "a bar of another rank");
    assert_eq!(cause(&format!("{caught}{}ValueError: x\n", bar(9)), Some(1)), EndCause::Failed);
    let interrupt = "Traceback (most recent call last):\n  File \"a.py\", line 1\nKeyboardInterrupt\n";
    assert_eq!(cause(interrupt, Some(255)), EndCause::Killed);
    assert_eq!(cause(&format!("{interrupt}Traceback (most recent call last):\n"), Some(1)), EndCause::Failed);
}

#[test]
fn messages_of_other_tools_tell_the_end() {
    for (message, expected) in [
        ("torch.OutOfMemoryError: CUDA out of memory.", EndCause::GpuMemory),
        (
            "RuntimeError: CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`",
            EndCause::GpuMemory,
        ),
        (
            "XlaRuntimeError: RESOURCE_EXHAUSTED: Out of memory while trying to allocate 17179869184 bytes.",
            EndCause::GpuMemory,
        ),
        ("ncclUnhandledCudaError: Cuda failure 'out of memory'", EndCause::GpuMemory),
        (
            "ray.exceptions.OutOfMemoryError: Task was killed due to the node running low on memory.",
            EndCause::HostMemory,
        ),
        ("OSError: [Errno 12] Cannot allocate memory", EndCause::ProcessLimit),
        ("MemoryError", EndCause::ProcessLimit),
        ("MemoryError: Unable to allocate", EndCause::ProcessLimit),
        ("numpy._core._exceptions._ArrayMemoryError: Unable to allocate 7.45 GiB", EndCause::ProcessLimit),
        ("RuntimeError: DataLoader worker (pid 1234) is killed by signal: Killed. ", EndCause::Killed),
        (
            "RuntimeError: DataLoader worker (pid 1) is killed by signal: Bus error. It is possible",
            EndCause::SharedMemory,
        ),
        (
            "RuntimeError: unable to write to file </torch_1_2_3>: No space left on device (28)",
            EndCause::SharedMemory,
        ),
        ("  traceback : Signal 9 (SIGKILL) received by PID 1234", EndCause::Killed),
        (
            "slurmstepd: error: *** JOB 1 ON n1 CANCELLED AT 2026-01-01T00:00:00 DUE TO TIME LIMIT ***",
            EndCause::Killed,
        ),
        ("mypkg.OutOfMemoryError: of another program", EndCause::Failed),
        ("ValueError: x", EndCause::Failed),
    ] {
        assert_eq!(end(&format!("{message}\n"), Some(1)).cause, expected, "{message}");
    }
    let jax = end("RESOURCE_EXHAUSTED: Out of memory while trying to allocate 17179869184 bytes.\n", Some(1));
    assert_eq!(jax.allocation.unwrap().requested, Some(17_179_869_184.0));
    // A message after which the training continued.
    let bar = |step: u32| format!("{step}%|# | {step}/100 [00:10<01:00,  1.00it/s]\n");
    let caught = format!("{}MemoryError\n{}", bar(3), bar(9));
    assert_eq!(end(&caught, Some(1)).cause, EndCause::Failed);
}

/// A limit of the host's total, with samples of the cgroup.
#[test]
fn the_memory_of_a_cgroup_is_not_that_of_the_host() {
    let host = |total: u64| {
        let memory = Some(wandb::Total { total });
        let environment = messages::Environment { memory, gpu_nvidia: Vec::new() };
        messages::Record { environment: Some(environment), ..messages::Record::default() }
    };
    let gib = 1 << 30;
    // 2 TiB, of which a cgroup has 64 GiB, and uses 16.
    let of_cgroup = stats(10, &[("memory_percent", "25"), ("proc.memory.availableMB", "49152")]);
    let series = |records: &[messages::Record]| {
        let series = read(&run(records)).unwrap().series.remove(0);
        (series.name, series.rows[0].used, series.rows[0].limit)
    };
    let name = "memory of the host".to_owned();
    let expected = (name.clone(), 17_179_869_184.0, Some(68_719_476_736.0));
    assert_eq!(series(&[host(2048 * gib), of_cgroup.clone()]), expected);
    assert_eq!(series(&[of_cgroup, host(2048 * gib)]), expected);
    // An older client rounds the percentage.
    let of_host = stats(10, &[("memory", "25.0"), ("proc.memory.availableMB", "1571815")]);
    let (_, used, limit) = series(&[host(2048 * gib), of_host]);
    assert_eq!((used, limit), (550_855_770_112.0, Some(2_199_023_255_552.0)));
}

#[test]
fn keys_of_several_clients_and_of_other_devices_are_read() {
    let records = [
        stats(10, &[("gpu.0.memoryAllocatedBytes/l:rank_1", "5"), ("proc.memory.rssMB/l:rank_1", "1")]),
        stats(11, &[("tpu.0.hbmCapacityUsage", "7"), ("tpu.0.hbmCapacityTotal", "9")]),
        stats(12, &[("gpu.3.memoryUsed/l:n1", "2"), ("gpu.3.memoryTotal/l:n1", "4")]),
        stats(13, &[("trn.0.memoryHostBytes", "1"), ("gpu.0.memoryClock", "1"), ("gpu.0.memoryTemp", "1")]),
    ];
    check(
        &run(&records),
        expect![[r#"
            W&B
            memory of GPU 0 (rank_1) (GPU): 1 of None, 5
            memory of TPU 0 (GPU): 1 of Some(9.0), 7
            memory of GPU 3 (n1) (GPU): 1 of Some(4194304.0), 2097152
            memory of the process (rank_1): 1 of None, 1048576
            Unknown step None of None in None, code None, memory (None, None)
            keys of memory that are not read: trn.N.memoryHostBytes
            no exit code: the run was killed, or had not ended"#]],
    );
}

#[test]
fn other_tools_are_read() {
    check(
        &fixture("events.out.tfevents.fixture"),
        expect![[r#"
        TensorBoard
        mem-reserved-bytes (GPU): 70 of None, 18337497088
        memory/max_active(GiB) (GPU): 70 of None, 9747562496"#]],
    );
    check(
        &fixture("nvidia-smi.csv"),
        expect![[r#"
        nvidia-smi
        memory of GPU 0 (GPU): 3 of Some(85520809984.0), 73610035200
        memory of GPU 1 (GPU): 1 of Some(85520809984.0), 4194304
        the last line is incomplete, and was ignored"#]],
    );
    let smi = String::from_utf8(fixture("nvidia-smi.csv")).unwrap();
    let units: Vec<u16> = std::iter::once(0xfeff).chain(smi.encode_utf16()).collect();
    for order in [u16::to_le_bytes, u16::to_be_bytes] {
        let wide: Vec<u8> = units.iter().flat_map(|unit| order(*unit)).collect();
        assert_eq!(shown(&wide), shown(smi.as_bytes()));
    }
    // As sacct writes without --parsable2.
    let columns = "JobID             State ExitCode     MaxRSS     ReqMem \n------------ ---------- -------- ---------- ---------- \n\
        4711         OUT_OF_ME+    0:125                   64G \n4711.batch   OUT_OF_ME+    0:125     67000K            \n\
        4712          COMPLETED      0:0                    8G \n";
    check(
        columns.as_bytes(),
        expect![[r#"
        sacct
        CgroupLimit step None of None in None, code None, memory (Some(68608000), Some(68719476736))
        Finished step None of None in None, code Some(0), memory (None, Some(8589934592))"#]],
    );
    check(
        &fixture("sacct.txt"),
        expect![[r#"
        sacct
        CgroupLimit step None of None in None, code None, memory (Some(68718592000), Some(68719476736))
        Finished step None of None in None, code Some(0), memory (Some(10200547328), Some(17179869184))
        Killed step None of None in None, code None, memory (None, None)
        Failed step None of None in None, code Some(1), memory (None, Some(8589934592))"#]],
    );
}

#[test]
fn recordings_of_nvidia_smi_with_other_lines_processes_and_columns() {
    check(
        b"timestamp, index, memory.used [MiB], memory.total [MiB]\n2026/09/01 10:00:01.000, 0, 1000 MiB, 81920 MiB\n2026/09/01 10:00:02.000, 0, 10\n\
        timestamp, index, memory.used [MiB], memory.total [MiB]\n2026/09/01 10:00:05.000, 0, 1002 MiB, 81920 MiB\n\
        Unable to determine the device handle for GPU0000:01:00.0: GPU is lost.  Reboot the system to recover this GPU\n\
        2026-09-01T10:00:06Z, 0, [GPU is lost], 81920 MiB\n2026/09/01 10:00:06.000, 0, 1003 MiB, 81920 MiB\n",
        expect![[r#"
            nvidia-smi
            memory of GPU 0 (GPU): 3 of Some(85899345920.0), 1051721728
            2 lines that are no rows were left out, the first is line 3: 3 cells, but the header has 4"#]],
    );
    check(
        b"timestamp, gpu_uuid, pid, process_name, used_gpu_memory [MiB]\n2026/09/01 10:00:01.000, GPU-1, 71, python, 500 MiB\n\
        2026/09/01 10:00:01.000, GPU-1, 72, python, [N/A]\n2026/09/01 10:00:02.000, GPU-1, 71, python, 600 MiB\n",
        expect![[r#"
            nvidia-smi
            memory of process 71 on GPU GPU-1 (GPU): 2 of None, 629145600"#]],
    );
    check(
        b"#Date       Time        gpu     fb   bar1\n#YYYYMMDD   HH:MM:SS    Idx     MB     MB\n 20260901   10:00:01      0    512      2\n \
        20260901   10:00:01      1      -      2\n 20260901   10:00:02      0    513      2\n",
        expect![[r#"
            nvidia-smi
            memory of GPU 0 (GPU): 2 of None, 537919488"#]],
    );
    check(
        b"#Date       Time        gpu         pid   type     fb    command\n 20260901   10:00:01      0      71     C    512    python\n \
        20260901   10:00:01      1       -     -      -    -\n",
        expect![[r#"
            nvidia-smi
            memory of process 71 on GPU 0 (GPU): 1 of None, 536870912"#]],
    );
}

#[test]
fn sacct_has_any_delimiter_and_a_byte_order_mark() {
    let expected = "sacct\nCgroupLimit step None of None in None, code None, memory (Some(67584000000), Some(68719476736))";
    let bars = "JobID|JobName|State|ExitCode|MaxRSS|ReqMem\n200|train|OUT_OF_MEMORY|0:125||64G\n200.0|python|OUT_OF_MEMORY|0:125|66000000K|\n";
    for text in [bars.to_owned(), bars.replace('|', ","), bars.replace('|', "\t"), format!("\u{feff}{bars}")]
    {
        assert_eq!(shown(text.as_bytes()), expected, "{text}");
    }
    let comma = bars.replace('|', ",").replace("64G", "64G,cpu=1,gpu=2");
    assert!(shown(comma.as_bytes()).starts_with("line 2: a cell has ','"), "{}", shown(comma.as_bytes()));
}

#[test]
fn damaged_files_of_other_tools_have_a_place() {
    let mut events = fixture("events.out.tfevents.fixture");
    let cut = shown(&events[..events.len() - 3]);
    assert!(cut.ends_with("the file ends within an event, at offset 12500"), "{cut}");
    events[30] ^= 1;
    assert_eq!(shown(&events), "at offset 0: the checksum of an event is wrong");
    check(
        b"timestamp, memory.used [MiB]\n2026/11/20 10:00:00, many\n",
        expect![[r#"line 2: "many" is not a number of MiB"#]],
    );
    check(b"timestamp, memory.used [MiB]\nnow, 1 MiB\n", expect![[r#"line 2: "now" is not a time"#]]);
    check(b"timestamp, memory.used [MiB]\n1\n2\n", expect!["line 2: 1 cells, but the header has 2"]);
    check(
        b"2026/09/01 10:00:01.000, 0, 1000 MiB, 81920 MiB\n",
        expect!["the CSV of nvidia-smi has no header: --format=csv writes it, without noheader"],
    );
    check(
        b"# gpu     fb   bar1\n# Idx     MB     MB\n    0    512      2\n",
        expect!["dmon and pmon write the time of each row with -o DT"],
    );
    check(b"#Date       Time        gpu    pwr\n", expect!["dmon and pmon write the used memory with -s m"]);
    check(
        b"index, memory.used [MiB]\n",
        expect![
            "the CSV of nvidia-smi needs the columns timestamp and memory.used, and index or uuid for several GPUs"
        ],
    );
    check(
        b"JobID|State|\n1|\n",
        expect![[r#"
        sacct
        Unknown step None of None in None, code None, memory (None, None)"#]],
    );
}

#[test]
fn files_of_other_kinds_are_not_these() {
    let pointer = b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 5\n";
    assert!(crate::files::not_the_file(pointer).unwrap().contains("`git lfs pull`"));
    assert_eq!(crate::files::not_the_file(b"version 1\n"), None);
    for bytes in [
        &b""[..],
        b"# gpu_memory of a run\n0,1\n",
        b"t_s,bytes\n0,1\n",
        b"0,1,2\n",
        b"{\"schema\": \"memwarden.report/1\"}",
        b"1 2 3\n",
    ] {
        assert_eq!(Format::of(bytes), None, "{}", String::from_utf8_lossy(bytes));
    }
}

proptest! {
    #[test]
    fn no_bytes_panic(bytes in proptest::collection::vec(any::<u8>(), 0..300), kind in 0_u8..6) {
        for format in Format::ALL {
            let _ = format.read(&*bytes);
        }
        let _ = read(&log(&[(kind, &bytes), (4, &bytes)]));
    }
}
