"""The steps of a process: their totals, and the message of each."""

from __future__ import annotations

from typing import Any, Callable, List, Optional, Set, Tuple

from ._base import _clock, _guarded, _now, _number, _real
from ._identity import _Identity
from ._session import _Session


class _Steps:
    """Counts steps, and sends them no more often than every `min_interval` seconds.

    `wanted` are the steps that are sent, as in `Monitor`.
    """

    def __init__(self, session: _Session, identity: _Identity, wanted: Any, min_interval: float) -> None:
        self._session, self._identity = session, identity
        self._wanted: Optional[Tuple[Set[int], List[Tuple[int, int]]]] = _wanted_steps(wanted)
        self._min_interval = min_interval
        self.reset()

    def reset(self) -> None:
        self.last = 0
        self.tokens: Optional[int] = None
        self.samples: Optional[int] = None
        # What the line of the last step that is wanted says; None before it.
        self._said: Optional[Tuple[Any, ...]] = None
        self._skipped = self._nan = self._updates = 0
        self._ended: Optional[float] = None
        self._sent = float("-inf")
        self._held = False
        # Tokens, or samples, of the largest micro-batch.
        self.largest_batch: Optional[int] = None
        # Batches that the first pass over the data has still to give, where they are known.
        self.first_pass_left: Optional[Callable[[], Optional[int]]] = None

    def wants(self, n: int) -> bool:
        """Whether this step is sent and recorded."""
        if self._wanted is None:
            return True
        single, ranges = self._wanted
        return n in single or any(first <= n <= last for first, last in ranges)

    def add(
        self, n: Any, tokens: Any, samples: Any, loss: Any, rate: Any, grad_norm: Any, seconds: Any, skipped: Any
    ) -> int:
        """Adds a step, with the arguments of `Monitor.step`; returns its number."""
        now = _clock()
        self.last = number = self.last + 1 if n is None else int(n)
        if tokens is not None and (tokens := _number(tokens)) is not None:
            self.tokens = (self.tokens or 0) + int(tokens)
        if samples is not None and (samples := _number(samples)) is not None:
            self.samples = (self.samples or 0) + int(samples)
        if seconds is None and self._ended is not None:
            seconds = now - self._ended
        self._ended = now
        if skipped:
            self._skipped += 1
        if loss is not None or grad_norm is not None:
            loss, grad_norm = _number(loss), _number(grad_norm)
            if not all(each is None or each - each == 0.0 for each in (loss, grad_norm)):
                self._nan += 1
        if self._wanted is None or self.wants(number):
            # It is written when it is sent: a step that is held costs no text.
            self._said = _now(), number, seconds, self.tokens, self.samples, loss, _number(rate), grad_norm, self._skipped, self._nan
            self._held = now - self._sent < self._min_interval
            if not self._held:
                self._sent = now
                self._session.send_line(self.line)
                # The process group may be created in the first step.
                if self._updates < 2:
                    self._updates += 1
                    self._identity.update()
        return number

    @property
    def line(self) -> bytes:
        """The message of the last step that is wanted; empty before it."""
        if self._said is None:
            return b""
        at, number, seconds, tokens, samples, loss, rate, grad_norm, skipped, nan = self._said
        line = '{"type":"step","t":%.6f,"step":%d' % (at, number)
        if seconds is not None:
            line += ',"seconds":%.9g' % seconds
        if tokens is not None:
            line += ',"tokens":%d' % tokens
        if samples is not None:
            line += ',"samples":%d' % samples
        if self.largest_batch is not None:
            line += ',"largest_batch":%d' % self.largest_batch
        left = None if self.first_pass_left is None else self.first_pass_left()
        if left is not None:
            line += ',"first_pass_left":%d' % left
        if loss is not None:
            line += ',"loss":' + _real(loss)
        # The protocol has no learning rate that is not finite.
        if rate is not None and rate - rate == 0.0:
            line += ',"learning_rate":%r' % rate
        if grad_norm is not None:
            line += ',"grad_norm":' + _real(grad_norm)
        line += ',"skipped":%d,"nan":%d,"dropped":%d}\n' % (skipped, nan, self._session.link.dropped)
        return line.encode()

    def skip(self, total: Optional[int] = None) -> None:
        """A step was skipped because gradients overflowed; or so many have been, in total."""
        self._skipped = self._skipped + 1 if total is None else max(self._skipped, total)

    def flush(self) -> None:
        """Sends the last step if it came too early to be sent."""
        if self._held:
            self._held = False
            self._session.send_line(self.line)


@_guarded()
def _wanted_steps(steps: Any) -> Optional[Tuple[Set[int], List[Tuple[int, int]]]]:
    """`[1, [5, 10]]`: 1, and 5 to 10 inclusive."""
    if steps is None:
        return None
    each = list(steps)
    single = {one for one in each if isinstance(one, int)}
    return single, [(int(first), int(last)) for first, last in (one for one in each if not isinstance(one, int))]
