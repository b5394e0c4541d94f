//! Checks a `protection` section whose values are valid one by one.

use std::collections::BTreeMap;
use std::time::Duration;

use super::keys::Section;
use super::target;
use super::target::{Selector, Target};
use crate::model::setting::Settings;
use crate::model::units::Amount;
use crate::policy::{ByResource, Limits, Mode, Rung};
use crate::types::step::ServiceAddress;

/// Maximum number of targets, for which the guard has room.
pub(super) const MOST_TARGETS: usize = 64;

/// Every error, with its key within the section.
pub fn check(settings: &Settings) -> Vec<(String, String)> {
    let mut wrong = Vec::new();
    let section = Section::read(settings);
    let peers = section.peers.resolve();
    let has_peers = matches!(peers, Ok(Some(_)));
    if let Err((key, what)) = peers {
        wrong.push((format!("peers.{key}"), what));
    }
    if let Some(path) = section.prekill_socket.as_ref().filter(|path| !path.is_absolute()) {
        wrong.push(("prekill_socket".to_owned(), format!("`{}` is not an absolute path", path.display())));
    }
    let mut names: BTreeMap<String, usize> = BTreeMap::new();
    if section.targets.len() > MOST_TARGETS {
        wrong.push(("targets".to_owned(), format!("has more than {MOST_TARGETS} entries")));
    }
    for (place, keys) in section.targets.into_iter().enumerate() {
        let mut complain = |key: &str, what: String| wrong.push((format!("targets[{place}].{key}"), what));
        match target(keys, Mode::Enforce, Duration::ZERO) {
            Ok(target) => {
                names_itself(&target, &mut complain);
                if let Some(first) = names.insert(target.name.as_str().to_owned(), place) {
                    complain("name", format!("`{}` is the name of targets[{first}] too", target.name));
                }
                names_somebody(&target, &mut complain);
                outside(&target, &mut complain);
                if target.ask.run && !has_peers {
                    complain("checkpoint.scope", "is `run` and protection.peers.from is `none`".to_owned());
                }
                in_order(&target.limits, &mut complain);
            }
            Err((key, what)) => complain(key, what),
        }
    }
    wrong
}

type ReportProblem<'c> = &'c mut dyn FnMut(&str, String);

fn names_itself(target: &Target, complain: ReportProblem<'_>) {
    if target.name.is_empty() {
        complain("name", "is empty".to_owned());
    } else if target.name.as_str().contains(|c: char| c.is_control() || c == '/') {
        complain("name", "has control characters or slashes".to_owned());
    }
}

/// A pattern that matches everything on the machine is rejected as a mistake.
fn names_somebody(target: &Target, complain: ReportProblem<'_>) {
    let (key, pattern) = match &target.selector {
        Selector::Workload(pattern) => ("workload", pattern),
        Selector::Cgroup(pattern) => ("cgroup", pattern),
    };
    if pattern.chars().all(|c| matches!(c, '*' | '?' | '/' | '.')) {
        complain(
            key,
            format!(
                "`{pattern}` would match everything on the machine; write a pattern of what is to be protected"
            ),
        );
    } else if key == "cgroup" && !pattern.starts_with('/') {
        complain(key, format!("`{pattern}` is not a path of a cgroup; it begins with a slash"));
    } else if key == "cgroup" && pattern[1..].split('/').next().is_some_and(wild) {
        let what = "begins with a wildcard, so it would match system services too; write the first component in full";
        complain(key, format!("`{pattern}` {what}"));
    }
    if target.users.is_empty() {
        complain(
            "allow_users",
            "is empty, so no process may be signalled; list the users of the jobs".to_owned(),
        );
    }
    for (place, user) in target.users.iter().enumerate() {
        if user.is_empty() || user.contains(['*', '?']) {
            complain(
                &format!("allow_users[{place}]"),
                format!("`{user}` is not a user; wildcards are not supported here"),
            );
        }
    }
}

fn wild(part: &str) -> bool {
    part.contains(['*', '?'])
}

fn outside(target: &Target, complain: ReportProblem<'_>) {
    if let Some(hook) = &target.hook
        && !hook.program.is_absolute()
    {
        complain("hook.program", format!("`{}` is not an absolute path", hook.program.display()));
    }
    let waits_for = target.hook.is_some() || target.freeze || target.raise.is_some();
    if !waits_for && !target.limits.hook_wait.is_zero() {
        complain("hook.wait", "is set without a hook, `freeze` or `raise`; set hook.program".to_owned());
    }
    if target.freeze && target.limits.hook_wait.is_zero() {
        complain("freeze", "is set while hook.wait is 0s; set hook.wait".to_owned());
    }
    if let Some(url) = &target.webhook
        && !url.starts_with("http://")
        && !url.starts_with("https://")
    {
        complain(
            "webhook",
            format!("`{}` has no scheme; write http:// or https:// before it", ServiceAddress(url)),
        );
    }
    if let Some(path) = target.ask.touch.as_ref().filter(|path| !path.is_absolute()) {
        complain("checkpoint.touch", format!("`{}` is not an absolute path", path.display()));
    }
    let checkpoints = target.limits.max_state >= Some(Rung::Checkpoint);
    if checkpoints && target.ask.signal.is_none() && target.hook.is_none() && target.ask.touch.is_none() {
        let what = "is empty and there is no hook, so no checkpoint would be requested";
        complain("checkpoint.signal", what.to_owned());
    }
}

fn in_order(limits: &Limits, complain: ReportProblem<'_>) {
    const KEYS: ByResource<&str> =
        ["host.hard", "cgroup_headroom.hard", "gpu.hard", "allocator.hard", "numa_nodes.hard", "memory_high"];
    for (resource, levels) in limits.watched() {
        let upside_down = match (levels.soft, levels.hard) {
            (Amount::Bytes(soft), Some(Amount::Bytes(hard))) => hard >= soft,
            (Amount::Share(soft), Some(Amount::Share(hard))) => hard >= soft,
            _ => false,
        };
        if upside_down {
            complain(
                KEYS[resource.place()],
                "is not below `soft`, so the job would be killed before a checkpoint is requested".to_owned(),
            );
        }
    }
    let triggers = [limits.forecast, limits.leak, limits.alert];
    if limits.watched().next().is_none()
        && triggers.iter().all(|trigger| trigger.max_state < Some(Rung::Soft))
    {
        complain("host.soft", "is empty, and nothing else is watched either".to_owned());
    }
    if limits.grace > limits.longest_grace {
        complain("checkpoint.longest_grace", "is shorter than checkpoint.grace".to_owned());
    }
    if limits.soft_within > limits.warn_within {
        complain("forecast.warn_within", "is shorter than forecast.soft_within".to_owned());
    }
}
