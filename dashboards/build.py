#!/usr/bin/env python3
"""Writes memwarden-node.json, the Grafana dashboard of one node.

    dashboards/build.py            # writes the file
    dashboards/build.py --check    # fails where the file is not what this writes

Classic JSON (schema version 39) with a datasource variable, so that it can be
provisioned from a file and imported by hand alike.
"""

import json
import sys
from pathlib import Path

TARGET = Path(__file__).with_name("memwarden-node.json")
SOURCE = {"type": "prometheus", "uid": "${datasource}"}
HERE = 'instance=~"$instance"'
GPU = f'{HERE},gpu=~"$gpu"'
WORK = f'{HERE},workload=~"$workload"'


class Board:
    """Places panels from left to right on Grafana's 24 columns."""

    def __init__(self):
        self.panels = []
        self.x = self.y = self.tallest = 0

    def _add(self, panel, width, height):
        if self.x + width > 24:
            self.x, self.y, self.tallest = 0, self.y + self.tallest, 0
        panel["id"] = len(self.panels) + 1
        panel["gridPos"] = {"x": self.x, "y": self.y, "w": width, "h": height}
        self.panels.append(panel)
        self.x, self.tallest = self.x + width, max(self.tallest, height)

    def row(self, title):
        self.x, self.y, self.tallest = 0, self.y + self.tallest, 0
        self._add({"type": "row", "title": title, "collapsed": False, "panels": []}, 24, 1)

    def panel(self, kind, title, queries, unit, width, height, description="", **more):
        targets = [
            {"refId": chr(65 + place), "datasource": SOURCE, "expr": query, "legendFormat": legend, **extra}
            for place, (query, legend, *rest) in enumerate(queries)
            for extra in [rest[0] if rest else {}]
        ]
        panel = {
            "type": kind,
            "title": title,
            "description": description,
            "datasource": SOURCE,
            "targets": targets,
            "fieldConfig": {"defaults": {"unit": unit, **more.pop("defaults", {})}, "overrides": more.pop("overrides", [])},
            "options": more.pop("options", {}),
            **more,
        }
        self._add(panel, width, height)

    def lines(self, title, queries, unit, width=8, height=8, description="", stack=False, **defaults):
        custom = {"lineWidth": 1, "fillOpacity": 25 if stack else 8, "showPoints": "never"}
        if stack:
            custom["stacking"] = {"mode": "normal", "group": "A"}
        options = {
            "legend": {"displayMode": "table", "placement": "bottom", "calcs": ["lastNotNull", "max"]},
            "tooltip": {"mode": "multi", "sort": "desc"},
        }
        self.panel("timeseries", title, queries, unit, width, height, description,
                   defaults={"custom": custom, **defaults}, options=options)

    def stat(self, title, query, unit, width=4, description="", steps=(), mappings=()):
        thresholds = {"mode": "absolute", "steps": [{"color": "green", "value": None}, *steps]}
        options = {"reduceOptions": {"calcs": ["lastNotNull"]}, "colorMode": "value", "graphMode": "area"}
        self.panel("stat", title, [(query, "")], unit, width, 4, description,
                   defaults={"thresholds": thresholds, "mappings": list(mappings)}, options=options)

    def table(self, title, query, width=12, height=8, description="", hide=(), unit="short"):
        organize = {"id": "organize", "options": {"excludeByName": {name: True for name in ("Time", "__name__", "instance", "job", *hide)}}}
        self.panel("table", title, [(query, "", {"format": "table", "instant": True})], unit, width, height, description,
                   transformations=[organize])


def level(color, value):
    return {"color": color, "value": value}


def variable(name, query, label):
    return {
        "name": name, "label": label, "type": "query", "datasource": SOURCE, "refresh": 2, "sort": 3,
        "query": {"query": query, "refId": name}, "definition": query,
        "multi": True, "includeAll": True, "allValue": ".*", "current": {"text": "All", "value": "$__all"},
    }


def board():
    b = Board()
    b.row("Now")
    b.stat("Memory available", f"memwarden_host_memory_available_bytes{{{HERE}}}", "bytes", description="What new processes can get without swapping.")
    b.stat("Memory used", f"memwarden_host_memory_utilization_ratio{{{HERE}}}", "percentunit", steps=[level("orange", 0.9), level("red", 0.97)])
    b.stat("OOM kills, 1 h", f"increase(memwarden_host_oom_kills_total{{{HERE}}}[1h])", "short", steps=[level("red", 0.5)])
    b.stat("GPUs answering", f'sum(memwarden_gpu_status{{{HERE},status="ok"}})', "short")
    b.stat("GPUs hung or lost", f'sum(memwarden_gpu_status{{{HERE},status=~"hung|lost"}})', "short", steps=[level("red", 1)])
    b.stat("Age of the newest sample", f"max(time() - memwarden_last_sample_timestamp_seconds{{{HERE}}})", "s",
           steps=[level("orange", 10), level("red", 30)])

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
    ], "bytes", description="Shared memory is a part of the page cache that cannot be dropped.", min=0)
    b.lines("Swap and commit", [
        (f"memwarden_host_swap_used_bytes{{{HERE}}}", "swap used"),
        (f"memwarden_host_memory_committed_bytes{{{HERE}}}", "committed"),
        (f"memwarden_host_memory_commit_limit_bytes{{{HERE}}}", "commit limit"),
    ], "bytes", min=0)
    b.lines("Pressure (PSI), last 10 s", [
        (f'memwarden_host_pressure_ratio{{{HERE},resource="memory",window="10s"}}', "memory, {{kind}}"),
        (f'memwarden_host_pressure_ratio{{{HERE},resource="io",window="10s"}}', "io, {{kind}}"),
    ], "percentunit", description="Share of time in which some or all tasks waited.", min=0)
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
            description="Used memory less that of every process: contexts, other pid namespaces, leaks of the driver.", min=0)
    b.lines("Utilization", [
        (f"memwarden_gpu_utilization_ratio{{{GPU}}}", "GPU {{gpu}}"),
    ], "percentunit", description="Share of time in which any kernel ran; not how busy the GPU was.", min=0, max=1)
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

    b.row("Health of the telling")
    b.table("Sources", f"memwarden_source_status{{{HERE}}} == 1", hide=("Value",))
    b.lines("Time a sample takes", [(f"memwarden_source_duration_seconds{{{HERE}}}", "{{source}}")], "s", width=12, stack=True, min=0)
    b.lines("memwarden's own memory", [
        (f"memwarden_self_resident_memory_bytes{{{HERE}}}", "daemon"),
        (f"memwarden_gpu_worker_resident_memory_bytes{{{HERE}}}", "GPU worker"),
    ], "bytes", min=0)
    b.lines("memwarden's own processor time", [(f"rate(memwarden_self_cpu_seconds_total{{{HERE}}}[$__rate_interval])", "daemon")], "percentunit", min=0)
    b.lines("What was left out or late", [
        (f"rate(memwarden_ticks_skipped_total{{{HERE}}}[$__rate_interval])", "ticks skipped"),
        (f"sum(rate(memwarden_source_errors_total{{{HERE}}}[$__rate_interval]))", "source errors"),
        (f"rate(memwarden_http_limited_total{{{HERE}}}[$__rate_interval])", "HTTP, {{reason}}"),
    ], "ops", min=0)

    return {
        "uid": "memwarden-node",
        "title": "memwarden / node",
        "description": "Host memory, GPUs, workloads, and the health of the telling.",
        "tags": ["memwarden", "gpu", "memory"],
        "schemaVersion": 39,
        "version": 1,
        "editable": False,
        "graphTooltip": 1,
        "refresh": "10s",
        "time": {"from": "now-1h", "to": "now"},
        "timezone": "browser",
        "templating": {
            "list": [
                {"name": "datasource", "label": "Data source", "type": "datasource", "query": "prometheus", "current": {}},
                variable("instance", "label_values(memwarden_build_info, instance)", "Node"),
                variable("gpu", 'label_values(memwarden_gpu_info{instance=~"$instance"}, gpu)', "GPU"),
                variable("workload", 'label_values(memwarden_workload_info{instance=~"$instance"}, workload)', "Workload"),
            ]
        },
        "annotations": {
            "list": [{
                "name": "Alerts", "datasource": SOURCE, "enable": True, "iconColor": "red",
                "expr": f'ALERTS{{{HERE},alertstate="firing"}}', "titleFormat": "{{alertname}}", "textFormat": "{{severity}}",
            }]
        },
        "panels": b.panels,
    }


def main():
    text = json.dumps(board(), indent=2) + "\n"
    if "--check" in sys.argv[1:]:
        if TARGET.read_text() != text:
            sys.exit(f"{TARGET.name} is out of date; run dashboards/build.py")
    else:
        TARGET.write_text(text)


if __name__ == "__main__":
    main()
