"""What grows inside Python, for a process whose memory grows: types, tensors with a graph, figures, lines.

The thread of the monitor counts objects when the memory has grown by GROWN bytes, at most every APART seconds, and compares
the count with the one before. It gives up the interpreter after each slice of objects, and never counts again where one
call of the garbage collector has taken LONGEST_CALL seconds.
"""

from __future__ import annotations

import collections
import gc
import os
import sys
import time
from typing import Any, Counter, Dict, List, Optional, Tuple

from ._base import JSON, _clock, _dtype, _now, _short
from ._process import _allocated, _read
from ._session import _Session

GROWN = 32 << 20
APART = 60.0
# Objects of one slice, which take about a millisecond, and the seconds between two slices.
SLICE = 20000
PAUSE = 0.0005
LONGEST_CALL = 0.1
# Items of a message for each kind.
MOST_ITEMS = 6
# Growth that is worth an item: objects, bytes of a line, and bytes of tensors of one shape, of which few may be large.
LEAST_OBJECTS, LEAST_BYTES, LEAST_TENSOR_BYTES = 100, 1 << 20, GROWN // 2

_PAGE = os.sysconf("SC_PAGE_SIZE")


class _Evidence:
    """Watches the memory of this process."""

    def __init__(self, session: _Session) -> None:
        self._session = session
        self._off = os.environ.get("MEMWARDEN_EVIDENCE", "1") in ("", "0")
        self.reset()

    def reset(self) -> None:
        self._size: Optional[int] = None
        self._last = float("-inf")
        self._counts: Dict[str, Dict[str, int]] = {}
        # Bytes of a tensor by type and shape.
        self._bytes: Dict[str, int] = {}
        # Seconds that the longest part took without giving up the interpreter.
        self.stall = 0.0

    def watch(self) -> None:
        """Once a second."""
        now, size = _clock(), _memory()
        if self._off or size is None:
            return
        if self._size is None:
            self._size = size
        if size - self._size < GROWN or now - self._last < APART:
            return
        seconds, before = now - self._last, self._counts
        self._size, self._last = size, now
        self._counts = counts = self.count()
        items = _grown(before, counts, self._bytes) if before else []
        if items:
            self._session.send({"type": "evidence", "t": _now(), "seconds": seconds, "items": items}, keep=True)

    def count(self) -> Dict[str, Dict[str, int]]:
        """What there is now: numbers of objects by type, tensors by shape, figures, bytes by line."""
        begun = _clock()
        objects = gc.get_objects()
        # The newest objects, such as the tensors of this step, come first: they are let go first.
        objects.reverse()
        self._note(begun, LONGEST_CALL)
        torch = sys.modules.get("torch")
        tensor = getattr(torch, "Tensor", None)
        types: Counter[type] = collections.Counter()
        tensors: Dict[str, Dict[str, int]] = {"tensor with grad_fn": {}, "tensor": {}}
        parameters: Dict[str, Dict[str, int]] = {"tensor with grad_fn": {}, "tensor": {}}
        self._bytes = {}
        while objects:
            begun = _clock()
            part = objects[-SLICE:]
            del objects[-SLICE:]
            types.update(map(type, part))
            if tensor is not None:
                for each in part:
                    if type(each) is tensor:
                        self._count_tensor(each, tensors)
                    elif type(each).__name__ == "Parameter":
                        self._count_tensor(each, parameters)
                each = None
            del part
            self._note(begun)
            time.sleep(PAUSE)
        # Gradients and the optimizer's state come and go in the shapes of parameters: their number counts, their size does not.
        for name in parameters["tensor"]:
            self._bytes[name] = 0
        found = {"type": {_name(kind): many for kind, many in types.items()}}
        found.update((what, same) for what, same in tensors.items() if same)
        plots = sys.modules.get("matplotlib.pyplot")
        if plots is not None:
            found["open figure"] = {"matplotlib": len(plots.get_fignums())}
        tracing = sys.modules.get("tracemalloc")
        if tracing is not None and tracing.is_tracing():
            found["line"] = _lines(tracing)
        return found

    def _count_tensor(self, each: Any, tensors: Dict[str, Dict[str, int]]) -> None:
        try:
            name = "%s%s" % (_dtype(each.dtype), list(each.shape))
            size = each.element_size() * each.nelement()
        except Exception:
            return  # Some layouts have no shape, such as nested tensors.
        same = tensors["tensor" if each.grad_fn is None else "tensor with grad_fn"]
        same[name] = same.get(name, 0) + 1
        self._bytes.setdefault(name, size)

    def _note(self, begun: float, most: Optional[float] = None) -> None:
        taken = _clock() - begun
        self.stall = max(self.stall, taken)
        if most is not None and taken > most:
            self._off = True


def _memory() -> Optional[int]:
    """Resident memory of this process, and what torch has allocated on the device."""
    fields = (_read("/proc/self/statm") or "").split()
    if len(fields) < 2:
        return None
    allocated = _allocated()
    return int(fields[1]) * _PAGE + (allocated[0] if allocated is not None else 0)


def _name(kind: type) -> str:
    return "%s.%s" % (kind.__module__, kind.__qualname__)


def _lines(tracing: Any) -> Dict[str, int]:
    statistics = tracing.take_snapshot().statistics("lineno")[:1000]
    return {"%s:%d" % (each.traceback[0].filename, each.traceback[0].lineno): each.size for each in statistics}


def _grown(
    before: Dict[str, Dict[str, int]], now: Dict[str, Dict[str, int]], sizes: Dict[str, int]
) -> List[JSON]:
    """What has grown most of each kind, with the bytes of a tensor by its name."""
    items: List[JSON] = []
    for what, counts in now.items():
        known = before.get(what, {})
        least = {"line": LEAST_BYTES, "open figure": 2}.get(what, LEAST_OBJECTS)
        grown: List[Tuple[int, str]] = []
        for name, many in counts.items():
            more = many - known.get(name, 0)
            is_large = what.startswith("tensor") and more * sizes.get(name, 0) >= LEAST_TENSOR_BYTES
            if more >= least or is_large:
                grown.append((more, name))
        for more, name in sorted(grown, reverse=True)[:MOST_ITEMS]:
            # Of a path, the end says more than the beginning.
            items.append({"what": what, "name": _short(name[-200:]), "now": counts[name], "more": more})
    return items
