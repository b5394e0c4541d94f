"""What this process holds: on a device what its allocator has allocated, on the host its resident memory."""

from __future__ import annotations

from typing import List, Optional, Tuple

from ._process import (
    _accelerator,
    _allocated_on,
    _host_allocated,
    _host_memory_since_reset,
    _host_now,
    _take_host_peak,
)

# The ordinal of a device; None for the host.
Place = Optional[int]
# What is held at the begin of a phase, and the highest until then.
Mark = Tuple[int, int]
# Bytes from which on another device than the current one is used: flags of collectives, and what a library puts on the first
# device, are smaller.
LEAST_USED = 1 << 20


def resource_of(place: Place) -> Tuple[str, Place]:
    """The resource and the device in the protocol's terms."""
    return ("host", None) if place is None else ("device", place)


def held_on(place: Place) -> Optional[int]:
    """Bytes that are held now."""
    if place is None:
        return _host_now()
    now = _allocated_on(place)
    return None if now is None else now[0]


def highest_on(place: Place) -> int:
    """The highest of the process; of the host, since it was taken last."""
    return (_host_memory_since_reset()[1] if place is None else (_allocated_on(place) or (0, 0))[1]) or 0


def mark(place: Place) -> Optional[Mark]:
    """Before a phase. The peak of the host is reset; that of an allocator never is, as the program may read it."""
    if place is None:
        _take_host_peak()
    return _now_and_highest(place)


def highest_since(place: Place, begun: Mark) -> Optional[Tuple[int, int]]:
    """The least and the most that the highest memory since the mark can be: equal, unless something before it was higher."""
    found = _now_and_highest(place)
    if found is None:
        return None
    now, highest = found
    # A lower one was reset by the program meanwhile.
    least = max(begun[0], now if highest == begun[1] else highest)
    return least, max(least, highest)


def _now_and_highest(place: Place) -> Optional[Tuple[int, int]]:
    if place is not None:
        return _allocated_on(place)
    now, highest = _host_memory_since_reset()
    return None if now is None or highest is None else (now, highest)


def devices_in_use() -> List[int]:
    """The ordinals of devices on which this process has allocated what it computes with."""
    module = _accelerator()
    if module is None:
        return []
    current = getattr(module, "current_device", lambda: 0)()
    held = ((place, _allocated_on(place) or (0, 0)) for place in range(module.device_count()))
    return [place for place, (now, _) in held if now >= (1 if place == current else LEAST_USED)]


class Memory:
    """Reads what the program has allocated. `other` bytes of the resident memory are not malloc's: code, and files."""

    def __init__(self) -> None:
        self.other = 0

    def now(self, place: Place) -> Optional[Tuple[int, int]]:
        """Bytes that are allocated, and the highest since the start; of the host, the resident memory.

        What is allocated of the host is what malloc has given to the program, with the other resident memory; what malloc
        keeps for later is not. Without the statistics of malloc, it is the resident memory.
        """
        if place is not None:
            return _allocated_on(place)
        used = _host_allocated()
        resident = _host_now()
        if used is None or resident is None:
            return None if resident is None else (resident, resident)
        # It grows with the code that runs the first time. Pages that malloc has not touched make it seem less.
        self.other = max(self.other, resident - sum(used))
        return min(resident, used[0] + self.other), resident
