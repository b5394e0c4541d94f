"""Requests for a checkpoint, the step at which all ranks save, and the acknowledgement."""

from __future__ import annotations

import os
import sys
import threading
from typing import Any, Callable, List, Optional, Sequence

from ._base import JSON, Path, _guarded, _hide, _loading, _now, _short
from ._process import _torch
from ._session import _Session, _Worker
from ._signals import _Handlers
from ._steps import _Steps

# Seconds that the end of training waits for a call of the store that is under way.
END_WAIT = 2.0

Saver = Callable[[int], Any]


class _Checkpoints:
    """Receives requests for a checkpoint, agrees on its step, and acknowledges it.

    Every `agree_every` steps, a process group without a store agrees by an all-reduce.
    """

    def __init__(self, session: _Session, steps: _Steps, agree_every: int) -> None:
        self._session, self._steps, self._agree_every = session, steps, agree_every
        self.savers: List[Saver] = []
        self.handlers = _Handlers(self._ask)
        self.agreement: Any = None
        # Whether `step` is the boundary between steps; otherwise the callback of a Trainer calls `boundary`.
        self.step_is_boundary = True
        self._worker = _Worker(session, "memwarden-save", self._agree)
        self.reset()

    def reset(self) -> None:
        self._due = False
        if self.agreement is not None:
            self.agreement = type(self.agreement)(self._agreement_tells)

    def take_part(self) -> Any:
        """This process saves when it is asked: from now on it takes part in the agreement."""
        if self.agreement is None:
            with _loading:
                from ._agreement import _Agreement  # Few programs need it.

            self.agreement = _Agreement(self._agreement_tells)
        if self._session.ready:
            self.run()
        return self.agreement

    def take_part_in_trainer(self) -> None:
        """The same, where the boundary of a step is in the callback of a Trainer."""
        self.step_is_boundary = False
        self.take_part()

    def run(self) -> None:
        """Starts the thread of the agreement, if this process takes part."""
        if self.agreement is not None and not self._session.off:
            self._worker.start()

    def _agree(self, ends: threading.Event) -> None:
        if self.agreement is not None:
            self.agreement.run(ends)

    def end(self) -> None:
        """With its thread: a call of the store that returns while the interpreter ends would abort the process."""
        if self.agreement is not None:
            self.agreement.end()
        self._worker.join(END_WAIT)

    @_guarded()
    def _agreement_tells(self, what: str, detail: JSON) -> None:
        if what == "failed":
            self._due = False
            return self._send("failed", None, None, detail["reason"])
        message = {"type": "event", "t": _now(), "name": "checkpoint " + what, "step": self._steps.last}
        self._session.send(dict(message, detail=detail), keep=True)

    def watch(self) -> None:
        """In the thread that reads the allocator: the other one may wait for a store that hangs."""
        if self.agreement is not None and _default_store()[1] > 1:
            self.agreement.watch()

    @property
    def requested(self) -> bool:
        """What `Monitor.checkpoint_requested` is."""
        if self._due:
            return True
        agreement = self.agreement
        return agreement is not None and agreement.asked and _default_store()[1] <= 1

    def boundary(self, n: int) -> bool:
        """After step `n`, in the training thread, at the same place of every rank: whether to save now."""
        agreement = self.agreement
        if agreement is None:
            return False
        self.handlers.keep()
        if agreement.boundary(n):
            self._due = True
        elif self._agree_every > 0 and n % self._agree_every == 0 and _any_rank_asked(agreement.asked):
            self._due = True
        if not (self._due or agreement.asked and self.requested):
            return False
        for saver in self.savers:
            self._save(saver, n)
        return True

    def _save(self, saver: Saver, n: int) -> None:
        self.report("saving", None, n)
        try:
            path = saver(n)
        except Exception as error:
            self.report("failed", None, n, "%s: %s" % (type(error).__name__, error))
            return _hide(error, "callback of on_checkpoint")
        self.report("saved", path if isinstance(path, (str, os.PathLike)) else None, n)

    def handle(self, signals: Sequence[int]) -> bool:
        """Handles signals by requesting a checkpoint; whether all of them can be."""
        self.take_part()
        return self.handlers.install(signals) is None

    def _ask(self) -> None:
        # After a fork there is another agreement.
        if self.agreement is not None:
            self.agreement.ask()

    def saving(self) -> JSON:
        """What `hello` says of requests: whether the signal leads to a checkpoint, where that is known."""
        if not self.handlers.wanted:
            return {}
        problem = self.handlers.problem()
        return {"saves": True} if problem is None else {"saves": False, "saves_reason": _short(problem)}

    def report(self, state: str, path: Optional[Any], step: Optional[int], reason: Optional[str] = None) -> None:
        """Acknowledges a checkpoint; one that is saved or has failed answers the request."""
        if state != "saving":
            self._due = False
            if self.agreement is not None:
                self.agreement.done()
        self._send(state, path, step, reason)

    def _send(self, state: str, path: Optional[Any], step: Optional[int], reason: Optional[str]) -> None:
        self._session.ensure_started()
        message: JSON = {"type": "checkpoint", "t": _now(), "state": state}
        message["step"] = self._steps.last if step is None else int(step)
        if path is not None:
            message["path"] = os.path.abspath(os.fspath(path))
        if reason is not None:
            message["reason"] = _short(reason)
        self._session.send(message, keep=True)


def _default_store() -> Any:
    from . import _agreement

    return _agreement.default_store()


def _any_rank_asked(asked: bool) -> bool:
    """A collective: every rank calls it at the same step."""
    distributed = sys.modules.get("torch.distributed")
    store, world = _default_store()
    if distributed is None or world <= 1 or store is not None:
        return False
    device = "cuda" if distributed.get_backend() == "nccl" else "cpu"
    flag = _torch().tensor([1 if asked else 0], device=device)
    distributed.all_reduce(flag, op=distributed.ReduceOp.MAX)
    return bool(flag.item())


class _Checkpoint:
    """`with monitor.checkpoint(path):`, which may be entered again for each save."""

    def __init__(self, monitor: Any, path: Optional[Path], step: Optional[int]) -> None:
        self._monitor, self._about = monitor, (path, step)

    def __enter__(self) -> None:
        self._monitor.checkpoint_saving(*self._about)

    def __exit__(self, kind: Any, *_: Any) -> None:
        if kind is None:
            self._monitor.checkpoint_saved(*self._about)
        else:
            self._monitor.checkpoint_failed(*self._about, getattr(kind, "__name__", None))
