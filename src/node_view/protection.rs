//! Protection targets, and why each does not act.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use super::events::state_health;
use super::lookup::{Lookup, MetricRow};
use crate::catalog::protection;
use crate::model::format;
use crate::model::health::Health;

/// Seconds without a round after which the guard counts as stuck.
const STUCK: f64 = 5.0;

/// The triggers of an escalation, and what is so while each is met.
const TRIGGERS: [(&str, &str); 14] = [
    ("host_hard", "memory of the host is below the hard level"),
    ("cgroup_hard", "memory below its limit is below the hard level"),
    ("gpu_hard", "memory of the GPU is below the hard level"),
    ("allocator_hard", "memory of the allocator is below the hard level"),
    ("host_soft", "memory of the host is below the soft level"),
    ("cgroup_soft", "memory below its limit is below the soft level"),
    ("gpu_soft", "memory of the GPU is below the soft level"),
    ("allocator_soft", "memory of the allocator is below the soft level"),
    ("no_time_left", "the time to exhaustion is below kill_margin"),
    ("forecast_soft", "exhaustion is predicted within soft_within"),
    ("no_save_soon", "it is predicted that within soft_within, a checkpoint can no longer be saved"),
    ("forecast_warn", "exhaustion is predicted within warn_within"),
    ("leak", "a leak is confirmed"),
    ("alert", "an alert fires"),
];

/// Why a target is disarmed, by the value of the label `reason`.
const REASONS: [(&str, &str); 7] = [
    ("no_executor", "the executor could not be set up"),
    ("no_permission", "memwarden may not signal its processes (CAP_KILL is missing)"),
    ("unknown_user", "a user in allow_users does not exist on this host"),
    ("too_wide", "it includes init, memwarden or an ancestor of memwarden"),
    ("bounds", "its scope was refused"),
    ("unknown", "its processes are not known: their sources are off or stuck"),
    ("other_daemon", "another memwarden uses the same state folder"),
];

/// Protection of the node.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Protection {
    /// Seconds since the last round of the guard; absent where no target is configured.
    pub round_age: Option<f64>,
    /// Workloads that a target names and that have no slot.
    pub unprotected: Option<f64>,
    /// Times that protection may still terminate a target of the host in the current hour.
    pub terminations_left: Option<f64>,
    /// One row for each workload of each target, and one for each target without a workload.
    pub targets: Vec<Target>,
}

impl Protection {
    /// Whether targets are configured.
    pub fn configured(&self) -> bool {
        !self.targets.is_empty()
    }

    /// Whether the guard makes no rounds.
    pub fn stuck(&self) -> bool {
        self.round_age.is_some_and(|age| age > STUCK)
    }
}

/// A workload of a target.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Target {
    /// The target's name in the configuration.
    pub target: String,
    /// `observe` or `enforce`.
    pub mode: String,
    /// The workload or cgroup; empty where none matches.
    pub workload: String,
    /// The state, such as `warn`; empty where no workload matches.
    pub state: String,
    pub health: Health,
    /// What holds, and why no more is done, in sentences.
    pub why: Vec<String>,
    /// Memory left by resource (`host`, `cgroup`, `gpu`, `allocator`), as the guard reads it.
    pub headroom: Vec<(String, f64)>,
    /// Processes that may be signalled.
    pub members: Option<f64>,
    /// Processes that may not be signalled.
    pub left_out: Option<f64>,
    /// Number of processes that report that they do not save a checkpoint on request, by the reason that they give.
    #[serde(default)]
    pub cannot_save: Vec<(String, f64)>,
    /// Terminations left in the current hour.
    pub terminations_left: Option<f64>,
    /// Age of the oldest reading of the last decision, in seconds.
    pub decision_age: Option<f64>,
    /// Whether killed processes still exist after their time limit.
    pub overdue: bool,
}

type Field = fn(&mut Target) -> &mut Option<f64>;

#[derive(Default)]
struct Conditions<'f> {
    met: BTreeSet<&'f str>,
    not_met: BTreeSet<&'f str>,
    reasons: Vec<&'f str>,
}

/// The target and the workload that a row is about.
fn key<'f>(row: &MetricRow<'f>) -> (&'f str, &'f str) {
    (row.label("target"), row.label("workload"))
}

pub(super) fn protection(lookup: &Lookup<'_>) -> Protection {
    let mut modes = BTreeMap::new();
    for row in lookup.current(&protection::MODE.desc) {
        modes.insert(row.label("target"), row.label("mode"));
    }
    let mut all = BTreeMap::<(&str, &str), Target>::new();
    let mut conditions = BTreeMap::<(&str, &str), Conditions<'_>>::new();
    for row in lookup.current(&protection::STATE.desc) {
        row.label("state").clone_into(&mut all.entry(key(&row)).or_default().state);
    }
    for row in lookup.rows(&protection::CONDITION.desc) {
        let own = conditions.entry(key(&row)).or_default();
        let known = if row.value() > 0.0 { &mut own.met } else { &mut own.not_met };
        known.insert(row.label("condition"));
    }
    for row in lookup.current(&protection::DISARMED_REASON.desc) {
        conditions.entry(key(&row)).or_default().reasons.push(row.label("reason"));
    }
    for row in lookup.rows(&protection::HEADROOM.desc) {
        all.entry(key(&row)).or_default().headroom.push((row.label("resource").to_owned(), row.value()));
    }
    for row in lookup.rows(&protection::CANNOT_SAVE.desc) {
        all.entry(key(&row)).or_default().cannot_save.push((row.label("reason").to_owned(), row.value()));
    }
    let figures: [(_, Field); 3] = [
        (&protection::MEMBERS.desc, |own| &mut own.members),
        (&protection::LEFT_OUT.desc, |own| &mut own.left_out),
        (&protection::DECISION_AGE.desc, |own| &mut own.decision_age),
    ];
    for (desc, field) in figures {
        for row in lookup.rows(desc) {
            *field(all.entry(key(&row)).or_default()) = Some(row.value());
        }
    }
    for row in lookup.current(&protection::OVERDUE.desc) {
        all.entry(key(&row)).or_default().overdue = true;
    }
    for target in modes.keys() {
        if !all.keys().any(|(known, _)| known == target) {
            all.insert((target, ""), Target::default());
        }
    }
    let left: BTreeMap<&str, f64> =
        lookup.rows(&protection::KILL_BUDGET.desc).map(|row| (row.label("target"), row.value())).collect();
    let none = Conditions::default();
    let targets = all.into_iter().map(|((target, workload), mut own)| {
        target.clone_into(&mut own.target);
        workload.clone_into(&mut own.workload);
        modes.get(target).copied().unwrap_or_default().clone_into(&mut own.mode);
        own.terminations_left = left.get(target).copied();
        own.explain(conditions.get(&(target, workload)).unwrap_or(&none));
        own
    });
    Protection {
        round_age: lookup.value(&protection::ROUND_AGE.desc),
        unprotected: lookup.value(&protection::UNPROTECTED_JOBS.desc),
        terminations_left: lookup.value(&protection::HOST_KILL_BUDGET.desc),
        targets: targets.collect(),
    }
}

impl Target {
    /// Says what holds, why no more is done, and how that is.
    fn explain(&mut self, conditions: &Conditions<'_>) {
        let enforces = self.mode == "enforce";
        self.health = match (self.state.as_str(), enforces) {
            ("", _) => Health::Ok,
            // Nothing is done in this mode, whatever the state.
            ("soft" | "checkpoint" | "term" | "kill" | "verify", false) => Health::Warning,
            ("disarmed", true) => Health::Warning,
            (state, _) => state_health(state),
        };
        let mut why = Vec::new();
        if self.state.is_empty() {
            why.push("No running workload matches this target.".to_owned());
            self.why = why;
            return;
        }
        let met: Vec<&str> = TRIGGERS
            .iter()
            .filter(|(condition, _)| conditions.met.contains(condition))
            .map(|(_, words)| *words)
            .collect();
        let holds = if met.is_empty() { None } else { Some(met.join("; ")) };
        match self.state.as_str() {
            "disarmed" => {
                let reasons: Vec<&str> = conditions
                    .reasons
                    .iter()
                    .map(|reason| {
                        REASONS.iter().find(|(word, _)| word == reason).map_or(*reason, |(_, words)| words)
                    })
                    .collect();
                if !reasons.is_empty() {
                    why.push(format!("It cannot act: {}.", reasons.join("; ")));
                } else if conditions.not_met.contains("rate_left") {
                    why.push("It may not act: the limit of terminations in an hour is used up.".to_owned());
                } else {
                    why.push("It cannot act.".to_owned());
                }
            }
            "blind" => why.push("It cannot see: none of the watched readings is recent.".to_owned()),
            "ok" => why.push(match &holds {
                Some(holds) => format!("It does not escalate, although {holds}."),
                None => "No trigger holds: no level is crossed, and nothing is predicted.".to_owned(),
            }),
            "warn" => {
                why.push(match &holds {
                    Some(holds) => format!("It watches more closely: {holds}."),
                    None => "It watches more closely: memory is near a level.".to_owned(),
                });
                if !conditions.met.contains("held") && conditions.not_met.contains("held") {
                    why.push(
                        "The next step waits until a level is crossed for the configured time.".to_owned(),
                    );
                }
            }
            "kill" if self.overdue => why.push("Its kill takes longer than the time limit.".to_owned()),
            "verify" if self.overdue => {
                why.push("Killed processes still exist after their time limit.".to_owned());
            }
            "verify" => {
                why.push("It waits for killed processes to end and their memory to be freed.".to_owned())
            }
            "cooldown" => {
                why.push("An incident ended; nothing is done until the cooldown is over.".to_owned())
            }
            state => {
                let cause = holds.map_or_else(String::new, |holds| format!(": {holds}"));
                why.push(format!("It is in the state {state}{cause}."));
                if conditions.not_met.contains("alone_on_host") {
                    why.push("It waits: another target is freeing memory of the host.".to_owned());
                }
                if conditions.not_met.contains("rate_left") {
                    why.push(
                        "It may not terminate: the limit of terminations in an hour is used up.".to_owned(),
                    );
                }
            }
        }
        if self.members == Some(0.0) {
            let left_out = self.left_out.unwrap_or(0.0);
            why.push(format!(
                "It may signal none of its processes; {left_out} are of users not in allow_users."
            ));
        }
        why.extend(self.cannot_save_text());
        if !enforces {
            why.push("Mode observe: decisions are recorded, and nothing is done.".to_owned());
        }
        self.why = why;
    }

    /// The processes that do not save a checkpoint on request, in a sentence for each reason.
    pub fn cannot_save_text(&self) -> impl Iterator<Item = String> + '_ {
        self.cannot_save.iter().map(|(reason, processes)| {
            let plural = if *processes == 1.0 { "process does" } else { "processes do" };
            let reason = if reason.is_empty() { "without a reason" } else { reason };
            format!("{processes} {plural} not save a checkpoint on request, as the job reports: {reason}.")
        })
    }

    /// The memory left of each watched resource as text.
    pub fn headroom_text(&self) -> String {
        let each =
            self.headroom.iter().map(|(resource, left)| format!("{resource} {}", format::bytes(*left)));
        let all: Vec<String> = each.collect();
        if all.is_empty() { format::UNKNOWN.to_owned() } else { all.join(", ") }
    }
}
