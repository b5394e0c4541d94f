//! What can be written, what is refused and where, and what it means in a sentence.

use std::path::Path;
use std::time::Duration;

use expect_test::{Expect, expect};

use super::{PROTECTION, Protection};
use crate::model::setting::reader;

pub(crate) fn parse(text: &str) -> Result<Protection, String> {
    let read = |reader: &mut reader::Reader<'_>, root: Option<&_>| {
        let found = reader.section(root, "", std::iter::once(&PROTECTION));
        found.section(PROTECTION.key).cloned().unwrap_or_default()
    };
    let found = reader::checked(text, Path::new("f"), read, |settings, complain| {
        for (key, what) in super::check(&settings) {
            complain(&format!("{}.{key}", PROTECTION.key), what);
        }
        Protection::new(&settings, Duration::from_secs(1))
    });
    found.map_err(|error| error.to_string())
}

#[track_caller]
fn check(text: &str, expected: Expect) {
    expected.assert_eq(&parse(text).expect_err("it is wrong"));
}

#[test]
fn nobody_is_a_target_by_default() {
    let protection = parse("").unwrap();
    assert!(protection.targets.is_empty());
    assert_eq!(protection.mode.label(), "observe");
}

#[test]
fn every_mistake_has_its_line() {
    check(
        "protection:
  mode: kill
  targets:
    - name: a
      workload: \"*\"
      allow_users: [ada]
    - name: a
      cgroup: slurm/x
      allow_users: [ada, \"*\"]
      checkpoint: {signal: KILL}
    - name: a
      cgroup: \"/*/x\"
      host: {soft: 5, hard: 1GiB}
      checkpoint:
        grace: 20m
        signal: \"\"
    - name: b
      workload: train
      cgroup: /x
    - name: c
      workload: train
      allow_users: [ada]
      cgroup_headroom:
        soft: 10%
        hard: 10%
      hook: {program: bin/x, wait: 1s}
      webhook: localhost
      pauze: true
    - workload: train
      allow_users: [ada]
      host: {soft: \"\"}
      cgroup_headroom: {soft: \"\"}
      forecast: {max_state: warn, soft_within: 10m}
      hook: {wait: 5s}
      webhook: ftp://chat/s3cret
",
        expect![[r#"
            f:2: protection.mode: expected one of off, observe, enforce, found `kill`
            f:5: protection.targets[0].workload: `*` would match everything on the machine; write a pattern of what is to be protected
            f:7: protection.targets[1].name: `a` is the name of targets[0] too
            f:8: protection.targets[1].cgroup: `slurm/x` is not a path of a cgroup; it begins with a slash
            f:9: protection.targets[1].allow_users[1]: `*` is not a user; wildcards are not supported here
            f:10: protection.targets[1].checkpoint.signal: KILL cannot be caught, so it cannot ask for a checkpoint
            f:11: protection.targets[2].name: `a` is the name of targets[1] too
            f:11: protection.targets[2].allow_users: is empty, so no process may be signalled; list the users of the jobs
            f:12: protection.targets[2].cgroup: `/*/x` begins with a wildcard, so it would match system services too; write the first component in full
            f:13: protection.targets[2].host.soft: `5` has no unit; a size needs a unit: 512KiB, 100MiB, 2GiB, 1TiB (or kB, MB, GB, TB for powers of 1000); or it is a percentage: 10%
            f:14: protection.targets[2].checkpoint.longest_grace: is shorter than checkpoint.grace
            f:16: protection.targets[2].checkpoint.signal: is empty and there is no hook, so no checkpoint would be requested
            f:19: protection.targets[3].cgroup: is given beside `workload`; a target has one of them
            f:25: protection.targets[4].cgroup_headroom.hard: is not below `soft`, so the job would be killed before a checkpoint is requested
            f:26: protection.targets[4].hook.program: `bin/x` is not an absolute path
            f:27: protection.targets[4].webhook: `localhost` has no scheme; write http:// or https:// before it
            f:28: protection.targets[4].pauze: unknown key; known here: name, mode, workload, cgroup, allow_users, victims, max_state, host, memory_limit, cgroup_headroom, numa_nodes, memory_high, gpu, allocator, swap, hysteresis, for, clear_for, forecast, leak, alert, hook, raise, freeze, checkpoint, term_grace, kill_margin, verify_timeout, cooldown, max_kills_per_hour, hard_ignores_limits, webhook
            f:29: protection.targets[5].name: is empty
            f:33: protection.targets[5].forecast.warn_within: is shorter than forecast.soft_within
            f:34: protection.targets[5].hook.wait: is set without a hook, `freeze` or `raise`; set hook.program
            f:35: protection.targets[5].webhook: `ftp://chat` has no scheme; write http:// or https:// before it"#]],
    );
}

#[test]
fn a_policy_is_a_sentence() {
    let protection = parse(
        "protection:
  mode: enforce
  targets:
    - name: train
      workload: train-*
      allow_users: [ada, \"1007\"]
      hook: {program: /usr/local/bin/save}
    - name: gentle
      cgroup: /slurm/uid_*/job_*
      allow_users: [bob]
      mode: observe
      max_state: checkpoint
      victims: largest
      cgroup_headroom: {soft: 2GiB, hard: \"\"}
      host: {soft: \"\"}
      for: 500ms
    - name: alerted
      workload: y
      allow_users: [bob]
      max_state: checkpoint
      host: {soft: \"\"}
      cgroup_headroom: {soft: \"\"}
      forecast: {max_state: ignore}
      alert: {labels: {alertname: Leak}}
    - name: any
      workload: z
      allow_users: [bob]
      max_state: checkpoint
      host: {soft: \"\"}
      cgroup_headroom: {soft: \"\"}
      forecast: {max_state: ignore}
      alert: {labels: {alertname: Leak}, all_jobs: true}
    - name: gone
      workload: x
      allow_users: [bob]
      mode: \"off\"
",
    )
    .unwrap();
    let sentences: Vec<String> = protection.targets.iter().map(ToString::to_string).collect();
    expect![[r#"
        train (enforce): workload train-* of ada, 1007. When 5 % of host memory or 10 % of its limit or 5 % of its NUMA nodes or 5 % of memory.high is left for 2 s, or exhaustion is predicted within 90 s (up to checkpoint): run /usr/local/bin/save; request a checkpoint by SIGUSR1, time limit 1 min (10 min while saving); send SIGTERM, once memory has fallen halfway to the hard level or exhaustion is predicted within 90 s, time limit 10 s; send SIGKILL to the whole target, immediately when 2 % of host memory or 3 % of its limit or 2 % of its NUMA nodes is left; at most 3 times per hour.
        gentle (observe): cgroup /slurm/uid_*/job_* of bob. When 2.0 GiB of its limit or 5 % of its NUMA nodes or 5 % of memory.high is left for 500 ms, or exhaustion is predicted within 90 s: request a checkpoint by SIGUSR1, time limit 1 min (10 min while saving); nothing beyond state checkpoint; at most 3 times per hour.
        alerted (enforce): workload y of bob. When 5 % of its NUMA nodes or 5 % of memory.high is left for 2 s, or the alert alertname=Leak fires for this job: request a checkpoint by SIGUSR1, time limit 1 min (10 min while saving); nothing beyond state checkpoint; at most 3 times per hour.
        any (enforce): workload z of bob. When 5 % of its NUMA nodes or 5 % of memory.high is left for 2 s, or the alert alertname=Leak fires for any job: request a checkpoint by SIGUSR1, time limit 1 min (10 min while saving); nothing beyond state checkpoint; at most 3 times per hour."#]].assert_eq(&sentences.join("\n"));
}

#[test]
fn the_least_of_both_modes_holds() {
    let mode = |all: &str, own: &str| {
        let text = format!(
            "protection: {{mode: \"{all}\", targets: [{{name: a, workload: b, allow_users: [c], mode: \"{own}\"}}]}}"
        );
        parse(&text).unwrap().targets.first().map(|target| target.limits.mode.label())
    };
    let found = [
        ("observe", "enforce"),
        ("enforce", "observe"),
        ("enforce", ""),
        ("enforce", "enforce"),
        ("off", "enforce"),
    ]
    .map(|(all, own)| mode(all, own));
    assert_eq!(found, [Some("observe"), Some("observe"), Some("enforce"), Some("enforce"), None]);
}

#[test]
fn a_preset_is_overridden_by_what_is_given() {
    let ask = |checkpoint: &str| {
        let text = format!(
            "protection: {{targets: [{{name: a, workload: b, allow_users: [c], checkpoint: {{{checkpoint}}}}}]}}"
        );
        let target = parse(&text).unwrap().targets.remove(0);
        let signal = target.ask.signal.map(super::signals::name);
        let ranks = target.ask.ranks.map(super::presets::AskedRanks::label);
        let file = target.ask.file.map(|file| format!("{file:?}"));
        (signal, ranks, file.unwrap_or_default(), target.limits.exit_saves)
    };
    assert_eq!(ask(""), (Some("USR1"), None, String::new(), false));
    assert_eq!(ask("signal: \"\", touch: /t").0, None);
    let (signal, ranks, file, exits) = ask("preset: megatron, folder: /ckpt");
    assert_eq!((signal, ranks, exits), (Some("TERM"), Some("any"), true));
    assert_eq!(file, "File(\"/ckpt/latest_checkpointed_iteration.txt\")");
    let given =
        ask("preset: nemo2, signal: USR2, ranks: all, exit_saves: no, file: /ckpt/done, done: written");
    assert_eq!(given, (Some("USR2"), Some("all"), "File(\"/ckpt/done\")".to_owned(), false));
    let (_, ranks, file, _) = ask("preset: nemo2, folder: /ckpt");
    assert_eq!(ranks, Some("first"));
    assert!(file.contains("Removed") && file.contains("*-unfinished"), "{file}");
    for preset in super::presets::NAMES {
        let (signal, ..) = ask(&format!("preset: \"{preset}\", folder: /ckpt"));
        assert!(signal.is_some(), "{preset}");
    }
}

#[test]
fn a_wrong_preset_names_its_key() {
    check(
        "protection:
  prekill_socket: hook
  targets:
    - name: a
      workload: train
      allow_users: [ada]
      checkpoint:
        preset: megaton
        touch: relative
",
        expect![[r#"
            f:2: protection.prekill_socket: `hook` is not an absolute path
            f:8: protection.targets[0].checkpoint.preset: expected one of none, megatron, megatron-bridge, automodel, orbax, nemo2, lightning, huggingface, memwarden, found `megaton`
            f:9: protection.targets[0].checkpoint.touch: `relative` is not an absolute path"#]],
    );
    check(
        "protection:
  targets:
    - name: a
      workload: train
      allow_users: [ada]
      checkpoint:
        file: /ckpt/*/a/done
",
        expect![
            "f:7: protection.targets[0].checkpoint.file: `/ckpt/*/a/done` has wildcards before its last two components"
        ],
    );
}

#[test]
fn only_default_levels_of_the_host_are_those_of_a_pool() {
    let of = |host: &str| {
        let text = format!(
            "protection: {{targets: [{{name: t, workload: x, allow_users: [ada], host: {{{host}}}}}]}}\n"
        );
        let limits = parse(&text).unwrap().targets.remove(0).limits.clone();
        [limits.levels[0], limits.of_pool].map(|levels| {
            levels.map_or_else(String::new, |levels| {
                let hard = levels.hard.map_or_else(|| "none".to_owned(), |hard| hard.to_string());
                format!("{}, {hard}", levels.soft)
            })
        })
    };
    assert_eq!(of("soft: default, hard: default"), ["5 %, 2 %", "10 %, 4 %"]);
    assert_eq!(of("hard: 3%"), ["5 %, 3 %", "10 %, 3 %"]);
    assert_eq!(of("hard: \"\""), ["5 %, none", "10 %, none"]);
    // The hard level of a pool may be above it.
    assert_eq!(of("soft: 3%"), ["3 %, 2 %", "3 %, 2 %"]);
    assert_eq!(of("soft: 5%, hard: 2%"), ["5 %, 2 %", "5 %, 2 %"]);
    assert_eq!(of("soft: \"\""), ["", ""]);
}
