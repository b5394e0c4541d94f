"""The tokens of a training process, without padding where a mask says what that is."""

from __future__ import annotations

from typing import Any, Dict, Optional

from ._process import _torch


class _Tokens:
    """Counts tokens. A mask on a device is added up there, and read without waiting for the device."""

    def __init__(self) -> None:
        self._known = 0
        self._taken = 0
        self._devices: Dict[Any, _OnDevice] = {}

    def add(self, rows: int, columns: int, mask: Any) -> None:
        """Adds a batch of `rows` sequences of `columns` tokens each."""
        if mask is None or tuple(getattr(mask, "shape", ())) != (rows, columns):
            self._known += rows * columns
            return
        device = getattr(mask, "device", None)
        kind = getattr(device, "type", str(device))
        if kind == "cpu":
            self._known += int((mask != 0).sum())
        elif kind == "cuda":
            if not _torch().cuda.is_current_stream_capturing():
                counter = self._devices.get(device)
                if counter is None:
                    counter = self._devices[device] = _OnDevice(device)
                counter.add(mask)
        else:
            self._known += rows * columns

    def take(self) -> int:
        """The tokens since the last call; those of a device as far as it has come."""
        total = self._known
        if self._devices:
            total += sum(each.read() for each in self._devices.values())
        taken, self._taken = total - self._taken, total
        return taken


class _OnDevice:
    """A total on a device, which is copied to page-locked memory after each addition."""

    def __init__(self, device: Any, host: Optional[Any] = None) -> None:
        torch = _torch()
        self._total = torch.zeros((), dtype=torch.int64, device=device)
        self._host = torch.zeros((), dtype=torch.int64, pin_memory=True) if host is None else host
        self._address = self._host.data_ptr()

    def add(self, mask: Any) -> None:
        torch = _torch()
        with torch.no_grad():
            self._total.add_(torch.count_nonzero(mask))
            self._host.copy_(self._total, non_blocking=True)

    def read(self) -> int:
        return int(self._host)
