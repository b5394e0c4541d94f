//! A target: which processes are protected, which are terminated, and how a checkpoint is requested.

use std::collections::BTreeMap;
use std::fmt;
use std::path::Path;
use std::sync::Arc;

use super::presets::AskedRanks;
use super::signals;
use crate::model::facts::Workload;
use crate::model::format;
use crate::model::label::Label;
use crate::model::names::named;
use crate::model::pattern;
use crate::model::units::{Amount, Bytes};
use crate::policy::{Limits, Mode, Resource, Rung, Trigger};
use crate::types::step::{Acknowledgement, Hook, SignalNumber};

/// The pattern that selects a target's processes, with the wildcards `*` and `?`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Selector {
    /// Workloads, by name.
    Workload(String),
    /// Cgroups, by path.
    Cgroup(String),
}

impl Selector {
    /// Whether the pattern matches a workload, by its displayed name or by its name without the suffix that makes it
    /// unique: otherwise a user who starts a workload of the same name first would remove the real one from the
    /// target.
    pub fn names_workload(&self, workload: &Workload) -> bool {
        let fits = |wanted: &str, name: &Label| pattern::fits(wanted, name.as_str());
        matches!(self, Self::Workload(wanted) if fits(wanted, &workload.name) || fits(wanted, &workload.plain))
    }

    /// The topmost cgroup on a path that the pattern matches.
    pub fn names_group<'p>(&self, path: &'p str) -> Option<&'p str> {
        let Self::Cgroup(wanted) = self else { return None };
        let ends = path.match_indices('/').map(|(place, _)| place).filter(|place| *place > 0);
        let mut tops = ends.chain(std::iter::once(path.len())).map(|end| &path[..end]);
        // `*` matches slashes too, so the first prefix that matches is the topmost.
        tops.find(|top| top.len() > 1 && pattern::fits(wanted, top))
    }
}

named! {
    /// The processes of a target that are terminated.
    #[derive(Default, serde::Serialize)]
    #[serde(rename_all = "lowercase")]
    pub enum Victims {
        /// All processes: a training job cannot continue without one of its ranks.
        #[default]
        Whole = "whole",
        /// The process with most resident memory.
        Largest = "largest",
        /// The process that was started last.
        Newest = "newest",
    }
}

/// How a checkpoint is requested, and how the job acknowledges it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ask {
    pub signal: Option<SignalNumber>,
    /// Whether the other nodes of the job's run are asked too.
    pub run: bool,
    /// The ranks that must receive it, and no other process; absent where the configuration does not state them.
    pub ranks: Option<AskedRanks>,
    /// The file that it writes when the checkpoint is saved, or another marker.
    pub file: Option<Arc<Acknowledgement>>,
    /// The file that is created or whose time is set, for a job that watches it.
    pub touch: Option<Arc<Path>>,
    /// Whether messages on the job socket count as acknowledgement.
    pub job: bool,
}

impl Ask {
    /// Whether a checkpoint can be requested at all.
    pub const fn is_configured(&self) -> bool {
        self.signal.is_some() || self.touch.is_some()
    }
}

/// How far the limit of the target's cgroup may be raised.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Raise {
    /// The largest limit; a share is one of the host's memory.
    pub to: Amount,
    /// The amount of one step, or more where a checkpoint needs it; a share is one of the limit.
    pub by: Amount,
    /// Memory of the host that stays available; a share is one of the host's memory.
    pub keep_free: Amount,
}

impl Raise {
    /// Smaller steps are not worth a write.
    const LEAST: Bytes = Bytes::new(1 << 20);

    /// The limit after `limit` where `lacking` is needed at least, on a host with that much memory available of the total,
    /// without what is left below the limit; absent where it may not be raised.
    pub fn limit(self, limit: Bytes, lacking: Bytes, available: Bytes, total: Bytes) -> Option<Bytes> {
        let room = available.saturating_sub(self.keep_free.of(total));
        let by = self.by.of(limit).max(lacking);
        let raised = limit.saturating_add(by.min(room)).min(self.to.of(total));
        (raised.saturating_sub(limit) >= Self::LEAST).then_some(raised)
    }
}

#[derive(Clone, Debug, PartialEq)]
pub struct Target {
    pub name: Label,
    /// The pattern of its processes.
    pub selector: Selector,
    /// The users whose processes may be signalled, by name or number.
    pub users: Vec<String>,
    /// The processes that are terminated.
    pub victims: Victims,
    /// How a checkpoint is requested.
    pub ask: Ask,
    /// The hook, started at the soft level.
    pub hook: Option<Arc<Hook>>,
    /// The webhook's URL, called for each transition.
    pub webhook: Option<Arc<str>>,
    /// The limit of the anonymous memory of a job's processes; a share is one of the host's memory.
    pub memory_limit: Option<Amount>,
    /// How its cgroup's limit is raised at the soft level.
    pub raise: Option<Raise>,
    /// Whether its cgroup is frozen while the hook runs.
    pub freeze: bool,
    /// The labels of matching alerts; empty where no alert matches.
    pub alert: BTreeMap<String, String>,
    /// Whether an alert that names no job can lead beyond a warning.
    pub alert_all_jobs: bool,
    /// The limits of the policy.
    pub limits: Limits,
}

impl Target {
    /// Whether an alert with these labels matches the target.
    pub fn matches_alert<'l>(&self, label: impl Fn(&str) -> Option<&'l str>) -> bool {
        let fits = |(name, wanted): (&String, &String)| {
            label(name).is_some_and(|value| pattern::fits(wanted, value))
        };
        !self.alert.is_empty() && self.alert.iter().all(fits)
    }
}

/// The policy as a sentence.
impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Limits { mode, max_state, .. } = self.limits;
        if mode == Mode::Off {
            return write!(f, "{}: off.", self.name);
        }
        let whom = match &self.selector {
            Selector::Workload(pattern) => format!("workload {pattern}"),
            Selector::Cgroup(pattern) => format!("cgroup {pattern}"),
        };
        let levels = |hard: bool| {
            let levels = self.limits.watched().filter_map(|(resource, levels)| {
                let amount = if hard { levels.hard? } else { levels.soft };
                Some(match resource {
                    Resource::Cgroup => format!("{amount} of its limit"),
                    Resource::High => format!("{amount} of memory.high"),
                    Resource::Nodes => format!("{amount} of its NUMA nodes"),
                    _ => format!("{amount} of {} memory", resource.label()),
                })
            });
            levels.collect::<Vec<_>>().join(" or ")
        };
        let mut when = Vec::new();
        if self.limits.watched().next().is_some() {
            when.push(format!("{} is left for {}", levels(false), time(self.limits.for_time)));
        }
        let within = |trigger: Trigger| match self.limits.within(trigger.max_state) {
            max_state if max_state < Some(Rung::Soft) => None,
            max_state if max_state < self.limits.max_state => {
                Some(format!(" (up to {})", max_state.map_or("ignore", Rung::label)))
            }
            _ => Some(String::new()),
        };
        if let Some(most) = within(self.limits.forecast) {
            when.push(format!("exhaustion is predicted within {}{most}", time(self.limits.soft_within)));
        }
        if let Some(most) = within(self.limits.leak) {
            when.push(format!("a leak is confirmed{most}"));
        }
        if let Some(most) = within(self.limits.alert) {
            let labels = self.alert.iter().map(|(name, value)| format!("{name}={value}"));
            let whose = if self.alert_all_jobs { " for any job" } else { " for this job" };
            when.push(format!("the alert {} fires{whose}{most}", labels.collect::<Vec<_>>().join(" ")));
        }
        let hard = self.limits.watched().any(|(_, levels)| levels.hard.is_some());
        write!(f, "{} ({}): {whom} of {}", self.name, mode.label(), self.users.join(", "))?;
        write!(f, ". When {}:", when.join(", or "))?;
        if let Some(raise) = self.raise {
            write!(f, " raise its cgroup's limit by {}, up to {};", raise.by, raise.to)?;
        }
        if self.freeze {
            write!(f, " freeze its cgroup for at most {};", time(self.limits.hook_wait))?;
        }
        if let Some(hook) = &self.hook {
            write!(f, " run {};", hook.program.display())?;
        }
        if max_state >= Some(Rung::Checkpoint)
            && let Some(signal) = self.ask.signal
        {
            let (grace, longest) = (time(self.limits.grace), time(self.limits.longest_grace));
            if self.ask.run {
                f.write_str(" ask the other nodes of the run for a checkpoint;")?;
            }
            write!(
                f,
                " request a checkpoint by SIG{}{}, time limit {grace} ({longest} while saving);",
                signals::name(signal),
                match self.ask.ranks {
                    Some(AskedRanks::Any) => " to one rank",
                    Some(AskedRanks::First) => " to rank 0",
                    Some(AskedRanks::All) => " to each rank",
                    None => "",
                }
            )?;
        }
        if max_state >= Some(Rung::Term) {
            f.write_str(" send SIGTERM")?;
            if self.limits.watched().next().is_some() {
                let soft_within = time(self.limits.soft_within);
                let end = if hard { "the hard level" } else { "zero" };
                write!(f, ", once memory has fallen halfway to {end}")?;
                if self.limits.forecast.max_state.is_some() {
                    write!(f, " or exhaustion is predicted within {soft_within}")?;
                }
            }
            write!(f, ", time limit {};", time(self.limits.term_grace))?;
        }
        if max_state == Some(Rung::Kill) {
            let who = match self.victims {
                Victims::Whole => "the whole target",
                Victims::Largest => "its largest process",
                Victims::Newest => "its newest process",
            };
            write!(f, " send SIGKILL to {who}")?;
            if hard {
                write!(f, ", immediately when {} is left", levels(true))?;
            }
        } else {
            write!(f, " nothing beyond state {}", max_state.map_or("ignore", Rung::label))?;
        }
        write!(f, "; at most {} times per hour.", self.limits.max_kills_per_hour)
    }
}

fn time(duration: std::time::Duration) -> String {
    format::chosen(duration)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_is_raised_by_steps_while_the_host_has_room() {
        let gib = |count: u64| Bytes::new(count << 30);
        let raise =
            Raise { to: Amount::Bytes(gib(60)), by: Amount::Bytes(gib(8)), keep_free: Amount::Share(0.1) };
        let limit = |limit, available| {
            raise.limit(gib(limit), Bytes::ZERO, gib(available), gib(100)).map(|bytes| bytes.get() >> 30)
        };
        assert_eq!(limit(40, 50), Some(48));
        assert_eq!(limit(40, 15), Some(45), "10 GiB of the host stay available");
        assert_eq!(limit(55, 50), Some(60), "the largest limit");
        assert_eq!((limit(60, 50), limit(70, 50), limit(40, 10), limit(40, 0)), (None, None, None, None));
    }

    #[test]
    fn a_group_is_named_with_all_below_it() {
        let selector = Selector::Cgroup("/slurm/uid_*/job_*".to_owned());
        for (path, expected) in [
            ("/slurm/uid_7/job_9", Some("/slurm/uid_7/job_9")),
            ("/slurm/uid_7/job_9/step_0/task_1", Some("/slurm/uid_7/job_9")),
            ("/slurm/uid_7", None),
            ("/slurm", None),
            ("/", None),
            ("", None),
            ("/system.slice", None),
        ] {
            assert_eq!(selector.names_group(path), expected, "{path}");
        }
        let workload = |name: &str, plain: &str| {
            let process = crate::model::ids::ProcessKey { pid: 7, start: 7 };
            let named = crate::model::facts::Membership::named(process, plain);
            Workload { name: name.into(), ..Workload::clone(&named.workload) }
        };
        assert!(!selector.names_workload(&workload("/slurm/uid_7/job_9", "/slurm/uid_7/job_9")));
        let names = |pattern: &str, name: &str| {
            Selector::Workload(pattern.to_owned()).names_workload(&workload(name, "train"))
        };
        assert!(names("train", "train") && names("train", "train@ada") && names("*@ada", "train@ada"));
        assert!(!names("*@ada", "train"));
    }
}
