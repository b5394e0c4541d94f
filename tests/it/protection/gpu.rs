//! A job that runs out of the memory of its GPU: the fake driver says how much is left.

use std::os::unix::process::ExitStatusExt as _;
use std::path::PathBuf;

use super::SOON;
use super::job::{Job, saving, witness};
use super::room::{HOST, Room};
use crate::harness::{Daemon, fake_nvml, program, wait_for};

/// Says that the job's process uses so many of the GPU's 80 GiB.
fn uses(room: &Room, job: &Job, gib: u64) -> PathBuf {
    let (file, next) = (room.path("scenario.json"), room.path("scenario.next"));
    let used = gib << 30;
    let scenario = format!(
        r#"{{"devices": [{{"uuid": "GPU-a", "memory": {{"total": {}, "reserved": 0, "used": {used}}},
            "processes": [{{"pid": {}, "memory": {used}}}]}}]}}"#,
        80_u64 << 30,
        job.pid()
    );
    std::fs::write(&next, scenario).unwrap();
    std::fs::rename(next, &file).unwrap();
    file
}

fn guard(room: &Room, job: &Job, more: &str) -> Daemon {
    let scenario = uses(room, job, 40);
    room.configure(
        "mode: enforce",
        &[room.target("train", &format!("gpu: {{soft: 20%, hard: 5%}}, {more}"))],
        "",
    );
    let daemon = room.start_with(|command| {
        command.env("FAKE_NVML_SCENARIO", scenario).arg("--nvml-library").arg(fake_nvml());
    });
    room.wait_members(&daemon, "train", 1.0);
    daemon.wait_page("what is left of the GPU", SOON, |page| {
        page.get("memwarden_protection_condition", &[("target", "train"), ("condition", "gpu_soft")])
            == Some(0.0)
    });
    daemon
}

#[test]
fn a_job_that_fills_its_gpu_is_asked_and_ends() {
    let room = Room::staged();
    let saved = room.path("saved");
    let mut job = Job::start(&room, &saving(&saved, 0.3));
    let daemon =
        guard(&room, &job, &format!("checkpoint: {{file: {saved:?}, grace: 10s, longest_grace: 20s}}"));
    uses(&room, &job, 70);
    assert!(job.wait().success(), "it ended by itself: {}", daemon.log());
    assert_eq!(job.said(), ["up", "asked", "saved", "told to end"]);
    // The step does not wait for its line.
    room.wait_move("term");
    let audit = room.audit();
    assert_eq!(audit.moves("train")[..4], ["warn", "soft", "checkpoint", "term"]);
    assert_eq!(audit.reached(), [u64::from(job.pid())]);
}

#[test]
fn a_host_whose_gpu_uses_its_memory_is_protected_earlier_and_from_who_holds_most_of_both() {
    let room = Room::staged();
    let (mut other, mut job) = (Job::start(&room, &witness()), Job::start(&room, &witness()));
    other.hold(64);
    let scenario = room.path("scenario.json");
    let gpu = format!(
        r#"{{"devices": [{{"uuid": "GPU-a", "name": "NVIDIA GB10", "memory": null,
            "processes": [{{"pid": {}, "memory": {}}}]}}]}}"#,
        job.pid(),
        700 << 20
    );
    std::fs::write(&scenario, gpu).unwrap();
    let policy = "victims: largest, host: {soft: default, hard: default}";
    room.configure("mode: enforce", &[room.target("train", policy)], "");
    let daemon = room.start_with(|command| {
        command.env("FAKE_NVML_SCENARIO", scenario).arg("--nvml-library").arg(fake_nvml());
    });
    room.wait_members(&daemon, "train", 2.0);
    let [both, gpu] = ["memwarden_workload_host_and_gpu_memory_bytes", "memwarden_workload_gpu_memory_bytes"];
    daemon.wait_page("the memory of both", SOON, |page| {
        let [Some(rss), Some(both), Some(gpu)] =
            ["memwarden_workload_rss_bytes", both, gpu].map(|name| page.get(name, &[("workload", "train")]))
        else {
            return false;
        };
        rss > 64.0 * 1_048_576.0 && both - gpu == rss
    });
    // 3 % of the host: above the hard level of other hosts, 2 %, and below that of a pool, 4 %.
    room.available(HOST * 3 / 100);
    assert_eq!(job.wait().signal(), Some(9), "{}", daemon.log());
    room.wait_move("verify");
    assert_eq!(room.audit().reached(), [u64::from(job.pid())]);
    assert_eq!(other.ended(), None, "it has more resident memory");
}

#[test]
fn a_gpu_without_memory_ends_its_job_at_once() {
    let room = Room::staged();
    let mut job = Job::start(&room, &witness());
    let daemon = guard(&room, &job, "");
    uses(&room, &job, 78);
    assert_eq!(job.wait().signal(), Some(9), "{}", daemon.log());
    room.wait_move("verify");
    let audit = room.audit();
    assert!(audit.went("train", "kill") && !audit.went("train", "term"));
    assert_eq!(audit.reached(), [u64::from(job.pid())]);
    // The incident has the memory of the GPU and its limit, in the table and in the chart.
    let [used, limit] = [78_u64 << 30, 80 << 30];
    let row = format!(",{used},{limit}");
    wait_for("the GPU in the record", SOON, || {
        let folder = room.incidents().into_iter().next()?;
        let table = std::fs::read_to_string(folder.join("memory-train-GPU.csv")).ok()?;
        table.contains(&row).then_some(())?;
        let chart = room.state().join("chart.svg");
        room.report(&folder, Some(&chart));
        std::fs::read_to_string(chart).unwrap().contains("train GPU").then_some(())
    });
}

#[test]
fn a_drill_finds_a_job_by_the_gpu_that_it_uses() {
    let room = Room::staged();
    let job = Job::start(&room, &witness());
    let scenario = uses(&room, &job, 40);
    let target = room.target("*", "").replacen("name: *", "name: found", 1);
    let file =
        room.configure("mode: enforce", &[target.replacen("workload: *", "workload: \"?*-*\"", 1)], "");
    // Nobody else names it.
    let text = std::fs::read_to_string(&file).unwrap().replace(&room.mark("train"), "nobody");
    let library = format!("sources: {{gpu: {{nvml_library: {:?}}}, workload:", fake_nvml());
    std::fs::write(&file, text.replace("sources: {workload:", &library)).unwrap();
    // It must find itself on the stage, as the daemon must.
    let enter = "ln -s /proc/$$ \"$0/$$\"; exec \"$@\"";
    let mut drill = program("sh");
    drill.args(["-c", enter]).arg(room.staged_file("")).arg(env!("CARGO_BIN_EXE_memwarden"));
    drill.args(["drill", "--target", "found", "--config.file"]).arg(&file);
    let output = drill.env("FAKE_NVML_SCENARIO", &scenario).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let pid = job.pid();
    assert!(
        text.contains(&format!("send SIGTERM to pid {pid}")),
        "{text}{}",
        String::from_utf8_lossy(&output.stderr)
    );
}
