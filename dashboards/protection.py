"""What protection does: the rows of the node dashboard for targets and for the guard."""

from board import BLUE, GRAY, GREEN, HERE, ORANGE, PINK, RED, SKY, WORK, YELLOW, level, like, numbered, words

# The order of the ladder, so that what is higher up is the larger number.
LADDER = [
    ("disarmed", GRAY), ("blind", PINK), ("ok", SKY), ("cooldown", GREEN), ("verify", BLUE),
    ("warn", YELLOW), ("soft", YELLOW), ("checkpoint", ORANGE), ("term", RED), ("kill", RED),
]
# What must hold for anything to be done; the others are what may make the ladder climb.
NEEDED = "fit|fresh|enforced|has_members|catches_checkpoint|rate_left|alone_on_host"
CLIMBS = ".*_soft|.*_hard|no_time_left|leak|alert"
WHO = "{{target}} {{workload}}"


def protection(b):
    b.row("Protection")
    b.timeline("Where each target's ladder stands", [(numbered("memwarden_protection_state", "state", LADDER, WORK), WHO)],
               mappings=words(LADDER), description="disarmed and blind: the target is not protected. verify: waits until the memory of killed processes is freed.",
               steps=[level(YELLOW, 5), level(ORANGE, 7), level(RED, 8)])
    b.timeline("What makes a ladder climb", [(f'memwarden_protection_condition{{{WORK},condition=~"{CLIMBS}"}}', f"{WHO}: {{{{condition}}}}")],
               mappings=words([("no", SKY), ("met", ORANGE)]), description="Levels, forecasts, findings and alerts that the target's policy watches.", steps=[level(ORANGE, 1)])
    b.table("Why nothing would be done", f'memwarden_protection_condition{{{WORK},condition=~"{NEEDED}"}} == 0', width=8, hide=("Value",),
            description="Conditions of the policy that are not met. Without catches_checkpoint no checkpoint is requested; all other steps remain active.")
    b.table("Why targets are disarmed", f"memwarden_protection_disarmed_reason{{{WORK}}} == 1", width=8, hide=("Value",))
    b.timeline("What protection wants of the system", [(f"memwarden_protection_prerequisite_met{{{HERE}}}", "{{need}}")], width=8,
               mappings=words([("missing", ORANGE), ("there", SKY)]), description="Capabilities and kernel interfaces that protection uses; the log describes the effect of each missing one.")
    b.lines("What is left, as the guard reads it", [(f"memwarden_protection_headroom_bytes{{{WORK}}}", f"{WHO}, {{{{resource}}}}")], "bytes", min=0)
    moves = 'state=~"checkpoint|term|kill"'
    b.lines("Acted, and would have", [
        (f"sum without (state) (increase(memwarden_protection_transitions_total{{{HERE},{moves}}}[$__rate_interval]))"
         f' and on (job, instance, target) memwarden_protection_mode{{{HERE},mode="enforce"}} == 1 or on () vector(0)', "{{target}} acted"),
        (f"sum without (state) (increase(memwarden_protection_dry_run_transitions_total{{{HERE}}}[$__rate_interval]))", "{{target}} would have"),
    ], "short", description="Transitions to the states checkpoint, term and kill.", min=0, overrides=[like("/acted$/", ("color", {"mode": "fixed", "fixedColor": RED}))])
    b.lines("Steps", [
        (f"sum by (step, outcome) (increase(memwarden_protection_steps_total{{{HERE}}}[$__rate_interval])) > 0 or on () vector(0)", "{{step}}: {{outcome}}"),
    ], "short", description="Steps that were carried out, by outcome.", min=0)
    b.stat("Incidents, 24 h", f"increase(memwarden_incidents_recorded_total{{{HERE}}}[24h])", "short",
           description="Recorded incidents; `memwarden incidents` on the node lists them.", steps=[level(ORANGE, 0.5)])
    b.stat("Left this hour, least of a target", f"min(memwarden_protection_kill_budget_remaining{{{HERE}}})", "short",
           description="Terminations left in the current hour; at 0 the target is disarmed.", steps=[])
    b.stat("Overdue", f"sum(memwarden_protection_overdue{{{WORK}}})", "short", noValue="0",
           description="Targets whose killed processes still exist, or whose memory was not freed.", steps=[level(RED, 1)])
    b.stat("Signal, after its reading", f"max(memwarden_protection_signal_latency_seconds{{{HERE}}})", "s", noValue="none sent",
           description="Time from the reading that triggered the last signal until the signal was sent.")
    b.stat("Guard, worst delay", f"max(memwarden_guard_lag_max_seconds{{{HERE}}})", "s",
           description="Longest delay of a wake-up of the guard since its start.", steps=[level(ORANGE, 0.1), level(RED, 1)])
    b.stat("Records that cannot be written", f"count(memwarden_records_writable{{{HERE}}} == 0) or vector(0)", "short",
           description="Whether the audit log and the incidents can be written.", steps=[level(RED, 1)])
    b.lines("The guard's rounds", [(f"rate(memwarden_guard_rounds_total{{{HERE}}}[$__rate_interval])", "a second")], "ops", width=12, min=0,
            description="Evaluation rounds of the guard; their rate increases as a target approaches its levels.")
    b.lines("What the guard costs", [(f"rate(memwarden_guard_cpu_seconds_total{{{HERE}}}[$__rate_interval])", "share of a core")], "percentunit", width=12, min=0)
