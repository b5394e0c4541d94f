#!/usr/bin/env python3
"""Writes the Grafana dashboards: memwarden-node.json of one node, -fleet.json of many, -runs.json of training
runs on all of their nodes, -training.json of the jobs of a node.

    dashboards/build.py            # writes the files
    dashboards/build.py --check    # fails where a file is not what this writes

Classic JSON (schema version 39) with a datasource variable, so that it can be
provisioned from a file and imported by hand alike.
"""

import json
import sys
from pathlib import Path

# Beside the files that users install there shall be no cache of ours.
sys.dont_write_bytecode = True

from board import (
    BLUE, GPU, HEALTHS, HERE, NAME, ORANGE, PIECES, RED, SKY, STATES, SUBJECT, WORK, YELLOW,
    Board, dashboard, level, like, numbered, of, painted, variable, words,
)
from protection import protection
from runs import runs
from training import training

FOLDER = Path(__file__).parent

# The values of memwarden_gpu_hardware_state.
HARDWARE = [("ok", SKY), ("degraded", YELLOW), ("predicted_failure", ORANGE), ("failed", RED)]


def node():
    b = Board()
    b.row("Now")
    b.stat("Memory available", f"memwarden_host_memory_available_bytes{{{HERE}}}", "bytes", description="Memory available for new processes without swapping.")
    b.stat("Memory used", f"memwarden_host_memory_utilization_ratio{{{HERE}}}", "percentunit", steps=[level(ORANGE, 0.9), level(RED, 0.97)])
    b.stat("OOM kills, 1 h", f"increase(memwarden_host_oom_kills_total{{{HERE}}}[1h])", "short", steps=[level(RED, 0.5)])
    b.stat("GPUs answering", f'sum(memwarden_gpu_status{{{HERE},status="ok"}})', "short")
    b.stat("GPUs hung or lost", f'sum(memwarden_gpu_status{{{HERE},status=~"hung|lost"}})', "short", steps=[level(RED, 1)])
    b.stat("Age of the newest sample", f"max(time() - memwarden_last_sample_timestamp_seconds{{{HERE}}})", "s",
           steps=[level(ORANGE, 10), level(RED, 30)])

    b.row("Host memory")
    b.lines("Memory", [
        (f"memwarden_host_memory_total_bytes{{{HERE}}}", "total"),
        (f"memwarden_host_memory_available_bytes{{{HERE}}}", "available"),
        (f"memwarden_host_memory_used_max_bytes{{{HERE}}}", "used, peak of the last minute"),
        (f"memwarden_host_memory_free_bytes{{{HERE}}}", "free"),
    ], "bytes", min=0)
    b.lines("What holds it", [
        (f"memwarden_host_memory_anon_bytes{{{HERE}}}", "anonymous"),
        (f"memwarden_host_memory_cached_bytes{{{HERE}}}", "page cache"),
        (f"memwarden_host_memory_shared_bytes{{{HERE}}}", "shared and tmpfs (part of the page cache)"),
        (f"memwarden_host_memory_slab_bytes{{{HERE}}}", "slab, {{kind}}"),
        (f"memwarden_host_memory_page_tables_bytes{{{HERE}}}", "page tables"),
    ], "bytes", description="Shared memory is included in the page cache and can be reclaimed only by swapping.", min=0)
    b.lines("Swap and commit", [
        (f"memwarden_host_swap_used_bytes{{{HERE}}}", "swap used"),
        (f"memwarden_host_memory_committed_bytes{{{HERE}}}", "committed"),
        (f"memwarden_host_memory_commit_limit_bytes{{{HERE}}}", "commit limit"),
    ], "bytes", min=0)
    b.lines("Pressure (PSI), last 10 s", [
        (f'memwarden_host_pressure_ratio{{{HERE},resource="memory",window="10s"}}', "memory, {{kind}}"),
        (f'memwarden_host_pressure_ratio{{{HERE},resource="io",window="10s"}}', "io, {{kind}}"),
    ], "percentunit", description="Share of time in which some or all tasks waited for the resource (PSI).", min=0)
    b.lines("Reclaim and faults", [
        (f"rate(memwarden_host_major_faults_total{{{HERE}}}[$__rate_interval])", "major faults"),
        (f"sum(rate(memwarden_host_allocation_stalls_total{{{HERE}}}[$__rate_interval]))", "allocation stalls"),
        (f"rate(memwarden_host_refaulted_pages_total{{{HERE}}}[$__rate_interval])", "refaults, {{kind}}"),
    ], "ops", min=0)
    b.lines("Fragmentation", [
        (f'memwarden_host_unusable_free_ratio{{{HERE},order="9"}}', "node {{node}}, {{zone}}"),
    ], "percentunit", description="Share of free memory in blocks too small for a huge page (order 9).", min=0, max=1)

    b.row("GPUs")
    b.lines("GPU memory used", [(f"memwarden_gpu_memory_used_bytes{{{GPU}}}", "GPU {{gpu}}")], "bytes", min=0)
    b.lines("GPU memory free", [(f"memwarden_gpu_memory_free_bytes{{{GPU}}}", "GPU {{gpu}}")], "bytes", min=0)
    b.lines("Used by no process we see", [(f"memwarden_gpu_memory_unattributed_bytes{{{GPU}}}", "GPU {{gpu}}")], "bytes",
            description="Used memory minus the memory of every process: driver contexts, other pid namespaces, leaks of the driver.", min=0)
    b.lines("Memory of no running process", [(f"memwarden_gpu_memory_orphaned_bytes{{{GPU}}}", "GPU {{gpu}} {{workload}} {{user}}")], "bytes", noValue="none",
            description="Memory that stays in use after its process ended, without what the driver itself uses; with the workload and user of the process that ended on the GPU.", min=0)
    b.timeline("State of the hardware", [(numbered("memwarden_gpu_hardware_state", "state", HARDWARE, GPU), "GPU {{gpu}}")], width=8,
               mappings=words(HARDWARE), steps=[level(YELLOW, 1), level(ORANGE, 2), level(RED, 3)],
               description="degraded: an XID error is unresolved, or memory waits for a reset. predicted failure: rows of memory cannot be remapped. failed: lost or hung. Empty while it is not known.")
    b.lines("Utilization", [
        (f"memwarden_gpu_utilization_ratio{{{GPU}}}", "GPU {{gpu}}"),
    ], "percentunit", description="Share of time in which at least one kernel ran; not the occupancy of the GPU.", min=0, max=1)
    b.lines("Activity (GPM)", [
        (f"memwarden_gpu_sm_activity_ratio{{{GPU}}}", "GPU {{gpu}}: SMs"),
        (f'memwarden_gpu_pipe_activity_ratio{{{GPU},pipe="tensor"}}', "GPU {{gpu}}: tensor pipe"),
        (f"memwarden_gpu_dram_activity_ratio{{{GPU}}}", "GPU {{gpu}}: memory bandwidth"),
    ], "percentunit", description="Share of the SMs that were busy, of the time in which the tensor pipe was active, and of the memory's bandwidth that was used. From Hopper on.", min=0, max=1)
    b.lines("Power", [(f"memwarden_gpu_power_watts{{{GPU}}}", "GPU {{gpu}}")], "watt", min=0)
    b.lines("Temperature", [(f"memwarden_gpu_temperature_celsius{{{GPU}}}", "GPU {{gpu}}")], "celsius")
    b.lines("Throttling", [(f"memwarden_gpu_throttled{{{GPU}}} == 1", "GPU {{gpu}}: {{reason}}")], "short", min=0, max=1)
    b.lines("XIDs", [(f"increase(memwarden_gpu_xid_errors_total{{{GPU}}}[$__rate_interval]) > 0 or on () vector(0)", "GPU {{gpu}}: XID {{xid}} ({{severity}})")], "short", min=0)
    b.lines("Sample age", [(f"memwarden_gpu_sample_age_seconds{{{GPU}}}", "GPU {{gpu}}")], "s",
            description="Grows while a GPU's driver calls do not return.", min=0)

    b.row("Workloads")
    b.lines("Resident memory", [(f"sum by (workload) (memwarden_workload_rss_bytes{{{WORK}}})", "{{workload}}")], "bytes", stack=True, min=0)
    b.lines("GPU memory", [(f"sum by (workload) (memwarden_workload_gpu_memory_bytes{{{WORK}}})", "{{workload}}")], "bytes", stack=True, min=0)
    b.lines("Processors", [(f"rate(memwarden_workload_cpu_seconds_total{{{WORK}}}[$__rate_interval])", "{{workload}}")], "short", stack=True, min=0)
    b.table("Largest processes", f"topk(20, memwarden_process_rss_bytes{{{HERE}}})", unit="bytes")
    b.table("Workloads", f"memwarden_workload_info{{{WORK}}}", hide=("Value",))
    b.lines("Cgroup headroom", [(f"bottomk(10, memwarden_cgroup_memory_headroom_bytes{{{HERE}}})", "{{cgroup}}")], "bytes", width=12, min=0)
    b.lines("Cgroup working set", [(f"topk(10, memwarden_cgroup_memory_working_set_bytes{{{HERE}}})", "{{cgroup}}")], "bytes", width=12, min=0)

    b.row("/dev/shm and other tmpfs")
    used, size = "memwarden_tmpfs_used_bytes", "memwarden_tmpfs_size_bytes"
    b.lines("Share in use", [(f"topk(10, {used}{{{HERE}}} / {size}{{{HERE}}})", "{{workload}} {{mount}}")], "percentunit", min=0, max=1,
            description="Share of the size of the ten fullest tmpfs. Who writes to a mapped file in a full tmpfs ends by SIGBUS.")
    b.lines("Memory of files", [(f"topk(10, {used}{{{HERE}}})", "{{workload}} {{mount}}")], "bytes", min=0,
            description="Memory of the files in the ten largest tmpfs; it is part of the memory of cgroups and of the host.")
    b.table("Whose files", f"sort_desc(memwarden_tmpfs_files_bytes{{{HERE}}})", width=8, unit="bytes", noValue="none is nearly full",
            description="Files directly in a tmpfs of which more than 80 % is used, by user.")

    b.row("Forecasts")
    tte, health, within = "memwarden_forecast_time_to_exhaustion_seconds", "memwarden_forecast_health", "memwarden_forecast_exhaustion_probability_ratio"
    b.stat("Worst health", f"max({numbered(health, 'health', HEALTHS, SUBJECT)})", "short", mappings=words(HEALTHS),
           description="Worst health of the memory of any resource; unknown means too few samples. docs/analyzers.md lists the rules.",
           steps=[level(YELLOW, 1), level(ORANGE, 2), level(RED, 3)])
    b.stat("Least time left, p50", f'min({tte}{{{SUBJECT},estimate="p50"}})', "s", noValue="none predicted",
           description="Median predicted time until the first resource is exhausted at its current growth.",
           steps=[], color={"mode": "thresholds"})
    b.stat("Leaks", f'sum(memwarden_leak_state{{{SUBJECT},resource!="process",state="leaking"}})', "short", steps=[level(RED, 1)],
           description="Workloads, ranks and GPU processes that leak; processes of a leaking workload are not counted separately.")
    for severity, color in (("critical", RED), ("warning", ORANGE), ("info", SKY)):
        b.stat(f"Findings, {severity}", f'sum(memwarden_findings{{{HERE},severity="{severity}"}})', "short", steps=[level(color, 1)],
               description="Active findings of the analyzers; /api/v1/findings has their texts.")
    soonest = f'(bottomk(1, {tte}{{{SUBJECT},estimate="p50"}}))'
    b.lines("Time left of the resource that is exhausted first", [
        (f'clamp_max(min({tte}{{{SUBJECT},estimate="{estimate}"}} and ignoring (estimate) {soonest}), 86400)', estimate) for estimate in ("p10", "p50", "p90")
    ], "s", description="Quantiles p10, p50 and p90 of the predicted time to exhaustion at the current growth. Empty while no exhaustion is predicted; limited to one day.",
            min=0, overrides=[
                painted("p10", SKY, ("custom.fillOpacity", 0), ("custom.lineStyle", {"fill": "dash", "dash": [4, 4]})),
                painted("p50", BLUE, ("custom.lineWidth", 3), ("custom.fillOpacity", 0)),
                painted("p90", SKY, ("custom.fillBelowTo", "p10"), ("custom.fillOpacity", 25), ("custom.lineStyle", {"fill": "dash", "dash": [4, 4]})),
            ])
    b.lines("Time left by resource", [
        (f'{tte}{{{SUBJECT},estimate="p50"}}', f"{NAME} p50"),
        (f'{tte}{{{SUBJECT},estimate="p10"}}', f"{NAME} p10"),
        (f'{tte}{{{SUBJECT},estimate="p90"}}', f"{NAME} p90"),
    ], "s", description="p50 solid, p10 and p90 dashed; a logarithmic scale.", log=True, overrides=[
        like("/p50$/", ("custom.lineWidth", 2), ("custom.fillOpacity", 0)),
        like("/p[19]0$/", ("custom.fillOpacity", 0), ("custom.lineStyle", {"fill": "dash", "dash": [4, 6]})),
    ])
    b.bars("Probability of exhaustion, any resource", [
        (f'max({within}{{{SUBJECT},horizon="{horizon}"}})', f"within {horizon}") for horizon in ("1m", "5m", "15m", "60m")
    ], "percentunit", description="Probability for the resource where it is highest; includes the chance that growth stops.", min=0, max=1,
           steps=[level(YELLOW, 0.1), level(ORANGE, 0.5), level(RED, 0.9)])
    b.timeline("Health", [(numbered(health, "health", HEALTHS, SUBJECT), NAME)], mappings=words(HEALTHS),
               description="Health of the memory of each resource over time.",
               steps=[level(YELLOW, 1), level(ORANGE, 2), level(RED, 3)])
    b.timeline("Probability of exhaustion within 15 minutes", [(f'{within}{{{SUBJECT},horizon="15m"}}', NAME)], unit="percentunit",
               description="Probability of exhaustion of each resource over time; the color changes at 10, 50 and 90 %.", min=0, max=1, decimals=0,
               steps=[level(YELLOW, 0.1), level(ORANGE, 0.5), level(RED, 0.9)])
    b.lines("Headroom", [(f"bottomk(10, memwarden_forecast_headroom_bytes{{{SUBJECT}}})", NAME)], "bytes",
            description="Headroom of the ten resources with the least; reclaimable page cache counts as available.", min=0)
    b.lines("Growth", [(f"topk(10, memwarden_forecast_growth_bytes_per_second{{{SUBJECT}}})", NAME)], "binBps",
            description="Growth rate of the ten fastest growing resources.")
    b.table("What the forecasts go by", f"memwarden_forecast_basis_info{{{SUBJECT}}} == 1", width=8, hide=("Value", "uuid"),
            description="used: memory counted against the limit. allocated: memory of the job's allocator, where the device's value is constant.")

    b.row("Leaks")
    state = "memwarden_leak_state"
    b.timeline("Workloads, ranks and GPU processes", [(numbered(state, "state", STATES, f'{SUBJECT},resource!="process"'), NAME)],
               mappings=words(STATES), steps=[level(YELLOW, 3), level(RED, 4)],
               description="growing: growth that may stop. leaking: growth so long and steady that it is classified as a leak.")
    # One series a state and process would be illegible: only those that climb.
    b.timeline("Processes that climb", [(f'max without (state) (3 * ({state}{{{SUBJECT},resource="process",state="growing"}} == 1) or 4 * ({state}{{{SUBJECT},resource="process",state="leaking"}} == 1))', "{{workload}} {{pid}}")],
               mappings=words(STATES), steps=[level(YELLOW, 3), level(RED, 4)], noValue="none",
               description="Processes of workloads whose memory grows or leaks.")
    climbs = f'and ignoring (state) ({state}{{{SUBJECT},state=~"growing|leaking"}} == 1)'
    b.lines("Growth per hour", [(f"3600 * topk(10, memwarden_leak_growth_bytes_per_second{{{SUBJECT}}} {climbs})", NAME)], "bytes", width=6,
            description="Growth rate of the ten fastest growing or leaking subjects.", min=0)
    b.lines("Growth per training step", [(f"topk(10, memwarden_leak_growth_bytes_per_step{{{SUBJECT}}} {climbs})", NAME)], "bytes", width=6,
            description="Growth per training step over the last 10 to 20 minutes, where the job reports steps.", min=0, noValue="no steps reported")
    b.lines("Evidence", [(f"topk(10, memwarden_leak_score{{{SUBJECT}}} {climbs.replace('(state)', '(state, envelope)')})", f"{NAME} {{{{envelope}}}}")], "short", width=6,
            description="Distance of the slope of the floor, the center and the peak from zero in standard errors; two above 2.5 or one above 3.5 are evidence of growth.")
    b.lines("Confidence", [(f"memwarden_leak_confidence_ratio{{{SUBJECT}}}", NAME)], "percentunit", width=6,
            description="Strength of the evidence for growth; orders suspects, is not a probability.", min=0.5, max=1)
    b.table("Climbing since", f"1000 * memwarden_leak_since_timestamp_seconds{{{SUBJECT}}}", width=12, hide=("uuid",), unit="short",
            names={"Value": "since"}, custom={"filterable": True},
            description="Start of the growth of each growing or leaking subject.", overrides=[of("since", ("unit", "dateTimeFromNow"))])
    b.table("Rise over the window of the evidence", f"sort_desc(memwarden_leak_rise_bytes{{{SUBJECT}}} {climbs})", width=12, hide=("uuid",),
            names={"Value": "rise"}, unit="bytes", description="Increase of memory since the beginning of the evaluation window.")

    protection(b)

    b.row("Imbalance")
    # Of several GPUs of a node without a workload's name: all its workloads together.
    every, alone = 'workload!="",' + WORK, 'workload="",' + HERE
    for title, metric, unit, description in (
        ("Memory spread", "memwarden_imbalance_memory_spread_ratio", "percentunit", "Memory of a workload on its fullest GPU above the mean of its GPUs, as a share of the mean."),
        ("Memory that stays unused", "memwarden_imbalance_stranded_bytes", "bytes", "Memory on the other GPUs of a workload, in total, that remains unused when its fullest GPU is full."),
        ("Utilization lag", "memwarden_imbalance_utilization_lag_ratio", "percentunit", "Utilization of the least utilized GPU of a workload below the mean of its GPUs, as a share of the mean."),
    ):
        b.lines(title, [(f"{metric}{{{every}}}", "{{workload}}"), (f"{metric}{{{alone}}}", "the node")], unit, description=description, min=0)
    for title, info, ratio, name, description in (
        ("Fullest GPU of each workload", "memwarden_imbalance_memory_bottleneck_info", "memwarden_imbalance_memory_spread_ratio", "above the mean", "GPU with the most memory of the workload in use, and how far it is above the mean of the workload's GPUs."),
        ("Least utilized GPU of each workload", "memwarden_imbalance_straggler_info", "memwarden_imbalance_utilization_lag_ratio", "below the mean", "GPU with the lowest utilization, and how far it is below the mean. A GPU that waits for others counts as busy."),
    ):
        b.table(title, f"{info}{{{every}}} * on (job, instance, workload) group_left () {ratio}", width=8, unit="percentunit", names={"Value": name}, description=description)
    b.lines("Share of the workloads' resident memory", [(f"memwarden_imbalance_workload_memory_share_ratio{{{WORK}}}", "{{workload}}")], "percentunit",
            stack=True, description="Share of the resident memory of all workloads of the node.", min=0, max=1)

    b.row("Idle memory")
    b.lines("GPU memory held and not used", [(f"memwarden_idle_gpu_memory_bytes{{{WORK}}}", "{{workload}} GPU {{gpu}}")], "bytes", stack=True, min=0,
            description="Memory of workloads on GPUs that have not been used for analyzers.idle.after, 15 minutes by default.")
    b.lines("Host memory held without activity", [(f"memwarden_idle_host_memory_bytes{{{WORK}}}", "{{workload}}")], "bytes", stack=True, min=0,
            description="Anonymous and shared memory of workloads that have used no CPU and no GPU for four times analyzers.idle.after.")
    b.table("Idle GPU time in 24 h", f"sort_desc(increase(memwarden_idle_gpu_seconds_total{{{WORK}}}[24h]) > 0)", width=8, unit="s", names={"Value": "GPU time"},
            description="GPU time for which a workload held memory of GPUs that were not used.")

    b.row("Fragmentation of host memory")
    b.timeline("State of each zone", [(numbered("memwarden_fragmentation_host_state", "state", PIECES, HERE), "node {{node}}, {{zone}}")], width=8,
               mappings=words(PIECES), steps=[level(YELLOW, 1), level(RED, 2)],
               description="fragmenting: the share of free memory usable for huge pages decreases. fragmented: almost none is usable, and huge page allocations failed.")
    b.lines("Unusable for huge pages", [(f"memwarden_fragmentation_unusable_free_ratio{{{HERE}}}", "node {{node}}, {{zone}}")], "percentunit",
            description="Share of the free memory in blocks too small for a huge page, averaged over 5 minutes. A high value alone is normal: most memory may be page cache.", min=0, max=1)
    b.lines("Trend", [(f"memwarden_fragmentation_unusable_free_change_ratio{{{HERE}}}", "node {{node}}, {{zone}}")], "percentunit",
            description="Change of the unusable share: the average of 5 minutes minus the average of the last hour.")

    b.row("Findings and analyzers")
    b.lines("Findings in force", [
        (f'sum by (analyzer) (memwarden_findings{{{HERE},severity="{severity}"}})', "{{analyzer}}, " + severity) for severity in ("critical", "warning", "info")
    ], "short", stack=True, description="Active findings by analyzer and severity.", min=0, decimals=0, overrides=[
        like("/critical$/", ("color", {"mode": "fixed", "fixedColor": RED})),
        like("/warning$/", ("color", {"mode": "fixed", "fixedColor": ORANGE})),
        like("/info$/", ("color", {"mode": "fixed", "fixedColor": SKY})),
    ])
    b.timeline("Analyzers", [(f"memwarden_analyzer_up{{{HERE}}}", "{{analyzer}}")], width=8,
               mappings=words([("failed", RED), ("complete", SKY)]), description="Whether the last run of the analyzer was complete.")
    b.lines("Time an analyzer takes", [(f"memwarden_analyzer_duration_seconds{{{HERE}}}", "{{analyzer}}")], "s", stack=True,
            description="Run time of each analyzer at each tick.", min=0)
    b.lines("Failures of analyzers", [(f"increase(memwarden_analyzer_panics_total{{{HERE}}}[$__rate_interval])", "{{analyzer}}")], "short", width=12,
            description="Panics of analyzers that were caught; the analyzer restarts after each.", min=0, decimals=0)
    b.lines("Followed and left out", [
        (f"memwarden_forecast_resources{{{HERE}}}", "resources followed"),
        (f"memwarden_forecast_resources_omitted{{{HERE}}}", "resources left out"),
        (f"memwarden_leak_subjects{{{HERE}}}", "leak subjects followed"),
        (f"memwarden_leak_subjects_omitted{{{HERE}}}", "leak subjects left out"),
    ], "short", width=12, description="Tracked and omitted subjects; subjects beyond analyzers.exhaustion.max_subjects and analyzers.leak.max_subjects are omitted.", min=0, decimals=0)

    b.row("Health of the telling")
    b.table("Sources", f"memwarden_source_status{{{HERE}}} == 1", hide=("Value",))
    b.lines("Time a sample takes", [(f"memwarden_source_duration_seconds{{{HERE}}}", "{{source}}")], "s", width=12, stack=True, min=0)
    b.lines("memwarden's own memory", [
        (f"process_resident_memory_bytes{{{HERE}}}", "daemon"),
        (f"memwarden_gpu_worker_resident_memory_bytes{{{HERE}}}", "GPU worker"),
    ], "bytes", min=0)
    b.lines("memwarden's own processor time", [(f"rate(process_cpu_seconds_total{{{HERE}}}[$__rate_interval])", "daemon")], "percentunit", min=0)
    b.lines("What was left out or late", [
        (f"rate(memwarden_ticks_skipped_total{{{HERE}}}[$__rate_interval])", "ticks skipped"),
        (f"sum(rate(memwarden_source_errors_total{{{HERE}}}[$__rate_interval]))", "source errors"),
        (f"rate(memwarden_http_limited_total{{{HERE}}}[$__rate_interval])", "HTTP, {{reason}}"),
    ], "ops", min=0)

    return dashboard("node", "Host memory, GPUs, workloads, forecasts, leaks, protection, and the health of memwarden.", b, [
        variable("instance", "label_values(memwarden_build_info, instance)", "Node"),
        variable("gpu", 'label_values(memwarden_gpu_info{instance=~"$instance"}, gpu)', "GPU"),
        variable("workload", 'label_values(memwarden_workload_info{instance=~"$instance"}, workload)', "Workload"),
    ])


# The values of instance:memwarden_node_state:level.
NODES = [("seen in full", SKY), ("blind", YELLOW), ("hung", ORANGE), ("stale", RED), ("down", RED)]


def fleet():
    """Uses only recording rules, so that it is as fast for a thousand nodes as for one."""
    b = Board()
    health, tte = "instance:memwarden_forecast_health:max", "instance:memwarden_forecast_time_to_exhaustion_seconds:min"
    state = "instance:memwarden_node_state:level"
    colors = [level(YELLOW, 1), level(ORANGE, 2), level(RED, 3)]
    b.row("Now")
    b.stat("Nodes", f"count({state}{{{HERE}}})", "short", description="Nodes that are or were monitored within the last day.")
    b.stat("Down, stale, hung or blind", f"sum({state}{{{HERE}}} > bool 0)", "short", steps=[level(RED, 1)], description="Nodes whose state is not known in full. Their health is unknown, not ok.")
    b.stat("Warning or worse", f"sum({health}{{{HERE}}} >= bool 2)", "short", steps=[level(ORANGE, 1)], description="Nodes with a resource whose memory requires attention.")
    b.stat("Critical", f"sum({health}{{{HERE}}} >= bool 3)", "short", steps=[level(RED, 1)], description="Nodes with a resource that is full, or likely to be exhausted within 15 minutes.")
    b.stat("Least time left, p50", f'min({tte}{{{HERE},estimate="p50"}})', "s", noValue="none predicted", description="Time to exhaustion on the node where memory is exhausted first.")
    b.stat("Leaks", f"sum(instance:memwarden_leak_leaking:count{{{HERE}}})", "short", steps=[level(RED, 1)], description="Workloads, ranks and GPU processes that leak.")
    b.stat("Critical findings", f'sum(instance:memwarden_findings:sum{{{HERE},severity="critical"}})', "short", steps=[level(RED, 1)], description="Active findings of the analyzers.")
    b.row("Nodes")
    b.timeline("State of the nodes, worst first", [(f"topk(30, {state}{{{HERE}}})", "{{instance}}")], width=24,
               mappings=words(NODES), steps=[level(YELLOW, 1), level(ORANGE, 2), level(RED, 3)],
               description="down: not scraped, or not discovered any more. stale: no new sample. hung: a GPU hangs or is lost. blind: a source fails.")
    b.timeline("Health of the memory of the nodes, worst first", [(f"topk(30, {health}{{{HERE}}})", "{{instance}}")], height=12, mappings=words(HEALTHS), steps=colors,
               description="Worst health of the memory of any resource of the node.")
    b.lines("Time left, p50", [(f'bottomk(20, {tte}{{{HERE},estimate="p50"}})', "{{instance}}")], "s", width=12, height=12, log=True,
            description="Time to exhaustion of the twenty nodes where memory is exhausted first; logarithmic scale.")
    b.lines("Probability of exhaustion within 15 minutes", [(f'topk(20, instance:memwarden_forecast_exhaustion_probability:max{{{HERE},horizon="15m"}})', "{{instance}}")],
            "percentunit", description="Exhaustion probability of the twenty nodes with the highest.", min=0, max=1)
    b.lines("Fastest growth per hour of what grows or leaks", [(f"3600 * topk(20, instance:memwarden_leak_growth_bytes_per_second:max{{{HERE}}})", "{{instance}}")],
            "bytes", description="Growth rate of the twenty nodes with the fastest growth.", min=0)
    b.lines("Leaks", [(f"topk(20, instance:memwarden_leak_leaking:count{{{HERE}}})", "{{instance}}")], "short",
            description="Workloads, ranks and GPU processes that leak, on the twenty nodes with the most.", min=0, decimals=0)
    b.lines("Findings in force", [(f"sum by (severity) (instance:memwarden_findings:sum{{{HERE}}})", "{{severity}}")], "short", width=24, stack=True,
            description="Active findings of all nodes, by severity.", min=0, decimals=0, overrides=[painted("critical", RED), painted("warning", ORANGE), painted("info", SKY)])
    b.table("Nodes", f"{state}{{{HERE}}}", width=24, shown=("instance",), names={"Value": "state"}, mappings=words(NODES), description="State of each node; the name opens the dashboard of the node.",
            overrides=[of("instance", ("links", [{"title": "Node", "url": "/d/memwarden-node?var-instance=${__value.raw}&${__url_time_range}"}]))])
    return dashboard("fleet", "Which nodes run out of memory first, and which leak. Needs memwarden.recording.rules.yaml.", b, [
        variable("instance", "label_values(memwarden_build_info, instance)", "Node"),
    ])


def main():
    for board in (node(), fleet(), runs(), training()):
        target = FOLDER / f"{board['uid']}.json"
        text = json.dumps(board, indent=2) + "\n"
        if "--check" not in sys.argv[1:]:
            target.write_text(text)
        elif not target.exists() or target.read_text() != text:
            sys.exit(f"{target.name} is out of date; run dashboards/build.py")


if __name__ == "__main__":
    main()
