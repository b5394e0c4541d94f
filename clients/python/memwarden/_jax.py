"""A loop of JAX, with any library of layers: a call after each step."""

from __future__ import annotations

import re
import sys
from typing import Any, Dict, Optional, Tuple

from ._base import JSON, _clock, _dtype, _guarded, _hiding, _now
from ._models import _group
from ._monitor import Monitor


class JaxCallback:
    """Reports the steps of a loop of JAX: `callback.step(n, parameters=state.params, tokens=ids.size, loss=loss)`.

    A value that is still being computed is not waited for: the loss of a step is reported with the next one then. The
    memory of the devices is read once a second, where the platform has figures of it.
    """

    def __init__(self, monitor: Optional[Monitor] = None) -> None:
        self.monitor = monitor or Monitor()
        self._analyzed = False
        self._loss: Any = None
        self._read = float("-inf")

    @_guarded()
    def step(
        self,
        n: int,
        *,
        parameters: Any = None,
        tokens: Optional[int] = None,
        samples: Optional[int] = None,
        loss: Any = None,
        learning_rate: Any = None,
        grad_norm: Any = None,
    ) -> None:
        """After each step: its number, and the tokens and samples of this process. `parameters` is a tree of arrays."""
        monitor = self.monitor
        if not monitor._session.ready:
            self._place()
            monitor.start()
        if parameters is not None and not self._analyzed:
            self._analyzed = True
            self._analyze(parameters)
        known, self._loss = (loss, None) if _is_ready(loss) else (self._loss, loss)
        monitor.step(
            n,
            tokens=tokens,
            samples=samples,
            loss=_value(known),
            learning_rate=_value(learning_rate),
            grad_norm=_value(grad_norm),
        )
        now = _clock()
        if now - self._read >= 1.0:
            self._read = now
            devices = _device_memory()
            if devices:
                monitor._session.send({"type": "mem", "t": _now(), "devices": devices})

    def _place(self) -> None:
        jax = sys.modules["jax"]
        if jax.process_count() > 1:
            self.monitor.describe(rank=jax.process_index(), world=jax.process_count())

    def _analyze(self, parameters: Any) -> None:
        leaves = sys.modules["jax"].tree_util.tree_flatten_with_path(parameters)[0]
        count = size = 0
        by_dtype: Dict[str, int] = {}
        by_group: Dict[str, int] = {}
        for path, leaf in leaves:
            name = ".".join(re.findall(r"\w+", str(path)))
            dtype, bytes_of_leaf = _dtype(leaf.dtype), int(leaf.size) * int(leaf.dtype.itemsize)
            count, size = count + int(leaf.size), size + bytes_of_leaf
            by_dtype[dtype] = by_dtype.get(dtype, 0) + bytes_of_leaf
            by_group[_group(name)] = by_group.get(_group(name), 0) + bytes_of_leaf
        identity = self.monitor._identity
        identity.params = {"type": "params", "parameters": count, "trainable": count, "parameter_bytes": size}
        identity.params.update(by_dtype=by_dtype, by_group=by_group)
        identity.shape({"kind": "jax", "parameters": count, "trainable": count})
        self.monitor._session.send(identity.params)


def _is_ready(value: Any) -> bool:
    return bool(value.is_ready()) if hasattr(value, "is_ready") else True


def _value(value: Any) -> Optional[float]:
    """A number; None for one that is still being computed."""
    return float(value) if value is not None and _is_ready(value) else None


_FIGURES: Tuple[Tuple[str, str], ...] = (
    ("allocated", "bytes_in_use"),
    ("allocated_peak", "peak_bytes_in_use"),
    ("reserved", "bytes_reserved"),
    ("reserved_peak", "peak_bytes_reserved"),
    ("largest_free", "largest_free_block_bytes"),
    ("total", "bytes_limit"),
)


def _device_memory() -> JSON:
    """The allocators of this process's devices: reads counters only. Without figures on a CPU."""
    found: JSON = {}
    for index, device in enumerate(sys.modules["jax"].local_devices()):
        stats: JSON = {}
        with _hiding("memory_stats"):
            stats = device.memory_stats() or {}
        figures = {name: int(stats[key]) for name, key in _FIGURES if key in stats}
        if figures:
            found[str(index)] = figures
    return found
