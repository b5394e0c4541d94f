"""Requests for a checkpoint, and their acknowledgement."""

from __future__ import annotations

import os
import signal
from typing import Any, Optional

from ._base import JSON, _guarded, _now
from ._messages import _Messages


class _Checkpoints(_Messages):
    """The part of a monitor that receives and acknowledges requests for a checkpoint."""

    _checkpoint_requested: bool

    @property
    def checkpoint_requested(self) -> bool:
        """Whether a checkpoint is requested, until one is saved or has failed."""
        return self._checkpoint_requested

    @_guarded(False)
    def on_checkpoint_signal(self, *signals: int) -> bool:
        """Handles signals (without any, SIGUSR1) by setting `checkpoint_requested`, and nothing else.

        A handler that was there is called afterwards. Only the main thread may; False where it could not be done.
        """
        for number in signals or (signal.SIGUSR1,):
            before = signal.getsignal(number)

            def handler(number: int, frame: Any, before: Any = before) -> None:
                self._checkpoint_requested = True
                if callable(before) and before is not signal.default_int_handler:
                    before(number, frame)

            signal.signal(number, handler)
        return True

    @_guarded()
    def request_checkpoint(self) -> None:
        """Sets `checkpoint_requested` like a signal; for callbacks of `on_risk`."""
        self._checkpoint_requested = True

    @_guarded()
    def checkpoint_saving(self, path: Optional[str] = None, step: Optional[int] = None) -> None:
        """Reports that a checkpoint is being written: protection then waits for it."""
        self._checkpoint("saving", path, step)

    @_guarded()
    def checkpoint_saved(self, path: Optional[str] = None, step: Optional[int] = None) -> None:
        """Reports that the checkpoint is complete and on its disk: protection may continue."""
        self._checkpoint_requested = False
        self._checkpoint("saved", path, step)

    @_guarded()
    def checkpoint_failed(self, path: Optional[str] = None, step: Optional[int] = None) -> None:
        """Reports that the checkpoint could not be written."""
        self._checkpoint_requested = False
        self._checkpoint("failed", path, step)

    def checkpoint(self, path: Optional[str] = None, step: Optional[int] = None) -> "_Checkpoint":
        """`with monitor.checkpoint(path): torch.save(...)`: saving, then saved, or failed if it raises."""
        return _Checkpoint(self, path, step)

    def _checkpoint(self, state: str, path: Optional[str], step: Optional[int]) -> None:
        if not self._ready and not self._stopped:
            self.start()
        message: JSON = {"type": "checkpoint", "t": _now(), "state": state}
        message["step"] = self._step if step is None else int(step)
        if path is not None:
            message["path"] = os.path.abspath(os.fspath(path))
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
            self._monitor.checkpoint_failed(*self._about)
