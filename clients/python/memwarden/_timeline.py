"""The timeline of a process: points with their memory, and the reports of them."""

from __future__ import annotations

import collections
from typing import Any, Deque, Dict, List, Mapping

from ._base import JSON, MOST_ENTRIES, _short, _size, _table
from ._session import _Session
from ._snapshots import _Snapshots
from ._steps import _Steps


class _Timeline:
    """Keeps the last points, and sends each as an event."""

    def __init__(self, session: _Session, steps: _Steps, snapshots: _Snapshots) -> None:
        self._session, self._steps, self._snapshots = session, steps, snapshots
        self.points: Deque[JSON] = collections.deque(maxlen=MOST_ENTRIES)

    def record(self, event: str, extra: Any, tensors: Any = None, model: Any = None) -> JSON:
        """Adds a point, unless this step is not wanted; returns the point."""
        if self._session.off or not self._steps.wants(self._steps.last):
            return {}
        point = self._snapshots.read(event, extra)
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
        self.points.append(point)
        detail = {key[: -len("_bytes")]: value for key, value in point.items() if key.endswith("_bytes") and value}
        if "extra" in point:
            detail["extra"] = point["extra"]
        message = {"type": "event", "t": point["unix_seconds"], "name": _short(point["event"]), "step": point["step"]}
        self._session.send(dict(message, detail=detail))
        return point

    def keep(self, event: str, detail: Any) -> None:
        """Adds a point that is not sent."""
        self.points.append(dict(self._snapshots.read(event), detail=detail))

    def text(self) -> str:
        """A table for a console."""
        rows = [["elapsed", "step", "event", "allocated", "peak", "reserved", "host"]]
        for point in list(self.points):
            keys = ("allocated_bytes", "allocated_peak_bytes", "reserved_bytes", "host_rss_bytes")
            rows.append(["%.3f s" % point["elapsed_seconds"], str(point["step"]), point["event"][:40]])
            rows[-1] += [_size(point.get(key)) for key in keys]
        return _table(rows)

    def summary(self) -> JSON:
        """What `Monitor.timeline_summary` returns."""
        points = list(self.points)
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
            "growth": self._snapshots.growth(points[0], points[-1]),
            "events": {name: {"count": len(all), "mean_bytes": sum(all) / len(all)} for name, all in by_event.items()},
        }

    def report(self, rank: int, phases: Dict[str, JSON]) -> str:
        """What `Monitor.report` returns."""
        now = self._snapshots.read("now")
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
        summary = self.summary()
        if summary:
            lines += ["", self.text(), ""]
            peak, grown = summary["peak"], summary["growth"].get(summary["of"])
            if peak is not None:
                lines.append("Most at `%s`, step %d: %s" % (peak["event"], peak["step"], _size(peak[summary["of"]])))
            if grown is not None:
                lines.append("From the first point to the last: %s%s" % ("+" if grown >= 0 else "", _size(grown)))
        return "\n".join(lines)
