"""What the first step of an optimizer allocates: its state, gradients that are still to come, temporary tensors.

The state is that of a copy of the optimizer that steps on meta tensors, which have a shape and no memory. The copy
shares nothing with the original that the step could change, no hook sees it, and an operation that would touch other
memory, or another rank, ends it.
"""

from __future__ import annotations

import collections
import contextlib
import copy
import threading
import types
import weakref
from typing import Any, Dict, Iterator, List, NamedTuple, Optional, Set, Tuple

from ._base import _hide, _log
from ._models import _STATES
from ._process import _local, _torch

# Different parameters (shape, type, options) whose step is tried; a larger model is not predicted.
MOST_SHAPES = 256
# The unit of the allocator of CUDA.
BLOCK = 512
# Packages whose optimizers are not tried on meta tensors: they call kernels, compile, or communicate.
_OPAQUE = ("apex", "bitsandbytes", "colossalai", "deepspeed", "fairscale", "megatron", "torchao", "transformer_engine")


class Needs(NamedTuple):
    """Bytes of one device, or of the host.

    `gradients`: still to come; `state`: of the optimizer, still to come; `temporary`: alive only within the step, beside them.
    """

    gradients: int
    state: int
    temporary: int


class Foreseen(NamedTuple):
    """By device (None: the host). `exact` is false where a part is from a table; without `needs`, `why` says why."""

    needs: Optional[Dict[Optional[int], Needs]]
    exact: bool
    why: str


# The fields of `Needs` by device, while they are summed up.
_Sums = Dict[Optional[int], List[int]]
# What the copy for a trial gets anew.
_OWN = ("state", "param_groups", "step")
# Parameters of layers that make sparse gradients, by their identity, which another one has once they are gone.
SPARSE: Dict[int, "weakref.ref[Any]"] = {}
# The threads that try a step now: hooks of optimizers do nothing in it.
_trying = threading.local()


def in_trial() -> bool:
    """Whether this thread tries a step of an optimizer."""
    return bool(getattr(_trying, "now", False))


def _shares_nothing(optimizer: Any) -> bool:
    """Whether all that it has beside its state and its parameters is data: a copy would share, and step, an object."""
    torch = _torch()
    own = (value for key, value in vars(optimizer).items() if key not in _OWN and not key.startswith("_optimizer_"))
    return all(_is_data(value, torch, 4) for value in own)


def _is_data(value: Any, torch: Any, deep: int) -> bool:
    if isinstance(value, dict):
        return deep > 0 and all(_is_data(each, torch, deep - 1) for each in value.values())
    if isinstance(value, (list, tuple, set)):
        return deep > 0 and all(_is_data(each, torch, deep - 1) for each in value)
    data = (bool, int, float, complex, str, bytes, type, types.FunctionType, torch.Tensor)
    return value is None or isinstance(value, data) or type(value).__module__ == "torch"


def foresee(optimizers: List[Any], gradients_exist: bool) -> Foreseen:
    """What the next steps of these optimizers allocate the first time.

    With `gradients_exist`, backward has run: a parameter without a gradient gets neither a gradient nor a state.
    """
    sums: _Sums = collections.defaultdict(lambda: [0, 0, 0])
    exact, words = True, []
    # Parameters whose gradient is counted: two optimizers may share one.
    counted: Set[int] = set()
    for optimizer in optimizers:
        kind = type(optimizer)
        if held_by(optimizer) is not optimizer:
            # The other one is one of these; the gradients are those of all parameters.
            for place, size in _gradients(optimizer, gradients_exist, counted):
                sums[place][0] += size
            continue
        try:
            exact = not _add_one(optimizer, gradients_exist, counted, sums) and exact
        except _Unpredictable as error:
            return Foreseen(None, False, "%s: %s" % (kind.__name__, error))
        words.append(kind.__name__)
    if not words:
        return Foreseen(None, False, "there is no optimizer")
    # Of several it is not known that each steps.
    exact = exact and len(words) == 1
    return Foreseen({place: Needs(*total) for place, total in sums.items()}, exact, ", ".join(sorted(set(words))))


def held_by(optimizer: Any) -> Any:
    """The optimizer that one of torch.distributed only holds: its state is that of this rank (ZeRO); otherwise itself."""
    is_holder = type(optimizer).__module__.startswith("torch.distributed")
    return getattr(optimizer, "optim", optimizer) if is_holder else optimizer


def places_of(optimizers: List[Any]) -> List[Optional[int]]:
    """Where their parameters are: the ordinals of devices, and None for the host."""
    each = (p for optimizer in optimizers for group in optimizer.param_groups for p in group["params"])
    try:
        return sorted({_place(_local(parameter)) for parameter in each}, key=lambda place: -1 if place is None else place)
    except _Unpredictable:
        return []


class _Unpredictable(Exception):
    """The message says why."""


def _gradients(optimizer: Any, exist: bool, counted: Set[int]) -> Iterator[Tuple[Optional[int], int]]:
    """Where each gradient that is still to come will be, and its bytes."""
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            if not exist and parameter.requires_grad and parameter.grad is None and id(parameter) not in counted:
                counted.add(id(parameter))
                local = _local(parameter)
                yield _place(local), _rounded(local.numel() * local.element_size(), _place(local))


def _add_one(optimizer: Any, gradients_exist: bool, counted: Set[int], sums: _Sums) -> bool:
    """Adds what the first step of an optimizer needs; says whether a part is from a table."""
    known: Dict[Any, Tuple[int, int]] = {}
    package, by_table = type(optimizer).__module__.split(".")[0], False
    if type(optimizer).__name__ == "LBFGS":
        raise _Unpredictable("its state grows with its history")
    for place, size in _gradients(optimizer, gradients_exist, counted):
        sums[place][0] += size
    for index, group in enumerate(optimizer.param_groups):
        lists = _makes_lists(optimizer, group)
        together: Dict[Optional[int], int] = collections.defaultdict(int)
        for parameter in group["params"]:
            if parameter.grad is None and (gradients_exist or not parameter.requires_grad):
                continue
            local, grad = _local(parameter), _local(parameter.grad)
            sparse = SPARSE.get(id(parameter), lambda: None)() is parameter if grad is None else grad.is_sparse
            if local.is_sparse or sparse:
                raise _Unpredictable("its gradients are sparse")
            place = _place(local)
            # Absent keys stay absent: the state is a defaultdict.
            own = optimizer.state[parameter] if parameter in optimizer.state else {}
            held = [(str(key), _local(value)) for key, value in own.items() if hasattr(value, "element_size")]
            shapes = tuple((key, tuple(value.shape), value.dtype) for key, value in held)
            signature = (index, tuple(local.shape), local.dtype, place, shapes)
            if signature not in known:
                if len(known) == MOST_SHAPES:
                    raise _Unpredictable("more than %d different parameters" % MOST_SHAPES)
                if package not in _OPAQUE and not by_table and _shares_nothing(optimizer):
                    try:
                        known[signature] = _by_trial(optimizer, group, local, own, place)
                    except Exception as error:
                        _log.debug("memwarden: a step of %r cannot be tried: %r", type(optimizer), error)
                if signature not in known:
                    by_table = True
                    known[signature] = _by_table(optimizer, group, local, held)
            still, temporary = known[signature]
            sums[place][1] += still
            # A list of tensors is alive as a whole, the tensors of a loop one after another.
            together[place] = together[place] + temporary if lists else max(together[place], temporary)
        for place, temporary in together.items():
            sums[place][2] = max(sums[place][2], temporary)
    return by_table


def _place(tensor: Any) -> Optional[int]:
    """The ordinal of its device; None for the host."""
    kind = str(getattr(tensor.device, "type", tensor.device))
    if kind == "meta":
        raise _Unpredictable("its parameters have no memory yet")
    return None if kind == "cpu" else int(getattr(tensor.device, "index", None) or 0)


def _rounded(size: int, place: Optional[int]) -> int:
    return size if place is None else -(-size // BLOCK) * BLOCK


def _makes_lists(optimizer: Any, group: Any) -> bool:
    """Whether the step computes on lists of all tensors (`foreach`), as torch decides it."""
    if "foreach" not in group or group.get("fused"):
        return False
    if group["foreach"] is not None:
        return bool(group["foreach"])
    module = __import__("torch.optim.optimizer", fromlist=["Optimizer"])
    decide = getattr(module, "_default_to_fused_or_foreach", None)
    if decide is None:
        return False
    return bool(decide(group["params"], group.get("differentiable", False), use_fused=False)[1])


def _by_trial(optimizer: Any, group: Any, local: Any, own: Any, place: Optional[int]) -> Tuple[int, int]:
    """Bytes of the state of one parameter that are still to come with a step, and temporary bytes."""
    torch = _torch()
    meta = torch.empty(local.shape, dtype=local.dtype, device="meta").requires_grad_()
    clone = object.__new__(type(optimizer))
    for key, value in vars(optimizer).items():
        # An instance's own `step` is a wrapper of a scheduler or a scaler.
        if key not in _OWN:
            clone.__dict__[key] = copy.copy(value) if isinstance(value, (dict, list, set)) else value
    clone.state = collections.defaultdict(dict)
    options = {key: value for key, value in group.items() if key != "params"}
    # One tensor at a time: lists are added up by the caller. Fused kernels have none for meta tensors.
    options.update((key, False) for key in ("fused", "foreach", "capturable") if key in options)
    clone.param_groups = [dict(options, params=[meta])]
    clone.defaults = dict(getattr(optimizer, "defaults", {}), fused=False, foreach=False, capturable=False)
    step = type(optimizer).step
    while hasattr(step, "hooked") and hasattr(step, "__wrapped__"):
        step = step.__wrapped__
    meta.grad = torch.empty(local.shape, dtype=local.dtype, device="meta")
    with _trial() as live, torch.no_grad():
        kept = {key: _as_meta(value) for key, value in own.items()}
        if kept:
            clone.state[meta] = dict(kept)
        _trying.now = True
        try:
            step(clone)
        finally:
            _trying.now = False
    state = clone.state[meta]
    whole, before = (sum(_size(value, place) for value in each.values()) for each in (state, kept))
    fused = place is not None and (group.get("fused") or group.get("capturable"))
    if not fused and place is not None:
        # Scalars of the host.
        whole -= sum(_size(each, place) for each in state.values() if _counts_steps(each))
        before -= sum(_size(each, place) for each in kept.values() if _counts_steps(each))
    temporary = 0 if group.get("fused") else live.peak - live.now
    return max(0, whole - before), max(0, temporary)


def _counts_steps(value: Any) -> bool:
    return hasattr(value, "dim") and value.dim() == 0 and value.device.type == "cpu"


def _size(value: Any, place: Optional[int]) -> int:
    return _rounded(int(value.numel()) * int(value.element_size()), place) if hasattr(value, "element_size") else 0


def _as_meta(value: Any) -> Any:
    if not hasattr(value, "element_size"):
        return copy.copy(value)
    local = _local(value)
    if local.dim() == 0:
        return _torch().zeros((), dtype=local.dtype)
    return _torch().empty(local.shape, dtype=local.dtype, device="meta")


class _Live:
    """Bytes of the meta tensors that are alive, made since it was created."""

    def __init__(self) -> None:
        self.now = self.peak = 0

    def add(self, tensor: Any) -> None:
        size = int(tensor.numel()) * int(tensor.element_size())
        self.now += size
        self.peak = max(self.peak, self.now)
        weakref.finalize(tensor, self._gone, size)

    def _gone(self, size: int) -> None:
        self.now -= size


@contextlib.contextmanager
def _trial() -> Iterator[_Live]:
    """Within it, operations may only compute on meta tensors, and on scalars of the host made within it."""
    dispatch = __import__("torch.utils._python_dispatch", fromlist=["TorchDispatchMode"])
    flatten = __import__("torch.utils._pytree", fromlist=["tree_leaves"]).tree_leaves
    torch, live = _torch(), _Live()
    own: Dict[int, Any] = {}

    class Trial(dispatch.TorchDispatchMode):  # type: ignore[misc, name-defined]
        def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            kwargs = kwargs or {}
            given = [each for each in flatten((args, kwargs)) if isinstance(each, torch.Tensor)]
            if function is torch.ops.aten._local_scalar_dense.default and given[0].device.type == "meta":
                return 1.0  # A value that decides how the step goes on; it has none here.
            if "c10d" in function.namespace:
                raise RuntimeError("the step communicates")
            written = function._schema.is_mutable
            for each in given:
                if each.device.type != "meta" and id(each) not in own and (written or each.dim() > 0):
                    raise RuntimeError("the step uses other memory")
            if given and all(each.device.type != "meta" and each.dim() > 0 for each in given):
                raise RuntimeError("the step uses other memory")
            if not given and any(each.name == "device" for each in function._schema.arguments):
                result = function(*args, **dict(kwargs, device="meta"))
                if result.numel() > 1 or str(kwargs.get("device") or "cpu").split(":")[0] != "cpu":
                    live.add(result)
                    return result
            result = function(*args, **kwargs)
            known = {id(each) for each in given}
            aliases = any(each.alias_info is not None for each in function._schema.returns)
            for each in flatten(result):
                if not isinstance(each, torch.Tensor):
                    continue
                if function is torch.ops.aten.lift_fresh.default:
                    own[id(each)] = each  # Of `torch.tensor`.
                if id(each) in known:
                    continue
                if each.device.type == "meta":
                    if not aliases:
                        live.add(each)
                elif each.numel() <= 1:
                    own[id(each)] = each
                else:
                    raise RuntimeError("the step uses memory of its own")
            return result

    with Trial():
        yield live


# Tensors of one byte per element that the 8-bit optimizers of bitsandbytes keep, by the beginning of their names.
_EIGHT_BIT = {"adam": 2, "lamb": 2, "ademamix": 3, "lion": 1, "rmsprop": 1, "adagrad": 1, "sgd": 1, "lars": 1}
# Below this number of elements they keep them in fp32; elements that share one scale.
_EIGHT_BIT_FROM, _EIGHT_BIT_SHARE = 4096, 256
# Elements from which on its paged optimizers allocate the state by CUDA's managed memory, and not by the allocator.
_PAGED_FROM = 100_000
# Bits of an element that those of torchao keep twice, by the end of their names; `block_size` elements share one scale.
_TORCHAO = {"8bit": 8, "fp8": 8, "4bit": 4}


def _by_table(optimizer: Any, group: Any, local: Any, held: List[Tuple[str, Any]]) -> Tuple[int, int]:
    kind, place = type(optimizer).__name__.lower(), _place(local)
    eight_bit = type(optimizer).__module__.startswith("bitsandbytes")
    elements = int(local.numel())
    if type(optimizer).__module__.startswith("torchao"):
        return _of_torchao(optimizer, group, local, held)
    table = _EIGHT_BIT if eight_bit else _STATES
    states = next((many for name, many in table.items() if (name in kind if eight_bit else name == kind)), None)
    if states is None:
        raise _Unpredictable("its step cannot be tried, and its state is not known")
    if kind == "sgd" and not eight_bit:
        states = 1 if group.get("momentum") else 0
    bits = group.get("optim_bits") or getattr(getattr(optimizer, "args", None), "optim_bits", 32)
    if eight_bit and getattr(optimizer, "is_paged", False) and place is not None and elements >= _PAGED_FROM:
        raise _Unpredictable("its state is paged between the host and the device")
    if bits == 8 and elements >= _EIGHT_BIT_FROM:
        size = _rounded(elements, place) + _rounded(-(-elements // _EIGHT_BIT_SHARE) * 4, place)
    else:
        size = _rounded(elements * (4 if eight_bit else int(local.element_size())), place)
    before = sum(_size(value, place) for _, value in held)
    return max(0, states * size - before), 0


def _of_torchao(optimizer: Any, group: Any, local: Any, held: List[Tuple[str, Any]]) -> Tuple[int, int]:
    kind, place, elements = type(optimizer).__name__.lower(), _place(local), int(local.numel())
    bits, block = next((many for name, many in _TORCHAO.items() if kind.endswith(name)), None), getattr(optimizer, "block_size", 0)
    if bits is None or not isinstance(block, int) or not block:
        raise _Unpredictable("its step cannot be tried, and its state is not known")
    if elements >= _EIGHT_BIT_FROM and elements % block == 0:
        size = _rounded(elements * bits // 8, place) + _rounded(elements // block * 4, place)
    else:
        size = _rounded(elements * int(local.element_size()), place)
    whole = size * (3 if group.get("amsgrad") else 2)
    return 0 if held else whole, 0


def try_foresee(optimizers: List[Any], gradients_exist: bool) -> Foreseen:
    """`foresee` that never raises."""
    try:
        return foresee(optimizers, gradients_exist)
    except Exception as error:
        _hide(error, "prediction of the optimizer")
        return Foreseen(None, False, "the optimizer cannot be examined (%s)" % type(error).__name__)
