"""The micro-batches of training: what they take, and the prediction of the largest step that is still to come."""

from __future__ import annotations

import time
from typing import Dict, List, Optional, Tuple

from ._base import JSON
from ._fit_first_step import FirstStep
from ._fit_memory import Memory, Place, held_on, highest_on
from ._fit_plan import Plan
from ._fit_predictions import Predictions
from ._fit_size import Batch, Footprint, predicted
from ._process import _take_host_peak
from ._steps import _Steps

# The first steps are all measured, for 0.3 ms each; after them one of so many, and each that is larger than those before.
MEASURED_FIRST, MEASURED_EVERY = 16, 128
# Sizes below which a step is far from them that is so many times larger than the largest.
FEW, FAR = 8, 2.0
# Seconds after which what is held between two steps is looked at, if no step is measured.
RESTED_AFTER = 1.0


class Batches:
    """Measures the first micro-batches, and some of the others."""

    def __init__(
        self, steps: _Steps, plan: Plan, predictions: Predictions, first_step: FirstStep, memory: Memory
    ) -> None:
        self._steps, self._plan, self._predictions = steps, plan, predictions
        steps.first_pass_left = plan.first_pass_left
        self._first_step, self._memory = first_step, memory
        self._footprints: Dict[Place, Footprint] = {}
        # Before the current micro-batch, and after its forward pass: allocated, and the highest (of the host: resident).
        self._begun: Dict[Place, Tuple[int, int]] = {}
        self._reached: Dict[Place, int] = {}
        # At the end of backward: the highest since then.
        self._highest: Dict[Place, int] = {}
        # Of this step: whether a micro-batch has begun, and ended, that is measured. Of the last one: whether what it
        # allocated for good is still to be found out.
        self._within_step = self._observed = self._unsettled = False
        self._largest: Optional[Batch] = None
        self.seen = self.steps_seen = 0
        # Whether the micro-batches of this step are measured, whatever their size.
        self._due = True
        # Batches that the loader had still to give when the last micro-batch was measured.
        self._left = 0
        self._batch: Optional[Batch] = None
        # Whether the current micro-batch is measured; whether that of the step of the optimizer was; whether there are
        # measurements that no prediction is from.
        self.measuring = self.pending = self.dirty = False
        # What was held between two steps.
        self.resting: Dict[Place, int] = {}
        self._rested = 0.0

    def places(self) -> List[Place]:
        """Where a save takes memory: on the host, and on the devices."""
        return [None, *(place for place in self._first_step.places if place is not None)]

    def begins(self, samples: int, length: Optional[int]) -> None:
        """Before the forward pass: in most steps there is nothing to do."""
        units, largest = samples * length if length else samples, self._largest
        larger = largest is None or units > largest.units
        measured = self._due or larger
        rested = not self._within_step and (measured or time.monotonic() > self._rested + RESTED_AFTER)
        if not (measured or rested or self.measuring or self._unsettled):
            return
        if self.measuring:
            self.observe()
        self._batch = batch = Batch(units, samples, length)
        if larger:
            self._largest, self._steps.largest_batch = batch, units
        if rested:
            self._rested = time.monotonic()
            held = ((place, held_on(place)) for place in self.places())
            self.resting = {place: now for place, now in held if now is not None}
            if None in self._footprints and None in self.resting:
                # Steps that are not measured can make malloc keep more.
                self.dirty = self._footprints[None].keeps(self.resting[None]) or self.dirty
        if measured or self._unsettled and not self._within_step:
            self._begin_measuring(measured)

    def _begin_measuring(self, measured: bool) -> None:
        if None in self._first_step.places and measured:
            _take_host_peak()  # That of loading the model, and of micro-batches that are not measured.
        for place in self._first_step.places:
            other, now = self._memory.other, self._memory.now(place)
            footprint = self._footprints.setdefault(place, Footprint())
            if now is None:
                continue
            if place is None and self.steps_seen == 1 and not self._within_step:
                footprint.read_code(self._memory.other - other)
            if not self._within_step:
                footprint.settle(now[0])
            if measured:
                self._begun[place] = now
        self.measuring, self._unsettled = measured, measured
        self._within_step = self._within_step or measured

    def forward_ends(self, output: object) -> None:
        """The activations are allocated."""
        if not self.measuring:
            return
        self._plan.output(output, self._batch)
        for place in self._begun:
            now = self._memory.now(place)
            if now is not None:
                self._reached[place] = now[0]

    def backward_ends(self) -> None:
        """There can be several for a micro-batch."""
        if self.measuring and self._reached:
            for place in self._begun:
                self._highest[place] = max(self._highest.get(place, 0), highest_on(place))

    def step_begins(self, first: bool) -> None:
        """Before a step of the optimizer; `first`: of this one."""
        if self.measuring or first:
            self.pending = True
            self.observe()

    def step_ends(self) -> bool:
        """After it; says whether its micro-batch was measured before it."""
        pending, self.pending = self.pending, False
        if self.measuring:
            # Forward and backward ran in its closure.
            self.observe(within=True)
        return pending

    def observe(self, within: bool = False) -> None:
        """The highest memory since the micro-batch began; `within`: the optimizer has stepped since it ended."""
        batch, self._batch = self._batch, None
        self.measuring = False
        highest, self._highest = self._highest, {}
        for place, (begun, before) in self._begun.items() if batch is not None else ():
            reached, footprint = self._reached.get(place), self._footprints[place]
            if batch is None or reached is None:
                continue
            peak = highest.get(place, 0)
            if not (within and peak):
                peak = max(peak, highest_on(place))
            footprint.forward(batch, begun, reached, not self._observed)
            footprint.base, footprint.kept = begun, (before - begun if place is None else 0)
            self.dirty = True
            count, given = self._plan.batches(training=True) or (0, 0)
            self._left = max(0, count - given)
            # The allocator's peak is not reset, as the program may read it: it is this micro-batch's only if it rose.
            # The resident memory is noisy.
            if peak > before + (before >> 7 if place is None else 0):
                footprint.rose(batch, reached, before if place is None else begun, begun, peak)
                # As one with the whole state: it is allocated after the first step only.
                still = self._first_step.needs.get(place)
                footprint.peaks.add(batch, peak + (still.state if still is not None else 0))
        self._observed = True
        self._begun.clear()
        self._reached.clear()

    def ended(self) -> bool:
        """After each step, says whether it was the first; of programs without hooks of the optimizer, the measurement ends here."""
        self.steps_seen = seen = self.steps_seen + 1
        self._due = seen < MEASURED_FIRST or seen % MEASURED_EVERY == 0
        if self.measuring and not self._first_step.has_stepped:
            self.observe()
        self._within_step = self._observed = False
        return seen == 1

    def predict(self) -> None:
        """The peak of the largest step that is still to come."""
        if self._largest is None:
            return
        largest, source, longer, so_far = self._plan.largest(self._largest, self.seen)
        for place in self._first_step.places:
            footprint, still = self._footprints.get(place, Footprint()), self._first_step.needs.get(place)
            state = still.state if still is not None else 0.0
            # The longest batch comes within the epoch: in the middle of it, on average.
            grown = footprint.growth(self._left, largest)
            curve = footprint.curve(state + grown / 2)
            exact = footprint.peaks.seen(largest)
            if curve is None and exact is None:
                self._predictions.state("step", place, None, basis="no step was the highest memory of the process")
                continue
            size: Optional[JSON] = None
            if curve is None:
                p50 = p90 = (exact or 0.0) + grown / 2
            else:
                # A line through a few sizes that are near each other says little of one that is far from them.
                few = len(footprint.activations) < FEW and largest.units > FAR * self._largest.units and not curve.per_square
                early = few or not footprint.corrected
                p50, p90 = predicted(curve, largest, None if exact is None else exact + grown / 2, early)
                p90 += longer * (curve.at(largest) - curve.fixed)
                size = {"unit": "tokens" if largest.length else "samples", "units": largest.units}
                size.update((key, getattr(largest, key)) for key in ("samples", "length") if getattr(largest, key))
                size.update(fixed=int(curve.fixed), per_unit=curve.per_unit, per_square=curve.per_square)
            # A step of the optimizer can be higher than its batch: with the temporary tensors.
            stepped = self._predictions.of("optimizer", place).get("measured") or 0
            p90 += footprint.spread + grown / 2 + self._first_step.later.get(place, 0)
            about: JSON = {"exact": exact is not None and p90 == p50, "measured": footprint.peaks.most(), "size": size}
            about["so_far"] = so_far
            measured = max(len(footprint.peaks), len(footprint.activations))
            about["basis"] = "%d size%s of batches measured; %s" % (measured, "" if measured == 1 else "s", source)
            if self._first_step.unknown:
                about.update(least=True, basis="%s; %s" % (self._first_step.unknown, about["basis"]))
            about["due_step"] = self._plan.due_step(self._steps.last)
            self._predictions.state("step", place, max(p50, stepped), p90=max(p90, stepped), **about)
