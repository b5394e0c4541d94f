"""The callback of Lightning's Trainer."""

from __future__ import annotations

import functools
import math
import os
from typing import Any, Mapping, Optional

from ._base import _guarded, _number
from ._monitor import Monitor
from ._trainers import _Callback, class_of_framework

_Base: Any = class_of_framework("Callback", "lightning.pytorch", "pytorch_lightning")


class LightningCallback(_Callback, _Base):  # type: ignore[misc]
    """Reports the steps, loss and checkpoints of a Trainer: `Trainer(callbacks=[memwarden.LightningCallback()])`.

    Saves a checkpoint when one is requested (see `Monitor.on_checkpoint_signal`), and acknowledges what was saved.
    With `analyze`, reports the parameters of the model when training begins. Without a `monitor`, creates one when it
    is first used, so that a callback that has not been used can be pickled and sent to another process.
    """

    _last = 0

    def __init__(self, monitor: Optional[Monitor] = None, analyze: bool = True) -> None:
        super().__init__(monitor, analyze)
        self._clear()

    def _clear(self) -> None:
        self._samples = self._tokens = self._batches = 0
        # None where a loss of the step is not known.
        self._loss: Optional[float] = 0.0

    @_guarded()
    def on_train_start(self, trainer: Any, module: Any) -> None:
        """Describes the run and the model, and starts the monitor."""
        self._last = int(getattr(trainer, "global_step", 0))
        self._clear()
        if "ModelParallel" not in type(getattr(trainer, "strategy", None)).__name__:
            self.monitor.describe(data_parallel=getattr(trainer, "world_size", None))
        self._acknowledge(trainer)
        self._begin(module, next(iter(getattr(trainer, "optimizers", None) or []), None))

    def _acknowledge(self, trainer: Any) -> None:
        """What the Trainer saves is reported, by a method of this object that calls the one of its class."""
        if "save_checkpoint" in vars(trainer):
            return
        original, monitor = trainer.save_checkpoint, self.monitor

        @functools.wraps(original)
        def save_checkpoint(filepath: Any, *args: Any, **kwargs: Any) -> Any:
            with monitor.checkpoint(filepath, int(trainer.global_step)):
                return original(filepath, *args, **kwargs)

        trainer.save_checkpoint = save_checkpoint

    @_guarded()
    def teardown(self, trainer: Any, module: Any, stage: str) -> None:
        """The Trainer is as before."""
        vars(trainer).pop("save_checkpoint", None)

    def _count_batch(self, trainer: Any, module: Any, outputs: Any, batch: Any) -> None:
        given = batch.get("input_ids") if isinstance(batch, Mapping) else batch
        ids: Any = given[0] if isinstance(given, (list, tuple)) and given else given
        if hasattr(ids, "shape") and len(ids.shape):
            self._samples += int(ids.shape[0])
            if len(ids.shape) == 2 and not ids.is_floating_point():
                self._tokens += int(ids.shape[0]) * int(ids.shape[1])
        loss = _number(outputs.get("loss") if isinstance(outputs, Mapping) else outputs)
        # The Trainer divides the loss by the number of batches of a step.
        divisor = getattr(trainer, "accumulate_grad_batches", 1) if getattr(module, "automatic_optimization", True) else 1
        self._batches += 1
        self._loss = None if loss is None or self._loss is None else self._loss + loss * divisor

    @_guarded()
    def on_train_batch_end(self, trainer: Any, module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        """Counts samples and tokens of the batch; reports the step and saves if requested, if the optimizer has stepped."""
        reports = self._ends or self._watch is not None
        if reports:
            self._count_batch(trainer, module, outputs, batch)
        # Accumulation: one step has several batches.
        if trainer.global_step == self._last:
            return
        self._last = int(trainer.global_step)
        if reports:
            tokens, samples = (None, None) if self._watch is None else self._watch.take()
            loss = None if self._loss is None else self._loss / self._batches
            self.monitor.step(
                self._last,
                tokens=tokens or self._tokens or None,
                samples=samples or self._samples or None,
                loss=loss,
                learning_rate=None if self._watch is None else self._watch.learning_rate,
            )
            self._clear()
        self._save_if_due(trainer)

    def _save_if_due(self, trainer: Any) -> None:
        step = int(trainer.global_step)
        if not self.monitor._checkpoints.boundary(step):
            return
        known = getattr(getattr(trainer, "checkpoint_callback", None), "dirpath", None)
        self._acknowledge(trainer)
        trainer.save_checkpoint(os.path.join(str(known or trainer.default_root_dir), "memwarden-step=%d.ckpt" % step))

    @_guarded()
    def on_validation_start(self, trainer: Any, module: Any) -> None:
        """Begins the phase of the evaluation."""
        self._evaluates()

    @_guarded()
    def on_validation_batch_end(
        self, trainer: Any, module: Any, outputs: Any, batch: Any, batch_idx: int, dataloader_idx: int = 0
    ) -> None:
        """Measures what batches that are tried before training keep."""
        if trainer.sanity_checking:
            count = sum(trainer.num_val_batches)
            # Of a stream, it is infinite.
            self.monitor._fit.evaluation_tried(0 if math.isinf(count) else int(count), (outputs, batch))

    @_guarded()
    def on_validation_end(self, trainer: Any, module: Any) -> None:
        """Records the end of a validation."""
        self._evaluated()
        if self._ends:
            self.monitor.record("validated")

    @_guarded()
    def on_exception(self, trainer: Any, module: Any, exception: BaseException) -> None:
        """Ends the series of this rank, with the type of the exception as the reason."""
        self._end(exception)

    @_guarded()
    def on_train_end(self, trainer: Any, module: Any) -> None:
        """Ends the series of this rank."""
        self._end()
