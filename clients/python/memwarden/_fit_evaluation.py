"""Evaluations: what they keep of each batch, and what they took."""

from __future__ import annotations

from typing import Any, Callable, Dict, List, Mapping, NamedTuple, Optional, Set, Tuple

from ._base import _size
from ._fit_first_step import FirstStep
from ._fit_memory import Memory, Place, held_on, highest_since
from ._fit_plan import Plan
from ._fit_predictions import SAME, Predictions
from ._process import _bytes, _host_memory_since_reset, _host_now, _take_host_peak


class _Trial(NamedTuple):
    """What `batches` of an evaluation, which has `whole`, took before training.

    `each` bytes were kept of each; the highest was between `least` and `most` bytes above that and what was held before, and
    `peak` bytes where that is known.
    """

    batches: int
    whole: int
    each: float
    least: float
    most: float
    peak: Optional[int]


class Evaluations:
    """Follows the micro-batches of evaluations."""

    def __init__(self, plan: Plan, predictions: Predictions, first_step: FirstStep, memory: Memory) -> None:
        self._plan, self._predictions, self._first_step, self._memory = plan, predictions, first_step, memory
        # Micro-batches of the current evaluation; the batches of its loader, and those that it had given when it began; what
        # was allocated before it, with the highest, and after the first one.
        self.runs = self._ended = 0
        self._whole: Optional[Tuple[int, int]] = None
        self._begun: Dict[Place, Tuple[int, int]] = {}
        self._kept: Dict[Place, int] = {}
        # Of an evaluation that is tried: whether this is one; the batches of a whole one, if that is known; what was allocated after
        # each batch; what that tells.
        self._trying, self._count = False, 0
        self._after: Dict[Place, List[int]] = {}
        self.trials: Dict[Place, _Trial] = {}
        # Where an evaluation took no more than what was the highest before.
        self.within: Set[Place] = set()

    def begins(self, with_graph: bool) -> None:
        """Before a micro-batch of an evaluation goes through the model."""
        self.runs += 1
        batch = self.runs
        # At the second batch, the first one's output is what an evaluation keeps of each.
        if batch & (batch - 1):
            return
        if batch == 1:
            if not self._first_step.places:
                # Lightning tries an evaluation before training.
                self._first_step.predict(False)
            self._kept.clear()
            self._after.clear()
            self._whole = self._plan.evaluated()
            if None in self._first_step.places:
                _take_host_peak()
        for place in self._first_step.places:
            now = self._memory.now(place)
            if now is None:
                continue
            if batch == 1:
                self._begun[place] = now
                if self._whole is None and not self._predictions.of("evaluation", place):
                    basis = "how many batches it has is not known"
                    basis += "; without torch.no_grad() each takes what backward would need" if with_graph else ""
                    self._predictions.state("evaluation", place, None, basis=basis)
            elif batch == 2:
                self._kept[place] = now[0]
            else:
                self._predict(place, now[0], batch)

    def tried(self, count: int, passing: Any) -> None:
        """After a batch of an evaluation that Lightning tries before training. A whole one has `count` batches, 0 if that is not
        known; `passing` ends with this one."""
        self._trying, self._count = True, count
        for place in self._first_step.places if self.runs else ():
            now = self._memory.now(place)
            if now is not None:
                self._after.setdefault(place, []).append(now[0] - _bytes_on(place, passing, 4))

    def _learn(self, place: Place, begun: Tuple[int, int]) -> None:
        """From an evaluation that was tried."""
        after, second = self._after.get(place, []), self._kept.get(place)
        resident = _host_memory_since_reset()[1] or 0
        bounds = (resident, resident) if place is None else highest_since(place, begun)
        if len(after) < 2 or not self._count or second is None or bounds is None:
            return
        # The first batch allocates buffers of libraries for good, and outputs differ in size: the lesser of both counts.
        each = max(0.0, min((after[-1] - after[0]) / (len(after) - 1), second - begun[0]))
        held = begun[1 if place is None else 0]
        least, most = (max(0.0, highest - held - each * len(after)) for highest in bounds)
        self.trials[place] = _Trial(len(after), self._count, each, least, most, self._peak(place))

    def predict(self, held: Callable[[Place], Optional[int]]) -> None:
        """The first one, from a few batches that were tried, with what the process holds now."""
        for place, (batches, whole, each, least, most, peak) in list(self.trials.items()):
            now = held(place)
            if now is None:
                continue
            expected = now + least + each * whole
            p90 = expected + (most - least) + each * whole / (batches + 1)
            size = {"unit": "batches", "units": whole, "fixed": int(now + least), "per_unit": each}
            basis = "%s kept of each of %d batches, of which %d were tried" % (_size(each), whole, batches)
            measured = max(peak or 0, self._predictions.of("evaluation", place).get("measured") or 0) or None
            more = {"held": now, "measured": measured, "size": size, "basis": basis}
            self._predictions.state("evaluation", place, expected, p90=p90, **more)

    def _predict(self, place: Place, now: int, batch: int) -> None:
        """Within an evaluation: the outputs that it keeps, for all of its batches."""
        begun, loaded = self._kept.get(place), self._plan.batches()
        if begun is None or self._whole is None or loaded is None:
            return
        count, given = self._whole[0], loaded[1] - self._whole[1]
        # A model that generates is called several times for a batch, and what it keeps does not last.
        if given != batch - 1 or count <= batch:
            return
        each = max(0.0, (now - begun) / (batch - 2))
        resident = _host_now() if place is None else now
        message = self._predictions.of("evaluation", place)
        if resident is None or each * count <= SAME * resident and "kept of each" not in message.get("basis", ""):
            return
        known: Optional[int] = message.get("measured")
        expected = max(max(self._peak(place) or 0, resident) + each * (count - batch + 1), known or 0)
        basis = "%s kept of each of %d batches" % (_size(each), count)
        # The sizes of the outputs can differ.
        p90 = expected + each * (count - batch + 1) / batch
        size = {"unit": "batches", "units": count, "fixed": int(expected - each * count), "per_unit": each}
        self.trials.pop(place, None)
        self._predictions.state("evaluation", place, expected, p90=p90, measured=known, size=size, basis=basis)

    def _peak(self, place: Place) -> Optional[int]:
        """The highest memory since the evaluation began, where it rose above what was before."""
        if place is None:
            return _host_memory_since_reset()[1]
        begun = self._begun.get(place)
        least, most = (begun and highest_since(place, begun)) or (0, 1)
        return least if least == most else None

    def end(self) -> None:
        """Ends the current one, if there is one."""
        if not self.runs:
            return
        trying, self._trying = self._trying, False
        whole = not trying and (self._whole is None or self.runs >= self._whole[0])
        self.runs = 0
        self._ended += whole
        for place in self._first_step.places:
            begun = self._begun.get(place)
            if whole:
                self.trials.pop(place, None)
            elif trying and begun is not None:
                self._learn(place, begun)
            if place not in self.trials and not trying:
                self._measured(place, whole)
        self._begun.clear()
        self.predict(held_on)

    def _measured(self, place: Place, whole: bool) -> None:
        """An evaluation, or a part of it, has ended."""
        peak, begun, message = self._peak(place), self._begun.get(place), self._predictions.of("evaluation", place)
        if peak is None:
            # The evaluation took no more than what was the highest before.
            if message.get("measured") is None and whole and begun is not None:
                self.within.add(place)
                basis = "no more than the highest memory before it"
                self._predictions.state("evaluation", place, begun[1], basis=basis)
        elif whole or peak > message.get("peak", 0):
            known = max(peak, int(message.get("measured") or 0))
            basis = "the highest of %d evaluations" % self._ended if whole else "the highest of a few batches"
            self._predictions.state("evaluation", place, known, measured=known, basis=basis)


def _bytes_on(place: Place, value: Any, deep: int) -> int:
    """The tensors on a device, or on the host, in what the program passes on."""
    if hasattr(value, "element_size"):
        on_host = str(getattr(value.device, "type", value.device)) == "cpu"
        return _bytes(value) if place == (None if on_host else getattr(value.device, "index", None) or 0) else 0
    if isinstance(value, Mapping):
        value = list(value.values())
    return sum(_bytes_on(place, each, deep - 1) for each in value) if deep and isinstance(value, (list, tuple)) else 0
