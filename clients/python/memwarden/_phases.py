"""Phases of a step: how long each took, and the highest allocation in it."""

from __future__ import annotations

import functools
from typing import Any, Callable, Dict, List, Optional, Tuple

from ._base import JSON, MOST_PHASES, Function, _clock, _encode, _hide, _now, _text
from ._messages import _Messages
from ._process import _allocated


class _Phase:
    """`with monitor.phase("forward"):`, or `@monitor.phase("forward")`."""

    def __init__(self, monitor: Any, name: str, snapshots: bool = False) -> None:
        self._monitor, self._name, self._snapshots = monitor, _text(name), snapshots
        self._begun: List[Any] = []

    def __enter__(self) -> "_Phase":
        if self._snapshots:
            self._monitor.memory_snapshot(self._name + ":begin")
        self._begun.append(self._monitor._phase_begins(self._name))
        return self

    def __exit__(self, *_: Any) -> None:
        self._monitor._phase_ends(self._name, self._begun.pop() if self._begun else None)
        if self._snapshots:
            self._monitor.memory_snapshot(self._name + ":end")

    def __call__(self, function: Function) -> Function:
        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            with _Phase(self._monitor, self._name, self._snapshots):
                return function(*args, **kwargs)

        return call  # type: ignore[return-value]


class _Total:
    """The state of a phase."""

    __slots__ = ("seconds", "count", "peak", "open_since", "changed", "reported_open")

    def __init__(self) -> None:
        self.seconds, self.count = 0.0, 0
        self.peak: Optional[int] = None
        self.open_since: Optional[float] = None
        self.changed = self.reported_open = False


class _Phases(_Messages):
    """The part of a monitor that measures phases."""

    _phases: Dict[str, _Total]
    _phase_memory: bool
    _probes: int

    def phase(self, name: str) -> _Phase:
        """A context manager, and a decorator, for a part of the step: `forward`, `backward`, `optimizer`, `loader`.

        The time is the host's: work that a GPU does later counts where the host waits for it.
        """
        return _Phase(self, name)

    def profile_stage(self, name: str, function: Optional[Callable[..., Any]] = None, *args: Any, **kwargs: Any) -> Any:
        """A phase with snapshots `NAME:begin` and `NAME:end` around it, to be compared.

        With a function, calls it as such a stage and gives what it gives.
        """
        stage = _Phase(self, name, snapshots=True)
        if function is None:
            return stage
        with stage:
            return function(*args, **kwargs)

    def _total(self, name: str) -> Optional[_Total]:
        found = self._phases.get(name)
        if found is None and len(self._phases) < MOST_PHASES:
            found = self._phases.setdefault(name, _Total())
        return found

    def _probe(self) -> Optional[Tuple[int, int]]:
        """The allocator's values, for the first phases and then for every tenth."""
        if not self._phase_memory:
            return None
        self._probes += 1
        return _allocated() if self._probes < 256 or self._probes % 10 == 0 else None

    def _phase_begins(self, name: str) -> Any:
        if self._off:
            return None
        try:
            if not self._ready and not self._stopped:
                self.start()
            total = self._total(name)
            if total is None:
                return None
            before = self._probe()
            total.open_since = now = _clock()
            return now, before
        except Exception as error:
            _hide(error, "phase")

    def _phase_ends(self, name: str, begun: Any) -> None:
        if begun is None or self._off:
            return
        try:
            total = self._phases.get(name)
            if total is None:
                return
            now = _clock()
            total.seconds += now - begun[0]
            total.count += 1
            total.changed, total.open_since = True, None
            if begun[1] is not None:
                after = _allocated()
                if after is not None:
                    # The job's own peaks are not reset: a peak that rose meanwhile was reached in this phase.
                    highest = after[1] if after[1] > begun[1][1] else max(after[0], begun[1][0])
                    total.peak = max(total.peak or 0, highest)
        except Exception as error:
            _hide(error, "phase")

    def _phase_line(self, name: str, total: _Total) -> bytes:
        message: JSON = {
            "type": "phase",
            "t": _now(),
            "name": name.encode("utf-8", "replace")[:64].decode("utf-8", "ignore"),
            "state": "end",
            "seconds": total.seconds,
            "count": total.count,
        }
        if total.peak is not None:
            message["allocated_peak"] = total.peak
        return _encode(message)

    def phases(self) -> Dict[str, JSON]:
        """Seconds, count and highest allocation of every phase so far."""
        return {
            name: {"seconds": total.seconds, "count": total.count, "allocated_peak_bytes": total.peak}
            for name, total in list(self._phases.items())
        }

    def _phase_lines(self) -> List[bytes]:
        return [self._phase_line(name, total) for name, total in list(self._phases.items()) if total.count]

    def _say_open_phases(self) -> None:
        """A long phase is reported while it is open."""
        now = _clock()
        for name, total in list(self._phases.items()):
            since = total.open_since
            if since is not None and now - since > 0.5 and not total.reported_open:
                total.reported_open = True
                self._send({"type": "phase", "t": _now() - (now - since), "name": name[:16], "state": "begin"})

    def monitor_function(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Calls the function within a stage of its name; returns its result and raises its exceptions."""
        with self.profile_stage(getattr(function, "__name__", "function")):
            return function(*args, **kwargs)
