"""Trainers of Hugging Face and Lightning in a program that is instrumented without a change: they save when asked."""

from __future__ import annotations

import gc
import signal
import sys
import threading
from typing import Any, List

from ._base import _guarded
from ._monitor import Monitor


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
        from ._huggingface import HuggingFaceCallback, _HuggingFaceSaver

        for trainer in transformers:
            if not any(isinstance(each, HuggingFaceCallback) for each in trainer.callback_handler.callbacks):
                trainer.add_callback(_HuggingFaceSaver(monitor))
    if lightning:
        from ._lightning import LightningCallback, _LightningSaver

        for trainer in lightning:
            if not any(isinstance(each, LightningCallback) for each in trainer.callbacks):
                trainer.callbacks.append(_LightningSaver(monitor))
    found = len(transformers) + len(lightning)
    if found and threading.current_thread() is threading.main_thread():
        if signal.getsignal(signal.SIGUSR1) is signal.SIG_DFL:
            monitor.on_checkpoint_signal()
    return found
