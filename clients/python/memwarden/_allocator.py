"""The allocator of torch: its figures, and its failures."""

from __future__ import annotations

import os
import weakref
from typing import Any, Callable, Optional

from ._base import JSON, Path, _getpid, _guarded, _hiding, _now, _plain
from ._identity import _Identity
from ._process import _devices, _host_memory, _pinned, _torch
from ._session import _Session


def _has_expandable_segments() -> bool:
    """Whether the environment sets `expandable_segments`; PyTorch reads the newer name first."""
    settings = os.environ.get("PYTORCH_ALLOC_CONF") or os.environ.get("PYTORCH_CUDA_ALLOC_CONF") or ""
    return "expandable_segments:true" in settings.lower().replace(" ", "")


class _Allocator:
    """Sends the figures of the allocator, and reports when it fails, with a snapshot in `folder` if there is one.

    `keep` adds a failure to the timeline.
    """

    def __init__(
        self, session: _Session, identity: _Identity, keep: Callable[[str, Any], None], folder: Optional[Path]
    ) -> None:
        self._session, self._identity, self._keep = session, identity, keep
        self._folder = folder
        self._observed = False
        # The message of the last failure.
        self.failure: Optional[JSON] = None
        # The peak of the process that was sent last.
        self.sent_peak = 0

    def send(self) -> None:
        devices = _devices()
        message: JSON = {"type": "mem", "t": _now()}
        peak = _host_memory()[1] or 0
        rose = peak > 1.01 * self.sent_peak
        if rose:
            self.sent_peak = message["resident_peak"] = peak
        if not devices:
            return self._session.send(message) if rose else None
        if self._identity.sent is not None and "devices" not in self._identity.sent:
            self._identity.update()
        message["devices"] = devices
        pinned = _pinned()
        if pinned is not None:
            message["pinned"] = pinned
        self._session.send(message)

    def observe(self) -> None:
        """Attaches an observer of failures, once the devices are initialized."""
        if self._observed:
            return
        torch = _torch()
        attach = getattr(getattr(torch, "_C", None), "_cuda_attach_out_of_memory_observer", None)
        cuda = getattr(torch, "cuda", None)
        # Before initialization no device has an allocator to attach to.
        if attach is None or cuda is None or not cuda.is_initialized():
            return
        self._observed = True
        weak = weakref.ref(self)

        def observer(device: int, requested: int, total: int, free: int) -> None:
            allocator = weak()
            if allocator is not None:
                allocator.failed(device, requested, total, free)

        attach(observer)

    @_guarded()
    def failed(self, device: int, requested: int, total: int, free: int) -> None:
        message: JSON = {"type": "oom", "t": _now(), "device": str(device), "requested": requested}
        message.update(total=total, free=free, expandable_segments=_has_expandable_segments())
        figures = _devices().get(str(device), {})
        message.update((key, figures[key]) for key in ("allocated", "reserved") if key in figures)
        if self._folder:
            path = os.path.join(self._folder, "oom-rank%d-%d.pickle" % (self._identity.hello()["rank"], _getpid()))
            with _hiding("snapshot"):
                os.makedirs(self._folder, exist_ok=True)
                _torch().cuda.memory._dump_snapshot(path)
                message["snapshot"] = os.path.abspath(path)
        self.failure = message
        self._session.send(message, keep=True)
        self._keep("out of memory", _plain(message))
