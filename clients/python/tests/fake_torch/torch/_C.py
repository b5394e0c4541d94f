"""The observer of running out of memory, and the fast way to the allocator's figures."""

observers = []


def _cuda_attach_out_of_memory_observer(observer):
    observers.append(observer)


def _cuda_memoryStats(device):
    from . import cuda

    flat = cuda.memory_stats(device)
    key = "allocated_bytes.all."
    return {"allocated_bytes": {"all": {"current": flat[key + "current"], "peak": flat[key + "peak"]}}}
