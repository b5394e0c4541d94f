"""The first step of the optimizers: what it allocates, predicted before it, and what it took."""

from __future__ import annotations

import weakref
from typing import Any, Dict, List, Tuple

from ._base import JSON, _short, _size
from ._fit_memory import Mark, Place, devices_in_use, held_on, highest_since, mark
from ._fit_optimizer import Needs, held_by, places_of, try_foresee
from ._fit_predictions import SAME, Predictions
from ._process import _host_allocated
from ._steps import _Steps

# The first steps of optimizers that are foreseen in a process.
MOST_TRIES = 8
# What is said of an optimizer whose state grows with its steps.
GROWS = "grows with its history"
# The share of what malloc keeps that the first step of the optimizer does not use: the median, and a value above all, of 6
# random programs. Its tensors are as large as the gradients, and fit more of what is free than those of a longer batch.
STATE_UNUSED, STATE_UNUSED_P90 = 0.5, 0.85


class FirstStep:
    """`places` is where the model computes, and the host where all parameters are; `needs` is what is still to come.

    The parameters of an optimizer can be on the host while the model computes on devices (offloading).
    """

    def __init__(self, steps: _Steps, predictions: Predictions) -> None:
        self._steps, self._predictions = steps, predictions
        self.optimizers: "weakref.WeakSet[Any]" = weakref.WeakSet()
        # Those that have made their state, with the number of their groups then; -1: parameters were unfrozen since.
        self._stepped: "weakref.WeakKeyDictionary[Any, int]" = weakref.WeakKeyDictionary()
        self._marks: Dict[Place, Mark] = {}
        self.places: List[Place] = []
        self.needs: Dict[Place, Needs] = {}
        # Of the same, the most parameters that were trained: programs with two optimizers freeze those of one for a while.
        self._trained: "weakref.WeakKeyDictionary[Any, int]" = weakref.WeakKeyDictionary()
        # Why the state of an optimizer is not known, before its first step or for good.
        self.unknown = ""
        # What optimizers that have not stepped, beside one that has, may still take.
        self.later: Dict[Place, float] = {}
        # How often the first step of an optimizer was foreseen.
        self._tries = 0
        # The last optimizer whose step makes no state, with the number of its groups and of changes then.
        self._settled: Tuple[Any, int, int] = lambda: None, 0, 0
        self._changes = 0

    @property
    def has_stepped(self) -> bool:
        """Whether the hooks saw an optimizer step."""
        return bool(self._stepped)

    def made(self, optimizer: Any) -> None:
        """An optimizer was made; it may be one that only holds another, or will."""
        try:
            self.optimizers.update((optimizer, held_by(optimizer)))
        except TypeError:
            pass  # It cannot be referenced weakly.

    def predict(self, gradients_exist: bool) -> None:
        """Where the memory is, and what the optimizers will take."""
        made = list(self.optimizers)
        optimizers = [each for each in made if self._is_due(held_by(each))] or made
        if not optimizers:
            return
        foreseen = try_foresee(optimizers, gradients_exist)
        of_parameters = places_of(optimizers)
        devices = {place for place in of_parameters if place is not None}
        # State that an offloaded optimizer keeps on the host is predicted beside the devices.
        self.places = [*sorted({*devices, *devices_in_use()}), *([] if devices else of_parameters)]
        if foreseen.needs is None:
            self.needs, self.unknown = {}, foreseen.why
            for place in sorted(devices) or of_parameters:
                self._predictions.state("optimizer", place, None, basis=foreseen.why)
            return
        self.needs = dict(foreseen.needs)
        for place, needs in foreseen.needs.items():
            held, p90 = held_on(place), None
            if held is None:
                continue
            peak: float = held + needs.gradients + needs.state + needs.temporary
            if place is None:
                # A part of what malloc keeps is used for it.
                kept = min((_host_allocated() or (0, 0))[1], peak - held)
                p90, peak = peak - (1 - STATE_UNUSED_P90) * kept, peak - (1 - STATE_UNUSED) * kept
            basis = "gradients %s, state of %s %s" % (_size(needs.gradients), foreseen.why, _size(needs.state))
            if needs.temporary:
                basis += ", temporary tensors %s" % _size(needs.temporary)
            exact = foreseen.exact and (p90 is None or p90 - peak <= SAME * p90)
            about: JSON = {"exact": exact, "held": held, "due_step": self._steps.last + 1, "basis": basis}
            self._predictions.state("optimizer", place, peak, p90=p90, **about)

    def predict_unfrozen(self) -> None:
        """Parameters that were added or unfrozen: the next step makes their state."""
        counts = {each: _count_trained(each) for each in list(self._stepped)}
        unfrozen = {each: count for each, count in counts.items() if count > self._trained.get(each, count)}
        for optimizer, count in unfrozen.items():
            self._stepped[optimizer], self._trained[optimizer] = -1, count
        if unfrozen:
            self._changes += 1
            self.predict(False)

    def _is_due(self, optimizer: Any) -> bool:
        """Whether its next step makes state. Added parameters are a group of their own."""
        return self._stepped.get(optimizer) != len(optimizer.param_groups)

    def is_settled(self, optimizer: Any) -> bool:
        """Whether it is known that `before` has nothing to do: in most steps."""
        of, groups, changes = self._settled
        return of() is optimizer and changes == self._changes and groups == len(optimizer.param_groups)

    def before(self, optimizer: Any) -> bool:
        """Before a step; says whether it is the first one of this optimizer, which is predicted then."""
        # The monitor's thread may find unfrozen parameters meanwhile.
        changes, given, optimizer = self._changes, optimizer, held_by(optimizer)
        if not self._is_due(optimizer):
            if given is optimizer:
                self._settled = weakref.ref(optimizer), len(optimizer.param_groups), changes
            return False
        if optimizer not in self._stepped:
            # The state of a wrapper may stay empty for ever, and a program may make optimizers in each step.
            if self._tries >= MOST_TRIES:
                return False
            self._tries += 1
        self.made(optimizer)
        # A step with a closure computes the gradients itself.
        self.predict(any(p.grad is not None for group in optimizer.param_groups for p in group["params"]))
        return True

    def begins(self) -> None:
        """Directly before a step that was predicted."""
        marks = ((place, mark(place)) for place in {*self.places, *self.needs})
        self._marks = {place: found for place, found in marks if found is not None}

    def after(self, optimizer: Any) -> None:
        """After a step that was measured."""
        optimizer = held_by(optimizer)
        # A scaler skips a step whose gradients overflow: the state comes with a later one.
        if not self._is_due(optimizer) or not _has_state(optimizer):
            return
        self._stepped[optimizer] = len(optimizer.param_groups)
        self._trained[optimizer] = max(self._trained.get(optimizer, 0), _count_trained(optimizer))
        for place, begun in self._marks.items():
            found, message = highest_since(place, begun), self._predictions.of("optimizer", place)
            if message and found is not None:
                least, most = found
                basis = message["basis"]
                if most > (1 + SAME) * least:
                    basis += "; it took at most %s, the highest before it" % _size(most)
                self._predictions.resend(dict(message, measured=least, step=self._steps.last, basis=_short(basis)))
                self.needs.pop(place, None)
        self._marks = {}
        if GROWS not in self.unknown:
            self.unknown = ""
        self._predict_others()

    def _predict_others(self) -> None:
        """Optimizers that have not stepped yet may, or never will: what they take is not the median, but the 90th percentile."""
        others = [each for each in self.optimizers if held_by(each) is each and self._is_due(each)]
        self.later = {}
        if not others or self.needs:
            return
        foreseen = try_foresee(others, False)
        for place, needs in (foreseen.needs or {}).items():
            held, more = held_on(place), needs.gradients + needs.state + needs.temporary
            if held is not None and more > SAME * held:
                self.later[place] = more
                basis = "%s has not stepped yet: gradients and state of %s" % (foreseen.why, _size(more))
                self._predictions.state("optimizer", place, held, p90=held + more, held=held, basis=basis)


def _count_trained(optimizer: Any) -> int:
    return sum(1 for group in optimizer.param_groups for each in group["params"] if each.requires_grad)


def _has_state(optimizer: Any) -> bool:
    """Whether it has made its state, or has none to make."""
    state = getattr(optimizer, "state", None)
    return bool(state) or not any(_uses_state(group) for group in optimizer.param_groups)


def _uses_state(group: Any) -> bool:
    return "betas" in group or "alpha" in group or bool(group.get("momentum"))
