"""Hooks of PyTorch that report steps, tokens and phases."""

from __future__ import annotations

import collections
import functools
import gc
import weakref
from typing import Any, List, Mapping, Optional, Tuple

from ._base import _dtype, _guarded, _hide, _number
from ._models import _unwrap
from ._monitor import Monitor
from ._process import _torch
from ._trainers import save_by_trainers


class _Watch:
    """Steps, tokens and phases from hooks. Every hook is guarded, and does nothing while a compiler traces it."""

    def __init__(self, monitor: Monitor) -> None:
        self.monitor = monitor
        self.counts: "weakref.WeakKeyDictionary[Any, int]" = weakref.WeakKeyDictionary()
        self.before: "weakref.WeakKeyDictionary[Any, int]" = weakref.WeakKeyDictionary()
        self.highest = 0
        self.tokens = self.samples = self.calls = self.depth = 0
        self.followed: List[Any] = []
        self.searches = 0
        self._forward: Any = None
        self._optimizer: Any = None
        self.fit = monitor._fit

    # Hooks of the optimizer: a process may have several, and the one with the most steps counts.

    @_guarded()
    def before_step(self, optimizer: Any, *_: Any) -> None:
        if not _tracing():
            self.fit.before_step(optimizer)
        self._optimizer = self.monitor._phases.begin("optimizer")

    @_guarded()
    def after_step(self, optimizer: Any, *_: Any) -> None:
        self.monitor._phases.end("optimizer", self._optimizer)
        self._optimizer = None
        self.fit.after_step(optimizer)
        # A call that raised has not reset it.
        self.depth = 0
        count = self.counts.get(optimizer, 0) + 1
        if count == 1:
            self.before[optimizer] = _steps_before(optimizer)
        self.counts[optimizer] = count
        if count <= self.highest:
            return
        self.highest = count
        tokens, samples = self.tokens, self.samples
        self.tokens = self.samples = 0
        self.monitor.step(self.before.get(optimizer, 0) + count, tokens=tokens or None, samples=samples or None)
        if self.searches == 1:
            self._after_first(optimizer)

    # The model: the modules that hold most of the parameters that the optimizer trains. Of nested modules the outermost
    # counts. The hooks are those of the modules: global hooks would make torch.compile warn, and cost time in each
    # call.

    def await_optimizer(self, kind: Any) -> None:
        original = kind.__init__

        @functools.wraps(original)
        def wrapped(optimizer: Any, *args: Any, **kwargs: Any) -> None:
            original(optimizer, *args, **kwargs)
            self.fit.made(optimizer)
            if self.searches == 0:
                self.search(optimizer)
                save_by_trainers(self.monitor)

        kind.__init__ = wrapped

    @_guarded()
    def search(self, optimizer: Any) -> None:
        """Called when the first optimizer is made, and again if no module that was found was ever called."""
        for module in _owners(optimizer):
            self.searches = 1
            if not any(known() is module for known in self.followed):
                self.follow(module)

    def _after_first(self, optimizer: Any) -> None:
        if not self.calls:
            self.search(optimizer)
        self.searches = 2
        modules = [module for module in (known() for known in self.followed) if module is not None]
        if not modules:
            return
        facts = self.monitor._identity.facts
        wrappers = ("DistributedDataParallel", "FullyShardedDataParallel")
        if facts["data_parallel"] is None and any(type(module).__name__ in wrappers for module in modules):
            facts["data_parallel"] = self.monitor._identity.hello()["world"]
        if facts["precision"] is None:
            weights = (each for each in modules[0].parameters() if each.is_floating_point())
            found = collections.Counter(_dtype(each.dtype) for each in weights)
            if found:
                facts["precision"] = found.most_common(1)[0][0]
        configured = (module for module in modules if hasattr(_unwrap(module), "config"))
        self.monitor.describe(next(configured, modules[0]))

    def follow(self, module: Any) -> None:
        module.register_forward_pre_hook(self.before_forward, with_kwargs=True)
        module.register_forward_hook(self.after_forward)
        self.followed.append(weakref.ref(module))
        self.fit.plan.model(module, lambda: list(self.fit._optimizers))

    def before_forward(self, module: Any, inputs: Any, kwargs: Any) -> None:
        if _tracing():
            return
        try:
            self.depth += 1
            if self.depth == 1 and module.training and _torch().is_grad_enabled():
                self.calls += 1
                samples, length = self._count(inputs, kwargs)
                if samples:
                    self.fit.forward_begins(samples, length)
                self._forward = self.monitor._phases.begin("forward")
            elif self.depth == 1 and not module.training:
                self.fit.evaluation_begins()
        except Exception as error:
            _hide(error, "forward")

    def after_forward(self, module: Any, inputs: Any, output: Any) -> None:
        if _tracing():
            return
        self.depth = max(0, self.depth - 1)
        if self.depth == 0 and self._forward is not None:
            begun, self._forward = self._forward, None
            self.monitor._phases.end("forward", begun)
            try:
                self.fit.forward_ends(output)
            except Exception as error:
                _hide(error, "forward")

    def _count(self, inputs: Any, kwargs: Any) -> Tuple[int, Optional[int]]:
        """Whole numbers in two dimensions are tokens, one sequence per row; other tensors only have samples.

        Returns the samples, and the length of each where it is known.
        """
        given = kwargs.get("input_ids")
        if given is None:
            given = kwargs.get("inputs_embeds")
        if given is None and len(inputs) == 1 and isinstance(inputs[0], Mapping):
            given = inputs[0].get("input_ids")
        if given is None:
            given = next((each for each in (*inputs, *kwargs.values()) if hasattr(each, "is_floating_point")), None)
        if given is None or not len(given.shape):
            return 0, None
        self.samples += int(given.shape[0])
        embedded = given is kwargs.get("inputs_embeds")
        if len(given.shape) == 2 and not given.is_floating_point() or embedded and len(given.shape) == 3:
            self.tokens += int(given.shape[0]) * int(given.shape[1])
            facts = self.monitor._identity.facts
            if facts["sequence_length"] is None:
                facts["sequence_length"] = int(given.shape[1])
            return int(given.shape[0]), int(given.shape[1])
        return int(given.shape[0]), None

    # Backward and the loader have no hooks.

    def wrap(self, owner: Any, name: str, phase: str) -> None:
        original = getattr(owner, name)
        monitor = self.monitor

        @functools.wraps(original)
        def wrapped(*args: Any, **kwargs: Any) -> Any:
            if _tracing():
                return original(*args, **kwargs)
            begun = monitor._phases.begin(phase)
            if phase == "loader":
                monitor._fit.plan.loading(args[0])
            try:
                return original(*args, **kwargs)
            finally:
                monitor._phases.end(phase, begun)

        setattr(owner, name, wrapped)


def _owners(optimizer: Any) -> List[Any]:
    """The modules that hold at least half of an optimizer's parameters, the outermost first. Takes about 0.1 s."""
    kind = _torch().nn.Module
    trained = {id(each) for group in optimizer.param_groups for each in group["params"]}
    found = []
    for each in gc.get_objects():
        # `isinstance` would query objects that imitate another class.
        if issubclass(type(each), kind):
            held = {id(parameter) for parameter in each.parameters()}
            if trained and len(held & trained) * 2 >= len(trained):
                found.append((sum(1 for _ in each.modules()), each))
    return [module for _, module in sorted(found, key=lambda pair: -pair[0])[:16]]


@_guarded(0)
def _steps_before(optimizer: Any) -> int:
    """After the first step: the steps in the checkpoint that the optimizer was loaded from, if its state counts them."""
    first: Any = next(iter((getattr(optimizer, "state", None) or {}).values()), {})
    # Fused and capturable optimizers count on the device, which is not read.
    steps = _number(first.get("step"))
    return 0 if steps is None else max(0, int(steps) - 1)


def _tracing() -> bool:
    compiler = getattr(_torch(), "compiler", None)
    return bool(compiler is not None and hasattr(compiler, "is_compiling") and compiler.is_compiling())
