"""Two devices, of which the first is used once `initialize` was called."""

import types

GIB = 1 << 30
initialized = False
allocated, peak, cached = 6 * GIB, 7 * GIB, 8 * GIB
# Allocated bytes of the second device, and their peak.
elsewhere = peak_elsewhere = 0


def initialize():
    global initialized
    initialized = True


def is_initialized():
    return initialized


def is_available():
    return True


def device_count():
    return 2


def current_device():
    return 0


def memory_stats(device):
    assert initialized, "this would initialize CUDA"
    used = device == 0
    stats = {
        "allocated_bytes.all.current": allocated,
        "allocated_bytes.all.peak": peak,
        "active_bytes.all.current": allocated,
        "reserved_bytes.all.current": cached,
        "reserved_bytes.all.peak": 8 * GIB,
        "requested_bytes.all.current": allocated - 512,
        "inactive_split_bytes.all.current": GIB // 4,
        "num_alloc_retries": 3,
        "num_ooms": 0,
    }
    if used:
        return stats
    other = {"allocated_bytes.all.current": elsewhere, "allocated_bytes.all.peak": max(elsewhere, peak_elsewhere)}
    return {**dict.fromkeys(stats, 0), **other}


def host_memory_stats():
    return {"allocated_bytes.current": 1 << 20, "reserved_bytes.current": 2 << 20}


def get_device_properties(device):
    return types.SimpleNamespace(total_memory=80 * GIB, uuid="5f1d2a7c-%d" % device, name="Fake H100")


def mem_get_info(device):
    return 8 * GIB, 80 * GIB


def empty_cache():
    global cached
    cached = allocated


def _dump_snapshot(path):
    with open(path, "wb") as file:
        file.write(b"snapshot")


memory = types.SimpleNamespace(_dump_snapshot=_dump_snapshot)
