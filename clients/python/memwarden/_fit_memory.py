"""What this process holds: on a device what its allocator has allocated, on the host its resident memory."""

from __future__ import annotations

from typing import Optional, Tuple

from ._process import _allocated_on, _host_allocated, _host_memory_since_reset, _host_now, _take_host_peak

# The ordinal of a device; None for the host.
Place = Optional[int]


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


def take_highest_on(place: Place) -> Optional[int]:
    """The same, of the host from now on anew."""
    if place is None:
        return _take_host_peak()
    now = _allocated_on(place)
    return None if now is None else now[1]


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
