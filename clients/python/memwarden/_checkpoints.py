"""Requests for a checkpoint, the step at which all ranks save, and the acknowledgement."""

from __future__ import annotations

import os
import signal
import sys
import threading
from typing import Any, Callable, List, Optional

from ._agreement import _Agreement, default_store
from ._base import JSON, _guarded, _hide, _now, _text
from ._messages import _Messages
from ._process import _torch

# Seconds that the end of training waits for a call of the store that is under way.
END_WAIT = 2.0

Saver = Callable[[int], Any]


class _Checkpoints(_Messages):
    """The part of a monitor that receives requests for a checkpoint, agrees on its step, and acknowledges it."""

    _wake: threading.Event
    _agree_every: int
    _savers: List[Saver]
    _agreement: Optional[_Agreement]
    _agreement_thread: Optional[threading.Thread]
    _checkpoint_due: bool
    # Whether `step` is the boundary between steps; otherwise a callback of a Trainer says where it is.
    _step_is_boundary: bool

    def _clear_checkpoints(self) -> None:
        self._checkpoint_due = False
        self._agreement_thread = None
        if self._agreement is not None:
            self._agreement = _Agreement(self._agreement_tells)

    def _agrees(self) -> _Agreement:
        """This process saves when it is asked: from now on it takes part in the agreement."""
        if self._agreement is None:
            self._agreement = _Agreement(self._agreement_tells)
        if self._ready:
            self._run_agreement()
        return self._agreement

    def _run_agreement(self) -> None:
        if self._agreement is not None and self._agreement_thread is None and not self._off:
            arguments = (self._wake,)
            thread = threading.Thread(target=self._agreement.run, args=arguments, name="memwarden-save", daemon=True)
            self._agreement_thread = thread
            thread.start()

    def _end_agreement(self) -> None:
        """With its thread: a call of the store that returns while the interpreter ends would abort the process."""
        if self._agreement is not None:
            self._agreement.end()
        thread = self._agreement_thread
        if thread is not None and thread is not threading.current_thread():
            thread.join(END_WAIT)

    @_guarded()
    def _agreement_tells(self, what: str, detail: JSON) -> None:
        if what == "failed":
            self._checkpoint_due = False
            return self._checkpoint("failed", None, None, detail["reason"])
        message = {"type": "event", "t": _now(), "name": "checkpoint " + what, "step": self._step, "detail": detail}
        self._send(message, keep=True)

    def _watch_request(self) -> None:
        """In the thread that reads the allocator: the other one may wait for a store that hangs."""
        if self._agreement is not None and default_store()[1] > 1:
            self._agreement.watch()

    @property
    def checkpoint_requested(self) -> bool:
        """Whether to save a checkpoint now, until one is saved or has failed.

        With a process group of several ranks: from the agreed step on. Otherwise as soon as one is requested.
        """
        if self._checkpoint_due:
            return True
        agreement = self._agreement
        return agreement is not None and agreement.asked and default_store()[1] <= 1

    def _boundary(self, n: int) -> bool:
        """After step `n`, in the training thread, at the same place of every rank: whether to save now."""
        agreement = self._agreement
        if agreement is None:
            return False
        if agreement.boundary(n):
            self._checkpoint_due = True
        elif self._agree_every > 0 and n % self._agree_every == 0 and self._any_rank_asked(agreement.asked):
            self._checkpoint_due = True
        if not (self._checkpoint_due or agreement.asked and self.checkpoint_requested):
            return False
        for saver in self._savers:
            self._save_with(saver, n)
        return True

    def _save_with(self, saver: Saver, n: int) -> None:
        self._checkpoint("saving", None, n)
        try:
            path = saver(n)
        except Exception as error:
            self._checkpoint_answered()
            self._checkpoint("failed", None, n, "%s: %s" % (type(error).__name__, error))
            return _hide(error, "callback of on_checkpoint")
        self._checkpoint_answered()
        self._checkpoint("saved", path if isinstance(path, (str, os.PathLike)) else None, n)

    def _any_rank_asked(self, asked: bool) -> bool:
        """A collective: every rank calls it at the same step."""
        distributed = sys.modules.get("torch.distributed")
        store, world = default_store()
        if distributed is None or world <= 1 or store is not None:
            return False
        device = "cpu"
        if distributed.get_backend() == "nccl":
            device = "cuda"
        flag = _torch().tensor([1 if asked else 0], device=device)
        distributed.all_reduce(flag, op=distributed.ReduceOp.MAX)
        return bool(flag.item())

    @_guarded(False)
    def on_checkpoint_signal(self, *signals: int) -> bool:
        """Handles signals (without any, SIGUSR1) by requesting a checkpoint, and nothing else.

        A handler that was there is called afterwards. Only the main thread may; False where it could not be done.
        """
        agreement = self._agrees()
        for number in signals or (signal.SIGUSR1,):
            before = signal.getsignal(number)

            def handler(number: int, frame: Any, before: Any = before) -> None:
                # After a fork there is another agreement.
                (self._agreement or agreement).ask()
                if callable(before) and before is not signal.default_int_handler:
                    before(number, frame)

            signal.signal(number, handler)
        return True

    @_guarded(False)
    def on_checkpoint(self, save: Saver, *signals: int) -> bool:
        """Calls `save(step)` within `step`, when a checkpoint is requested, at a step that all ranks agree on.

        `save` may return the path of what it saved. Its exceptions are reported as a failed checkpoint, and training
        goes on. Handles signals as `on_checkpoint_signal` does.
        """
        if not callable(save):
            raise TypeError("not a function: %s" % _text(save))
        self._savers.append(save)
        return self.on_checkpoint_signal(*signals)

    @_guarded()
    def request_checkpoint(self) -> None:
        """Requests a checkpoint like a signal; for callbacks of `on_risk`."""
        self._agrees().ask()

    @_guarded()
    def checkpoint_saving(self, path: Optional[str] = None, step: Optional[int] = None) -> None:
        """Reports that a checkpoint is being written: protection then waits for it."""
        self._checkpoint("saving", path, step)

    @_guarded()
    def checkpoint_saved(self, path: Optional[str] = None, step: Optional[int] = None) -> None:
        """Reports that the checkpoint is complete and on its disk: protection may continue."""
        self._checkpoint_answered()
        self._checkpoint("saved", path, step)

    @_guarded()
    def checkpoint_failed(
        self, path: Optional[str] = None, step: Optional[int] = None, reason: Optional[str] = None
    ) -> None:
        """Reports that the checkpoint could not be written, and why."""
        self._checkpoint_answered()
        self._checkpoint("failed", path, step, reason)

    def _checkpoint_answered(self) -> None:
        self._checkpoint_due = False
        if self._agreement is not None:
            self._agreement.done()

    def checkpoint(self, path: Optional[str] = None, step: Optional[int] = None) -> "_Checkpoint":
        """`with monitor.checkpoint(path): torch.save(...)`: saving, then saved, or failed if it raises."""
        return _Checkpoint(self, path, step)

    def _checkpoint(
        self, state: str, path: Optional[Any], step: Optional[int], reason: Optional[str] = None
    ) -> None:
        if not self._ready and not self._stopped:
            self.start()
        message: JSON = {"type": "checkpoint", "t": _now(), "state": state}
        message["step"] = self._step if step is None else int(step)
        if path is not None:
            message["path"] = os.path.abspath(os.fspath(path))
        if reason is not None:
            message["reason"] = _text(reason)[:500]
        self._send(message, keep=True)


class _Checkpoint:
    def __init__(self, monitor: _Checkpoints, path: Optional[str], step: Optional[int]) -> None:
        self._monitor, self._about = monitor, (path, step)

    def __enter__(self) -> None:
        self._monitor.checkpoint_saving(*self._about)

    def __exit__(self, kind: Any, *_: Any) -> None:
        if kind is None:
            self._monitor.checkpoint_saved(*self._about)
        else:
            self._monitor.checkpoint_failed(*self._about, getattr(kind, "__name__", None))
