"""The callback of Lightning's Trainer."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Any, Mapping, Optional

from ._base import _guarded, _log
from ._monitor import Monitor
from ._trainers import _Callback


def _callback_class() -> Any:
    """Lightning's `Callback`, from that of its two packages that the program has imported; otherwise an installed one."""
    names = ("lightning.pytorch", "pytorch_lightning")
    for name in sorted(names, key=lambda name: name not in sys.modules):
        try:
            return __import__(name, fromlist=["Callback"]).Callback
        except Exception as error:
            _log.debug("memwarden: %s: %r", name, error)
    return object


if TYPE_CHECKING:
    _Base = object
else:
    _Base = _callback_class()


class _LightningSaver(_Callback, _Base):
    """Only saves when asked; the steps are reported in another way."""

    _last = 0

    @_guarded()
    def on_train_batch_end(self, trainer: Any, module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        """Saves a checkpoint if one is requested, and the optimizer has stepped."""
        if trainer.global_step != self._last:
            self._last = int(trainer.global_step)
            self._save_if_due(trainer)

    def _save_if_due(self, trainer: Any) -> None:
        step = int(trainer.global_step)
        if not self.monitor._checkpoints.boundary(step):
            return
        known = getattr(getattr(trainer, "checkpoint_callback", None), "dirpath", None)
        path = os.path.join(str(known or trainer.default_root_dir), "memwarden-step=%d.ckpt" % step)
        with self.monitor.checkpoint(path, step):
            trainer.save_checkpoint(path)


class LightningCallback(_LightningSaver):
    """Reports the steps and loss of a Trainer: `Trainer(callbacks=[memwarden.LightningCallback()])`.

    Saves a checkpoint when one is requested (see `Monitor.on_checkpoint_signal`), and acknowledges what was saved.
    With `analyze`, reports the parameters of the model when training begins. Without a `monitor`, creates one when it
    is first used, so that a callback that has not been used can be pickled and sent to another process.
    """

    def __init__(self, monitor: Optional[Monitor] = None, analyze: bool = True) -> None:
        super().__init__(monitor, analyze)
        self._samples = self._tokens = 0

    @_guarded()
    def on_train_start(self, trainer: Any, module: Any) -> None:
        """Describes the run and the model, and starts the monitor."""
        self._last = int(getattr(trainer, "global_step", 0))
        self._samples = self._tokens = 0
        self.monitor.describe(data_parallel=getattr(trainer, "world_size", None))
        self._begin(module)

    @_guarded()
    def on_train_batch_end(self, trainer: Any, module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        """Counts samples and tokens of the batch, and reports the step if the optimizer has stepped."""
        given = batch.get("input_ids") if isinstance(batch, Mapping) else batch
        ids: Any = given[0] if isinstance(given, (list, tuple)) and given else given
        if hasattr(ids, "shape") and len(ids.shape):
            self._samples += int(ids.shape[0])
            if len(ids.shape) == 2 and not ids.is_floating_point():
                self._tokens += int(ids.shape[0]) * int(ids.shape[1])
        # Accumulation: one step has several batches.
        if trainer.global_step == self._last:
            return
        self._last = int(trainer.global_step)
        loss = outputs.get("loss") if isinstance(outputs, Mapping) else outputs
        self.monitor.step(self._last, tokens=self._tokens or None, samples=self._samples or None, loss=loss)
        self._samples = self._tokens = 0
        self._save_if_due(trainer)

    @_guarded()
    def on_validation_end(self, trainer: Any, module: Any) -> None:
        """Records the end of a validation."""
        self.monitor.record("validated")

    @_guarded()
    def on_exception(self, trainer: Any, module: Any, exception: BaseException) -> None:
        """Ends the series of this rank, with the name of the exception as the reason."""
        self.monitor.stop(type(exception).__name__)

    @_guarded()
    def on_train_end(self, trainer: Any, module: Any) -> None:
        """Ends the series of this rank."""
        self.monitor.stop()
