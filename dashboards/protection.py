"""What protection does: the rows of the node dashboard for targets and for the guard."""

from board import BLUE, GRAY, GREEN, ORANGE, PINK, RED, SKY, WORK, YELLOW, level, numbered, words

# The order of the ladder, so that what is higher up is the larger number.
LADDER = [
    ("disarmed", GRAY), ("blind", PINK), ("ok", SKY), ("cooldown", GREEN), ("verify", BLUE),
    ("warn", YELLOW), ("soft", YELLOW), ("checkpoint", ORANGE), ("term", RED), ("kill", RED),
]
WHO = "{{target}} {{workload}}"


def protection(b):
    b.row("Protection")
    b.timeline("State of each target", [(numbered("memwarden_protection_state", "state", LADDER, WORK), WHO)],
               mappings=words(LADDER), description="disarmed and blind: the target is not protected. verify: waits until the memory of killed processes is freed.",
               steps=[level(YELLOW, 5), level(ORANGE, 7), level(RED, 8)])
    b.table("Why targets are disarmed", f"memwarden_protection_disarmed_reason{{{WORK}}} == 1", width=8, hide=("Value",))
