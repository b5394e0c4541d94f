"""The parameters, shape and memory of a model."""

from __future__ import annotations

import collections
import gc
import re
from typing import Any, Callable, Dict, List, Mapping, Optional, Tuple

from ._base import JSON, _clock, _dtype, _elements, _size, _table
from ._process import _accelerator, _bytes, _devices, _host_memory, _local, _torch

_GROUPS = [
    ("lora", r"lora_|\blora\b"),
    ("embedding", r"embed|\bwte\b|\bwpe\b"),
    ("head", r"lm_head|classifier|\bscore\b|\bhead\b"),
    ("norm", r"norm|\bln_|\bln\b|\bln\d"),
    ("attention", r"attn|attention|[qkvo]_proj|\bqkv\b"),
    ("mlp", r"mlp|ffn|feed_forward|(gate|up|down)_proj|expert|\bfc\d?\b|\bc_fc\b|moe"),
]
_GROUPS_COMPILED = [(name, re.compile(pattern)) for name, pattern in _GROUPS]


def _group(name: str) -> str:
    lower = name.lower()
    return next((group for group, pattern in _GROUPS_COMPILED if pattern.search(lower)), "other")


def _describe_tensor(name: str, tensor: Any) -> JSON:
    shape = [int(size) for size in getattr(tensor, "shape", ())]
    result: JSON = {"name": name, "shape": shape, "dtype": _dtype(getattr(tensor, "dtype", "?"))}
    result["device"] = str(getattr(tensor, "device", "?"))
    result["bytes"] = _bytes(tensor) if hasattr(tensor, "element_size") else None
    return result


def _unwrap(model: Any) -> Any:
    """The user's own module inside wrappers that compile, distribute or adapt it."""
    for _ in range(8):
        inner = None
        for name in ("_orig_mod", "_fsdp_wrapped_module", "module"):
            inner = inner or getattr(model, "_modules", {}).get(name)
        if inner is None:
            base = getattr(model, "_modules", {}).get("base_model")
            inner = getattr(base, "_modules", {}).get("model") if hasattr(model, "peft_config") else None
        if inner is None:
            return model
        model = inner
    return model


def analyze_model(model: Any, optimizer: Any = None, check_values: bool = True) -> JSON:
    """The parameters and the memory of a model; parameters shared between modules count once.

    Gradients and the state of the optimizer are None before the first step. With `check_values`, the names of parameters and gradients (`NAME.grad`) that hold NaN or infinity: one reduction
    a tensor and one synchronization in all; only where a NaN is found does it look again for infinity beside it.
    """
    parameters = list(model.named_parameters())
    by_dtype: Dict[str, int] = collections.defaultdict(int)
    by_device: Dict[str, int] = collections.defaultdict(int)
    by_group: Dict[str, int] = collections.defaultdict(int)
    count = trainable = lora = weight_bytes = gradient_bytes = optimizer_bytes = gradients = 0
    state = getattr(optimizer, "state", None) or {}
    for name, parameter in parameters:
        elements, size = _elements(parameter), _bytes(parameter)
        count += elements
        weight_bytes += size
        trainable += elements if parameter.requires_grad else 0
        by_dtype[_dtype(parameter.dtype)] += size
        by_device[str(parameter.device)] += size
        by_group[_group(name)] += size
        lora += elements if _group(name) == "lora" else 0
        if parameter.grad is not None:
            gradient_bytes += _bytes(parameter.grad)
            gradients += 1
        # Absent keys stay absent: an optimizer's state is a defaultdict.
        for value in (state[parameter] if parameter in state else {}).values():
            optimizer_bytes += _bytes(value) if hasattr(value, "element_size") else 0
    estimate = estimate_training_memory(model, optimizer)
    # Before the first step there are none yet, which says nothing of training.
    known_gradients = gradient_bytes if gradients else None
    known_optimizer = optimizer_bytes if state or estimate["optimizer_bytes"] == 0 else None
    largest = sorted(parameters, key=lambda pair: _bytes(pair[1]), reverse=True)[:10]
    found: JSON = {
        "parameters": count,
        "trainable": trainable,
        "frozen": count - trainable,
        "trainable_ratio": trainable / count if count else None,
        "parameter_bytes": weight_bytes,
        "gradient_bytes": known_gradients,
        "optimizer_bytes": known_optimizer,
        "buffer_bytes": sum(_bytes(buffer) for _, buffer in model.named_buffers()),
        "by_dtype": dict(by_dtype),
        "by_device": dict(by_device),
        "by_group": dict(by_group),
        "lora": lora,
        "lora_ratio": lora / count if count else None,
        "largest": [_describe_tensor(name, parameter) for name, parameter in largest],
    }
    if check_values:
        tensors = parameters + [(name + ".grad", each.grad) for name, each in parameters if each.grad is not None]
        found["nan"], found["inf"], found["unchecked"] = _not_finite(tensors)
    found["estimate"] = estimate
    found["measured_bytes"] = weight_bytes + gradient_bytes + optimizer_bytes + found["buffer_bytes"]
    return found


def _not_finite(tensors: List[Tuple[str, Any]]) -> Tuple[List[str], List[str], List[str]]:
    """Names of tensors with NaN, with infinity, and of unreadable ones."""
    torch = _torch()
    names: List[str] = []
    highest: List[Any] = []
    unchecked: List[str] = []
    by_name = {}
    with torch.no_grad():
        for name, tensor in tensors:
            tensor = _local(tensor).detach()
            if tensor.is_sparse:
                tensor = tensor.coalesce().values()
            if not (tensor.is_floating_point() or tensor.is_complex()) or not tensor.numel():
                continue
            try:
                # The largest magnitude: NaN if there is one, infinite if there is an infinity and no NaN.
                highest.append(torch.linalg.vector_norm(tensor, ord=float("inf")).float())
            except Exception:  # 8-bit floats and meta tensors.
                unchecked.append(name)
                continue
            names.append(name)
            by_name[name] = tensor
        if not highest:
            return [], [], unchecked
        where = highest[0].device
        values = torch.stack([each.to(where, non_blocking=True) for each in highest]).tolist()
        nan = [name for name, value in zip(names, values) if value != value]
        inf = [name for name, value in zip(names, values) if value in (float("inf"), float("-inf"))]
        if nan:
            also = torch.stack([torch.isinf(by_name[name]).any().to(where, non_blocking=True) for name in nan]).tolist()
            inf += [name for name, both in zip(nan, also) if both]
    return nan, inf, unchecked


# Tensors of a parameter's size that an optimizer keeps for each parameter, by the name of its class.
_STATES = {"adam": 2, "adamw": 2, "nadam": 2, "radam": 2, "lion": 1, "rmsprop": 1, "adagrad": 1, "sgd": 0}


def estimate_training_memory(
    model: Any,
    optimizer: Any = None,
    *,
    batch: Optional[int] = None,
    sequence: Optional[int] = None,
    recompute: str = "none",
    flash_attention: bool = True,
) -> JSON:
    """The memory that training takes on this rank, in bytes: parameters, gradients, optimizer, activations.

    Without an optimizer, Adam's. Activations only where `batch` (of this rank) and `sequence` are given and the model
    is a transformer of known shape: s b h (34 + 5 a s / h) bytes a layer at 16 bits, without the second term under
    flash attention or `selective`, 2 s b h under `full` (Korthikanti et al., arXiv 2205.05198, section 4).
    """
    parameters = list(model.parameters())
    weights = sum(_bytes(each) for each in parameters)
    trained = sum(_bytes(each) for each in parameters if each.requires_grad)
    kind = type(optimizer).__name__.lower() if optimizer is not None else "adam"
    states: Optional[int] = next((many for name, many in _STATES.items() if kind == name or kind.endswith(name)), None)
    if optimizer is not None and kind == "sgd":
        states = 1 if any(group.get("momentum") for group in optimizer.param_groups) else 0
    result: JSON = {"parameter_bytes": weights, "gradient_bytes": trained}
    result["optimizer_bytes"] = None if states is None else states * trained
    shape = describe_model(model)
    activations = None
    if batch and sequence and shape.get("layers") and shape.get("hidden") and shape.get("heads"):
        token_bytes = sequence * batch * shape["hidden"]
        scores = 0.0 if flash_attention or recompute != "none" else 5.0 * shape["heads"] * sequence / shape["hidden"]
        factor = 2.0 if recompute == "full" else 34.0 + scores
        width = max((each.element_size() for each in parameters), default=2) / 2
        activations = int(token_bytes * factor * shape["layers"] * width)
    result["activation_bytes"] = activations
    known = [result[key] for key in ("parameter_bytes", "gradient_bytes", "optimizer_bytes")]
    result["total_bytes"] = None if None in known else sum(known) + (activations or 0)
    return result


def describe_model(model: Any) -> JSON:
    """The model's shape under the protocol's names, from its configuration and weights; what is unknown is left out."""
    inner = _unwrap(model)
    parameters = [(name, each) for name, each in model.named_parameters()]
    shape: JSON = {}
    config = getattr(inner, "config", None)
    config = getattr(config, "text_config", None) or config

    def get(name: str) -> Any:
        return config.get(name) if isinstance(config, Mapping) else getattr(config, name, None)

    def look(*names: str) -> Optional[int]:
        for name in names:
            value = get(name)
            if isinstance(value, int) and not isinstance(value, bool):
                return value
        return None

    if config is not None:
        kind = get("model_type")
        kinds = get("layer_types") or ()
        window = look("sliding_window", "attention_chunk_size") and get("use_sliding_window") is not False
        if any(str(each) != "full_attention" for each in kinds) or (window and not kinds):
            kind = "%s with other attention" % (kind or type(inner).__name__)
        shape["kind"] = str(kind or type(inner).__name__).lower()[:64]
        wanted = {
            "layers": look("num_hidden_layers", "n_layer", "n_layers", "num_layers"),
            "hidden": look("hidden_size", "n_embd", "d_model", "dim"),
            "ffn": look("intermediate_size", "n_inner", "ffn_hidden_size", "ffn_dim", "d_ff"),
            "heads": look("num_attention_heads", "n_head", "n_heads", "num_heads"),
            "kv_heads": look("num_key_value_heads", "n_kv_heads", "num_kv_heads", "num_query_groups"),
            "head_dim": look("head_dim", "kv_channels"),
            "vocab": look("padded_vocab_size", "vocab_size"),
            "experts": look("num_local_experts", "num_experts", "n_routed_experts"),
            "experts_per_token": look("num_experts_per_tok", "moe_router_topk", "moe_topk"),
            "expert_ffn": look("moe_intermediate_size", "moe_ffn_hidden_size"),
            "shared_expert_ffn": look("shared_expert_intermediate_size"),
        }
        shape.update((key, value) for key, value in wanted.items() if value is not None)
        _complete_shape(shape, parameters, look)
    else:
        shape["kind"] = type(inner).__name__.lower()[:64]
    shape["parameters"] = sum(_elements(each) for _, each in parameters)
    shape["trainable"] = sum(_elements(each) for _, each in parameters if each.requires_grad)
    return shape


def _complete_shape(shape: JSON, parameters: List[Tuple[str, Any]], look: Callable[..., Optional[int]]) -> None:
    """Values missing in a configuration: by the families' conventions, and from the weights."""
    hidden, heads = shape.get("hidden"), shape.get("heads")
    if hidden and heads:
        shape.setdefault("kv_heads", heads)
        if hidden % heads == 0:
            shape.setdefault("head_dim", hidden // heads)
    experts = shape.get("experts", 0)
    if experts:
        shape.setdefault("expert_ffn", shape.get("ffn", 0))
        shared = look("n_shared_experts")
        if shared:
            shape.setdefault("shared_expert_ffn", shared * shape["expert_ffn"])
        dense = look("first_k_dense_replace") or 0
        shape.setdefault("moe_layers", max(0, shape.get("layers", 0) - dense))
    names = [name for name, _ in parameters]
    if names:
        shape["gated"] = any(re.search(r"gate_proj|gate_up_proj|\.w3\b|linear_fc1_gate", name) for name in names)
    if "ffn" not in shape and hidden:
        for name, each in parameters:
            sizes = [int(size) for size in each.shape]
            if _group(name) == "mlp" and len(sizes) == 2 and hidden in sizes:
                shape["ffn"] = sizes[0] if sizes[1] == hidden else sizes[1]
                break


def compare_configurations(variants: Mapping[str, Callable[[], Any]]) -> List[JSON]:
    """Runs each variant and returns time and memory of each, the least memory first; a failed one has an error.

    Empties the devices' caches and resets their peaks before each. `compare_text` makes a table of it.
    """
    results: List[JSON] = []
    for name, run in variants.items():
        gc.collect()
        module = _accelerator()
        if module is not None:
            module.empty_cache()
            for index in _devices():
                module.reset_peak_memory_stats(int(index))
        rss_before = _host_memory()[0]
        begun, error = _clock(), None
        try:
            run()
            if _accelerator() is not None:
                _accelerator().synchronize()
        except Exception as problem:  # Running out of memory is one of the results.
            error = "%s: %s" % (type(problem).__name__, str(problem).split("\n")[0][:200])
        seconds = _clock() - begun
        devices, rss = _devices(), _host_memory()[0]
        result: JSON = {"name": name, "seconds": seconds, "error": error}
        for key in ("allocated_peak", "reserved_peak"):
            result[key + "_bytes"] = sum(each[key] for each in devices.values()) if devices else None
        result["host_growth_bytes"] = rss - rss_before if rss is not None and rss_before is not None else None
        results.append(result)
    return sorted(
        results, key=lambda each: (each["error"] is not None, each["allocated_peak_bytes"] or 0, each["seconds"])
    )


def compare_text(results: List[JSON]) -> str:
    """The result of `compare_configurations` as a table."""
    rows = [["variant", "seconds", "allocated peak", "reserved peak", "host growth", "error"]]
    for each in results:
        sizes = [_size(each[key]) for key in ("allocated_peak_bytes", "reserved_peak_bytes", "host_growth_bytes")]
        rows.append([each["name"], "%.3f" % each["seconds"], *sizes, each["error"] or ""])
    return _table(rows)
