"""The dashboard of training jobs: their data from the job socket, and their allocator snapshots."""

from board import BLUE, GRAY, GREEN, HERE, ORANGE, PINK, RANK, RED, SKY, WORK, YELLOW, Board, dashboard, level, like, numbered, painted, variable, words

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


def share(part):
    """A share of the reserved memory; absent where none is reserved."""
    return f"({part}) / ({bytes_of('reserved')} > 0)"


def training():
    b = Board()
    now(b)
    throughput(b)
    steps(b)
    phases(b)
    allocator(b)
    ranks(b)
    learning(b)
    checkpoints(b)
    model(b)
    snapshots(b)
    socket(b)
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


def throughput(b):
    b.row("Throughput")
    tokens = m("throughput_tokens_per_second")
    b.lines("Tokens a second, by rank", [(tokens, WHO)], "short", min=0,
            description="Tokens that each rank trains on. Ranks that share one replica of the model (tensor or pipeline parallelism) may report the same tokens.")
    b.lines("Tokens a second, by GPU", [
        (f'sum by (job, instance, gpu) ({tokens} * on ({ID}) group_left (gpu) memwarden_rank_info{{{RANK},gpu!=""}})', "{{instance}} GPU {{gpu}}"),
    ], "short", min=0, description="Throughput of the ranks on each GPU; ranks on several GPUs, or on none that the driver confirms, are not included.")
    b.lines("Samples a second, by rank", [(rate("samples_total"), WHO)], "short", min=0)
    b.lines("Operations a second and GPU", [(f"avg by (workload, convention) ({m('flops_per_second')})", "{{workload}}, {{convention}}")], "flops", min=0,
            description="Mean of the ranks, by counting convention. full: attention over all pairs; causal: over half of them; 6n: six operations per parameter and token; hardware: recomputation included.")
    b.lines("MFU", [(f"avg by (workload, convention) ({m('mfu_ratio')})", "{{workload}}, {{convention}}")], "percentunit", min=0,
            description="Operations as a share of the GPU's dense peak in the rank's precision. Compare only values of the same convention.")
    b.lines("Joules per token", [(m("energy_per_token_joules", WORK), "{{workload}}")], "joule", min=0,
            description="Energy of the GPUs of the workload's ranks per token.")


def steps(b):
    b.row("Steps")
    bucket = f"{STEPS}_bucket{{{RANK}}}"
    b.heatmap("Step time", f"sum by (le) (increase({bucket}[$__rate_interval]))", "s", description="Distribution of the step duration of all ranks.")
    b.lines("Step time, quantiles", [
        (f"histogram_quantile({q}, sum by (le) (rate({bucket}[$__rate_interval])))", f"p{100 * q:.0f}") for q in (0.5, 0.9, 0.99)
    ], "s", width=12, min=0, description="Quantiles are approximate, from buckets whose bounds are powers of two; the mean is exact.",
            overrides=[painted("p50", SKY), painted("p90", ORANGE), painted("p99", RED)])
    mean = f"rate({STEPS}_sum{{{RANK}}}[$__rate_interval]) / (rate({STEPS}_count{{{RANK}}}[$__rate_interval]) > 0)"
    b.lines("Step time, mean by rank", [(mean, WHO)], "s", min=0)
    b.lines("Last step, by rank", [(m("step_last_duration_seconds"), WHO)], "s", min=0, description="Duration of the last step. An evaluation or a checkpoint between two steps is included in the second one.")
    last = m("step_last_duration_seconds")
    b.lines("Step time against the median", [
        (f"{last} / on (job, instance, workload) group_left () (quantile by (job, instance, workload) (0.5, {last}) > 0)", WHO),
    ], "percentunit", description="Step time relative to the ranks of the same workload and node. Ranks that wait for each other take equally long; then compare their forward phases.")
    b.lines("Steps behind the foremost rank", [
        (f"max by (job, instance, workload) ({m('step')}) - on (job, instance, workload) group_right () {m('step')}", WHO),
    ], "short", min=0, decimals=0, description="Differences of one or two steps are normal, because ranks are not scraped at the same moment.")
    b.lines("Skipped steps", [(rise("skipped_steps_total"), WHO)], "short", min=0,
            description="Steps skipped because gradients overflowed. Occasional skips are normal with loss scaling.")
    b.lines("Steps that were not finite", [(rise("nonfinite_steps_total"), WHO)], "short", min=0, description="Steps whose loss or gradients were NaN or infinite.")


def phases(b):
    b.row("Phases")
    colors = [like(f"/(^| ){name}$/", ("color", {"mode": "fixed", "fixedColor": color})) for name, color in PHASES]
    spent = f"sum by (phase) ({rate('phase_seconds_total')})"
    b.lines("Share of step time", [
        (f"{spent} / on () group_left () (sum(rate({STEPS}_sum{{{RANK}}}[$__rate_interval])) > 0)", "{{phase}}"),
    ], "percentunit", stack=True, min=0, overrides=colors,
            description="Share of time of all ranks together. The rest to 100 % is in no phase; nested phases count twice.")
    loader = rate("phase_seconds_total", RANK + ',phase="loader"')
    b.lines("Waiting for data, by rank", [
        (f"{loader} / on ({ID}) (rate({STEPS}_sum{{{RANK}}}[$__rate_interval]) > 0)", WHO),
    ], "percentunit", min=0, description="Share of step time in the phase loader.")
    b.lines("Time of a phase, mean", [
        (f"sum by (phase) ({rate('phase_seconds_total')}) / (sum by (phase) ({rate('phases_total')}) > 0)", "{{phase}}"),
    ], "s", min=0, overrides=colors)
    forward = RANK + ',phase="forward"'
    b.lines("Forward, mean by rank", [
        (f"{rate('phase_seconds_total', forward)} / ({rate('phases_total', forward)} > 0)", WHO),
    ], "s", width=12, min=0, description="Duration of the forward phase, in which a slow rank differs from the others, because ranks wait for each other in backward. Pipeline stages differ by design.")
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
    b.lines("Free on the device", [(m("device_free_bytes"), DEVICE), (f"min by (device) ({m('device_total_bytes')})", "total of cuda:{{device}}")], "bytes", min=0,
            description="Free memory of the device as reported by the job; memory reserved by the allocator is not free.")
    b.lines("What is reserved, all ranks", [
        (f"sum({bytes_of('requested')})", "asked for"),
        (f"sum({bytes_of('active')} - {bytes_of('requested')})", "lost to rounding"),
        (f"sum({bytes_of('inactive_split')})", "free beside live blocks"),
        (f"sum({bytes_of('releasable')})", "free, can be given back"),
    ], "bytes", stack=True, min=0, description="Active memory is the sum of requested memory and rounding: live tensors, and freed tensors still in use by a stream.", overrides=[
        painted("asked for", SKY), painted("lost to rounding", YELLOW), painted("free beside live blocks", RED), painted("free, can be given back", GREEN),
    ])
    active, releasable = bytes_of("active"), bytes_of("releasable")
    b.lines("Fragmentation", [
        (share(f"{bytes_of('reserved')} - {active} - {releasable}"), DEVICE + ", outside blocks"),
        (share(f"{active} - {bytes_of('requested')}"), DEVICE + ", inside blocks"),
    ], "percentunit", min=0, description="Shares of reserved memory. Outside blocks: free in segments in use, which cannot be released (external fragmentation). Inside blocks: rounding (internal fragmentation).")
    b.lines("Held and not allocated", [
        (share(f"{bytes_of('reserved')} - {bytes_of('allocated')}"), DEVICE),
        (share(f"{bytes_of('reserved')} - {bytes_of('allocated')} - {releasable}"), DEVICE + ", not releasable"),
    ], "percentunit", min=0, description="Shares of reserved memory, including blocks that wait for a stream. Cached memory is normal: the allocator releases it before it raises an out-of-memory error.")
    b.lines("Largest free block", [(bytes_of("largest_free"), DEVICE)], "bytes", min=0, description="Largest free block inside reserved segments; a larger request needs a new segment from the device.")
    b.lines("Retries and failures", [
        (rise("allocator_retries_total"), DEVICE + ", retries"),
        (rise("allocator_ooms_total"), DEVICE + ", failures"),
        (rise("ooms_total", WORK), "{{workload}}, told when it happened"),
    ], "short", min=0, description="A retry frees the whole cache because the device had no memory; it is slow and precedes an out-of-memory error.")
    b.lines("Host memory", [(m("process_rss_bytes"), WHO), (m("pinned_bytes"), WHO + ", page-locked")], "bytes", min=0,
            description="Resident memory of each rank's process, and its pinned (page-locked) memory.")


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
    b.table("Identity of the ranks", f"memwarden_rank_info{{{RANK}}}", width=24, hide=("Value", "uuid"), description="Identity that each process reported, and the GPU on which the driver lists it.")
    b.lines("Age of the last message", [(m("message_age_seconds"), WHO)], "s", min=0, description="Time since the last message; grows while a process is stuck or stopped.")
    b.lines("Ranks connected", [(m("ranks", WORK), "{{workload}}")], "short", min=0, decimals=0)
    b.lines("Ranks that another one has", [(m("rank_conflicts", WORK), "{{workload}}")], "short", min=0, decimals=0,
            description="Processes that report the rank of another one: several runs within one workload, or a launcher that sets no rank.")


def learning(b):
    b.row("Learning")
    b.lines("Loss", [(m("loss"), WHO)], "none", description="Loss of the last step; a gap where it was not finite.")
    b.lines("Norm of the gradients", [(m("gradient_norm"), WHO)], "none", min=0)
    b.lines("Learning rate", [(m("learning_rate"), WHO)], "sci", min=0)


def checkpoints(b):
    b.row("Checkpoints")
    b.timeline("The last checkpoint", [(numbered("memwarden_training_checkpoint_state", "state", SAVING, RANK), WHO)], mappings=words(SAVING),
               steps=[level(YELLOW, 1), level(RED, 2)], description="State of the last checkpoint.")
    b.lines("Time since one was saved", [(f"time() - {m('checkpoint_saved_timestamp_seconds')}", WHO)], "s", width=6, min=0, description="Training progress since the last saved checkpoint, which is lost if the job ends now.")
    b.lines("Step of the last checkpoint", [(m("checkpoint_step"), WHO)], "none", width=6, min=0)


def model(b):
    b.row("Model")
    b.bars("Parameters", [(f"max by (kind) ({m('parameters')})", "{{kind}}")], "short", width=6, min=0, description="Number of elements of the rank with the most: with sharding each rank has a part.")
    b.bars("Memory of the model", [(f"max by (kind) ({m('model_bytes')})", "{{kind}}")], "bytes", width=6, min=0, description="Of the rank that has most.")
    b.bars("Parameters by data type", [(f"max by (dtype) ({m('parameters_dtype_bytes')})", "{{dtype}}")], "bytes", width=6, min=0)
    b.bars("Parameters by group of layers", [(f"max by (group) ({m('parameters_group_bytes')})", "{{group}}")], "bytes", width=6, min=0)
    b.table("Parameter tensors that are not finite", f"sum by (instance, workload, rank, kind) ({m('nonfinite_tensors')})", width=24, height=6,
            names={"Value": "tensors"}, decimals=0, description="By type of value (NaN or infinite), from the last report of the model's parameters.")


def snapshots(b):
    """The snapshots of the watched folders, which have no workload."""
    b.row("Allocator snapshots")
    snap, name = f'{{{HERE},rank=~"$rank|"}}', "{{folder}} {{rank}}"
    device, size = name + " cuda:{{device}}", name + ", {{size}}"
    b.lines("Reserved and allocated", [(f"memwarden_snapshot_{kind}_bytes{snap}", f"{device}, {kind}") for kind in ("reserved", "active", "allocated", "requested")], "bytes", min=0)
    b.lines("Free inside what is reserved", [
        (f"memwarden_snapshot_{kind}_bytes{snap}", f"{device}, {said}")
        for kind, said in (("unreleasable", "not releasable"), ("releasable", "releasable"), ("inactive_split", "inactive split"), ("largest_free", "largest range"))
    ], "bytes", min=0, description="Memory that is not releasable is external fragmentation.")
    b.lines("Free memory unusable for a request", [(f"memwarden_snapshot_unusable_ratio{snap}", size)], "percentunit", min=0, max=1,
            description="Share of the free memory in ranges too small for a size that the job requests.")
    b.lines("Lost to a request", [(f"memwarden_snapshot_lost_ratio{snap}", size)], "percentunit", min=0, description="Free memory that a request of this size cannot use and that cannot be released, as a share of the reserved memory.")
    b.lines("Sizes asked for", [(f"memwarden_snapshot_request_bytes{snap}", size)], "bytes", min=0)
    b.lines("Suspected of leaking", [(f"memwarden_snapshot_leak_suspect_bytes{snap}", name)], "bytes", min=0,
            description="Live memory of call stacks that leave memory allocated in step after step; memwarden snapshot lists them.")
    b.lines("Allocations that failed", [(f"memwarden_snapshot_failed_allocations{snap}", name)], "short", min=0, decimals=0, description="Failed allocations in the trace of the newest snapshot.")
    b.lines("Age of the newest snapshot", [(f"time() - memwarden_snapshot_written_timestamp_seconds{snap}", name)], "s", min=0)
    b.lines("Snapshots read", [
        (f"increase(memwarden_snapshots_read_total{{{HERE}}}[$__rate_interval])", "{{folder}}, read"),
        (f"increase(memwarden_snapshot_errors_total{{{HERE}}}[$__rate_interval])", "{{folder}}, not readable"),
    ], "short", min=0, overrides=[like("/not readable$/", ("color", {"mode": "fixed", "fixedColor": RED}))])


def socket(b):
    b.row("Job socket")
    b.lines("Clients", [(m("clients", HERE), "{{instance}}")], "short", min=0, decimals=0, description="Connected processes, including those that have not identified themselves.")
    b.lines("Messages", [(rate("messages_total", HERE), "{{kind}}")], "ops", stack=True, min=0)
    b.lines("Received", [(rate("received_bytes_total", HERE), "{{instance}}")], "Bps", min=0)
    b.lines("Errors", [(rise("errors_total", HERE), "{{kind}}")], "short", min=0, description="Lines and messages that were rejected, or accepted only in part; the log has some of them.")
    b.lines("Turned away and paused", [
        (rise("clients_refused_total", HERE), "refused: {{reason}}"),
        (rise("client_pauses_total", HERE), "paused"),
    ], "short", min=0, description="Connections refused and clients paused because of the limits of sources.training.",
            overrides=[painted("paused", GRAY)])
    b.lines("Lines that clients dropped", [(rise("client_dropped_total"), WHO)], "short", min=0, description="Clients never block: they drop lines that cannot be sent at once. Totals remain correct.")
