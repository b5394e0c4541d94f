"""What the next phases of this process will take: predictions for the daemon, its verdict, and the line for the user.

Predictions are made after hooks of the first steps and in the monitor's thread, from counters and shapes: nothing
allocates memory of a device, or waits for one. Sizes are those of this rank. On a GPU they are what its allocator has
allocated. Without one, the memory of the model is that of the host: the resident memory of the process.
"""

from __future__ import annotations

import functools
import json
import os
import sys
import threading
import time
import weakref
from typing import Any, Callable, Dict, List, Optional, Set, Tuple

from ._base import JSON, _encode, _guarded, _hide, _now, _short, _size
from ._fit_optimizer import Needs, in_trial, places_of, try_foresee
from ._fit_plan import Plan, free_of
from ._fit_size import Batch, Footprint, predicted
from ._identity import _Identity
from ._process import _allocated_on, _host_allocated, _host_mapped, _host_memory_since_reset, _host_now, _take_host_peak
from ._session import _Session
from ._steps import _Steps

# The first steps are all measured; after them one of so many, and each that is larger than those before.
MEASURED_FIRST, MEASURED_EVERY = 16, 64
# Seconds that a process waits for a verdict, once, before the first step of the optimizer, which may be its end: the daemon
# samples once a second, and says "will not fit" in the second sample. The same with `MEMWARDEN_FIT=abort`.
VERDICT_WAIT, ABORT_WAIT = 3.0, 5.0
# The first steps of optimizers that are foreseen in a process.
MOST_TRIES = 8
# The share of what malloc keeps that the first step of the optimizer does not use: the median, and a value above all, of 6
# random programs. Its tensors are as large as the gradients, and fit more of what is free than those of a longer batch.
STATE_UNUSED, STATE_UNUSED_P90 = 0.5, 0.85
# Verdicts that are said when they come, the worst last.
_SEVERITY = {"tight": 1, "will_not_fit": 2}
# Seconds after which the line is printed without a verdict.
LINE_WAIT = 3.0
# The status with which `MEMWARDEN_FIT=abort` ends a run that will not fit.
ABORTED = 80
# A prediction that changes by a smaller share is not sent again.
_SAME = 0.01
# A change of what the process holds between two steps, as a share, after which the next evaluation and save are predicted
# again, and the seconds after which that is looked at, if no step is measured.
_HELD, RESTED_AFTER = 0.02, 1.0

Place = Optional[int]
Key = Tuple[str, str, Place]


class _Fit:
    """Predicts the phases of one process. `mode` is `MEMWARDEN_FIT`: `say` (the default), `abort` or `off`."""

    def __init__(self, session: _Session, steps: _Steps, identity: _Identity) -> None:
        self._session, self._steps, self._identity = session, steps, identity
        mode = os.environ.get("MEMWARDEN_FIT", "").lower()
        self.mode = mode if mode in ("abort", "off") else "say"
        self.plan = Plan()
        session.link.receiver = self.received
        self.reset()

    def reset(self) -> None:
        self.off = self.mode == "off" or self._session.off
        self._optimizers: "weakref.WeakSet[Any]" = weakref.WeakSet()
        self._stepped: "weakref.WeakSet[Any]" = weakref.WeakSet()
        self.messages: Dict[Key, JSON] = {}
        self._places: List[Place] = []
        self._needs: Dict[Place, Needs] = {}
        self._footprints: Dict[Place, Footprint] = {}
        # Resident memory that is not malloc's: code, and files.
        self._other = 0
        # Before the current micro-batch, and after its forward pass: allocated, and the highest (of the host: resident).
        self._begun: Dict[Place, Tuple[int, int]] = {}
        self._reached: Dict[Place, int] = {}
        # At the end of backward: the highest since then.
        self._highest: Dict[Place, int] = {}
        # Of this step: whether a micro-batch has begun, and ended, that is measured. Of the last one: whether what it
        # allocated for good is still to be found out.
        self._within_step = self._observed = self._unsettled = False
        self._largest: Optional[Batch] = None
        self._batches = self._steps_seen = self._trained = 0
        # Batches that the loader had still to give when the last micro-batch was measured.
        self._left = 0
        self._batch: Optional[Batch] = None
        self._measuring = self._dirty = self._pending = False
        # Micro-batches of the current evaluation; the batches of its loader, and those that it had given when it began; what
        # was allocated after the first one.
        self._evaluating = self._evaluations = 0
        self._in_evaluation: Optional[Tuple[int, int]] = None
        # Where an evaluation took no more than what was the highest before.
        self._evaluated: Set[Place] = set()
        self._kept: Dict[Place, int] = {}
        self._saving: Optional[Dict[Place, int]] = None
        self._save_extra: Dict[Place, int] = {}
        self._save_measured: Dict[Place, int] = {}
        # What was held between two steps: now, and when the phases of the plan were predicted last.
        self._resting: Dict[Place, int] = {}
        self._planned: Dict[Place, int] = {}
        self._rested = 0.0
        # The number of the last prediction, and of the last one after the first step, which the line waits for.
        self._sequence = 0
        self._line_after = 0
        # The verdict of the last line.
        self._told = ""
        self.verdict: Optional[JSON] = None
        # Whether there is a verdict that knows the last prediction.
        self._answered = threading.Event()
        # What was said of the earlier runs of this command.
        self._past: Optional[str] = None
        # Whether the verdict was waited for, which happens once; how often each optimizer's first step was foreseen.
        self._waited = False
        self._tries = 0
        self._first_step_at: Optional[float] = None
        self._said: Optional[str] = None
        # Whether the line after the first step was printed.
        self._reported = False
        # Whether this process ends itself because it will not fit.
        self.aborts = False

    # -- the optimizer

    def made(self, optimizer: Any) -> None:
        """An optimizer was made; it may be one that only holds another."""
        try:
            self._optimizers.add(optimizer)
        except TypeError:
            pass  # It cannot be referenced weakly.

    def _begin(self, gradients_exist: bool) -> None:
        """Where the memory is, and what the optimizers will take."""
        optimizers = [each for each in list(self._optimizers) if each not in self._stepped] or list(self._optimizers)
        if not optimizers:
            return
        foreseen = try_foresee(optimizers, gradients_exist)
        self._trained = self._count_trained()
        # State that an offloaded optimizer keeps on the host is predicted beside the devices.
        places = places_of(optimizers)
        self._places = [place for place in places if place is not None] or places
        if foreseen.needs is None:
            for place in self._places:
                self._state("optimizer", place, None, basis=foreseen.why)
            return
        self._needs = dict(foreseen.needs)
        for place, needs in foreseen.needs.items():
            held, p90 = _held(place), None
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
            exact = foreseen.exact and (p90 is None or p90 - peak <= _SAME * p90)
            about: JSON = {"exact": exact, "held": held, "due_step": self._steps.last + 1, "basis": basis}
            self._state("optimizer", place, peak, p90=p90, **about)

    def _count_trained(self) -> int:
        return sum(
            1 for each in list(self._optimizers) for group in each.param_groups for p in group["params"] if p.requires_grad
        )

    def before_step(self, optimizer: Any) -> None:
        """Backward has run."""
        if self.off or in_trial():
            return
        try:
            # The state of a wrapper may stay empty for ever.
            first = optimizer not in self._stepped and self._tries < MOST_TRIES
            if first:
                self._tries += 1
                self.made(optimizer)
                # A step with a closure computes the gradients itself.
                self._begin(any(p.grad is not None for group in optimizer.param_groups for p in group["params"]))
            if self._measuring or first:
                self._pending = True
                self._observe()
            if first and self.messages and not self._waited:
                self._waited = True
                self._await_verdict(ABORT_WAIT if self.mode == "abort" else VERDICT_WAIT)
        except Exception as error:
            _hide(error, "fit")
        self._abort_if_told()

    def after_step(self, optimizer: Any) -> None:
        if self.off or in_trial() or not (self._pending or self._measuring):
            return
        pending, self._pending = self._pending, False
        try:
            if self._measuring:
                # Forward and backward ran in its closure.
                self._observe(within=True)
            if not pending:
                return
            first = optimizer not in self._stepped
            if first and _has_state(optimizer):
                # A scaler skips a step whose gradients overflow: the state comes with a later one.
                self._stepped.add(optimizer)
            for place in self._places if first else ():
                peak = _peak(place)
                message = self.messages.get(("optimizer", *_resource(place)))
                if message is not None and peak is not None and optimizer in self._stepped:
                    self._resend(dict(message, measured=peak, step=self._steps.last))
                    self._needs.pop(place, None)
            if None in self._places:
                _take_host_peak()
        except Exception as error:
            _hide(error, "fit")

    # -- the steps

    def forward_begins(self, samples: int, length: Optional[int]) -> None:
        """Before a micro-batch of training goes through the model."""
        if self.off:
            return
        batch = Batch(samples * length if length else samples, samples, length)
        if self._evaluating:
            self.evaluation_ends()
        self._batches += 1
        if self._batches == 1:
            self._begin(False)
            self.refresh_plan()
        if self._measuring:
            self._observe()
        larger = self._largest is None or batch.units > self._largest.units
        if larger:
            self._largest = batch
        self._batch = batch
        measured = self._steps_seen < MEASURED_FIRST or larger or self._steps_seen % MEASURED_EVERY == 0
        if not self._within_step and (measured or time.monotonic() > self._rested + RESTED_AFTER):
            self._rested = time.monotonic()
            held = ((place, _held(place)) for place in self._save_places())
            self._resting = {place: now for place, now in held if now is not None}
            if None in self._footprints and None in self._resting:
                # Steps that are not measured can make malloc keep more.
                self._dirty = self._footprints[None].keeps(self._resting[None]) or self._dirty
        if measured or self._unsettled and not self._within_step:
            self._begin_measuring(measured)

    def _begin_measuring(self, measured: bool) -> None:
        if None in self._places and measured:
            _take_host_peak()  # That of loading the model, and of micro-batches that are not measured.
        for place in self._places:
            other, now = self._other, self._now(place)
            footprint = self._footprints.setdefault(place, Footprint())
            if now is None:
                continue
            if place is None and self._steps_seen == 1 and not self._within_step:
                footprint.read_code(self._other - other)
            if not self._within_step:
                footprint.settle(now[0])
            if measured:
                self._begun[place] = now
        self._measuring, self._unsettled = measured, measured
        self._within_step = self._within_step or measured

    def _now(self, place: Place) -> Optional[Tuple[int, int]]:
        """Bytes that are allocated, and the highest since the start; of the host, the resident memory.

        What is allocated of the host is what malloc has given to the program, with the other resident memory; what malloc
        keeps for later is not. Without the statistics of malloc, it is the resident memory.
        """
        if place is not None:
            return _allocated_on(place)
        used = _host_allocated()
        resident = _host_now()
        if used is None or resident is None:
            return None if resident is None else (resident, resident)
        # It grows with the code that runs the first time. Pages that malloc has not touched make it seem less.
        self._other = max(self._other, resident - sum(used))
        return min(resident, used[0] + self._other), resident

    def forward_ends(self, output: Any) -> None:
        """After it: the activations are allocated."""
        if self.off or not self._measuring:
            return
        self.plan.output(output, self._batch)
        for place in self._begun:
            now = self._now(place)
            if now is not None:
                self._reached[place] = now[0]

    @_guarded()
    def backward_ends(self) -> None:
        """There can be several for a micro-batch."""
        if self._measuring and self._reached and not self.off and not in_trial():
            for place in self._begun:
                self._highest[place] = max(self._highest.get(place, 0), self._peak_now(place))

    def _peak_now(self, place: Place) -> int:
        """The highest of the process; of the host, since it was read last with `_take_host_peak`."""
        return (_host_memory_since_reset()[1] if place is None else (_allocated_on(place) or (0, 0))[1]) or 0

    def _observe(self, within: bool = False) -> None:
        """The highest memory since the micro-batch began; `within`: the optimizer has stepped since it ended."""
        batch, self._batch = self._batch, None
        self._measuring = False
        highest, self._highest = self._highest, {}
        for place, (begun, before) in self._begun.items() if batch is not None else ():
            reached, footprint = self._reached.get(place), self._footprints[place]
            if batch is None or reached is None:
                continue
            peak = highest.get(place, 0)
            if not (within and peak):
                peak = max(peak, self._peak_now(place))
            footprint.forward(batch, begun, reached, not self._observed)
            footprint.base, footprint.kept = begun, (before - begun if place is None else 0)
            self._dirty = True
            count, given = self.plan.batches(training=True) or (0, 0)
            self._left = max(0, count - given)
            # The allocator's peak is not reset, as the program may read it: it is this micro-batch's only if it rose.
            # The resident memory is noisy.
            if peak > before + (before >> 7 if place is None else 0):
                footprint.rose(batch, reached, before if place is None else begun, begun, peak)
                # As one with the whole state: it is allocated after the first step only.
                still = self._needs.get(place)
                footprint.peaks.add(batch, peak + (still.state if still is not None else 0))
        self._observed = True
        self._begun.clear()
        self._reached.clear()

    def step_ended(self) -> None:
        """After each step; of programs without hooks of the optimizer, the measurement ends here."""
        if self.off:
            return
        try:
            self._steps_seen += 1
            if self._measuring and not self._stepped:
                self._observe()
            self._within_step = self._observed = False
            if self._steps_seen == 1:
                self._resting.clear()  # Before the state of the optimizer.
                self._first_step_at = time.monotonic()
                self._predict_step()
                self.plan_phases()
                self._line_after = self._sequence
        except Exception as error:
            _hide(error, "fit")
        self._abort_if_told()

    def _predict_step(self) -> None:
        """The peak of the largest step that is still to come."""
        if self._largest is None:
            return
        largest, source, longer = self.plan.largest(self._largest, self._batches)
        for place in self._places:
            footprint, still = self._footprints.get(place, Footprint()), self._needs.get(place)
            state = still.state if still is not None else 0.0
            # The longest batch comes within the epoch: in the middle of it, on average.
            grown = footprint.growth(self._left, largest)
            curve = footprint.curve(state + grown / 2)
            exact = footprint.peaks.seen(largest)
            if curve is None and exact is None:
                self._state("step", place, None, basis="no step was the highest memory of the process")
                continue
            size: Optional[JSON] = None
            if curve is None:
                p50 = p90 = (exact or 0.0) + grown / 2
            else:
                p50, p90 = predicted(curve, largest, None if exact is None else exact + grown / 2, not footprint.corrected)
                p90 += longer * (curve.at(largest) - curve.fixed)
                size = {"unit": "tokens" if largest.length else "samples", "units": largest.units}
                size.update((key, getattr(largest, key)) for key in ("samples", "length") if getattr(largest, key))
                size.update(fixed=int(curve.fixed), per_unit=curve.per_unit, per_square=curve.per_square)
            # A step of the optimizer can be higher than its batch: with the temporary tensors.
            stepped = (self.messages.get(("optimizer", *_resource(place))) or {}).get("measured") or 0
            p90 += footprint.spread + grown / 2
            about: JSON = {"exact": exact is not None and p90 == p50, "measured": footprint.peaks.most(), "size": size}
            measured = max(len(footprint.peaks), len(footprint.activations))
            about["basis"] = "%d size%s of batches measured; %s" % (measured, "" if measured == 1 else "s", source)
            about["due_step"] = self.plan.due_step(self._steps.last)
            self._state("step", place, max(p50, stepped), p90=max(p90, stepped), **about)

    # -- evaluation

    def evaluation_begins(self) -> None:
        """Before a micro-batch of an evaluation goes through the model."""
        if self.off:
            return
        self._evaluating += 1
        batch = self._evaluating
        # At the second batch, the first one's output is what an evaluation keeps of each.
        if batch & (batch - 1):
            return
        if batch == 1:
            if not self._places:
                # Lightning tries an evaluation before training.
                self._begin(False)
            self._kept.clear()
            self._in_evaluation = self.plan.batches()
            if None in self._places:
                _take_host_peak()
        for place in self._places:
            now = self._now(place)
            if now is None:
                continue
            if batch == 1:
                self._begun[place] = now
            elif batch == 2:
                self._kept[place] = now[0]
            else:
                self._predict_evaluation(place, now[0], batch)

    def _predict_evaluation(self, place: Place, now: int, batch: int) -> None:
        """Within an evaluation: the outputs that it keeps, for all of its batches."""
        begun, loaded = self._kept.get(place), self.plan.batches()
        if begun is None or self._in_evaluation is None or loaded is None:
            return
        count, given = self._in_evaluation[0], loaded[1] - self._in_evaluation[1]
        # A model that generates is called several times for a batch, and what it keeps does not last.
        if given != batch - 1 or count <= batch:
            return
        each = max(0.0, (now - begun) / (batch - 2))
        resident = _host_now() if place is None else now
        message = self.messages.get(("evaluation", *_resource(place))) or {}
        if resident is None or each * count <= _SAME * resident and "kept of each" not in message.get("basis", ""):
            return
        known: Optional[int] = message.get("measured")
        expected = max(max(self._peak_within(place) or 0, resident) + each * (count - batch + 1), known or 0)
        basis = "%s kept of each of %d batches" % (_size(each), count)
        # The sizes of the outputs can differ.
        p90 = expected + each * (count - batch + 1) / batch
        size = {"unit": "batches", "units": count, "fixed": int(expected - each * count), "per_unit": each}
        self._state("evaluation", place, expected, p90=p90, measured=known, size=size, basis=basis)

    def _peak_within(self, place: Place) -> Optional[int]:
        """The highest memory since the evaluation began, where it rose above what was before."""
        if place is None:
            return _host_memory_since_reset()[1]
        begun, now = self._begun.get(place), _allocated_on(place)
        return now[1] if begun is not None and now is not None and now[1] > begun[1] else None

    def evaluation_ends(self) -> None:
        if self.off or not self._evaluating:
            return
        # Lightning tries some batches of an evaluation before training.
        whole = self._in_evaluation is None or self._evaluating >= self._in_evaluation[0]
        self._evaluating = 0
        self._evaluations += 1
        for place in self._places:
            peak, begun = self._peak_within(place), self._begun.pop(place, None)
            message = self.messages.get(("evaluation", *_resource(place))) or {}
            if peak is None:
                # The evaluation took no more than what was the highest before.
                if message.get("measured") is None and whole and begun is not None:
                    self._evaluated.add(place)
                    self._state("evaluation", place, begun[1], basis="no more than the highest memory before it")
                continue
            if not whole and peak <= message.get("peak", 0):
                continue
            known = max(peak, int(message.get("measured") or 0))
            basis = "the highest of %d evaluations" % self._evaluations
            self._state("evaluation", place, known, measured=known, basis=basis)

    # -- saves

    @_guarded()
    def save_begins(self) -> None:
        """A file with tensors is about to be written; a save consists of several."""
        if self.off or self._saving is not None or not self._steps_seen:
            return
        self._saving = {place: held for place in self._save_places() for held in [_held(place)] if held is not None}
        _take_host_peak()

    @_guarded()
    def _save_places(self) -> List[Place]:
        return [None, *(place for place in self._places if place is not None)]

    @_guarded()
    def save_ends(self) -> None:
        """It is written: what it took above what the process held is what the next save will take."""
        saving, self._saving = self._saving, None
        if self.off or saving is None:
            return
        for place, held in saving.items():
            peak = _take_host_peak() if place is None else (_allocated_on(place) or (0, 0))[0]
            if peak is None or (place is not None and peak <= held):
                continue
            self._save_extra[place] = max(self._save_extra.get(place, 0), peak - held)
            self._save_measured[place] = max(peak, self._save_measured.get(place, 0))
            self._next_save(place, held)

    def _next_save(self, place: Place, held: int) -> None:
        extra = self._save_extra[place]
        basis = "the file that took most took %s above what was held" % _size(extra)
        self._state("save", place, held + extra, held=held, measured=self._save_measured[place], basis=basis)

    # -- what a trainer knows

    @_guarded()
    def plan_phases(self) -> None:
        """The predictions of phases that have not occurred, from the plan of the trainer, and of the next save."""
        self._planned = dict(self._resting)

        def held(place: Place) -> Optional[int]:
            return self._planned.get(place) or _held(place)

        for place in list(self._save_extra):
            now = held(place)
            if now is not None and self._saving is None:
                self._next_save(place, now)
        for phase, at, peak, p90, exact, size, basis in self.plan.phases(self._places, held, self._identity):
            key: Key = (phase, at, None) if isinstance(at, str) else (phase, *_resource(at))
            known = phase == "evaluation" and at in self._evaluated
            if not known and (self.messages.get(key) or {}).get("measured") is None:
                more = None if isinstance(at, str) else held(at)
                self._state(phase, at, peak, p90=p90, held=more, exact=exact, size=size, basis=basis)

    def refresh_plan(self) -> None:
        """Reads lengths of the data in the thread; see `Plan.examine`."""
        self.plan.stale = True

    @_guarded()
    def refresh(self) -> None:
        """In the monitor's thread, once a second."""
        if self.off:
            return
        if self.plan.stale:
            self.plan.examine()
            self._dirty = True
            if self._steps_seen:
                self.plan_phases()
        # An evaluation and a save begin with what the process holds then.
        resting = list(self._resting.items())
        if self._steps_seen and any(abs(now - self._planned.get(place, 0)) > _HELD * now for place, now in resting):
            self.plan_phases()
        self._state_free()
        if self._steps_seen and self._dirty:
            self._dirty = False
            self._predict_step()
            if self._trained and self._count_trained() != self._trained:
                # Parameters were added or unfrozen: the next step makes their state.
                self._stepped.clear()
                self._begin(False)
        if self._first_step_at is not None and not self._reported:
            # The daemon answers a sample later: a verdict can be one on what was predicted before the first step.
            is_told = self.verdict is not None and self.verdict["sequence"] >= self._line_after
            waits = self._session.link.connected and time.monotonic() - self._first_step_at <= LINE_WAIT
            if is_told or not waits:
                self._reported = True
                self.say(self.verdict if is_told else None)

    def _state_free(self) -> None:
        """What is free for saves to files; a file system may hang, and is asked in the monitor's thread only."""
        for key, message in list(self.messages.items()):
            free = free_of(self.plan.folder) if key[1] in ("shm", "disk") else None
            if free is not None and abs(free - message.get("free", -1)) > _SAME * free:
                # It is no new prediction: an answer that came stays valid.
                self.messages[key] = dict(message, free=free)
                self._session.send(self.messages[key])

    # -- messages

    def _state(self, phase: str, place: Any, peak: Optional[float], **more: Any) -> None:
        """Sends a prediction of a phase on a place: an ordinal, None for the host, `shm` or `disk`."""
        resource, device = (place, None) if isinstance(place, str) else _resource(place)
        message: JSON = {"type": "prediction", "t": _now(), "phase": phase, "resource": resource}
        if device is not None:
            message["device"] = str(device)
        message["certainty"] = "unknown" if peak is None else "exact" if more.pop("exact", False) else "estimated"
        if peak is not None:
            message["peak"] = int(peak)
            message["peak_p90"] = max(int(peak), int(more.pop("p90", None) or peak))
            held = more.pop("held", None)
            held = held if held is not None else 0 if isinstance(place, str) else _held(place)
            if held is not None:
                message["held"] = int(held)
            mapped = _host_mapped() if resource == "host" else None
            if mapped is not None:
                message["mapped"] = min(mapped, int(peak))
        message["step"] = self._steps.last
        message.update((key, value) for key, value in more.items() if value is not None and key in _KEYS)
        message["basis"] = _short(more.get("basis") or "")
        self._resend(message)

    def _resend(self, message: JSON) -> None:
        device = message.get("device")
        key: Key = (message["phase"], message["resource"], None if device is None else int(device))
        before = self.messages.get(key)
        self.messages[key] = message
        if before is None or not _alike(before, message):
            self._answered.clear()
            self._sequence += 1
            message["sequence"] = self._sequence
            self._session.send(message)
        else:
            message["sequence"] = before.get("sequence", 0)

    def lines(self) -> List[bytes]:
        """For a new connection: a daemon may start later than the job."""
        return [_encode(message) for message in list(self.messages.values())]

    # -- the verdict

    @property
    def awaits(self) -> bool:
        """Whether the first verdict is still to come, which may be needed before the first step of the optimizer."""
        return bool(self.messages) and not self.off and not self._reported

    @_guarded()
    def received(self, line: bytes) -> None:
        """A line of the daemon."""
        message = json.loads(line)
        if not isinstance(message, dict) or self.off:
            return
        if message.get("type") == "past" and message.get("text") != self._past:
            self._past = message.get("text")
            if self._identity.hello()["rank"] == 0:
                _print(self._past)
        if message.get("type") != "verdict" or not self.messages:
            return
        level, told = _SEVERITY.get(str(message.get("verdict")), 0), _SEVERITY.get(self._told, 0)
        # A line that says that all fits is corrected; before it, only what will not fit is said.
        worse = level > told and (level == max(_SEVERITY.values()) or self._reported)
        if not isinstance(message.get("sequence"), int):
            message["sequence"] = self._sequence
        self.verdict = message
        if message["sequence"] >= self._sequence:
            self._answered.set()
        if worse:
            self.say(message)

    def _await_verdict(self, seconds: float) -> None:
        """Waits for the verdict on what was sent last."""
        until = time.monotonic() + seconds
        while not self._answered.is_set() and self._session.link.connected and time.monotonic() < until:
            self._session.link.receive()
            self._answered.wait(0.02)

    def _abort_if_told(self) -> None:
        # A verdict on earlier predictions ends nothing.
        if not self._answered.is_set() or self.mode != "abort" or (self.verdict or {}).get("verdict") != "will_not_fit":
            return
        self.aborts = True
        self.say(self.verdict)
        raise SystemExit(ABORTED)

    @_guarded()
    def say(self, verdict: Optional[JSON]) -> None:
        """Prints the line, on the first rank: the daemon's verdict, or the sizes where there is none."""
        if self.off or not self.messages:
            return
        line = (verdict or {}).get("text") or self.summary()
        if line == self._said:
            return
        self._said, self._told = line, str((verdict or {}).get("verdict"))
        if self._identity.hello()["rank"] == 0 or (verdict or {}).get("verdict") == "will_not_fit":
            _print(line)

    def summary(self) -> str:
        """What this process knows: sizes, not whether they fit."""
        parts = []
        for (phase, resource, device), message in sorted(self.messages.items(), key=lambda pair: _ORDER.index(pair[0][0])):
            where = resource if device is None else "GPU %d" % device
            if message["certainty"] == "unknown":
                parts.append("%s on %s is not known (%s)" % (phase, where, message["basis"]))
                continue
            about = "" if message["certainty"] == "exact" else "about "
            parts.append("%s needs %s%s on %s" % (phase, about, _size(message["peak"]), where))
        return "; ".join(parts)


def _print(text: Any) -> None:
    line = "".join(each if each.isprintable() else "?" for each in str(text))[:1024]
    sys.stderr.write("memwarden: %s\n" % line)
    sys.stderr.flush()


_KEYS = ("measured", "due_step", "size")
_DIGITS = str.maketrans("", "", "0123456789.")
_ORDER = ("optimizer", "step", "evaluation", "generation", "save")


def _alike(one: JSON, two: JSON) -> bool:
    if any(one.get(key) != two.get(key) for key in ("certainty", "due_step")):
        return False
    # What it was computed from, without the numbers.
    if one["basis"].translate(_DIGITS) != two["basis"].translate(_DIGITS):
        return False
    sizes = ("peak", "peak_p90", "measured", "held")
    return all(abs((one.get(key) or 0) - (two.get(key) or 0)) <= _SAME * (one.get(key) or 0) for key in sizes)


def _resource(place: Place) -> Tuple[str, Place]:
    return ("host", None) if place is None else ("device", place)


def _held(place: Place) -> Optional[int]:
    if place is None:
        return _host_now()
    now = _allocated_on(place)
    return None if now is None else now[0]


def _peak(place: Place) -> Optional[int]:
    if place is None:
        return _take_host_peak()
    now = _allocated_on(place)
    return None if now is None else now[1]


def _has_state(optimizer: Any) -> bool:
    """Whether it has made its state, or has none to make."""
    state = getattr(optimizer, "state", None)
    return bool(state) or not any(_uses_state(group) for group in optimizer.param_groups)


def _uses_state(group: Any) -> bool:
    return "betas" in group or "alpha" in group or bool(group.get("momentum"))


def wrap_saves(of: Callable[[], _Fit], owner: Any, name: str) -> None:
    """A function that writes a file with tensors is measured from now on; the monitor may be replaced meanwhile."""
    original = getattr(owner, name, None)
    if original is None or of().off or hasattr(original, "_memwarden"):
        return

    @functools.wraps(original)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        fit = of()
        fit.save_begins()
        try:
            return original(*args, **kwargs)
        finally:
            fit.save_ends()

    wrapped._memwarden = True  # type: ignore[attr-defined]
    setattr(owner, name, wrapped)
