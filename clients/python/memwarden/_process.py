"""The identity and use of this process: its rank, the allocator of torch, host and cgroup memory."""

from __future__ import annotations

import functools
import os
import sys
from typing import Any, Dict, List, Mapping, Optional, Sequence, Tuple

from ._base import JSON


def launcher_rank(environment: Optional[Mapping[str, str]] = None) -> Tuple[int, int, int]:
    """Rank, local rank and world size, from torchrun, Slurm, Open MPI, MPICH and other PMI launchers.

    Where nobody launched it, 0, 0 and 1.
    """
    env = os.environ if environment is None else environment
    names: List[Tuple[Sequence[str], Sequence[str], Sequence[str]]] = [
        (["RANK"], ["LOCAL_RANK"], ["WORLD_SIZE"]),
        (["OMPI_COMM_WORLD_RANK"], ["OMPI_COMM_WORLD_LOCAL_RANK"], ["OMPI_COMM_WORLD_SIZE"]),
        (["PMI_RANK", "PMIX_RANK"], ["MPI_LOCALRANKID", "PMI_LOCAL_RANK"], ["PMI_SIZE", "MPI_LOCALNRANKS"]),
    ]
    # In the batch script itself SLURM_NTASKS is set too, but only a step has that many processes.
    if "SLURM_STEP_ID" in env or "SLURM_STEPID" in env:
        names.append((["SLURM_PROCID"], ["SLURM_LOCALID"], ["SLURM_STEP_NUM_TASKS", "SLURM_NTASKS"]))

    def first(keys: Sequence[str]) -> Optional[int]:
        found = (env[key] for key in keys if key in env)
        return next((int(value) for value in found if value.isdigit() and len(value) < 10), None)

    for rank_names, local_names, world_names in names:
        rank = first(rank_names)
        if rank is not None:
            world = first(world_names)
            local = first(local_names)
            world = max(world if world is not None else 1, rank + 1)
            return rank, local if local is not None else 0, world
    return 0, 0, 1


_MEMORY_KEYS = (
    ("allocated", "allocated_bytes.all.current"),
    ("allocated_peak", "allocated_bytes.all.peak"),
    ("active", "active_bytes.all.current"),
    ("reserved", "reserved_bytes.all.current"),
    ("reserved_peak", "reserved_bytes.all.peak"),
    ("requested", "requested_bytes.all.current"),
    ("inactive_split", "inactive_split_bytes.all.current"),
    ("retries", "num_alloc_retries"),
    ("ooms", "num_ooms"),
)


def _torch() -> Any:
    return sys.modules.get("torch")


def _bytes(tensor: Any) -> int:
    """The part that this process holds."""
    local = _local(tensor)
    return int(local.numel()) * int(local.element_size())


def _local(tensor: Any) -> Any:
    """This rank's shard of a distributed tensor."""
    return tensor.to_local() if hasattr(tensor, "to_local") else tensor


def _accelerator() -> Any:
    """The module of the accelerator in use (`torch.cuda`, `xpu`, `npu`, `musa`); None before it is initialized."""
    torch = _torch()
    for name in ("cuda", "npu", "xpu", "musa"):
        module = getattr(torch, name, None) if torch is not None else None
        try:
            if module is not None and module.is_initialized() and hasattr(module, "memory_stats"):
                return module
        except Exception:
            continue
    return None


def _devices() -> Dict[str, JSON]:
    """The allocator's values by device, under the protocol's names. Reads counters only and never waits."""
    module = _accelerator()
    found: Dict[str, JSON] = {}
    if module is None:
        return found
    for index in range(module.device_count()):
        stats = module.memory_stats(index)
        figures = {name: int(stats[key]) for name, key in _MEMORY_KEYS if key in stats}
        # A process has access to every device of the node and uses one or a few.
        if not figures.get("reserved_peak") and not figures.get("ooms"):
            continue
        total = _device_total(module, index)
        if total is not None:
            figures["total"] = total
        found[str(index)] = figures
    return found


@functools.lru_cache(maxsize=64)
def _device_properties(module: Any, index: int) -> Tuple[Optional[int], Optional[str], Optional[str]]:
    properties = module.get_device_properties(index)
    uuid = getattr(properties, "uuid", None)
    text = None if uuid is None else str(uuid)
    if text is not None and not text.startswith(("GPU-", "MIG-")):
        text = "GPU-" + text
    return getattr(properties, "total_memory", None), text, getattr(properties, "name", None)


def _device_total(module: Any, index: int) -> Optional[int]:
    try:
        return _device_properties(module, index)[0]
    except Exception:
        return None


def _allocated() -> Optional[Tuple[int, int]]:
    """Bytes allocated now and at most since the process began, on the current device; about 20 us."""
    module = _accelerator()
    return None if module is None else _allocated_on(getattr(module, "current_device", lambda: 0)())


def _allocated_on(index: int) -> Optional[Tuple[int, int]]:
    """The same for one device."""
    module = _accelerator()
    if module is None:
        return None
    torch = _torch()
    fast = getattr(getattr(torch, "_C", None), "_cuda_memoryStats", None)
    if fast is not None and module is torch.cuda:
        figures = fast(index)["allocated_bytes"]["all"]
        return int(figures["current"]), int(figures["peak"])
    stats = module.memory_stats(index)
    return int(stats.get("allocated_bytes.all.current", 0)), int(stats.get("allocated_bytes.all.peak", 0))


def _pinned() -> Optional[int]:
    module = _accelerator()
    read = getattr(module, "host_memory_stats", None)
    if read is None:
        return None
    stats = read()
    value = stats.get("reserved_bytes.current", stats.get("allocated_bytes.current"))
    return None if value is None else int(value)


def _read(path: str) -> Optional[str]:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read(65536)
    except OSError:
        return None


# The highest peak of the resident memory before the kernel's was reset.
_peak_before_reset = 0


def _host_memory() -> Tuple[Optional[int], Optional[int]]:
    """This process's current and peak resident memory."""
    now, peak = _host_memory_since_reset()
    return now, None if peak is None else max(peak, _peak_before_reset)


def _take_host_peak() -> Optional[int]:
    """The highest resident memory since the last call; where the kernel does not reset it, since the start."""
    global _peak_before_reset
    peak = _host_memory_since_reset()[1]
    if peak is not None:
        _peak_before_reset = max(peak, _peak_before_reset)
    try:
        with open("/proc/self/clear_refs", "wb", buffering=0) as file:
            file.write(b"5")
    except OSError:
        pass  # Read-only in some containers.
    return peak


def _host_now() -> Optional[int]:
    """The current resident memory, by the fastest way."""
    fields = (_read("/proc/self/statm") or "").split()
    return int(fields[1]) * os.sysconf("SC_PAGE_SIZE") if len(fields) > 1 else None


@functools.lru_cache(maxsize=1)
def _malloc_statistics() -> Any:
    """`mallinfo2` of the C library (glibc 2.33); None where there is none."""
    import ctypes

    class Statistics(ctypes.Structure):
        _fields_ = [(name, ctypes.c_size_t) for name in _MALLINFO]

    try:
        function = ctypes.CDLL(None).mallinfo2
    except (AttributeError, OSError):
        return None
    function.restype = Statistics
    return function


_MALLINFO = ("arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks", "uordblks", "fordblks", "keepcost")


def _host_allocated() -> Optional[Tuple[int, int]]:
    """Bytes that the program has allocated by malloc, and bytes that malloc keeps for it; up to 0.1 ms."""
    function = _malloc_statistics()
    if function is None:
        return None
    found = function()
    return int(found.uordblks + found.hblkhd), int(found.fordblks)


def _host_memory_since_reset() -> Tuple[Optional[int], Optional[int]]:
    found = _status("VmRSS", "VmHWM")
    return found.get("VmRSS"), found.get("VmHWM")


def _host_mapped() -> Optional[int]:
    """The part of the resident memory that are pages of mapped files, such as libraries."""
    return _status("RssFile").get("RssFile")


def _status(*keys: str) -> Dict[str, int]:
    found: Dict[str, int] = {}
    for line in (_read("/proc/self/status") or "").splitlines():
        key, _, rest = line.partition(":")
        if key in keys:
            found[key] = int(rest.split()[0]) * 1024
    return found


def _cgroup_memory() -> Tuple[Optional[int], Optional[int], str]:
    """Usage and limit of the cgroup of version 2 with the least headroom on the process's path, and the path."""
    own = next((line[3:] for line in (_read("/proc/self/cgroup") or "").splitlines() if line.startswith("0::")), "")
    path = own
    best: Tuple[Optional[int], Optional[int]] = (None, None)
    while own:
        folder = "/sys/fs/cgroup" + path.rstrip("/")
        limit, used = (_read(folder + "/memory.max") or "").strip(), (_read(folder + "/memory.current") or "").strip()
        if (
            limit.isdigit()
            and used.isdigit()
            and (best[1] is None or int(limit) - int(used) < best[1] - (best[0] or 0))
        ):
            best = int(used), int(limit)
        if path in ("/", ""):
            break
        path = path.rsplit("/", 1)[0]
    return best[0], best[1], own


def _load_thread_exit() -> None:
    """Loads what a thread needs to end with the interpreter before Python 3.14.

    glibc loads libgcc_s when the first thread calls pthread_exit, and aborts the process where memory for it is refused: a program
    that ends by a MemoryError at its limit of the address space must keep its exit code.
    """
    if sys.platform != "linux" or sys.version_info >= (3, 14):
        return
    try:
        import _ctypes

        _ctypes.dlopen("libgcc_s.so.1", 0)
    except (ImportError, OSError, MemoryError, AttributeError):
        pass  # With musl, or without ctypes.
