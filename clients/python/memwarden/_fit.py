"""What the next phases of this process will take: predictions for the daemon, its verdict, and the line for the user.

Predictions are made after hooks of the first steps and in the monitor's thread, from counters and shapes: nothing
allocates memory of a device, or waits for one. Sizes are those of this rank. On a GPU they are what its allocator has
allocated. Without one, the memory of the model is that of the host: the resident memory of the process.
"""

from __future__ import annotations

import functools
import json
import os
import statistics
import sys
import threading
import time
import weakref
from typing import Any, Callable, Dict, List, Optional, Tuple

from ._base import JSON, _encode, _guarded, _hide, _now, _short, _size
from ._fit_optimizer import Needs, in_trial, places_of, try_foresee
from ._fit_plan import Plan, free_of
from ._fit_size import Batch, Curve, Sizes, predicted
from ._identity import _Identity
from ._process import _allocated_on, _host_allocated, _host_now, _take_host_peak
from ._session import _Session
from ._steps import _Steps

# The first steps are all measured; after them one of so many, and each that is larger than those before.
MEASURED_FIRST, MEASURED_EVERY = 16, 64
# Steps whose peak rose that are kept: those with the most activations.
RATIOS = 5
# Seconds that `MEMWARDEN_FIT=abort` waits for a verdict, once, before the first step of the optimizer.
VERDICT_WAIT = 5.0
# The first steps of optimizers that are foreseen in a process.
MOST_TRIES = 8
# Seconds after which the line is printed without a verdict.
LINE_WAIT = 3.0
# The status with which `MEMWARDEN_FIT=abort` ends a run that will not fit.
ABORTED = 80
# A prediction that changes by a smaller share is not sent again.
_SAME = 0.01

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
        # By size: the highest memory, where it is known, and the activations at the end of forward.
        self._peaks: Dict[Place, Sizes] = {}
        self._activations: Dict[Place, Sizes] = {}
        # What the last measured step began with.
        self._base: Dict[Place, int] = {}
        # Resident memory that is not malloc's: code, and files.
        self._other: Optional[int] = None
        self._begun: Dict[Place, Tuple[int, int]] = {}
        self._reached: Dict[Place, Tuple[int, int]] = {}
        # Of steps in which the peak rose: the activations at the end of forward, and those at the peak.
        self._above: Dict[Place, List[Tuple[int, int]]] = {}
        self._largest: Optional[Batch] = None
        self._batches = self._steps_seen = self._trained = 0
        self._batch: Optional[Batch] = None
        self._measuring = self._dirty = self._pending = False
        self._evaluating = self._evaluations = 0
        self._saving: Optional[Dict[Place, int]] = None
        self._save_extra: Dict[Place, int] = {}
        self._save_measured: Dict[Place, int] = {}
        self.verdict: Optional[JSON] = None
        # Set when a verdict comes, cleared when a prediction is sent that it does not know yet.
        self._answered = threading.Event()
        # Whether the verdict was waited for, which happens once; how often each optimizer's first step was foreseen.
        self._waited = False
        self._tries = 0
        self._first_step_at: Optional[float] = None
        self._said: Optional[str] = None
        # Whether the line after the first step was printed.
        self._reported = False

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
            peak = held + needs.gradients + needs.state + needs.temporary
            if place is None:
                # Memory that malloc keeps may be used for it; the 90th percentile assumes that none is.
                p90, peak = peak, peak - min((_host_allocated() or (0, 0))[1], peak - held)
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
            if first and self.mode == "abort" and self.messages and not self._waited:
                self._waited = True
                self._await_verdict()
        except Exception as error:
            _hide(error, "fit")
        self._abort_if_told()

    def after_step(self, optimizer: Any) -> None:
        if self.off or not self._pending or in_trial():
            return
        self._pending = False
        try:
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
        larger = self._largest is None or batch.units > self._largest.units
        if larger:
            self._largest = batch
        if self._batch is None or batch.units > self._batch.units:
            self._batch = batch
        if not self._measuring:
            measured = self._steps_seen < MEASURED_FIRST or larger or self._steps_seen % MEASURED_EVERY == 0
            if measured:
                self._measuring = True
                for place in self._places:
                    self._begin_measuring(place)

    def _begin_measuring(self, place: Place) -> None:
        now = self._now(place)
        if place is None and now is not None:
            resident = _host_now() or 0
            if self._batches <= 1:
                _take_host_peak()  # The peak of loading the model.
            # What the peak must exceed, so that it is that of this step.
            now = now[0], resident + (resident >> 7)
        if now is not None:
            self._begun[place] = now

    def _now(self, place: Place) -> Optional[Tuple[int, int]]:
        """Bytes that are allocated, and the highest since the start.

        Of the host: what malloc has given to the program, with the other resident memory; what malloc keeps for later is
        not allocated. Without the statistics of malloc, the resident memory. The highest value is not read there.
        """
        if place is not None:
            return _allocated_on(place)
        used = _host_allocated()
        if self._other is None:
            # Before the first step malloc keeps little.
            self._other = 0 if used is None else (_host_now() or 0) - sum(used)
        resident = _host_now()
        if used is None or resident is None:
            return None if resident is None else (resident, 0)
        return used[0] + self._other, 0

    def forward_ends(self, output: Any) -> None:
        """After it: the activations are allocated."""
        if self.off or not self._measuring:
            return
        self.plan.output(output, self._batch)
        for place in self._places:
            now = self._now(place)
            if now is not None and now[0] > self._reached.get(place, (0, 0))[0]:
                self._reached[place] = now

    def _observe(self) -> None:
        """After backward: the highest memory since the measurement began, for the largest micro-batch in it."""
        batch, self._batch = self._batch, None
        self._measuring = False
        for place in self._places if batch is not None else ():
            begun, reached = self._begun.get(place), self._reached.get(place)
            peak = (_take_host_peak() or 0) if place is None else (_allocated_on(place) or (0, 0))[1]
            if begun is None or batch is None:
                continue
            activations = None if reached is None else max(0, reached[0] - begun[0])
            if activations is not None:
                self._activations.setdefault(place, Sizes()).add(batch, activations)
                self._dirty = True
            # The allocator's peak is not reset, as the program may read it: it is this step's only if it rose in it.
            if peak > begun[1]:
                if activations:
                    above = self._above.setdefault(place, [])
                    above.append((activations, peak - begun[0]))
                    above.sort()
                    del above[:-RATIOS]
                # As a step with the whole state: it is allocated after the first one only.
                still = self._needs.get(place)
                self._peaks.setdefault(place, Sizes()).add(batch, peak + (still.state if still is not None else 0))
                self._dirty = True
        self._base.update((place, begun[0]) for place, begun in self._begun.items())
        self._begun.clear()
        self._reached.clear()

    def _curve(self, place: Place) -> Optional[Curve]:
        """The peak of a step by its size: what it begins with, and the activations with what rises above them."""
        still = self._needs.get(place)
        base = self._base.get(place, 0) + (still.state if still is not None else 0)
        activations, above = self._activations.get(place), self._above.get(place)
        if activations is None or not above:
            peaks = self._peaks.get(place)
            return None if peaks is None else peaks.curve(base)
        curve = activations.curve(0.0)
        if curve is None:
            return None
        ratio = statistics.median(peak / end for end, peak in above)
        return Curve(base + ratio * curve.fixed, *(ratio * each for each in curve[1:]))

    def step_ended(self) -> None:
        """After each step; of programs without hooks of the optimizer, the measurement ends here."""
        if self.off:
            return
        try:
            self._steps_seen += 1
            if self._measuring and not self._stepped:
                self._observe()
            elif self._batch is not None and not self._measuring:
                self._batch = None
            if self._steps_seen == 1:
                self._first_step_at = time.monotonic()
                self._predict_step()
                self.plan_phases()
        except Exception as error:
            _hide(error, "fit")
        self._abort_if_told()

    def _predict_step(self) -> None:
        """The peak of the largest step that is still to come."""
        if self._largest is None:
            return
        largest, source = self.plan.largest(self._largest, self._batches)
        for place in self._places:
            peaks, curve = self._peaks.get(place, Sizes()), self._curve(place)
            exact = peaks.seen(largest)
            if curve is None and exact is None:
                self._state("step", place, None, basis="no step was the highest memory of the process")
                continue
            size: Optional[JSON] = None
            if curve is None:
                p50 = p90 = exact or 0.0
            else:
                p50, p90 = predicted(curve, largest, exact)
                size = {"unit": "tokens" if largest.length else "samples", "units": largest.units}
                size.update((key, getattr(largest, key)) for key in ("samples", "length") if getattr(largest, key))
                size.update(fixed=int(curve.fixed), per_unit=curve.per_unit, per_square=curve.per_square)
            # A step of the optimizer can be higher than its batch: with the temporary tensors.
            stepped = (self.messages.get(("optimizer", *_resource(place))) or {}).get("measured") or 0
            about: JSON = {"exact": exact is not None, "measured": peaks.most(), "size": size}
            measured = max(len(peaks), len(self._activations.get(place, ())))
            about["basis"] = "%d size%s of batches measured; %s" % (measured, "" if measured == 1 else "s", source)
            about["due_step"] = self.plan.due_step(self._steps.last)
            self._state("step", place, max(p50, stepped), p90=max(p90, stepped), **about)

    # -- evaluation

    def evaluation_begins(self) -> None:
        """Before a micro-batch of an evaluation goes through the model."""
        if self.off or self._evaluating:
            return
        self._evaluating = 1
        if None in self._places:
            _take_host_peak()
        for place in self._places:
            now = None if place is None else _allocated_on(place)
            if now is not None and place is not None:
                self._begun[place] = now

    def evaluation_ends(self) -> None:
        if self.off or not self._evaluating:
            return
        self._evaluating = 0
        self._evaluations += 1
        for place in self._places:
            peak = _take_host_peak() if place is None else self._risen(place)
            if peak is None:
                continue
            message = self.messages.get(("evaluation", *_resource(place)))
            known = max(peak, int((message or {}).get("measured") or 0))
            basis = "the highest of %d evaluations" % self._evaluations
            self._state("evaluation", place, known, measured=known, basis=basis)

    def _risen(self, place: int) -> Optional[int]:
        begun, now = self._begun.pop(place, None), _allocated_on(place)
        return now[1] if begun is not None and now is not None and now[1] > begun[1] else None

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
            known = max(peak, self._save_measured.get(place, 0))
            self._save_measured[place] = known
            expected = held + self._save_extra[place]
            basis = "the file that took most took %s above what was held" % _size(self._save_extra[place])
            self._state("save", place, expected, held=held, measured=known, basis=basis)

    # -- what a trainer knows

    @_guarded()
    def plan_phases(self) -> None:
        """The predictions of phases that have not occurred, from the plan of the trainer."""
        for phase, place, peak, p90, exact, size, basis in self.plan.phases(self._places, _held, self._identity):
            key = (phase, *_resource(place)) if not isinstance(place, str) else (phase, place, None)
            if (self.messages.get(key) or {}).get("measured") is None:
                self._state(phase, place, peak, p90=p90, exact=exact, size=size, basis=basis)

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
        self._state_free()
        if self._steps_seen and self._dirty:
            self._dirty = False
            self._predict_step()
            if self._trained and self._count_trained() != self._trained:
                # Parameters were added or unfrozen: the next step makes their state.
                self._stepped.clear()
                self._begin(False)
        if self._first_step_at is not None and not self._reported:
            waits = self._session.link.connected
            if self.verdict is not None or not waits or time.monotonic() - self._first_step_at > LINE_WAIT:
                self._reported = True
                self.say()

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
            self._session.send(message)

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
        if not isinstance(message, dict) or message.get("type") != "verdict" or not self.messages:
            return
        worse = message.get("verdict") == "will_not_fit" and (self.verdict or {}).get("verdict") != "will_not_fit"
        self.verdict = message
        self._answered.set()
        if worse:
            self.say()

    def _await_verdict(self) -> None:
        """Waits for the verdict on what was sent last, which a run asks for that is to end if it does not fit."""
        until = time.monotonic() + VERDICT_WAIT
        while not self._answered.is_set() and self._session.link.connected and time.monotonic() < until:
            self._session.link.receive()
            self._answered.wait(0.02)

    def _abort_if_told(self) -> None:
        # A verdict on earlier predictions ends nothing.
        if not self._answered.is_set() or self.mode != "abort" or (self.verdict or {}).get("verdict") != "will_not_fit":
            return
        self.say()
        raise SystemExit(ABORTED)

    @_guarded()
    def say(self) -> None:
        """Prints the line, on the first rank: the daemon's verdict, or the sizes where there is none."""
        if self.off or not self.messages:
            return
        text = self.verdict.get("text") if self.verdict is not None else None
        line = "".join(each if each.isprintable() else "?" for each in str(text or self.summary()))[:1024]
        if line == self._said:
            return
        self._said = line
        if self._identity.hello()["rank"] == 0 or (self.verdict or {}).get("verdict") == "will_not_fit":
            sys.stderr.write("memwarden: %s\n" % line)
            sys.stderr.flush()

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
