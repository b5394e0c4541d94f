//! Hooks that misbehave hold nobody up, and one that behaves needs none of the job's memory.

use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use serde_json::Value;

use super::SOON;
use super::job::{Job, saving};
use super::room::Room;
use crate::harness::wait_for;
use crate::skip::skip;

const SOFT: &str = "cgroup_headroom: {soft: 70%}, checkpoint: {grace: 100ms}";

/// Writes a hook that only its owner can change.
pub(super) fn script(room: &Room, text: &str) -> String {
    let program = room.path("hook");
    std::fs::write(&program, format!("#!/bin/sh\n{text}\n")).unwrap();
    std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o755)).unwrap();
    program.to_str().unwrap().to_owned()
}

/// A hook that writes its environment to a file, which is there once it is complete.
pub(super) fn records_environment(room: &Room, file: &Path) -> String {
    script(room, &format!("env -0 > {file:?}.part && mv {file:?}.part {file:?}"))
}

/// A job that is asked and ended while the hook does what it does; gives the last word on the hook.
#[track_caller]
fn last_word(room: &Room, program: &str) -> Value {
    let mut job = Job::start(room, &saving(&room.path("unused"), 0.0));
    let daemon = room
        .guard(&format!("{SOFT}, hook: {{program: \"{program}\", arguments: [one], timeout: 2s, wait: 3s}}"));
    room.wait_members(&daemon, "train", 1.0);
    job.hold(64);
    assert!(job.wait().success(), "the ladder went on");
    room.wait_move("cooldown");
    let audit = room.paired_audit();
    assert_eq!(audit.moves("train")[..4], ["warn", "soft", "checkpoint", "term"]);
    let hook = audit.begun("hook").next().unwrap();
    audit.end(hook).clone()
}

#[test]
fn a_hook_that_hangs_is_ended_and_the_ladder_continues() {
    let Some(room) = Room::real() else { return };
    let left = room.path("left");
    let program = script(&room, &format!("sleep 30 & echo $! > {left:?}\nwait"));
    let end = last_word(&room, &program);
    assert_eq!(end["result"], "failed", "{end}");
    let pid = std::fs::read_to_string(left).unwrap();
    let stat = std::fs::read_to_string(format!("/proc/{}/stat", pid.trim())).unwrap_or_default();
    assert!(!stat.contains(" S "), "what it started is still there: {stat}");
}

#[test]
fn a_hook_that_floods_is_cut_and_the_ladder_continues() {
    let Some(room) = Room::real() else { return };
    let program = script(&room, "head -c 100000000 /dev/zero | tr '\\0' x");
    let end = last_word(&room, &program);
    let said = end["output"].as_str().unwrap();
    assert!((1000..=5000).contains(&said.len()), "{} bytes", said.len());
}

#[test]
fn a_hook_that_cannot_start_is_reported_and_the_ladder_continues() {
    let Some(room) = Room::real() else { return };
    let end = last_word(&room, "/nonexistent/hook");
    assert_eq!(end["result"], "failed", "{end}");
    assert!(end["error"].as_str().unwrap().contains("/nonexistent/hook"), "{end}");
}

#[test]
fn a_hook_that_others_may_change_is_not_run() {
    let Some(room) = Room::real() else { return };
    let ran = room.path("ran");
    let program = script(&room, &format!("touch {ran:?}"));
    std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o777)).unwrap();
    let end = last_word(&room, &program);
    assert_eq!(end["result"], "failed", "{end}");
    assert!(!ran.exists());
}

#[test]
fn a_group_with_nothing_left_still_has_its_hook_and_its_end() {
    let Some(room) = Room::real() else { return };
    let group = room.group.as_ref().unwrap();
    // Whoever asks for more waits then, and is not killed.
    if !group.version1() || std::fs::write(group.file("memory.oom_control"), "1").is_err() {
        skip("only an older memory group can be left without a byte and without a kill");
        return;
    }
    let told = room.path("told");
    let program = script(&room, &format!("cat > {told:?}; cat /proc/self/cgroup >> {told:?}"));
    let mut job = Job::start(&room, "say('up')\nwhile True: work()\n");
    let daemon = room.guard(&format!(
        "cgroup_headroom: {{soft: 5%, hard: \"\"}}, term_grace: 500ms, hook: {{program: \"{program}\", wait: 300ms}}"
    ));
    room.wait_members(&daemon, "train", 1.0);
    job.hold(super::group::LIMIT * 2);
    assert!(!job.wait().success());
    room.wait_move("cooldown");
    // A hook that takes longer than `wait` is not waited for.
    let audit = room.audit_with_end("hook");
    let hook = audit.begun("hook").next().unwrap();
    assert_eq!(audit.end(hook)["result"], "ok", "{:#?}", audit.end(hook));
    let told = std::fs::read_to_string(told).unwrap();
    let mut documents = serde_json::Deserializer::from_str(&told).into_iter();
    let said: Value = documents.next().unwrap().unwrap();
    assert_eq!((&said["target"], &said["to"]), (&"train".into(), &"soft".into()));
    assert_eq!(said["cgroup"], group.path.as_str());
    let own_groups = &told[documents.byte_offset()..];
    assert!(
        own_groups.contains(":memory:") && !own_groups.contains(&group.path),
        "it ran in the job's group: {told}"
    );
}

/// Runs a hook of `examples/hooks` with this environment, and a program `name` that writes its arguments in a line each.
fn example(hook: &str, name: &str, environment: &[(String, String)]) -> (bool, Vec<String>) {
    let folder = tempfile::tempdir().unwrap();
    let program = folder.path().join(name);
    std::fs::write(&program, "#!/bin/sh\nprintf '%s\\n' \"$@\"\n").unwrap();
    std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o755)).unwrap();
    let hook = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/hooks").join(hook);
    let mut command = crate::harness::program(hook);
    command.env_clear().env("PATH", format!("{}:/usr/bin:/bin", folder.path().display()));
    let output = command.envs(environment.iter().cloned()).output().unwrap();
    let lines = String::from_utf8(output.stdout).unwrap();
    (output.status.success(), lines.lines().map(str::to_owned).collect())
}

#[test]
fn a_hook_knows_the_job_as_its_owner_does() {
    let id = 4_000_000 + std::process::id();
    let Some(room) = Room::of_slurm_job(id) else { return };
    let recorded = room.path("environment");
    let program = records_environment(&room, &recorded);
    // No matcher names it, which would be found before its Slurm job.
    let mut job = Job::named(&room, "unnamed", &saving(&room.path("unused"), 0.0));
    let daemon = room.guard(&format!("{SOFT}, hook: {{program: \"{program}\", wait: 300ms}}"));
    room.wait_members(&daemon, "train", 1.0);
    let job_id = id.to_string();
    daemon.wait_page("the Slurm job of the workload", SOON, |page| {
        page.get("memwarden_workload_info", &[("slurm_job_id", &job_id)]).is_some()
    });
    job.hold(64);
    assert!(job.wait().success());
    room.wait_move("cooldown");
    let text = wait_for("the environment", SOON, || std::fs::read_to_string(&recorded).ok());
    let environment: Vec<(String, String)> = text
        .split_terminator('\0')
        .filter_map(|line| line.split_once('='))
        .filter(|(name, _)| name.starts_with("MEMWARDEN_"))
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .collect();
    let value = |name: &str| {
        let found = environment.iter().find(|(known, _)| known.strip_prefix("MEMWARDEN_") == Some(name));
        found.map(|(_, value)| value.as_str())
    };
    assert_eq!(value("SLURM_JOB_ID"), Some(job_id.as_str()), "{environment:?}");
    assert_eq!(value("WORKLOAD"), Some(format!("slurm-{id}").as_str()));
    assert_eq!(value("CGROUP"), Some(room.group.as_ref().unwrap().path.as_str()));
    assert_eq!((value("USER"), value("POD"), value("CONTAINER")), (Some("root"), None, None));
    assert_eq!(
        (value("FROM"), value("TO"), value("REASON")),
        (Some("warn"), Some("soft"), Some("soft_level"))
    );
    let incident = value("INCIDENT").unwrap();
    assert!(room.state().join("incidents").join(incident).is_dir(), "{incident}");

    let (done, arguments) = example("slurm-checkpoint", "scancel", &environment);
    let wanted = ["--batch", "--signal=USR1", &job_id].map(str::to_owned);
    assert_eq!((done, arguments), (true, wanted.to_vec()));
    let (done, arguments) = example("slurm-cancel", "scancel", &environment);
    assert_eq!((done, arguments), (true, vec![job_id.clone()]));
    let (done, arguments) = example("slurm-requeue", "scontrol", &environment);
    assert_eq!((done, arguments), (true, vec!["requeue".to_owned(), job_id.clone()]));
    let (done, arguments) = example("slurm-notify", "scontrol", &environment);
    assert!(
        done && arguments[..2] == ["notify", &job_id]
            && arguments[2].ends_with(&format!("(incident {incident})")),
        "{arguments:?}"
    );
    // Another workload is not a pod, and no command is run for it.
    assert_eq!(example("pod-resize", "kubectl", &environment), (false, vec![]));
    let pod = [("NAMESPACE", "ml"), ("POD", "train-0"), ("CONTAINER", "pytorch")];
    let pod = pod.map(|(name, value)| (format!("MEMWARDEN_{name}"), value.to_owned()));
    let (done, arguments) = example("pod-resize", "kubectl", &pod);
    assert_eq!(
        (done, &arguments[..5]),
        (true, &["patch", "pod", "train-0", "--namespace", "ml"].map(str::to_owned)[..])
    );
    let patch: Value = serde_json::from_str(arguments.last().unwrap()).unwrap();
    assert_eq!(patch["spec"]["containers"][0]["name"], "pytorch");
    for hook in ["slurm-cancel", "slurm-checkpoint"] {
        assert!(!example(hook, "scancel", &pod).0, "a pod is not a Slurm job");
    }
}
