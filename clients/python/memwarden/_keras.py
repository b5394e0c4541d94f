"""The callback of Keras' `fit`."""

from __future__ import annotations

import math
import os
from typing import Any, Optional

from ._base import Path, _guarded
from ._monitor import Monitor
from ._trainers import class_of_framework

_Base: Any = class_of_framework("Callback", "keras.callbacks")


class KerasCallback(_Base):  # type: ignore[misc]
    """Reports the steps of `fit`: `model.fit(..., callbacks=[memwarden.KerasCallback(batch_size=32)])`.

    The loss is the one that Keras shows: the mean of the epoch so far. Keras does not tell callbacks how large a batch is:
    without `batch_size` no samples are counted, and without `sequence_length` no tokens. With `folder`, saves the model
    there when a checkpoint is requested (see `Monitor.on_checkpoint_signal`).
    """

    def __init__(
        self,
        monitor: Optional[Monitor] = None,
        *,
        batch_size: Optional[int] = None,
        sequence_length: Optional[int] = None,
        folder: Optional[Path] = None,
    ) -> None:
        super().__init__()
        self.monitor = monitor or Monitor()
        self._batch, self._sequence, self._folder = batch_size, sequence_length, folder
        self._step = 0

    @_guarded()
    def on_train_begin(self, logs: Any = None) -> None:
        """Describes the model, and starts the monitor."""
        monitor = self.monitor
        if self._folder is not None:
            monitor._checkpoints.take_part_in_trainer()
        if self._sequence is not None:
            monitor.describe(sequence_length=self._sequence)
        # What was trained before goes on.
        self._step = int(self.model.optimizer.iterations)
        weights = self.model.weights
        sizes = [(math.prod(int(size) for size in each.shape), each.trainable) for each in weights]
        count, trained = sum(size for size, _ in sizes), sum(size for size, trained in sizes if trained)
        monitor._identity.shape({"kind": "keras", "parameters": count, "trainable": trained})
        monitor.start()

    @_guarded()
    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Reports the step, and saves if a checkpoint is requested."""
        self._step += 1
        tokens = self._batch * self._sequence if self._batch and self._sequence else None
        rate = getattr(self.model.optimizer, "learning_rate", None)
        monitor, loss = self.monitor, (logs or {}).get("loss")
        monitor.step(
            self._step,
            tokens=tokens,
            samples=self._batch,
            loss=None if loss is None else float(loss),
            learning_rate=None if rate is None else float(rate),
        )
        if self._folder is not None and monitor._checkpoints.boundary(self._step):
            path = os.path.join(os.fspath(self._folder), "memwarden-step-%d.keras" % self._step)
            with monitor.checkpoint(path, self._step):
                self.model.save(path)

    @_guarded()
    def on_train_end(self, logs: Any = None) -> None:
        """Ends the series of this rank."""
        self.monitor.stop()
