"""Snapshots of memory values, and how full memory is."""

from __future__ import annotations

import gc
import re
from typing import Any, Dict, Union

from ._base import JSON, MOST_ENTRIES, _clock, _guarded, _hide, _now, _plain, _text
from ._messages import _Messages
from ._process import _accelerator, _cgroup_memory, _devices, _host_memory, _read


class _Snapshots(_Messages):
    """The part of a monitor that reads and compares memory values."""

    _began: float
    _snapshots: Dict[str, JSON]

    def _entry(self, event: str, extra: Any) -> JSON:
        rss, rss_peak = _host_memory()
        devices: JSON = {}
        try:
            devices = _devices()
        except Exception as error:
            _hide(error, "devices")
        entry: JSON = {
            "event": _text(event),
            "unix_seconds": _now(),
            "elapsed_seconds": _clock() - self._began,
            "step": self._step,
        }
        for key in ("allocated", "allocated_peak", "reserved", "reserved_peak"):
            known = [figures[key] for figures in devices.values() if key in figures]
            entry[key + "_bytes"] = sum(known) if known else None
        entry["host_rss_bytes"], entry["host_rss_peak_bytes"] = rss, rss_peak
        entry["devices"] = {
            index: {key if key in ("retries", "ooms") else key + "_bytes": value for key, value in figures.items()}
            for index, figures in devices.items()
        }
        if extra is not None:
            entry["extra"] = _plain(extra)
        return entry

    @_guarded(dict)
    def memory_snapshot(self, name: str) -> JSON:
        """Stores the current memory under a name; returns it."""
        if self._off:
            return {}
        name = _text(name)
        if len(self._snapshots) >= MOST_ENTRIES and name not in self._snapshots:
            self._snapshots.pop(next(iter(self._snapshots)))
        self._snapshots[name] = entry = self._entry(name, None)
        return entry

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
    def check_memory_status(self, threshold: float = 0.9) -> JSON:
        """How full the devices, the host and our cgroup are; `ok` where none is above the threshold (0 to 1).

        Asks the driver for free memory, which may take a millisecond.
        """
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

    @_guarded(dict)
    def cleanup(self) -> JSON:
        """Collects garbage and releases cached memory of the devices; returns the freed memory. Waits for the devices."""
        before = self._entry("before cleanup", None)
        gc.collect()
        module = _accelerator()
        if module is not None and hasattr(module, "empty_cache"):
            module.empty_cache()
        growth = self.compare(before, self._entry("after cleanup", None))
        pairs = (("allocated", growth["allocated_bytes"]), ("reserved", growth["reserved_bytes"]))
        freed = {"%s_freed_bytes" % name: None if value is None else -value for name, value in pairs}
        freed["host_freed_bytes"] = None if growth["host_rss_bytes"] is None else -growth["host_rss_bytes"]
        return freed
