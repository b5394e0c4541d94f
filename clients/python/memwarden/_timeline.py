"""The timeline of a monitor: points with their memory, reports and the export."""

from __future__ import annotations

import collections
import json
import os
import sys
from typing import Any, Deque, Dict, List, Mapping, Optional

from ._base import JSON, _getpid, _guarded, _plain_whole, _size, _table
from ._phases import _Phases
from ._snapshots import _Snapshots


class _Timeline(_Phases, _Snapshots):
    """The part of a monitor that records points and reports."""

    _entries: Deque[JSON]
    _tokens: Optional[int]
    _samples: Optional[int]

    @_guarded(dict)
    def record(self, event: str, extra: Any = None) -> JSON:
        """Adds a point with the current memory to the timeline; returns the point."""
        if self._off or not self._wants(self._step):
            return {}
        return self._add(self._entry(event, extra))

    @_guarded(dict)
    def record_detailed(self, event: str, tensors: Any = None, model: Any = None, extra: Any = None) -> JSON:
        """Like `record`, with the size, type and device of tensors and the content of a model."""
        if self._off or not self._wants(self._step):
            return {}
        entry = self._entry(event, extra)
        from ._models import _describe_tensor, analyze_model

        if tensors is not None:
            if isinstance(tensors, Mapping):
                named = list(tensors.items())
            else:
                named = list(enumerate(tensors if isinstance(tensors, (list, tuple)) else [tensors]))
            entry["tensors"] = [_describe_tensor(str(name), tensor) for name, tensor in named[:1000]]
        if model is not None:
            entry["model"] = analyze_model(model, check_values=False)
        return self._add(entry)

    def _add(self, entry: JSON) -> JSON:
        if not self._ready and not self._stopped:
            self.start()
        self._entries.append(entry)
        detail = {key[: -len("_bytes")]: value for key, value in entry.items() if key.endswith("_bytes") and value}
        if "extra" in entry:
            detail["extra"] = entry["extra"]
        message = {"type": "event", "t": entry["unix_seconds"], "name": entry["event"], "step": entry["step"]}
        self._send(dict(message, detail=detail))
        return entry

    @_guarded(list)
    def timeline(self) -> List[JSON]:
        """The points, the oldest first; at most the last 10,000."""
        return list(self._entries)

    @_guarded("")
    def timeline_text(self) -> str:
        """The timeline as a table for a console."""
        rows = [["elapsed", "step", "event", "allocated", "peak", "reserved", "host"]]
        for entry in list(self._entries):
            memory = [entry.get(key) for key in ("allocated_bytes", "allocated_peak_bytes", "reserved_bytes")]
            memory.append(entry.get("host_rss_bytes"))
            rows.append(["%.3f s" % entry["elapsed_seconds"], str(entry["step"]), entry["event"][:40]])
            rows[-1] += [_size(value) for value in memory]
        return _table(rows)

    @_guarded(dict)
    def timeline_summary(self) -> JSON:
        """The point with the most memory, the growth from the first point to the last, and the mean of each event."""
        entries = [entry for entry in list(self._entries) if "event" in entry]
        if not entries:
            return {}
        key = "host_rss_bytes" if entries[-1]["allocated_bytes"] is None else "allocated_bytes"
        known = [entry for entry in entries if entry.get(key) is not None]
        by_event: Dict[str, List[int]] = collections.defaultdict(list)
        for entry in known:
            by_event[entry["event"]].append(entry[key])
        return {
            "of": key,
            "peak": max(known, key=lambda entry: entry[key]) if known else None,
            "growth": self.compare(entries[0], entries[-1]),
            "events": {name: {"count": len(all), "mean_bytes": sum(all) / len(all)} for name, all in by_event.items()},
        }

    @_guarded("")
    def report(self) -> str:
        """For a console: current memory, the phases, the timeline, its peak and the growth."""
        now = self._entry("now", None)
        lines = ["Rank %d, step %d" % (self._hello()["rank"], self._step)]
        sizes = ("allocated", "allocated_peak", "reserved", "reserved_peak", "host_rss", "host_rss_peak")
        lines += ["  %-15s %s" % (name.replace("_", " "), _size(now[name + "_bytes"])) for name in sizes]
        rows = [["phase", "count", "seconds", "mean", "allocated peak"]]
        for name, phase in self.phases().items():
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

    @_guarded()
    def print_timeline(self, file: Any = None) -> None:
        """Prints the timeline."""
        print(self.timeline_text(), file=file or sys.stdout)

    @_guarded(False)
    def export_json(self, path: str) -> bool:
        """Writes everything recorded to a file, completely or not at all. The names contain the units."""
        everything = {
            "schema_version": 1,
            "hello": self._hello_sent or self._hello(),
            "steps": {"last": self._step, "tokens": self._tokens, "samples": self._samples},
            "phases": self.phases(),
            "timeline": list(self._entries),
            "snapshots": self._snapshots,
            "parameters": self._params,
        }
        path = os.fspath(path)
        sibling = "%s.%d.part" % (path, _getpid())
        try:
            with open(sibling, "w", encoding="utf-8") as file:
                json.dump(_plain_whole(everything), file, indent=1)
                file.write("\n")
            os.replace(sibling, path)
        except BaseException:
            if os.path.exists(sibling):
                os.remove(sibling)
            raise
        return True
