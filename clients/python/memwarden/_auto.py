"""Instrumentation without a change to the program; auto/sitecustomize.py calls `start_auto` after the import of torch.

The monitor and the hooks are loaded when the program makes its first optimizer, or uses a device: most processes that import torch (workers
of loaders, launchers, tools) do neither.
"""

from __future__ import annotations

import functools
import os
import threading
import time
from typing import Any, Callable

from ._base import _guarded, _hiding, _loading
from ._process import _devices, _load_thread_exit, _torch

# Whether the monitor has begun, or will not; and the hooks.
_decided = False
_watch: Any = None


@_guarded()
def start_auto() -> None:
    """Waits for what there is to report in a process that has imported torch; never raises."""
    mode = os.environ.get("MEMWARDEN_AUTO", "")
    # `torch.optim` deletes the name of its own module.
    kind = __import__("torch.optim.optimizer", fromlist=["Optimizer"]).Optimizer
    off = os.environ.get("MEMWARDEN_DISABLE", "") not in ("", "0")
    if mode in ("", "0") or off or hasattr(kind.__init__, "_memwarden"):
        return

    def follow(name: str) -> None:
        original = getattr(kind, name)

        @functools.wraps(original)
        def made(optimizer: Any, *args: Any, **kwargs: Any) -> None:
            original(optimizer, *args, **kwargs)
            watch = _begin(mode)
            if watch is not None and mode != "steps" and name == "__init__":
                watch.made(optimizer)

        made._memwarden = True  # type: ignore[attr-defined]
        setattr(kind, name, made)

    follow("__init__")
    # Of a copy, and of one that was pickled.
    follow("__setstate__")
    if mode != "steps":
        wrap_saves(lambda: None if _watch is None else _watch.fit, _torch(), "save")
    _load_thread_exit()
    threading.Thread(target=_await_devices, args=(mode,), name="memwarden", daemon=True).start()


def _await_devices(mode: str) -> None:
    while not _decided:
        with _hiding("devices"):
            if _devices():
                watch = _begin(mode)
                if watch is not None:
                    watch.monitor.start()
                return
        time.sleep(1.0)


@_guarded()
def _begin(mode: str) -> Any:
    """The hooks of the monitor, which is made at the first call; None where the program reports itself."""
    global _decided, _watch
    if _decided:
        return _watch
    with _loading:
        if _decided:
            return _watch
        try:
            from . import _monitor
            from ._hooks import watch_all

            if _monitor._is_reported:
                return None
            monitor = _monitor.Monitor(phase_memory=mode != "steps")
            monitor._session.quiet = True
            # Workers that only import torch are not reported; evaluation and inference have loaders too.
            monitor._phases.starting = ("forward", "optimizer")
            _watch = watch_all(monitor, mode != "steps")
            _monitor._automatic = monitor
            monitor._run()
            return _watch
        finally:
            # What another thread makes meanwhile waits for the hooks.
            _decided = True


def wrap_saves(of: Callable[[], Any], owner: Any, name: str) -> None:
    """A function that writes a file with tensors is measured from now on, where there are predictions."""
    original = getattr(owner, name, None)
    if original is None or hasattr(original, "_memwarden"):
        return

    @functools.wraps(original)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        fit, written = of(), False
        if fit is None:
            return original(*args, **kwargs)
        fit.save_begins(next((each for each in (*args, *kwargs.values()) if isinstance(each, (str, os.PathLike))), None))
        try:
            result = original(*args, **kwargs)
            written = True
            return result
        finally:
            fit.save_ends(written)

    wrapped._memwarden = True  # type: ignore[attr-defined]
    setattr(owner, name, wrapped)
