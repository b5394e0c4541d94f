//! `memwarden what-if`: recorded runs against limits and policies.

use serde_json::Value;

use crate::harness::memwarden;

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
    let (well, _, error) = run(&[gpus.to_str().unwrap(), "--limit", "12GiB"]);
    assert!(!well && error.contains("no series of the memory of a host"), "{error}");
}

#[test]
fn a_table_says_what_becomes_of_each_run() {
    let (well, out, error) = run(&[RUN, RUN, "--limit", "20GiB", "--together", "--policy", "kernel"]);
    assert!(well, "{error}");
    assert!(out.contains("killed by the kernel") && out.contains("survived"), "{out}");
    assert!(!out.contains("99 %"), "runs that share a limit have none of their own: {out}");
}
