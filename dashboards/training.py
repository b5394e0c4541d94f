"""The dashboard of training jobs: their data from the job socket."""

from board import BLUE, GREEN, RANK, RED, SKY, WORK, YELLOW, Board, dashboard, level, like, numbered, variable, words

# A rank that its workload may tell apart, and one of its devices as PyTorch names it.
WHO = "{{workload}} {{rank}}"
DEVICE = WHO + " cuda:{{device}}"
ID = "job, instance, workload, rank"
SAVING = [("saved", SKY), ("saving", YELLOW), ("failed", RED)]
PHASES = [("forward", SKY), ("backward", BLUE), ("optimizer", GREEN), ("loader", RED)]
STEPS = "memwarden_training_step_duration_seconds"


def m(name, matchers=RANK):
    return f"memwarden_training_{name}{{{matchers}}}"


def rate(name, matchers=RANK):
    return f"rate({m(name, matchers)}[$__rate_interval])"


def rise(name, matchers=RANK, window="$__rate_interval"):
    return f"increase({m(name, matchers)}[{window}])"


def bytes_of(name):
    return m(f"allocator_{name}_bytes")


def training():
    b = Board("training")
    now(b)
    steps(b)
    phases(b)
    allocator(b)
    ranks(b)
    learning(b)
    checkpoints(b)
    return dashboard("training", "Training jobs: throughput, FLOPS, steps, phases, allocator, ranks, checkpoints, and the job socket.", b, [
        variable("instance", "label_values(memwarden_build_info, instance)", "Node"),
        variable("workload", 'label_values(memwarden_rank_info{instance=~"$instance"}, workload)', "Workload"),
        variable("rank", 'label_values(memwarden_rank_info{instance=~"$instance",workload=~"$workload"}, rank)', "Rank"),
    ], tags=("gpu", "training"))


def now(b):
    b.row("Now")
    b.stat("Ranks", f"sum({m('ranks', WORK)})", "short", noValue="none", description="Processes that are connected to the job socket as ranks.")
    b.stat("Step", f"max({m('step')})", "short", noValue="not reported", decimals=0, description="Step of the most advanced rank.")
    b.stat("Step time, median of the ranks", f"quantile(0.5, {m('step_last_duration_seconds')})", "s", noValue="not reported", description="Median over the ranks of the duration of their last step.")
    full = m("mfu_ratio", RANK + ',convention="full"')
    b.stat("MFU", f"avg({full})", "percentunit", noValue="not known",
           description="Model FLOPs utilization (MFU) with attention counted over all pairs, as a share of the dense peak. Unknown for a GPU whose peak is unknown.")
    b.stat("Joules per token", f"avg({m('energy_per_token_joules', WORK)})", "joule", noValue="not known",
           description="Energy of the GPUs of a workload per token; unknown where a GPU is shared or reports no energy.")
    b.stat("Out of memory, 1 h", f"sum({rise('ooms_total', WORK, '1h')})", "short", decimals=0, steps=[level(RED, 0.5)],
           description="Out-of-memory errors of allocators, as reported when they occurred.")


def steps(b):
    b.row("Steps")
    mean = f"rate({STEPS}_sum{{{RANK}}}[$__rate_interval]) / (rate({STEPS}_count{{{RANK}}}[$__rate_interval]) > 0)"
    b.lines("Step time, mean by rank", [(mean, WHO)], "s", min=0)
    b.lines("Steps behind the foremost rank", [
        (f"max by (job, instance, workload) ({m('step')}) - on (job, instance, workload) group_right () {m('step')}", WHO),
    ], "short", min=0, decimals=0, description="Differences of one or two steps are normal, because ranks are not scraped at the same moment.")


def phases(b):
    b.row("Phases")
    colors = [like(f"/(^| ){name}$/", ("color", {"mode": "fixed", "fixedColor": color})) for name, color in PHASES]
    spent = f"sum by (phase) ({rate('phase_seconds_total')})"
    b.lines("Share of step time", [
        (f"{spent} / on () group_left () (sum(rate({STEPS}_sum{{{RANK}}}[$__rate_interval])) > 0)", "{{phase}}"),
    ], "percentunit", stack=True, min=0, overrides=colors,
            description="Share of time of all ranks together. The rest to 100 % is in no phase; nested phases count twice.")
    b.bars("Memory by phase", [(f"max by (phase) ({m('phase_allocated_peak_bytes')})", "{{phase}}")], "bytes", width=12, min=0,
           description="Largest allocated memory in each phase since the process started, of the rank with the largest.")


def allocator(b):
    b.row("Allocator")
    b.lines("Allocated", [(bytes_of("allocated"), DEVICE), (bytes_of("allocated_peak"), DEVICE + ", peak")], "bytes", min=0,
            description="Memory of live tensors; dashed: the peak since the process started or reset it.",
            overrides=[like("/peak$/", ("custom.fillOpacity", 0), ("custom.lineStyle", {"fill": "dash", "dash": [4, 4]}))])
    b.lines("Reserved", [(bytes_of("reserved"), DEVICE), (bytes_of("reserved_peak"), DEVICE + ", peak")], "bytes", min=0,
            description="Memory that the allocator reserved from the device; dashed: its peak.",
            overrides=[like("/peak$/", ("custom.fillOpacity", 0), ("custom.lineStyle", {"fill": "dash", "dash": [4, 4]}))])
    b.lines("Retries and failures", [
        (rise("allocator_retries_total"), DEVICE + ", retries"),
        (rise("allocator_ooms_total"), DEVICE + ", failures"),
        (rise("ooms_total", WORK), "{{workload}}, told when it happened"),
    ], "short", min=0, description="A retry frees the whole cache because the device had no memory; it is slow and precedes an out-of-memory error.")


def ranks(b):
    b.row("Ranks")
    by = "instance, workload, rank"
    b.joined("Each rank", [
        (f"max by ({by}) ({m('step')})", "step", "none"),
        (f"max by ({by}) ({m('step_last_duration_seconds')})", "last step", "s"),
        (f"max by ({by}) ({m('throughput_tokens_per_second')})", "tokens/s", "short"),
        (f"sum by ({by}) ({bytes_of('allocated')})", "allocated", "bytes"),
        (f"sum by ({by}) ({bytes_of('reserved')})", "reserved", "bytes"),
        (f"max by ({by}) ({m('message_age_seconds')})", "last message", "s"),
        (f"max by ({by}) ({m('loss')})", "loss", "none"),
    ], description="Last reported values of each rank, summed over its devices. Last message: time since the last message.")
    b.lines("Age of the last message", [(m("message_age_seconds"), WHO)], "s", min=0, description="Time since the last message; grows while a process is stuck or stopped.")


def learning(b):
    b.row("Learning")
    b.lines("Loss", [(m("loss"), WHO)], "none", description="Loss of the last step; a gap where it was not finite.")


def checkpoints(b):
    b.row("Checkpoints")
    b.timeline("The last checkpoint", [(numbered("memwarden_training_checkpoint_state", "state", SAVING, RANK), WHO)], mappings=words(SAVING),
               steps=[level(YELLOW, 1), level(RED, 2)], description="State of the last checkpoint.")
