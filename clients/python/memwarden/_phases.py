"""Phases of a step: how long each took, and the highest allocation in it."""

from __future__ import annotations

import contextlib
import sys
from typing import Any, Callable, Dict, List, Optional, Sequence, Tuple

from ._base import JSON, LONGEST_NAME, MOST_PHASES, _clock, _encode, _hide, _now, _short, _text
from ._process import _allocated
from ._session import _Session


class _Total:
    """The state of a phase."""

    __slots__ = ("seconds", "count", "lean", "peak", "open_since", "changed", "reported_open")

    def __init__(self) -> None:
        # `lean`: how often it is only timed, until the allocator is read again.
        self.seconds, self.count, self.lean = 0.0, 0, 0
        self.peak: Optional[int] = None
        self.open_since: Optional[float] = None
        self.changed = self.reported_open = False

    def line(self, name: str) -> bytes:
        message: JSON = {"type": "phase", "t": _now(), "state": "end", "seconds": self.seconds, "count": self.count}
        message["name"] = _short(name, LONGEST_NAME)
        if self.peak is not None:
            message["allocated_peak"] = self.peak
        return _encode(message)


class _Phases:
    """Measures phases. With `memory`, reads the allocator at the beginning and at the end of a phase."""

    def __init__(self, session: _Session, memory: bool) -> None:
        self._session, self._memory = session, memory
        # The phases that start the monitor; the others are ignored before. None: every phase does.
        self.starting: Optional[Sequence[str]] = None
        self.reset()

    def reset(self) -> None:
        self.totals: Dict[str, _Total] = {}
        # The phase that the last exception left, and the identity of that exception.
        self._left: Tuple[Optional[str], int] = None, 0

    def begin(self, name: str) -> Any:
        """What `end` needs; None where the phase is not measured. It is called several times a step, and does little in most calls."""
        total = self.totals.get(name)
        if total is not None and total.lean > 0:
            total.lean -= 1
            total.open_since = now = _clock()
            return now, None
        if self._session.off:
            return None
        try:
            if not self._session.ready:
                if self.starting is not None and name not in self.starting:
                    return None
                self._session.ensure_started()
            if total is None:
                if len(self.totals) >= MOST_PHASES:
                    return None
                total = self.totals.setdefault(name, _Total())
            before = None
            if self._memory:
                # The allocator's values, for the first phases and then for every tenth.
                before = _allocated()
            total.lean = 9 if total.count >= 64 else 0
            total.open_since = now = _clock()
            if not total.count:
                # The first step may be the end of the process.
                self._send_open(name, total, now)
            return now, before
        except Exception as error:
            _hide(error, "phase")

    def end(self, name: str, begun: Any, less: float = 0.0) -> None:
        """Ends what `begin` began; `less` are seconds in it that do not count."""
        if begun is None:
            return
        try:
            now, total = _clock(), self.totals.get(name)
            if total is None or self._session.off:
                return
            taken = now - begun[0] - less
            if taken > 0.0:
                total.seconds += taken
            total.count += 1
            total.changed, total.open_since = True, None
            raised = sys.exc_info()[1]
            if raised is not None and self._left[1] != id(raised):
                self._left = name, id(raised)
            if total.count == 1:
                self._send(name, total)
            if begun[1] is not None:
                after = _allocated()
                if after is not None:
                    # The program's own peaks are not reset: a peak that rose meanwhile was reached in this phase.
                    highest = after[1] if after[1] > begun[1][1] else max(after[0], begun[1][0])
                    total.peak = max(total.peak or 0, highest)
        except Exception as error:
            _hide(error, "phase")

    def lines(self) -> List[bytes]:
        """A message for each phase that has ended."""
        return [total.line(name) for name, total in list(self.totals.items()) if total.count]

    def flush(self) -> None:
        """Sends the totals that have changed."""
        for name, total in list(self.totals.items()):
            if total.changed:
                self._send(name, total)

    def _send(self, name: str, total: _Total) -> None:
        total.changed = total.reported_open = False
        self._session.send_line(total.line(name))

    def send_open(self) -> None:
        """A long phase is reported while it is open."""
        now = _clock()
        for name, total in list(self.totals.items()):
            since = total.open_since
            if since is not None and now - since > 0.5 and not total.reported_open:
                self._send_open(name, total, since)

    def _send_open(self, name: str, total: _Total, since: float) -> None:
        total.reported_open = True
        message: JSON = {"type": "phase", "t": _now() - (_clock() - since), "state": "begin"}
        self._session.send(dict(message, name=_short(name, LONGEST_NAME)))

    def ended_in(self, raised: Optional[BaseException]) -> Optional[str]:
        """The phase in which the process ends by this exception: the one that it left, or else the innermost open one."""
        name, identity = self._left
        if raised is not None and identity == id(raised):
            return name
        begun = [(total.open_since, name) for name, total in self.totals.items() if total.open_since is not None]
        return max(begun)[1] if begun else None


class _Phase(contextlib.ContextDecorator):
    """`with monitor.phase("forward"):`, or `@monitor.phase("forward")`.

    `snapshot` is called with `NAME:begin` and `NAME:end`.
    """

    def __init__(self, phases: _Phases, name: str, snapshot: Optional[Callable[[str], Any]] = None) -> None:
        self._phases, self._name, self._snapshot = phases, _text(name), snapshot
        self._begun: List[Any] = []

    def __enter__(self) -> "_Phase":
        if self._snapshot is not None:
            self._snapshot(self._name + ":begin")
        self._begun.append(self._phases.begin(self._name))
        return self

    def __exit__(self, *_: Any) -> None:
        self._phases.end(self._name, self._begun.pop() if self._begun else None)
        if self._snapshot is not None:
            self._snapshot(self._name + ":end")

    def _recreate_cm(self) -> "_Phase":
        # As a decorator, each call has its own: threads can be within one at a time.
        return _Phase(self._phases, self._name, self._snapshot)
