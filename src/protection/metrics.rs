//! Metrics of protection. The label `target` is the name in the configuration, `workload` the workload or cgroup of
//! the job.

use crate::model::units::{Bytes, Count, Flag, Seconds};

crate::metrics! {
    /// State of the target's protection: 1 for the current state (disarmed, blind, ok, warn, soft, checkpoint, term, kill, verify or cooldown), 0 for the others.
    pub STATE: Gauge<Flag> = "memwarden_protection_state" {target, workload, state};
    /// Mode of the target's protection: 1 for the effective mode (observe or enforce), 0 for the other.
    pub MODE: Gauge<Flag> = "memwarden_protection_mode" {target, mode};
    /// Whether a condition of the target's protection policy is met, conditions that prevent an action included; absent where the condition is unknown or not configured.
    pub CONDITION: Gauge<Flag> = "memwarden_protection_condition" {target, workload, condition}.budget(4_000);
    /// Reason why the target is disarmed; 1 for each reason that applies, absent for the others.
    pub DISARMED_REASON: Gauge<Flag> = "memwarden_protection_disarmed_reason" {target, workload, reason};
    /// Memory left of a resource that the target's policy watches, as read by the guard.
    pub HEADROOM: Gauge<Bytes> = "memwarden_protection_headroom_bytes" {target, workload, resource};
    /// Processes that protection may act on for the target.
    pub MEMBERS: Gauge<Count> = "memwarden_protection_members" {target, workload}.counting("{process}");
    /// Processes of the target that protection may not act on: their user is not allowed, or they belong to the kernel or to memwarden.
    pub LEFT_OUT: Gauge<Count> = "memwarden_protection_members_left_out" {target, workload}.counting("{process}");
    /// Processes of the target that reported that a checkpoint signal does not lead to a checkpoint, by the reason that they gave; absent where none did.
    pub CANNOT_SAVE: Gauge<Count> = "memwarden_protection_members_cannot_save" {target, workload, reason}.counting("{process}");
    /// Age of the oldest reading that the last decision of the target's policy was based on.
    pub DECISION_AGE: Gauge<Seconds> = "memwarden_protection_decision_age_seconds" {target, workload};
    /// Whether killed processes still exist, or their memory is not free, after protection.targets[].verify_timeout, or the kill itself takes longer than term_grace and this time.
    pub OVERDUE: Gauge<Flag> = "memwarden_protection_overdue" {target, workload};
    /// Incidents of the target that began since memwarden started.
    pub INCIDENTS_STARTED: Counter<Count> = "memwarden_protection_incidents_started_total" {target}.counting("{incident}");
    /// State transitions of the target's protection, by the state entered.
    pub TRANSITIONS: Counter<Count> = "memwarden_protection_transitions_total" {target, state}.counting("{transition}");
    /// Protection steps carried out, by kind of step and outcome (done, started, skipped or failed).
    pub STEPS: Counter<Count> = "memwarden_protection_steps_total" {target, step, outcome}.counting("{step}").budget(4_200);
    /// State transitions that would have acted on processes in enforce mode and did not in observe mode, by the state entered.
    pub DRY_RUN_TRANSITIONS: Counter<Count> = "memwarden_protection_dry_run_transitions_total" {target, state}.counting("{transition}");
    /// Time from the reading that triggered the last signal until the signal was sent to all processes; absent before the first signal.
    pub SIGNAL_LATENCY: Gauge<Seconds> = "memwarden_protection_signal_latency_seconds" {target};
    /// Time from the last kill until the last killed process ended; absent before the first kill.
    pub TEARDOWN: Gauge<Seconds> = "memwarden_protection_teardown_seconds" {target};
    /// Times that protection may still terminate the target in the current hour.
    pub KILL_BUDGET: Gauge<Count> = "memwarden_protection_kill_budget_remaining" {target}.counting("{incident}");
    /// Times that protection may still terminate any target of the host in the current hour.
    pub HOST_KILL_BUDGET: Gauge<Count> = "memwarden_protection_host_kill_budget_remaining" {}.counting("{incident}");
    /// Evaluation rounds of the guard thread since it started; a constant value means that the guard is stuck.
    pub ROUNDS: Counter<Count> = "memwarden_guard_rounds_total" {}.counting("{round}");
    /// Time since the last evaluation round of the guard thread.
    pub ROUND_AGE: Gauge<Seconds> = "memwarden_guard_round_age_seconds" {};
    /// Longest delay between the scheduled and the actual wake-up of the guard thread since it started.
    pub LAG: Gauge<Seconds> = "memwarden_guard_lag_max_seconds" {};
    /// Longest round of the guard thread since it started; during a round it decides on nothing else.
    pub LONGEST_ROUND: Gauge<Seconds> = "memwarden_guard_round_max_seconds" {};
    /// Time that steps for the job in its slot took, of which at most 5 ms in a round delay the decision on other jobs.
    pub JOB_STEPS: Counter<Seconds> = "memwarden_protection_job_steps_seconds_total" {target, workload};
    /// CPU time that the guard thread used.
    pub CPU: Counter<Seconds> = "memwarden_guard_cpu_seconds_total" {};
    /// Whether the guard's memory is locked (mlock), so that the guard works while the host has no free memory.
    pub LOCKED: Gauge<Flag> = "memwarden_guard_memory_locked" {};
    /// Workloads that a target names and that are not protected because all protection slots are in use.
    pub UNPROTECTED_JOBS: Gauge<Count> = "memwarden_protection_unprotected_jobs" {}.counting("{workload}");
    /// Alerts received from Alertmanager, by outcome: matched (a target), unmatched or refused.
    pub ALERTS: Counter<Count> = "memwarden_protection_alerts_total" {outcome}.counting("{alert}");
    /// Requests for a checkpoint of a run that were sent to its other nodes, one for each node, by outcome.
    pub RUN_REQUESTS_SENT: Counter<Count> = "memwarden_run_requests_sent_total" {outcome}.counting("{request}");
    /// Requests for a checkpoint of a run that were received from other nodes, dry runs included, by outcome.
    pub RUN_REQUESTS_RECEIVED: Counter<Count> = "memwarden_run_requests_received_total" {outcome}.counting("{request}");
    /// Notifications of systemd-oomd before it kills a cgroup, by outcome: one for each protected job in it, or one where none is.
    pub PREKILLS: Counter<Count> = "memwarden_protection_prekills_total" {outcome}.counting("{notification}");
}
