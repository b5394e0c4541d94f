//! What protection exposes. `target` is the name in the configuration, `workload` the workload or cgroup it stands for now.

use crate::model::units::{Bytes, Count, Flag, Seconds};

crate::metrics! {
    /// Where the target's ladder stands: 1 for the state it has of disarmed, blind, ok, warn, soft, checkpoint, term, kill, verify and cooldown, 0 for the others.
    pub STATE: Gauge<Flag> = "memwarden_protection_state" {target, workload, state};
    /// Whether this is what the target's policy may do: 1 for the mode it has of observe and enforce, 0 for the other.
    pub MODE: Gauge<Flag> = "memwarden_protection_mode" {target, mode};
    /// Whether a condition of the target's policy is met; absent where that is not known, or not asked for. Why nothing was done is among them.
    pub CONDITION: Gauge<Flag> = "memwarden_protection_condition" {target, workload, condition}.budget(4_000);
    /// Whether this is a reason why the target is disarmed; absent where it is not.
    pub UNFIT: Gauge<Flag> = "memwarden_protection_unfit" {target, workload, reason};
    /// What is left of a resource that the target's policy watches, as the guard reads it.
    pub HEADROOM: Gauge<Bytes> = "memwarden_protection_headroom_bytes" {target, workload, resource};
    /// Processes that may be touched for the target.
    pub MEMBERS: Gauge<Count> = "memwarden_protection_members" {target, workload}.counting("{process}");
    /// Processes of the target that may not be touched, because of their user, or because they are the kernel's or our own.
    pub LEFT_OUT: Gauge<Count> = "memwarden_protection_members_left_out" {target, workload}.counting("{process}");
    /// Age of what the last step of the target's policy was decided on: the oldest reading of those it watches.
    pub DECISION_AGE: Gauge<Seconds> = "memwarden_protection_decision_age_seconds" {target, workload};
    /// Whether victims are still there, or their memory is not back, after the time they had.
    pub OVERDUE: Gauge<Flag> = "memwarden_protection_overdue" {target, workload};
    /// Incidents that began.
    pub TRIPS: Counter<Count> = "memwarden_protection_trips_total" {target}.counting("{incident}");
    /// Moves of the target's ladders, by the state they led to.
    pub MOVES: Counter<Count> = "memwarden_protection_moves_total" {target, state}.counting("{move}");
    /// Steps that were carried out, by kind and how they went: done, started, skipped, failed.
    pub STEPS: Counter<Count> = "memwarden_protection_steps_total" {target, step, outcome}.counting("{step}").budget(4_000);
    /// Moves that would have touched processes, in the mode observe, by the state they led to.
    pub WOULD_ACT: Counter<Count> = "memwarden_protection_would_act_total" {target, state}.counting("{move}");
    /// Time from the reading that the last signal was decided on to the end of sending it; absent before the first.
    pub SIGNAL_LATENCY: Gauge<Seconds> = "memwarden_protection_signal_latency_seconds" {target};
    /// Time from the last kill to the end of its last victim; absent before the first.
    pub TEARDOWN: Gauge<Seconds> = "memwarden_protection_teardown_seconds" {target};
    /// How often the target may still be ended in this hour.
    pub LEFT: Gauge<Count> = "memwarden_protection_rate_left" {target}.counting("{incident}");
    /// How often any target may still be ended in this hour.
    pub HOST_LEFT: Gauge<Count> = "memwarden_protection_host_rate_left" {}.counting("{incident}");
    /// Steps of the guard since its start; one that stays the same means a guard that is stuck.
    pub ROUNDS: Counter<Count> = "memwarden_guard_rounds_total" {}.counting("{round}");
    /// Time since the guard's last step.
    pub ROUND_AGE: Gauge<Seconds> = "memwarden_guard_round_age_seconds" {};
    /// How much later than it wanted the guard woke, at worst since the start.
    pub LAG: Gauge<Seconds> = "memwarden_guard_lag_max_seconds" {};
    /// CPU time of the guard's thread.
    pub CPU: Counter<Seconds> = "memwarden_guard_cpu_seconds_total" {};
    /// Whether the guard's memory is locked, so that it works when there is no other.
    pub LOCKED: Gauge<Flag> = "memwarden_guard_memory_locked" {};
    /// Jobs that a target names and that are not protected, because there are more than can be.
    pub UNSEATED: Gauge<Count> = "memwarden_protection_unseated" {}.counting("{workload}");
    /// Alerts that were received, by what became of them: matched, unmatched, refused.
    pub ALERTS: Counter<Count> = "memwarden_protection_alerts_total" {outcome}.counting("{alert}");
}
