"""Snapshots of memory values, and how full memory is."""

from __future__ import annotations

import gc
import re
from typing import Any, Dict, Union

from ._base import JSON, MOST_ENTRIES, _clock, _hide, _now, _plain, _text
from ._process import _accelerator, _cgroup_memory, _devices, _host_memory, _read
from ._steps import _Steps


class _Snapshots:
    """Reads and compares the memory of this process."""

    def __init__(self, steps: _Steps) -> None:
        self._steps = steps
        self.named: Dict[str, JSON] = {}
        self.reset()

    def reset(self) -> None:
        self._began = _clock()

    def read(self, event: str, extra: Any = None) -> JSON:
        """The memory now, as a point of the timeline."""
        rss, rss_peak = _host_memory()
        devices: JSON = {}
        try:
            devices = _devices()
        except Exception as error:
            _hide(error, "devices")
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

    def take(self, name: str) -> JSON:
        if len(self.named) >= MOST_ENTRIES and name not in self.named:
            self.named.pop(next(iter(self.named)))
        self.named[name] = point = self.read(name)
        return point

    def growth(self, before: Union[str, JSON], after: Union[str, JSON]) -> JSON:
        """What `Monitor.compare` returns."""
        first = self.named[before] if isinstance(before, str) else before
        second = self.named[after] if isinstance(after, str) else after
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

    def cleanup(self) -> JSON:
        """What `Monitor.cleanup` does."""
        before = self.read("before cleanup")
        gc.collect()
        module = _accelerator()
        if module is not None and hasattr(module, "empty_cache"):
            module.empty_cache()
        growth = self.growth(before, self.read("after cleanup"))
        parts = (("allocated", "allocated_bytes"), ("reserved", "reserved_bytes"), ("host", "host_rss_bytes"))
        return {part + "_freed_bytes": None if growth[key] is None else -growth[key] for part, key in parts}


def memory_status(threshold: float) -> JSON:
    """What `Monitor.check_memory_status` returns."""
    parts: JSON = {}
    module = _accelerator()
    for index in _devices():
        try:
            free, total = module.mem_get_info(int(index))
            parts["device " + index] = (total - free, total)
        except Exception as error:
            _hide(error, "mem_get_info")
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
