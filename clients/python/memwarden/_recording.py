"""What a monitor keeps in its process: snapshots of the memory, and the timeline."""

from __future__ import annotations

import collections
import gc
import re
import sys
from typing import Any, Deque, Dict, List, Mapping, Union

from ._base import JSON, MOST_ENTRIES, _clock, _guarded, _hiding, _now, _plain, _short, _size, _table, _text
from ._process import _accelerator, _cgroup_memory, _devices, _host_memory, _read
from ._session import _Session
from ._steps import _Steps


class Recording:
    """The methods of `Monitor` that read, keep and compare the memory of this process."""

    def __init__(self, session: _Session, steps: _Steps) -> None:
        self._session, self._steps = session, steps
        self._snapshots: Dict[str, JSON] = {}
        self._points: Deque[JSON] = collections.deque(maxlen=MOST_ENTRIES)
        self._began = _clock()

    def _read(self, event: str, extra: Any = None) -> JSON:
        """The memory now, as a point of the timeline."""
        rss, rss_peak = _host_memory()
        devices: JSON = {}
        with _hiding("devices"):
            devices = _devices()
        point: JSON = {"event": _text(event), "unix_seconds": _now(), "elapsed_seconds": _clock() - self._began}
        point["step"] = self._steps.last
        for key in ("allocated", "allocated_peak", "reserved", "reserved_peak"):
            known = [figures[key] for figures in devices.values() if key in figures]
            point[key + "_bytes"] = sum(known) if known else None
        point["host_rss_bytes"], point["host_rss_peak_bytes"] = rss, rss_peak
        point["devices"] = {
            index: {key if key in ("retries", "ooms") else key + "_bytes": value for key, value in figures.items()}
            for index, figures in devices.items()
        }
        if extra is not None:
            point["extra"] = _plain(extra)
        return point

    # -- snapshots

    @_guarded(dict)
    def memory_snapshot(self, name: str) -> JSON:
        """Stores the current memory under a name; returns it."""
        if self._session.off:
            return {}
        name = _text(name)
        if len(self._snapshots) >= MOST_ENTRIES and name not in self._snapshots:
            self._snapshots.pop(next(iter(self._snapshots)))
        self._snapshots[name] = point = self._read(name)
        return point

    @_guarded(dict)
    def compare(self, before: Union[str, JSON], after: Union[str, JSON]) -> JSON:
        """The growth between two snapshots (names, or points of the timeline): bytes and seconds, after minus before."""
        first = self._snapshots[before] if isinstance(before, str) else before
        second = self._snapshots[after] if isinstance(after, str) else after
        growth: JSON = {"from": first["event"], "to": second["event"]}
        for key in first:
            if key.endswith(("_bytes", "_seconds")) and key != "unix_seconds":
                known = first.get(key) is not None and second.get(key) is not None
                growth[key] = second[key] - first[key] if known else None
        both = set(first["devices"]) | set(second["devices"])
        growth["devices"] = {
            index: {
                key: value - first["devices"].get(index, {}).get(key, 0)
                for key, value in second["devices"].get(index, {}).items()
                # A device that was not in use before held no memory of this process.
                if key != "total_bytes"
            }
            for index in sorted(both)
        }
        return growth

    @_guarded(dict)
    def stage_growth(self, name: str) -> JSON:
        """The growth in the last run of a stage, or of a monitored function."""
        return self.compare(name + ":begin", name + ":end")

    @_guarded(dict)
    def cleanup(self) -> JSON:
        """Collects garbage and releases cached memory of the devices; returns the freed memory. Waits for the devices."""
        before = self._read("before cleanup")
        gc.collect()
        module = _accelerator()
        if module is not None and hasattr(module, "empty_cache"):
            module.empty_cache()
        growth = self.compare(before, self._read("after cleanup"))
        parts = (("allocated", "allocated_bytes"), ("reserved", "reserved_bytes"), ("host", "host_rss_bytes"))
        return {part + "_freed_bytes": None if growth[key] is None else -growth[key] for part, key in parts}

    @_guarded(dict)
    def check_memory_status(self, threshold: float = 0.9) -> JSON:
        """How full the devices, the host and our cgroup are; `ok` where none is above the threshold (0 to 1).

        Asks the driver for free memory, which may take a millisecond.
        """
        parts: JSON = {}
        module = _accelerator()
        for index in _devices():
            with _hiding("mem_get_info"):
                free, total = module.mem_get_info(int(index))
                parts["device " + index] = (total - free, total)
        info = dict(re.findall(r"^(\w+):\s+(\d+) kB", _read("/proc/meminfo") or "", re.M))
        if "MemTotal" in info and "MemAvailable" in info:
            total = int(info["MemTotal"]) * 1024
            parts["host"] = (total - int(info["MemAvailable"]) * 1024, total)
        used, limit, _ = _cgroup_memory()
        if used is not None and limit is not None:
            parts["cgroup"] = (used, limit)
        parts = {
            name: {"used_bytes": used, "total_bytes": total, "used_ratio": used / total}
            for name, (used, total) in parts.items()
            if total
        }
        over = [name for name, part in parts.items() if part["used_ratio"] > threshold]
        return {"ok": not over, "threshold": threshold, "over": over, "parts": parts}

    # -- the timeline

    @_guarded(dict)
    def record(self, event: str, extra: Any = None) -> JSON:
        """Adds a point with the current memory to the timeline; returns the point."""
        return self.record_detailed(event, extra=extra)

    @_guarded(dict)
    def record_detailed(self, event: str, tensors: Any = None, model: Any = None, extra: Any = None) -> JSON:
        """Like `record`, with the size, type and device of tensors and the content of a model."""
        if self._session.off or not self._steps.wants(self._steps.last):
            return {}
        point = self._read(event, extra)
        if tensors is not None:
            from ._models import _describe_tensor

            if isinstance(tensors, Mapping):
                named = list(tensors.items())
            else:
                named = list(enumerate(tensors if isinstance(tensors, (list, tuple)) else [tensors]))
            point["tensors"] = [_describe_tensor(str(name), tensor) for name, tensor in named[:1000]]
        if model is not None:
            from ._models import analyze_model

            point["model"] = analyze_model(model, check_values=False)
        self._session.ensure_started()
        self._points.append(point)
        detail = {key[: -len("_bytes")]: value for key, value in point.items() if key.endswith("_bytes") and value}
        if "extra" in point:
            detail["extra"] = point["extra"]
        message = {"type": "event", "t": point["unix_seconds"], "name": _short(point["event"]), "step": point["step"]}
        self._session.send(dict(message, detail=detail))
        return point

    def _keep(self, event: str, detail: Any) -> None:
        """Adds a point that is not sent."""
        self._points.append(dict(self._read(event), detail=detail))

    @_guarded(list)
    def timeline(self) -> List[JSON]:
        """The points, the oldest first; at most the last 10,000."""
        return list(self._points)

    @_guarded("")
    def timeline_text(self) -> str:
        """The timeline as a table for a console."""
        rows = [["elapsed", "step", "event", "allocated", "peak", "reserved", "host"]]
        for point in self.timeline():
            keys = ("allocated_bytes", "allocated_peak_bytes", "reserved_bytes", "host_rss_bytes")
            rows.append(["%.3f s" % point["elapsed_seconds"], str(point["step"]), point["event"][:40]])
            rows[-1] += [_size(point.get(key)) for key in keys]
        return _table(rows)

    @_guarded(dict)
    def timeline_summary(self) -> JSON:
        """The point with the most memory, the growth from the first point to the last, and the mean of each event."""
        points = self.timeline()
        if not points:
            return {}
        key = "host_rss_bytes" if points[-1]["allocated_bytes"] is None else "allocated_bytes"
        known = [point for point in points if point.get(key) is not None]
        by_event: Dict[str, List[int]] = collections.defaultdict(list)
        for point in known:
            by_event[point["event"]].append(point[key])
        return {
            "of": key,
            "peak": max(known, key=lambda point: point[key]) if known else None,
            "growth": self.compare(points[0], points[-1]),
            "events": {name: {"count": len(all), "mean_bytes": sum(all) / len(all)} for name, all in by_event.items()},
        }

    @_guarded()
    def print_timeline(self, file: Any = None) -> None:
        """Prints the timeline."""
        print(self.timeline_text(), file=file or sys.stdout)

    def _report(self, rank: int, phases: Dict[str, JSON]) -> str:
        """What `Monitor.report` returns."""
        now = self._read("now")
        lines = ["Rank %d, step %d" % (rank, now["step"])]
        sizes = ("allocated", "allocated_peak", "reserved", "reserved_peak", "host_rss", "host_rss_peak")
        lines += ["  %-15s %s" % (name.replace("_", " "), _size(now[name + "_bytes"])) for name in sizes]
        rows = [["phase", "count", "seconds", "mean", "allocated peak"]]
        for name, phase in phases.items():
            mean = phase["seconds"] / phase["count"] if phase["count"] else 0.0
            figures = ["%.3f" % phase["seconds"], "%.6f" % mean, _size(phase["allocated_peak_bytes"])]
            rows.append([name, str(phase["count"]), *figures])
        if len(rows) > 1:
            lines += ["", _table(rows)]
        summary = self.timeline_summary()
        if summary:
            lines += ["", self.timeline_text(), ""]
            peak, grown = summary["peak"], summary["growth"].get(summary["of"])
            if peak is not None:
                lines.append("Most at `%s`, step %d: %s" % (peak["event"], peak["step"], _size(peak[summary["of"]])))
            if grown is not None:
                lines.append("From the first point to the last: %s%s" % ("+" if grown >= 0 else "", _size(grown)))
        return "\n".join(lines)
