"""The callback of Hugging Face's Trainer."""

from __future__ import annotations

import os
from typing import Any, Optional, Tuple

from ._base import JSON, _clock, _guarded
from ._monitor import Monitor
from ._process import launcher_rank
from ._trainers import _Callback, class_of_framework

_Base: Any = class_of_framework("TrainerCallback", "transformers")


class HuggingFaceCallback(_Callback, _Base):  # type: ignore[misc]
    """Reports the steps, loss and checkpoints of a Trainer: `Trainer(callbacks=[memwarden.HuggingFaceCallback()])`.

    Saves a checkpoint when one is requested (see `Monitor.on_checkpoint_signal`), and acknowledges what was saved.
    With `analyze`, reports the parameters of the model when training begins. Without a `monitor`, creates one when it
    is first used, so that a callback that has not been used can be pickled and sent to another process.
    """

    def __init__(self, monitor: Optional[Monitor] = None, analyze: bool = True) -> None:
        super().__init__(monitor, analyze)
        self._waiting: Optional[JSON] = None
        self._seen, self._ended = 0, _clock()

    @_guarded()
    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Describes the run and the model, and starts the monitor."""
        if getattr(args, "bf16", False) or getattr(args, "fp16", False):
            self.monitor.describe(precision="bf16" if args.bf16 else "fp16")
        if getattr(args, "gradient_checkpointing", False):
            self.monitor.describe(recompute="full")
        self._begin(kwargs.get("model"), kwargs.get("optimizer"))
        if self._watch is not None:
            self._watch.evaluates = self._evaluating
        self._seen, self._ended = self._total(state) or 0, _clock()

    def _evaluating(self, evaluates: bool) -> None:
        """The model is called in an evaluation, whose begin no event has, or in training."""
        if evaluates:
            self._evaluates()
        elif self._evaluation is not None:
            self._evaluated()

    def _report(self, **logged: Any) -> None:
        """The Trainer logs the loss of a step after its end: the step waits for it, until the next one begins."""
        step, self._waiting = self._waiting, None
        if step is not None:
            # The logged rate may be that of the next step.
            logged.update((key, step.pop(key)) for key in ("learning_rate",) if key in step)
            self.monitor.step(step.pop("n"), **step, **logged)

    def _counted(self, args: Any, state: Any) -> Tuple[Optional[int], Optional[int]]:
        """Tokens and samples of this rank in the last step."""
        tokens, samples = (None, None) if self._watch is None else self._watch.take()
        if tokens is None:
            # The Trainer counts the tokens of all ranks, where it is configured to.
            total = self._total(state)
            tokens, self._seen = (total - self._seen, total) if total is not None else (None, self._seen)
        if samples is None:
            samples = getattr(args, "per_device_train_batch_size", 0) * getattr(args, "gradient_accumulation_steps", 1)
        return tokens, samples or None

    @staticmethod
    def _total(state: Any) -> Optional[int]:
        total = getattr(state, "num_input_tokens_seen", None)
        return int(total) // max(1, launcher_rank()[2]) if total else None

    @_guarded()
    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Keeps the step until its loss is logged, and saves a checkpoint if one is requested."""
        self._report()
        if self._ends or self._watch is not None:
            tokens, samples = self._counted(args, state)
            begun, self._ended = self._ended, _clock()
            self._waiting = {"n": state.global_step, "tokens": tokens, "samples": samples}
            self._waiting["seconds"] = self._ended - begun
            if self._watch is not None and self._watch.learning_rate is not None:
                self._waiting["learning_rate"] = self._watch.learning_rate
        if self.monitor._checkpoints.boundary(int(state.global_step)) and control is not None:
            self.monitor.checkpoint_saving(step=state.global_step)
            control.should_save = True

    @_guarded()
    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **kwargs: Any) -> None:
        """Reports the last step with its loss, learning rate and gradient norm."""
        names = ("loss", "learning_rate", "grad_norm")
        self._report(**{name: logs[name] for name in names if name in (logs or {})})

    @_guarded()
    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Reports the last step, if its loss was not logged."""
        # An evaluation that raised, which the program caught, has not ended otherwise.
        self._evaluated()
        self._report()

    @_guarded()
    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Reports that the checkpoint is complete."""
        self._report()
        path = os.path.join(args.output_dir, "checkpoint-%d" % state.global_step)
        self.monitor.checkpoint_saved(path, state.global_step)

    @_guarded()
    def on_evaluate(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Records the end of an evaluation, which began when the model was called for it."""
        self._evaluated()
        self.monitor.record("evaluated")

    @_guarded()
    def on_predict(self, args: Any, state: Any, control: Any, metrics: Any = None, **kwargs: Any) -> None:
        """The same for predictions."""
        self._evaluated()

    @_guarded()
    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Reports the last step and ends the series of this rank."""
        self._report()
        self._end()
