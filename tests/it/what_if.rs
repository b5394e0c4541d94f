//! `memwarden what-if`: recorded runs against limits and policies.

use serde_json::Value;

use crate::harness::{memwarden, program};

const RUN: &str = "docs/images/leak.csv";

fn run(args: &[&str]) -> (bool, String, String) {
    let output = memwarden(&[&["what-if"], args].concat()).output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (output.status.success(), text(output.stdout), text(output.stderr))
}

fn json(args: &[&str]) -> Value {
    let (well, out, error) = run(&[args, &["--format", "json"]].concat());
    assert!(well, "{error}");
    serde_json::from_str(&out).unwrap()
}

#[test]
fn a_recorded_leak_ends_at_the_level_of_each_policy() {
    let folder = tempfile::tempdir().unwrap();
    let picture = folder.path().join("what-if.svg");
    let picture = picture.to_str().unwrap();
    let found = json(&[RUN, "--limit", "12GiB,16GiB", "--save", "30s", "--gpus", "8", "--plot", picture]);
    let played = found["runs"].as_array().unwrap();
    let fates: Vec<_> = played.iter().map(|run| format!("{} {}", run["policy"], run["fate"])).collect();
    assert_eq!(
        fates.join(", ").replace('"', ""),
        "kernel oom_killed, kernel survived, earlyoom terminated, earlyoom survived, oomd undecided, oomd undecided, \
         ray killed, ray survived, memwarden terminated, memwarden survived"
    );
    let lost = |place: usize| played[place]["lost_seconds"].as_f64().unwrap();
    // The job saves before it is ended, and is asked again where that is 5 minutes ago; the others lose everything, since there
    // are no regular checkpoints.
    assert!(lost(8) <= 300.0 && played[8]["saved_seconds"].is_f64(), "{found}");
    assert!(lost(0) > lost(6) && lost(6) > lost(2) && lost(2) > 1000.0, "{found}");
    assert_eq!(played[0]["lost_gpu_hours"].as_f64(), Some(8.0 * lost(0) / 3600.0));
    let limits = found["suffices_for_99_percent"].as_array().unwrap();
    let gib = |place: usize| limits[place]["limit_bytes"].as_f64().unwrap() / f64::from(1 << 30);
    assert!(
        (12.4..12.7).contains(&gib(0)) && gib(1) > gib(3) && limits[2]["limit_bytes"].is_null(),
        "{found}"
    );
    let drawn = std::fs::read_to_string(picture).unwrap();
    assert!(drawn.contains("memwarden: saved") && drawn.contains("kernel: killed by the kernel"));
}

#[test]
fn the_target_of_a_configuration_is_played_as_if_it_acted() {
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, targets: &str| {
        let path = folder.path().join(name);
        std::fs::write(&path, format!("protection: {{mode: observe, targets: [{targets}]}}\n")).unwrap();
        format!("memwarden:{}", path.display())
    };
    let target = |name: &str| {
        format!(
            "{{name: {name}, workload: {name}, allow_users: [root], cgroup_headroom: {{soft: 30%, hard: 1%}}, forecast: {{max_state: ignore}}}}"
        )
    };
    let one = write("one.yaml", &target("a"));
    let found = json(&[RUN, "--limit", "12GiB", "--policy", &format!("memwarden,{one}")]);
    let ended = |place: usize| found["runs"][place]["ended_seconds"].as_f64().unwrap();
    assert!(ended(1) < ended(0), "it is ended when 15.5 % is left, the other when 9 % is: {found}");
    let two = write("two.yaml", &[target("a"), target("b")].join(", "));
    let (well, _, error) = run(&[RUN, "--limit", "12GiB", "--policy", &two]);
    assert!(!well && error.contains("exactly one target") && error.contains("found 2"), "{error}");
}

#[test]
fn what_cannot_be_played_is_named() {
    let (well, _, error) = run(&[RUN, "--limit", "12GiB", "--policy", "kernel,oom"]);
    assert!(!well && error.contains("oom"), "{error}");
    let folder = tempfile::tempdir().unwrap();
    let gpus = folder.path().join("gpus.csv");
    let text = "timestamp, index, memory.used [MiB], memory.total [MiB]\n\
                2026/01/01 00:00:00.000, 0, 100 MiB, 80000 MiB\n2026/01/01 00:00:05.000, 0, 200 MiB, 80000 MiB\n";
    std::fs::write(&gpus, text).unwrap();
    let gpus = gpus.to_str().unwrap();
    let refused = |args: &[&str], wanted: &str| {
        let (well, _, error) = run(args);
        assert!(!well && error.contains(wanted), "{args:?}: {error}");
    };
    refused(&[gpus, "--limit", "12GiB"], "gpus.csv: all series are memory of GPUs, which --gpu-limit plays");
    refused(&[RUN, "--gpu-limit", "12GiB"], "all series are memory of the host, which --limit plays");
    let ends = "tests/fixtures/runs/sacct.txt";
    refused(&[ends, "--gpu-limit", "12GiB"], "sacct.txt: there is no series of memory");
    refused(&[RUN], "--limit");
    refused(&[gpus, "--gpu-limit", "12GiB", "--together"], "--together");
    // Of a folder of runs, some have nothing to play.
    let found = json(&[gpus, RUN, ends, "--limit", "12GiB", "--policy", "kernel"]);
    let none =
        serde_json::json!({ "host_series": 0, "gpu_series": 1, "files": [gpus, ends], "unreadable": [] });
    assert_eq!((&found["not_played"], found["runs"].as_array().unwrap().len()), (&none, 1));
    let (_, out, _) = run(&[gpus, RUN, "--limit", "12GiB", "--policy", "kernel"]);
    assert!(
        out.contains("1 series of memory of GPUs is not played, because --gpu-limit is not given."),
        "{out}"
    );
    assert!(out.contains("1 file without a series to play: "), "{out}");
}

#[test]
fn files_that_cannot_be_read_are_named_and_the_others_are_played() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).display().to_string();
    let (damaged, missing) = (path("damaged.wandb"), path("missing.csv"));
    std::fs::write(&damaged, b":W&B\xE1\xBE\0sums\0\0\x01").unwrap();
    let is_named = |error: &str| {
        let lines: Vec<&str> = error.lines().collect();
        let [one, other] = &*lines else { panic!("{error}") };
        assert!(one.starts_with(&format!("memwarden: {damaged}: at offset 7: ")), "{error}");
        assert!(other.starts_with(&format!("memwarden: cannot read {missing}: ")), "{error}");
    };
    for (command, option) in [("what-if", "--policy=kernel"), ("replay", "--horizon=15m")] {
        let all = |files: &[&str], format: &str| {
            let args = [&[command], files, &["--limit", "12GiB", option, "--format", format]].concat();
            let output = memwarden(&args).output().unwrap();
            let text = |bytes| String::from_utf8(bytes).unwrap();
            (output.status.code(), text(output.stdout), text(output.stderr))
        };
        let (code, out, error) = all(&[&damaged, RUN, &missing], "text");
        assert!(code == Some(1) && out.contains(RUN), "{command}: {out}");
        is_named(&error);
        let (code, out, _) = all(&[&damaged, RUN, &missing], "json");
        let found: Value = serde_json::from_str(&out).unwrap();
        let (played, unreadable) = match command {
            "replay" => (&found["series"], &found["unreadable"]),
            _ => (&found["runs"], &found["not_played"]["unreadable"]),
        };
        assert_eq!((code, played.as_array().unwrap().len()), (Some(1), 1), "{command}");
        assert_eq!(
            (&unreadable[0]["file"], &unreadable[1]["file"]),
            (&damaged[..].into(), &missing[..].into())
        );
        assert!(unreadable[0]["error"].as_str().unwrap().contains("at offset 7"), "{found}");
        let (code, out, error) = all(&[&damaged, &missing], "text");
        assert_eq!((code, &*out), (Some(1), ""), "{command}");
        is_named(&error);
        assert_eq!(all(&[RUN], "text").0, Some(0), "{command}");
    }
}

/// A run file of W&B with a record of these bytes, in chunks.
fn wandb(record: &[u8]) -> Vec<u8> {
    const CHUNK: usize = (32 << 10) - 7;
    let mut bytes = b":W&B\xE1\xBE\0".to_vec();
    let mut rest = record;
    while !rest.is_empty() {
        let room = CHUNK - if bytes.len() == 7 { 7 } else { 0 };
        let (part, after) = rest.split_at(room.min(rest.len()));
        let kind = match (rest.len() == record.len(), after.is_empty()) {
            (true, true) => 1,
            (true, false) => 2,
            (false, false) => 3,
            (false, true) => 4,
        };
        let mut sum = flate2::Crc::new();
        sum.update(&[kind]);
        sum.update(part);
        bytes.extend(sum.sum().to_le_bytes());
        bytes.extend(u16::try_from(part.len()).unwrap().to_le_bytes());
        bytes.push(kind);
        bytes.extend_from_slice(part);
        rest = after;
    }
    bytes
}

/// A field of a message that is one.
fn message(number: u8, content: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::new();
    prost::encoding::encode_varint((u64::from(number) << 3) | 2, &mut bytes);
    prost::encoding::encode_varint(content.len() as u64, &mut bytes);
    bytes.extend_from_slice(content);
    bytes
}

#[test]
fn a_file_takes_no_more_memory_than_its_bytes_are_worth() {
    const LENGTH: usize = 10 << 20;
    let folder = tempfile::tempdir().unwrap();
    // A message of a list that is empty has two bytes.
    let empty = |number: u8| message(number, b"").repeat(LENGTH / message(number, b"").len());
    let time = message(2, b"\x08\x01");
    let many = (0..LENGTH / 40).map(|gpu| {
        let item = [message(1, format!("gpu.{gpu}.memoryAllocated").as_bytes()), message(16, b"1")].concat();
        message(3, &item)
    });
    for (name, record, wanted) in [
        ("history", message(2, &empty(1)), "the end is not recorded"),
        ("path", message(2, &message(1, &empty(2))), "the end is not recorded"),
        ("stats", message(7, &[&time[..], &empty(3)].concat()), "the end is not recorded"),
        ("gpus", message(7, &[time.clone(), many.flatten().collect()].concat()), "1024 series"),
        ("environment", message(26, &empty(24)), "1024 series"),
    ] {
        let path = folder.path().join(name);
        std::fs::write(&path, wandb(&record)).unwrap();
        // Private memory that the program can write.
        let script = "ulimit -d $((50 * 1024)) && exec \"$@\"";
        let output = program("sh")
            .args(["-c", script, "sh", env!("CARGO_BIN_EXE_memwarden"), "replay"])
            .arg(&path)
            .output()
            .unwrap();
        let text = [output.stdout, output.stderr].concat();
        let text = String::from_utf8_lossy(&text);
        assert!(text.contains(wanted), "{name}: {:?} {text}", output.status);
    }
}

/// A GPU of which 10,000 MiB are in use, and 10 MiB more after each second, every 10 s for 10 minutes.
fn growing_gpu(folder: &std::path::Path) -> String {
    let row = |place: u32| {
        let (minute, second) = (place / 6, place % 6 * 10);
        format!("2026/01/01 00:{minute:02}:{second:02}.000, 0, {} MiB, 80000 MiB\n", 10_000 + 100 * place)
    };
    let rows: String = (0..60).map(row).collect();
    let path = folder.join("gpu.csv");
    std::fs::write(&path, format!("timestamp, index, memory.used [MiB], memory.total [MiB]\n{rows}"))
        .unwrap();
    path.display().to_string()
}

#[test]
fn memory_of_a_gpu_ends_by_a_failed_allocation_unless_its_levels_are_configured() {
    let folder = tempfile::tempdir().unwrap();
    let gpu = growing_gpu(folder.path());
    let config = folder.path().join("gpu.yaml");
    let target = "{name: a, workload: a, allow_users: [root], gpu: {soft: 10%, hard: 2%}}";
    std::fs::write(&config, format!("protection: {{targets: [{target}]}}\n")).unwrap();
    let watching = format!("memwarden:{}", config.display());
    let policies = format!("kernel,earlyoom,oomd,ray,memwarden,{watching}");
    let picture = folder.path().join("gpu.svg");
    let args =
        [&*gpu, "--gpu-limit", "15GiB", "--policy", &policies, "--checkpoint-every", "200s", "--save", "30s"];
    let args = [&args[..], &["--gpus", "4", "--plot", picture.to_str().unwrap()]].concat();
    let found = json(&args);
    let played = found["runs"].as_array().unwrap();
    // 15,360 MiB are in use after 536 s, and more than these a second later; the last checkpoint is that of 400 s.
    for unwatched in &played[..5] {
        assert_eq!((&unwatched["memory"], &unwatched["watched"]), (&"gpu".into(), &false.into()));
        assert_eq!(
            (&unwatched["fate"], &unwatched["asked_seconds"]),
            (&"out_of_gpu_memory".into(), &Value::Null)
        );
        assert_eq!((&unwatched["ended_seconds"], &unwatched["lost_seconds"]), (&537.0.into(), &137.0.into()));
        assert_eq!(unwatched["lost_gpu_hours"].as_f64(), Some(4.0 * 137.0 / 3600.0));
        assert_eq!(unwatched["lost_steps"], Value::Null, "nvidia-smi knows no steps");
    }
    // 10 % is left after 382.4 s.
    let watched = &played[5];
    let seconds = |key: &str| watched[key].as_f64().unwrap();
    assert_eq!((&watched["watched"], &watched["fate"]), (&true.into(), &"terminated".into()));
    assert!((383.0..390.0).contains(&seconds("asked_seconds")), "{watched}");
    assert_eq!(seconds("saved_seconds"), seconds("asked_seconds") + 30.0);
    assert!(seconds("ended_seconds") < 537.0 && seconds("lost_seconds") < 137.0, "{watched}");
    let limits = found["suffices_for_99_percent"].as_array().unwrap();
    let mib = |place: usize| limits[place]["limit_bytes"].as_f64().unwrap() / f64::from(1 << 20);
    // The last sample has 15,900 MiB; the search stops within a hundredth.
    assert!((15_900.0..16_060.0).contains(&mib(0)) && mib(0) == mib(2) && mib(5) > mib(0), "{found}");
    let drawn = std::fs::read_to_string(&picture).unwrap();
    assert!(drawn.contains("kernel, earlyoom, oomd, ray, memwarden: out of GPU memory"));
    let (_, out, _) = run(&args);
    assert!(
        out.contains("kernel, earlyoom, oomd, ray and memwarden do not watch the memory of GPUs"),
        "{out}"
    );
    let rows = |text: &str| out.lines().filter(|line| line.contains(text)).count();
    assert_eq!((rows("out of GPU memory"), rows("steps lost")), (1, 0), "{out}");
    let alike = json(&[RUN, "--gpu", "--gpu-limit", "12GiB", "--policy", "kernel"]);
    assert_eq!(alike["runs"][0]["fate"], "out_of_gpu_memory");
}

#[test]
fn each_series_has_the_limit_of_its_memory_and_the_steps_of_its_file() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("run.csv");
    // Every 10 s, two steps later; the GPU has 1 GiB and 10 MiB a second, the process 2 GiB and 5 MiB a second.
    let row = |place: u64| {
        let (gpu, process) = ((1024 + 100 * place) << 20, (2048 + 50 * place) << 20);
        format!("{},{gpu},{process},{}\n", 10 * place, 2 * place)
    };
    let rows: String = (0..=100).map(row).collect();
    std::fs::write(&path, format!("t_s,gpu0_bytes,rss_bytes,step\n{rows}")).unwrap();
    let path = path.to_str().unwrap();
    let limits =
        ["--limit", "4GiB", "--gpu-limit", "8GiB", "--policy", "kernel", "--checkpoint-every", "300s"];
    let args = [&[path], &limits[..]].concat();
    let found = json(&args);
    let of = |place: usize, key: &str| found["runs"][place][key].clone();
    // The process has 4,096 MiB after 409.6 s, when 82 steps are done; the checkpoint of 300 s has 60.
    assert_eq!((of(0, "memory"), of(0, "fate")), ("host".into(), "oom_killed".into()));
    assert_eq!((of(0, "ended_seconds"), of(0, "lost_steps")), (410.0.into(), 22.into()));
    // The GPU has 8,192 MiB after 716.8 s, when 143 steps are done; the checkpoint of 600 s has 120.
    assert_eq!((of(1, "memory"), of(1, "fate")), ("gpu".into(), "out_of_gpu_memory".into()));
    assert_eq!((of(1, "ended_seconds"), of(1, "lost_steps")), (717.0.into(), 23.into()));
    let kinds: Vec<_> = found["suffices_for_99_percent"].as_array().unwrap().iter().collect();
    assert_eq!(kinds.iter().map(|kind| &kind["memory"]).collect::<Vec<_>>(), ["host", "gpu"]);
    let (_, out, _) = run(&args);
    assert!(out.contains("steps lost") && out.contains("1 run on a GPU"), "{out}");
}

#[test]
fn a_run_that_ended_out_of_gpu_memory_does_so_with_less_memory_too() {
    let file = "tests/fixtures/runs/backward.wandb";
    let found = json(&[file, "--gpu-limit", "79GiB,100GiB", "--policy", "kernel"]);
    let fates: Vec<_> = found["runs"].as_array().unwrap().iter().map(|run| &run["fate"]).collect();
    // Of the GPUs 0 and 1, that of the message; the GPU has 79.6 GiB. Whether 100 GiB would have sufficed was not recorded.
    assert_eq!(fates, ["out_of_gpu_memory", "survived", "undecided", "survived"], "{found}");
    let more = &found["runs"][2];
    assert_eq!(
        (&more["limit_bytes"], &more["unrecorded"]),
        (&107_374_182_400.0.into(), &"sufficient_gpu_memory".into())
    );
    assert_eq!((&more["lost_seconds"], &more["lost_steps"]), (&Value::Null, &Value::Null));
    assert_eq!(found["runs"][0]["unrecorded"], Value::Null);
    assert!(found["runs"][0]["lost_steps"].as_u64().unwrap() >= 5, "{found}");
    assert_eq!(found["suffices_for_99_percent"][0]["limit_bytes"], Value::Null);
    assert_eq!(found["not_played"]["host_series"], 2);
    let (_, out, _) = run(&[file, "--gpu-limit", "79GiB", "--policy", "kernel"]);
    assert!(out.contains("1 run really ended out of GPU memory"), "{out}");
    let (_, out, _) = run(&[file, "--gpu-limit", "100GiB", "--policy", "kernel"]);
    assert!(out.contains("undecided: the run really ended out of GPU memory"), "{out}");
}

#[test]
fn a_table_says_what_becomes_of_each_run() {
    let (well, out, error) = run(&[RUN, RUN, "--limit", "20GiB", "--together", "--policy", "kernel"]);
    assert!(well, "{error}");
    assert!(out.contains("killed by the kernel") && out.contains("survived"), "{out}");
    assert!(!out.contains("99 %"), "runs that share a limit have none of their own: {out}");
}
