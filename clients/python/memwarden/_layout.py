"""How the ranks of a run divide the work: the number of replicas of the model."""

from __future__ import annotations

import gc
import math
import sys
from typing import Any, List, Optional, Tuple

from ._base import _guarded, _hide

_REPLICATES = ("DistributedDataParallel", "FullyShardedDataParallel", "DeepSpeedEngine")
# Dimensions of a device mesh that divide the data.
_DATA = ("dp", "fsdp", "ddp", "data", "replicate", "shard")


def data_parallel(module: Any) -> Tuple[Optional[int], Optional[str]]:
    """The number of replicas that train this module, or the reason why it is not known; neither without other ranks."""
    distributed = sys.modules.get("torch.distributed")
    try:
        if distributed is None or not distributed.is_available() or not distributed.is_initialized():
            return None, None
        world = int(distributed.get_world_size())
        if world <= 1:
            return None, None
        found = _of_mesh(module)
        for wrapper in _around(module):
            found = found or _of_wrapper(wrapper, distributed)
        if found and world % found == 0:
            return found, None
    except Exception as error:
        _hide(error, "layout")
    reason = "no DistributedDataParallel, FSDP or DeepSpeed module holds the model, so the number of its replicas is "
    return None, reason + "unknown: Monitor(data_parallel=) can give it"


@_guarded()
def engine_of(module: Any) -> Any:
    """DeepSpeed's engine of a module."""
    if "deepspeed" not in sys.modules:
        return None
    return next((each for each in _around(module) if type(each).__name__ == "DeepSpeedEngine"), None)


def _around(module: Any) -> List[Any]:
    """The wrappers that hold a module, among all objects; takes about 0.1 s."""
    found = []
    for each in gc.get_objects():
        if type(each).__name__ in _REPLICATES and any(inner is module for inner in each.modules()):
            found.append(each)
    return found


def _of_wrapper(wrapper: Any, distributed: Any) -> Optional[int]:
    name = type(wrapper).__name__
    if name == "DeepSpeedEngine":
        return int(wrapper.dp_world_size)
    replicas = int(distributed.get_world_size(wrapper.process_group))
    if name == "FullyShardedDataParallel" and getattr(wrapper, "_inter_node_pg", None) is not None:
        replicas *= int(distributed.get_world_size(wrapper._inter_node_pg))
    return replicas


def _of_mesh(module: Any) -> Optional[int]:
    """Of parameters that are distributed tensors (`fully_shard`)."""
    mesh = next((each.device_mesh for each in module.parameters() if hasattr(each, "device_mesh")), None)
    if mesh is None:
        return None
    names = mesh.mesh_dim_names
    if names is None:
        return int(mesh.size()) if mesh.ndim == 1 and type(module).__name__.startswith("FSDP") else None
    sizes = [int(mesh.size(place)) for place, name in enumerate(names) if any(word in name for word in _DATA)]
    return math.prod(sizes) if sizes else None
