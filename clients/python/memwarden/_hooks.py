"""Hooks of PyTorch that report steps, tokens and phases."""

from __future__ import annotations

import collections
import functools
import sys
import threading
import weakref
from typing import Any, Callable, Dict, List, Mapping, Optional, Tuple

from ._base import _clock, _dtype, _guarded, _hide, _now, _number
from ._fit_batches import MEASURED_FIRST
from ._fit_size import MOST_SIZES
from ._hook_calls import _AfterForward, _BeforeForward, _owners, _steps_before, _tracing, _untraced
from ._layout import data_parallel, engine_of
from ._monitor import Monitor
from ._process import _torch
from ._tokens import _Tokens
from ._trainers import save_by_trainers

# Steps after which modules that the program has not called itself are followed no longer.
LOOKED_AT = 8
_PHASES = ("loader", "forward", "backward", "optimizer")
# Steps after which not every one is measured; the most steps between two that are, and the most seconds: all hooks of a step take
# 0.15 ms between the operations of a real program. The others are counted, with their tokens, and the measured one stands for them.
RESTS_FROM, MOST_RESTS, APART = MEASURED_FIRST, 1000, 0.5


class _Watch:
    """Steps, tokens and phases from hooks. Every hook is guarded, and does nothing while a compiler traces it."""

    def __init__(self, monitor: Monitor) -> None:
        self.monitor = monitor
        self.counts: "weakref.WeakKeyDictionary[Any, int]" = weakref.WeakKeyDictionary()
        self.before: "weakref.WeakKeyDictionary[Any, int]" = weakref.WeakKeyDictionary()
        self.highest = 0
        # The optimizer with the most steps, while it exists, and the number of its last step.
        self._leader: Any = None
        self._number = 0
        self.samples = self.calls = self.depth = self._taken = 0
        # Steps to come that are only counted; all that were, and those of them that are reported; when a step was measured last.
        self.rest = self._counted = self._reported = 0
        self._ended = _clock()
        # What the thread of the monitor saw of them; held by whoever reports.
        self._looked = 0
        self._reporting = threading.RLock()
        # The optimizers that have stepped, by identity: whether it is the leader. Of inputs, by shape and
        # type: samples and tokens, None where a mask says how many.
        self._stepping: Dict[int, bool] = {}
        self._sizes: Dict[Any, Tuple[int, Optional[int]]] = {}
        self._unseen = 0
        monitor._instruments.append(self)
        # Calls of backward within each other.
        self._within = 0
        self._tokens = _Tokens()
        self.followed: List[Any] = []
        # The hooks of each of them, by its identity, while it is not known which of them are called by the program itself.
        self._inner: Optional[Dict[int, Tuple[Any, List[Any]]]] = {}
        # Of each of them, the hook after its forward pass; what calls of backward are replaced by; whether both are in place.
        self._after: Dict[Any, Any] = {}
        self._backward: Tuple[Any, ...] = ()
        self._awake = True
        self.searches = 0
        # Whether the callback of a Trainer reports the steps: hooks only count then.
        self.only_counts = False
        # Called before each micro-batch, with whether it is one of an evaluation; None but for a Trainer that says when that ends.
        self.evaluates: Optional[Callable[[bool], None]] = None
        # Whether the parameters are reported after the first step.
        self.analyzes = True
        # Calls of optimizers that were not skipped.
        self.ran = 0
        self._engine_ref: Any = None
        self.forward: Any = None
        self._optimizer: Any = None
        # Seconds that an optimizer spent in closures: those have the forward and the backward pass.
        self._closures = 0.0

    @property
    def _engine(self) -> Any:
        """The engine of DeepSpeed, while the program has it."""
        return None if self._engine_ref is None else self._engine_ref()

    @property
    def fit(self) -> Any:
        """What the monitor predicts; the monitor may be replaced by that of a callback."""
        return self.monitor._fit

    @property
    def learning_rate(self) -> Optional[float]:
        """Of the next step of the leader."""
        groups = getattr(self._leader() if self._leader is not None else None, "param_groups", None)
        return _number(groups[0].get("lr")) if groups else None

    # Steps that are only counted: their hooks return at once.

    @property
    def _times(self) -> int:
        """How many steps the one that is measured stands for."""
        return 1 + self._counted - self._reported

    def reset(self) -> None:
        """In a child process."""
        self.rest, self._reporting = 0, threading.RLock()

    def _begin_rest(self, optimizer: Any, each: float) -> None:
        """After a step that was measured, and took `each` seconds: hooks that are not needed to count steps and batches are taken off,
        since the processor's caches hold none of their code within a program."""
        self._stepping[id(optimizer)] = True
        known = self.searches != 1 and not self._inner and self.fit.batches.steps_seen >= RESTS_FROM
        if known and self._engine is None and self.monitor._checkpoints.agreement is None:
            self.rest = min(MOST_RESTS, int(APART / max(each, 1e-6)))
        if self.rest > 0:
            self._awake = False
            for hook in self._after.values():
                hook.remove()
            self._swap_backward(0)

    def wake(self) -> None:
        """Puts them back before a step that is measured."""
        if not self._awake:
            self._awake = True
            followed = [module for module in (ref() for ref in self._after) if module is not None]
            self._after = {weakref.ref(module): module.register_forward_hook(_AfterForward(self)) for module in followed}
            self._swap_backward(1)

    def _swap_backward(self, to: int) -> None:
        """To the function of torch (0), or to the one that measures it (1), unless the program has replaced it."""
        found = self._backward
        if found and getattr(_torch().autograd, "backward", None) is found[1 - to]:
            _torch().autograd.backward = found[to]

    @_guarded()
    def flush(self, ends: bool = False) -> None:
        """The next step is measured. In the thread of the monitor, once a second; reports what was counted where no step ends."""
        # A step that has begun is counted to its end.
        self.rest = 0 if ends else min(self.rest, 1)
        looked, self._looked = self._looked, self._counted
        if looked != self._counted and not ends or not self._reporting.acquire(blocking=False):
            return
        try:
            steps, self._reported = self._counted - self._reported, self._counted
            if steps:
                self.monitor._phases.extend(_PHASES, steps, max(1, self.highest))
                self.highest, self._number = self.highest + steps, self._number + steps
                leader = self._leader()
                if leader is not None:
                    self.counts[leader] = self.highest
                if not self.only_counts:
                    self.monitor._steps.add(self._number, *self.take(), None, self.learning_rate, None, None, False)
        finally:
            self._reporting.release()

    # Hooks of the optimizer: a process may have several, and the one with the most steps counts.

    def rests(self, optimizer: Any) -> bool:
        """Whether the step that this optimizer begins is only counted."""
        return self.rest > 0 and id(optimizer) in self._stepping

    @_guarded()
    def before_step(self, optimizer: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Returns other arguments where the closure among them is to be measured."""
        self.wake()
        if not _tracing():
            self.monitor._fit.before_step(optimizer)
        self._closures = 0.0
        self._optimizer = self.monitor._phases.begin("optimizer")
        if kwargs and callable(kwargs.get("closure")):
            return args, dict(kwargs, closure=self._measured(kwargs["closure"]))
        if len(args) > 1 and callable(args[1]):
            return (args[0], self._measured(args[1]), *args[2:]), kwargs
        return None

    def _measured(self, closure: Callable[[], Any]) -> Callable[[], Any]:
        @functools.wraps(closure, updated=())
        def measured() -> Any:
            begun = _clock()
            try:
                return closure()
            finally:
                self._closures += _clock() - begun

        return measured

    def counts_step(self, optimizer: Any) -> bool:
        """Whether the step that this optimizer ends was no more than counted."""
        rest = self.rest
        leads = self._stepping.get(id(optimizer)) if rest > 0 else None
        if leads is None:
            return False
        self.ran += 1
        self.depth = 0
        if leads:
            self.rest, self._counted = rest - 1, self._counted + 1
        return True

    @_guarded()
    def after_step(self, optimizer: Any, *_: Any) -> None:
        with self._reporting:
            self._measured_step(optimizer)
        if self.searches == 1:
            self._after_first(optimizer)
        if self._inner and self.ran >= LOOKED_AT:
            self._unfollow_inner()

    def _measured_step(self, optimizer: Any) -> None:
        self.monitor._phases.end("optimizer", self._optimizer, self._closures, self._times)
        self._optimizer = None
        if self.monitor._fit.batches.watches:
            self.monitor._fit.after_step(optimizer)
        self.ran += 1
        # A call that raised has not reset it.
        self.depth = 0
        count = self.counts.get(optimizer, 0) + 1
        if count == 1:
            self.before[optimizer] = _steps_before(optimizer)
        if self._leader is not None and self._leader() is None:
            # It was made anew: the steps go on.
            count = self.highest + 1
            self.before[optimizer] = self._number - self.highest
        if self._engine is not None:
            # DeepSpeed calls the optimizer once for each group of parameters.
            count = int(self._engine.global_steps) + 1
        leads = self._leader is not None and self._leader() is optimizer
        steps = self._times if leads else 1
        self.counts[optimizer] = count = count + steps - 1
        if count <= self.highest:
            self._stepping[id(optimizer)] = leads
            return
        self._reported = self._counted
        begun, self._ended = self._ended, _clock()
        each = (self._ended - begun) / steps
        self.highest, self._leader = count, weakref.ref(optimizer)
        if self._engine is not None:
            self.monitor._steps.skip(int(getattr(self._engine, "skipped_steps", 0)))
        if not self.only_counts:
            tokens, samples = self.take()
            self._number = number = count + (0 if self._engine is not None else self.before.get(optimizer, 0))
            self.fit.batches.steps_seen += steps - 1
            taken = each if steps > 1 else None
            self.monitor.step(number, tokens=tokens, samples=samples, learning_rate=self.learning_rate, seconds=taken)
        self._begin_rest(optimizer, each)

    def take(self) -> Tuple[Optional[int], Optional[int]]:
        """The tokens and samples since the last call; None where none were counted."""
        total, before = self.samples, self._taken
        self._taken = total
        return self._tokens.take() or None, total - before or None

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
                if self.ran == ran and scaler.is_enabled() and self.counts.get(optimizer, 0) >= self.highest:
                    self.monitor._steps.skip()
            except Exception as error:
                _hide(error, "scaler")
            return result

        kind.step = step

    # The model: the modules that hold most of the parameters that the optimizer trains. Of nested modules the outermost
    # counts. The hooks are those of the modules: global hooks would make torch.compile warn, and cost time in each
    # call.

    def await_optimizer(self, kind: Any) -> None:
        original = kind.__init__

        @functools.wraps(original)
        def wrapped(optimizer: Any, *args: Any, **kwargs: Any) -> None:
            original(optimizer, *args, **kwargs)
            self.flush(ends=True)
            self._stepping = {}  # Its address can be that of another one before.
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
        from ._models import _unwrap  # Not at the start of the program.

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
        self._after[self.followed[-1]] = after
        self.fit.plan.model(module, lambda: list(self.fit.first_step.optimizers))

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
                self._after.pop(weakref.ref(module), None)

    def before_forward(self, module: Any, inputs: Any, kwargs: Any) -> None:
        """Of the outermost module that is followed."""
        if _tracing():
            self.depth -= 1
            return
        self.wake()
        if self._inner:
            self._inner.pop(id(module), None)
        if module.training and _torch().is_grad_enabled():
            self.calls += 1
            if self.evaluates is not None:
                self.evaluates(False)
            samples, length = self._count(inputs, kwargs)
            if samples:
                unseen, self._unseen = self._unseen, 0
                self.fit.batches.seen += unseen
                self.fit.forward_begins(samples, length)
            self.forward = self.monitor._phases.begin("forward")
        elif not module.training:
            self.flush(ends=True)
            if self.evaluates is not None:
                self.evaluates(True)
            self.fit.evaluation_begins()

    def only_counts_batch(self, inputs: Any, kwargs: Any) -> bool:
        """Whether a batch in a step that is not measured was counted; one of a size that is new is measured."""
        given = inputs[0] if inputs else next(iter(kwargs.values()), None)
        known = self._sizes.get((len(inputs), *kwargs, given.shape, given.dtype)) if hasattr(given, "dtype") else None
        if known is None or not sys.modules["torch"].is_grad_enabled():
            if known is None and self.rest > 0:
                self.rest = 0
                # Its batch was loaded before.
                self.monitor._phases.extend(("loader",), self._times, max(1, self.highest))
            return False
        if known[1] is None:
            self._count(inputs, kwargs)
        else:
            self.samples += known[0]
            self._tokens.known += known[1]
        self._unseen += 1
        return True

    def after_forward(self, output: Any) -> None:
        begun, self.forward = self.forward, None
        self.monitor._phases.end("forward", begun, times=self._times)
        if self.fit.batches.measuring:
            self.fit.forward_ends(output)

    def _count(self, inputs: Any, kwargs: Any) -> Tuple[int, Optional[int]]:
        """Whole numbers in two dimensions are tokens, one sequence per row; other tensors only have samples.

        Returns the samples, and the length of each where it is known.
        """
        # The sizes of batches are known by that of the first argument.
        first = inputs[0] if inputs else next(iter(kwargs.values()), None)
        given = kwargs.get("input_ids")
        if given is None:
            given = kwargs.get("inputs_embeds")
        if given is None and len(inputs) == 1 and isinstance(inputs[0], Mapping):
            given = inputs[0].get("input_ids")
        if given is None:
            given = next((each for each in (*inputs, *kwargs.values()) if hasattr(each, "is_floating_point")), None)
        if given is None:
            return 0, None
        shape: Any = given.shape
        if not len(shape):
            return 0, None
        samples = int(shape[0])
        self.samples += samples
        embedded = len(shape) == 3 and given is kwargs.get("inputs_embeds")
        if embedded or len(shape) == 2 and not given.is_floating_point():
            length = int(shape[1])
            named = inputs[0] if len(inputs) == 1 and isinstance(inputs[0], Mapping) else kwargs
            mask = named.get("attention_mask")
            self._tokens.add(samples, length, mask)
            if given is first:
                self._keep_size(inputs, kwargs, given, samples, samples * length if mask is None else None)
            facts = self.monitor._identity.facts
            if facts["sequence_length"] is None:
                facts["sequence_length"] = length
            return samples, length
        if given is first:
            self._keep_size(inputs, kwargs, given, samples, 0)
        return samples, None

    def _keep_size(self, inputs: Any, kwargs: Any, given: Any, samples: int, tokens: Optional[int]) -> None:
        if len(self._sizes) >= MOST_SIZES:
            self._sizes.clear()
        self._sizes[(len(inputs), *kwargs, given.shape, given.dtype)] = samples, tokens

    # Backward and the loader have no hooks.

    def wrap(self, owner: Any, name: str, phase: str) -> None:
        original = getattr(owner, name)

        @functools.wraps(original)
        def wrapped(*args: Any, **kwargs: Any) -> Any:
            if _tracing():
                return original(*args, **kwargs)
            if phase == "loader" and self.fit.plan.loading(args[0]):
                self.rest = 0
            if self.rest > 0:
                return original(*args, **kwargs)
            # The monitor may be replaced by that of a callback.
            phases, fit = self.monitor._phases, self.fit
            begun = phases.begin(phase)
            if phase == "backward":
                # Activation checkpointing runs backward within backward.
                self._within += 1
            try:
                return original(*args, **kwargs)
            finally:
                phases.end(phase, begun, times=self._times)
                if phase == "backward":
                    self._within -= 1
                    if self._within == 0 and fit.batches.measuring:
                        fit.backward_ends()

        setattr(owner, name, wrapped)
        if phase == "backward":
            self._backward = original, wrapped


# The hooks of all optimizers, of which a process has one set.
_global: Optional[_Watch] = None


def watch_all(monitor: Monitor, phases: bool = True) -> _Watch:
    """Hooks of all optimizers, of backward and of loaders, for this monitor; those of an earlier monitor are taken over."""
    global _global
    if _global is not None:
        if _global.monitor is not monitor:
            # Another training: its model is followed, and its steps count from their own number.
            _global.monitor, _global.rest = monitor, 0
            monitor._instruments.append(_global)
            _global.searches = _global.highest = _global._number = 0
            _global._leader = None
            _global.followed = [each for each in _global.followed if each() is not None]
        return _global
    _global = watch = _Watch(monitor)
    # `torch.optim` deletes the name of its own module.
    optimizer = __import__("torch.optim.optimizer", fromlist=["Optimizer"])
    optimizer.register_optimizer_step_post_hook(_untraced(watch.after_step, watch.counts_step))
    if phases:
        optimizer.register_optimizer_step_pre_hook(_untraced(watch.before_step, watch.rests))
        watch.wrap(_torch().autograd, "backward", "backward")
        loader = sys.modules.get("torch.utils.data.dataloader")
        if loader is not None and hasattr(loader, "_BaseDataLoaderIter"):
            watch.wrap(loader._BaseDataLoaderIter, "__next__", "loader")
    watch.watch_scaler()
    return watch
