"""What PyTorch calls: hooks of modules and of optimizers, and what is found of them."""

from __future__ import annotations

import contextlib
import gc
from typing import Any, Callable, List

from ._base import _guarded, _hide, _number
from ._process import _torch

# Whether a compiler traces the caller, and whether it is that of torch.compile: one call less, for the hook of each step.
_tracing: Callable[[], bool] = getattr(getattr(_torch(), "compiler", None), "is_compiling", bool)
_in_dynamo: Callable[[], bool] = getattr(getattr(_torch(), "compiler", None), "is_dynamo_compiling", _tracing)


class _Hook:
    """A hook of a module. A copy of the module has the same; a pickled one has a function that does nothing, and needs no
    memwarden where it is loaded."""

    def __init__(self, watch: Any) -> None:
        self._watch = watch

    def __deepcopy__(self, _: Any) -> "_Hook":
        return self

    def __reduce__(self) -> Any:
        return getattr, (contextlib.nullcontext(), "__exit__")


class _BeforeForward(_Hook):
    def __call__(self, module: Any, inputs: Any, kwargs: Any) -> None:
        if _in_dynamo():
            return
        watch = self._watch
        try:
            watch.depth = depth = watch.depth + 1
            # Within another module that is followed there is nothing to do.
            if depth == 1 and not (watch.rest > 0 and module.training and watch.only_counts_batch(inputs, kwargs)):
                watch.before_forward(module, inputs, kwargs)
        except Exception as error:
            _hide(error, "forward")


class _AfterForward(_Hook):
    def __call__(self, module: Any, inputs: Any, output: Any) -> None:
        watch = self._watch
        if not _tracing():
            watch.depth = max(0, watch.depth - 1)
            if watch.depth == 0 and watch.forward is not None:
                watch.after_forward(output)


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


def _untraced(hook: Callable[..., Any], rests: Callable[[Any], bool]) -> Callable[..., Any]:
    """A hook of optimizers, called unless `rests`, that a compiled step calls as it is: a compiler would trace what it calls, for
    seconds.

    Optimizers break the graph themselves.
    """

    disabled = getattr(_torch(), "_disable_dynamo", lambda function: function)(
        lambda optimizer, *args: None if rests(optimizer) else hook(optimizer, *args)
    )
    frames = getattr(getattr(getattr(_torch(), "_C", None), "_dynamo", None), "eval_frame", None)
    callback = getattr(frames, "get_eval_frame_callback", None)
    if callback is None:
        return disabled  # type: ignore[no-any-return]

    def call(optimizer: Any, *args: Any) -> Any:
        # Where nothing is compiled, there is nothing to keep away, which takes 2 us.
        if callback() is not None:
            return disabled(optimizer, *args)
        return None if rests(optimizer) else hook(optimizer, *args)

    return call
