"""What grows inside Python, for a process whose memory grows: types, tensors with a graph, figures, lines.

The thread of the monitor counts objects when the memory has grown by GROWN bytes, at most every APART seconds (at first SOON), and compares
the count with the one before. It gives up the interpreter after each slice of objects, and never counts again where one
call of the garbage collector has taken LONGEST_CALL seconds.
"""

from __future__ import annotations

import collections
import gc
import itertools
import os
import sys
import time
import types
from typing import Any, Counter, Dict, List, Optional, Set, Tuple

from ._base import JSON, _clock, _dtype, _now, _short
from ._process import _allocated, _read
from ._session import _Session

GROWN = 32 << 20
# Seconds between two counts; between the first ones, so that a leak of 2 MiB a second is named in its first minute.
APART = 60.0
SOON, FIRST_COUNTS = 20.0, 4
# Objects of one slice, which take about a millisecond, and the seconds between two slices.
SLICE = 20000
PAUSE = 0.0005
LONGEST_CALL = 0.1
# One of so many objects is asked for its size. Elements of containers that are looked at for arrays and byte strings, which the
# garbage collector does not know, and of one container; the bytes from which a byte string counts.
SIZED, ELEMENTS, OF_ONE, LEAST_STRING = 64, 500000, 4096, 1024
# Share of the growth below which what Python objects have grown by is not the reason.
OF_PYTHON = 0.25
# Items of a message for each kind.
MOST_ITEMS = 6
# Growth that is worth an item: objects, bytes of a line, and bytes of tensors of one shape, of which few may be large.
LEAST_OBJECTS, LEAST_BYTES, LEAST_TENSOR_BYTES = 100, 1 << 20, GROWN // 2

_PAGE = os.sysconf("SC_PAGE_SIZE")
# Py_TPFLAGS_HEAPTYPE: the types of classes that are written in Python are among these.
_HEAP_TYPE = 1 << 9
# Types whose objects may refer to any number of others, or are no data.
_OPAQUE = (type, list, dict, tuple, set, frozenset, collections.deque)


class _Evidence:
    """Watches the memory of this process."""

    def __init__(self, session: _Session) -> None:
        self._session = session
        self._off = os.environ.get("MEMWARDEN_EVIDENCE", "1") in ("", "0")
        self.reset()

    def reset(self) -> None:
        self._size: Optional[int] = None
        self._last = float("-inf")
        self._many = 0
        self._counts: Dict[str, Dict[str, int]] = {}
        # Bytes of what was counted, by its kind and its name.
        self._bytes: Dict[Tuple[str, str], int] = {}
        # Whether the last count saw all that it looks for.
        self._whole = True
        # Shapes of parameters.
        self._parameters: Set[str] = set()
        # Seconds that the longest part took without giving up the interpreter.
        self.stall = 0.0

    def watch(self) -> None:
        """Once a second."""
        now, size = _clock(), _memory()
        if self._off or size is None:
            return
        if self._size is None:
            self._size = size
        apart = min(SOON, APART) if self._many < FIRST_COUNTS else APART
        if size - self._size < GROWN or now - self._last < apart:
            return
        self._many += 1
        grown, seconds, before, bytes_before = size - self._size, now - self._last, self._counts, self._bytes
        self._size, self._last = size, now
        self._counts = counts = self.count()
        items = _grown((before, bytes_before), (counts, self._bytes), self._parameters) if before else []
        counted = sum(max(0, own - bytes_before.get(key, 0)) for key, own in self._bytes.items())
        # No items: what has grown is no Python object, which is the answer for native code.
        if items or before and self._whole and counted < OF_PYTHON * grown:
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
        kinds: Counter[type] = collections.Counter()
        tensors: Dict[str, Dict[str, int]] = {"tensor with grad_fn": {}, "tensor": {}}
        # Gradients and the optimizer's state come and go in the shapes of parameters: their number counts, their size does not.
        self._parameters, self._bytes = set(), {}
        sampled: Dict[type, Tuple[int, int]] = {}
        inner = _Inner()
        while objects:
            begun = _clock()
            part = objects[-SLICE:]
            del objects[-SLICE:]
            kinds.update(map(type, part))
            for each in part[::SIZED]:
                _sample(each, sampled)
            inner.look(part)
            if tensor is not None:
                for each in part:
                    if type(each) is tensor or type(each).__name__ == "Parameter":
                        self._count_tensor(each, tensors, type(each) is tensor)
                each = None
            del part
            self._note(begun)
            time.sleep(PAUSE)
        self._whole = inner.whole
        for kind, (many, size) in sampled.items():
            self._bytes["type", _name(kind)] = kinds[kind] * size // many
        found = {"type": {_name(kind): many for kind, many in kinds.items()}}
        for (what, name), (many, size) in inner.found.items():
            found.setdefault(what, {})[name] = many
            self._bytes[what, name] = size
        found.update((what, same) for what, same in tensors.items() if same)
        plots = sys.modules.get("matplotlib.pyplot")
        if plots is not None:
            found["open figure"] = {"matplotlib": len(plots.get_fignums())}
        tracing = sys.modules.get("tracemalloc")
        if tracing is not None and tracing.is_tracing():
            found["line"] = _lines(tracing)
        return found

    def _count_tensor(self, each: Any, tensors: Dict[str, Dict[str, int]], counts: bool) -> None:
        """Counts a tensor; of a parameter, keeps the shape only."""
        try:
            name = "%s%s" % (_dtype(each.dtype), list(each.shape))
            size = each.element_size() * each.nelement()
        except Exception:
            return  # Some layouts have no shape, such as nested tensors.
        if not counts:
            return self._parameters.add(name)
        what = "tensor" if each.grad_fn is None else "tensor with grad_fn"
        tensors[what][name] = tensors[what].get(name, 0) + 1
        self._bytes[what, name] = self._bytes.get((what, name), 0) + size

    def _note(self, begun: float, most: Optional[float] = None) -> None:
        taken = _clock() - begun
        self.stall = max(self.stall, taken)
        if most is not None and taken > most:
            self._off = True


def _sample(each: Any, sampled: Dict[type, Tuple[int, int]]) -> None:
    """Adds the size of an object to those of its type, unless the type computes it in Python; without what it refers to."""
    kind = type(each)
    if type(kind.__sizeof__) is types.MethodDescriptorType:
        many, size = sampled.get(kind, (0, 0))
        sampled[kind] = many + 1, size + sys.getsizeof(each)


class _Inner:
    """Arrays of NumPy and byte strings: the garbage collector knows only the containers that refer to them."""

    def __init__(self) -> None:
        numpy = sys.modules.get("numpy")
        self._array = getattr(numpy, "ndarray", None)
        torch = sys.modules.get("torch")
        # Their memory is counted by shape.
        self._opaque = {getattr(torch, "Tensor", None), getattr(getattr(torch, "nn", None), "Parameter", None)}
        self._left = ELEMENTS
        self._seen: Set[int] = set()
        # By kind and name: how many, and their bytes.
        self.found: Dict[Tuple[str, str], Tuple[int, int]] = {}

    @property
    def whole(self) -> bool:
        """Whether no limit was reached."""
        return self._left > 0 and len(self._seen) < ELEMENTS

    def look(self, containers: List[Any]) -> None:
        looked = 0
        # With dictionaries and tuples that refer only to such objects, which the garbage collector does not know either.
        untracked: List[Any] = []
        for each in itertools.chain(containers, untracked):
            if self._left <= 0:
                return
            kind = type(each)
            if kind is list or kind is dict or kind is tuple or kind is collections.deque:
                elements: Any = each.values() if kind is dict else each
            elif kind.__flags__ & _HEAP_TYPE and kind not in self._opaque and not issubclass(kind, _OPAQUE):
                # The attributes of an object: since Python 3.11 no dictionary holds them, and asking for one creates it.
                elements = gc.get_referents(each)
            else:
                continue
            many = min(len(elements), OF_ONE * 64)
            # Of a large container one element of so many stands for all.
            apart = many // OF_ONE + 1
            try:
                values = list(itertools.islice(elements, 0, many, apart))
            except RuntimeError:
                continue  # Another thread changes it.
            self._left -= len(values)
            looked += len(values)
            if looked > SLICE:
                looked = 0
                time.sleep(PAUSE)
            for value in values:
                kind = type(value)
                if kind is bytes or kind is bytearray:
                    if len(value) >= LEAST_STRING:
                        self._add(value, "byte string", kind.__name__, len(value), apart)
                elif kind is dict or kind is tuple:
                    if apart == 1 and not gc.is_tracked(value):
                        untracked.append(value)
                elif kind is self._array and value.base is None:
                    name = "%s%s" % (_dtype(value.dtype), list(value.shape))
                    self._add(value, "array", name, value.nbytes, apart)

    def _add(self, value: Any, what: str, name: str, size: int, times: int) -> None:
        if id(value) in self._seen or len(self._seen) >= ELEMENTS or len(self.found) >= ELEMENTS // 100:
            return
        self._seen.add(id(value))
        many, known = self.found.get((what, name), (0, 0))
        self.found[what, name] = many + times, known + size * times


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


_Counts = Dict[str, Dict[str, int]]
_Bytes = Dict[Tuple[str, str], int]
# Kinds of which a few can be large.
_LARGE = ("tensor", "tensor with grad_fn", "array", "byte string")


def _grown(before: Tuple[_Counts, _Bytes], now: Tuple[_Counts, _Bytes], parameters: Set[str]) -> List[JSON]:
    """What has grown most of each kind: by its bytes where a few can be large, otherwise by its number."""
    items: List[JSON] = []
    for what, counts in now[0].items():
        known = before[0].get(what, {})
        least = {"line": LEAST_BYTES, "open figure": 2}.get(what, LEAST_OBJECTS)
        grown: List[Tuple[int, int, str]] = []
        for name, many in counts.items():
            more = many - known.get(name, 0)
            more_bytes = now[1].get((what, name), 0) - before[1].get((what, name), 0)
            can_be_large = what in _LARGE and not (what == "tensor" and name in parameters)
            if more >= least or can_be_large and more > 0 and more_bytes >= LEAST_TENSOR_BYTES:
                grown.append((more_bytes if what in _LARGE else 0, more, name))
        for _, more, name in sorted(grown, reverse=True)[:MOST_ITEMS]:
            # Of a path, the end says more than the beginning.
            item: JSON = {"what": what, "name": _short(name[-200:]), "now": counts[name], "more": more}
            whole = now[1].get((what, name))
            if whole is not None:
                item["bytes"] = whole
                item["more_bytes"] = max(0, whole - before[1].get((what, name), 0))
            items.append(item)
    # What takes most of the growth is read first.
    items.sort(key=lambda item: -item.get("more_bytes", 0))
    return items
