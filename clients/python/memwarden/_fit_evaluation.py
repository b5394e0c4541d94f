"""Evaluations: what they keep of each batch, and what they took."""

from __future__ import annotations

from typing import Dict, Optional, Set, Tuple

from ._base import _size
from ._fit_first_step import FirstStep
from ._fit_memory import Memory, Place, highest_since
from ._fit_plan import Plan
from ._fit_predictions import SAME, Predictions
from ._process import _host_memory_since_reset, _host_now, _take_host_peak


class Evaluations:
    """Follows the micro-batches of evaluations."""

    def __init__(self, plan: Plan, predictions: Predictions, first_step: FirstStep, memory: Memory) -> None:
        self._plan, self._predictions, self._first_step, self._memory = plan, predictions, first_step, memory
        # Micro-batches of the current evaluation; the batches of its loader, and those that it had given when it began; what
        # was allocated before it, with the highest, and after the first one.
        self._batches = self._ended = 0
        self._whole: Optional[Tuple[int, int]] = None
        self._begun: Dict[Place, Tuple[int, int]] = {}
        self._kept: Dict[Place, int] = {}
        # Where an evaluation took no more than what was the highest before.
        self.within: Set[Place] = set()

    def begins(self) -> None:
        """Before a micro-batch of an evaluation goes through the model."""
        self._batches += 1
        batch = self._batches
        # At the second batch, the first one's output is what an evaluation keeps of each.
        if batch & (batch - 1):
            return
        if batch == 1:
            if not self._first_step.places:
                # Lightning tries an evaluation before training.
                self._first_step.predict(False)
            self._kept.clear()
            self._whole = self._plan.batches()
            if None in self._first_step.places:
                _take_host_peak()
        for place in self._first_step.places:
            now = self._memory.now(place)
            if now is None:
                continue
            if batch == 1:
                self._begun[place] = now
            elif batch == 2:
                self._kept[place] = now[0]
            else:
                self._predict(place, now[0], batch)

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
        if not self._batches:
            return
        # Lightning tries some batches of an evaluation before training.
        whole = self._whole is None or self._batches >= self._whole[0]
        self._batches = 0
        self._ended += 1
        for place in self._first_step.places:
            peak, begun = self._peak(place), self._begun.pop(place, None)
            message = self._predictions.of("evaluation", place)
            if peak is None:
                # The evaluation took no more than what was the highest before.
                if message.get("measured") is None and whole and begun is not None:
                    self.within.add(place)
                    basis = "no more than the highest memory before it"
                    self._predictions.state("evaluation", place, begun[1], basis=basis)
                continue
            if not whole and peak <= message.get("peak", 0):
                continue
            known = max(peak, int(message.get("measured") or 0))
            basis = "the highest of %d evaluations" % self._ended
            self._predictions.state("evaluation", place, known, measured=known, basis=basis)
