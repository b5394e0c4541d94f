"""What the callbacks of Hugging Face's and Lightning's Trainers share.

In a program that is instrumented without a change, Trainers get such a callback.
"""

from __future__ import annotations

import gc
import signal
import sys
from typing import TYPE_CHECKING, Any, List, Optional

from ._base import _guarded, _log
from ._auto import wrap_saves
from ._monitor import Monitor

if TYPE_CHECKING:
    from ._hooks import _Watch


def class_of_framework(name: str, *modules: str) -> Any:
    """The base of a callback: the class from one of these modules, that which the program has imported, or else an installed one.

    Type checkers take any subclass of it for a callback, with and without the framework.
    """
    for module in sorted(modules, key=lambda module: module not in sys.modules):
        try:
            return getattr(__import__(module, fromlist=[name]), name)
        except Exception as error:
            _log.debug("memwarden: %s: %r", module, error)
    return object


class _Callback:
    """Without a `monitor`, creates one when it is first used, so that an unused callback can be pickled."""

    # Whether the end of training is the end of the rank: not in a program that is instrumented without a change.
    _ends = True

    def __init__(self, monitor: Optional[Monitor] = None, analyze: bool = True) -> None:
        super().__init__()
        self._monitor, self._analyze = monitor, analyze
        self._watch: Optional[_Watch] = None
        # The evaluation that runs, for its phase.
        self._evaluation: Any = None

    @property
    def monitor(self) -> Monitor:
        """The monitor that this callback reports to."""
        if self._monitor is None:
            self._monitor = Monitor()
        return self._monitor

    def _begin(self, model: Any, optimizer: Any = None) -> None:
        """Training begins: hooks count tokens and measure phases, and this callback reports the steps."""
        self._evaluation = None
        self.monitor._checkpoints.take_part_in_trainer()
        if sys.modules.get("torch") is not None and model is not None:
            self._count(model, optimizer)
        self.monitor.start()
        if model is not None and self._analyze:
            self.monitor.analyze_model(model, optimizer, check_values=False)

    @_guarded()
    def _count(self, model: Any, optimizer: Any) -> None:
        from ._hooks import watch_all

        self._watch = watch = watch_all(self.monitor)
        watch.only_counts, watch.analyzes = True, self._analyze or not self._ends
        if watch.searches == 0:
            # Trainers wrap the optimizer.
            watch.search(getattr(optimizer, "optimizer", optimizer))
        if not watch.followed:
            watch.follow(model)
            watch.searches = 1

    def _evaluates(self) -> None:
        """Begins the phase of an evaluation, unless one runs."""
        if self._evaluation is None:
            self._evaluation = self.monitor._phases.begin("evaluation")

    def _evaluated(self) -> None:
        """Ends it."""
        begun, self._evaluation = self._evaluation, None
        self.monitor._phases.end("evaluation", begun)

    def _end(self, raised: Optional[BaseException] = None) -> None:
        """Training has ended, by this exception or as intended."""
        if self._watch is not None:
            self._watch.only_counts, self._watch.evaluates = False, None
        if self._ends:
            self.monitor._ends(raised)
        if raised is None:
            self._evaluated()


def _trainers(*modules: str) -> List[Any]:
    """The objects of the class `Trainer` of these modules, if the program has imported them."""
    kinds = tuple(sys.modules[name].Trainer for name in modules if hasattr(sys.modules.get(name), "Trainer"))
    return [each for each in gc.get_objects() if issubclass(type(each), kinds)] if kinds else []


def _follow(kind: Any, callbacks: List[Any], monitor: Monitor) -> None:
    """Adds a callback of this kind to a Trainer that has none."""
    if not any(isinstance(each, kind) for each in callbacks):
        callback = kind(monitor, analyze=False)
        callback._ends = False
        callbacks.append(callback)


@_guarded(0)
def save_by_trainers(monitor: Monitor) -> int:
    """Adds a callback to each Trainer; handles SIGUSR1, beside the program's own handler. Returns their number."""
    transformers = _trainers("transformers.trainer")
    lightning = _trainers("lightning.pytorch.trainer.trainer", "pytorch_lightning.trainer.trainer")
    if transformers:
        wrap_saves(lambda: monitor._fit, sys.modules.get("transformers.modeling_utils"), "safe_save_file")
        from ._huggingface import HuggingFaceCallback

        for trainer in transformers:
            monitor._fit.plan.trainer(trainer)
            _follow(HuggingFaceCallback, trainer.callback_handler.callbacks, monitor)
    if lightning:
        from ._lightning import LightningCallback

        for trainer in lightning:
            monitor._fit.plan.trainer(trainer, lightning=True)
            _follow(LightningCallback, trainer.callbacks, monitor)
    found = len(transformers) + len(lightning)
    if found:
        monitor._checkpoints.take_part_in_trainer()
        if signal.getsignal(signal.SIGUSR1) is signal.SIG_IGN:
            monitor._checkpoints.handlers.refuse(signal.SIGUSR1, "the program ignores SIGUSR1")
        else:
            monitor._checkpoints.handle([signal.SIGUSR1])
    return found
