"""Hooks of PyTorch that report steps, tokens and phases."""

from __future__ import annotations

import collections
import contextlib
import functools
import gc
import weakref
import sys
from typing import Any, Callable, Dict, List, Mapping, Optional, Tuple

from ._base import _clock, _dtype, _guarded, _hide, _now, _number
from ._monitor import Monitor
from ._process import _torch
from ._tokens import _Tokens


# Steps after which modules that the program has not called itself are followed no longer.
LOOKED_AT = 8
# Modules of frameworks with a Trainer.
_TRAINERS = {"transformers.trainer", "lightning.pytorch.trainer.trainer", "pytorch_lightning.trainer.trainer"}


class _Hook:
    """A hook of a module. A copy of the module has the same; a pickled one has a function that does nothing, and needs no
    memwarden where it is loaded. Each call of a function costs a step a microsecond: hooks call little."""

    def __init__(self, watch: "_Watch") -> None:
        self._watch, self._tracing = watch, _tracing()

    def __deepcopy__(self, _: Any) -> "_Hook":
        return self

    def __reduce__(self) -> Any:
        return getattr, (contextlib.nullcontext(), "__exit__")


class _BeforeForward(_Hook):
    def __call__(self, module: Any, inputs: Any, kwargs: Any) -> None:
        if not self._tracing():
            watch = self._watch
            watch.depth = depth = watch.depth + 1
            if depth == 1:
                watch.before_forward(module, inputs, kwargs)


class _AfterForward(_Hook):
    def __call__(self, module: Any, inputs: Any, output: Any) -> None:
        if not self._tracing():
            watch = self._watch
            watch.depth = depth = max(0, watch.depth - 1)
            if depth == 0 and watch.forward is not None:
                watch.after_forward(output)


class _Watch:
    """Steps, tokens and phases from hooks. Every hook is guarded, and does nothing while a compiler traces it."""

    def __init__(self, monitor: Monitor) -> None:
        self.monitor = monitor
        # Steps of optimizers, but of the one with the most steps, which has `highest`.
        self._counts: "weakref.WeakKeyDictionary[Any, int]" = weakref.WeakKeyDictionary()
        self.before: "weakref.WeakKeyDictionary[Any, int]" = weakref.WeakKeyDictionary()
        self.highest = 0
        # The optimizer with the most steps, while it exists, and the number of its last step.
        self._leader: Any = None
        self._number = self._before = 0
        self.samples = self.calls = self.depth = 0
        # Calls of backward within each other.
        self._within = 0
        self._tokens = _Tokens()
        self.followed: List[Any] = []
        # The hooks of each of them, by its identity, while it is not known which of them are called by the program itself.
        self._inner: Optional[Dict[int, Tuple[Any, List[Any]]]] = {}
        self.searches = 0
        # Whether the callback of a Trainer reports the steps: hooks only count then.
        self.only_counts = False
        # Called before each micro-batch, with whether it is one of an evaluation; None but for a Trainer that says when that ends.
        self.evaluates: Optional[Callable[[bool], None]] = None
        # Whether the parameters are reported after the first step.
        self.analyzes = True
        self.learning_rate: Optional[float] = None
        # Calls of optimizers that were not skipped.
        self.ran = 0
        # The engine of DeepSpeed, while the program has it.
        self._engine_ref: Any = None
        self.forward: Any = None
        self._optimizer: Any = None
        self._grad_enabled, self._compiler = _torch().is_grad_enabled, getattr(_torch(), "compiler", None)
        # Seconds that an optimizer spent in closures: those have the forward and the backward pass.
        self._closures = 0.0

    @property
    def fit(self) -> Any:
        """What the monitor predicts; the monitor may be replaced by that of a callback."""
        return self.monitor._fit

    # Hooks of the optimizer: a process may have several, and the one with the most steps counts.

    def before_step(self, optimizer: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Returns other arguments where the closure among them is to be measured."""
        try:
            monitor = self.monitor
            monitor._fit.before_step(optimizer)
            self._closures = 0.0
            self._optimizer = monitor._phases.begin("optimizer")
            if kwargs and callable(kwargs.get("closure")):
                return args, dict(kwargs, closure=self._measured(kwargs["closure"]))
            if len(args) > 1 and callable(args[1]):
                return (args[0], self._measured(args[1]), *args[2:]), kwargs
            return None
        except Exception as error:
            _hide(error, "optimizer")

    def _measured(self, closure: Callable[[], Any]) -> Callable[[], Any]:
        @functools.wraps(closure, updated=())
        def measured() -> Any:
            begun = _clock()
            try:
                return closure()
            finally:
                self._closures += _clock() - begun

        return measured

    def after_step(self, optimizer: Any, *_: Any) -> None:
        try:
            monitor = self.monitor
            monitor._phases.end("optimizer", self._optimizer, self._closures)
            self._optimizer = None
            batches = monitor._fit.batches
            if batches.pending or batches.measuring:
                monitor._fit.after_step(optimizer)
            self.ran += 1
            # A call that raised has not reset it.
            self.depth = 0
            engine = None if self._engine_ref is None else self._engine_ref()
            if engine is None and self._leader is not None and self._leader() is optimizer:
                self.highest += 1
            elif not self._leads(optimizer, engine):
                return
            groups = getattr(optimizer, "param_groups", None)
            self.learning_rate = _number(groups[0].get("lr")) if groups else None
            if not self.only_counts:
                tokens, samples = self.take()
                self._number = number = self.highest + (0 if engine is not None else self._before)
                monitor.step(number, tokens=tokens, samples=samples, learning_rate=self.learning_rate)
            if self.searches == 1:
                self._after_first(optimizer)
            if self._inner and self.ran >= LOOKED_AT:
                self._unfollow_inner()
        except Exception as error:
            _hide(error, "optimizer")

    def keep_count(self) -> None:
        """Before another optimizer may lead."""
        leader = None if self._leader is None else self._leader()
        if leader is not None:
            self._counts[leader] = self.highest

    def _leads(self, optimizer: Any, engine: Any) -> bool:
        """Counts a step of an optimizer that has not had the most steps until now; whether it has now."""
        count = self._counts.get(optimizer, 0) + 1
        if count == 1:
            self.before[optimizer] = _steps_before(optimizer)
        if self._leader is not None and self._leader() is None:
            # It was made anew: the steps go on.
            count = self.highest + 1
            self.before[optimizer] = self._number - self.highest
        if engine is not None:
            # DeepSpeed calls the optimizer once for each group of parameters.
            count = int(engine.global_steps) + 1
        self._counts[optimizer] = count
        if count <= self.highest:
            return False
        self.keep_count()
        self.highest, self._leader, self._before = count, weakref.ref(optimizer), self.before.get(optimizer, 0)
        if engine is not None:
            self.monitor._steps.skip(int(getattr(engine, "skipped_steps", 0)))
        return True

    def take(self) -> Tuple[Optional[int], Optional[int]]:
        """The tokens and samples since the last call; None where none were counted."""
        samples, self.samples = self.samples, 0
        return self._tokens.take() or None, samples or None

    def watch_scaler(self) -> None:
        """Steps that a GradScaler skips: it does not call the optimizer."""
        module = sys.modules.get("torch.amp.grad_scaler") or sys.modules.get("torch.cuda.amp.grad_scaler")
        kind = getattr(module, "GradScaler", None)
        if kind is None:
            return
        original = kind.step

        @functools.wraps(original)
        def step(scaler: Any, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
            ran = self.ran
            result = original(scaler, optimizer, *args, **kwargs)
            try:
                if self.ran == ran and scaler.is_enabled() and self._is_first(optimizer):
                    self.monitor._steps.skip()
            except Exception as error:
                _hide(error, "scaler")
            return result

        kind.step = step

    def _is_first(self, optimizer: Any) -> bool:
        """Whether none has had more steps."""
        return self._leader is None or self._leader() is optimizer or self._counts.get(optimizer, 0) >= self.highest

    # The model: the modules that hold most of the parameters that the optimizer trains. Of nested modules the outermost
    # counts. The hooks are those of the modules: global hooks would make torch.compile warn, and cost time in each
    # call.

    @_guarded()
    def made(self, optimizer: Any) -> None:
        """An optimizer was made: the first one says what the model is."""
        self.fit.made(optimizer)
        if self.searches == 0:
            self.search(optimizer)
            if not _TRAINERS.isdisjoint(sys.modules):
                from ._trainers import save_by_trainers

                save_by_trainers(self.monitor)

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
        from ._layout import data_parallel, engine_of
        from ._models import _unwrap

        facts = self.monitor._identity.facts
        engine = engine_of(modules[0])
        self._engine_ref = None if engine is None else weakref.ref(engine)
        if facts["data_parallel"] is None:
            facts["data_parallel"], reason = data_parallel(modules[0])
            if reason is not None:
                message = {"type": "event", "t": _now(), "name": "no FLOP/s of this rank", "detail": {"reason": reason}}
                self.monitor._session.send(message, keep=True)
        if facts["precision"] is None:
            weights = (each for each in modules[0].parameters() if each.is_floating_point())
            found = collections.Counter(_dtype(each.dtype) for each in weights)
            if found:
                facts["precision"] = found.most_common(1)[0][0]
        configured = (module for module in modules if hasattr(_unwrap(module), "config"))
        described = next(configured, modules[0])
        if self.analyzes:
            self.monitor._identity.analyze(described, optimizer, check_values=False)
        self.monitor.describe(described)

    def follow(self, module: Any) -> None:
        """Counts the tokens and measures the forward pass of a module."""
        before = module.register_forward_pre_hook(_BeforeForward(self), with_kwargs=True)
        after = module.register_forward_hook(_AfterForward(self))
        self.followed.append(weakref.ref(module))
        if self._inner is not None:
            self._inner[id(module)] = self.followed[-1], [before, after]
        self.fit.follows(module)

    def _unfollow_inner(self) -> None:
        """Parts of the model that are only called by others need no hooks, which cost time in each call. One with all the
        parameters of the model is called by evaluations (that within DistributedDataParallel)."""
        known, self._inner = self._inner or {}, None
        modules = [(ref(), hooks) for ref, hooks in known.values()]
        most = max((sum(1 for _ in each().parameters()) for each in self.followed if each() is not None), default=0)
        for module, hooks in modules:
            if module is not None and sum(1 for _ in module.parameters()) < most:
                for hook in hooks:
                    hook.remove()

    def before_forward(self, module: Any, inputs: Any, kwargs: Any) -> None:
        """Before the outermost of the modules that are followed."""
        try:
            if getattr(self._compiler, "_is_compiling_flag", False):
                return  # An exporter runs what it traces.
            monitor = self.monitor
            if self._inner:
                self._inner.pop(id(module), None)
            if not module.training:
                if self.evaluates is not None:
                    self.evaluates(True)
                monitor._fit.evaluation_begins(self._grad_enabled())
            elif self._grad_enabled():
                self.calls += 1
                if self.evaluates is not None:
                    self.evaluates(False)
                samples, length = self._count(inputs, kwargs)
                if samples:
                    monitor._fit.forward_begins(samples, length)
                self.forward = monitor._phases.begin("forward")
        except Exception as error:
            _hide(error, "forward")

    def after_forward(self, output: Any) -> None:
        monitor, begun, self.forward = self.monitor, self.forward, None
        monitor._phases.end("forward", begun)
        if monitor._fit.batches.measuring:
            monitor._fit.forward_ends(output)

    def _count(self, inputs: Any, kwargs: Any) -> Tuple[int, Optional[int]]:
        """Whole numbers in two dimensions are tokens, one sequence per row; other tensors only have samples.

        Returns the samples, and the length of each where it is known.
        """
        named = inputs[0] if len(inputs) == 1 and isinstance(inputs[0], Mapping) else kwargs
        given = embedded = None
        for each in (kwargs,) if named is kwargs else (kwargs, named):
            given = each.get("input_ids") if given is None else given
            if given is None:
                given = embedded = each.get("inputs_embeds")
        if given is None:
            for given in (*inputs, *kwargs.values()):
                if hasattr(given, "is_floating_point"):
                    break
            else:
                return 0, None
        shape: Any = given.shape
        if not len(shape):
            return 0, None
        samples = int(shape[0])
        self.samples += samples
        if len(shape) == 3 and given is embedded or len(shape) == 2 and not given.is_floating_point():
            length = int(shape[1])
            self._tokens.add(samples, length, named.get("attention_mask"))
            facts = self.monitor._identity.facts
            if facts["sequence_length"] is None:
                facts["sequence_length"] = length
            return samples, length
        return samples, None

    # Backward and the loader have no hooks.

    def wrap(self, owner: Any, name: str, phase: str) -> None:
        original, is_tracing, loads = getattr(owner, name), _tracing(), phase == "loader"

        @functools.wraps(original)
        def wrapped(*args: Any, **kwargs: Any) -> Any:
            if is_tracing():
                return original(*args, **kwargs)
            # The monitor may be replaced by that of a callback.
            monitor = self.monitor
            phases = monitor._phases
            begun = phases.begin(phase)
            if loads:
                monitor._fit.plan.loading(args[0])
            else:
                # Activation checkpointing runs backward within backward.
                self._within += 1
            try:
                return original(*args, **kwargs)
            finally:
                phases.end(phase, begun)
                if not loads:
                    self._within -= 1
                    if self._within == 0 and monitor._fit.batches.measuring:
                        monitor._fit.backward_ends()

        setattr(owner, name, wrapped)


# The hooks of all optimizers, of which a process has one set.
_global: Optional[_Watch] = None


def watch_all(monitor: Monitor, phases: bool = True) -> _Watch:
    """Hooks of all optimizers, of backward and of loaders, for this monitor; those of an earlier monitor are taken over."""
    global _global
    if _global is not None:
        if _global.monitor is not monitor:
            # Another training: its model is followed, and its steps count from their own number.
            _global.keep_count()
            _global.monitor = monitor
            _global.searches = _global.highest = _global._number = 0
            _global._leader = None
            _global.followed = [each for each in _global.followed if each() is not None]
            _global.learning_rate = None
        return _global
    _global = watch = _Watch(monitor)
    # `torch.optim` deletes the name of its own module.
    optimizer = __import__("torch.optim.optimizer", fromlist=["Optimizer"])
    optimizer.register_optimizer_step_post_hook(_untraced(watch.after_step))
    if phases:
        optimizer.register_optimizer_step_pre_hook(_untraced(watch.before_step))
        watch.wrap(_torch().autograd, "backward", "backward")
        loader = sys.modules.get("torch.utils.data.dataloader")
        if loader is not None and hasattr(loader, "_BaseDataLoaderIter"):
            watch.wrap(loader._BaseDataLoaderIter, "__next__", "loader")
    watch.watch_scaler()
    return watch



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


def _untraced(hook: Callable[..., Any]) -> Callable[..., Any]:
    """A hook of optimizers that a compiled step calls as it is: a compiler would trace what it calls, for seconds.

    Optimizers break the graph themselves.
    """

    disabled = getattr(_torch(), "_disable_dynamo", lambda function: function)(lambda *args: hook(*args))
    frames = getattr(getattr(getattr(_torch(), "_C", None), "_dynamo", None), "eval_frame", None)
    callback = getattr(frames, "get_eval_frame_callback", None)
    if callback is None:
        return disabled  # type: ignore[no-any-return]

    is_tracing = _tracing()

    def call(*args: Any) -> Any:
        # Where nothing is compiled, there is nothing to keep away, which takes 2 us. What asks that cannot be traced.
        return disabled(*args) if is_tracing() or callback() is not None else hook(*args)

    return call


def _tracing() -> Callable[[], bool]:
    """The function that says whether torch.compile traces its caller, which knows it as a constant. `is_compiling` takes longer."""
    compiler = getattr(_torch(), "compiler", None)
    found: Callable[[], bool] = getattr(compiler, "is_dynamo_compiling", getattr(compiler, "is_compiling", bool))
    return found
