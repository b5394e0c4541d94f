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
    GPU, HEALTHS, HERE, NAME, ORANGE, RED, SKY, STATES, SUBJECT, WORK, YELLOW,
    Board, dashboard, level, like, numbered, of, painted, variable, words,
)
from protection import protection
from runs import runs
from training import training

FOLDER = Path(__file__).parent

# The values of memwarden_gpu_hardware_state.
HARDWARE = [("ok", SKY), ("degraded", YELLOW), ("predicted_failure", ORANGE), ("failed", RED)]


def node():
    b = Board("node")
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
    b.lines("Pressure (PSI), last 10 s", [
        (f'memwarden_host_pressure_ratio{{{HERE},resource="memory",window="10s"}}', "memory, {{kind}}"),
        (f'memwarden_host_pressure_ratio{{{HERE},resource="io",window="10s"}}', "io, {{kind}}"),
    ], "percentunit", description="Share of time in which some or all tasks waited for the resource (PSI).", min=0)

    b.row("GPUs")
    b.lines("GPU memory used", [(f"memwarden_gpu_memory_used_bytes{{{GPU}}}", "GPU {{gpu}}")], "bytes", min=0)
    b.timeline("State of the hardware", [(numbered("memwarden_gpu_hardware_state", "state", HARDWARE, GPU), "GPU {{gpu}}")], width=8,
               mappings=words(HARDWARE), steps=[level(YELLOW, 1), level(ORANGE, 2), level(RED, 3)],
               description="degraded: an XID error is unresolved, or memory waits for a reset. predicted failure: rows of memory cannot be remapped. failed: lost or hung. Empty while it is not known.")
    b.lines("Utilization", [
        (f"memwarden_gpu_utilization_ratio{{{GPU}}}", "GPU {{gpu}}"),
    ], "percentunit", description="Share of time in which at least one kernel ran; not the occupancy of the GPU.", min=0, max=1)
    b.lines("Temperature", [(f"memwarden_gpu_temperature_celsius{{{GPU}}}", "GPU {{gpu}}")], "celsius")
    b.lines("XIDs", [(f"increase(memwarden_gpu_xid_errors_total{{{GPU}}}[$__rate_interval]) > 0 or on () vector(0)", "GPU {{gpu}}: XID {{xid}} ({{severity}})")], "short", min=0)

    b.row("Workloads")
    b.lines("Resident memory", [(f"sum by (workload) (memwarden_workload_rss_bytes{{{WORK}}})", "{{workload}}")], "bytes", stack=True, min=0)
    b.lines("GPU memory", [(f"sum by (workload) (memwarden_workload_gpu_memory_bytes{{{WORK}}})", "{{workload}}")], "bytes", stack=True, min=0)
    b.table("Largest processes", f"topk(20, memwarden_process_rss_bytes{{{HERE}}})", unit="bytes")
    b.lines("Cgroup headroom", [(f"bottomk(10, memwarden_cgroup_memory_headroom_bytes{{{HERE}}})", "{{cgroup}}")], "bytes", width=12, min=0)

    b.row("/dev/shm and other tmpfs")
    used, size = "memwarden_tmpfs_used_bytes", "memwarden_tmpfs_size_bytes"
    b.lines("Share in use", [(f"topk(10, {used}{{{HERE}}} / {size}{{{HERE}}})", "{{workload}} {{mount}}")], "percentunit", min=0, max=1,
            description="Share of the size of the ten fullest tmpfs. Who writes to a mapped file in a full tmpfs ends by SIGBUS.")

    b.row("Forecasts")
    tte, health = "memwarden_forecast_time_to_exhaustion_seconds", "memwarden_forecast_health"
    b.stat("Worst health", f"max({numbered(health, 'health', HEALTHS, SUBJECT)})", "short", mappings=words(HEALTHS),
           description="Worst health of the memory of any resource; unknown means too few samples. docs/analyzers.md lists the rules.",
           steps=[level(YELLOW, 1), level(ORANGE, 2), level(RED, 3)])
    b.stat("Least time left, p50", f'min({tte}{{{SUBJECT},estimate="p50"}})', "s", noValue="none predicted",
           description="Median predicted time until the first resource is exhausted at its current growth.",
           steps=[], color={"mode": "thresholds"})
    b.lines("Time left by resource", [
        (f'{tte}{{{SUBJECT},estimate="p50"}}', f"{NAME} p50"),
        (f'{tte}{{{SUBJECT},estimate="p10"}}', f"{NAME} p10"),
        (f'{tte}{{{SUBJECT},estimate="p90"}}', f"{NAME} p90"),
    ], "s", description="p50 solid, p10 and p90 dashed; a logarithmic scale.", log=True, overrides=[
        like("/p50$/", ("custom.lineWidth", 2), ("custom.fillOpacity", 0)),
        like("/p[19]0$/", ("custom.fillOpacity", 0), ("custom.lineStyle", {"fill": "dash", "dash": [4, 6]})),
    ])
    b.timeline("Health", [(numbered(health, "health", HEALTHS, SUBJECT), NAME)], mappings=words(HEALTHS),
               description="Health of the memory of each resource over time.",
               steps=[level(YELLOW, 1), level(ORANGE, 2), level(RED, 3)])
    b.lines("Headroom", [(f"bottomk(10, memwarden_forecast_headroom_bytes{{{SUBJECT}}})", NAME)], "bytes",
            description="Headroom of the ten resources with the least; reclaimable page cache counts as available.", min=0)

    b.row("Leaks")
    state = "memwarden_leak_state"
    b.timeline("Workloads, ranks and GPU processes", [(numbered(state, "state", STATES, f'{SUBJECT},resource!="process"'), NAME)],
               mappings=words(STATES), steps=[level(YELLOW, 3), level(RED, 4)],
               description="growing: growth that may stop. leaking: growth so long and steady that it is classified as a leak.")
    b.table("Climbing since", f"1000 * memwarden_leak_since_timestamp_seconds{{{SUBJECT}}}", width=12, hide=("uuid",), unit="short",
            names={"Value": "since"}, custom={"filterable": True},
            description="Start of the growth of each growing or leaking subject.", overrides=[of("since", ("unit", "dateTimeFromNow"))])

    protection(b)



    b.row("Findings")
    b.lines("Findings in force", [
        (f'sum by (analyzer) (memwarden_findings{{{HERE},severity="{severity}"}})', "{{analyzer}}, " + severity) for severity in ("critical", "warning", "info")
    ], "short", stack=True, description="Active findings by analyzer and severity.", min=0, decimals=0, overrides=[
        like("/critical$/", ("color", {"mode": "fixed", "fixedColor": RED})),
        like("/warning$/", ("color", {"mode": "fixed", "fixedColor": ORANGE})),
        like("/info$/", ("color", {"mode": "fixed", "fixedColor": SKY})),
    ])

    b.row("memwarden itself")
    b.table("Sources", f"memwarden_source_status{{{HERE}}} == 1", hide=("Value",))

    return dashboard("node", "Host memory, GPUs, workloads, forecasts, leaks, protection, and the health of memwarden.", b, [
        variable("instance", "label_values(memwarden_build_info, instance)", "Node"),
        variable("gpu", 'label_values(memwarden_gpu_info{instance=~"$instance"}, gpu)', "GPU"),
        variable("workload", 'label_values(memwarden_workload_info{instance=~"$instance"}, workload)', "Workload"),
    ])


# The values of instance:memwarden_node_state:level.
NODES = [("seen in full", SKY), ("blind", YELLOW), ("hung", ORANGE), ("stale", RED), ("down", RED)]


def fleet():
    """Uses only recording rules, so that it is as fast for a thousand nodes as for one."""
    b = Board("fleet")
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
    b.row("Nodes", is_open=True)
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
