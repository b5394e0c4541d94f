"""What the next phases of this process will take: predictions for the daemon, its verdict, and the line for the user.

Predictions are made after hooks of the first steps and in the monitor's thread, from counters and shapes: nothing
allocates memory of a device, or waits for one. Sizes are those of this rank. On a GPU they are what its allocator has
allocated. Without one, the memory of the model is that of the host: the resident memory of the process.
"""

from __future__ import annotations

import os
import weakref
from typing import Any, Dict, List, Optional

from ._base import _guarded, _hide
from ._fit_batches import Batches
from ._fit_evaluation import Evaluations
from ._fit_first_step import FirstStep
from ._fit_memory import Memory, Place, held_on
from ._fit_optimizer import SPARSE, in_trial
from ._fit_plan import Plan
from ._fit_predictions import Predictions
from ._fit_save import Saves
from ._fit_verdict import Verdicts
from ._identity import _Identity
from ._process import _take_host_peak, _torch
from ._session import _Session
from ._steps import _Steps

# A change of what the process holds between two steps, as a share, after which the next evaluation and save are predicted
# again.
_HELD = 0.02


class _Fit:
    """Predicts the phases of one process. `MEMWARDEN_FIT` may be `say` (the default), `abort`, or `off`: this is not made then.

    The methods are called by hooks, and by the monitor; the parts have a module each.
    """

    def __init__(self, session: _Session, steps: _Steps, identity: _Identity) -> None:
        self._session, self._steps, self._identity = session, steps, identity
        self.may_abort = os.environ.get("MEMWARDEN_FIT", "").lower() == "abort"
        self.plan = Plan()
        session.link.receiver = self.received
        self.reset()

    def reset(self) -> None:
        self.predictions = Predictions(self._session, self._steps)
        self.verdicts = Verdicts(self._session, self._identity, self.predictions, self.may_abort)
        memory = Memory()
        self.first_step = FirstStep(self._steps, self.predictions)
        self.batches = Batches(self._steps, self.plan, self.predictions, self.first_step, memory)
        self._evaluations = Evaluations(self.plan, self.predictions, self.first_step, memory)
        self._saves = Saves(self.predictions, self.plan)
        # What was held when the phases of the plan were predicted last.
        self._planned: Dict[Place, int] = {}

    @_guarded()
    def follows(self, model: Any) -> None:
        """The hooks follow this model."""
        self.plan.model(model, lambda: list(self.first_step.optimizers))
        kinds = tuple(getattr(_torch().nn, name, ()) for name in ("Embedding", "EmbeddingBag"))
        for each in model.modules():
            if isinstance(each, kinds) and each.sparse:
                SPARSE[id(each.weight)] = weakref.ref(each.weight)

    # -- the optimizer

    def made(self, optimizer: Any) -> None:
        """An optimizer was made."""
        self.first_step.made(optimizer)

    def before_step(self, optimizer: Any) -> None:
        """Backward has run."""
        if not self.batches.measuring and self.first_step.is_settled(optimizer) or in_trial():
            return
        try:
            first = self.first_step.before(optimizer)
            self.batches.step_begins(first)
            if first:
                self.verdicts.wait()
                self.first_step.begins()
        except Exception as error:
            _hide(error, "fit")
        self.verdicts.abort_if_told()

    @_guarded()
    def after_step(self, optimizer: Any) -> None:
        if not in_trial() and self.batches.step_ends():
            self.first_step.after(optimizer)
            if None in self.first_step.places:
                _take_host_peak()

    # -- the steps

    def forward_begins(self, samples: int, length: Optional[int]) -> None:
        """Before a micro-batch of training goes through the model."""
        batches, plan = self.batches, self.plan
        if self._evaluations.runs:
            self._evaluations.end()
        batches.seen += 1
        if batches.seen == 1:
            # A model that is compiled after its optimizer was made is found after the first step.
            if not self.first_step.has_stepped:
                self.first_step.predict(False)
            self.refresh_plan()
        plan.training_ref = plan.latest_ref
        batches.begins(samples, length)

    @_guarded()
    def forward_ends(self, output: Any) -> None:
        """After it."""
        self.batches.forward_ends(output)

    @_guarded()
    def backward_ends(self) -> None:
        """There can be several for a micro-batch."""
        if not in_trial():
            self.batches.backward_ends()

    def step_ended(self) -> None:
        """After each step."""
        try:
            if self.batches.ended():
                self.batches.resting.clear()  # Before the state of the optimizer.
                self.batches.predict()
                self.plan_phases()
                self.verdicts.first_step_ended()
        except Exception as error:
            _hide(error, "fit")
        self.verdicts.abort_if_told()

    # -- evaluations and saves

    def evaluation_begins(self, with_graph: bool = False) -> None:
        """Before a micro-batch of an evaluation goes through the model; `with_graph`: what backward would need is kept for a while."""
        self._evaluations.begins(with_graph)

    @_guarded()
    def evaluation_tried(self, count: int, passing: Any) -> None:
        """After a batch of an evaluation that is tried before training, see `Evaluations.tried`."""
        self._evaluations.tried(count, passing)

    @_guarded()
    def save_begins(self, path: Any = None) -> None:
        """A file with tensors is about to be written."""
        if not self._saves.runs and self.batches.steps_seen:
            self._saves.begins(self.batches.places(), path)

    @_guarded()
    def save_ends(self, written: bool = True) -> None:
        """It is written, or could not be."""
        self._saves.ends(written)

    # -- what a trainer knows

    @_guarded()
    def plan_phases(self) -> None:
        """The predictions of phases that have not occurred, from the plan of the trainer, and of the next save."""
        self._planned = dict(self.batches.resting)

        def held(place: Place) -> Optional[int]:
            return self._planned.get(place) or held_on(place)

        phases = self.plan.phases(self.first_step.places, held, self._identity)
        for phase, at, peak, p90, size, basis, least in phases:
            known, before = phase == "evaluation" and at in self._evaluations.within, self.predictions.of(phase, at)
            # What an evaluation has kept so far is more than nothing.
            known = known or before.get("measured") is not None or (peak is None and "peak" in before)
            if not known:
                more = None if isinstance(at, str) else held(at)
                self.predictions.state(phase, at, peak, p90=p90, held=more, size=size, basis=basis, least=least)
        self._evaluations.predict(held)
        self._saves.predict(held)

    def refresh_plan(self) -> None:
        """Reads lengths of the data in the thread; see `Plan.examine`."""
        self.plan.stale = True

    @_guarded()
    def refresh(self) -> None:
        """In the monitor's thread, once a second."""
        batches = self.batches
        is_new = self.plan.moved()
        if self.plan.stale:
            self.plan.examine()
            batches.dirty = is_new = True
        # An evaluation and a save begin with what the process holds then.
        resting = list(batches.resting.items())
        if batches.steps_seen:
            if is_new or any(abs(now - self._planned.get(place, 0)) > _HELD * now for place, now in resting):
                self.plan_phases()
        if self.predictions.state_free(self.plan.folder):
            self.verdicts.wait_for_last()
        if batches.steps_seen and batches.dirty:
            batches.dirty = False
            batches.predict()
        if batches.steps_seen:
            self.first_step.predict_unfrozen()
        self.verdicts.report()

    # -- the daemon

    def lines(self) -> List[bytes]:
        """The predictions, for a new connection."""
        return self.predictions.lines()

    @property
    def awaits(self) -> bool:
        """Whether the first verdict is still to come, which may be needed before the first step of the optimizer."""
        return bool(self.predictions.messages) and not self.verdicts.reported

    @property
    def aborts(self) -> bool:
        """Whether this process ends itself because it will not fit."""
        return self.verdicts.aborts

    def received(self, line: bytes) -> None:
        """A line of the daemon."""
        self.verdicts.received(line)
