"""What the callbacks of Hugging Face's and Lightning's Trainers share.

In a program that is instrumented without a change, Trainers get a callback that saves when asked.
"""

from __future__ import annotations

import gc
import signal
import sys
import threading
from typing import Any, List, Optional

from ._base import _guarded
from ._monitor import Monitor


class _Callback:
    """Without a `monitor`, creates one when it is first used, so that an unused callback can be pickled."""

    def __init__(self, monitor: Optional[Monitor] = None, analyze: bool = True) -> None:
        super().__init__()
        self._monitor, self._analyze = monitor, analyze

    @property
    def monitor(self) -> Monitor:
        """The monitor that this callback reports to."""
        if self._monitor is None:
            self._monitor = Monitor()
        return self._monitor

    def _begin(self, model: Any, optimizer: Any = None) -> None:
        self.monitor._checkpoints.take_part_in_trainer()
        self.monitor.start()
        if model is not None and self._analyze:
            self.monitor.analyze_model(model, optimizer, check_values=False)


def _trainers(*modules: str) -> List[Any]:
    """The objects of the class `Trainer` of these modules, if the program has imported them."""
    kinds = tuple(sys.modules[name].Trainer for name in modules if hasattr(sys.modules.get(name), "Trainer"))
    return [each for each in gc.get_objects() if issubclass(type(each), kinds)] if kinds else []


@_guarded(0)
def save_by_trainers(monitor: Monitor) -> int:
    """Adds a callback that saves to each Trainer; handles SIGUSR1 if the program does not. Returns their number.

    The steps and tokens of the program are reported by the hooks of torch.
    """
    transformers = _trainers("transformers.trainer")
    lightning = _trainers("lightning.pytorch.trainer.trainer", "pytorch_lightning.trainer.trainer")
    if transformers:
        monitor._fit.wrap_saves(sys.modules.get("transformers.modeling_utils"), "safe_save_file")
        from ._huggingface import _HuggingFaceSaver

        for trainer in transformers:
            monitor._fit.plan.trainer(trainer)
            if not any(isinstance(each, _HuggingFaceSaver) for each in trainer.callback_handler.callbacks):
                trainer.add_callback(_HuggingFaceSaver(monitor))
    if lightning:
        from ._lightning import _LightningSaver

        for trainer in lightning:
            monitor._fit.plan.trainer(trainer, lightning=True)
            if not any(isinstance(each, _LightningSaver) for each in trainer.callbacks):
                trainer.callbacks.append(_LightningSaver(monitor))
    found = len(transformers) + len(lightning)
    if found:
        monitor._checkpoints.take_part_in_trainer()
    if found and threading.current_thread() is threading.main_thread():
        if signal.getsignal(signal.SIGUSR1) is signal.SIG_DFL:
            monitor.on_checkpoint_signal()
    return found
